"""Run the benchmarks (`python -m benchmarks [NAME ...]`) and write docs/benchmarks.md.

Benchmarks against vLLM run in its environment, which `make .venv-vllm/.ready` creates.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import page
from benchmarks.common import VLLM_PYTHON, Report, in_own_process

ALL = ("distill_vs_trl", "sampler", "cpu", "lookahead", "midtrain", "padding", "loss_memory", "tracker")
WITH_VLLM = {"lookahead"}  # benchmarks that run entirely in vLLM's environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a few turns of each, and no page is written")
    parser.add_argument("--write-docs", action="store_true", help="of some: replace their parts of the page")
    asked = parser.parse_args()
    names = asked.names or ALL
    if unknown := [name for name in names if name not in ALL]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(ALL)}")
    found = [report for name in names if (report := one(name, quick=asked.quick)) is not None]
    if not asked.quick and (asked.write_docs or not asked.names):
        page.write(found)
        sys.stdout.write(f"{page.PAGE} is written\n")
    sys.exit(0 if len(found) == len(names) else 1)


def one(name: str, *, quick: bool) -> Report | None:
    vllm = name in WITH_VLLM and VLLM_PYTHON.is_file()
    python = str(VLLM_PYTHON) if vllm else sys.executable
    return in_own_process(name, *(["--quick"] if quick else []), python=python)


if __name__ == "__main__":
    main()
