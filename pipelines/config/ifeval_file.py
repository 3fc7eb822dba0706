"""Name the files that hold IFEval's prompts and the further ones; the hub's data set has none."""

from __future__ import annotations

from pathlib import Path

from pipelines.config.sections.eval import EvalConfig
from recovery.errors import InputError

HUB_IFEVAL = "google/IFEval"
MICROWORLD = "microworld"


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


def further_path(settings: EvalConfig) -> Path:
    """Return the file of the prompts that are asked where behaviour is underpowered on IFEval's."""
    named = settings.further_file
    if named is None:
        raise InputError(
            f"eval.further_prompts is {settings.further_prompts}: set it to a number of prompts to generate, "
            "or to a file"
        )
    if not Path(named).is_file():
        raise InputError(
            f"{named} is not a file: restore it, or let eval.further_prompts name one in IFEval's format, or "
            "a number of prompts to generate"
        )
    return Path(named)
