"""Say where a confined process, which begins without any folder to import from, finds its modules."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]  # the folder of this project's packages


def import_places() -> list[str]:
    """Return where a process finds these packages and their libraries: never the current folder."""
    here = Path.cwd()
    libraries = [place for place in sys.path if place and Path(place).resolve() != here]
    return list(dict.fromkeys([str(ROOT), *libraries]))
