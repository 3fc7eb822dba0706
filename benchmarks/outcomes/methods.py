"""Check that every method row changes what it claims: train each on the microworld, seed by seed.

python -m benchmarks.outcomes.methods --seeds 1,2,3               # one table; resumes if interrupted
python -m benchmarks.outcomes.methods --seeds 1,2,3 --write-docs  # and update docs/methods.md
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.ledger import Clock, Ledger, Line, markdown, mean, put
from benchmarks.outcomes.arguments import home_parser, whole_numbers
from benchmarks.outcomes.method_rows import ROWS, Outcome, Row

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
HOME = Path(".recover") / "benchmarks"
SHAPES = ("density", "bias", "concentration")
WORK = ("sampled", "trained")
BY_LABEL = {row.label: row for row in ROWS}


def main() -> None:
    asked = _arguments()
    ledger = Ledger(asked.out or asked.home / "methods.jsonl", ("seed", "row", "digest"))
    rows = _with_needed(asked.rows or list(BY_LABEL))
    for seed in asked.seeds:
        _run_seed(ledger, seed, rows, asked)
    lines = [line for seed in asked.seeds for line in _known(ledger, seed, asked.limit).values()]
    moved, shapes = markdown(table(lines)), markdown(geometry(lines))
    print(f"{moved}\n\n{shapes}")
    if asked.write_docs:
        seeds = f"Seeds {', '.join(map(str, asked.seeds))}; IFEval on {asked.limit} prompts."
        put(PAGE, "moved", f"{seeds}\n\n{moved}")
        put(PAGE, "geometry", f"{seeds}\n\n{shapes}")


def _arguments() -> argparse.Namespace:
    parser = home_parser(__doc__, HOME, "docs/methods.md")
    parser.add_argument("--seeds", type=whole_numbers, default=[1, 2, 3], help="worlds, as in 1,2,3")
    parser.add_argument("--rows", type=_labels, help=f"of: {', '.join(BY_LABEL)}")
    parser.add_argument("--limit", type=int, default=300, help="IFEval prompts asked")
    parser.add_argument("--out", type=Path, help="results, a line each (default: methods.jsonl in the home)")
    return parser.parse_args()


def _labels(text: str) -> list[str]:
    found = [part.strip() for part in text.split(";" if ";" in text else ",")]
    for label in found:
        if label not in BY_LABEL:
            raise argparse.ArgumentTypeError(f"no row {label!r}: choose among {'; '.join(BY_LABEL)}")
    return found


def _with_needed(labels: Iterable[str]) -> list[Row]:
    """Return the rows in table order, with the rows that they refer to."""
    wanted: set[str] = set()
    queue = list(labels)
    while queue:
        label = queue.pop()
        wanted.add(label)
        queue += BY_LABEL[label].needs
    return [row for row in ROWS if row.label in wanted]


def _run_seed(ledger: Ledger, seed: int, rows: Sequence[Row], asked: argparse.Namespace) -> None:
    missing = [row for row in rows if row.label not in _known(ledger, seed, asked.limit)]
    if not missing:
        return
    from benchmarks.outcomes.lab import Lab  # imports torch and transformers, which --help does not need

    lab, clock = Lab(asked.home, seed, asked.limit), Clock(len(missing))
    with lab.ws:
        for row in missing:
            clock.say(f"seed {seed}: {row.label}")
            ledger.add(_run(lab, row, _known(ledger, seed, asked.limit), asked.limit))
            clock.done += 1


def _known(ledger: Ledger, seed: int, limit: int) -> dict[str, Line]:
    """Return this seed's stored results of rows whose settings have not changed."""
    lines = {row.label: ledger.get(seed=seed, row=row.label, digest=_digest(row, limit)) for row in ROWS}
    return {label: line for label, line in lines.items() if line}


def _run(lab: Any, row: Row, known: dict[str, Line], limit: int) -> Line:
    """Train a row and measure what changed."""

    def checkpoint(name: str) -> str:
        if name in ("clean", "midtrained"):
            return str(getattr(lab, name))
        return str(known[name]["checkpoint"])

    settings: dict[str, Any] = {"method": row.method, "prompts": lab.file(row.prompts), **row.settings}
    if str(settings.get("context", "")).endswith(".jsonl"):
        settings["context"] = lab.file(settings["context"])
    if row.routes:
        settings["routes"] = {name: checkpoint(place) for name, place in row.routes.items()}
    student = checkpoint(row.student)
    made = lab.train(row.label, student, settings, row.learning_rate)
    outcome = Outcome(
        clean=lab.measure(lab.clean, row.measures),
        before=lab.measure(student, row.measures),
        after=lab.measure(made["checkpoint"], row.measures),
        metrics=made["metrics"],
    )
    held = row.holds(outcome, {label: _outcome(line) for label, line in known.items()})
    kept = {name: value for name, value in made["metrics"].items() if _is_kept(name)}
    return {
        "seed": lab.seed,
        "row": row.label,
        "digest": _digest(row, limit),
        "method": row.method,
        "held": held,
        "checkpoint": made["checkpoint"],
        "cost": made["cost"],
        **asdict(outcome),
        "metrics": kept,
    }


def _is_kept(name: str) -> bool:
    return name.startswith(("signal_", "gradient_")) or name in ("reward", "loss", "reverse_kl", "kept_share")


def _outcome(line: Line) -> Outcome:
    return Outcome(line["clean"], line["before"], line["after"], line["metrics"])


def _digest(row: Row, limit: int) -> str:
    """Hash the settings of a row and of the rows it refers to; a changed hash repeats the row."""
    values = {name: repr(value) for name, value in vars(row).items() if name not in ("holds", "claim")}
    needed = [_digest(BY_LABEL[label], limit) for label in row.needs]
    return hashlib.sha256(repr((sorted(values.items()), needed, limit)).encode()).hexdigest()[:10]


def table(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return one row per method: the number of seeds on which its claim held, and mean changes."""
    found = []
    for label, group in _grouped(lines):
        first = group[0]
        moved = []
        for name in first["after"]:
            before, after = (mean(line[when][name] for line in group) for when in ("before", "after"))
            moved.append(f"{name} {before:.2f} → {after:.2f}")
        if "reward" in first["metrics"]:
            ends = [mean(line["metrics"]["reward"][end] for line in group) for end in (0, -1)]
            moved.append(f"reward {ends[0]:.2f} → {ends[1]:.2f}")
        sampled, trained = (mean(line["cost"][f"tokens_{what}"] for line in group) for what in WORK)
        found.append(
            {
                "row": f"`{label}`",
                "must": BY_LABEL[label].claim,
                "held": f"{sum(line['held'] for line in group)} of {len(group)}",
                "moved": "; ".join(moved),
                "tokens sampled": f"{sampled:,.0f}",
                "tokens trained": f"{trained:,.0f}",
            }
        )
    return found


def geometry(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the shape of each method's token signal: means over the traced steps and the seeds."""
    found = []
    for label, group in _grouped(lines):
        row: dict[str, Any] = {"row": f"`{label}`"}
        for kind in ("signal", "gradient"):
            for shape in SHAPES:
                name = f"{kind}_{shape}"
                values = [value for line in group for value in line["metrics"].get(name, ())]
                row[f"{kind} {shape}"] = mean(values)
        found.append(row)
    return found


def _grouped(lines: Sequence[Line]) -> list[tuple[str, list[Line]]]:
    groups = {row.label: [line for line in lines if line["row"] == row.label] for row in ROWS}
    return [(label, group) for label, group in groups.items() if group]


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
