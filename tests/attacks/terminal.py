"""Record a terminal byte by byte while commands show hostile documents, answers, names and errors."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from db.writes.tracker import Tracker
from recovery.printable import HIDDEN
from tests.attacks.attack import NotHeld, Size
from tests.support.dashboards import fill

ROOT = Path(__file__).parents[2]
LONGEST = 1200.0  # seconds of a command on a busy machine
BELL = "\x1b]0;owned\x07"
WORDS = (
    BELL,
    "\x1b[2J\x1b[31mred",
    "\x9b31m",
    "\u202egnp.exe",
    "\u200bhidden",
    "\r\x1b[Aover",
    "\x1b]52;c;aGk=\x07",
)
ALLOWED = re.compile(r"\r\n|\r {0,400}\r?|\n|\t")  # line ends, and a progress line that is written over
COMMANDS = (
    ("ls", "cycles"),
    ("ls", "runs"),
    ("ls", "checkpoints"),
    ("ls", "runs", "--json"),
    ("show", "cycle:1"),
    ("show", "cycle:1", "--json"),
    ("show", BELL),
    ("flips",),
    ("compare", "clean0", "midtrained1"),
    ("query", "SELECT prompt, response, detail FROM items LIMIT 40"),
    ("query", "SELECT * FROM documents", "--json"),
    ("query", f"SELECT {BELL}"),
    ("export", "items", "--format", "csv"),
    ("export", "items", "--format", "jsonl"),
    ("corpus", "docs"),
    ("corpus", "docs", "--json"),
    ("corpus", "docs", "--strict"),
    ("corpus", f"no {BELL} folder"),
    ("init", "--model", f"none{BELL}"),
    ("--debug", "init", "--model", f"none{BELL}"),
    ("--debug", "show", BELL),
    ("eval", BELL),
    ("nothing" + BELL,),
    ("resume", BELL),
    ("verdict", "1"),
    ("lost", "clean0"),
    ("review", "1", "--reject", "--note", BELL, "--reviewer", BELL),
    ("report", "cycle:1", "--out", f"none {BELL}/report.html"),
    ("plan", "--model", "model"),
    ("plan", "--model", f"none{BELL}"),
    ("init", "--model", "model"),
    ("pilot", "--docs", f"no {BELL} folder"),
    ("locate", BELL),
    ("retrieval", BELL),
    ("prompts", "ifeval", "--count", "2", "--avoid", "prompts.jsonl"),
    ("prompts", "ifeval", "--avoid", f"none{BELL}.jsonl"),
    ("prompts", BELL),
    ("augment", "--docs", f"no {BELL} folder"),
    ("drift", BELL, "base"),
    ("merge", "--student", BELL, "--weight", "0.5"),
)


def terminal(size: Size) -> str:
    """Return how many commands were recorded, and how many bytes they wrote."""
    written = 0
    with tempfile.TemporaryDirectory() as folder:
        make_home(Path(folder))
        for words in COMMANDS:
            said = record(Path(folder), words)
            check(words, said)
            written += len(said)
    return f"{len(COMMANDS)} commands, {written:,} bytes, none that a terminal obeys"


def make_home(folder: Path) -> None:
    """Make a tracker whose every text is hostile, and documents with such names and words."""
    (folder / "home").mkdir()
    with Tracker(folder / "home" / "recover.db") as tracker:
        numbers = iter(range(10**6))
        fill(tracker, 2, lambda: f"{WORDS[next(numbers) % len(WORDS)]} {next(numbers)}")
        failed = tracker.start_run("midtrain", key="broken")
        tracker.fail_run(failed.id, f"OSError: {BELL} is broken")
    model = {"model_type": BELL, "architectures": [BELL], "hidden_size": BELL, "torch_dtype": BELL}
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(model))
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": word}) + "\n" for word in WORDS))
    docs = folder / "docs"
    docs.mkdir()
    for number, word in enumerate(WORDS):
        (docs / f"{number} {word.replace('/', '')}.txt").write_text(f"{word} is a word.")
        (docs / f"{number} {word.replace('/', '')}.pdf").write_text(f"%PDF-1.7 {word}")
        (docs / f"{number}.{word.replace('/', '')}").write_text(word)


def record(folder: Path, words: tuple[str, ...]) -> str:
    """Run a command on a terminal of its own and return all that it wrote there."""
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "pipelines.cli", "--home", str(folder / "home"), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    ) as child:
        os.close(theirs)
        said = b"".join(read_until_closed(mine, child))
    os.close(mine)
    return said.decode("utf-8", "replace")


def read_until_closed(handle: int, child: subprocess.Popen[bytes]) -> Iterator[bytes]:
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        ready, _, _ = select.select([handle], [], [], 0.2)
        if ready:
            try:
                data = os.read(handle, 65536)
            except OSError:  # the other side was closed
                return
            yield data
        elif child.poll() is not None:
            return
    child.kill()
    raise NotHeld(f"{child.args!r} did not end")


def check(words: tuple[str, ...], said: str) -> None:
    found = HIDDEN.search(ALLOWED.sub("", said))
    if found:
        at = ALLOWED.sub("", said)[max(0, found.start() - 60) : found.end() + 40]
        raise NotHeld(f"recover {' '.join(words)!r} writes {found[0]!r}: {at!r}")
    if not said.strip():
        raise NotHeld(f"recover {' '.join(words)!r} says nothing")
