"""Time the dashboard's pages in a real browser on a long history, click by click.

    python -m benchmarks.dashboard.history DIR --browser

A wait lasts from the click until the new page is drawn. Wall time needs an idle machine; the server's CPU
time and the bytes sent do not.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.dashboard.chromium import Page, chromium, missing, serving
from db.reads import queries
from db.writes.tracker import Tracker

FIRST, CLICK = 2000.0, 500.0  # targets in milliseconds
READY = """
new MutationObserver((_, observer) => {
  if (!document.documentElement.dataset.ready) return;
  window.__ready = performance.now();
  observer.disconnect();
}).observe(document, { attributes: true, subtree: true, attributeFilter: ["data-ready"] });
"""
LOADED = "return [performance.getEntriesByName('first-contentful-paint')[0].startTime, window.__ready]"

ANSWERED = """
const answers = performance.getEntriesByType("resource").filter((one) => one.name.includes("/predict"));
return answers.reduce((sum, one) => sum + one.transferSize, 0);
"""


class ClickCost(NamedTuple):
    """The costs of one click: time until the page is drawn, the server's CPU time, bytes sent."""

    milliseconds: float
    cpu: float
    bytes: float


def clicks(cycles: int, long_run: str) -> dict[str, str]:
    """Return the addresses of every page and interaction, in an order in which each changes the page."""
    middle = cycles // 2
    last = f"distill-{cycles:04d}"
    return {
        "a cycle in the middle": f"/cycle?n={middle}",
        "the newest cycle": "/cycle",
        "its documents": f"/cycle?n={cycles}&documents=all",
        "all cycles": "/",
        "cycles: sorted by cost": "/?sort=cost",
        "cycles: an older page": "/?page=9",
        "cycles: searched": "/?search=looked",
        "cycles: two picked": f"/?pick={middle}.{cycles}",
        "behaviour": "/behaviour",
        "behaviour: ten cycles": "/behaviour?view=cycles",
        "samples": "/samples",
        "samples: lost": "/samples?flip=lost",
        "samples: searched": "/samples?search=question+1",
        "tokens": "/tokens",
        "tokens: another one": "/tokens?at=30",
        "curves": f"/curves?runs={last}",
        "curves: another metric": f"/curves?runs={last}&metric=reverse_kl",
        "curves: over tokens": f"/curves?runs={last}&metric=reverse_kl&axis=tokens",
        "a curve of a million steps": f"/curves?runs={long_run}",
        "the same, smoothed": f"/curves?runs={long_run}&smooth=more",
        "compare two": f"/compare?a=cycle:{middle}&b=cycle:{cycles}",
        "compare: the other flips": f"/compare?a=cycle:{middle}&b=cycle:{cycles}&flips=lost",
        "methods": "/methods",
        "knowledge": "/knowledge",
        "knowledge: older": f"/knowledge?before={middle}",
        "export": "/export",
    }


def measure(home: Path, long_run: str, repeats: int) -> bool:
    """Print the table; return whether every wait meets its target."""
    if why := missing():
        raise SystemExit(why)
    with Tracker(home / "recover.db") as tracker, serving(tracker) as base:
        newest = queries.cycles(tracker.db, limit=1)
        if not newest:
            raise SystemExit(
                f"{home} has no cycle: `python -m benchmarks.dashboard.history {home}` writes some"
            )
        firsts = [_first(base) for _ in range(repeats)]
        with tempfile.TemporaryDirectory() as profile, chromium(base, Path(profile)) as page:
            page.open("/export")
            waits = {
                name: [_click(page, url) for url in [url, *_again(url, repeats)]]
                for name, url in clicks(newest[0]["cycle"], long_run).items()
            }
    _print(firsts, waits)
    slowest = max(wait.milliseconds for found in waits.values() for wait in found)
    return max(usable for _, usable, _ in firsts) < FIRST and slowest < CLICK


def _again(url: str, repeats: int) -> list[str]:
    """Vary an address slightly, so that a repeated click is not served from a cache."""
    return [f"{url}{'&' if '?' in url else '?'}again={n}" for n in range(1, repeats)]


def _first(base: str) -> tuple[float, float, float]:
    """Measure the first page in a fresh browser: milliseconds until readable, until usable, and bytes."""
    with tempfile.TemporaryDirectory() as profile, chromium(base, Path(profile)) as page:
        page.do("Page.addScriptToEvaluateOnNewDocument", source=READY)
        page.open("/")
        readable, usable = page.js(LOADED)
        sent = page.events("Network.loadingFinished")
    return float(readable), float(usable), sum(one["encodedDataLength"] for one in sent)


def _click(page: Page, url: str) -> ClickCost:
    page.js("performance.clearResourceTimings()")
    begun = time.process_time()
    milliseconds = page.click(url)
    cpu = 1000 * (time.process_time() - begun)
    return ClickCost(milliseconds, cpu, float(page.js(ANSWERED)))


def _print(firsts: list[tuple[float, float, float]], waits: dict[str, list[ClickCost]]) -> None:
    readable, usable, sent = (statistics.median(column) for column in zip(*firsts, strict=True))
    print(
        f"first page, nothing cached: readable after {readable:.0f} ms, usable after {usable:.0f} ms "
        f"(slowest {max(one[1] for one in firsts):.0f}, promised {FIRST:.0f}), {sent / 1000:.0f} kB"
    )
    print(f"\n{'click':<32}{'median ms':>10}{'slowest':>9}{'CPU ms':>9}{'first':>8}{'kB':>8}")
    for name, found in waits.items():
        times, cpu = [one.milliseconds for one in found], [one.cpu for one in found]
        missed = "  over the promised " + f"{CLICK:.0f} ms" if max(times) >= CLICK else ""
        print(
            f"{name:<32}{statistics.median(times):>10.0f}{max(times):>9.0f}{statistics.median(cpu):>9.0f}"
            f"{cpu[0]:>8.0f}{found[-1].bytes / 1000:>8.0f}{missed}"
        )
