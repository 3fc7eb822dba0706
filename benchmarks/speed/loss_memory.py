"""Measure the peak memory of the distillation loss: chunked against naive, backward included."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from functools import partial

import torch

from benchmarks.common import Report, Row, run
from recovery.batches.teacher_scores import TeacherScores
from recovery.methods.table import get
from recovery.objective.objective import Objective
from recovery.objective.token_signals import TokenSignals

HIDDEN, VOCABULARY, TOKENS = 64, 150_000, 1024


def fill(report: Report, asked: argparse.Namespace) -> None:
    cases = (
        [(TOKENS, VOCABULARY)]
        if asked.quick
        else [
            (TOKENS // 2, VOCABULARY),
            (TOKENS, VOCABULARY),
            (TOKENS, VOCABULARY // 3),
            (2 * TOKENS, VOCABULARY),
        ]
    )
    rows: list[Row] = []
    for tokens, vocabulary in cases:
        peaks = {form: measured(form, tokens, vocabulary) for form in ("naive", "chunked")}
        rows.append(
            {
                "tokens": tokens,
                "vocabulary": vocabulary,
                "naive MiB": peaks["naive"],
                "chunked MiB": peaks["chunked"],
                "share": peaks["chunked"] / peaks["naive"],
            }
        )
    report.tables[""] = rows
    share = next(row["share"] for row in rows if (row["tokens"], row["vocabulary"]) == (TOKENS, VOCABULARY))
    report.target(
        f"peak at V = {VOCABULARY:,} and {TOKENS:,} tokens, as a share of the naive form's",
        share,
        "at most",
        1 / 8,
    )
    report.notes.append(
        f"Exact reverse KL and its gradient with respect to {HIDDEN}-wide states and the head, fp32, "
        "CPU. Each number is the growth of a process's peak resident memory over what it held before "
        "(weights, states, their gradients), each form in a process of its own. The naive form holds "
        "(tokens, V) tensors; chunks of it do not grow with the tokens."
    )


def measured(form: str, tokens: int, vocabulary: int) -> float:
    """Return the peak MiB, measured in a fresh process because a peak cannot be reset."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed.loss_memory",
        "--child",
        form,
        str(tokens),
        str(vocabulary),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout))


def child(form: str, tokens: int, vocabulary: int) -> None:
    torch.manual_seed(0)
    student, teacher = (torch.nn.Linear(HIDDEN, vocabulary, bias=False) for _ in range(2))
    teacher.requires_grad_(False)
    states_ND = torch.randn(tokens, HIDDEN, requires_grad=True)
    theirs_ND = torch.randn(tokens, HIDDEN)
    for tensor in (student.weight, states_ND):
        tensor.grad = torch.zeros_like(tensor)  # allocated before the measurement, in both forms
    tokens_N = torch.randint(0, vocabulary, (tokens,))
    before = peak_mib()
    if form == "naive":
        naive(student, teacher, states_ND, theirs_ND)
    else:
        scores = TeacherScores(
            hidden_ND=theirs_ND, head=partial(torch.nn.functional.linear, weight=teacher.weight)
        )
        objective = Objective(get("opd"))
        objective(states_ND, student, tokens_N, TokenSignals(scores)).value.backward()
    sys.stdout.write(json.dumps(peak_mib() - before))


def naive(
    student: torch.nn.Module, teacher: torch.nn.Module, states_ND: torch.Tensor, theirs_ND: torch.Tensor
) -> None:
    """Compute the loss as it is usually written."""
    student_NV = student(states_ND).log_softmax(-1)
    with torch.no_grad():
        teacher_NV = teacher(theirs_ND).log_softmax(-1)
    (student_NV.exp() * (student_NV - teacher_NV)).sum().backward()


def peak_mib() -> float:
    """Return the peak resident memory; Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    if "--child" in sys.argv:
        form, tokens, vocabulary = sys.argv[2:5]
        child(form, int(tokens), int(vocabulary))
    else:
        run("loss memory", "How much memory does the loss need at its peak?", fill)
