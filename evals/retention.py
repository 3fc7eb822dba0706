"""What the clean model knew before: probes of suite "retention", asked and matched like knowledge probes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evals import knowledge
from evals.knowledge import Probe
from evals.scores import Generate, Score

SUITE = "retention"


def evaluate(generate: Generate, probes: str | Path | Sequence[Probe], limit: int | None = None) -> Score:
    """The share of the retention probes still answered."""
    return knowledge.evaluate(generate, probes, suite=SUITE, limit=limit)
