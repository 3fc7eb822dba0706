"""Check answers by the IFEval instructions in their prompts' rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evals import ifeval
from pipelines.prompts.prompt_sources import Prompt
from recovery.errors import InputError


def followed(response: str, item: Mapping[str, Any]) -> float:
    """Return the share of a row's IFEval instructions that the response follows."""
    return ifeval.followed(response, item["prompt"], item["instruction_id_list"], item["kwargs"])


def require_checkers(source: str, rows: Sequence[Prompt], reader: str) -> None:
    """Refuse rows that the checkers cannot be built for, before the first answer; `reader` needs them."""
    from recovery.teachers.contexts import prompt

    for row in rows:
        asked = prompt(row)
        try:
            ifeval.try_checkers(asked, row.fields["instruction_id_list"], row.fields["kwargs"])
        except Exception as error:  # the checkers raise many classes for wrong arguments
            said = " ".join(str(error).split())[:120]
            raise InputError(
                f"{source}: {reader} cannot check {asked[:60]!r} ({type(error).__name__}: {said}): give "
                "`instruction_id_list` and as many `kwargs`, as in IFEval"
            ) from error
