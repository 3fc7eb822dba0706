"""Draw knowledge lost against behaviour won, for opd and for opd towards a near teacher.

    python -m benchmarks.outcomes.pareto --seeds 1,2,3,4,5 [--write-docs]

Both start from the same midtrained model. Each has one dial with equally many settings (opd: its learning
rate; opd-near: its KL budget), and each setting is trained for several lengths. Knowledge is the
probability of the answers that complete the documents' sentences, which moves before any greedy answer does.
A method's loss at a level is the least that any of its settings lost that won at least so much of the
behaviour that midtraining took; the difference is paired by seed. One line per training; a rerun resumes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.ledger import Clock, Ledger, Line, markdown, mean, put
from benchmarks.outcomes.arguments import home_parser, whole_numbers
from benchmarks.outcomes.race.report import interval

if TYPE_CHECKING:
    from benchmarks.outcomes.lab import Lab

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
HOME = Path(".recover") / "benchmarks"
NAMED_BY = ("seed", "method", "dial", "steps", "limit", "version")
VERSION = 1  # of the settings below; increase it to repeat every line
LEVELS = (0.5, 0.75, 0.9)  # of the behaviour that midtraining took
STEPS = (5, 10, 20)
MEASURED = ("behaviour", "knowledge", "retention", "recall")


@dataclass(frozen=True)
class Arm:
    """One method, and the settings of the one dial that trades behaviour for knowledge."""

    method: str
    label: str
    dial: str
    values: tuple[float, ...]

    def training(self, value: float) -> tuple[dict[str, Any], float]:
        """Return the method's settings, and the factor of its learning rate."""
        if self.dial == "learning rate":
            return {"method": self.method}, value
        return {"method": self.method, "dials": {self.dial: value}}, 1.0


OPD = Arm("opd", "opd", "learning rate", (0.25, 0.5, 1.0, 2.0))
NEAR = Arm("opd-near", "opd-near", "kl_budget", (0.003, 0.03, 0.3, 3.0))
ARMS = (OPD, NEAR)
PRECISE = (
    *(arm.label for arm in ARMS),
    "knowledge lost",
    "recall",
)  # columns of differences below a hundredth


def main() -> None:
    asked = _arguments()
    ledger = Ledger(asked.home / "pareto.jsonl", NAMED_BY)
    for seed in asked.seeds:
        _run_seed(ledger, seed, asked)
    lines = [line for line in ledger.lines.values() if line["seed"] in asked.seeds and _current(line, asked)]
    tables = [markdown(map(_precise, rows)) for rows in (levels(lines), points(lines))]
    text = "\n\n".join([_said(asked), *tables])
    print(text)
    picture(lines, asked.home / "pareto.png")
    if asked.write_docs:
        picture(lines, PAGE.parent / "pareto.png")
        shown = "![knowledge lost against behaviour won](pareto.png)"
        put(PAGE, "pareto", f"{shown}\n\n{text}")


def _arguments() -> argparse.Namespace:
    parser = home_parser(__doc__, HOME, "docs/methods.md")
    parser.add_argument("--seeds", type=whole_numbers, default=[1, 2, 3, 4, 5], help="worlds, as in 1,2,3")
    parser.add_argument("--steps", type=whole_numbers, default=list(STEPS), help="lengths of each training")
    parser.add_argument("--limit", type=int, default=300, help="items asked of each suite")
    parser.add_argument("--settings", type=int, help="so many of each dial's settings (default: all)")
    return parser.parse_args()


def _said(asked: argparse.Namespace) -> str:
    seeds = ", ".join(map(str, asked.seeds))
    return (
        f"Seeds {seeds}; {asked.limit} items of each suite; lengths {', '.join(map(str, asked.steps))} steps."
    )


def _precise(row: dict[str, Any]) -> dict[str, Any]:
    """Write what is lost with the digits that its differences need."""
    return row | {name: f"{row[name]:.4f}" for name in PRECISE if isinstance(row.get(name), float)}


def _current(line: Line, asked: argparse.Namespace) -> bool:
    return bool(
        line["version"] == VERSION and line["limit"] == asked.limit and line["steps"] in (0, *asked.steps)
    )


# Training --------------------------------------------------------------------------------------------------


def _run_seed(ledger: Ledger, seed: int, asked: argparse.Namespace) -> None:
    """Add this seed's missing lines; `steps` 0 are the clean and the midtrained model."""
    wanted = [
        (arm, value, steps)
        for arm in ARMS
        for value in arm.values[: asked.settings]
        for steps in asked.steps
        if not ledger.get(**_name(seed, arm.method, value, steps, asked.limit))
    ]
    ends = [
        name for name in ("clean", "midtrained") if not ledger.get(**_name(seed, name, 0.0, 0, asked.limit))
    ]
    if not wanted and not ends:
        return
    from benchmarks.outcomes.lab import RECOVERY_RATE, Lab  # imports torch, which --help does not need

    lab, clock = Lab(asked.home, seed, asked.limit), Clock(len(wanted) + len(ends))
    with lab.ws:
        for name in ends:
            clock.say(f"seed {seed}: {name}")
            found = scores(lab, str(getattr(lab, name)))
            ledger.add({**_name(seed, name, 0.0, 0, asked.limit), **found})
            clock.done += 1
        for arm, value, steps in wanted:
            clock.say(f"seed {seed}: {arm.label}, {arm.dial} {value:g}, {steps} steps")
            settings, factor = arm.training(value)
            settings |= {"steps": steps, "prompts": lab.file("prompts.jsonl")}
            made = lab.train(f"pareto {arm.method}", lab.midtrained, settings, RECOVERY_RATE * factor)
            found = scores(lab, made["checkpoint"])
            share = made["metrics"].get("teacher_share")
            ledger.add(
                {**_name(seed, arm.method, value, steps, asked.limit), **found, "teacher_share": share}
            )
            clock.done += 1


