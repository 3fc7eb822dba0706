"""Refuse a teacher's server that a sampler would send all its weights to, before any stage begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from pipelines.machine.fitting import adapter_of
from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.config.settings import Config
    from pipelines.runs.workspace import Workspace
    from recovery.storage.checkpoints import Checkpoint

THIS_MACHINE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


def require_teacher_kept(
    ws: Workspace, student: Checkpoint, settings: Config, *, cycle: bool = False
) -> None:
    """Refuse a server that teaches and would be sent all weights of another model, which then taught.

    An adapter is sent under a name of its own, beside the teacher's weights. The evaluations of a `cycle`
    send all weights: the clean model is no adapter.
    """
    teaching = _addresses(settings.distill.teacher_engine)
    answering = teaching & _addresses(settings.eval.sampler)
    if cycle and answering:
        _refuse("eval.sampler", answering)
    sampling = teaching & _addresses(settings.distill.sampler)
    if sampling and not _trains_adapter(ws, student, settings, cycle=cycle):
        _refuse("distill.sampler", sampling)


def _refuse(name: str, shared: set[str]) -> NoReturn:
    raise InputError(
        f"{name}: {min(shared)} is distill.teacher_engine too, where all weights that are sent to a sampler "
        "take the teacher's place: start another server for one of them (`recover serve`)"
    )


def _trains_adapter(ws: Workspace, student: Checkpoint, settings: Config, *, cycle: bool) -> bool:
    """Return whether recovery trains an adapter; in a cycle it may go on with midtraining's."""
    from recovery.models.adapters import adapter_rank

    if adapter_rank(student.path) is not None:
        return True
    trainings = (settings.midtrain, settings.distill) if cycle else (settings.distill,)
    return any(adapter_of(ws, student, training) for training in trainings)


def _addresses(where: str) -> set[str]:
    """Return the addresses of running servers; none of an engine that is not named by URLs."""
    urls = where.split(",") if where.startswith(("http://", "https://")) else []
    return set(map(_address, urls))


def _address(url: str) -> str:
    """Return host, port and path of a server, the same for all ways to write them."""
    parts = urlsplit(url.strip().rstrip("/").removesuffix("/v1"))
    host = THIS_MACHINE[0] if parts.hostname in THIS_MACHINE else parts.hostname
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{host}:{port}{parts.path.rstrip('/')}"
