"""Run cycle upon cycle of a model on folders of documents, a home a seed, and put the seeds together.

    python -m benchmarks.outcomes.months OUT --model FILE.gguf --docs month1 month2 --seeds 0 1 2 \\
        --ifeval input_data.jsonl --prompts prompts.jsonl
    python -m benchmarks.outcomes.months OUT ... --generated 1000   # and N instructions of the last month
    python -m benchmarks.outcomes.months OUT --write-docs           # train nothing: write what OUT has

Every folder is a cycle with the settings that `recover cycle` takes for it, upon what the cycle before it
ended with, whatever its verdict. The questions about folder N are OUT/probes-N.jsonl, made as `recover
probes` makes them unless they lie there; the picture is months.png. Repeat the command to resume; processes
may share OUT with other seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.ledger import Clock, Line, markdown, paired, put
from benchmarks.outcomes import months_picture
from benchmarks.outcomes.arguments import whole_docstring
from benchmarks.outcomes.two_homes import FINISHED, compared, headlines, scored
from db.cycle_names import STAGES
from db.reads import queries
from evals import jsonl
from evals.probes import KNOWLEDGE
from evals.scores import Item, share
from pipelines.config.jobs import EvalJob
from pipelines.config.overrides import override
from pipelines.cycle import cycle
from pipelines.evaluate import evaluate
from pipelines.evaluation.recorded_scores import recorded_items
from pipelines.job_from_options.cycle import cycle_job
from pipelines.machine.init_home import initialise
from pipelines.runs.progress import Progress
from pipelines.runs.workspace import Workspace
from pipelines.writing import instruction_prompts
from pipelines.writing.commands import ProbeOptions, make_probes

PAGE = Path(__file__).parents[2] / "docs" / "real.md"
RECOVERED = STAGES[-1]
GENERATED = "generated"
GENERATED_SEED = 1000  # not that of generated recovery prompts
OTHERWISE = "a model was asked other questions than the one that it is compared with"
Asked = tuple[int, str]  # month and suite
Answers = dict[Asked, dict[str, dict[int, list[Item]]]]  # by stage and seed


def main() -> None:
    asked = _arguments()
    clock = Clock(len(asked.seeds))
    for seed in [] if asked.write_docs else asked.seeds:
        clock.say(f"seed {seed}")
        train(asked, seed)
        clock.done += 1
    answers = recorded(asked.out)
    text = page(answers)
    sys.stdout.write(text + "\n")
    if asked.write_docs:
        put(PAGE, "months", text)
    months_picture.draw(answers, (PAGE.parent if asked.write_docs else asked.out) / "months.png")


def train(asked: argparse.Namespace, seed: int) -> None:
    """Run a seed's cycles that are not finished; ask the last one's models the generated instructions."""
    home = asked.out / f"seed-{seed}"
    with Workspace.open(home, progress=Progress()) as ws:
        initialise(ws, model=asked.model)
    with Workspace.open(home, progress=Progress()) as ws:  # anew: settings are read once
        student = "base"
        for number, docs in enumerate(asked.docs, 1):
            if number not in finished(ws):
                job = cycle_job(ws, docs, student=student, changes=_changes(ws, asked, number, seed))
                cycle(ws, job, key=f"month:{number}")
            student = queries.cycle(ws.tracker.db, number)["checkpoints"][RECOVERED]
        if asked.generated:
            last = queries.cycle(ws.tracker.db, len(asked.docs))
            for stage in STAGES:
                ask_generated(ws, asked.out, asked.generated, last["checkpoints"][stage])


def finished(ws: Workspace) -> list[int]:
    rows = queries.cycles(ws.tracker.db)
    return sorted(row["cycle"] for row in rows if row["status"] in FINISHED)


def _changes(ws: Workspace, asked: argparse.Namespace, number: int, seed: int) -> dict[str, Any]:
    """Return the settings of a cycle; write the questions about its documents where there are none."""
    probes = asked.out / f"probes-{number}.jsonl"
    if not probes.is_file():
        make_probes(ws, asked.docs[number - 1], probes, ProbeOptions())
    files = {"eval.probes": probes, "eval.ifeval": asked.ifeval, "distill.prompts": asked.prompts}
    steps = {"distill.steps": asked.steps} if asked.steps else {}
    return {"seed": seed} | steps | {key: str(path.absolute()) for key, path in files.items() if path}


def ask_generated(ws: Workspace, out: Path, count: int, checkpoint: str) -> None:
    """Ask a checkpoint as many generated instructions, once."""
    path = out / f"{GENERATED}-{count}.jsonl"
    if not path.is_file():
        jsonl.write(path, instruction_prompts.rows(instruction_prompts.generate(count, GENERATED_SEED), 1))
    settings = override(ws.config.eval, {"ifeval": str(path.absolute())})
    job = EvalJob(checkpoint=checkpoint, suites=("ifeval",), settings=settings, label=GENERATED)
    evaluate(ws, job, key=f"{GENERATED}:{count}:{checkpoint}")


def recorded(out: Path) -> Answers:
    """Read what the models of all seeds answered after each finished cycle, by suite and stage."""
    found: Answers = defaultdict(lambda: defaultdict(dict))
    for home in sorted(out.glob("seed-*")):
        seed = int(home.name.removeprefix("seed-"))
        with Workspace.open(home, progress=Progress(quiet=True), create=False) as ws:
            generated = _generated(ws)
            for number in finished(ws):
                scores = headlines(ws, number)
                checkpoints = queries.cycle(ws.tracker.db, number)["checkpoints"]
                if generated.keys() >= set(checkpoints.values()):
                    scores |= {(stage, GENERATED): generated[made] for stage, made in checkpoints.items()}
                for (stage, suite), score in scores.items():
                    found[number, suite][stage][seed] = recorded_items(ws, score)
    return found


def _generated(ws: Workspace) -> dict[str, int]:
    """Return the scores of the checkpoints that were asked the generated instructions."""
    return {
        run["config"]["checkpoint"]: run["result"]["score_ids"]["ifeval"]
        for run in queries.runs(ws.tracker.db, kind="eval", status="done", limit=None)
        if (run["key"] or "").startswith(f"{GENERATED}:")
    }


def page(answers: Answers) -> str:
    parts = [markdown(table(answers))]
    if earlier := earlier_documents(answers):
        parts += ["What is known of earlier documents after later months:", markdown(earlier)]
    return "\n\n".join(parts)


def table(answers: Answers) -> list[Line]:
    """Return a row for each month and suite: the stages' shares of all seeds, and how recovery differs."""
    return [
        {"month": month, "suite": suite, "n": _times(stages[RECOVERED])}
        | {stage: _share(stages[stage]) for stage in STAGES}
        | {f"recovered − {stage}": _difference(stages[RECOVERED], stages[stage]) for stage in STAGES[:2]}
        | {"recovered, by seed": _each(stages[RECOVERED])}
        for (month, suite), stages in sorted(answers.items())
        if set(STAGES) <= set(stages)
    ]


