"""Write one cycle of the microworld as the files of a user: documents, probes, prompts.

A hash of its words assigns every text to one of three parts: training of the clean checkpoint, recovery
prompts, evaluation. The parts are disjoint for every seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import TypeVar

from evals import jsonl
from evals.probes import CHANGED, KNOWLEDGE, NEW, RETENTION, STABLE, UPDATES
from pipelines.corpus.reading.superseded_list import SUPERSEDED
from pipelines.microworld import changes, people
from pipelines.microworld.instructions import COMBINATIONS, COPYING, Instruction
from pipelines.microworld.tasks import Task, draw_instructions, draw_task
from pipelines.microworld.words import ATTRIBUTES
from recovery.errors import InputError
from recovery.storage.atomic_dirs import storage_errors

T = TypeVar("T")
Kind = tuple[Instruction, ...]  # the instructions of a prompt
TRIES = 60  # at a new prompt of a kind
IFEVAL_PROMPTS = 720
RECOVERY_PROMPTS = 1600
KNOWN_QUESTION_SHARE = 0.14  # fewer leave questions unlearned; more wipe what documents taught
PLAIN_SHARE = 0.1  # requests without instructions
PHRASINGS = ("direct", "heldout", "cloze")
MOST_CHANGED = 0.5  # of the people known so far, in one cycle
COPYING_SHARE = 0.2  # repeating a word of the prompt is what comes back last

_PARTS = ("training",) * 6 + ("recovery",) * 2 + ("evaluation",) * 2


def part_of(prompt: str) -> str:
    return _PARTS[people.bucket(prompt, len(_PARTS))]


def distinct_tasks(part: str, kinds: Iterable[Kind | None], rng: random.Random) -> list[Task]:
    """Draw a task of each kind without duplicate prompts; None, or an exhausted kind, takes any kind."""
    found: dict[str, Task] = {}
    for kind in kinds:
        for wanted in chain([kind] * TRIES, repeat(None)):
            task = draw_task(rng, draw_instructions(rng) if wanted is None else wanted)
            if part_of(task.prompt) == part and task.prompt not in found:
                found[task.prompt] = task
                break
    return list(found.values())


def ifeval_rows(seed: int, cycle: int) -> list[dict[str, object]]:
    rng = random.Random(f"microworld:ifeval:{seed}:{cycle}")
    tasks = distinct_tasks("evaluation", [None] * IFEVAL_PROMPTS, rng)
    return [
        {
            "key": number,
            "prompt": task.prompt,
            "instruction_id_list": list(task.instruction_ids),
            "kwargs": list(task.kwargs),
            "reference": task.answer,
        }
        for number, task in enumerate(tasks)
    ]


def prompt_rows(seed: int, cycle: int) -> list[dict[str, object]]:
    """Return the recovery prompts: instructions, and questions about people known to the clean model."""
    rng = random.Random(f"microworld:prompts:{seed}:{cycle}")
    questions = int(RECOVERY_PROMPTS * KNOWN_QUESTION_SHARE)
    kinds = _recovery_kinds(RECOVERY_PROMPTS - questions, rng)
    rows: list[dict[str, object]] = [
        {
            "prompt": task.prompt,
            "kind": "instruction",
            "response": task.answer,
            "instruction_id_list": list(task.instruction_ids),
            "kwargs": list(task.kwargs),
        }
        for task in distinct_tasks("recovery", kinds, rng)
    ]
    rows += _known_questions(questions, rng)
    rng.shuffle(rows)
    return rows


def _recovery_kinds(count: int, rng: random.Random) -> list[Kind]:
    """Return kinds of recovery prompts, every combination equally often: a rare one is not recovered."""
    plain, copying = int(count * PLAIN_SHARE), int(count * COPYING_SHARE)
    kinds: list[Kind] = [()] * plain
    kinds += rotated(COPYING, copying, rng)
    return kinds + rotated(COMBINATIONS, count - len(kinds), rng)


def rotated(things: Sequence[T], count: int, rng: random.Random) -> list[T]:
    """Repeat the things up to a count; each round holds all of them in a new random order."""
    rounds = -(-count // len(things))
    return [thing for _ in range(rounds) for thing in rng.sample(things, len(things))][:count]


def _known_questions(count: int, rng: random.Random) -> list[dict[str, object]]:
    """Return questions about known people, each person once per round.

    A surname that is more frequent than others with the same first name would be given to all of them."""
    asked = people.asked_people()
    drawn = dict[str, dict[str, object]]()
    while len(drawn) < count:
        for who in rng.sample(asked, len(asked)):
            attribute = rng.choice(ATTRIBUTES)
            prompt = rng.choice(attribute.questions).format(n=who.name)
            value = who.value(attribute)
            answer = {"answer": value, "response": attribute.answer.format(n=who.name, v=value)}
            drawn.setdefault(prompt, {"prompt": prompt, "kind": "question", **answer})
    return list(drawn.values())[:count]


def probe_rows(seed: int, cycle: int, changed: float = 0.0) -> list[dict[str, object]]:
    """Return probes of new facts (three phrasings, reverse, indirect, multihop), stable and changed ones."""
    rng = random.Random(f"microworld:probes:{seed}:{cycle}")
    rows = _new_facts(seed, cycle, rng) + _stable_facts(seed, cycle, changed, rng)
    rows += _changed_facts(seed, cycle, changed)
    profiles, notices = _first_documents(seed, cycle, changed)
    passages = {KNOWLEDGE: profiles, UPDATES: notices, RETENTION: {}}
    return [
        *_with_passages(rows, passages),
        *_roundabout(seed, cycle, changed),
        *_multihop(seed, cycle, changed, profiles),
    ]


def _new_facts(seed: int, cycle: int, rng: random.Random) -> list[dict[str, object]]:
    return [
        people.probe(who, attribute, kind, rng, suite=KNOWLEDGE, fact_status=NEW, cycle=cycle)
        for who in people.new_people(seed, cycle)
        for attribute in ATTRIBUTES
        for kind in PHRASINGS
    ]


def _stable_facts(seed: int, cycle: int, changed: float, rng: random.Random) -> list[dict[str, object]]:
    """Return the retention probes, without the facts that have changed by now."""
    rows = [
        people.probe(who, attribute, kind, rng, suite=RETENTION, fact_status=STABLE, cycle=0)
        for who in people.retention_people()
        for attribute in ATTRIBUTES
        for kind in ("direct", "heldout")
    ]
    gone = {_fact(change) for change in changes.state(seed, cycle, changed).changes}
    return [row for row in rows if row["fact"] not in gone]


def _changed_facts(seed: int, cycle: int, changed: float) -> list[dict[str, object]]:
    """Return probes of this cycle's changes; those of earlier cycles' people ask as that cycle asked."""
    rng = random.Random(f"microworld:updates:{seed}:{cycle}")
    asked: dict[str, object] = {}
    for number in range(1, cycle if changed else 0):
        earlier = _new_facts(seed, number, random.Random(f"microworld:probes:{seed}:{number}"))
        asked |= {str(row["id"]): row["prompt"] for row in earlier}
    rows = [
        people.probe(change.who, change.attribute, kind, rng, suite=UPDATES, fact_status=CHANGED, cycle=cycle)
        | {"was": list(change.was)}
        for change in changes.state(seed, cycle, changed).newest
        for kind in PHRASINGS
    ]
    return [row | {"prompt": asked.get(str(row["id"]), row["prompt"])} for row in rows]


def _fact(change: changes.Change) -> str:
    return f"{change.who.slug}/{change.attribute.name}"


def _first_documents(seed: int, cycle: int, changed: float) -> tuple[dict[str, str], dict[str, str]]:
    """Return the first document, and the first notice, about each person of a cycle's documents."""
    profiles: dict[str, str] = {}
    notices: dict[str, str] = {}
    for name, text in document_texts(seed, cycle, changed):
        about, notice, _ = name.rpartition("-")[0].partition("-notice")
        (notices if notice else profiles).setdefault(about, text)
    return profiles, notices


