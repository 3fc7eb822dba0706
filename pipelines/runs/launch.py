"""A command over several processes: the first runs it, the others take part in its trainings.

Launched by torchrun, or by `--processes N` on one machine. The first process alone reads and writes the
database, evaluates, publishes and prints; the others wait for the next training that it calls them to. No
torch here until there are several.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.runs.workspace import Workspace

TOGETHER = ("midtrain", "distill")  # stages that all processes work on
GRACE_SECONDS = 20.0  # for the others, once one has ended
_waiting = True  # the others, for the first one's next call


@dataclass(frozen=True)
class Call:
    """A training to take part in."""

    kind: str
    run: str
    home: Path
    database: str
    config: dict[str, Any]


def launched() -> int:
    """How many processes there are, by torchrun or by --processes; 1 where nobody launched several."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def place() -> int:
    return int(os.environ.get("RANK", "0")) if launched() > 1 else 0


@contextmanager
def together(workspace: Workspace, kind: str, run: str, config: dict[str, Any]) -> Iterator[None]:
    """The first process calls the others to a stage that it now begins, if that is for all."""
    global _waiting
    if launched() == 1 or kind not in TOGETHER:
        yield
        return
    from recovery import distributed

    distributed.start()
    database = workspace.tracker.db.engine.url.render_as_string(hide_password=False)
    distributed.share(Call(kind, run, workspace.home.absolute(), database, config))
    _waiting = False
    yield
    _waiting = True


def dismiss() -> None:
    """The first process has done its command: the others may go, unless it broke off what they are in."""
    if launched() > 1 and place() == 0 and _waiting:
        from recovery import distributed

        distributed.start()
        distributed.share(None)


def launch(count: int) -> int:
    """Run this very command line in `count` processes on this machine; returns the first one's exit code."""
    if count < 1:
        raise InputError(f"--processes {count}: give 1 or more")
    children = [_spawn(rank, count, port) for port in [_free_port()] for rank in range(count)]
    try:
        while all(child.poll() is None for child in children):
            time.sleep(0.2)
        _settle(children)
    except KeyboardInterrupt:  # the terminal told the children too
        _settle(children)
    finally:
        for child in children:
            child.kill()
            child.wait()
    return children[0].returncode if children[0].returncode > 0 else max(abs(c.returncode) for c in children)


def _settle(children: list[subprocess.Popen[bytes]]) -> None:
    """One has ended, well or not: the others get a while to do so too."""
    deadline = time.monotonic() + GRACE_SECONDS
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)


def _spawn(rank: int, count: int, port: int) -> subprocess.Popen[bytes]:
    threads = str(max(1, (os.cpu_count() or 1) // count))
    environment = {
        "OMP_NUM_THREADS": threads,
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(count),
    }
    command = [sys.executable, "-m", "pipelines.cli", *sys.argv[1:]]
    return subprocess.Popen(command, env=environment, preexec_fn=_die_with_parent)


def _die_with_parent() -> None:
    """A launcher that is killed cannot clean up: the kernel ends its children instead (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
