"""Setting up a home: its settings, and the clean checkpoint that everything is measured against."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from db import queries
from pipelines import config
from pipelines.workspace import Workspace
from recovery.errors import InputError

MICROWORLD = "microworld"


def initialise(
    ws: Workspace, *, model: str | None = None, revision: str | None = None, preset: str | None = None
) -> dict[str, Any]:
    """Writes recover.yaml (once) and registers the clean checkpoint as `base` and `current`."""
    path = ws.home / config.CONFIG_NAME
    if not path.exists():
        _write_settings(path, model or MICROWORLD, revision, preset)
    elif model and ws.config.model.path != model:
        raise InputError(
            f"{path} already names the model {ws.config.model.path!r}, not {model!r}: use another --home, or edit it"
        )
    known = {row["name"]: row["checkpoint_id"] for row in queries.aliases(ws.tracker.db)}
    if "base" in known:
        checkpoint = ws.clean()
    else:
        checkpoint = _register(ws)
    return {"home": str(ws.home), "config": str(path), "base": checkpoint.id, "model": ws.config.model.path,
            "weights_sha256": checkpoint.sha256}


def _write_settings(path: Path, model: str, revision: str | None, preset: str | None) -> None:
    """A copy of the preset with the model put in; the comments stay."""
    text = config.preset_text(preset or (MICROWORLD if model == MICROWORLD else "real"))
    default = yaml.safe_load(text)["model"]["path"]
    lines = [f"  path: {model}", *([f"  revision: {revision}"] if revision else [])]
    text = text.replace(f"  path: {default}", "\n".join(lines), 1)
    config.parse(text, str(path))
    partial = path.with_suffix(".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.rename(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def _register(ws: Workspace) -> Any:
    """Loads the model once, so that one that cannot serve is refused here; pins its weights' hash."""
    from recovery import models

    settings = ws.config.model
    location = str(microworld_checkpoint()) if settings.path == MICROWORLD else settings.path
    found, commit = models.locate(location, settings.revision)
    models.load(models.ModelSpec(
        path=str(found), dtype=settings.dtype, trust_remote_code=settings.trust_remote_code,
        template_args=settings.template_args,
    ))  # fmt: skip
    checkpoint = ws.store.reference(found, config={"model": settings.path, "revision": commit})
    ws.tracker.record_checkpoint(
        checkpoint.id, path=checkpoint.path, kind=checkpoint.kind, sha256=checkpoint.sha256, config=checkpoint.config
    )
    ws.tracker.set_alias("base", checkpoint.id)
    ws.tracker.set_alias("current", checkpoint.id)
    return checkpoint


def microworld_checkpoint() -> Path:
    """The tiny clean model that ships with the package."""
    return Path(str(resources.files("pipelines.microworld") / "checkpoint"))
