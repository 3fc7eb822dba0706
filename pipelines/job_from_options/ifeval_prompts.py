"""Find IFEval's prompts: in a file, on the hub, or, where that is not in reach, generated in their format;
and the further prompts that a cycle may ask."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from evals import ifeval, jsonl
from pipelines.config.ifeval_file import HUB_IFEVAL, further_path, ifeval_path
from pipelines.config.sections.eval import EvalConfig
from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.runs.workspace import Workspace

SEED = 0  # of generated prompts, whatever a run's seed: all cycles of a home are asked the same
FURTHER_SEED = 2_000_003  # of the further ones: other prompts than `recover prompts ifeval` writes as a rule
COUNT = 725  # generated prompts: what a verdict needs at the shipped margin (statistics.items_to_pass)


def within_reach(ws: Workspace, settings: EvalConfig, *, typed: bool) -> EvalConfig:
    """Return settings whose prompts can be read; refuse a file that the evaluation would refuse.

    The hub's data set, if it was not typed, gives way to generated prompts where no hub is in reach.
    """
    path = ifeval_path(settings)
    if path is not None:
        ifeval.require_prompts(path)
        return settings
    try:
        ifeval.rows()
    except InputError:
        if typed:
            raise
        return settings.model_copy(update={"ifeval": str(_generated(ws))})
    return settings


def with_further(ws: Workspace, settings: EvalConfig) -> EvalConfig:
    """Return settings whose further prompts, if there are any, lie in a file of their own."""
    named = settings.further_prompts
    if not named:
        return settings
    if isinstance(named, int):
        path = _further_file(ws, named)
        _write(path, named, FURTHER_SEED)
    else:
        path = further_path(settings)
        ifeval.require_prompts(path)
    return settings.model_copy(update={"further_prompts": str(path)})


def require_new(settings: EvalConfig) -> None:
    """Refuse further prompts that are all among IFEval's: a second look asks others."""
    named = settings.further_file
    if named and set(ifeval.prompts(named)) <= set(ifeval.prompts(ifeval_path(settings))):
        raise InputError(
            f"{named}: all of its prompts are among IFEval's, and a second look asks others: give --further "
            "another file"
        )


def with_written(ws: Workspace, settings: EvalConfig) -> EvalConfig:
    """Return settings with the file of further prompts that the home holds, to keep it out of training."""
    named = settings.further_prompts
    if not isinstance(named, int) or not _further_file(ws, named).is_file():
        return settings
    return settings.model_copy(update={"further_prompts": str(_further_file(ws, named))})


def _further_file(ws: Workspace, count: int) -> Path:
    return ws.home.absolute() / "prompts" / f"further-{count}.jsonl"


def _write(path: Path, count: int, seed: int) -> None:
    """Write generated prompts, once."""
    from pipelines.writing import instruction_prompts

    if not path.is_file():
        jsonl.write(path, instruction_prompts.rows(instruction_prompts.generate(count, seed), seed))


def _generated(ws: Workspace) -> Path:
    """Write the prompts into the home, once; return the file."""
    path = ws.home.absolute() / "prompts" / f"ifeval-{COUNT}.jsonl"
    _write(path, COUNT, SEED)
    ws.progress.say(
        f"  ifeval       {HUB_IFEVAL} cannot be loaded from the hub: {COUNT} generated prompts in its format "
        f"take its place (--ifeval or eval.ifeval: FILE for others): {path}"
    )
    return path
