"""Progress of a stage on standard error: one line, rewritten in a terminal, repeated rarely in a log."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from db.redact import redact_text
from pipelines.corpus.reading.tree import extent
from recovery.printable import printable

LOG_EVERY = 10.0  # seconds between lines where the line cannot be rewritten
SOONEST_ETA = 1.0  # seconds before which the pace says nothing
COLUMNS = 80  # of a terminal that does not say how wide it is
GONE = (errno.EPIPE, errno.EIO)  # a closed pipe, a lost terminal


class Progress:
    """What a run says; once that cannot be written any more, the run goes on in silence."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.quiet = quiet or self.stream is None
        self._live = _can_rewrite(self.stream)
        self._shown = ""  # what a terminal shows and the next line overwrites
        self._ended = ""  # label of the stage whose last step was shown just now
        self._last = 0.0

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if not self.quiet:
            self._ended = ""
            self._write(f"{self._erasure()}{printable(redact_text(text))}\n")

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
        head, note = printable(f"  {label:<12} {step:>4}/{steps}  "), printable(note)
        if not self._live:
            self._write(f"{head}{note}{eta}\n")
            return
        text = _fitted(head, note, eta, _columns(self.stream))
        self._write(self._erasure() + text)
        self._shown = text

    def end(self) -> None:
        """Let what is printed next begin a line of its own, below the one that a terminal shows."""
        if self._shown:
            self._shown = ""
            self._write("\n")

    def _erasure(self) -> str:
        """Return what removes the line that a terminal shows."""
        width, self._shown = len(self._shown), ""
        return f"\r{' ' * width}\r" if width else ""

    def _write(self, text: str) -> None:
        if not write(text, self.stream):
            self.quiet = True


def write(text: str, stream: TextIO | None) -> bool:
    """Write at once, and return whether that was possible."""
    if stream is None:  # as after `2>&-`
        return False
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in GONE:
            _discard(stream)
        return False
    return True


def speaks_unicode(stream: TextIO | None) -> bool:
    """Return whether a stream can take every character."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "").startswith("utf")


def take_any_character(stream: TextIO | None) -> None:
    """Let a stream write characters that its encoding lacks as their code points, such as \\u2265."""
    if isinstance(stream, TextIOWrapper) and not speaks_unicode(stream):
        stream.reconfigure(errors="backslashreplace")


def _discard(stream: TextIO) -> None:
    """Let all that is written to a stream go nowhere, and what it still holds.

    A library's own bar would end the run otherwise, and Python would end with an exit code of its own.
    """
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _can_rewrite(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal in which a line can be rewritten."""
    if stream is None or stream.closed:
        return False
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _columns(stream: TextIO) -> int:
    """Return how many characters a terminal shows side by side."""
    with suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or COLUMNS
    return COLUMNS


def _fitted(head: str, note: str, eta: str, columns: int) -> str:
    """Return a line that a terminal does not wrap: only its last row could be rewritten.

    The note is cut first, as the time left is wanted most.
    """
    most = columns - 1
    room = max(most - len(head) - len(eta), 0)
    return f"{head}{note[:room]}{eta}"[:most]


def reading_progress(
    step: Callable[..., None], folder: Path, leave_out: Collection[str] = ()
) -> Callable[[int, int], None]:
    """Report the reading of a folder: files and bytes read, and the time left by bytes."""
    count, total = extent(folder, leave_out)
    unit, name = (1e6, "MB") if total >= 1e6 else (1e3, "kB")
    begun = time.monotonic()

    def progress(files: int, size: int) -> None:
        read = min(size, total)  # files may have grown since
        left = time_left(begun, read, total)
        note = f"files, {read / unit:,.1f} of {total / unit:,.1f} {name}"
        step(min(files, count), count, eta_seconds=left, note=note)

    return progress


def counting(step: Callable[..., None], note: str) -> Callable[[int, int], None]:
    """Return a function that shows how many of a number are done, and the time left.

    The pace is that since the first number: what came before it, as the reading of prompts or an earlier
    attempt of a resumed run, says nothing of what is left."""
    first: tuple[float, int] | None = None

    def show(done: int, total: int) -> None:
        nonlocal first
        begun, before = first = first or (time.monotonic(), done)
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
        self.first: tuple[float, int] | None = None  # when the first tokens were there, and how many

    def see(self, tokens: int) -> None:
        """Take the number of tokens written so far."""
        self.tokens = tokens
        if tokens and (self.first is None or tokens < self.first[1]):  # fewer: a batch is written again
            self.first = self.clock(), tokens

    def rate(self) -> float:
        """Return the tokens a second; 0 as long as nothing is known."""
        return self.tokens / max(self.clock() - self.started, 1e-9)

    def eta_seconds(self, done: int) -> float | None:
        """Return the smaller estimate: all answers reach the limit, or take as long as the finished ones."""
        bounds = []
        if pace := self._writing():
            bounds.append((self.answers * self.longest - self.tokens) / pace)
        if done:
            bounds.append((self.clock() - self.started) * (self.answers - done) / done)
        return min(bounds, default=None)

    def _writing(self) -> float:
        """Return the tokens a second since the first ones: before them prompts were read; 0 too soon."""
        begun, before = self.first or (self.clock(), 0)
        passed = self.clock() - begun
        return (self.tokens - before) / passed if passed >= SOONEST_ETA else 0.0

    def note(self, suite: str) -> str:
        return f"{suite}  {self.tokens:,} tokens, {self.rate():,.0f} a second" if self.tokens else suite
