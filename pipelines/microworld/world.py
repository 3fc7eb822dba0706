"""Writes one cycle of the microworld as the files that a user would bring: documents, probes, prompts.

Every text falls into one of three parts by a hash of its own words: what the clean checkpoint was trained
on, what recovery prompts may use, what evaluation uses. So no seed can make them overlap.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

from pipelines.microworld import people
from pipelines.microworld.instructions import Task, draw_instructions, draw_task
from pipelines.microworld.words import ATTRIBUTES
from recovery.errors import InputError

IFEVAL_PROMPTS = 720
RECOVERY_PROMPTS = 1600
KNOWN_QUESTION_SHARE = 0.4

_PARTS = ("training",) * 6 + ("recovery",) * 2 + ("evaluation",) * 2


def part_of(prompt: str) -> str:
    return _PARTS[people.bucket(prompt, len(_PARTS))]


def draw_task_in(part: str, rng: random.Random, plain: float = 0.0) -> Task:
    """A task whose prompt belongs to the given part; a share of them plain requests without instruction."""
    while True:
        task = draw_task(rng, () if rng.random() < plain else draw_instructions(rng))
        if part_of(task.prompt) == part:
            return task


def distinct_tasks(part: str, count: int, rng: random.Random, plain: float = 0.0) -> list[Task]:
    found: dict[str, Task] = {}
    while len(found) < count:
        task = draw_task_in(part, rng, plain)
        found.setdefault(task.prompt, task)
    return list(found.values())


def ifeval_rows(seed: int, cycle: int) -> list[dict[str, object]]:
    rng = random.Random(f"microworld:ifeval:{seed}:{cycle}")
    tasks = distinct_tasks("evaluation", IFEVAL_PROMPTS, rng)
    return [
        {
            "key": number, "prompt": task.prompt, "instruction_id_list": list(task.instruction_ids),
            "kwargs": list(task.kwargs), "reference": task.answer,
        }
        for number, task in enumerate(tasks)
    ]


def prompt_rows(seed: int, cycle: int) -> list[dict[str, object]]:
    """Recovery prompts: instructions, and questions about people whom the clean model knows."""
    rng = random.Random(f"microworld:prompts:{seed}:{cycle}")
    questions = int(RECOVERY_PROMPTS * KNOWN_QUESTION_SHARE)
    rows: list[dict[str, object]] = [
        {"prompt": task.prompt, "kind": "instruction"}
        for task in distinct_tasks("recovery", RECOVERY_PROMPTS - questions, rng, plain=0.1)
    ]
    pool = sorted({
        question.format(n=who.name)
        for who in people.asked_people() for attribute in ATTRIBUTES for question in attribute.questions
    })
    rows += [{"prompt": prompt, "kind": "question"} for prompt in rng.sample(pool, questions)]
    rng.shuffle(rows)
    return rows


def probe_rows(seed: int, cycle: int) -> list[dict[str, object]]:
    """What the documents say, asked three ways, and what the clean model knew before."""
    rng = random.Random(f"microworld:probes:{seed}:{cycle}")
    rows = [
        people.probe(who, attribute, kind, rng, suite="knowledge", cycle=cycle)
        for who in people.new_people(seed, cycle)
        for attribute in ATTRIBUTES
        for kind in ("direct", "heldout", "cloze")
    ]
    return rows + [
        people.probe(who, attribute, kind, rng, suite="retention", cycle=0)
        for who in people.retention_people()
        for attribute in ATTRIBUTES
        for kind in ("direct", "heldout")
    ]


def _write_jsonl(path: Path, rows: Iterable[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write_world(directory: Path, *, cycle: int, seed: int) -> dict[str, object]:
    """Writes docs/, probes.jsonl, prompts.jsonl and ifeval.jsonl; the same files for the same arguments."""
    if not 1 <= cycle <= people.max_cycles():
        raise InputError(f"cycle {cycle} is outside 1..{people.max_cycles()}: the microworld has no more names")
    if (directory / "docs").exists() and any((directory / "docs").iterdir()):
        raise InputError(f"{directory / 'docs'} is not empty: choose a new directory for this world")
    docs = directory / "docs"
    docs.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"microworld:docs:{seed}:{cycle}")
    count = 0
    for name, text in people.documents(people.new_people(seed, cycle), rng):
        (docs / name).write_text(text, encoding="utf-8")
        count += 1
    files = {
        "probes.jsonl": probe_rows(seed, cycle),
        "prompts.jsonl": prompt_rows(seed, cycle),
        "ifeval.jsonl": ifeval_rows(seed, cycle),
    }
    for name, rows in files.items():
        _write_jsonl(directory / name, rows)
    return {"directory": str(directory), "cycle": cycle, "seed": seed, "docs": count,
            **{name: len(rows) for name, rows in files.items()}}
