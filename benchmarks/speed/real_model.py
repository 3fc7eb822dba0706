"""Measure sampling, midtraining and distillation on a real model, each against its peer on the same weights.

Each part is the benchmark of that name with `--model`; here they share one conversion of the model and one
section of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import page
from benchmarks.common import Report, in_own_process
from benchmarks.speed import material

PARTS = {
    "sampling": "sampler",
    "beginning": "common_beginning",
    "midtrain": "midtrain",
    "distill": "distill_vs_trl",
}


def parts(text: str) -> list[str]:
    """Parse the names of parts, separated by commas."""
    found = text.split(",")
    if unknown := sorted(set(found) - set(PARTS)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(PARTS)}")
    return found


def words(asked: argparse.Namespace, part: str, directory: Path) -> list[str]:
    """Return the options of a part's benchmark."""
    found = ["--model", str(directory)]
    found += ["--quick"] if asked.quick else []
    found += ["--rounds", str(asked.rounds)] if asked.rounds else []
    return found + (["--no-vllm"] if asked.no_vllm and part == "sampling" else [])


def measure(asked: argparse.Namespace) -> dict[str, Report]:
    """Run the parts one after the other; a part that fails is left out."""
    with material.checkpoint(asked.model) as directory:
        found = {part: in_own_process(PARTS[part], *words(asked, part, directory)) for part in asked.only}
    return {part: report for part, report in found.items() if report is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    material.options(parser, required=True)
    parser.add_argument("--only", type=parts, default=list(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--no-vllm", action="store_true", help="sample without vLLM, even if it is installed")
    parser.add_argument("--quick", action="store_true", help="a few turns of each, to see that it works")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/benchmarks.md")
    parser.add_argument("--page", type=Path, default=page.PAGE, help="the page to write, if not that one")
    asked = parser.parse_args()
    found = measure(asked)
    if asked.write_docs:
        for part, report in found.items():
            page.put_part(f"real model: {part}", report, asked.page)
    sys.exit(0 if len(found) == len(asked.only) else 1)


if __name__ == "__main__":
    main()
