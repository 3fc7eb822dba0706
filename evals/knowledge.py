"""Score closed-book probes: questions in chat, and cloze texts to continue.

A probe is one line of probes.jsonl: {"id", "suite": "knowledge" | "retention" | "updates", "kind", "prompt",
"answer", "aliases", "fact", "fact_status", "was", "cycle", "passage"}. Instead of "prompt" it may have chat
"messages" (earlier turns, a system turn) and "tools". Kind "cloze" is raw text to go on
with; every other kind (direct, heldout, ...) is asked in chat. Kinds "reverse" (from what is said to whom it
is said of), "indirect" (two facts at once) and "multihop" (a fact that only two documents together give) are
reported apart and no part of the score. With `passage`, a text or a list of all that the answer takes, the
same questions can be asked with the book open: the ceiling; the clean model's score is the floor.

An answer counts when it stands as whole words in the response ("lenient", the score), or is the whole
response ("strict", in the details), case, accents, punctuation and articles aside.

`fact_status` is "new" (the default), "changed" (the documents contradict `was`, the old answer) or "stable"
(the default in retention). Changed facts form the suite "updates": each response gives the new answer, the
old one or neither, and the share of old ones is the stale rate.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from evals import dialogues, jsonl
from evals.scores import Generate, Item, Message, Score, chat, drawn, share
from recovery.errors import InputError, RecoverError

SUITE = "knowledge"
UPDATES = "updates"
SUITES = ("knowledge", "retention", UPDATES)
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
LENIENT = "lenient"  # the headline: asked in chat, closed book
OPEN_BOOK = "open_book"  # with the passages that hold the answer in front
RETRIEVAL = "retrieval"  # with the passages that a retriever found in front
OF_MULTIHOP = {LENIENT: MULTIHOP, OPEN_BOOK: "multihop_open_book", RETRIEVAL: "multihop_retrieval"}
BESIDE = (CLOZE, OPEN_BOOK, RETRIEVAL, *APART, *OF_MULTIHOP.values())  # metrics beside a suite's headline

GenerateText = Callable[[list[str]], list[str]]
"""Raw prefixes in, continuations out."""

# Scripts written without spaces: there, whole words can't be told and the answer only has to occur.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_ACCENTS = re.compile("[\u0300-\u036f]")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NOT_WORD = re.compile(r"(?<!\d)\.|\.(?!\d)|[^\w.]|_", re.UNICODE)
_ARTICLES = {"a", "an", "the"}


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
        if _names(response, self.answers, other_than=self.was):
            return NEW
        return OLD if _names(response, self.was, other_than=self.answers) else NEITHER


def load_probes(path: str | Path, suite: str | None = None) -> tuple[Probe, ...]:
    """Read and check the probes of a JSONL file (of one suite, if named)."""
    rows = jsonl.read(path, {"answer": str})
    probes = tuple(_probe(row, number, path) for number, row in enumerate(rows, 1))
    ids = [probe.id for probe in probes]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise InputError(f"{path}: id {twice!r} occurs twice: give every probe its own id")
    return tuple(probe for probe in probes if suite in (None, probe.suite))


@cache
def general_retention() -> tuple[Probe, ...]:
    """Return the shipped general questions for the retention axis: capitals, arithmetic, science, grammar."""
    return load_probes(GENERAL_RETENTION, "retention")


def questions(path: str | Path | None, suite: str) -> tuple[Probe, ...]:
    """Return the probes of one suite in a file; if retention has none, the shipped general questions."""
    found = load_probes(path, suite) if path else ()
    return general_retention() if suite == "retention" and not found else found


def without_superseded(probes: Sequence[Probe], later: Iterable[Probe]) -> list[Probe]:
    """Leave out the probes that a later changed fact contradicts: the same question, its old answer."""
    replaced = {(normalise(probe.prompt), old) for probe in later for old in map(normalise, probe.was)}
    return [
        probe
        for probe in probes
        if not any((normalise(probe.prompt), normalise(answer)) in replaced for answer in probe.answers)
    ]


def evaluate(
    generate: Generate | Sequence[Generate],
    probes: str | Path | Sequence[Probe],
    suite: str = SUITE,
    limit: int | None = None,
) -> Score:
    """Ask the suite's chat probes in one call; the value is the share answered, leniently matched.

    Several functions are so many sampled answers to every probe, which count together.
    """
    chosen = drawn([probe for probe in _of_suite(probes, suite) if probe.counts], limit)
    if not chosen:
        raise InputError(f"{suite}: no chat probes to ask: give a probes file with that suite")
    asked = [probe.chat for probe in chosen]
    if callable(generate):
        return score(chosen, generate(asked), suite, LENIENT)
    several = [replace(probe, id=f"{probe.id}#{i}") for i in range(len(generate)) for probe in chosen]
    return score(several, [answer for one in generate for answer in one(asked)], suite, LENIENT)


def evaluate_cloze(
    generate_text: GenerateText,
    probes: str | Path | Sequence[Probe],
    suite: str = SUITE,
    limit: int | None = None,
) -> Score | None:
    """Score cloze probes, continued as plain text; None where the file has none."""
    chosen = drawn([probe for probe in _of_suite(probes, suite) if not probe.in_chat], limit)
    if not chosen:
        return None
    return score(chosen, generate_text([probe.prompt for probe in chosen]), suite, CLOZE)


def evaluate_apart(
    generate: Generate, probes: str | Path | Sequence[Probe], suite: str = SUITE, limit: int | None = None
) -> Iterator[Score]:
    """Score each of the kinds that are no part of the headline; nothing where the file has none."""
    for kind in APART:
        chosen = drawn([probe for probe in _of_suite(probes, suite) if probe.kind == kind], limit)
        if chosen:
            yield score(chosen, generate([probe.chat for probe in chosen]), suite, kind)


def evaluate_open_book(
    generate: Generate, probes: str | Path | Sequence[Probe], suite: str = SUITE, limit: int | None = None
) -> Iterator[Score]:
    """Score the suite's questions with their passages in front: the ceiling set by reading.

    Multihop questions are a score of their own. With a limit, the questions are those of the closed-book
    scores that have passages.
    """
    of_suite = _of_suite(probes, suite)
    asked = drawn([probe for probe in of_suite if probe.counts], limit)
    asked += drawn([probe for probe in of_suite if probe.kind == MULTIHOP], limit)
    passages = {probe.id: probe.passages for probe in asked if probe.passages}
    return _with_passages(generate, of_suite, passages, suite, OPEN_BOOK)


def evaluate_retrieval(
    generate: Generate, probes: Sequence[Probe], retrieved: Mapping[str, Sequence[str]], suite: str = SUITE
) -> Iterator[Score]:
    """Score the questions for which passages were retrieved (by probe id), with these in front.

    Multihop questions are a score of their own."""
    return _with_passages(generate, _of_suite(probes, suite), retrieved, suite, RETRIEVAL)


def _with_passages(
    generate: Generate,
    probes: Sequence[Probe],
    passages: Mapping[str, Sequence[str]],
    suite: str,
    metric: str,
) -> Iterator[Score]:
    """Score the questions that have passages (by probe id), multihop ones apart from all others."""
    for name, multihop in ((metric, False), (OF_MULTIHOP[metric], True)):
        chosen = [one for one in probes if one.id in passages and (one.kind == MULTIHOP) == multihop]
        if chosen:
            prompts = [_after(passages[probe.id], probe) for probe in chosen]
            yield score(chosen, generate(prompts), suite, name)


def _after(passages: Sequence[str], probe: Probe) -> list[Message]:
    """Return a probe's chat with passages before the question."""
    *before, last = probe.chat
    text = "\n\n".join([*(passage.strip() for passage in passages), last["content"]])
    return [*before, {**last, "content": text}]


