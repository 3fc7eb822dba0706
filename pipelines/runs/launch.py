"""Run a command in several processes: the first one runs it, the others take part in its trainings.

Started by torchrun, or by `--processes N` on one machine. The first process alone reads and writes the
database, evaluates, publishes and prints; the others wait for the next training. No torch is imported until
there are several.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.runs.kinds import SHARED
from recovery.command_line import Command, unnamed
from recovery.engines.child_process import die_with_parent
from recovery.errors import InputError, RecoverError
from recovery.launch_env import RENDEZVOUS, launch_rank, launched
from recovery.usable_cpus import usable_cpus

if TYPE_CHECKING:
    from pipelines.config.settings import Config
    from pipelines.runs.workspace import Workspace

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
BY_SIGTERM = "SIGTERM"  # what an interruption says that only this process was asked for
GRACE_SECONDS = 20.0  # for the others, once one has ended
SAVING_SECONDS = 300.0  # for the first one, which may be saving the training's last step
_waiting = True  # whether the other processes wait for a training


@dataclass(frozen=True)
class Call:
    """A training to take part in."""

    kind: str
    run: str
    home: Path
    database: str
    settings: Config  # as the first process read them: recover.yaml may have been edited since
    config: dict[str, Any]


@contextmanager
def together(workspace: Workspace, kind: str, run: str, config: dict[str, Any]) -> Iterator[None]:
    """Have the other processes join the stage that the first one begins, if all work on that kind."""
    global _waiting
    if launched() == 1 or kind not in SHARED:
        yield
        return
    from recovery import distributed

    distributed.start()
    database = workspace.tracker.db.address
    distributed.broadcast(Call(kind, run, workspace.home.absolute(), database, workspace.config, config))
    _waiting = False
    yield
    _waiting = True


def broken_off() -> bool:
    """Return whether a training has failed, which ends the other processes: none waits for another one."""
    return not _waiting


def as_launched() -> list[str]:
    """Return the option by which a command runs in as many processes; none where torchrun started these."""
    return ["--processes", str(launched())] if RENDEZVOUS in os.environ else []


def dismiss() -> None:
    """End the other processes after the first one's command, unless a training was broken off."""
    if launched() > 1 and launch_rank() == 0 and not broken_off():
        from recovery import distributed

        distributed.start()
        distributed.broadcast(None)
        distributed.stop()


def launch(count: int, command: Command = unnamed) -> int:
    """Run this very command line in `count` processes on this machine; returns the first one's exit code.

    `command` writes one that names this one's home and database, unless it finds them.
    """
    if count < 1:
        raise InputError(f"--processes {count}: give 1 or more")
    with tempfile.TemporaryDirectory(prefix="recover-") as private:
        children = [_spawn(rank, count, Path(private) / "rendezvous") for rank in range(count)]
        try:
            while all(child.poll() is None for child in children):
                time.sleep(0.2)
            _settle(children)
            return _outcome([child.poll() for child in children], command)
        except KeyboardInterrupt as request:
            if request.args != (BY_SIGTERM,):  # the terminal has interrupted the children too
                _settle(children)
            else:
                children[0].terminate()
                _settle(children[:1])
            code = children[0].poll()
            if code is None or code < 0:  # it cannot have said that it is interrupted
                raise
            return code
        finally:
            for child in children:
                child.kill()
                child.wait()


def _outcome(codes: list[int | None], command: Command) -> int:
    """Return the first process's exit code, or else another one's; say so where a process was killed.

    A code is None where a process had to be ended here.
    """
    first = codes[0]
    if first is not None and first > 0:  # it has said why
        return first
    killed = [rank for rank, code in enumerate(codes) if code is not None and code < 0]
    if killed and first != 0:  # 0: the command is done
        raise _killed(killed[0], codes, command)
    return max(1 if code is None or code < 0 else code for code in codes)


def _killed(rank: int, codes: list[int | None], command: Command) -> RecoverError:
    """Return the error of a process that a signal has ended, with the command that goes on."""
    number, count = -(codes[rank] or 0), len(codes)
    name = next((one.name for one in signal.Signals if one == number), f"signal {number}")
    why = ", as happens where memory runs out" if number == signal.SIGKILL else ""
    resume = command("resume", "--processes", str(count))
    return RecoverError(f"process {rank + 1} of {count} was ended by {name}{why}: go on with `{resume}`")


def _settle(children: list[subprocess.Popen[bytes]]) -> None:
    """Wait a while for the other processes to end, once one has, well or not; longer for the first one."""
    begun = time.monotonic()
    while any(child.poll() is None for child in children):
        longest = GRACE_SECONDS if children[0].poll() is not None else SAVING_SECONDS
        if time.monotonic() - begun > longest:
            return
        time.sleep(0.05)


def _spawn(rank: int, count: int, rendezvous: Path) -> subprocess.Popen[bytes]:
    """Start one of the processes; none imports from the current folder, none listens beyond this machine."""
    cpus, threads = usable_cpus(), os.environ.get("OMP_NUM_THREADS")
    if threads in (None, str(cpus)):  # what a container's single process may start is divided too
        threads = str(max(1, cpus // count))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "PYTHONSAFEPATH": "1",
        "MASTER_ADDR": "127.0.0.1",
        RENDEZVOUS: str(rendezvous),
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "NCCL_SOCKET_IFNAME": LOOPBACK,
        "WORLD_SIZE": str(count),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(count),
    }
    command = [sys.executable, "-P", "-m", "pipelines.cli", *sys.argv[1:]]
    return subprocess.Popen(command, env=environment, preexec_fn=partial(die_with_parent, signal.SIGKILL))
