"""Read probes: questions in chat, and cloze texts to continue, with the answers that count.

A probe is one line of probes.jsonl: {"id", "suite": "knowledge" | "retention" | "updates", "kind", "prompt",
"answer", "aliases", "fact", "fact_status", "was", "cycle", "passage"}. Instead of "prompt" it may have chat
"messages" (earlier turns, a system turn) and "tools". Kind "cloze" is raw text to go on
with; every other kind (direct, heldout, ...) is asked in chat. Kinds "reverse" (from what is said to whom it
is said of), "indirect" (two facts at once) and "multihop" (a fact that only two documents together give) are
reported apart and no part of the score. With `passage`, a text or a list of all that the answer takes, the
same questions can be asked with the book open: the ceiling; the clean model's score is the floor.

`fact_status` is "new" (the default), "changed" (the documents contradict `was`, the old answer) or "stable"
(the default in retention). Changed facts form the suite "updates".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from evals import dialogues, jsonl
from evals.answer_matching import forms, mentions, normalise
from evals.scores import Message, chat
from recovery.errors import InputError

KNOWLEDGE = "knowledge"
EARLIER = f"{KNOWLEDGE}:"  # suite knowledge:2 asks about the documents of cycle 2
RETENTION = "retention"
UPDATES = "updates"
PROBE_SUITES = (KNOWLEDGE, RETENTION, UPDATES)
NEW, CHANGED, STABLE = FACT_STATUSES = ("new", "changed", "stable")
OLD, NEITHER = "old", "neither"
ANSWERED = (NEW, OLD, NEITHER)  # what a response to a changed fact gives
GENERAL_RETENTION = Path(__file__).parent / "retention.jsonl"
CLOZE = "cloze"
MULTIHOP = "multihop"
REWORDED = "reworded"
APART = (
    "reverse",
    REWORDED,
    "indirect",
    MULTIHOP,
)  # asked and reported, but what a model hardly does is not demanded


@dataclass(frozen=True)
class Probe:
    id: str
    suite: str
    kind: str
    prompt: str
    answers: tuple[str, ...]
    fact: str
    cycle: int
    passages: tuple[str, ...] = ()  # of the documents, that together give the answer
    heldout_fact: bool = False  # no question about it may be trained on, in whatever phrasing
    fact_status: str = NEW
    was: tuple[str, ...] = ()  # the old answers of a changed fact
    messages: tuple[Message, ...] = ()  # of several turns; `prompt` is then their text

    @property
    def chat(self) -> list[Message]:
        """The turns to answer."""
        return list(self.messages) or chat(self.prompt)

    @property
    def in_chat(self) -> bool:
        return self.kind != CLOZE

    @property
    def counts(self) -> bool:
        """Return whether the probe is part of the suite's score."""
        return self.in_chat and self.kind not in APART

    def row(self) -> dict[str, Any]:
        """Return the probe as a row of probes.jsonl."""
        answer, *aliases = self.answers
        names = ("id", "suite", "kind", "prompt", "fact", "cycle", "heldout_fact", "fact_status")
        row = {name: getattr(self, name) for name in names} | {"answer": answer, "aliases": aliases}
        row["passage"] = list(self.passages) if len(self.passages) > 1 else "".join(self.passages)
        if self.messages:
            row = {name: value for name, value in row.items() if name != "prompt"}
            row["messages"] = list(self.messages)
        return row | ({"was": list(self.was)} if self.was else {})

    def answered(self, response: str) -> str:
        """Return which answer a response gives: "new" (also beside the old one), "old" or "neither"."""
        if mentions(response, self.answers, other_than=self.was):
            return NEW
        return OLD if mentions(response, self.was, other_than=self.answers) else NEITHER


def load_probes(path: str | Path, suite: str | None = None) -> tuple[Probe, ...]:
    """Read and check the probes of a JSONL file (of one suite, if named)."""
    probes = _parsed(jsonl.text_of(path), str(path))
    return tuple(probe for probe in probes if suite in (None, probe.suite))


@lru_cache(maxsize=8)
def _parsed(text: str, where: str) -> tuple[Probe, ...]:
    """Parse a file's text once: a cycle asks for each suite of the same few files some thirty times."""
    return parse_probes(map(jsonl.without_nulls, jsonl.parse(text, where, {"answer": str})), where)


def parse_probes(rows: Iterable[dict[str, Any]], where: str) -> tuple[Probe, ...]:
    """Check rows, each with an answer; `where` says in an error what holds them."""
    probes = tuple(_probe(row, number, f"{where}, probe {number}") for number, row in enumerate(rows, 1))
    ids = [probe.id for probe in probes]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise InputError(f"{where}: id {twice!r} occurs twice: give every probe its own id")
    return tuple(_with_shared_facts(probes))


