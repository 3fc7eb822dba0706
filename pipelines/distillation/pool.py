"""The rows that a distillation trains on: chosen once by the first process, the same in a resumed run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipelines.distillation.inputs import PromptData
from pipelines.distillation.prompts import Prompt
from recovery.distributed import in_turn
from recovery.storage.atomic_dirs import write_text

if TYPE_CHECKING:
    from pipelines.runs.stage_runner import Stage

KEPT_POOL = "pool.json"  # in a run's folder: the weight of each row that was read, null where it is left out
Chosen = tuple[PromptData, dict[str, Any]]


def chosen_once(stage: Stage, read: PromptData, choose: Callable[[], Chosen]) -> Chosen:
    """Return the rows of all that were read that `choose` keeps, and what it tells about them."""
    kept = stage.directory / KEPT_POOL

    def choice() -> dict[str, Any]:
        if not kept.exists():
            data, told = choose()
            weights = [_weights(read.prompts, data.prompts), _weights(read.pairs, data.pairs)]
            write_text(kept, json.dumps({"weights": weights, "told": told}))
        return dict(json.loads(kept.read_text(encoding="utf-8")))

    found = in_turn(choice)
    prompts, pairs = found["weights"]
    return PromptData(_weighted(read.prompts, prompts), _weighted(read.pairs, pairs)), found["told"]


def _weights(read: Sequence[Prompt], kept: Sequence[Prompt]) -> list[float | None]:
    """Return the weight of each row; a row that was weighted anew still has its messages."""
    weights = {id(row.messages): row.weight for row in kept}
    return [weights.get(id(row.messages)) for row in read]


def _weighted(read: Sequence[Prompt], weights: Sequence[float | None]) -> list[Prompt]:
    rows = zip(read, weights, strict=True)
    return [replace(row, weight=weight) for row, weight in rows if weight is not None]
