"""Draw one cycle's scores by suite: a marker per stage with its 95 % interval, on one axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.figures.axes import STAGES, label, line, linear, mark
from dashboard.html import Html, join, tag
from dashboard.words import share

NAMES = {
    "ifeval": "instruction following",
    "knowledge": "new knowledge",
    "retention": "old knowledge",
    "updates": "changed facts",
}
WIDTH, LANE, NAME, PAD = 640, 22, 24, 14
LEFT, RIGHT = 8.0, 478.0
X, TICKS = linear(0, 1, LEFT, RIGHT), (0, 0.25, 0.5, 0.75, 1)


def stages(scores: Mapping[str, Mapping[str, Any]]) -> Html:
    """Draw a block per suite with a line per stage; the dashed line is the clean model's score."""
    suites = [name for name in (*NAMES, *scores) if name in scores]
    suites = list(dict.fromkeys(suites))
    if not suites:
        return tag("p", "No score yet.", class_="soft")
    block = NAME + len(STAGES) * LANE + PAD
    height = len(suites) * block + 24
    foot = [label(X(t), height - 6, f"{100 * t:.0f}", "middle") for t in TICKS]
    blocks = [_suite(name, scores[name], index * block + 6) for index, name in enumerate(suites)]
    title = tag("title", "Scores by suite and stage")
    return tag(
        "svg", title, blocks, foot, viewBox=f"0 0 {WIDTH} {height}", class_="figure stages", role="img"
    )


def _suite(name: str, suite: Mapping[str, Any], top: float) -> Html:
    asked = tag("tspan", f" · {suite.get('n') or 0:,} prompts")
    words = tag("text", tag("tspan", NAMES.get(name, name)[:22], class_="strong"), asked, x=0, y=top + 14)
    top += NAME
    grid = [line(X(t), top, X(t), top + 3 * LANE, "axis") for t in TICKS]
    clean = suite.get("clean")
    rule = None if clean is None else line(X(clean), top, X(clean), top + 3 * LANE, "rule")
    lanes = [_lane(stage, suite, top + (index + 0.5) * LANE) for index, stage in enumerate(STAGES)]
    return join(grid, rule, words, *lanes)


def _lane(stage: str, suite: Mapping[str, Any], y: float) -> Html:
    value, both = suite.get(stage), (suite.get("intervals") or {}).get(stage)
    if value is None:
        return label(RIGHT + 12, y + 4, f"– {stage}")
    words = tag("text", tag("tspan", share(value), class_="strong"), f" {stage}", x=RIGHT + 12, y=y + 4)
    bar, interval = None, ""
    if both and None not in both:
        bar = line(X(both[0]), y, X(both[1]), y, f"bar c-{stage} stroke")
        interval = f", 95 % interval {share(both[0])} to {share(both[1])}"
    title = tag("title", f"{stage}: {share(value)} %{interval}")
    return tag("g", title, bar, mark(stage, X(value), y), words)
