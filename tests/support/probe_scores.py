"""Ask probes in every way, as a suite does, with one function in place of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evals import knowledge
from evals.knowledge import ProbeQuestions
from evals.probes import KNOWLEDGE, Probe, load_probes
from evals.scores import Score


def probe_scores(
    answer: knowledge.Answer,
    probes: Path | Sequence[Probe],
    suite: str = KNOWLEDGE,
    limit: int | None = None,
    **asked: Any,
) -> dict[str, Score]:
    """Return the scores by metric; `asked` are further fields of ProbeQuestions."""
    chosen = load_probes(probes, suite) if isinstance(probes, Path) else probes
    ways = ProbeQuestions(chosen, **asked).ways(limit)
    return {way.metric: knowledge.evaluate(way, suite, answer) for way in ways}
