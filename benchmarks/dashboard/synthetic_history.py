"""Make the rows of years of synthetic history: random numbers in the amounts of real cycles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from db.cycle_names import STAGES

DISTILL_STEPS = 750
MIDTRAIN_STEPS = 250
LONG_STEPS = 1_000_000
MANY_DOCUMENTS = 100_000  # documents of the newest cycle; the others have 20
MIDTRAIN_METRICS = (
    "batch_seconds",
    "entropy",
    "eta_seconds",
    "grad_norm",
    "logprob",
    "loss",
    "lr",
    "step_seconds",
    "student_stop_mass",
    "tokens",
    "tokens_per_second",
    "top1_share",
)
DISTILL_METRICS = (
    "batch_seconds",
    "entropy",
    "eta_seconds",
    "grad_norm",
    "k1_reverse_kl",
    "k3_reverse_kl",
    "logprob",
    "loss",
    "lr",
    "repeated_share",
    "response_tokens",
    "reverse_kl",
    "signal_bias",
    "signal_concentration",
    "signal_density",
    "student_stop_mass",
    "teacher_logprob",
    "tokens",
    "top1_share",
    "truncated_share",
)
ITEMS = {"ifeval": 120, "knowledge": 60, "retention": 60}
LEVELS = {"ifeval": (0.98, 0.2, 0.96), "knowledge": (0.05, 0.75, 0.72), "retention": (0.97, 0.6, 0.93)}
TYPES = (
    "keywords:existence",
    "length_constraints:number_words",
    "change_case:english_lowercase",
    "detectable_format:title",
    "startend:quotation",
)
LONG_RUN = "distill-long"

Rows = Iterator[tuple[Any, ...]]


def tables(cycles: int) -> dict[str, Rows]:
    """Return the rows of every table but the metrics, parents before children."""
    draw = np.random.default_rng(0)
    return {
        "runs": _runs(cycles),
        "checkpoints": _checkpoints(cycles),
        "aliases": _aliases(cycles),
        "cycles": _cycles(cycles),
        "verdicts": _verdicts(cycles, draw),
        "documents": _documents(cycles),
        "scores": _scores(cycles, draw),
        "items": _items(cycles, draw),
        "reviews": _reviews(cycles),
        "traces": _traces(cycles, draw),
    }


def _at(cycle: int, minute: int = 0) -> str:
    year, month, day = 2020 + cycle // 336, 1 + cycle // 28 % 12, 1 + cycle % 28
    return f"{year}-{month:02d}-{day:02d}T08:{minute:02d}:00.000Z"


def _runs(cycles: int) -> Rows:
    for cycle in range(1, cycles + 1):
        parent = f"cycle-{cycle:04d}"
        yield _run(cycle, parent, None, "cycle", 0)
        for minute, kind in enumerate(("midtrain", "distill"), 1):
            yield _run(cycle, f"{kind}-{cycle:04d}", parent, kind, minute)
        for minute, stage in enumerate(STAGES, 4):
            yield _run(cycle, f"eval-{cycle:04d}-{stage}", parent, "eval", minute)
    yield _run(cycles, LONG_RUN, None, "distill", 9)


def _run(cycle: int, run_id: str, parent: str | None, kind: str, minute: int) -> tuple[Any, ...]:
    method = ("opd", "opd-sampled", "sft", "gkd", "opd-topk")[cycle % 5]
    settings = f'"settings": {{"method": "{method}", "steps": {DISTILL_STEPS}}}'
    config = f'{{{settings}, "student": "mid{cycle:04d}", "teacher": "clean0"}}'
    cost = '{"tokens_sampled": 200000, "tokens_scored": 200000, "tokens_trained": 400000, "seconds": 120.5}'
    result = f'{{"checkpoint": "{"mid" if kind == "midtrain" else "rec"}{cycle:04d}", "method": "{method}"}}'
    moments = _at(cycle, minute), _at(cycle, minute + 1), _at(cycle, minute + 1)
    return (
        run_id,
        parent,
        kind,
        run_id,
        "done",
        0,
        1,
        "host:1",
        None,
        *moments,
        None,
        "{}",
        "{}" if kind == "cycle" else cost,
        result,
        config,
        "{}",
    )


def _checkpoints(cycles: int) -> Rows:
    yield ("clean0", "checkpoints/clean0", "reference", None, None, "0" * 64, None, _at(0), "{}")
    for cycle in range(1, cycles + 1):
        mid, rec = f"mid{cycle:04d}", f"rec{cycle:04d}"
        before = f"rec{cycle - 1:04d}" if cycle > 1 else "clean0"
        for name, parent, kind in ((mid, before, "midtrain"), (rec, mid, "distill")):
            yield (
                name,
                f"checkpoints/{name}",
                "full",
                parent,
                None,
                name * 9,
                f"{kind}-{cycle:04d}",
                _at(cycle, 3),
                "{}",
            )


def _aliases(cycles: int) -> Rows:
    yield ("base", "clean0", _at(0))
    yield ("current", f"rec{cycles:04d}", _at(cycles))


def _cycles(cycles: int) -> Rows:
    for cycle in range(1, cycles + 1):
        yield (
            cycle,
            f"cycle-{cycle:04d}",
            "rejected" if cycle % 7 == 0 else "accepted",
            "clean0",
            f"mid{cycle:04d}",
            f"rec{cycle:04d}",
            _at(cycle),
            _at(cycle, 8),
            "{}",
        )


def _verdicts(cycles: int, draw: np.random.Generator) -> Rows:
    words = {
        "behaviour": ("recovered", "not recovered"),
        "knowledge": ("kept", "lost"),
        "retention": ("kept", "lost"),
    }
    for cycle in range(1, cycles + 1):
        for axis, (good, bad) in words.items():
            failed = cycle % 7 == 0 and axis == "behaviour"
            difference = float(draw.normal(-0.06 if failed else -0.005, 0.005))
            yield (
                cycle,
                axis,
                bad if failed else good,
                difference,
                difference - 0.02,
                difference + 0.02,
                0.03,
                120,
                2,
                3,
                0.01,
                300,
                "{}",
            )


def _documents(cycles: int) -> Rows:
    for cycle in range(1, cycles + 1):
        for number in range(20 if cycle < cycles else MANY_DOCUMENTS):
            yield (
                f"midtrain-{cycle:04d}",
                f"docs/{number:06d}.md",
                "read",
                None,
                "ab" * 32,
                "utf-8",
                900,
                220,
            )


def _scores(cycles: int, draw: np.random.Generator) -> Rows:
    """Yield three suites' scores at three stages with items, then those on earlier cycles' documents."""
    number = 0
    for cycle in range(1, cycles + 1):
        for stage, name in enumerate(STAGES):
            for suite, levels in LEVELS.items():
                number += 1
                value = float(np.clip(levels[stage] + draw.normal(0, 0.02), 0, 1))
                metric = "prompt_strict" if suite == "ifeval" else "lenient"
                yield _score(number, cycle, name, suite, metric, value, ITEMS[suite])
        for earlier in range(1, cycle):
            number += 1
            yield _score(
                number,
                cycle,
                "recovered",
                f"knowledge:{earlier}",
                "lenient",
                0.3 + 0.4 * 0.98 ** (cycle - earlier),
                60,
            )


def _score(
    number: int, cycle: int, stage: str, suite: str, metric: str, value: float, n: int
) -> tuple[Any, ...]:
    checkpoint = {"clean": "clean0", "midtrained": f"mid{cycle:04d}", "recovered": f"rec{cycle:04d}"}[stage]
    kinds = json.dumps({"by_kind": {kind: {"value": value, "n": 30} for kind in ("direct", "heldout")}})
    return (
        number,
        f"eval-{cycle:04d}-{stage}",
        checkpoint,
        suite,
        metric,
        value,
        n,
        max(0.0, value - 0.04),
        min(1.0, value + 0.04),
        f"{suite}-set" if ":" not in suite else None,
        _at(cycle, 7),
        kinds if suite.startswith("knowledge") else "{}",
    )


def _items(cycles: int, draw: np.random.Generator) -> Rows:
    number = 0
    for cycle in range(1, cycles + 1):
        for stage in range(len(STAGES)):
            for suite, count in ITEMS.items():
                number += 1
                passed = draw.random(count) < LEVELS[suite][stage]
                for place, ok in enumerate(passed.tolist()):
                    detail = json.dumps({"instruction_id_list": [TYPES[place % 5]], "passed": [ok]})
                    answer = f"An answer of cycle {cycle} to question {place}, in a few words. " * 3
                    key, question = f"{suite}-{place:04d}", f"Question {place} of {suite}?"
                    yield number, key, ok, question, answer, detail
        number += cycle - 1


def _reviews(cycles: int) -> Rows:
    for cycle in range(1, cycles - 2):
        yield (
            cycle,
            cycle,
            "reject" if cycle % 7 == 0 else "approve",
            "looked at the samples",
            "sam",
            f"token-{cycle}",
            _at(cycle, 30),
        )


def _traces(cycles: int, draw: np.random.Generator) -> Rows:
    words = ["the", " river", " runs", " by", " a", " mill", ",", " and", " nobody", " knows"]
    for cycle in range(max(1, cycles - 50), cycles + 1):
        for step in range(0, DISTILL_STEPS + 1, 75):
            for place in range(4):
                yield (
                    f"distill-{cycle:04d}",
                    step,
                    place,
                    "Say something about a river.",
                    "exact",
                    0.2,
                    60,
                    _tokens(words, draw),
                )


def _tokens(words: list[str], draw: np.random.Generator) -> str:
    picked = draw.integers(0, len(words), 60).tolist()
    values = draw.exponential(0.2, 60).round(4).tolist()
    top = [[[words[(i + k) % len(words)], -0.1 - k] for k in range(5)] for i in picked]
    return json.dumps(
        {
            "finished": True,
            "ids": picked,
            "pieces": [words[i] for i in picked],
            "student": [-0.2] * 60,
            "teacher": [-0.4] * 60,
            "divergence": values,
            "student_top": top,
            "teacher_top": top,
        }
    )


def points(cycles: int, long_steps: int) -> Iterator[Rows]:
    """Yield the metric points of each run in key order, which is their order on disk."""
    draw = np.random.default_rng(1)
    kinds = (("distill", DISTILL_METRICS, DISTILL_STEPS), ("midtrain", MIDTRAIN_METRICS, MIDTRAIN_STEPS))
    for kind, names, steps in kinds:
        for cycle in range(1, cycles + 1):
            yield chain.from_iterable(_curve(f"{kind}-{cycle:04d}", name, steps, draw) for name in names)
        if kind == "distill":
            yield _curve(LONG_RUN, "loss", long_steps, draw)


def _curve(run_id: str, name: str, steps: int, draw: np.random.Generator) -> Rows:
    """Return an exponential decay with noise."""
    place = np.arange(1, steps + 1)
    values = np.exp(-3 * place / steps) + draw.normal(0, 0.05, steps)
    for step, value in zip(place.tolist(), values.tolist(), strict=True):
        yield run_id, name, step, value, 1.7e9 + step
