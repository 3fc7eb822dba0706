"""Start commands in a folder that holds a module of every standard name, and of every package of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.attacks.attack import NotHeld, Size
from tests.support import papers

ROOT = Path(__file__).parents[2]
OURS = ("pipelines", "recovery", "db", "evals", "dashboard", "torch", "transformers", "lxml", "pypdfium2")
SITE = ("sitecustomize", "usercustomize")
HOOK = "with open({seen!r}, 'a') as file: file.write({name!r} + ' ')\n"
INSTALLED = "import sys; from pipelines.cli import main; sys.argv = ['recover', *sys.argv[1:]]; main()"
COMMANDS = (
    ("corpus", "."),
    ("corpus", ".", "--json"),
    ("--help",),
    ("ls",),
    ("doctor",),
    ("init", "--model", "."),
)


def current_folder(size: Size) -> str:
    """Return how many names lay in wait, and for how many commands."""
    names = sorted({name for name in sys.stdlib_module_names if name.isidentifier()} | {*OURS, *SITE})
    with tempfile.TemporaryDirectory() as folder:
        docs, seen = Path(folder, "docs"), Path(folder, "seen")
        pages: dict[str, bytes | str] = {
            "a.html": "<p>a page</p>",
            "b.jsonl": '"a row"',
            "c.pdf": papers.pdf("c"),
        }
        hooks = {f"{name}.py": HOOK.format(seen=str(seen), name=name) for name in names}
        papers.write(docs, {**pages, **hooks, "d.txt": "Größe".encode("latin-1")})
        for words in COMMANDS:
            command = [sys.executable, "-P", "-c", INSTALLED, "--home", str(Path(folder, "home")), *words]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            subprocess.run(command, cwd=docs, env=environment, capture_output=True, timeout=300)
            if seen.exists():
                raise NotHeld(f"recover {' '.join(words)} ran {seen.read_text()[:200]}")
    return f"{len(names)} module names, {len(COMMANDS)} commands"
