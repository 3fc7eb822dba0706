"""Report one case of the race as a table and a picture, with its conclusions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from benchmarks.ledger import put
from evals.verdict import AXES as VERDICT_AXES

Row = dict[str, Any]
SUITES = ("ifeval", "knowledge", "retention")
WORTH = ("ifeval", "knowledge")
DISTILLATION, SAME = "opd", "not distinguishable"
CORNER = 0.84  # lower limit of the enlarged corner
MARGIN = VERDICT_AXES[0].margin  # non-inferiority margin per axis
NAMES = {
    "hard": "Hard: documents only",
    "mild": "Mild: 30 % of midtraining is self-answered chat",
    "types": "New types: recovery prompts hold half of the types, the other half is scored",
}
HOW = "Means over {seeds} worlds with 95 % intervals (Student's t over worlds)."


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean over seeds and half of its 95 % interval (Student's t); infinite for one seed."""
    x = np.asarray(values, dtype=float)
    if x.size < 2:
        return float(x.mean()), math.inf
    half = float(special.stdtrit(x.size - 1, 0.975)) * x.std(ddof=1) / math.sqrt(x.size)
    return float(x.mean()), float(half)


def by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    return found


def table(rows: Sequence[Row]) -> str:
    """Return one row per method, best behaviour first, below the clean and the midtrained model."""
    methods = by_method(rows)
    heads = (
        "method",
        "tuned to",
        "behaviour",
        "new knowledge",
        "retention",
        "sampled",
        "trained",
        "FLOPs",
        "seconds",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for stage in ("clean", "midtrained"):
        once = list({row["seed"]: row[stage] for row in rows}.values())
        cells = [_cell([row[suite] for row in once]) for suite in SUITES]
        lines.append(f"| *{stage}* | | {' | '.join(cells)} | | | | |")
    order = sorted(methods, key=lambda name: -sum(r["recovered"]["ifeval"] for r in methods[name]))
    return "\n".join(lines + [_line(name, methods[name]) for name in order])


def _line(name: str, rows: Sequence[Row]) -> str:
    scores = [_cell([row["recovered"][suite] for row in rows]) for suite in SUITES]
    stops = sum(bool(row.get("stopped")) for row in rows)
    method = f"{name} (stopped by an alarm in {stops} of {len(rows)})" if stops else name
    tuned = ", ".join(f"{one:g}" for one in sorted({row["tuned"] for row in rows}))
    sampled, trained, seconds = (_cost(rows, key) for key in ("tokens_sampled", "tokens_trained", "seconds"))
    costs = [f"{sampled:,.0f}", f"{trained:,.0f}", _flops(rows), f"{seconds:.0f}"]
    return f"| {' | '.join([method, tuned, *scores, *costs])} |"


def findings(rows: Sequence[Row]) -> list[str]:
    """State the best method, the cheapest equivalent, and where distillation is neither."""
    said = [*_best(rows)]
    if DISTILLATION in by_method(rows):
        none = f"No other method is shown to be as good as `{DISTILLATION}`, as far as these seeds can tell."
        said += [text for _, text in rivals(rows)] or [none]
    return said


def _best(rows: Sequence[Row]) -> list[str]:
    """Return the best by worth, and the cheapest of those not significantly worse, paired by world."""
    methods = by_method(rows)
    best = max(methods, key=lambda name: float(np.mean([worth(row) for row in methods[name]])))
    near = [best, *(name for name in methods if _against(methods[name], methods[best], worth).words == SAME)]
    cheap = min(near, key=lambda name: _cost(methods[name]))
    shown = {name: _cell([worth(row) for row in methods[name]]) for name in (best, cheap)}
    return [
        f"Best by worth: `{best}`, {shown[best]}, at {_flops(methods[best])} FLOPs.",
        f"Best by cost, among those not distinguishable from it in worth: `{cheap}`, {shown[cheap]}, at "
        f"{_flops(methods[cheap])} FLOPs.",
    ]


def rivals(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return (method, reason) of those worth more than distillation, or non-inferior and cheaper or
    better."""
    methods, found = by_method(rows), []
    for name, others in methods.items():
        mine = methods.get(DISTILLATION, [])
        if name == DISTILLATION or len(_pairs(others, mine)) < 2:
            continue
        seen = [_against(others, mine, partial(_recovered, axis)) for axis in WORTH]
        cost = _cost(others) / max(_cost(mine), 1e-9)
        gains = cost < 1 or any(one.words == "better" for one in seen)
        worth_more = _against(others, mine, worth).words == "better"
        if worth_more or (all(one.not_inferior for one in seen) and gains):
            text = (
                f"`{name}` is {seen[0]} in behaviour and {seen[1]} in knowledge against `{DISTILLATION}`, at "
                f"{cost:.2f} of its FLOPs: distillation is not the best choice here."
            )
            found.append((name, text))
    return found


def _recovered(axis: str, row: Row) -> float:
    return float(row["recovered"][axis])


def headline(rows: Sequence[Row]) -> str:
    """State in one sentence whether distillation is the best choice."""
    names = [f"`{name}`" for name, _ in rivals(rows)]
    if not names:
        return f"**No other method here is shown to be as good as distillation (`{DISTILLATION}`).**"
    return (
        f"**Distillation (`{DISTILLATION}`) is not the best choice here, but {', '.join(names)}:** worth "
        f"more, or within {100 * MARGIN:.0f} points on both axes and cheaper or better; each at 95 %, "
        "uncorrected for their number."
    )


def worth(row: Row) -> float:
    """Weigh behaviour and new knowledge equally."""
    return float(sum(row["recovered"][axis] for axis in WORTH))


def _pairs(ones: Sequence[Row], others: Sequence[Row]) -> list[tuple[Row, Row]]:
    by_seed = {row["seed"]: row for row in others}
    return [(row, by_seed[row["seed"]]) for row in ones if row["seed"] in by_seed]


def _cost(rows: Sequence[Row], name: str = "flops") -> float:
    return float(np.median([row["cost"][name] for row in rows]))


def _flops(rows: Sequence[Row]) -> str:
    return f"{cost:.1e}" if (cost := _cost(rows)) else "0"


@dataclass(frozen=True)
class Difference:
    """The difference of two methods over their common worlds, with half of its 95 % interval."""

    mean: float
    half: float

    @property
    def words(self) -> str:
        if abs(self.mean) <= self.half:
            return SAME
        return "better" if self.mean > 0 else "worse"

    @property
    def not_inferior(self) -> bool:
        return self.mean - self.half > -MARGIN

    def __str__(self) -> str:
        return f"{self.words} ({self.mean:+.3f} ± {self.half:.3f})"


def _against(ones: Sequence[Row], others: Sequence[Row], number: Callable[[Row], float]) -> Difference:
    return Difference(*interval([number(one) - number(other) for one, other in _pairs(ones, others)]))


def _cell(values: Sequence[float]) -> str:
    mean, half = interval(values)
    return f"{mean:.3f}" if math.isinf(half) else f"{mean:.3f} ± {half:.3f}"


def picture(rows: Sequence[Row], path: Path) -> None:
    """Draw new knowledge against behaviour with 95 % intervals: the whole plane, and its best corner."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    for axes, corner in zip(figure.subplots(1, 2), (False, True), strict=True):
        _plane(axes, by_method(rows), corner)
    figure.savefig(path, dpi=110)


def _plane(axes: Any, methods: dict[str, list[Row]], corner: bool) -> None:
    """Draw the whole plane or its best corner; label a method in the smallest panel that contains it."""
    lowest = CORNER if corner else -0.03
    for number, (name, found) in enumerate(methods.items()):
        x, y = (interval([row["recovered"][axis] for row in found]) for axis in ("knowledge", "ifeval"))
        bars = [0.0 if math.isinf(half) else half for half in (x[1], y[1])]
        colour = f"C{number}" if number < 10 else "black"
        axes.errorbar(x[0], y[0], xerr=bars[0], yerr=bars[1], fmt="o", color=colour, capsize=2)
        if corner == (min(x[0], y[0]) >= CORNER):
            below = number % 2  # alternate the sides of neighbouring labels
            place = {"xytext": (4, -9 if below else 5), "textcoords": "offset points"}
            axes.annotate(name, (x[0], y[0]), fontsize=8, color=colour, **place)
    axes.set(xlabel="new knowledge", ylabel="instruction following")
    edge = 1 + (1 - lowest) * 0.03
    axes.set(xlim=(lowest, edge), ylim=(lowest, edge))


def section(rows: Sequence[Row], plot: str) -> str:
    seeds = len({row["seed"] for row in rows})
    said = "\n".join(f"- {line}" for line in findings(rows))
    shown = f"![new knowledge against behaviour]({plot})"
    return "\n\n".join([headline(rows), HOW.format(seeds=seeds), shown, table(rows), said])


def write_page(rows: Sequence[Row], page: Path) -> None:
    """Replace each measured case between its marks, with a picture beside the page; keep the others."""
    page.parent.mkdir(parents=True, exist_ok=True)
    for case, title in NAMES.items():
        mine = [row for row in rows if row["case"] == case]
        if mine:
            plot = page.parent / f"race-{case}.png"
            picture(mine, plot)
            _put(page, case, title, section(mine, plot.name))


def _put(page: Path, case: str, title: str, text: str) -> None:
    """Replace a case in the page, or append it below a new heading."""
    whole = page.read_text(encoding="utf-8") if page.is_file() else "# Results\n"
    mark = f"race {case}"
    if f"<!-- {mark} -->" not in whole:
        whole = f"{whole.rstrip()}\n\n## {title}\n\n<!-- {mark} -->\n<!-- end {mark} -->\n"
        page.write_text(whole, encoding="utf-8")
    put(page, mark, text)
