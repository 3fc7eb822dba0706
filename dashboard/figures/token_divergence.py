"""Draw a rollout token by token, coloured and underlined by the divergence of student and teacher."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from dashboard.markup import Html, tag

LEVELS = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0)  # boundaries between shades, in nats
WORDS = ("the same", "almost the same", "a shade apart", "apart", "far apart", "very far", "another world")
MOST = 400  # most tokens on a page
BAR = 220


def distance(value: float) -> float:
    """Return how far apart a divergence says that the two are; one that is no number is the farthest."""
    return math.inf if math.isnan(value) else abs(value)


def level(value: float) -> int:
    """Return the shade of a divergence in nats, from 0 (agreement) to 6."""
    return sum(distance(value) >= edge for edge in LEVELS)


def rollout(
    pieces: Sequence[str],
    values: Sequence[float] | None,
    chosen: int | None,
    link: Callable[[int], str] | None,
) -> Html:
    """Return the response as HTML; with `link`, each token links to its view."""
    shown = []
    for place, piece in enumerate(pieces[:MOST]):
        shade = f"tok d{level(values[place])}" if values else "tok"
        class_ = f"{shade} chosen" if place == chosen else shade
        said = f"{values[place]:.3f} nats" if values else None
        body = _visible(piece)
        if link is None:
            shown.append(tag("span", body, class_=class_, title=said))
        else:
            current = "true" if place == chosen else None
            shown.append(tag("a", body, class_=class_, title=said, href=link(place), aria_current=current))
        if piece.endswith("\n"):
            shown.append(tag("br"))
    rest = len(pieces) - MOST
    return tag("div", shown, f" … {rest} more tokens" if rest > 0 else None, class_="said tokens")


def _visible(piece: str) -> Any:
    """Replace an invisible token with a sign."""
    return piece.replace("\n", "↵") or "·"


def legend(estimator: str) -> Html:
    edges = ["below 0.01", *(f"from {edge:g}" for edge in LEVELS)]
    shades = [
        tag("span", tag("span", word, class_=f"tok d{place}"), f" {edge}")
        for place, (word, edge) in enumerate(zip(WORDS, edges, strict=True))
    ]
    return tag("p", tag("span", WHAT[estimator], class_="ink"), shades, class_="legend")


WHAT = {
    "exact": "Divergence KL(student ‖ teacher) of each token, in nats:",
    "top-k": "Divergence over the teacher's likeliest entries of each token, in nats:",
    "sampled": "log p(student) − log p(teacher) of each token that was written, in nats:",
    "none": "No teacher scored these tokens; the shade is the student's own surprise, in nats:",
}


def either(piece: str, student: float, teacher: float | None) -> str:
    """Describe the chosen token in a sentence."""
    said = f"The student gave {_quoted(piece)} {probability(student)}"
    return f"{said}, the teacher {probability(teacher)}." if teacher is not None else f"{said}."


def probability(logprob: float) -> str:
    if math.isnan(logprob):
        return "no number"
    share = 100 * math.exp(min(logprob, 0.0))
    return f"{share:.0f} %" if share >= 99.5 or share == 0 else f"{share:.2g} %"


def _quoted(piece: str) -> str:
    return f"“{piece.replace(chr(10), '↵')}”" if piece else "a part of a character"


def top(title: str, entries: Sequence[Sequence[Any]] | None, written: str, kind: str) -> Html:
    """Draw a distribution's most likely tokens as bars; the sampled one is labelled in words."""
    if entries is None:
        return tag("div", tag("h3", title), tag("p", "It sent no distribution of this token.", class_="soft"))
    rows = []
    for piece, logprob in entries:
        share = 0.0 if math.isnan(logprob) else math.exp(min(logprob, 0.0))
        bar = tag(
            "rect", x=0, y=1, width=f"{max(share * BAR, 1):.1f}", height=12, rx=3, class_=f"c-{kind} fill"
        )
        rows.append(
            tag(
                "tr",
                tag("td", tag("bdi", _visible(str(piece))), class_="mono piece"),
                tag("td", tag("svg", bar, viewBox=f"0 0 {BAR} 14", class_="figure part", aria_hidden="true")),
                tag("td", probability(logprob), class_="n"),
                tag("td", "written" if piece == written else "", class_="soft small"),
            )
        )
    return tag("div", tag("h3", title), tag("table", tag("tbody", rows), class_="tops"))
