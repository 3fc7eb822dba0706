"""Every post-training method is one gradient with three dials; each row below is one setting of them.

    grad = E over states [ sum over tokens of  signal(token) * grad log p(token) ]  + rails

states   who wrote the tokens:  data | student | mix:P (P of the sequences by the student) | teacher |
         student-kept (where the reward is 1) | student-continued (by the teacher) | teacher-mix:P (by token)
signal   what a token is told:  label (it is right) | label_dft (as far as the student agrees) |
         reverse_kl  KL(student||teacher), forward_kl  KL(teacher||student), jsd: exact, over the vocabulary |
         topk_reverse_kl: over the teacher's k likeliest and the rest as one | sampled_reverse_kl: the token's
         log q - log p as its advantage | reward.     lam mixes: lam * teacher + (1 - lam) * reward
teacher  base (a frozen checkpoint, the clean one unless named) | self (as it began) | self-ema | routed,
context  seeing what the student does not:  demonstrations | rules | system | answer | hints
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recovery.errors import InputError
from recovery.methods.method import Method, set_dials
from recovery.methods.rules import suggest

_LU, _BROWN = "Lu 2025, On-Policy Distillation", "Brown 2026, SFT, RL, and on-policy distillation"

# fmt: off
ROWS = (
    #       name            states               signal                teacher     context
    Method("sft",          "data",              "label",              "none",     "none", _BROWN,
           "imitate the data's tokens"),
    Method("rft",          "student-kept",      "label",              "none",     "none", _BROWN,
           "imitate one's own answers that were right", group_size=4),
    Method("seqkd",        "teacher",           "label",              "base",     "none", "Kim & Rush 2016",
           "imitate the teacher's answers (off-policy distillation)"),
    Method("asft",         "data",              "label",              "base",     "none", "Zhu 2026, ASFT",
           "imitate the data, held near the clean model", anchor_beta=0.5),
    Method("dft",          "data",              "label_dft",          "none",     "none", "Wu 2025, DFT",
           "imitate the data as far as the student already agrees"),
    Method("rl",           "student",           "reward",             "none",     "none", "Shao 2024, GRPO",
           "more of what beat the other tries at a prompt", group_size=8, epochs=2, ratio_clip=0.2),
    Method("opd",          "student",           "reverse_kl",         "base",     "none", _LU,
           "write, and have every token's odds corrected by the clean model"),
    Method("opd-sampled",  "student",           "sampled_reverse_kl", "base",     "none", _LU,
           "the same from one number a token", epochs=2, ratio_clip=0.2),
    Method("opd-topk",     "student",           "topk_reverse_kl",    "base",     "none", _LU,
           "the same from the k log-probs that a remote teacher sends"),
    Method("gkd",          "mix:0.5",           "jsd",                "base",     "none", "Agarwal 2024, GKD",
           "half data, half own tokens; a divergence between forward and reverse KL"),
    Method("minillm",      "teacher-mix:0.2",   "reverse_kl",         "base",     "none", "Gu 2023, MiniLLM",
           "write with the teacher's hand on the pen, and discount its share", importance_clip=2.0),
    Method("opd-continue", "student-continued", "label",              "base",     "none", "arXiv 2605.22731",
           "start, let the teacher go on, imitate how it went on (DAgger)"),
    Method("opd-reward",   "student",           "reverse_kl",         "base",     "none", _BROWN,
           "lam of the teacher's correction, the rest reward", lam=0.7, group_size=4),
    Method("opd-multi",    "student",           "reverse_kl",         "routed",   "none", "MiMo-V2-Flash",
           "join specialists: each prompt has its own teacher"),
    Method("sdft",         "student",           "reverse_kl",         "self-ema", "demonstrations",
           "Shenfeld 2026, SDFT", "become what one is when shown examples"),
    Method("opcd",         "student",           "reverse_kl",         "self",     "system",
           "Ye 2026, OPCD", "become what one is under a system prompt"),
    Method("deliberate",   "teacher",           "label",              "self",     "rules",
           "Guan 2025, Deliberative Alignment", "imitate one's own answers under the rules, without them"),
    Method("opsd",         "student",           "reverse_kl",         "self",     "answer",
           "Zhao 2026, OPSD", "become what one is when the answer is in view", entry_clip=0.05),
)
# fmt: on
METHODS: dict[str, Method] = {row.name: row for row in ROWS}
METHODS["pid"] = replace(
    METHODS["opsd"],
    name="pid",
    context="hints",
    source="Penaloza 2026, PID",
    summary="become what one is when given privileged hints",
)


def get(name: str) -> Method:
    """The row of that name."""
    if name not in METHODS:
        raise InputError(f"no method is called {name!r}{suggest(name, METHODS)}: see `recover methods`")
    return METHODS[name]


def with_dials(method: Method | str, values: Mapping[str, Any]) -> Method:
    """The row with dials set by hand, as in {"signal": "jsd", "beta": "0.5", "states": "mix:0.5"}."""
    return set_dials(get(method) if isinstance(method, str) else method, dict(values))
