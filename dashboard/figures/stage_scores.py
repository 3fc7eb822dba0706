"""Draw one cycle's scores by suite: a marker per stage with its 95 % interval, on one axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.figures.axes import interval, label, nothing, percent_tick, rule, scores_and_bounds, svg
from dashboard.figures.markers import STAGE_STYLES, marker
from dashboard.figures.scales import Scale
from dashboard.markup import Html, join, tag
from dashboard.number_format import bounds, share
from db.cycle_names import STAGES
from evals.ifeval import FURTHER, IFEVAL
from evals.probes import KNOWLEDGE, RETENTION, UPDATES
from evals.scores import prompts_in_words

NAMES = {
    IFEVAL: "behaviour (IFEval)",
    FURTHER: "further prompts",
    KNOWLEDGE: "knowledge",
    RETENTION: "retention",
    UPDATES: "changed facts",
}
WIDTH, LINE, NAME, PAD = 640, 22, 24, 14
START, END = 8.0, 462.0  # of the axis


def stage_scores(scores: Mapping[str, Mapping[str, Any]], samples: Mapping[str, int]) -> Html:
    """Draw a block per suite with a line per stage; the dashed line is the clean model's score.

    `samples` are the answers to each prompt, by suite."""
    suites = list(dict.fromkeys(name for name in (*NAMES, *scores) if name in scores))
    if not suites:
        return nothing("No score yet.")
    x = Scale.from_zero([one for name in suites for one in scores_and_bounds(scores[name])], START, END)
    block = NAME + len(STAGES) * LINE + PAD
    height = len(suites) * block + 24
    foot = [label(x(tick), height - 6, f"{percent_tick(tick)} %", "middle") for tick in x.ticks()]
    blocks = [
        _suite(name, scores[name], samples.get(name, 1), index * block + 6, x)
        for index, name in enumerate(suites)
    ]
    words = "Scores by suite and stage"
    return svg(blocks, foot, label=words, width=WIDTH, height=height, class_="stages", grouped=True)


def _suite(name: str, suite: Mapping[str, Any], samples: int, top: float, x: Scale) -> Html:
    count = tag("tspan", f" · {prompts_in_words(suite.get('n') or 0, samples)}")
    words = tag("text", tag("tspan", NAMES.get(name, name)[:22], class_="strong"), count, x=0, y=top + 14)
    top += NAME
    bottom = top + len(STAGES) * LINE
    clean = suite.get("clean")
    return join(
        [rule(x(tick), top, x(tick), bottom) for tick in x.ticks()],
        None if clean is None else rule(x(clean), top, x(clean), bottom, "rule"),
        words,
        [_stage(stage, suite, top + (index + 0.5) * LINE, x) for index, stage in enumerate(STAGES)],
    )


def _stage(stage: str, suite: Mapping[str, Any], y: float, x: Scale) -> Html:
    value, ends = suite.get(stage), (suite.get("intervals") or {}).get(stage)
    if value is None:
        return label(END + 12, y + 4, f"– {stage}")
    style = STAGE_STYLES[stage]
    known = bounds(ends, " to ")
    around = f", 95 % interval {known}" if known else ""
    words = tag("text", tag("tspan", share(value), class_="strong"), f" {stage}", x=END + 12, y=y + 4)
    title = tag("title", f"{stage}: {share(value)} %{around}")
    return tag("g", title, interval(ends, y, x, style, upright=False), marker(style, x(value), y), words)