def score(probes: Sequence[Probe], responses: Sequence[str], suite: str, metric: str) -> Score:
    """Match the responses; the interval is clustered by fact: its probes stand or fall together."""
    from evals.intervals import clustered_interval  # SciPy, once something is measured

    if len(responses) != len(probes):
        raise RecoverError(
            f"{suite}: {len(responses)} answers to {len(probes)} probes: each needs exactly one"
        )
    items = tuple(_item(probe, response) for probe, response in zip(probes, responses, strict=True))
    passed = [item.passed for item in items]
    return Score(
        suite=suite,
        metric=metric,
        value=share(passed),
        n=len(items),
        interval=clustered_interval(passed, [probe.fact for probe in probes]),
        items=items,
        details={
            "lenient": share(passed),
            "strict": share([item.detail["strict"] for item in items]),
            "by_kind": _groups(items, "kind"),
            "by_cycle": _groups(items, "cycle"),
            "by_fact_status": _groups(items, "fact_status"),
            **(_stale(items) if suite == UPDATES else {}),
        },
    )


def _stale(items: Sequence[Item]) -> dict[str, Any]:
    """Count the new, old and neither answers; the stale rate has its 95 % interval, clustered by fact."""
    from evals.intervals import clustered_interval

    answered = [item.detail["answered"] for item in items]
    old = [one == OLD for one in answered]
    interval = clustered_interval(old, [item.detail["fact"] for item in items])
    counts = {name: answered.count(name) for name in ANSWERED}
    return {"answered": counts, "stale_rate": share(old), "stale_interval": list(interval)}


def normalise(text: str) -> str:
    """Lower case, no accents, punctuation or articles; decimal points stay, thousands separators go."""
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    plain = _THOUSANDS.sub("", unicodedata.normalize("NFKC", plain).casefold())
    words = _NOT_WORD.sub(" ", plain).split()
    return " ".join(word for word in words if word not in _ARTICLES) or " ".join(words)


