"""Did it recover, and at what price? Three paired claims, each against the checkpoint that sets the standard.

behaviour: IFEval against the clean model ("recovered", "not recovered", "underpowered"); knowledge: of the
new documents, against the midtrained model ("kept", "lost", "underpowered"); retention: of what the clean
model knew, against it (the same words). Its margin is 0.10, so that a clean model near 1 keeps at least 0.90
of it; the other two take 0.03. An axis that was not measured is None, never "kept".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evals.scores import Item, Score, cluster
from evals.statistics import NonInferiority, non_inferiority
from recovery.errors import InputError


@dataclass(frozen=True)
class Axis:
    """One claim: the suite it is judged on, the stage it is judged against, its margin and its words."""

    name: str
    suite: str
    reference: str
    margin: float
    passed: str
    failed: str

    def words(self, outcome: str) -> str:
        return {"passed": self.passed, "failed": self.failed}.get(outcome, outcome)


AXES = (
    Axis("behaviour", "ifeval", "clean", 0.03, "recovered", "not recovered"),
    Axis("knowledge", "knowledge", "midtrained", 0.03, "kept", "lost"),
    Axis("retention", "retention", "clean", 0.10, "kept", "lost"),
)

Stages = Mapping[str, Score | Sequence[Item]]
"""One suite's scores by stage: "clean", "midtrained", "recovered"."""


def verdict(
    suites: Mapping[str, Stages], margins: Mapping[str, float] | None = None, alpha: float = 0.05
) -> dict[str, Any]:
    """contract.md's verdict, with every axis's counts under `axes`. `margins`: axis name -> margin."""
    unknown = set(margins or {}) - {axis.name for axis in AXES}
    if unknown:
        raise InputError(f"margin for {min(unknown)!r}: one of {', '.join(a.name for a in AXES)} is expected")
    words: dict[str, Any] = {}
    axes: dict[str, dict[str, Any]] = {}
    for axis in AXES:
        result = _judge(axis, suites.get(axis.suite, {}), (margins or {}).get(axis.name, axis.margin), alpha)
        words[axis.name] = axis.words(result.outcome) if result else None
        if result:
            axes[axis.name] = _row(axis, words[axis.name], result)
    behaviour = axes.get("behaviour", {})
    margin = behaviour.get("margin", (margins or {}).get("behaviour", AXES[0].margin))
    return words | {"behaviour_lower_bound": behaviour.get("lower_bound"), "margin": margin, "axes": axes}


def accepted(result: Mapping[str, Any]) -> bool:
    """May the recovered checkpoint become the current one? Behaviour shown, nothing lost or in doubt."""
    rest = [result[axis.name] for axis in AXES[1:]]
    return result["behaviour"] == AXES[0].passed and all(words in (None, "kept") for words in rest)


def summary(result: Mapping[str, Any]) -> list[str]:
    """One line an axis, in words."""
    return [_sentence(axis) for axis in result["axes"].values()]


def pairs(after: Sequence[Item], before: Sequence[Item], suite: str = "suite") -> list[tuple[Item, Item]]:
    """The items of two checkpoints paired by key, in the order of `before`."""
    found = {item.key: item for item in after}
    missing = [item.key for item in before if item.key not in found]
    if missing or len(found) != len(before):
        raise InputError(
            f"{suite}: {len(found)} items against {len(before)}, {len(missing)} without a partner: "
            "evaluate both checkpoints on the same prompts"
        )
    return [(found[item.key], item) for item in before]


def _judge(axis: Axis, stages: Stages, margin: float, alpha: float) -> NonInferiority | None:
    if "recovered" not in stages or axis.reference not in stages:
        return None
    both = pairs(_items(stages["recovered"]), _items(stages[axis.reference]), axis.suite)
    return non_inferiority(
        [after.passed for after, _ in both],
        [before.passed for _, before in both],
        margin=margin,
        alpha=alpha,
        clusters=[cluster(before.key, before.detail) for _, before in both],
    )


def _items(stage: Score | Sequence[Item]) -> Sequence[Item]:
    return stage.items if isinstance(stage, Score) else stage


def _row(axis: Axis, words: str, result: NonInferiority) -> dict[str, Any]:
    row = asdict(result) | {"bootstrap": list(result.bootstrap)}
    return row | {"axis": axis.name, "outcome": words, "suite": axis.suite, "reference": axis.reference}


def _sentence(row: Mapping[str, Any]) -> str:
    line = (
        f"{row['axis']}: {row['outcome']} ({row['difference']:+.1%} against {row['reference']}, "
        f"lower bound {row['lower_bound']:+.1%}, margin -{row['margin']:.0%}; "
        f"{row['gained']} gained, {row['lost']} lost of {row['n']}, McNemar p = {row['p_mcnemar']:.2g})"
    )
    return line + (f"; it would take {row['needed_n']} prompts" if row["outcome"] == "underpowered" else "")
