"""Run work in a thread that no interruption waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")


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
