"""Call an engine in several processes at once: all of them repeat the call where one of them loses it.

Only the first process can restart a server that the run has started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from recovery import distributed
from recovery.errors import EngineLost, RecoverError

if TYPE_CHECKING:
    from recovery.engines.protocol import Engine

log = logging.getLogger(__name__)


def with_restart_together(engine: Engine, attempt: Callable[[], str | None]) -> None:
    """Make an attempt that returns the same problem in all processes; if one, restart the engine and repeat.

    All processes must call together.
    """
    first = attempt()
    if first is None:
        return
    if distributed.rank() == 0:
        log.warning("%s: %s: restarting it and retrying once", engine.name, first)
    second = on_rank_0(engine.restart) or attempt()
    if second is not None:
        raise RecoverError(
            f"{engine.name}: lost twice ({first}; then {second}): check it, then go on with `recover resume`"
        )


def on_every_rank(work: Callable[[], None]) -> str | None:
    """Run the work in each process; return why the first of those that lost the engine did, or None."""
    problems = distributed.gather(_problem(work))
    return next((problem for problem in problems if problem is not None), None)


def on_rank_0(work: Callable[[], None]) -> str | None:
    """Run the work in the first process; return to all why the engine is lost, or None."""
    return distributed.broadcast(_problem(work) if distributed.rank() == 0 else None)


def _problem(work: Callable[[], None]) -> str | None:
    try:
        work()
    except EngineLost as error:
        return str(error)
    return None
