"""Importance weights against the truth, on a policy small enough to enumerate every sequence."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from recovery.batches.teacher_scores import TeacherScores
from recovery.methods.method import Method
from recovery.methods.table import with_dials
from recovery.objective import divergences
from recovery.objective.importance import PrefixRatios
from recovery.objective.objective import Objective
from recovery.objective.token_signals import TokenSignals

V, T = 3, 4
SEQUENCES = list(itertools.product(range(V), repeat=T))
Policy = dict[tuple[int, ...], Tensor]  # log-probabilities after every prefix


def policy(seed: int) -> Policy:
    generator = torch.Generator().manual_seed(seed)
    prefixes = itertools.chain.from_iterable(itertools.product(range(V), repeat=t) for t in range(T))
    return {prefix: torch.randn(V, generator=generator).mul(0.7).log_softmax(-1) for prefix in prefixes}


STUDENT, SAMPLER, TEACHER = policy(0), policy(1), policy(2)


def likelihood(of: Policy, sequence: tuple[int, ...]) -> float:
    return float(torch.stack([of[sequence[:t]][sequence[t]] for t in range(len(sequence))]).sum().exp())


def mean_under(of: Policy, method: Method, chunk: int | None = None) -> tuple[float, Tensor]:
    """The objective's mean over all sequences as `of` samples them, and its gradient in every state."""
    places = [(sequence, t) for sequence in SEQUENCES for t in range(T)]
    states_NV = torch.stack([STUDENT[sequence[:t]] for sequence, t in places]).requires_grad_()
    identity = torch.nn.Identity()
    signals = TokenSignals(
        scores=TeacherScores(torch.stack([TEACHER[sequence[:t]] for sequence, t in places]), identity),
        behaviour_N=torch.stack([of[sequence[:t]][sequence[t]] for sequence, t in places]),
        weights_N=torch.tensor([likelihood(of, sequence) for sequence, _ in places]),
        rows_N=torch.arange(len(SEQUENCES)).repeat_interleave(T),
    )
    tokens_N = torch.tensor([sequence[t] for sequence, t in places])
    loss = Objective(method, chunk=chunk)(states_NV, identity, tokens_N, signals)
    loss.value.backward()
    by_prefix = {prefix: torch.zeros(V) for prefix in STUDENT}
    assert states_NV.grad is not None
    for (sequence, t), gradient in zip(places, states_NV.grad, strict=True):
        by_prefix[sequence[:t]] += gradient
    return loss.value.item(), torch.stack(list(by_prefix.values()))


METHODS = {
    "reverse KL": with_dials("opd", {"importance_clip": 1e6}),
    "forward KL": with_dials("opd", {"importance_clip": 1e6, "signal": "forward_kl"}),
    "top-k": with_dials("opd", {"importance_clip": 1e6, "signal": "topk_reverse_kl", "k": 2}),
    "labels": with_dials("rft", {"importance_clip": 1e6}),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("chunk", [None, 7])
def test_answers_of_an_older_policy_have_the_mean_of_the_student(name: str, chunk: int | None) -> None:
    truth, true_gradient = mean_under(STUDENT, METHODS[name])
    found, gradient = mean_under(SAMPLER, METHODS[name], chunk)
    assert found == pytest.approx(truth, rel=1e-4)
    torch.testing.assert_close(gradient, true_gradient, atol=1e-5, rtol=1e-4)
    free = with_dials(METHODS[name], {"importance_clip": "off"})
    uncorrected, _ = mean_under(SAMPLER, free)
    assert abs(uncorrected - truth) > 0.01 * truth


def test_the_weight_of_the_token_itself_would_be_biased() -> None:
    """A divergence over the vocabulary does not depend on the token that was drawn from it."""
    truth, _ = mean_under(STUDENT, METHODS["reverse KL"])
    by_token = 0.0
    for sequence in SEQUENCES:
        for t in range(T):
            prefix, token = sequence[:t], sequence[t]
            kl = divergences.exact_reverse_kl(STUDENT[prefix][None], TEACHER[prefix][None])
            ratio = (STUDENT[prefix][token] - SAMPLER[prefix][token]).exp()
            by_token += likelihood(SAMPLER, sequence) * float(ratio * kl)
    assert abs(by_token - truth) > 0.01 * truth


def test_a_clip_bounds_the_weight_of_every_prefix() -> None:
    clipped = with_dials("opd", {"importance_clip": 1.5})
    truth, _ = mean_under(STUDENT, METHODS["reverse KL"])
    assert mean_under(SAMPLER, clipped)[0] < truth


def test_a_mixture_of_student_and_teacher_can_reach_the_clip() -> None:
    """One token weighs at most 1 / (1 - share); a long prefix weighs the product."""
    share, length = 0.2, 40
    ratios = PrefixRatios()
    log_ratio_N = torch.full((length,), -math.log(1 - share))
    weights_N = ratios.through(log_ratio_N, torch.zeros(length, dtype=torch.long)).exp()
    clip = with_dials("minillm", {}).importance_clip
    assert clip is not None
    assert float(weights_N[0]) < clip < float(weights_N[-1])


@pytest.mark.parametrize("sizes", [[9], [1] * 9, [4, 5], [3, 3, 3], [2, 6, 1]])
def test_sums_go_on_over_chunks_and_start_anew_with_each_sequence(sizes: list[int]) -> None:
    values = torch.arange(1.0, 10.0)
    rows = torch.tensor([0, 0, 0, 4, 4, 2, 2, 2, 7])
    ratios = PrefixRatios()
    parts = zip(values.split(sizes), rows.split(sizes), strict=True)
    found = torch.cat([ratios.through(part, at) for part, at in parts])
    assert found.tolist() == [1, 3, 6, 4, 9, 6, 13, 21, 9]


def test_a_sum_is_exact_behind_many_sequences_too() -> None:
    """Each is a difference of sums over the whole chunk, and near 100 fp32's numbers are 8e-6 apart."""
    rows = torch.arange(100_000) // 10
    small = torch.full((100_000,), 1e-3)
    assert float(PrefixRatios().through(small, rows)[-1]) == pytest.approx(0.01, abs=1e-9)
