"""The loop of every process but the first: join each training that the first one begins."""

from __future__ import annotations

from typing import Any

from pipelines import distill, midtrain
from pipelines.config.jobs import DistillJob, MidtrainJob
from pipelines.runs.launch import Call
from pipelines.runs.stage_runner import Stage
from pipelines.runs.workspace import Workspace
from recovery import distributed
from recovery.errors import RecoverError


def follow() -> None:
    """Join trainings until the first process has ended its command."""
    distributed.start()
    unset: Call | None = None  # the value comes from the first process
    while (order := distributed.broadcast(unset)) is not None:
        _take_part(order)
    distributed.stop()


def _take_part(order: Call) -> None:
    with Workspace.open(order.home, order.database) as ws:
        ws.tracker.db.write = _refuse  # type: ignore[method-assign]
        ws.config = order.settings
        silent: Any = Silent()
        directory = ws.run_directory(order.run)
        stage = Stage(order.run, order.kind, directory, silent, ws, silent, first=False)
        if order.kind == "midtrain":
            midtrain.work(ws, MidtrainJob(**order.config), stage)
        else:
            distill.work(ws, DistillJob(**order.config), stage)


def _refuse(work: Any) -> Any:
    raise RecoverError("only the first process writes the database: report this")


class Silent:
    """A reporter that drops everything: the first process reports."""

    def metrics(self, *args: Any, **kwargs: Any) -> None: ...
    def progress(self, *args: Any, **kwargs: Any) -> None: ...
    def traces(self, *args: Any, **kwargs: Any) -> None: ...
    def spend(self, *args: Any, **kwargs: Any) -> None: ...
    def save(self, *args: Any, **kwargs: Any) -> None: ...
    def flush(self, *args: Any, **kwargs: Any) -> bool:
        return True
