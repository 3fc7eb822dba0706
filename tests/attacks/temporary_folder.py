"""Put a folder of another user, or a link, where Gradio keeps files: nothing is written through it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import httpx

from tests.attacks.attack import NotHeld, Size
from tests.attacks.load import serving
from tests.support.dashboards import plain

STRANGER = 54321  # user
PATHS = ("/", "/cycle?n=1", "/samples?n=1", "/export")


def temporary_folder(size: Size) -> str:
    """Return which folders lay in wait for how many requests."""
    placed = [link, open_folder, *([foreign_folder] if os.geteuid() == 0 else [])]
    asked = 0
    for place in placed:
        with tempfile.TemporaryDirectory() as folder:
            watched = Path(folder, "watched")
            watched.mkdir(mode=0o777)
            place(Path(folder, "gradio"), watched)
            with serving(Path(folder, "home"), plain(), cycles=1, TMPDIR=folder) as (url, _):
                asked += ask(url)
                found = [path for path in (watched, Path(folder, "gradio")) if any(path.iterdir())]
                open_ones = [path for path in Path(folder).glob("recover-*") if path.stat().st_mode & 0o077]
            if found or open_ones:
                raise NotHeld(f"{place.__name__}: something was written to {[*found, *open_ones]}")
    return f"{', '.join(place.__name__.replace('_', ' ') for place in placed)}: {asked} requests"


def link(gradio: Path, watched: Path) -> None:
    gradio.symlink_to(watched)


def open_folder(gradio: Path, watched: Path) -> None:
    gradio.mkdir()
    gradio.chmod(0o777)


def foreign_folder(gradio: Path, watched: Path) -> None:
    gradio.mkdir(mode=0o700)
    os.chown(gradio, STRANGER, STRANGER)


def ask(url: str) -> int:
    """Draw pages, and try to upload a file, which has to be refused."""
    own = {"origin": url, "sec-fetch-site": "same-origin"}
    with httpx.Client(timeout=120.0) as client:
        for path in PATHS:
            if client.get(url + path).status_code != 200:
                raise NotHeld(f"{path} is not answered")
        for path in ("/gradio_api/upload", "/upload"):
            sent = client.post(url + path, files={"files": ("x.html", b"<script>")}, headers=own)
            if sent.status_code < 400:
                raise NotHeld(f"{path} takes files")
    return len(PATHS) + 2