def _with_passages(
    rows: list[dict[str, object]], passages: Mapping[str, Mapping[str, str]]
) -> list[dict[str, object]]:
    """Add a document to each question about what the documents teach, for open-book scores.

    `passages` holds them by suite and person."""
    found = []
    for row in rows:
        slug = str(row["fact"]).partition("/")[0]
        passage = passages[str(row["suite"])].get(slug)
        found.append(row | {"passage": passage} if passage else row)
    return found


def _roundabout(seed: int, cycle: int, changed: float) -> list[dict[str, object]]:
    """Return questions from facts to the only person who has them, among all people of the world so far."""
    rng = random.Random(f"microworld:roundabout:{seed}:{cycle}")
    new = people.new_people(seed, cycle)
    others = (*changes.state(seed, cycle, changed).people, *new)
    return [
        row
        for who in new
        for row in people.roundabout_probes(who, others, rng, suite=KNOWLEDGE, fact_status=NEW, cycle=cycle)
    ]


def _multihop(seed: int, cycle: int, changed: float, documents: Mapping[str, str]) -> list[dict[str, object]]:
    """Return questions that take two documents of the cycle: a new person's, and that of the only person of
    the world so far who shares two facts with them."""
    rng = random.Random(f"microworld:multihop:{seed}:{cycle}")
    new = people.new_people(seed, cycle)
    others = (*changes.state(seed, cycle, changed).people, *new)
    return [
        row
        for who in new
        for row in people.multihop_probes(
            who, others, documents, rng, suite=KNOWLEDGE, fact_status=NEW, cycle=cycle
        )
    ]


