"""Find IFEval's prompts: in a file, on the hub, or, where that is not in reach, generated in their format;
and the further prompts that a cycle may ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evals import ifeval, jsonl
from pipelines.config.ifeval_file import HUB_IFEVAL, MICROWORLD, further_path, ifeval_path
from pipelines.config.overrides import changed
from pipelines.config.sections.eval import EvalConfig
from pipelines.config.settings import Config
from pipelines.runs.workspace import Workspace
from recovery.counted import counted
from recovery.errors import InputError

# Of generated prompts, whatever a run's seed: all cycles of a home are asked the same. Other ones than
# `recover prompts ifeval` writes as a rule.
SEED, FURTHER_SEED = 3_000_007, 2_000_003
COUNT = 725  # generated prompts: what a verdict needs at the shipped margin (statistics.items_to_pass)


def with_ifeval(ws: Workspace, settings: Config, changes: Mapping[str, Any]) -> Config:
    """Return settings whose IFEval prompts can be read; refuse a file that the evaluation would refuse.

    The hub's data set, if it was not typed, gives way to generated prompts where no hub is in reach.
    """
    path = ifeval_path(settings.eval)
    if path is not None:
        ifeval.require_prompts(path)
        return settings
    try:
        ifeval.rows()
    except InputError:
        if "eval.ifeval" in changes:
            raise
        return changed(settings, {"eval.ifeval": str(_generated(ws))})
    return settings


def with_ifeval_left_out(ws: Workspace, settings: Config, changes: Mapping[str, Any]) -> Config:
    """Return settings that name the prompts which an evaluation will ask, for training to leave them out:
    generated ones where no hub is in reach. A file, which training may go without, stays as it is."""
    return with_ifeval(ws, settings, changes) if settings.eval.ifeval == HUB_IFEVAL else settings


def with_further(ws: Workspace, settings: Config, *, typed: bool) -> Config:
    """Return settings whose further prompts, if there are any, lie in a file of their own.

    The shipped model knows no generated ones, and is refused those that were typed.
    """
    named = settings.eval.further_prompts
    if isinstance(named, str):
        path = further_path(settings.eval)
        ifeval.require_prompts(path)
        return changed(settings, {"eval.further_prompts": str(path)})
    if not named:
        return settings
    if settings.model.path != MICROWORLD:
        path = _further_file(ws, named)
        _write(path, named, FURTHER_SEED)
        return changed(settings, {"eval.further_prompts": str(path)})
    if typed:
        raise InputError(
            f"--further {named}: the tiny model's vocabulary lacks generated prompts: give a FILE in "
            "IFEval's format (eval.further_prompts)"
        )
    return changed(settings, {"eval.further_prompts": 0})


def require_new(settings: EvalConfig, say: Callable[[str], None]) -> None:
    """Refuse further prompts that are all among IFEval's, as a second look asks others; say how many are."""
    named = settings.further_file
    if not named:
        return
    further = set(ifeval.prompts(named))
    known = further & set(ifeval.prompts(ifeval_path(settings)))
    if known == further:
        raise InputError(
            f"{named}: all of its prompts are among IFEval's, and a second look asks others: give --further "
            "another file"
        )
    if known:
        say(f"  further      {len(known)} of {counted(len(further), 'prompt')} are among IFEval's: {named}")


def with_written(ws: Workspace, settings: Config) -> Config:
    """Return settings with the file of further prompts that the home holds, to keep it out of training."""
    named = settings.eval.further_prompts
    if not isinstance(named, int) or not _further_file(ws, named).is_file():
        return settings
    return changed(settings, {"eval.further_prompts": str(_further_file(ws, named))})


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
