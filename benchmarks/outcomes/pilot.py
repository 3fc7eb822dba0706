"""Check a pilot's forecasts against the midtrainings that then come, over seeds of the microworld.

    python -m benchmarks.outcomes.pilot --seeds 1,2,3 [--budget 30] [--write-docs]

Each seed has a world and a home of its own. A pilot is run, then the whole midtraining as it was configured
and, where the pilot proposed one, as proposed. Of each, the behaviour lost (IFEval of the clean model minus
that of the midtrained one), the share learned of what was unknown in all documents, and the KL are held
against the pilot's 95 % intervals. One line per midtraining; a rerun resumes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ledger import Ledger, Line, markdown, put
from benchmarks.outcomes.arguments import home_parser, whole_numbers
from db.reads import curves, queries
from evals import intervals
from evals.probes import KNOWLEDGE, load_probes
from pipelines.config.jobs import EvalJob, MidtrainJob
from pipelines.config.overrides import override
from pipelines.corpus import documents
from pipelines.evaluate import evaluate
from pipelines.job_from_options.pilot import pilot_job
from pipelines.knowledge import answer_probability, forecast
from pipelines.machine.init_home import initialise
from pipelines.microworld.world import write_world
from pipelines.midtrain import midtrain
from pipelines.pilot import pilot
from pipelines.runs.progress import Progress
from pipelines.runs.workspace import Workspace

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
HOME = Path(".recover") / "benchmarks" / "pilot"
NAMED_BY = ("seed", "budget", "setting", "limit", "version")
VERSION = 2  # of what is measured; increase it to repeat every line
FORECASTS = {"behaviour_lost": "behaviour lost", "learned": "learned", "kl": "KL"}  # key -> title


def main() -> None:
    parser = home_parser(__doc__, HOME, "docs/results.md")
    parser.add_argument("--seeds", type=whole_numbers, default=[1, 2, 3, 4, 5], help="worlds, as in 1,2,3")
    parser.add_argument("--budget", type=float, default=30.0, help="points of behaviour")
    parser.add_argument("--limit", type=int, default=300, help="IFEval prompts asked of whole midtrainings")
    asked = parser.parse_args()
    ledger = Ledger(asked.home / "pilot.jsonl", NAMED_BY)
    for seed in asked.seeds:
        for line in run(ledger, asked.home / f"seed-{seed}", seed, asked.budget, asked.limit):
            print(line, flush=True)
    lines = [line for line in ledger.lines.values() if line["seed"] in asked.seeds]
    text = f"{markdown(table(lines))}\n\n{in_words(lines)}"
    print(text)
    if asked.write_docs:
        put(PAGE, "pilot", text)


def run(ledger: Ledger, folder: Path, seed: int, budget: float, limit: int) -> Iterator[Line]:
    """Run a seed's pilot and the midtrainings that it forecast; yield each new line."""
    world = folder / "world"
    if not (world / "ifeval.jsonl").exists():
        write_world(world, cycle=1, seed=seed)
    with Workspace.open(folder / "home", progress=Progress()) as ws:
        initialise(ws, model="microworld")
        job = pilot_job(ws, world / "docs", budget, changes={"seed": seed})
        found = pilot(ws, job, key=f"pilot:{budget:g}")
        for setting in ("planned", "proposal"):
            name = {"seed": seed, "budget": budget, "setting": setting, "limit": limit, "version": VERSION}
            expected = found[setting]
            if expected and not ledger.get(**name):
                yield ledger.add({**name, **compared(ws, world, expected, seed, limit)})


def compared(ws: Workspace, world: Path, expected: dict[str, Any], seed: int, limit: int) -> Line:
    """Run one whole midtraining; return each forecast beside what came."""
    job = whole_job(ws, world, expected, seed)
    key = f"midtrain:{expected['rate']:g}:{expected['steps']}"
    checkpoint = midtrain(ws, job, key=key)["checkpoint"]
    run = next(row["id"] for row in queries.runs(ws.tracker.db, kind="midtrain") if row["key"] == key)
    series = curves.metric_series(ws.tracker.db, run, answer_probability.METRIC, points=2**31)
    before, after = (float(series[place]["value"]) for place in (0, -1))
    came = {
        "behaviour_lost": _followed(ws, world, "base", limit) - _followed(ws, world, checkpoint, limit),
        "learned": (after - before) / (1 - before),
        "kl": float(curves.metric_series(ws.tracker.db, run, forecast.METRIC, points=2**31)[-1]["value"]),
    }
    forecasts = {name: {**expected[name], "came": came[name]} for name in FORECASTS}
    return {"rate": expected["rate"], "steps": expected["steps"], **forecasts}


def whole_job(ws: Workspace, world: Path, expected: dict[str, Any], seed: int) -> MidtrainJob:
    """Return the midtraining of all documents, followed by questions about all of them."""
    base = ws.config.midtrain
    optimizer = override(base.optimizer, {"learning_rate": expected["rate"]})
    settings = override(base, {"steps": expected["steps"], "optimizer": optimizer})
    questions = ws.home / "questions.jsonl"
    if not questions.exists():
        texts = documents.read_corpus(world / "docs").texts
        probes = load_probes(world / "probes.jsonl", KNOWLEDGE)
        _, unknown = answer_probability.unanswered(ws.load(ws.clean()), texts, probes, seed)
        answer_probability.write(questions, unknown)
    return MidtrainJob(
        docs=str(world / "docs"),
        student=ws.clean().id,
        settings=settings,
        asked=str(questions),
        seed=seed,
    )


def _followed(ws: Workspace, world: Path, checkpoint: str, limit: int) -> float:
    """Return the share of IFEval prompts that a checkpoint follows."""
    asked = override(ws.config.eval, {"ifeval": str(world / "ifeval.jsonl"), "limit": limit})
    job = EvalJob(checkpoint=ws.checkpoint(checkpoint).id, suites=("ifeval",), settings=asked)
    return float(evaluate(ws, job, key=f"ifeval:{checkpoint}:{limit}")["scores"]["ifeval"]["score"])


def table(lines: Sequence[Line]) -> list[Line]:
    """Return a row per midtraining: what was forecast, and what came."""
    return [
        {
            "seed": line["seed"],
            "setting": line["setting"],
            "rate": f"{line['rate']:.3g}",
            "steps": line["steps"],
            **{title: _cell(line[name]) for name, title in FORECASTS.items()},
        }
        for line in sorted(lines, key=lambda line: (line["seed"], line["setting"]))
    ]


def _cell(one: dict[str, float]) -> str:
    return f"{one['value']:.2f} [{one['low']:.2f}, {one['high']:.2f}]: {one['came']:.2f}"


def in_words(lines: Sequence[Line]) -> str:
    """Say how many forecasts held, with Wilson's interval."""
    said = []
    for name, title in FORECASTS.items():
        inside = sum(line[name]["low"] <= line[name]["came"] <= line[name]["high"] for line in lines)
        low, high = intervals.wilson_interval(inside, len(lines))
        said.append(f"{title} {inside} of {len(lines)} within the interval ({low:.2f} to {high:.2f})")
    return f"Each cell: forecast with its 95 % interval, then what came. {'; '.join(said)}."


if __name__ == "__main__":
    main()