def earlier_documents(answers: Answers) -> list[Line]:
    """Return a row for each earlier month's questions asked again: what was known then, and now."""
    found = []
    for (month, suite), stages in sorted(answers.items()):
        name, _, earlier = suite.partition(":")
        if name == KNOWLEDGE and earlier:
            now = stages[RECOVERED]
            before = answers[int(earlier), KNOWLEDGE][RECOVERED]
            then = {seed: _asked_again(before[seed], now[seed]) for seed in now}
            line = {"month": month, "documents of month": earlier, "n": _times(now), "then": _share(then)}
            found.append({**line, "now": _share(now), "difference": _difference(now, then)})
    return found


def _asked_again(then: list[Item], now: list[Item]) -> list[Item]:
    """Return the answers of then to the questions of now: later months ask some of an earlier month's."""
    asked = {item.key for item in now}
    return [item for item in then if item.key in asked]


def _times(by_seed: dict[int, list[Item]]) -> str:
    each = {len(items) for items in by_seed.values()}
    return f"{len(by_seed)} × {', '.join(map(str, sorted(each)))}"


def _share(by_seed: dict[int, list[Item]]) -> str:
    return scored([item for items in by_seed.values() for item in items])


def _difference(ours: dict[int, list[Item]], theirs: dict[int, list[Item]]) -> str:
    """Compare the seeds that both have; the answers of all seeds to a question are one cluster."""
    both = [seed for seed in ours if seed in theirs]
    after, before = ([item for seed in both for item in side[seed]] for side in (ours, theirs))
    return paired(compared(after, before, otherwise=OTHERWISE))


def _each(by_seed: dict[int, list[Item]]) -> str:
    return ", ".join(f"{share([item.passed for item in by_seed[seed]]):.3f}" for seed in sorted(by_seed))


def _arguments() -> argparse.Namespace:
    parser = whole_docstring(__doc__)
    parser.add_argument("out", type=Path, help="folder for the homes; repeat it to resume")
    parser.add_argument("--model", help="GGUF file, directory or hub id (default: the shipped tiny one)")
    parser.add_argument("--docs", nargs="+", type=Path, default=[], help="a folder of documents a month")
    parser.add_argument("--prompts", type=Path, help="recovery prompts (default: as `recover cycle` takes)")
    parser.add_argument("--ifeval", type=Path, help="IFEval's prompts (default: as `recover cycle` takes)")
    parser.add_argument("--steps", type=int, metavar="N", help="recovery steps (default: the preset's)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--generated", type=int, metavar="N", help="ask the last month N instructions more")
    parser.add_argument("--write-docs", action="store_true", help="train nothing, write docs/real.md")
    asked = parser.parse_args()
    if not asked.docs and not asked.write_docs:
        parser.error("--docs FOLDER ... is missing: which documents?")
    return asked


if __name__ == "__main__":
    main()
