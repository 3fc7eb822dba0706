"""Many readers of one dashboard at once: every page is answered, memory does not grow, and a click beside
readers of heavy pages is answered as soon as it would be beside few."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median

import httpx

from db.writes.tracker import Tracker
from tests.attacks.attack import NotHeld, Size
from tests.support.dashboards import Words, fill, plain

READERS = 10
CYCLES = 12
START = 600.0  # seconds to start a dashboard, on a busy machine
QUICK = 33  # pages of a reader
HEAVY_READERS = 8
CLICKS = 40
QUICK_CLICKS = 15
WORDS_OF_ANSWER = 900  # of a heavy page: as many as are compared word by word
LONGEST_CLICK = 1.0  # seconds, of nine clicks in ten; on a busy machine SLOWER times what it takes alone
SLOWER = 12.0
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
    """Return how many pages ten readers were given, how fast, what memory did, and how long clicks took."""
    with tempfile.TemporaryDirectory() as folder:
        with serving(Path(folder, "light"), plain()) as (url, pid):
            read_by_ten = read_together(url, pid, size)
        with serving(Path(folder, "heavy"), looping(size.random("looping"))) as (url, _):
            return f"{read_by_ten}; {click_beside_heavy_readers(url, size)}"


@contextmanager
def serving(
    home: Path, words: Words, *, cycles: int = CYCLES, **environment: str
) -> Iterator[tuple[str, int]]:
    """A dashboard in a process of its own: its address and process id."""
    home.mkdir()
    with Tracker(home / "recover.db") as tracker:
        fill(tracker, cycles, words)
    port = free_port()
    command = [sys.executable, "-m", "pipelines.cli", "--home", str(home), "dashboard", "--port", str(port)]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(url, server)
            yield url, server.pid
        finally:
            server.terminate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def looping(chance: Random) -> Words:
    """Words that take long to compare: the same few over and over, in another order each time."""
    return lambda: " ".join(f"w{chance.randrange(40)}" for _ in range(WORDS_OF_ANSWER))


def wait_for(url: str, server: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        try:
            httpx.get(f"{url}/live", timeout=60.0)
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
    readers = [
        threading.Thread(target=read, args=(url, size, number, waits, broken)) for number in range(READERS)
    ]
    for reader in readers:
        reader.start()
    memory = []
    while any(reader.is_alive() for reader in readers):
        memory.append(resident(pid))
        time.sleep(0.2 if size.quick else 1.0)
    if broken:
        raise NotHeld(broken[0])
    third = len(memory) // 3
    first, last = median(memory[:third] or memory), median(memory[-third:] or memory)
    said = (
        f"{READERS} readers, {len(waits):,} pages, median {median(waits):.2f} s, "
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


def read(url: str, size: Size, reader: int, waits: list[float], broken: list[str]) -> None:
    with httpx.Client(timeout=120.0) as client:
        for number in size.rounds(QUICK):
            chance = size.random("reader", reader, number)
            path = chance.choice(PATHS).format(
                n=chance.randint(1, CYCLES), word=f"word{chance.randrange(10**6)}"
            )
            waits.append(answered(client, url + path, broken))
            if broken:
                return
            time.sleep(chance.uniform(0.0, 2 * size.think))


def answered(client: httpx.Client, url: str, broken: list[str]) -> float:
    """Return how long a page took; add it to those that are broken if it was not answered as one."""
    begun = time.monotonic()
    try:
        answer = get(client, url)
    except httpx.HTTPError as error:
        broken.append(f"{url}: {type(error).__name__}")
    else:
        if answer.status_code != 200 or "could not be drawn" in answer.text:
            broken.append(f"{url}: {answer.status_code}")
    return time.monotonic() - begun


def get(client: httpx.Client, url: str) -> httpx.Response:
    """Ask again, as browsers do, if the connection was closed because it had been idle for too long."""
    try:
        return client.get(url)
    except (httpx.ReadError, httpx.RemoteProtocolError):
        return client.get(url)


def click_beside_heavy_readers(url: str, size: Size) -> str:
    """Click while eight readers ask for heavy pages; return how long clicks took."""
    broken: list[str] = []
    stop = threading.Event()
    with httpx.Client(timeout=120.0) as client:
        clicks = QUICK_CLICKS if size.quick else CLICKS
        answered(client, f"{url}/samples?n=1", broken)
        alone = ninth_decile([answered(client, f"{url}/cycle?n=1", broken) for _ in range(clicks)])
        readers = [
            threading.Thread(target=read_heavy, args=(url, number, stop, broken))
            for number in range(HEAVY_READERS)
        ]
        for reader in readers:
            reader.start()
        beside = ninth_decile([answered(client, f"{url}/cycle?n=1", broken) for _ in range(clicks)])
        stop.set()
        for reader in readers:
            reader.join()
    if broken:
        raise NotHeld(broken[0])
    said = f"a click takes {alone:.2f} s, beside {HEAVY_READERS} readers of heavy pages {beside:.2f} s"
    if beside > max(LONGEST_CLICK, SLOWER * alone):
        raise NotHeld(said)
    return said


def read_heavy(url: str, reader: int, stop: threading.Event, broken: list[str]) -> None:
    """Ask for one page of looping answers after the other: more than are kept once they were compared."""
    with httpx.Client(timeout=120.0) as client:
        number = 0
        while not stop.is_set() and not broken:
            suite = ("ifeval", "knowledge", "retention")[number % 3]
            cycle = 1 + (reader + number // 3) % CYCLES
            answered(client, f"{url}/samples?n={cycle}&suite={suite}&search=w{reader}", broken)
            number += 1


def ninth_decile(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) * 9 // 10]


def resident(pid: int) -> float:
    """Return the memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
