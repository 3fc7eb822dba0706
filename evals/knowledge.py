"""Score closed-book probes: questions in chat, and cloze texts to continue.

An answer counts when it stands as whole words in the response ("lenient", the score), or is the whole
response ("strict", in the details). Each response to a changed fact gives the new answer, the old one or
neither, and the share of old ones is the stale rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evals.answer_matching import matches
from evals.probes import ANSWERED, APART, CLOZE, KNOWLEDGE, MULTIHOP, NEW, OLD, UPDATES, Probe, load_probes
from evals.scores import Generate, Item, Message, Score, drawn, share
from recovery.errors import InputError, RecoverError

LENIENT = "lenient"  # the headline: asked in chat, closed book
OPEN_BOOK = "open_book"  # with the passages that hold the answer in front
RETRIEVAL = "retrieval"  # with the passages that a retriever found in front
OF_MULTIHOP = {LENIENT: MULTIHOP, OPEN_BOOK: "multihop_open_book", RETRIEVAL: "multihop_retrieval"}
BESIDE = (CLOZE, OPEN_BOOK, RETRIEVAL, *APART, *OF_MULTIHOP.values())  # metrics beside a suite's headline

GenerateText = Callable[[list[str]], list[str]]
"""Raw prefixes in, continuations out."""


def evaluate(
    generate: Generate | Sequence[Generate],
    probes: str | Path | Sequence[Probe],
    suite: str = KNOWLEDGE,
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
    suite: str = KNOWLEDGE,
    limit: int | None = None,
) -> Score | None:
    """Score cloze probes, continued as plain text; None where the file has none."""
    chosen = drawn([probe for probe in _of_suite(probes, suite) if not probe.in_chat], limit)
    if not chosen:
        return None
    return score(chosen, generate_text([probe.prompt for probe in chosen]), suite, CLOZE)


def evaluate_apart(
    generate: Generate, probes: str | Path | Sequence[Probe], suite: str = KNOWLEDGE, limit: int | None = None
) -> Iterator[Score]:
    """Score each of the kinds that are no part of the headline; nothing where the file has none."""
    for kind in APART:
        chosen = drawn([probe for probe in _of_suite(probes, suite) if probe.kind == kind], limit)
        if chosen:
            yield score(chosen, generate([probe.chat for probe in chosen]), suite, kind)


def evaluate_open_book(
    generate: Generate, probes: str | Path | Sequence[Probe], suite: str = KNOWLEDGE, limit: int | None = None
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
    generate: Generate,
    probes: Sequence[Probe],
    retrieved: Mapping[str, Sequence[str]],
    suite: str = KNOWLEDGE,
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
            prompts = [after_passages(passages[probe.id], probe) for probe in chosen]
            yield score(chosen, generate(prompts), suite, name)


def after_passages(passages: Sequence[str], probe: Probe) -> list[Message]:
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
    """Return {kind, cycle or status: {passed, n, value}}."""
    groups: dict[str, list[bool]] = {}
    for item in items:
        groups.setdefault(str(item.detail[field]), []).append(item.passed)
    return {
        name: {"passed": sum(ok), "n": len(ok), "value": share(ok)} for name, ok in sorted(groups.items())
    }
