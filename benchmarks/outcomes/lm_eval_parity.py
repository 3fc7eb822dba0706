"""Compare IFEval as `recover eval` scores it with lm-eval's own run of the same weights, answer by answer.

    python -m benchmarks.outcomes.lm_eval_parity HOME --ifeval input_data.jsonl --limit 64

Both answer greedily with at most `--tokens`; a home whose model.dtype is float32 computes as lm-eval does
here. Padding and the order of sums differ, so that single answers may part where two tokens are nearly as
likely.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.model import LM
from lm_eval.api.task import Task
from lm_eval.models.huggingface import HFLM

from benchmarks.ledger import Line, markdown
from benchmarks.outcomes.arguments import whole_docstring
from evals import harness, ifeval
from evals.scores import Item, Score
from pipelines.config.jobs import EvalJob
from pipelines.evaluate import evaluate
from pipelines.evaluation.recorded_scores import recorded_items
from pipelines.runs.workspace import Workspace

FIGURES = {
    "prompts, strict": "prompt_level_strict_acc",
    "prompts, loose": "prompt_level_loose_acc",
    "instructions, strict": "inst_level_strict_acc",
    "instructions, loose": "inst_level_loose_acc",
}


def main() -> None:
    parser = whole_docstring(__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--checkpoint", default="base")
    parser.add_argument("--ifeval", metavar="FILE", help="default: the hub's prompts")
    parser.add_argument("--limit", type=int, metavar="N")
    parser.add_argument("--tokens", type=int, default=256, metavar="N")
    chosen = parser.parse_args()
    with Workspace.open(chosen.home) as ws:
        checkpoint = ws.checkpoint(chosen.checkpoint)
        figures, items = asked(ws, checkpoint.id, chosen.ifeval, chosen.limit, chosen.tokens)
    run = run_by_lm_eval(checkpoint.path, chosen.tokens, chosen.ifeval, chosen.limit)
    sys.stdout.write(markdown(table(figures, items, ifeval.score_runs([run]))) + "\n")


def asked(
    ws: Workspace, checkpoint: str, prompts: str | None, limit: int | None, tokens: int
) -> tuple[dict[str, float], list[Item]]:
    """Return the four figures of `recover eval`, and its answers."""
    changes: dict[str, Any] = {"limit": limit, "max_new_tokens": tokens}
    if prompts:
        changes["ifeval"] = prompts
    settings = ws.config.eval.model_copy(update=changes)
    found = evaluate(ws, EvalJob(checkpoint=checkpoint, suites=(ifeval.IFEVAL,), settings=settings))
    score = found["scores"][ifeval.IFEVAL]
    return {key: score[key] for key in FIGURES.values()}, recorded_items(
        ws, found["score_ids"][ifeval.IFEVAL]
    )


def run_by_lm_eval(
    directory: Path, max_new_tokens: int, prompts: str | None, limit: int | None
) -> harness.IFEvalRun:
    """Ask a checkpoint in fp32 through lm-eval's own model class: the figures that others get."""

    def loaded(task: Task) -> LM:
        task.set_config("generation_kwargs", {"max_gen_toks": max_new_tokens}, update=True)
        place = "cuda" if torch.cuda.is_available() else "cpu"
        return HFLM(str(directory), dtype="float32", batch_size=16, device=place)

    return harness.run_model(loaded, prompts, limit)


def table(figures: dict[str, float], items: Sequence[Item], theirs: Score) -> list[Line]:
    """Return a row for each of the four figures, and one for how many answers are the same."""
    rows: list[Line] = [
        {"figure": name, "recover": f"{figures[key]:.3f}", "lm-eval": f"{theirs.details[key]:.3f}"}
        for name, key in FIGURES.items()
    ]
    by_key = {item.key: item for item in theirs.items}
    pairs = [(item, by_key[item.key]) for item in items]
    same = sum(one.response == other.response for one, other in pairs)
    alike = sum(one.passed == other.passed for one, other in pairs)
    said = {"recover": f"{same} are the same", "lm-eval": f"{alike} are judged alike"}
    return [*rows, {"figure": f"of {len(pairs)} answers", **said}]


if __name__ == "__main__":
    main()
