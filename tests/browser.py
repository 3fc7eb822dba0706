"""A headless Chromium before a real dashboard; a reason to skip where there is none."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dashboard import app
from db.tracker import Tracker

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--force-device-scale-factor=1", "--hide-scrollbars",
)  # fmt: skip
PATIENCE = 90.0  # seconds: the machine may be busy


def require() -> tuple[str, str]:
    """Where Chromium and its driver are."""
    pytest.importorskip("selenium", reason="selenium is not installed: pip install 'recover-llm[test]'")
    browser = next((path for name in NAMES if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no Chromium here: apt install chromium chromium-driver")
    return browser, driver


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
        before = self.serial()
        self.js("const a = document.createElement('a'); a.href = arguments[0];"
                "document.getElementById('root').append(a); a.click(); a.remove()", url)  # fmt: skip
        until(lambda: self.serial() > before)
        return self

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def serial(self) -> int:
        return int(self.js("return window.recover.serial || 0"))

    def text(self) -> str:
        return str(self.js("return document.getElementById('main').innerText"))

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return int(
            self.js("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        )

    def requests(self) -> list[str]:
        """What was asked for since the last call."""
        entries = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [entry["params"] for entry in entries if entry["method"] == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in sent]

    def nodes(self) -> int:
        return int(self.js("return document.querySelectorAll('*').length"))

    def heap(self) -> int:
        """Bytes of live objects, after a collection."""
        self.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        return int(self.driver.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"])


@contextmanager
def chromium(base: str, profile: Path, width: int = 1280, height: int = 900) -> Iterator[Page]:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    browser, driver = require()
    options = Options()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    window = webdriver.Chrome(options=options, service=Service(driver))
    window.set_script_timeout(PATIENCE)
    window.set_page_load_timeout(PATIENCE)
    try:
        yield Page(window, base)
    finally:
        window.quit()