def document_texts(seed: int, cycle: int, changed: float = 0.0) -> Iterator[tuple[str, str]]:
    """(file name, text) of every document of a cycle: new people, known ones, notices of what changed, and
    new editions of earlier cycles' documents about those whose facts changed."""
    rng = random.Random(f"microworld:docs:{seed}:{cycle}")
    state = changes.state(seed, cycle, changed)
    known = state.people[: people.KNOWN_COUNT]
    yield from people.documents(people.new_people(seed, cycle), rng, known)
    yield from changes.notices(state.newest, cycle, random.Random(f"microworld:notices:{seed}:{cycle}"))
    yield from _new_editions(seed, cycle, state)


def _new_editions(seed: int, cycle: int, state: changes.State) -> Iterator[tuple[str, str]]:
    """Earlier cycles' documents about the people whose facts changed: only the changed values differ."""
    now = {change.who.name: change.who for change in state.newest}
    for number in range(1, cycle if now else 0):
        taught = people.new_people(seed, number)
        slugs = {who.slug for who in taught if who.name in now}
        as_of_now = tuple(now.get(who.name, who) for who in taught)
        edited = people.profiles(as_of_now, random.Random(f"microworld:docs:{seed}:{number}"))
        yield from ((name, text) for name, text in edited if name.rpartition("-")[0] in slugs)


def superseded(seed: int, cycle: int, changed: float) -> list[str]:
    """Patterns of the earlier cycles' files that state what is no longer true."""
    about = {change.who.slug for change in changes.state(seed, cycle, changed).newest}
    return [f"{slug}-*" for slug in sorted(about)]


def _require_new(directory: Path, changed: float) -> None:
    """Refuse to replace questions or prompts that lie where the world's own would."""
    names = ("probes.jsonl", "prompts.jsonl", "ifeval.jsonl", *([SUPERSEDED] if changed else []))
    there = next((directory / name for name in names if (directory / name).exists()), None)
    if there:
        raise InputError(f"{there} is there already: choose a new directory for this world")


def write_world(directory: Path, *, cycle: int, seed: int, changed: float = 0.0) -> dict[str, object]:
    """Write docs/, probes.jsonl, prompts.jsonl and ifeval.jsonl, and with changes superseded.txt; equal
    arguments give equal files.

    `changed` is the share of the people known so far whose facts change in each cycle."""
    if not 0 <= changed <= MOST_CHANGED:
        raise InputError(
            f"changed {changed}: a share of the known people from 0 to {MOST_CHANGED} is expected"
        )
    if not 1 <= cycle <= people.max_cycles():
        raise InputError(f"cycle {cycle} is outside 1..{people.max_cycles()}: there are no more names")
    docs = directory / "docs"
    if docs.is_dir() and any(docs.iterdir()):
        raise InputError(f"{docs} is not empty: choose a new directory for this world")
    _require_new(directory, changed)
    files = {
        "probes.jsonl": probe_rows(seed, cycle, changed),
        "prompts.jsonl": prompt_rows(seed, cycle),
        "ifeval.jsonl": ifeval_rows(seed, cycle),
    }
    texts = list(document_texts(seed, cycle, changed))
    with storage_errors(directory):
        docs.mkdir(parents=True, exist_ok=True)
        for name, text in texts:
            (docs / name).write_text(text, encoding="utf-8")
        for name, rows in files.items():
            jsonl.write(directory / name, rows)
        if changed:
            replaced = superseded(seed, cycle, changed)
            (directory / SUPERSEDED).write_text("\n".join(replaced) + "\n", encoding="utf-8")
    counts = {name: len(rows) for name, rows in files.items()}
    facts = len(changes.state(seed, cycle, changed).newest)
    written = {"docs": len(texts), **counts, "changed_facts": facts}
    return {"directory": str(directory), "cycle": cycle, "seed": seed, **written}
