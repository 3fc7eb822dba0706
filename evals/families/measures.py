"""Turn judged items into a score and a claim of non-inferiority: as shares, or as calibration errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evals import intervals, statistics
from evals.families import calibration_error
from evals.families.family import Family, Question
from evals.intervals import Interval
from evals.scores import Item, ModelCalls, Score, share

Row = dict[str, Any]
Pairs = Sequence[tuple[Item, Item]]
"""Items of the same question: after and before."""


@dataclass(frozen=True)
class Measure:
    """How a family's items become numbers; more is better."""

    metric: str
    value: Callable[[Sequence[Item]], float]
    interval: Callable[[Sequence[Item]], Interval]
    details: Callable[[Sequence[Item]], Row]
    claim: Callable[[Pairs, float, float], Row]  # pairs, margin, alpha -> outcome, difference, bounds, ...
    # pairs, alpha, alpha of the smallest detectable difference -> words, difference, interval, p_value, ...
    compare: Callable[[Pairs, float, float], Row]
    can_be_lost: Callable[[float, float], bool]  # score of the standard, margin


def clusters(items: Sequence[Item]) -> list[str]:
    return [item.cluster for item in items]


def _share(items: Sequence[Item]) -> float:
    return share([item.value for item in items])


def _share_interval(items: Sequence[Item]) -> Interval:
    return intervals.clustered_interval([item.passed for item in items], clusters(items))


def _share_claim(pairs: Pairs, margin: float, alpha: float) -> Row:
    after, before = [one.value for one, _ in pairs], [one.value for _, one in pairs]
    found = statistics.non_inferiority(
        after, before, margin=margin, alpha=alpha, clusters=clusters([one for _, one in pairs])
    )
    return asdict(found)


def _share_comparison(pairs: Pairs, alpha: float, corrected: float) -> Row:
    after, before = [one.value for one, _ in pairs], [one.value for _, one in pairs]
    found = asdict(statistics.compare(after, before, alpha, clusters([one for one, _ in pairs]), corrected))
    return found | {"p_value": found["p_mcnemar"]}


def _by_kind(items: Sequence[Item]) -> Row:
    kinds = sorted({item.detail["kind"] for item in items})
    return {
        "by_kind": {kind: _counts([one for one in items if one.detail["kind"] == kind]) for kind in kinds}
    }


def _counts(items: Sequence[Item]) -> Row:
    passed = sum(item.passed for item in items)
    interval = list(_share_interval(items))
    return {"passed": passed, "n": len(items), "value": passed / len(items), "interval": interval}


def _confidences(items: Sequence[Item]) -> tuple[list[float], list[bool]]:
    return [float(item.detail["confidence"]) for item in items], [item.passed for item in items]


def _calibration(items: Sequence[Item]) -> float:
    return 1 - calibration_error.error(*_confidences(items))


def _calibration_interval(items: Sequence[Item]) -> Interval:
    low, high = calibration_error.interval(*_confidences(items), clusters(items))
    return 1 - high, 1 - low


def _calibration_details(items: Sequence[Item]) -> Row:
    confidence, right = _confidences(items)
    low, high = _calibration_interval(items)
    return {
        "calibration_error": 1 - _calibration(items),
        "calibration_error_interval": [1 - high, 1 - low],
        "accuracy": share(right),
        "confidence": sum(confidence) / len(confidence),
        **_by_kind(items),
    }


def _calibration_claim(pairs: Pairs, margin: float, alpha: float) -> Row:
    after, before = [one for one, _ in pairs], [one for _, one in pairs]
    found = calibration_error.non_inferiority(
        _confidences(after), _confidences(before), margin, alpha, clusters(before)
    )
    return asdict(found)


def _calibration_comparison(pairs: Pairs, alpha: float, corrected: float) -> Row:
    after, before = [one for one, _ in pairs], [one for _, one in pairs]
    found = calibration_error.compare(
        _confidences(after), _confidences(before), alpha, clusters(before), corrected
    )
    return asdict(found) | {"p_mcnemar": None}


SHARE = Measure(
    "passed",
    _share,
    _share_interval,
    _by_kind,
    _share_claim,
    _share_comparison,
    can_be_lost=lambda standard, margin: standard > margin,
)
CALIBRATION = Measure(
    "calibration",
    _calibration,
    _calibration_interval,
    _calibration_details,
    _calibration_claim,
    _calibration_comparison,
    can_be_lost=lambda standard, margin: True,
)
MEASURES = {"share": SHARE, "calibration": CALIBRATION}


def measure_of(family: Family | None) -> Measure:
    """Return the measure that a row of the table of families names; shares of any other suite."""
    return MEASURES[family.measure] if family else SHARE


def evaluate(family: Family, model: ModelCalls, questions: list[Question], max_new_tokens: int) -> Score:
    """Ask a model a family's questions, and score the answers."""
    items = family.ask(model, questions, max_new_tokens)
    measure = measure_of(family)
    return Score(
        suite=family.name,
        metric=measure.metric,
        value=measure.value(items),
        n=len(items),
        interval=measure.interval(items),
        items=tuple(items),
        details=measure.details(items),
    )
