"""Format what a finished run found as its own command prints it, for `recover resume`."""

from __future__ import annotations

from typing import Any

from pipelines.cli.diagnose import locate_text, retrieval_text
from pipelines.cli.measure import score_table
from pipelines.cli.pilot import pilot_text
from pipelines.cli.table import table

Row = dict[str, Any]


def result_text(kind: str, found: Row) -> str:
    """Format a run's result by its kind; of a training or a merge that is its checkpoint."""
    texts = {
        "drift": _drift_text,
        "eval": lambda found: score_table(found["scores"]),
        "locate": locate_text,
        "pilot": pilot_text,
        "retrieval": retrieval_text,
        "sweep": lambda found: table(found["points"]),
    }
    return texts[kind](found) if kind in texts else str(found.get("checkpoint", f"{found['run']} done"))


def _drift_text(found: Row) -> str:
    from pipelines.drift import drift_text

    return drift_text(found)
