"""Write what several languages have as Markdown does: code between fences, and tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TICKS = re.compile("`{3,}")


def fenced(code: str, language: str = "") -> str:
    """Return code between fences that it does not hold; nothing for none."""
    if not code.strip():
        return ""
    longest = max(map(len, _TICKS.findall(code)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{code.strip(chr(10))}\n{fence}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, without empty rows, the first one as its head."""
    kept = [[cell.replace("|", "\\|") for cell in cells] for cells in rows if any(cells)]
    lines = [f"| {' | '.join(cells)} |" for cells in kept]
    return [*lines[:1], "|" + "---|" * len(kept[0]), *lines[1:]] if kept else []
