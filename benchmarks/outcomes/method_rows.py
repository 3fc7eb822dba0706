"""Define what each method row must change on the microworld, with its settings, the same for every seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.outcomes.lab import RECOVERY_RATE, SHOUT

Scores = dict[str, float]
CLOSE = 0.05  # behaviour within five points of clean counts as recovered
CONCENTRATION = "signal_concentration"
# The divergence whose concentration the clip of `opsd` limits.
AS_MEASURED = {"signal": "reverse_kl", "temperature": 1.0}
FORGET = ("others", "retention")


@dataclass(frozen=True)
class Outcome:
    """The result of one training: scores before and after, clean scores, start and end of each metric."""

    clean: Scores
    before: Scores
    after: Scores
    metrics: dict[str, list[float]]

    @property
    def forgotten(self) -> float:
        """Return clean minus after, averaged over the suites that should not have changed."""
        return sum(self.clean[name] - self.after[name] for name in FORGET) / len(FORGET)

    def rose(self, name: str) -> float:
        return self.after[name] - self.before[name]

    def mean(self, metric: str) -> float:
        return sum(self.metrics[metric]) / len(self.metrics[metric])


Results = Mapping[str, Outcome]
Claim = Callable[[Outcome, Results], bool]


@dataclass(frozen=True)
class Row:
    """One training: a method, its starting checkpoint, its data, and the claim that must hold."""

    label: str
    method: str
    student: str  # clean, midtrained, or the label of an earlier row
    prompts: str
    measures: tuple[str, ...]
    claim: str
    holds: Claim
    settings: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float = RECOVERY_RATE
    needs: tuple[str, ...] = ()  # rows that the claim, or a teacher, refers to
    routes: Mapping[str, str] = field(default_factory=dict)


def _back(outcome: Outcome, results: Results) -> bool:
    return outcome.after["behaviour"] >= outcome.clean["behaviour"] - CLOSE


def _habit(name: str, least: float = 0.5) -> Claim:
    return lambda outcome, results: outcome.rose(name) >= least


def _rewarded(outcome: Outcome, results: Results) -> bool:
    return outcome.metrics["reward"][-1] > outcome.metrics["reward"][0] + 0.05


def _forgets_less(outcome: Outcome, results: Results) -> bool:
    """Return whether the capitals are learned, with less forgetting than by supervised fine-tuning."""
    return outcome.after["capitals"] >= 0.8 and outcome.forgotten < results["sft"].forgotten


def _recovery(method: str, **settings: Any) -> Row:
    return Row(
        method,
        method,
        "midtrained",
        "prompts.jsonl",
        ("behaviour", "knowledge", "retention"),
        "behaviour within 5 points of clean",
        _back,
        settings,
        2.5e-4,
    )


def _taught(
    method: str, claim: str, holds: Claim, settings: Mapping[str, Any], measure: str = "capitals", **rest: Any
) -> Row:
    """Return the training of the clean model on plain requests."""
    return Row(method, method, "clean", "plain.jsonl", (measure, *FORGET), claim, holds, settings, **rest)


DIALS = {"minibatches": 5}
SHORT = {"steps": 12, "prompts_per_step": 27, "dials": {"minibatches": 2}}  # half of the requests per step
FOREIGN = {**SHORT, "steps": 18}  # another author's sentences take longer to learn

ROWS = (
    _recovery("opd", dials=DIALS),
    _recovery("opd-near", dials=DIALS),
    _recovery("opd-sampled", dials=DIALS),
    _recovery("opd-topk", dials=DIALS),
    _recovery("gkd", dials=DIALS),
    _recovery("seqkd", dials=DIALS),
    _recovery("minillm", dials=DIALS),
    _recovery("opd-continue", dials={**DIALS, "continuation": 32}),
    _recovery("opd-reward", dials=DIALS, reward="ifeval", prompts_per_step=32),
    replace(
        _recovery("rft", steps=20, prompts_per_step=32, reward="ifeval"),
        claim="behaviour rises by 5 points or more",
        holds=_habit("behaviour", 0.05),
    ),
    replace(
        _recovery("rl", steps=20, prompts_per_step=16, reward="ifeval", dials={"minibatches": 4}),
        claim="its reward rises by 0.05 or more",
        holds=_rewarded,
    ),
    _taught(
        "opcd",
        "capitals, as the system prompt said, without it: +50 points",
        _habit("capitals"),
        {**SHORT, "context": SHOUT},
    ),
    _taught(
        "deliberate",
        "the rule (no commas) holds without the rules: +30 points",
        _habit("commas", 0.3),
        SHORT,
        measure="commas",
    ),
    _taught(
        "pid",
        "what the hints asked for, without hints: +50 points",
        _habit("capitals"),
        {**SHORT, "dials": {"minibatches": 2, "entry_clip": "off"}},
    ),  # the method down-weights the tokens of a new habit
    _taught(
        "passage",
        "capitals, as the text in the teacher's view said, without it: +50 points",
        _habit("capitals"),
        {**SHORT, "context": SHOUT},
    ),
    _taught(
        "sft",
        "the task (someone else's capitals) is learned: 80 % or more",
        lambda o, results: o.after["capitals"] >= 0.8,
        FOREIGN,
    ),
    _taught(
        "dft",
        "takes up little of what it finds absurd: forgets less than sft",
        lambda o, results: o.forgotten < results["sft"].forgotten,
        FOREIGN,
        needs=("sft",),
    ),
    _taught(
        "asft",
        "the task, forgetting less than sft",
        _forgets_less,
        {**FOREIGN, "dials": {"minibatches": 2, "signal": "label", "anchor_kl": "reverse"}},
        needs=("sft",),
    ),
    _taught(
        "sdft",
        "the task from demonstrations, forgetting less than sft",
        _forgets_less,
        {
            **SHORT,
            "steps": 11,
            "context": "examples.jsonl",
            "dials": {"minibatches": 2, "signal": "jsd", "beta": 0.9},
        },
        needs=("sft",),
    ),
    Row(
        "sdft-reverse",
        "sdft-reverse",
        "clean",
        "plain.jsonl",
        (),
        "a signal to compare with",
        lambda o, results: True,
        {**SHORT, "steps": 1, "context": "examples.jsonl"},
    ),
    Row(
        "opsd",
        "opsd",
        "clean",
        "prompts.jsonl",
        (),
        "a signal to compare with",
        lambda o, results: True,
        {"steps": 1, "dials": AS_MEASURED},
    ),
    Row(
        "opsd, no clip",
        "opsd",
        "clean",
        "prompts.jsonl",
        (),
        "a signal more concentrated than with the clip, by a tenth or more",
        lambda o, results: o.mean(CONCENTRATION) > 1.1 * results["opsd"].mean(CONCENTRATION),
        {"steps": 1, "dials": {**AS_MEASURED, "entry_clip": "off"}},
        needs=("opsd",),
    ),
    Row(
        "opd-multi",
        "opd-multi",
        "clean",
        "routed.jsonl",
        ("capitals", "behaviour", *FORGET),
        "plain requests as one specialist answers them (+50 points), all others as the clean model does: "
        "behaviour within 5 points of clean",
        lambda o, results: o.rose("capitals") >= 0.5 and _back(o, results),
        {"steps": 24, "dials": DIALS},
        2.5e-4,
        needs=("opcd",),
        routes={"rest": "clean", "plain": "opcd"},
    ),
)
