"""What was learned: whether the recovered model knows more of the documents than the clean one did.

It is no claim of the verdict, whose knowledge is measured against the midtrained model: that may have kept
what was hardly anything. No cycle is rejected for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evals.scores import Item

WORDS = {
    "better": "learned",
    "worse": "known less than before",
    "not distinguishable": "not shown to be learned",
}


def learned(both: Sequence[tuple[Item, Item]]) -> dict[str, Any]:
    """Compare answers about the documents, the recovered model's with the clean model's, pair by pair."""
    from evals.statistics import compare

    found = compare(
        [after.passed for after, _ in both],
        [before.passed for _, before in both],
        clusters=[before.cluster for _, before in both],
    )
    return {"words": WORDS[found.words], "difference": found.difference, "interval": list(found.interval)}


def sentence(found: Mapping[str, Any]) -> str:
    """State what was learned: learned (+11.3 points against clean, +9.1 to +13.7)."""
    low, high = (f"{100 * bound:+.1f}" for bound in found["interval"])
    return f"{found['words']} ({100 * found['difference']:+.1f} points against clean, {low} to {high})"
