"""Measure how the source of prefixes (student or data) affects forgetting, on the microworld.

    python -m benchmarks.outcomes.forgetting --seeds 1,2,3 [--write-docs]

Target: three IFEval instructions at once, where the clean model was trained on one or two. Retention: one or
two instructions, and questions about people in its training data. F is the mean of (clean - after) over the
two retention suites, the retention ratio the mean of after / clean. `stress` is SFT on few examples at a high
learning rate; the two students start from the clean model and distill from that degraded teacher alone.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.ledger import Clock, Ledger, Line, markdown, mean, put
from benchmarks.outcomes.arguments import home_parser, whole_numbers
from evals import jsonl

if TYPE_CHECKING:
    from benchmarks.outcomes.lab import Lab
    from pipelines.microworld.tasks import Task

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
HOME = Path(".recover") / "benchmarks"
TARGET, RETENTION = "triples", ("behaviour", "retention")
FEW, MANY = 60, 400  # examples of stress and of mild SFT
VERSION = 1  # version of the arms below; increase it to repeat them


@dataclass(frozen=True)
class Arm:
    """One way of training towards the target."""

    name: str
    method: str
    prompts: str
    learning_rate: float
    settings: dict[str, Any] = field(default_factory=dict)
    teacher: str | None = None  # the teacher's arm; default: the clean model


ARMS = (
    Arm("mild SFT", "sft", "triples-many.jsonl", 1e-4, {"steps": 25, "prompts_per_step": 32}),
    Arm("stress SFT", "sft", "triples-few.jsonl", 3e-3, {"steps": 60, "prompts_per_step": 32}),
    Arm(
        "opd-continue from stress",
        "opd-continue",
        "triples-many.jsonl",
        1e-4,
        {"steps": 25, "prompts_per_step": 32, "dials": {"continuation": 32}},
        teacher="stress SFT",
    ),
    Arm(
        "opd from stress",
        "opd",
        "triples-many.jsonl",
        1e-4,
        {"steps": 25, "prompts_per_step": 32},
        teacher="stress SFT",
    ),
    Arm("RL", "rl", "triples-many.jsonl", 1e-4, {"steps": 25, "prompts_per_step": 8, "reward": "ifeval"}),
)


def main() -> None:
    parser = home_parser(__doc__, HOME, "docs/methods.md")
    parser.add_argument("--seeds", type=whole_numbers, default=[1, 2, 3], help="worlds, as in 1,2,3")
    parser.add_argument("--limit", type=int, default=300, help="IFEval prompts asked")
    asked = parser.parse_args()
    seeds = asked.seeds
    ledger = Ledger(asked.home / "forgetting.jsonl", ("seed", "arm", "limit", "version"))
    for seed in seeds:
        _run_seed(ledger, seed, asked)
    names = {line["arm"]: None for line in ledger.lines.values()}
    groups = {
        name: [line for seed in seeds if (line := ledger.get(**_name(seed, name, asked.limit)))]
        for name in names
    }
    text = markdown(table({name: lines for name, lines in groups.items() if lines}))
    print(text)
    if asked.write_docs:
        seeds_said = f"Seeds {', '.join(map(str, seeds))}; IFEval on {asked.limit} prompts."
        put(PAGE, "forgetting", f"{seeds_said}\n\n{text}")


def _name(seed: int, arm: str, limit: int) -> dict[str, Any]:
    return {"seed": seed, "arm": arm, "limit": limit, "version": VERSION}


def _run_seed(ledger: Ledger, seed: int, asked: argparse.Namespace) -> None:
    if all(ledger.get(**_name(seed, arm.name, asked.limit)) for arm in ARMS):
        return
    from benchmarks.outcomes.lab import Lab  # imports torch and transformers, which --help does not need

    lab, clock = Lab(asked.home, seed, asked.limit), Clock(len(ARMS) + 1)
    with lab.ws:
        _write_triples(lab)
        suites = (TARGET, *RETENTION)
        clean = lab.measure(lab.clean, suites)
        ledger.add({**_name(seed, "clean", asked.limit), "clean": clean, "after": clean})
        made = {"clean": lab.clean}
        for arm in ARMS:
            clock.done += 1
            clock.say(f"seed {seed}: {arm.name}")
            settings = {"method": arm.method, "prompts": lab.file(arm.prompts), **arm.settings}
            teacher = made[arm.teacher] if arm.teacher else None
            found = lab.train(arm.name, lab.clean, settings, arm.learning_rate, teacher=teacher)
            made[arm.name] = found["checkpoint"]
            if not ledger.get(**_name(seed, arm.name, asked.limit)):
                after = lab.measure(found["checkpoint"], suites)
                ledger.add({**_name(seed, arm.name, asked.limit), "clean": clean, "after": after})


def table(groups: dict[str, list[Line]]) -> list[dict[str, Any]]:
    """Return means over seeds, and for a student the number of seeds on which it beats its teacher."""
    teachers = {arm.name: arm.teacher for arm in ARMS}
    rows = []
    for name, lines in groups.items():
        scores = {suite: mean(line["after"][suite] for line in lines) for suite in (TARGET, *RETENTION)}
        rows.append(
            {
                "model": name,
                **scores,
                "F": mean(map(forgetting, lines)),
                "ratio": mean(map(ratio, lines)),
                "beats its teacher": _beats(lines, groups.get(str(teachers.get(name)), [])),
            }
        )
    return rows


def forgetting(line: Line) -> float:
    return sum(line["clean"][suite] - line["after"][suite] for suite in RETENTION) / len(RETENTION)


def ratio(line: Line) -> float:
    return sum(line["after"][suite] / line["clean"][suite] for suite in RETENTION) / len(RETENTION)


def _beats(lines: Sequence[Line], teachers: Sequence[Line]) -> str:
    """Count the seeds on which the student beats its teacher, by suite."""
    by_seed = {line["seed"]: line["after"] for line in teachers}
    pairs = [(line["after"], by_seed[line["seed"]]) for line in lines if line["seed"] in by_seed]
    if not pairs:
        return ""
    won = {suite: sum(a[suite] > b[suite] for a, b in pairs) for suite in (TARGET, *RETENTION)}
    return ", ".join(f"{suite} {count}/{len(pairs)}" for suite, count in won.items())


# ---- the target -------------------------------------------------------------------------------------------


def _write_triples(lab: Lab) -> None:
    """Write prompts with three instructions at once, verified by the official checkers."""
    if (lab.home / "triples.jsonl").exists():
        return
    drawn = triples(random.Random(f"triples:{lab.seed}"), {"recovery": MANY, "evaluation": 150})
    for name, tasks in (
        ("triples-many", drawn["recovery"]),
        ("triples-few", drawn["recovery"][:FEW]),
        ("triples", drawn["evaluation"]),
    ):
        rows = [
            {
                "key": number,
                "prompt": task.prompt,
                "instruction_id_list": list(task.instruction_ids),
                "kwargs": list(task.kwargs),
                "response": task.answer,
            }
            for number, task in enumerate(tasks)
        ]
        text = jsonl.lines(rows)
        (lab.home / f"{name}.jsonl").write_text(text, encoding="utf-8")


def triples(rng: random.Random, counts: dict[str, int]) -> dict[str, list[Task]]:
    """Return `counts` tasks of each part whose reference answers follow all three instructions."""
    from pipelines.microworld.world import part_of

    found: dict[str, dict[str, Task]] = {part: {} for part in counts}
    for task in _draws(rng):
        part = part_of(task.prompt)
        if part in counts and len(found[part]) < counts[part] and _obeys(task):
            found[part].setdefault(task.prompt, task)
        if all(len(found[part]) == count for part, count in counts.items()):
            break
    return {part: list(tasks.values()) for part, tasks in found.items()}


def _draws(rng: random.Random) -> Iterator[Task]:
    from pipelines.microworld.instructions import INSTRUCTIONS, compatible
    from pipelines.microworld.tasks import draw_task

    while True:
        a, b, c = sorted(rng.sample(INSTRUCTIONS, 3), key=INSTRUCTIONS.index)
        if compatible(a, b) and compatible(a, c) and compatible(b, c):
            yield draw_task(rng, (a, b, c))


def _obeys(task: Task) -> bool:
    from evals import ifeval

    return ifeval.followed(task.answer, task.prompt, task.instruction_ids, task.kwargs) == 1.0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
