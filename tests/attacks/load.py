"""Many readers of one dashboard at once: every page is answered, and memory does not grow."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random
from statistics import median

import httpx

from db.writes.tracker import Tracker
from tests.attacks.attack import NotHeld, Size
from tests.support.dashboards import fill

READERS = 10
CYCLES = 12
ROUNDS = 2  # over all pages, before memory counts: caches fill and arenas grow until then
GROWTH = 24.0  # MiB between the middle of the first third and of the last one
PATHS = (
    "/",
    "/cycle?n={n}",
    "/behaviour?n={n}",
    "/samples?n={n}&search={word}",
    "/knowledge",
    "/methods",
    "/curves",
    "/tokens",
    "/compare?a=cycle:1&b=cycle:{n}",
    "/live?url=/cycle%3Fn%3D{n}",
    "/?search={word}",
)


def load(size: Size) -> str:
    """Return how many pages ten readers were given, how fast, and what the memory did meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        home.mkdir()
        with Tracker(home / "recover.db") as tracker:
            fill(tracker, CYCLES)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "pipelines.cli",
            "--home",
            str(home),
            "dashboard",
            "--port",
            str(port),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as server:
            try:
                url = f"http://127.0.0.1:{port}"
                wait_for(url, server)
                return read_together(url, server.pid, size)
            finally:
                server.terminate()


def wait_for(url: str, server: subprocess.Popen[str]) -> None:
    for _ in range(600):
        try:
            httpx.get(f"{url}/live", timeout=5.0)
        except httpx.HTTPError:
            if server.poll() is not None:
                assert server.stderr
                raise NotHeld(f"the dashboard ended: {server.stderr.read()[-300:]}") from None
            time.sleep(0.1)
        else:
            return
    raise NotHeld("the dashboard did not start")


def read_together(url: str, pid: int, size: Size) -> str:
    waits: list[float] = []
    broken: list[str] = []
    warm(url)
    stop = time.monotonic() + 60 * size.minutes
    readers = [
        threading.Thread(target=read, args=(url, size.random("reader", number), stop, waits, broken))
        for number in range(READERS)
    ]
    for reader in readers:
        reader.start()
    memory = []
    while any(reader.is_alive() for reader in readers):
        memory.append(resident(pid))
        time.sleep(min(1.0, 60 * size.minutes / 30))
    if broken:
        raise NotHeld(broken[0])
    third = len(memory) // 3
    first, last = median(memory[:third] or memory), median(memory[-third:] or memory)
    said = (
        f"{READERS} readers, {size.minutes:g} minutes, {len(waits):,} pages, median {median(waits):.2f} s, "
        f"longest {max(waits):.1f} s; memory {first:,.0f} MiB, later {last:,.0f}"
    )
    if last - first > GROWTH:
        raise NotHeld(said)
    return said


def warm(url: str) -> None:
    """Fill what is kept between requests, so that only a leak is left to grow."""
    with httpx.Client(timeout=120.0) as client:
        for number in range(ROUNDS * CYCLES):
            for path in PATHS:
                client.get(url + path.format(n=1 + number % CYCLES, word=f"word{number}"))


def read(url: str, chance: Random, stop: float, waits: list[float], broken: list[str]) -> None:
    with httpx.Client(timeout=120.0) as client:
        while time.monotonic() < stop and not broken:
            path = chance.choice(PATHS).format(
                n=chance.randint(1, CYCLES), word=f"word{chance.randrange(10**6)}"
            )
            begun = time.monotonic()
            try:
                answer = client.get(url + path)
            except httpx.HTTPError as error:
                broken.append(f"{path}: {type(error).__name__}")
                return
            waits.append(time.monotonic() - begun)
            if answer.status_code != 200 or "could not be drawn" in answer.text:
                broken.append(f"{path}: {answer.status_code}")


def resident(pid: int) -> float:
    """Return the memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
