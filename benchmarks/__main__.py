"""Run the benchmarks (`python -m benchmarks [NAME ...]`) and write docs/benchmarks.md.

Benchmarks against vLLM run in its environment, which `make .venv-vllm/.ready` creates.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import VLLM_PYTHON, Report, Target

ROOT = Path(__file__).parent.parent
ALL = ("distill_vs_trl", "sampler", "cpu", "lookahead", "midtrain", "padding", "loss_memory", "tracker")
WITH_VLLM = {"lookahead"}  # benchmarks that run entirely in vLLM's environment
PAGE = ROOT / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Written by `make bench`. Each compares on the same work within one run, in alternating order, by medians: a
ratio holds, a time is this machine's at that moment. A target that was missed says so. Unless a table says
otherwise, peers compute with this project's CPU settings too (see [computing](computing.md)).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}; default: all there are"
    )
    parser.add_argument("--quick", action="store_true", help="a few turns of each, and no page is written")
    parser.add_argument("--write-docs", action="store_true", help="of some: replace their parts of the page")
    asked = parser.parse_args()
    there = [
        name for name in asked.names or ALL if (Path(__file__).parent / "speed" / f"{name}.py").is_file()
    ]
    found = [report for name in there if (report := one(name, quick=asked.quick)) is not None]
    if not asked.quick and (asked.write_docs or not asked.names):
        write({} if not asked.names else parts(PAGE.read_text(encoding="utf-8")), found)
        sys.stdout.write(f"{PAGE} is written\n")
    sys.exit(0 if len(found) == len(there) else 1)


def parts(page: str) -> dict[str, str]:
    """Return the page's section of each benchmark."""
    return {part.split("\n", 1)[0]: part.strip() for part in page.split("\n## ")[1:]}


def write(there: dict[str, str], found: list[Report]) -> None:
    """Replace the sections of these benchmarks, or append new ones."""
    day = datetime.date.today().isoformat()
    new = {r.name: f"{r.as_markdown().removeprefix('## ')}\n\nMeasured on {day}." for r in found}
    PAGE.write_text("\n## ".join([HEAD, *(f"{part}\n" for part in (there | new).values())]), encoding="utf-8")


def one(name: str, *, quick: bool) -> Report | None:
    """Run a benchmark in a fresh process, so that none inherits loaded modules."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [
            str(VLLM_PYTHON) if name in WITH_VLLM and VLLM_PYTHON.is_file() else sys.executable,
            "-m",
            f"benchmarks.speed.{name}",
            "--out",
            str(out),
            *(["--quick"] if quick else []),
        ]
        print(f"== {name}", flush=True)
        if subprocess.run(command).returncode or not out.is_file():
            print(f"== {name} failed", flush=True)
            return None
        return read(json.loads(out.read_text(encoding="utf-8")))


def read(document: dict[str, Any]) -> Report:
    targets = [Target(**{k: v for k, v in row.items() if k != "met"}) for row in document.pop("targets")]
    return Report(**document, targets=targets)


if __name__ == "__main__":
    main()
