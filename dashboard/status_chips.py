"""Show a status, verdict or decision as a word with its sign and colour.

The colours themselves are variables of static/style.css: --good, --bad, --unsure, --live.
"""

from __future__ import annotations

from dashboard.markup import Html, tag
from dashboard.number_format import NONE
from evals.verdict_sentences import TOO_FEW

SIGNS = {
    "accepted": ("✓", "good"),
    "recovered": ("✓", "good"),
    "kept": ("✓", "good"),
    "updated": ("✓", "good"),
    "approve": ("✓", "good"),
    "done": ("✓", "good"),
    "rejected": ("✕", "bad"),
    "not recovered": ("✕", "bad"),
    "lost": ("✕", "bad"),
    "not updated": ("✕", "bad"),
    "reject": ("✕", "bad"),
    "failed": ("✕", "bad"),
    "underpowered": ("?", "unsure"),
    f"rejected: {TOO_FEW}": ("?", "unsure"),
    "needs-work": ("↻", "unsure"),
    "stalled": ("!", "unsure"),
    "stopped": ("◼", "unsure"),
    "running": ("▸", "live"),
}
LABELS = {"approve": "approved", "reject": "rejected", "needs-work": "needs work"}


def chip(word: str | None, label: str | None = None) -> Html:
    """Return a status as a word with its sign and colour; an unknown word is neutral."""
    if word is None:
        return tag("span", NONE, class_="none")
    sign, kind = SIGNS.get(word, ("", "plain"))
    shown = label or LABELS.get(word, word)
    return tag("span", tag("span", sign, aria_hidden="true") if sign else None, shown, class_=f"chip {kind}")
