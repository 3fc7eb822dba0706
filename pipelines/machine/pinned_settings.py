"""Pin in recover.yaml what would follow the clock or the machine: a template's date, and bfloat16."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config import settings as config
from pipelines.machine.gpus import on_gpu
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

if TYPE_CHECKING:
    from recovery.models.chat_encoding import ChatEncoder

SMALL_MODEL = 2**26  # weights between embedding and head


def settings_file(ws: Workspace) -> Path:
    return ws.home / config.CONFIG_NAME


def write_settings(path: Path, text: str) -> None:
    """Replace a file atomically."""
    from recovery.storage.atomic_dirs import write_text

    try:
        write_text(path, text)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def pin_dtype(ws: Workspace, model: Path) -> None:
    """Write bfloat16 for `auto` where it is faster, so that the home computes alike on another machine."""
    if ws.config.model.dtype != "auto" or not gains_by_bfloat16(model):
        return
    path = settings_file(ws)
    before = path.read_text(encoding="utf-8")
    written = re.sub(r"^(  dtype:) *auto\b", r"\1 bfloat16", before, count=1, flags=re.MULTILINE)
    if config.parse(written, str(path)).model.dtype != "bfloat16":
        return  # settings in another layout stay as they are
    _rewrite(ws, written)
    ws.progress.say("this processor multiplies bfloat16 faster than float32: dtype bfloat16 in recover.yaml")


def gains_by_bfloat16(model: Path) -> bool:
    """Return whether the model is large, and this machine's processor is faster in bfloat16 than in fp32.

    Compiled kernels train small models faster in fp32.
    """
    from pipelines.machine.model_sizes import read_size
    from pipelines.machine.product_speed import is_faster_in_bfloat16

    if on_gpu() or not is_faster_in_bfloat16():
        return False
    try:
        size = read_size(str(model))
    except InputError:  # an unknown architecture
        return False
    return size.parameters - size.embeddings > SMALL_MODEL


def pin_date(ws: Workspace, encoder: ChatEncoder) -> None:
    """Write today's date for a chat template that writes one, so that scores do not depend on the clock."""
    if not encoder.writes_date or "today" in ws.config.model.template_args:
        return
    path = settings_file(ws)
    day = datetime.date.today().isoformat()
    written = with_template_arg(path.read_text(encoding="utf-8"), f'today: "{day}"')
    if config.parse(written, str(path)).model.template_args.get("today") != day:
        raise InputError(
            f'{path}: the chat template writes the date: add today: "{day}" to model.template_args'
        )
    _rewrite(ws, written)


def with_template_arg(settings: str, entry: str) -> str:
    """Add an entry to model.template_args in the text of recover.yaml, keeping comments."""
    inline = re.compile(r"^(  template_args: *\{)(.*\})", re.MULTILINE)
    if inline.search(settings):
        return inline.sub(lambda found: f"{found[1]}{entry}{', ' * (found[2] != '}')}{found[2]}", settings, 1)
    block = re.compile(r"^(  template_args:) *\n( +)", re.MULTILINE)
    if block.search(settings):
        return block.sub(rf"\1\n\g<2>{entry}\n\g<2>", settings, 1)
    return re.sub(
        r"^(  path: .*)$", rf"\1\n  template_args: {{{entry}}}", settings, count=1, flags=re.MULTILINE
    )


def _rewrite(ws: Workspace, settings: str) -> None:
    """Replace recover.yaml, and have it read anew."""
    write_settings(settings_file(ws), settings)
    del ws.config
