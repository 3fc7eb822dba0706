"""The table of post-training methods: each row is one setting of three dials and their safety rails.

    grad = E over states [ sum over tokens of  signal(token) * grad log p(token) ]  + rails

states   which tokens are trained on:  data | student | mix:P (P of the sequences by the student) | teacher |
         student-kept (where the reward is 1) | student-continued (by the teacher) | teacher-mix:P (by token)
signal   label (cross-entropy) | label_dft (weighted by the label's probability) |
         reverse_kl  KL(student||teacher), forward_kl  KL(teacher||student), jsd: exact, over the vocabulary |
         topk_reverse_kl: over the teacher's top k and a bucket for the rest |
         sampled_reverse_kl: log q - log p of the sampled token as its advantage | reward |
         lam mixes: lam * teacher + (1 - lam) * reward
teacher  base (a frozen checkpoint, by default the clean one) | previous (the one before midtraining) |
         self (the initial student) | self-ema | routed
context  what only the teacher sees:  demonstrations | rules | system | answer | hints | passage
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from recovery.errors import InputError
from recovery.methods.method import Method, set_dials
from recovery.methods.rules import suggest
from recovery.methods.sources import KEEPS

_LU, _BROWN = "Lu 2025, On-Policy Distillation", "Brown 2026, SFT, RL, and on-policy distillation"
_SDFT, _OPSD = "Shenfeld 2026, SDFT", "Zhao 2026, OPSD"

# fmt: off
ROWS = (
    #       name            states               signal                teacher     context
    Method("sft",          "data",              "label",              "none",     "none", _BROWN,
           "imitate the data's answers"),
    Method("rft",          "student-kept",      "label",              "none",     "none", _BROWN,
           "imitate the student's answers that earn the whole reward", group_size=4),
    Method("seqkd",        "teacher",           "label",              "base",     "none", "Kim & Rush 2016",
           "imitate the teacher's answers (off-policy distillation)"),
    Method("asft",         "data",              "label_dft",          "base",     "none", "Zhu 2026, ASFT",
           "dft, anchored to the clean model", anchor_beta=0.1, anchor_kl="forward"),
    Method("dft",          "data",              "label_dft",          "none",     "none", "Wu 2025, DFT",
           "imitate the data, each token weighted by its probability"),
    Method("rl",           "student",           "reward",             "none",     "none", "Shao 2024, GRPO",
           "reinforce answers that beat others to the same prompt", group_size=8, epochs=2, ratio_clip=0.2),
    Method("opd",          "student",           "reverse_kl",         "base",     "none", _LU,
           "move every token's distribution in the student's answers towards the clean model's"),
    Method("opd-near",     "student",           "reverse_kl",         "base",     "none",
           "cf. arXiv 2609.24646", "opd towards a teacher within kl_budget of the student", kl_budget=0.1),
    Method("opd-sampled",  "student",           "sampled_reverse_kl", "base",     "none", _LU,
           "opd from one log-probability per token", epochs=2, ratio_clip=0.2),
    Method("opd-topk",     "student",           "topk_reverse_kl",    "base",     "none", _LU,
           "opd from the k log-probabilities that a remote teacher returns"),
    Method("gkd",          "mix:0.5",           "jsd",                "base",     "none", "Agarwal 2024, GKD",
           "a divergence between forward and reverse KL, half on data, half on the student's answers"),
    Method("minillm",      "teacher-mix:0.2",   "reverse_kl",         "base",     "none", "Gu 2023, MiniLLM",
           "opd on tokens sampled from student and teacher together", importance_clip=2.0),
    Method("opd-continue", "student-continued", "label",              "base",     "none", "arXiv 2605.22731",
           "imitate the teacher's continuation of the student's answers (DAgger)"),
    Method("opd-reward",   "student",           "reverse_kl",         "base",     "none", _BROWN,
           "lam of opd, the rest reward", lam=0.7, group_size=4),
    Method("opd-multi",    "student",           "reverse_kl",         "routed",   "none", "MiMo-V2-Flash",
           "join specialists: each prompt names its teacher"),
    Method("sdft",         "student",           "forward_kl",         "self-ema", "demonstrations", _SDFT,
           "answer without demonstrations as with them"),
    Method("sdft-reverse", "student",           "reverse_kl",         "self-ema", "demonstrations", _SDFT,
           "sdft by the reverse KL"),
    Method("opcd",         "student",           "reverse_kl",         "self",     "system",
           "Ye 2026, OPCD", "answer without a system prompt as with it"),
    Method("deliberate",   "teacher",           "label",              "self",     "rules",
           "Guan 2025, Deliberative Alignment", "imitate answers that the model wrote with rules in view"),
    Method("opsd",         "student",           "jsd",                "self",     "answer", _OPSD,
           "answer as with the solution in view", temperature=1.1, entry_clip=0.05),
    Method("pid",          "student",           "reverse_kl",         "self",     "hints",
           "Penaloza 2026, PID", "answer as with privileged hints in view", entry_clip=0.05),
    Method("passage",      "teacher",            "forward_kl",         "base",     "passage",
           "Kujanpää 2025, prompt distillation", "answer questions about a document as with it in view"),
)
# fmt: on


def by_name(rows: Sequence[Method]) -> dict[str, Method]:
    """Return the rows by name, each with what it keeps of its source where that is written."""
    return {row.name: replace(row, keeps=KEEPS.get(row.name, "")) for row in rows}


METHODS = by_name(ROWS)


def get(name: str) -> Method:
    """Return the row of that name."""
    if name not in METHODS:
        raise InputError(f"no method is called {name!r}{suggest(name, METHODS)}: see `recover methods`")
    return METHODS[name]


def with_dials(method: Method | str, values: Mapping[str, Any]) -> Method:
    """Return a row with some dials changed, as in {"signal": "jsd", "beta": "0.5", "states": "mix:0.5"}."""
    return set_dials(get(method) if isinstance(method, str) else method, dict(values))
