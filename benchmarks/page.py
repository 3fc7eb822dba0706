"""Write docs/benchmarks.md: a section for each benchmark, and what it holds beside them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import Report
from benchmarks.ledger import put

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def write(reports: Sequence[Report], page: Path = PAGE) -> None:
    """Replace the sections of these benchmarks, or append new ones; keep all others."""
    head, *sections = page.read_text(encoding="utf-8").split("\n## ")
    there = {section.split("\n", 1)[0]: section.strip() for section in sections}
    found = {report.name: _dated(report).removeprefix("## ") for report in reports}
    page.write_text("\n## ".join([head, *(f"{part}\n" for part in (there | found).values())]), "utf-8")


def put_part(mark: str, report: Report, page: Path = PAGE) -> None:
    """Write a report between two marks, as a part of a section."""
    put(page, mark, f"#{_dated(report)}")


def _dated(report: Report) -> str:
    return f"{report.as_markdown()}\n\nMeasured on {datetime.date.today().isoformat()}."
