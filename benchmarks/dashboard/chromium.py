"""Drive a headless Chromium on a running dashboard, for pictures, click times and tests."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dashboard import app
from db.writes.tracker import Tracker
from recovery.extras import to_install

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
)
PATIENCE = 90.0  # seconds: the machine may be busy


def missing() -> str:
    """Return what must be installed to drive a browser; empty if nothing is missing."""
    if find_spec("selenium") is None:
        return f"selenium is not installed; {to_install('test')}"
    if _browser() is None or shutil.which("chromedriver") is None:
        return "no Chromium here: apt install chromium chromium-driver"
    return ""


def _browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def serving(tracker: Tracker) -> Iterator[str]:
    """Serve the dashboard on a free port, in a thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = app.make(tracker)
    server = app.server(made, "127.0.0.1", port, log_level="error", timeout_graceful_shutdown=1)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)


def until(true: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Return a condition's value as soon as it is true."""
    deadline = time.monotonic() + patience
    while not (found := true()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


# The page exists when the response has arrived, and is drawn two frames later: the user's wait.
CLICK = """
const [url, done] = arguments, before = window.recover.serial, begun = performance.now();
const link = document.createElement("a"); link.href = url;
document.getElementById("root").append(link); link.click(); link.remove();
const wait = () => window.recover.serial > before && !document.documentElement.dataset.busy
  ? requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begun)))
  : setTimeout(wait, 1);
wait();
"""


class Page:
    """A browser window on the dashboard."""

    def __init__(self, driver: Any, base: str) -> None:
        self.driver, self.base = driver, base

    def open(self, url: str = "/") -> Page:
        """Load an address and wait until Gradio's script has started."""
        self.driver.get(self.base + url)
        until(lambda: self.js("return document.documentElement.dataset.ready"))
        return self

    def go(self, url: str) -> Page:
        """Follow a link on the page without reloading the document."""
        self.click(url)
        return self

    def arrived(self) -> None:
        """Wait until no page is asked for."""
        until(lambda: not self.js("return document.documentElement.dataset.busy"))

    def click(self, url: str) -> float:
        """Follow a link; return the milliseconds until the new page was drawn."""
        return float(self.driver.execute_async_script(CLICK, url))

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def do(self, command: str, **arguments: Any) -> Any:
        """Send a command of the Chrome DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, arguments)

    def text(self) -> str:
        return str(self.js("return document.getElementById('main').innerText"))

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        return int(
            self.js("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        )

    def events(self, *methods: str) -> list[dict[str, Any]]:
        """Return the parameters of these network events since the last call."""
        entries = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [entry["params"] for entry in entries if entry["method"] in methods]

    def requests(self) -> list[str]:
        """Return the URLs requested since the last call."""
        return [one["request"]["url"] for one in self.events("Network.requestWillBeSent")]

    def nodes(self) -> int:
        return int(self.js("return document.querySelectorAll('*').length"))

    def alive(self) -> int:
        """Return the number of DOM nodes in memory, including detached ones."""
        self.do("HeapProfiler.collectGarbage")
        return int(self.do("Memory.getDOMCounters")["nodes"])

    def heap(self) -> int:
        """Return the bytes of live JavaScript objects (without DOM nodes) after a garbage collection."""
        self.do("HeapProfiler.collectGarbage")
        return int(self.do("Runtime.getHeapUsage")["usedSize"])

    def window(self, width: int, height: int, *, scale: float = 1, phone: bool = False) -> Page:
        """Emulate another window size."""
        shape = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.do("Emulation.setDeviceMetricsOverride", **shape)
        return self


@contextmanager
def chromium(base: str, profile: Path, flags: Sequence[str] = ()) -> Iterator[Page]:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = _browser() or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}", "--window-size=1280,900", *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    window = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    window.set_script_timeout(PATIENCE)
    window.set_page_load_timeout(PATIENCE)
    try:
        yield Page(window, base)
    finally:
        window.quit()
