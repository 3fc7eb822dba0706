"""Run work in threads that no interruption waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeVar

Answer = TypeVar("Answer")
Item = TypeVar("Item")


def in_background(work: Callable[[], Answer]) -> Future[Answer]:
    """Run the work in a daemon thread, which does not keep the process from exiting."""
    found: Future[Answer] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by Future.result
            found.set_exception(error)

    threading.Thread(target=run, daemon=True, name="background").start()
    return found


def at_once(work: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Do the work on all items at the same time; once all of it has ended, raise the first item's error."""
    found = [in_background(partial(work, item)) for item in items]
    wait(found)
    for one in found:
        one.result()