def _name(seed: int, method: str, dial: float, steps: int, limit: int) -> dict[str, Any]:
    named = {"seed": seed, "method": method, "dial": dial, "steps": steps}
    return {**named, "limit": limit, "version": VERSION}


def scores(lab: Lab, checkpoint: str) -> dict[str, float]:
    """Return behaviour, what is known in chat, and the probability of the documents' answers."""
    return lab.measure(checkpoint, ("behaviour", "knowledge", "retention")) | {
        "recall": recall(lab, checkpoint)
    }


def recall(lab: Lab, checkpoint: str) -> float:
    """Return the mean probability of the answers that complete the documents' sentences."""
    from recovery.teachers.likelihood import continuation_logprobs, reader, split_ids

    model = lab.ws.load(lab.ws.checkpoint(checkpoint))
    text = (lab.world / "probes.jsonl").read_text(encoding="utf-8")
    rows = [row for row in map(json.loads, text.splitlines()) if row["kind"] == "cloze"][: lab.limit]
    pairs = [split_ids(model, row["prompt"], f" {row['answer']}") for row in rows]
    found = continuation_logprobs(reader(model), pairs, model.pad_id)
    return sum(map(math.exp, found)) / len(found)


# Results ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One training of one seed: the share of lost behaviour that it won, and the knowledge that it cost."""

    seed: int
    method: str
    dial: float
    steps: int
    won: float
    lost: float


def measured(lines: Sequence[Line]) -> list[Point]:
    """Return every training beside its seed's clean and midtrained model."""
    ends = {(line["seed"], line["method"]): line for line in lines if line["steps"] == 0}
    found = []
    for line in lines:
        if line["steps"] == 0:
            continue
        clean, start = ends[line["seed"], "clean"], ends[line["seed"], "midtrained"]
        gap = clean["behaviour"] - start["behaviour"]
        if gap <= 0:
            continue  # midtraining took nothing in this world
        won, lost = (line["behaviour"] - start["behaviour"]) / gap, start["recall"] - line["recall"]
        found.append(Point(line["seed"], line["method"], line["dial"], line["steps"], won, lost))
    return found


def least_lost(points: Sequence[Point], level: float) -> float | None:
    """Return the least knowledge lost by a training that won at least so much; None where none did."""
    return min((point.lost for point in points if point.won >= level), default=None)


def levels(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Compare the two methods at each level of behaviour, paired by seed."""
    found, rows = measured(lines), []
    for level in LEVELS:
        pairs = []
        for seed in sorted({point.seed for point in found}):
            mine = [point for point in found if point.seed == seed]
            opd, near = (
                least_lost([point for point in mine if point.method == arm.method], level) for arm in ARMS
            )
            if opd is not None and near is not None:
                pairs.append((opd, near))
        rows.append(_level(level, pairs))
    return rows


def _level(level: float, pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"behaviour won": f"{level:.0%} or more", "seeds": len(pairs)}
    row |= {arm.label: mean(pair[place] for pair in pairs) for place, arm in enumerate(ARMS)}
    if not pairs:
        return row | {"near - opd": "", "opd-near loses": "not measured"}
    difference, half = interval([near - opd for opd, near in pairs])
    words = _words(difference, half)
    return row | {"near - opd": f"{difference:+.3f} ± {half:.3f}", "opd-near loses": words}


def _words(difference: float, half: float) -> str:
    if abs(difference) <= half:
        return "not distinguishable"
    return "less" if difference < 0 else "more"


def points(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return each setting's means over the seeds."""
    trained = measured(lines)
    keys = sorted({(point.method, point.dial, point.steps) for point in trained})
    rows = []
    for method, dial, steps in keys:
        group = [p for p in trained if (p.method, p.dial, p.steps) == (method, dial, steps)]
        same = [
            line for line in lines if (line["method"], line["dial"], line["steps"]) == (method, dial, steps)
        ]
        row: dict[str, Any] = {"method": f"`{method}`", "dial": f"{dial:g}", "steps": steps}
        row |= {"behaviour won": mean(p.won for p in group), "knowledge lost": mean(p.lost for p in group)}
        rows.append(row | {name: mean(line[name] for line in same) for name in MEASURED})
    return rows


def picture(lines: Sequence[Line], path: Path) -> None:
    """Draw each setting's mean, and each method's front: the least knowledge lost at each level."""
    from matplotlib.figure import Figure

    rows = points(lines)
    figure = Figure(figsize=(6, 4.4), layout="constrained")
    axes = figure.subplots()
    for arm in ARMS:
        mine = [row for row in rows if row["method"] == f"`{arm.method}`"]
        won, lost = ([row[name] for row in mine] for name in ("behaviour won", "knowledge lost"))
        (drawn,) = axes.plot(won, lost, "o", label=f"{arm.label} ({arm.dial})", alpha=0.6)
        front = _front(list(zip(won, lost, strict=True)))
        axes.step([x for x, _ in front], [y for _, y in front], where="pre", color=drawn.get_color())
    axes.set(
        xlabel="share of lost behaviour won back",
        ylabel="knowledge lost (probability of the documents' answers)",
    )
    axes.legend()
    figure.savefig(path, dpi=110)


def _front(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the places that no other exceeds in behaviour won at less knowledge lost, by behaviour."""
    return sorted(
        (won, lost) for won, lost in places if not any(more >= won and less < lost for more, less in places)
    )


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
