"""Guess the dashboard's password on many connections at once, and set passwords that are none."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx

from benchmarks.dashboard.chromium import until
from dashboard import app
from dashboard.access import login_attempts
from db.errors import BadRequest
from db.writes.tracker import Tracker
from tests.attacks.attack import NotHeld, Size
from tests.attacks.load import free_port

GUESSERS = 16
QUICK = 40  # guesses of each
PASSWORD = "correct horse battery"
EMPTY = (" ", "\t" * 20, "\u200b" * 20, "\u00a0" * 12, "\u3164" * 12, "\u2800" * 12, "\u00ad" * 12, "a" * 7)


def passwords(size: Size) -> str:
    """Return how many guesses were made, and how many of them were compared with the password."""
    logging.disable(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, Tracker(Path(folder, "recover.db")) as tracker:
        for empty in EMPTY:
            refuse(tracker, empty)
        port = free_port()
        server = app.server(app.make(tracker, password=PASSWORD), "127.0.0.1", port, log_level="critical")
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            until(lambda: server.started)
            return guess(f"http://127.0.0.1:{port}/live", size)
        finally:
            server.should_exit = True
            thread.join(20)
            tracker.db.close()


def refuse(tracker: Tracker, empty: str) -> None:
    try:
        app.serve(tracker, host="127.0.0.1", port=0, password=empty)
    except BadRequest:
        return
    raise NotHeld(f"{empty!r} is taken for a password")


def guess(url: str, size: Size) -> str:
    ends: Counter[int] = Counter()
    begun = time.monotonic()
    guessers = [threading.Thread(target=guess_on, args=(url, size, n, ends)) for n in range(GUESSERS)]
    for guesser in guessers:
        guesser.start()
    for guesser in guessers:
        guesser.join()
    seconds = time.monotonic() - begun
    allowed = login_attempts.BURST + 1 + seconds / login_attempts.SECONDS_EACH
    said = (
        f"{ends.total():,} guesses in {seconds:.0f} s, {ends[401]} of them compared; {len(EMPTY)} empty ones"
    )
    if ends[401] > allowed or set(ends) != {401, 429}:
        raise NotHeld(f"{said}: {dict(ends)}")
    return said


def guess_on(url: str, size: Size, guesser: int, ends: Counter[int]) -> None:
    with httpx.Client(timeout=60.0) as client:
        for number in size.rounds(QUICK):
            word = f"{guesser} {size.random('password', guesser, number).random()}"
            ends[client.get(url, auth=("ann", word)).status_code] += 1
