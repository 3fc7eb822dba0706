"""The race's rows as one table and one picture, with what may be said of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

Row = dict[str, Any]
BEGIN, END = "<!-- race -->", "<!-- /race -->"
AXES = ("ifeval", "knowledge", "retention")
DISTILLATION = "opd"
NAMES = {"hard": "Hard: documents only", "mild": "Mild: 30 % of midtraining is self-answered chat",
         "types": "New types: recovery prompts hold half of the types, the other half is scored"}  # fmt: skip


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds and half of its 95 % interval (Student's t); infinite for one seed."""
    x = np.asarray(values, dtype=float)
    if x.size < 2:
        return float(x.mean()), math.inf
    half = float(special.stdtrit(x.size - 1, 0.975)) * x.std(ddof=1) / math.sqrt(x.size)
    return float(x.mean()), float(half)


def by_method(rows: Sequence[Row], case: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["case"] == case:
            found.setdefault(row["method"], []).append(row)
    return found


def table(rows: Sequence[Row], case: str) -> str:
    """Methods down, the best in behaviour first; the clean model and the midtrained one above them."""
    methods = by_method(rows, case)
    heads = ("method", "behaviour", "new knowledge", "retention", "sampled", "trained", "FLOPs", "seconds")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for stage in ("clean", "midtrained"):
        once = list({row["seed"]: row[stage] for row in rows if row["case"] == case}.values())
        cells = [_cell([row[axis] for row in once]) for axis in AXES]
        lines.append(f"| *{stage}* | {' | '.join(cells)} | | | | |")
    order = sorted(methods, key=lambda name: -sum(r["recovered"]["ifeval"] for r in methods[name]))
    for name in order:
        scores = [_cell([row["recovered"][axis] for row in methods[name]]) for axis in AXES]
        costs = [float(np.mean([row["cost"][key] for row in methods[name]]))
                 for key in ("tokens_sampled", "tokens_trained", "flops", "seconds")]  # fmt: skip
        flops = f"{costs[2]:.1e}" if costs[2] else "0"
        shown = [f"{costs[0]:,.0f}", f"{costs[1]:,.0f}", flops, f"{costs[3]:.0f}"]
        lines.append(f"| {name} | {' | '.join([*scores, *shown])} |")
    return "\n".join(lines)


def findings(rows: Sequence[Row], case: str) -> list[str]:
    """Against distillation, paired by seed: who is as good or better on both axes, and cheaper."""
    methods = by_method(rows, case)
    if DISTILLATION not in methods:
        return []
    mine = {row["seed"]: row for row in methods[DISTILLATION]}
    found = []
    for name, others in methods.items():
        pairs = [(row, mine[row["seed"]]) for row in others if row["seed"] in mine]
        if name == DISTILLATION or len(pairs) < 2:
            continue
        words = {axis: _words([one["recovered"][axis] - other["recovered"][axis] for one, other in pairs])
                 for axis in ("ifeval", "knowledge")}  # fmt: skip
        mine_s, theirs_s = (sum(pair[i]["cost"]["seconds"] for pair in pairs) for i in (1, 0))
        cost = theirs_s / max(mine_s, 1e-9)
        if "worse" not in words.values() and (cost < 1 or "better" in words.values()):
            found.append(
                f"`{name}` is {words['ifeval']} in behaviour and {words['knowledge']} in knowledge against "
                f"`{DISTILLATION}`, at {cost:.2f} of its seconds: distillation is not the best choice here."
            )
    none = f"No other method is as good as `{DISTILLATION}` on both axes, as far as these seeds can tell."
    return found or [none]


def _words(differences: Sequence[float]) -> str:
    mean, half = interval(differences)
    if abs(mean) <= half:
        return "not distinguishable"
    return "better" if mean > 0 else "worse"


def _cell(values: Sequence[float]) -> str:
    mean, half = interval(values)
    return f"{mean:.3f}" if math.isinf(half) else f"{mean:.3f} ± {half:.3f}"


def picture(rows: Sequence[Row], path: Path) -> None:
    """New knowledge against behaviour, a panel for each case, bars of 95 % over seeds."""
    from matplotlib.figure import Figure

    cases = [case for case in NAMES if any(row["case"] == case for row in rows)]
    figure = Figure(figsize=(5 * len(cases), 4.4), layout="constrained")
    for number, case in enumerate(cases, 1):
        axes = figure.add_subplot(1, len(cases), number)
        for name, found in by_method(rows, case).items():
            x, y = (interval([row["recovered"][axis] for row in found]) for axis in ("knowledge", "ifeval"))
            bars = [0.0 if math.isinf(half) else half for half in (x[1], y[1])]
            axes.errorbar(x[0], y[0], xerr=bars[0], yerr=bars[1], fmt="o", label=name, capsize=2)
            axes.annotate(name, (x[0], y[0]), fontsize=7, xytext=(4, 4), textcoords="offset points")
        axes.set(xlabel="new knowledge", ylabel="instruction following", title=case)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    figure.savefig(path, dpi=130)


def section(rows: Sequence[Row], plot: str) -> str:
    seeds = sorted({row["seed"] for row in rows})
    parts = [f"Means over {len(seeds)} worlds with 95 % intervals (Student's t over worlds). Regenerated by "
             "`python -m benchmarks.race`; how budgets are made equal is said at the top of "
             f"`benchmarks/race.py`.\n\n![new knowledge against behaviour]({plot})"]  # fmt: skip
    for case, title in NAMES.items():
        if any(row["case"] == case for row in rows):
            said = "\n".join(f"- {line}" for line in findings(rows, case))
            parts += [f"### {title}", table(rows, case), said]
    return "\n\n".join(parts)


def write_page(rows: Sequence[Row], page: Path) -> None:
    """Puts the section between its marks, and the picture beside the page."""
    plot = page.parent / "race.png"
    page.parent.mkdir(parents=True, exist_ok=True)
    picture(rows, plot)
    text = page.read_text(encoding="utf-8") if page.is_file() else "# Results\n"
    if BEGIN not in text:
        text = f"{text.rstrip()}\n\n## The race\n\n{BEGIN}\n{END}\n"
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{section(rows, plot.name)}\n{END}{tail}", encoding="utf-8")
