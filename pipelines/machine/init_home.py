"""Setting up a home: its settings, and the clean checkpoint that everything is measured against."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from db import queries
from pipelines.config import settings as config
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError, RecoverError

if TYPE_CHECKING:
    from pipelines.config.settings import ModelConfig
    from recovery.models.chat_encoding import ChatEncoder
    from recovery.storage.checkpoints import Checkpoint

MICROWORLD = "microworld"


def initialise(
    ws: Workspace, *, model: str | None = None, revision: str | None = None, preset: str | None = None
) -> dict[str, Any]:
    """Writes recover.yaml (once) and registers the clean checkpoint as `base` and `current`."""
    path = ws.home / config.CONFIG_NAME
    new = not path.exists()
    if new:
        _write_settings(path, model or MICROWORLD, revision, preset)
    elif model and ws.config.model.path != model:
        raise InputError(
            f"{path} already names the model {ws.config.model.path!r}, not {model!r}: "
            "use another --home, or edit it"
        )
    if new and ws.shares_its_database():
        ws.take_own_project()
    try:
        checkpoint = _clean(ws)
    except RecoverError:
        if new:  # settings for a model that cannot serve would be in the way of the next attempt
            path.unlink()
        raise
    return {
        "home": str(ws.home),
        "config": str(path),
        "base": checkpoint.id,
        "model": ws.config.model.path,
        "weights_sha256": checkpoint.sha256,
    }


def _clean(ws: Workspace) -> Checkpoint:
    """The clean checkpoint: as it was registered, or registered now."""
    if all(row["name"] != "base" for row in queries.aliases(ws.tracker.db)):
        return _register(ws)
    checkpoint, model = ws.clean(), ws.config.model.path
    if checkpoint.config.get("model") != model:
        raise InputError(
            f"{ws.home}: `base` is {checkpoint.config.get('model')!r}, not {model!r}: use another --home"
        )
    return checkpoint


def _write_settings(path: Path, model: str, revision: str | None, preset: str | None) -> None:
    """A copy of the preset with the model put in; the comments stay."""
    text = config.preset_text(preset or (MICROWORLD if model == MICROWORLD else "real"))
    default = yaml.safe_load(text)["model"]["path"]
    lines = [f"  path: {json.dumps(model)}", *([f"  revision: {json.dumps(revision)}"] if revision else [])]
    text = text.replace(f"  path: {default}", "\n".join(lines), 1)
    config.parse(text, str(path))
    partial = path.with_suffix(".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.rename(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def _register(ws: Workspace) -> Checkpoint:
    """Loads the model once, so that one that cannot serve is refused here; pins its weights' hash."""
    from recovery.models import loading

    settings = ws.config.model
    location = str(microworld_checkpoint()) if settings.path == MICROWORLD else settings.path
    found, commit = loading.locate(location, settings.revision)
    spec = loading.ModelSpec(
        path=str(found),
        dtype=settings.dtype,
        trust_remote_code=settings.trust_remote_code,
        template_args=settings.template_args,
        attention=settings.attention,
    )
    loading.load(spec)
    checkpoint = ws.store.reference(found, config={"model": settings.path, "revision": commit})
    ws.record(checkpoint, None)
    ws.tracker.set_alias("base", checkpoint.id)
    ws.tracker.set_alias("current", checkpoint.id)
    return checkpoint


def microworld_checkpoint() -> Path:
    """The tiny clean model that ships with the package."""
    return Path(str(resources.files("pipelines.microworld") / "checkpoint"))


def tokenizer_of(model: ModelConfig) -> ChatEncoder:
    """The model's tokenizer alone: quick, however large the model."""
    from recovery.models.loading import ModelSpec, load_encoder

    path = str(microworld_checkpoint()) if model.path == MICROWORLD else model.path
    spec = ModelSpec(
        path=path,
        revision=model.revision,
        trust_remote_code=model.trust_remote_code,
        template_args=model.template_args,
    )
    return load_encoder(spec)
