"""A headless Chromium before a real dashboard: for the pictures, for timing clicks, and for the tests."""

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
    """What to install before a browser can be driven; nothing when all is there."""
    if find_spec("selenium") is None:
        return "selenium is not installed: pip install 'recover-llm[test]'"
    if _browser() is None or shutil.which("chromedriver") is None:
        return "no Chromium here: apt install chromium chromium-driver"
    return ""


def _browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def serving(tracker: Tracker) -> Iterator[str]:
    """The dashboard on a free port, in a thread."""
    import uvicorn

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = uvicorn.Config(
        app.make(tracker), host="127.0.0.1", port=port, log_level="error", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)


def until(true: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """What a condition gives as soon as it is true."""
    deadline = time.monotonic() + patience
    while not (found := true()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


# The page is there when the answer is, drawn when two frames have passed: what a person waits for.
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
    """One browser window on the dashboard."""

    def __init__(self, driver: Any, base: str) -> None:
        self.driver, self.base = driver, base

    def open(self, url: str = "/") -> Page:
        """Loads an address and waits until Gradio has taken over."""
        self.driver.get(self.base + url)
        until(lambda: self.js("return document.documentElement.dataset.ready"))
        return self

    def go(self, url: str) -> Page:
        """Follows a link on the page to an address; nothing is loaded anew."""
        self.click(url)
        return self

    def click(self, url: str) -> float:
        """The same; how many milliseconds it took until the new page was drawn."""
        return float(self.driver.execute_async_script(CLICK, url))

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def do(self, command: str, **arguments: Any) -> Any:
        """A command of the browser's own protocol."""
        return self.driver.execute_cdp_cmd(command, arguments)

    def text(self) -> str:
        return str(self.js("return document.getElementById('main').innerText"))

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return int(
            self.js("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        )

    def events(self, *methods: str) -> list[dict[str, Any]]:
        """What the network did since the last call: the parameters of these events."""
        entries = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [entry["params"] for entry in entries if entry["method"] in methods]

    def requests(self) -> list[str]:
        """What was asked for since the last call."""
        return [one["request"]["url"] for one in self.events("Network.requestWillBeSent")]

    def nodes(self) -> int:
        return int(self.js("return document.querySelectorAll('*').length"))

    def alive(self) -> int:
        """Nodes that the browser keeps, those that are on no page any more among them."""
        self.do("HeapProfiler.collectGarbage")
        return int(self.do("Memory.getDOMCounters")["nodes"])

    def heap(self) -> int:
        """Bytes of live objects of the script (nodes are not among them), after a collection."""
        self.do("HeapProfiler.collectGarbage")
        return int(self.do("Runtime.getHeapUsage")["usedSize"])

    def window(self, width: int, height: int, *, scale: float = 1, phone: bool = False) -> Page:
        """Another size of window, whatever the real one is."""
        shape = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.do("Emulation.setDeviceMetricsOverride", **shape)
        return self


@contextmanager
def chromium(
    base: str, profile: Path, width: int = 1280, height: int = 900, flags: Sequence[str] = ()
) -> Iterator[Page]:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = _browser() or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    window = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    window.set_script_timeout(PATIENCE)
    window.set_page_load_timeout(PATIENCE)
    try:
        yield Page(window, base)
    finally:
        window.quit()