def _with_shared_facts(probes: Iterable[Probe]) -> Iterator[Probe]:
    """Give a probe that names no fact that of the first one of its suite that asks the same."""
    facts: dict[tuple[str, str], str] = {}
    for probe in probes:
        fact = facts.setdefault((probe.suite, repr(probe.chat)), probe.fact)
        yield replace(probe, fact=fact) if probe.fact == probe.id else probe


@cache
def general_retention() -> tuple[Probe, ...]:
    """Return the shipped general questions for the retention axis: capitals, arithmetic, science, grammar."""
    return load_probes(GENERAL_RETENTION, RETENTION)


def suite_probes(path: str | Path | None, suite: str) -> tuple[Probe, ...]:
    """Return a file's probes of one suite; if none of retention counts, the shipped general ones as well."""
    found = load_probes(path, suite) if path else ()
    own = suite != RETENTION or any(probe.counts for probe in found)
    return found if own else (*found, *general_retention())


def without_superseded(probes: Sequence[Probe], later: Iterable[Probe]) -> list[Probe]:
    """Leave out the probes that a later changed fact contradicts: the same question, its old answer."""
    replaced = {(normalise(probe.prompt), old) for probe in later for old in map(normalise, probe.was)}
    return [
        probe
        for probe in probes
        if not any((normalise(probe.prompt), normalise(answer)) in replaced for answer in probe.answers)
    ]


def _probe(row: dict[str, Any], number: int, where: str) -> Probe:
    _check_fields(row, where)
    name = str(row.get("id", number))
    suite = row.get("suite", KNOWLEDGE)
    answers = (row["answer"], *(row.get("aliases") or []))
    status = _fact_status(row, suite, where)
    was = _old_answers(row, answers, where)
    if (status == CHANGED) != bool(was):
        raise InputError(f"{where}: `was`, the old answer, belongs to a changed fact, and every one needs it")
    kind = str(row.get("kind", "direct"))
    asked = dialogues.read(row, where).messages
    several = tuple(asked) if asked != chat(row.get("prompt") or asked[0]["content"]) else ()
    if several and kind == CLOZE:
        raise InputError(f"{where}: a cloze probe is text to go on with: give it a `prompt`, no `messages`")
    return Probe(
        id=name,
        suite=UPDATES if status == CHANGED else suite,
        kind=kind,
        prompt=dialogues.shown(asked),
        answers=answers,
        fact=name if row.get("fact") in (None, "") else str(row["fact"]),
        cycle=row.get("cycle", 0),
        passages=_passages(row, where),
        heldout_fact=bool(row.get("heldout_fact")),
        fact_status=status,
        was=was,
        messages=several,
    )


def _check_fields(row: dict[str, Any], where: str) -> None:
    """Refuse a row whose fields have other types or values than a probe's."""
    suite = row.get("suite", KNOWLEDGE)
    aliases = row.get("aliases") or []
    if suite not in PROBE_SUITES:
        raise InputError(f"{where}: suite {suite!r}: one of {', '.join(PROBE_SUITES)} is expected")
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise InputError(f"{where}: `aliases` must be a list of texts")
    if not normalise(row["answer"]):
        raise InputError(f"{where}: the answer {row['answer']!r} has no words to look for")
    jsonl.check_key(row, "id", where)
    if not isinstance(row.get("cycle", 0), int):
        raise InputError(f"{where}: `cycle` must be a whole number")


def _passages(row: dict[str, Any], where: str) -> tuple[str, ...]:
    passage = row.get("passage") or []
    found = [passage] if isinstance(passage, str) else passage
    if not isinstance(found, list) or not all(isinstance(one, str) and one.strip() for one in found):
        raise InputError(f"{where}: `passage` must be a text, or a list of all texts that the answer takes")
    return tuple(found)


def _fact_status(row: dict[str, Any], suite: str, where: str) -> str:
    """Return the status that the row states, or that its suite and an old answer imply."""
    implied = CHANGED if suite == UPDATES or row.get("was") else STABLE if suite == RETENTION else NEW
    status = row.get("fact_status") or implied
    if status not in FACT_STATUSES:
        raise InputError(f"{where}: fact_status {status!r}: one of {', '.join(FACT_STATUSES)} is expected")
    if suite == UPDATES and status != CHANGED:
        raise InputError(f"{where}: suite {UPDATES} asks changed facts only, not {status} ones")
    if suite == RETENTION and status != STABLE:
        raise InputError(f"{where}: retention asks stable facts only: give changed ones the suite {UPDATES}")
    return str(status)


def _old_answers(row: dict[str, Any], answers: Sequence[str], where: str) -> tuple[str, ...]:
    was = row.get("was") or []
    old = [was] if isinstance(was, str) else was
    if not isinstance(old, list) or not all(isinstance(one, str) and normalise(one) for one in old):
        raise InputError(f"{where}: `was` must be the old answer, or a list of old answers")
    if {form for one in old for form in forms(one)} & {form for answer in answers for form in forms(answer)}:
        raise InputError(
            f"{where}: the old answer {old[0]!r} is also the new one: a changed fact has another"
        )
    return tuple(old)
