"""A process that confines itself reads files, and neither changes them nor opens connections."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.landlock import NEWEST, version

TRIES = """
import json, os, signal, socket, sys
from recovery.landlock import confine
folder, port, other = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
kept = os.path.join(folder, "kept")
tries = {
    "read": lambda: open(kept).read(),
    "write": lambda: open(kept, "r+"),
    "make": lambda: open(os.path.join(folder, "new"), "x"),
    "folder": lambda: os.mkdir(os.path.join(folder, "inner")),
    "link": lambda: os.symlink(kept, os.path.join(folder, "link")),
    "truncate": lambda: os.truncate(kept, 0),
    "move": lambda: os.rename(kept, os.path.join(folder, "moved")),
    "remove": lambda: os.unlink(kept),
    "connect": lambda: socket.create_connection(("127.0.0.1", port), timeout=5),
    "signal": lambda: os.kill(other, 0),
}
def ends(work):
    try:
        work()
    except OSError as error:
        return type(error).__name__
    return "done"
if sys.argv[4] == "confined":
    assert confine()
print(json.dumps({name: ends(work) for name, work in tries.items()}))
"""


def tried(folder: Path, port: int, how: str) -> dict[str, str]:
    """Return how each try ends, in a process of its own."""
    folder.mkdir()
    (folder / "kept").write_text("text")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        names = [str(folder), str(port), str(other.pid), how]
        done = subprocess.run([sys.executable, "-c", TRIES, *names], capture_output=True, check=True)
        other.communicate(b"\n")
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(version() < NEWEST, reason="this kernel's Landlock denies less, or nothing")
def test_a_confined_process_reads_and_changes_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        confined = tried(tmp_path / "confined", port, "confined")
        free = tried(tmp_path / "free", port, "free")
    assert confined.pop("read") == "done"
    assert set(confined.values()) == {"PermissionError"}
    assert (tmp_path / "confined" / "kept").read_text() == "text"
    assert {free.pop(name) for name in ("read", "write", "make", "folder", "link", "connect")} == {"done"}
