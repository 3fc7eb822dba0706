"""Start commands in a folder that holds a module of every standard name, and of every package of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from tests.attacks.attack import NotHeld, Size
from tests.support import papers, small_cycles

ROOT = Path(__file__).parents[2]
LONGEST = 1200.0  # seconds of a command on a busy machine
OURS = ("pipelines", "recovery", "db", "evals", "dashboard", "sitecustomize", "usercustomize")
HOOK = "with open({seen!r}, 'a') as file: file.write({name!r} + ' ')\n"
INSTALLED = "import sys; from pipelines.cli import main; sys.argv = ['recover', *sys.argv[1:]]; main()"
REJECTED = 3  # exit code of a cycle whose verdict is bad
QUICK = 8  # of the commands
COMMANDS = (
    ("corpus", "."),
    ("corpus", ".", "--json"),
    ("--help",),
    ("ls",),
    ("doctor",),
    ("plan",),
    ("prompts", "ifeval", "--count", "3"),
    ("cycle", "--docs", "."),
    ("locate", "cycle:1"),
    ("retrieval",),
    ("drift", "base", "current"),
    ("pilot", "--docs", "."),
)


def current_folder(size: Size) -> str:
    """Return how many names lay in wait, and for how many commands."""
    found = {*sys.stdlib_module_names, *metadata.packages_distributions(), *OURS}
    names = sorted(name for name in found if name.isidentifier())
    with tempfile.TemporaryDirectory() as folder:
        place, seen = Path(folder), Path(folder, "seen")
        docs = small_cycles.make_docs(place)
        with small_cycles.make_home(place) as workspace:
            small_cycles.settle(workspace, margin=0.4, learning_rate=1e-4)
        pages: dict[str, bytes | str] = {
            "a.html": "<p>a page</p>",
            "b.jsonl": '"a row"',
            "c.pdf": papers.pdf("c"),
        }
        hooks = {f"{name}.py": HOOK.format(seen=str(seen), name=name) for name in names}
        papers.write(docs, {**pages, **hooks, "d.txt": "Größe".encode("latin-1")})
        tried = COMMANDS[:QUICK] if size.quick else COMMANDS
        worked = [stand_in(docs, place / "home", words, seen) for words in tried]
    if not any(worked):
        raise NotHeld(f"none of {len(tried)} commands did its work: nothing was attacked")
    return f"{len(names)} module names, {len(tried)} commands, {sum(worked)} of which did their work"


def stand_in(docs: Path, home: Path, words: tuple[str, ...], seen: Path) -> bool:
    """Run a command with the documents as the current folder; return whether it did its work."""
    command = [sys.executable, "-P", "-c", INSTALLED, "--home", str(home), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=docs, env=environment, capture_output=True, timeout=LONGEST)
    if seen.exists():
        raise NotHeld(f"recover {' '.join(words)} ran {seen.read_text()[:200]}")
    return done.returncode in (0, REJECTED)
