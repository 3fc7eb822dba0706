"""Find the clean model again where its files are no longer in the place at which it was registered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from db.reads import queries
from pipelines.microworld.shipped_model import place_of
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.config.sections.model import ModelConfig
    from recovery.storage.checkpoints import Checkpoint

Origin = Mapping[str, Any]


def in_its_new_place(ws: Workspace, base: str) -> Checkpoint | None:
    """Register the clean model at model.path if it was moved; None if it was not.

    An earlier version let a copy of the model take its place, and then knew the copy alone.
    """
    from recovery.models.hub import locate

    before, settings = ws.store.recorded(base), ws.config.model
    if before.path.is_dir() and before.config:
        return None
    registered = before.config or queries.checkpoint(ws.tracker.db, base)["config"]
    found, commit = locate(place_of(settings.path), _revision(settings, registered))
    checkpoint = ws.store.reference(found, config=origin(settings, commit), anew=True)
    if checkpoint.id != base:
        raise InputError(
            f"{found}: not the model that `base` was registered as ({_named(registered) or base}): "
            "put that one there"
        )
    ws.record(checkpoint, None)
    return checkpoint


def origin(settings: ModelConfig, commit: str | None) -> dict[str, Any]:
    """Return by what name the clean model was found, which trainings compare with recover.yaml."""
    return {"model": settings.path, "revision": commit, "asked": settings.revision}


def _revision(settings: ModelConfig, registered: Origin) -> str | None:
    """Return the commit that was registered, while recover.yaml asks for the same: a branch moves on."""
    same = (registered.get("model"), registered.get("asked")) == (settings.path, settings.revision)
    return registered.get("revision") if same else settings.revision


def _named(registered: Origin) -> str | None:
    """Return the name under which a model was registered, with its commit."""
    model, commit = registered.get("model"), registered.get("revision")
    return f"{model} at {commit}" if commit else model