def matches(response: str, answers: Iterable[str], strict: bool = False) -> bool:
    """Return whether an answer equals the response (strict), or occurs in it as whole words (lenient)."""
    said = normalise(response)
    wanted = [answer for answer in map(normalise, answers) if answer]
    if strict:
        return said in wanted
    return any(_occurs(answer, said) for answer in wanted)


def _occurs(answer: str, said: str) -> bool:
    """Return whether a normalised text contains a normalised answer as whole words."""
    return answer in said if _UNSPACED.search(answer) else f" {answer} " in f" {said} "


def _names(response: str, answers: Iterable[str], other_than: Iterable[str]) -> bool:
    """Match leniently, but never inside a longer other answer: "New York" does not name York."""
    wanted = [answer for answer in map(normalise, answers) if answer]
    said = normalise(response)
    for other in map(normalise, other_than):
        if any(other != answer and _occurs(answer, other) for answer in wanted):
            said = _without(other, said)
    return any(_occurs(answer, said) for answer in wanted)


def _without(answer: str, said: str) -> str:
    """Replace a normalised answer in a normalised text by a mark that is no word."""
    if _UNSPACED.search(answer):
        return said.replace(answer, "|")
    return re.sub(rf"(?<!\S){re.escape(answer)}(?!\S)", "|", said)


def _probe(row: dict[str, Any], number: int, path: str | Path) -> Probe:
    where = f"{path}, probe {number}"
    _check_fields(row, where)
    name = str(row.get("id", number))
    suite = row.get("suite", SUITE)
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
        fact=str(row.get("fact") or name),
        cycle=row.get("cycle", 0),
        passages=_passages(row, where),
        heldout_fact=bool(row.get("heldout_fact")),
        fact_status=status,
        was=was,
        messages=several,
    )


def _check_fields(row: dict[str, Any], where: str) -> None:
    """Refuse a row whose fields have other types or values than a probe's."""
    suite = row.get("suite", SUITE)
    aliases = row.get("aliases") or []
    if suite not in SUITES:
        raise InputError(f"{where}: suite {suite!r}: one of {', '.join(SUITES)} is expected")
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise InputError(f"{where}: `aliases` must be a list of texts")
    if not normalise(row["answer"]):
        raise InputError(f"{where}: the answer {row['answer']!r} has no words to look for")
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
    implied = CHANGED if suite == UPDATES or row.get("was") else STABLE if suite == "retention" else NEW
    status = row.get("fact_status") or implied
    if status not in FACT_STATUSES:
        raise InputError(f"{where}: fact_status {status!r}: one of {', '.join(FACT_STATUSES)} is expected")
    if suite == UPDATES and status != CHANGED:
        raise InputError(f"{where}: suite {UPDATES} asks changed facts only, not {status} ones")
    if suite == "retention" and status != STABLE:
        raise InputError(f"{where}: retention asks stable facts only: give changed ones the suite {UPDATES}")
    return str(status)


def _old_answers(row: dict[str, Any], answers: Sequence[str], where: str) -> tuple[str, ...]:
    was = row.get("was") or []
    old = [was] if isinstance(was, str) else was
    if not isinstance(old, list) or not all(isinstance(one, str) and normalise(one) for one in old):
        raise InputError(f"{where}: `was` must be the old answer, or a list of old answers")
    if {normalise(one) for one in old} & {normalise(answer) for answer in answers}:
        raise InputError(
            f"{where}: the old answer {old[0]!r} is also the new one: a changed fact has another"
        )
    return tuple(old)


def _of_suite(probes: str | Path | Sequence[Probe], suite: str) -> Sequence[Probe]:
    if isinstance(probes, str | Path):
        return load_probes(probes, suite)
    return [probe for probe in probes if probe.suite == suite]


def _item(probe: Probe, response: str) -> Item:
    detail = {
        "kind": probe.kind,
        "fact": probe.fact,
        "fact_status": probe.fact_status,
        "cycle": probe.cycle,
        "answers": list(probe.answers),
        "strict": matches(response, probe.answers, strict=True),
    }
    passed = matches(response, probe.answers)
    if probe.was:
        answered = probe.answered(response)
        passed = answered == NEW
        detail |= {"was": list(probe.was), "answered": answered}
    return Item(key=probe.id, prompt=probe.prompt, response=response, passed=passed, detail=detail)


def _groups(items: Sequence[Item], field: str) -> dict[str, dict[str, Any]]:
    """{kind, cycle or status: {passed, n, value}}"""
    groups: dict[str, list[bool]] = {}
    for item in items:
        groups.setdefault(str(item.detail[field]), []).append(item.passed)
    return {
        name: {"passed": sum(ok), "n": len(ok), "value": share(ok)} for name, ok in sorted(groups.items())
    }
