"""Long drawings take turns; a short one does not wait for those before it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from dashboard import app, drawing_queue, page_frame
from dashboard.drawing_queue import AT_ONCE, LONG, MOST_REMEMBERED, DrawingQueue
from dashboard.markup import Html
from dashboard.page_context import PageContext
from db.writes.tracker import Tracker
from tests.support.dashboards import fill


class Drawings:
    """Drawings that last until they are let go, and what was drawn in which order."""

    def __init__(self, queue: DrawingQueue) -> None:
        self.queue, self.begun = queue, list[str]()
        self.go_on = threading.Event()

    def start(self, address: str) -> asyncio.Task[str]:
        def draw() -> str:
            self.begun.append(address)
            assert self.go_on.wait(30)
            return address

        return asyncio.create_task(self.queue.run(address, draw))

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.begun) < count:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)  # whether more begin


def queue_that_knows(**seconds: float) -> DrawingQueue:
    queue = DrawingQueue()
    for page, taken in seconds.items():
        queue._remember(f"/{page}", taken)
    return queue


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


def test_long_drawings_take_turns_and_a_short_one_begins_beside_them() -> None:
    drawings = Drawings(queue_that_knows(samples=4 * LONG, cycle=LONG / 4))

    async def readers() -> None:
        tasks = [drawings.start(f"/samples?search={number}") for number in range(8)]
        await drawings.until(1)
        assert drawings.begun == ["/samples?search=0"]
        tasks.append(drawings.start("/cycle?n=3"))
        await drawings.until(2)
        assert drawings.begun[1:] == ["/cycle?n=3"]
        drawings.go_on.set()
        await asyncio.gather(*tasks)
        assert drawings.begun[2:] == [f"/samples?search={number}" for number in range(1, 8)]

    run(readers())


def test_few_short_drawings_are_done_at_once() -> None:
    drawings = Drawings(DrawingQueue())

    async def readers() -> None:
        tasks = [drawings.start(f"/cycle?n={number}") for number in range(3 * AT_ONCE)]
        await drawings.until(AT_ONCE)
        assert len(drawings.begun) == AT_ONCE
        drawings.go_on.set()
        await asyncio.gather(*tasks)

    run(readers())


def test_a_shorter_drawing_is_due_earlier_and_none_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    drawings = Drawings(queue_that_knows(compare=0.3, samples=0.2))
    now = [100.0]
    monkeypatch.setattr(drawing_queue, "monotonic", lambda: now[0])

    async def readers() -> None:
        tasks = [drawings.start(address) for address in ("/samples?n=0", "/compare?n=0", "/samples?n=1")]
        await drawings.until(1)
        now[0] += 2 * drawing_queue.DUE_AFTER
        tasks.append(drawings.start("/samples?n=2"))
        await asyncio.sleep(0.05)
        drawings.go_on.set()
        await asyncio.gather(*tasks)
        assert drawings.begun == ["/samples?n=0", "/samples?n=1", "/compare?n=0", "/samples?n=2"]

    run(readers())


def test_a_reader_who_leaves_or_a_page_that_fails_gives_its_turn_back() -> None:
    queue = queue_that_knows(samples=1.0)
    drawings = Drawings(queue)

    async def readers() -> None:
        first, second = drawings.start("/samples?n=1"), drawings.start("/samples?n=2")
        await drawings.until(1)
        second.cancel()
        drawings.go_on.set()
        await first
        with pytest.raises(ZeroDivisionError):
            await queue.run("/samples?n=3", lambda: 1 // 0)
        assert await queue.run("/samples?n=4", lambda: "drawn") == "drawn"
        assert drawings.begun == ["/samples?n=1"]

    run(readers())


def test_an_address_is_expected_to_take_what_it_took_and_few_are_remembered() -> None:
    queue = queue_that_knows(samples=0.5)
    queue._remember("/samples?n=1", 0.01)
    assert queue.expected("/samples?n=1") == 0.01
    assert 0.4 < queue.expected("/samples?n=2") < 0.5
    assert queue.expected("/cycle") == 0.0
    for number in range(2 * MOST_REMEMBERED):
        queue._remember(f"/samples?n={number}", 0.01)
    assert len(queue._seconds) == MOST_REMEMBERED


def test_a_click_beside_eight_readers_of_heavy_pages_is_answered_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each heavy page takes 0.2 s of processor time: eight at once would hold up the click for 1.6 s."""
    render, wait_and_draw = page_frame.render, DrawingQueue.run
    waiting, clicked = list[str](), threading.Event()
    clicked.set()

    async def noted(queue: DrawingQueue, address: str, draw: Callable[[], Html]) -> Html:
        waiting.append(address)
        return await wait_and_draw(queue, address, draw)

    def heavy(context: PageContext, url: str, *given: str) -> Html:
        assert clicked.wait(30)
        end = time.thread_time() + (0.2 if url.startswith("/samples") else 0.0)
        while time.thread_time() < end:
            pass
        return render(context, url, *given)

    monkeypatch.setattr(page_frame, "render", heavy)
    monkeypatch.setattr(DrawingQueue, "run", noted)
    with Tracker(tmp_path / "recover.db") as tracker:
        fill(tracker, 1)
        answered: list[str] = []

        async def ask(client: httpx.AsyncClient, path: str) -> None:
            assert (await client.get(path)).status_code == 200
            answered.append(path)

        async def readers() -> None:
            transport = httpx.ASGITransport(app.make(tracker))
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1", timeout=60
            ) as client:
                for path in ("/samples", "/cycle?n=1", "/cycle?n=1"):  # the first is cold
                    await ask(client, path)
                answered.clear()
                waiting.clear()
                clicked.clear()
                heavy_ones = [asyncio.create_task(ask(client, f"/samples?search={n}")) for n in range(8)]
                while len(waiting) < len(heavy_ones):
                    await asyncio.sleep(0.005)
                clicked.set()
                await ask(client, "/cycle?n=1")
                await asyncio.gather(*heavy_ones)

        run(readers())
        tracker.db.close()
    assert answered.index("/cycle?n=1") <= 2
