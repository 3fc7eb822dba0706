"""Find IFEval's prompts: in a file, on the hub, or, where that is not in reach, generated in their format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from evals import ifeval
from pipelines.config.sections.eval import EvalConfig
from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.runs.workspace import Workspace

HUB_IFEVAL = "google/IFEval"
MICROWORLD = "microworld"
SEED = 0  # of generated prompts, whatever a run's seed: all cycles of a home are asked the same
COUNT = (
    725  # of generated prompts: what a verdict needs at the shipped margin (evals.statistics.items_to_pass)
)


def ifeval_path(settings: EvalConfig) -> Path | None:
    """Return the local IFEval file, or None for the hub's data set."""
    if settings.ifeval == HUB_IFEVAL:
        return None
    if settings.ifeval == MICROWORLD:
        raise InputError(
            "the microworld has IFEval prompts of its own: write them with "
            "`recover microworld DIR`, then --ifeval DIR/ifeval.jsonl"
        )
    path = Path(settings.ifeval)
    if not path.is_file():
        raise InputError(f"{path} is not a file: give --ifeval a file in IFEval's format, or {HUB_IFEVAL}")
    return path


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
    from pipelines.writing.augment import save

    path = ws.home.absolute() / "prompts" / f"ifeval-{COUNT}.jsonl"
    if not path.is_file():
        save(path, instruction_prompts.rows(instruction_prompts.generate(COUNT, SEED), SEED))
    ws.progress.say(
        f"  ifeval       {HUB_IFEVAL} cannot be loaded from the hub: {COUNT} generated prompts in its format "
        f"take its place (--ifeval FILE for others): {path}"
    )
    return path
