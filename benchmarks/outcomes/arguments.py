"""Parse the arguments that the outcome benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def home_parser(description: str | None, home: Path, page: str) -> argparse.ArgumentParser:
    """Return a parser with --home and --write-docs; it describes itself by the docstring's first line."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    parser.add_argument("--home", type=Path, default=home, help="folder for trainings and results")
    parser.add_argument("--write-docs", action="store_true", help=f"write the results into {page}")
    return parser


def whole_docstring(description: str | None, prog: str | None = None) -> argparse.ArgumentParser:
    """Return a parser that shows the whole docstring as it is written."""
    shown = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=prog, description=description, formatter_class=shown)


def ways_parser(module: str, description: str | None, ways: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with OUT, --ways, --seeds, --small and --write-docs; it shows the whole docstring."""
    parser = whole_docstring(description, prog=f"python -m benchmarks.outcomes.{module}")
    parser.add_argument("out", type=Path, help="folder for the homes; repeat it to resume")
    parser.add_argument("--ways", nargs="+", default=list(ways), choices=list(ways))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument(
        "--small", action="store_true", help="train two steps each: only a check that it runs"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="train nothing: write the results in OUT into the page"
    )
    return parser


def whole_numbers(text: str) -> list[int]:
    """Parse a list such as 1,2,3."""
    return [int(part) for part in text.split(",")]
