"""A home for the dashboard's tests, written through the tracker: scores, items, verdicts, documents."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from db.writes.tracker import Tracker

STAGES = ("clean", "midtrained", "recovered")
KINDS = ("change_case:english_capital", "punctuation:no_comma", "startend:end_checker")
PASSES = {"clean": (1, 1, 1, 1, 1, 0), "midtrained": (0, 0, 1, 0, 0, 0), "recovered": (1, 1, 1, 1, 0, 1)}
SECRET = "hf_abcdefghijklmnopqrstuv"
Words = Callable[[], str]


def plain() -> Words:
    """Words that differ from each other and do no harm."""
    numbers = itertools.count()
    return lambda: f"some words number {next(numbers)}"


def fill(tracker: Tracker, cycles: int = 3, words: Words | None = None) -> list[int]:
    """Finished cycles: the first accepted, the others rejected. `words` gives prompts, answers, names."""
    say = words or plain()
    return [_cycle(tracker, number, say) for number in range(1, cycles + 1)]


def _cycle(tracker: Tracker, number: int, say: Words) -> int:
    config = {"docs": say(), "settings": {"lr": 0.1 * number, "hub": {"token": SECRET + str(number)}}}
    run = tracker.start_run("cycle", config=config, seed=number, versions={"torch": "2.13", "x": say()})
    recorded = tracker.record_cycle(run.id)
    learned = tracker.start_run("midtrain", parent=run.id, key="midtrain")
    documents = [{"path": f"{i} {say()}", "status": "read", "characters": 10, "tokens": 3} for i in range(50)]
    documents.append({"path": "broken.bin", "status": "skipped", "reason": say()})
    tracker.record_documents(learned.id, documents)
    tracker.finish_run(learned.id, cost={"tokens_trained": 1000, "seconds": 60.0})
    for stage in STAGES:
        checkpoint = "clean0" if stage == "clean" else f"{stage}{number}"
        tracker.record_checkpoint(checkpoint, path=f"/c/{checkpoint}", kind="full", sha256=checkpoint * 8)
        column: dict[str, Any] = {f"{stage}_id": checkpoint}
        tracker.record_cycle(run.id, **column)
        asked = tracker.start_run("eval", parent=run.id, key=f"eval:{stage}")
        for suite in ("ifeval", "knowledge", "retention"):
            tracker.record_scores(asked.id, checkpoint, [_score(suite, stage, number, say)])
        tracker.finish_run(asked.id, cost={"tokens_sampled": 200, "seconds": 5.0})
    axes = {axis: _axis(number) for axis in ("behaviour", "knowledge", "retention")}
    axes["knowledge"] |= {"learned": {"words": "learned", "difference": 0.5, "interval": [0.25, 0.75]}}
    tracker.record_verdicts(recorded, axes)
    tracker.record_cycle(run.id, status="accepted" if number == 1 else "rejected")
    tracker.finish_run(run.id)
    return recorded


def _score(suite: str, stage: str, number: int, say: Words) -> dict[str, Any]:
    passed = [bool(one) for one in PASSES[stage]]
    items = [_item(suite, stage, number, index, ok, say) for index, ok in enumerate(passed)]
    value = sum(passed) / len(passed)
    counts = {kind: {"passed": sum(passed[i::3]), "n": 2} for i, kind in enumerate(KINDS)}
    details = (
        {"by_instruction": counts}
        if suite == "ifeval"
        else {"by_kind": {"direct": {"passed": sum(passed), "n": 6}}}
    )
    metric = "prompt_strict" if suite == "ifeval" else "lenient"
    interval = [max(0.0, value - 0.1), min(1.0, value + 0.1)]
    return {
        "suite": suite,
        "metric": metric,
        "value": value,
        "n": 6,
        "interval": interval,
        "items": items,
        "details": details,
    }


PROMPTS: dict[tuple[Any, ...], str] = {}


def _item(suite: str, stage: str, number: int, index: int, ok: bool, say: Words) -> dict[str, Any]:
    """The prompt is the same at every stage."""
    if stage == "clean":
        PROMPTS[suite, number, index] = say()
    kind = KINDS[index % 3]
    detail = (
        {"instructions": [kind], "strict": [ok]}
        if suite == "ifeval"
        else {"kind": "direct", "answers": [say()]}
    )
    prompt = PROMPTS[suite, number, index]
    return {"key": f"p{index}", "prompt": prompt, "response": say(), "passed": ok, "detail": detail}


def _axis(number: int) -> dict[str, Any]:
    ok = number == 1
    return {
        "outcome": "kept" if ok else "underpowered",
        "difference": -0.01,
        "lower_bound": -0.02 if ok else -0.05,
        "upper_bound": 0.01,
        "margin": 0.03,
        "n": 6,
        "gained": 1,
        "lost": 1,
        "p_value": 0.5,
        "needed_n": None if ok else 1200,
        "reference": "clean",
        "p_mcnemar": 1.0,
    }
