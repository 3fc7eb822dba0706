"""Run a command that ends when its parent does: `python -m recovery.engines.child_process PARENT COMMAND...`.

The command runs in a separate process group. A parent that is killed cannot clean up; instead the kernel
signals this supervisor process, which ends the whole group, including the command's children.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import IO, NoReturn

PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 10.0
ENDING = (signal.SIGTERM, signal.SIGINT)


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Request a signal on the parent's death (Linux only; elsewhere only `end` stops this process)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def spawn(command: Sequence[str], output: IO[bytes], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a command under a supervisor that ends it when this process dies."""
    guarded = [sys.executable, "-P", "-m", "recovery.engines.child_process", str(os.getpid()), *command]
    return subprocess.Popen(guarded, start_new_session=True, stdout=output, stderr=output, env=environment)


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a supervised command and its descendants; return when they have exited."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(2 * GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main(parent: int, command: list[str]) -> NoReturn:
    """Run the command, forward its exit code, and end its process group on exit."""

    def stop(number: int, frame: FrameType | None) -> None:
        _ignore_signals()
        raise SystemExit(128 + number)

    for number in ENDING:
        signal.signal(number, stop)
    die_with_parent()
    if os.getppid() != parent:  # the parent died before prctl took effect
        raise SystemExit(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until the command is known, and can be ended
    child = subprocess.Popen(command, start_new_session=True, preexec_fn=_begin)
    try:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            raise SystemExit(child.wait())
        finally:
            _ignore_signals()  # else a second request to end would cut the ending short, and leave orphans
    finally:
        _end_group(child)


def _begin() -> None:
    """Prepare the command's process: it ends with this one, and may be asked to end."""
    die_with_parent(signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def _ignore_signals() -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, then SIGKILL. Signal the group even if the command has exited: its children may live."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + GRACE_SECONDS
        while number == signal.SIGTERM and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
    child.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
