"""Find IFEval's prompts: in a file, on the hub, or, where that is not in reach, generated in their format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from evals import ifeval, jsonl
from pipelines.config.ifeval_file import HUB_IFEVAL, ifeval_path
from pipelines.config.sections.eval import EvalConfig
from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.runs.workspace import Workspace

SEED = 0  # of generated prompts, whatever a run's seed: all cycles of a home are asked the same
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


def _generated(ws: Workspace) -> Path:
    """Write the prompts into the home, once; return the file."""
    from pipelines.writing import instruction_prompts

    path = ws.home.absolute() / "prompts" / f"ifeval-{COUNT}.jsonl"
    if not path.is_file():
        jsonl.write(path, instruction_prompts.rows(instruction_prompts.generate(COUNT, SEED), SEED))
    ws.progress.say(
        f"  ifeval       {HUB_IFEVAL} cannot be loaded from the hub: {COUNT} generated prompts in its format "
        f"take its place (--ifeval FILE for others): {path}"
    )
    return path
