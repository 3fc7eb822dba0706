"""Progress of a stage on standard error: one line, rewritten in a terminal, repeated rarely in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TextIO

from db.redact import redact_text
from pipelines.corpus.reading.tree import extent
from recovery.printable import printable

LOG_EVERY = 10.0  # seconds between lines where the line cannot be rewritten
SOONEST_ETA = 1.0  # seconds before which the pace says nothing


class Progress:
    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.quiet = quiet
        self.stream = stream or sys.stderr
        self._live = self.stream.isatty()
        self._shown = ""  # what a terminal shows and the next line overwrites
        self._ended = ""  # label of the stage whose last step was shown just now
        self._last = 0.0

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if not self.quiet:
            self._clear()
            self._ended = ""
            print(printable(redact_text(text)), file=self.stream, flush=True)

    def step(
        self, label: str, step: int, steps: int, *, eta_seconds: float | None = None, note: str = ""
    ) -> None:
        """Show how far a stage is; the last step always, but as rarely as others when it is repeated."""
        if self.quiet:
            return
        now = time.monotonic()
        ends = step >= steps and self._ended != label
        if not ends and now - self._last < (0.1 if self._live else LOG_EVERY):
            return
        self._last = now
        self._ended = label if step >= steps else ""
        eta = f"  ETA {duration(eta_seconds)}" if eta_seconds is not None and step < steps else ""
        text = printable(f"  {label:<12} {step:>4}/{steps}  {note}{eta}")
        if not self._live:
            print(text, file=self.stream, flush=True)
            return
        self._clear()
        self.stream.write(text)
        self.stream.flush()
        self._shown = text

    def _clear(self) -> None:
        if self._shown:
            self.stream.write("\r" + " " * len(self._shown) + "\r")
            self._shown = ""


def reading_progress(
    step: Callable[..., None], folder: Path, leave_out: Collection[str] = ()
) -> Callable[[int, int], None]:
    """Report the reading of a folder: files and bytes read, and the time left by bytes."""
    count, total = extent(folder, leave_out)
    begun = time.monotonic()

    def progress(files: int, size: int) -> None:
        read = min(size, total)  # files may have grown since
        left = time_left(begun, read, total)
        note = f"files, {read / 1e6:,.1f} of {total / 1e6:,.1f} MB"
        step(min(files, count), count, eta_seconds=left, note=note)

    return progress


def counting(step: Callable[..., None], note: str, before: int = 0) -> Callable[[int, int], None]:
    """Return a function that shows how many of a number are done, and the time left at the pace from now.

    `before` were done earlier, as by the attempt of a resumed run, and say nothing of the pace."""
    begun = time.monotonic()

    def show(done: int, total: int) -> None:
        step(done, total, eta_seconds=time_left(begun, done - before, total - before), note=note)

    return show


def time_left(begun: float, done: float, total: float) -> float | None:
    """Return the seconds that the rest takes at the pace since `begun`, a time.monotonic(); None too soon."""
    passed = time.monotonic() - begun
    if not done or passed < SOONEST_ETA:
        return None
    return passed * (total - done) / done


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"


class Pace:
    """How fast answers are written, and for how long at most that will go on."""

    def __init__(self, answers: int, longest: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.answers = answers
        self.longest = longest
        self.clock = clock
        self.started = clock()
        self.tokens = 0

    def see(self, tokens: int) -> None:
        """Take the number of tokens written so far."""
        self.tokens = tokens

    def rate(self) -> float:
        """Return the tokens a second; 0 as long as nothing is known."""
        return self.tokens / max(self.clock() - self.started, 1e-9)

    def eta_seconds(self, done: int) -> float | None:
        """Return the smaller estimate: all answers reach the limit, or take as long as the finished ones."""
        bounds = []
        if self.tokens:
            bounds.append((self.answers * self.longest - self.tokens) / self.rate())
        if done:
            bounds.append((self.clock() - self.started) * (self.answers - done) / done)
        return min(bounds, default=None)

    def note(self, suite: str) -> str:
        return f"{suite}  {self.tokens:,} tokens, {self.rate():,.0f} a second" if self.tokens else suite
