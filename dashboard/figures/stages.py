"""The scores of one cycle, suite by suite: three marks with their 95 % intervals on one axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.figures.axes import STAGES, label, line, linear, mark
from dashboard.html import Html, join, tag
from dashboard.words import share

NAMES = {"ifeval": "instruction following", "knowledge": "new knowledge", "retention": "old knowledge"}
WIDTH, LANE, PAD = 640, 22, 18
LEFT, RIGHT = 166.0, 520.0
X = linear(0, 1, LEFT, RIGHT)


def stages(scores: Mapping[str, Mapping[str, Any]]) -> Html:
    """A block a suite with a lane a stage; the dashed line is the clean model's score."""
    suites = [name for name in (*NAMES, *scores) if name in scores]
    suites = list(dict.fromkeys(suites))
    if not suites:
        return tag("p", "No score yet.", class_="soft")
    block = len(STAGES) * LANE + PAD
    height = len(suites) * block + 24
    grid = [
        join(line(X(t), 4, X(t), height - 24, "axis"), label(X(t), height - 6, f"{100 * t:.0f}", "middle"))
        for t in (0, 0.25, 0.5, 0.75, 1)
    ]
    blocks = [_suite(name, scores[name], index * block + 6) for index, name in enumerate(suites)]
    title = tag("title", "Scores by suite and stage")
    return tag(
        "svg", title, grid, blocks, viewBox=f"0 0 {WIDTH} {height}", class_="figure stages", role="img"
    )


def _suite(name: str, suite: Mapping[str, Any], top: float) -> Html:
    words = label(0, top + LANE * 1.5 + 4, NAMES.get(name, name)[:22], class_="strong")
    asked = label(0, top + LANE * 2.5 + 2, f"{suite.get('n') or 0:,} prompts")
    clean = suite.get("clean")
    rule = None if clean is None else line(X(clean), top, X(clean), top + 3 * LANE, "rule")
    lanes = [_lane(stage, suite, top + (index + 0.5) * LANE) for index, stage in enumerate(STAGES)]
    return join(rule, words, asked, *lanes)


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
