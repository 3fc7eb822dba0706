"""Divergences against numbers worked by hand, brute force over small vocabularies, properties, and TRL."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recovery.objective import divergences as dv
from tests.support.present import present
from tests.support.tensors import cosine

# The worked example of "On-Policy Distillation": a student and a teacher over the tokens A, B, C.
STUDENT, TEACHER = [0.5, 0.4, 0.1], [0.7, 0.2, 0.1]
Divergence = Callable[[Tensor, Tensor], Tensor]


def jsd(beta: float) -> Divergence:
    return lambda student, teacher: dv.exact_jsd(student, teacher, beta)


EXACT: dict[str, Divergence] = {
    "reverse": dv.exact_reverse_kl,
    "forward": dv.exact_forward_kl,
    "jsd .1": jsd(0.1),
    "jsd .5": jsd(0.5),
    "jsd .9": jsd(0.9),
}


def logs(probabilities: list[float]) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


def gradient(function: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """d sum(function(log_softmax(z))) / d z."""
    logits = logits.detach().clone().requires_grad_(True)
    function(logits.log_softmax(-1)).sum().backward()
    assert logits.grad is not None
    return logits.grad


def against(loss: Callable[[Tensor, Any], Tensor], other: Any) -> Callable[[Tensor], Tensor]:
    """The loss as a function of its first argument."""
    return lambda logprobs: loss(logprobs, other)


def pair(vocabulary: int = 8, rows: int = 1, seed: int = 0, scale: float = 1.5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, rows, vocabulary, generator=generator, dtype=torch.float64) * scale
    return student, teacher.log_softmax(-1)


# ---- numbers worked by hand


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("forward", 0.7 * math.log(1.4) + 0.2 * math.log(0.5)),  # 0.0969
        ("reverse", 0.5 * math.log(5 / 7) + 0.4 * math.log(2)),  # 0.1090
        ("jsd .5", 0.02536225),  # m = [.6 .3 .1]
    ],
)
def test_worked_example(name: str, expected: float) -> None:
    assert EXACT[name](logs(STUDENT), logs(TEACHER)).item() == pytest.approx(expected, abs=1e-8)


def test_worked_example_is_the_printed_one() -> None:
    assert dv.exact_forward_kl(logs(STUDENT), logs(TEACHER)).item() == pytest.approx(0.097, abs=5e-4)
    assert dv.exact_reverse_kl(logs(STUDENT), logs(TEACHER)).item() == pytest.approx(0.109, abs=5e-4)


def test_worked_gradients() -> None:
    """Reverse: p (log p/q - KL). Forward: p - q."""
    reverse = gradient(lambda p: dv.exact_reverse_kl(p, logs(TEACHER)), logs(STUDENT))
    by_hand = torch.tensor([[-0.22274749, 0.23364977, -0.01090228]], dtype=torch.float64)
    torch.testing.assert_close(reverse, by_hand)
    forward = gradient(lambda p: dv.exact_forward_kl(p, logs(TEACHER)), logs(STUDENT))
    torch.testing.assert_close(forward, torch.tensor([[-0.2, 0.2, 0.0]], dtype=torch.float64))


def test_worked_topk() -> None:
    ids = torch.tensor([[0]])
    bucket = dv.topk_reverse_kl(logs(STUDENT), ids, logs(TEACHER)[:, :1])
    assert bucket.item() == pytest.approx(0.5 * math.log(5 / 7) + 0.5 * math.log(5 / 3))
    ids = torch.tensor([[0, 1]])
    renormalised = dv.topk_reverse_kl(logs(STUDENT), ids, logs(TEACHER)[:, :2], tail="renormalise")
    assert renormalised.item() == pytest.approx(5 / 9 * math.log(5 / 7) + 4 / 9 * math.log(2))


def test_worked_topk_of_a_teacher_whose_vocabulary_is_padded_further() -> None:
    """Entry 3 is beyond the student's: the teacher's .2 of it counts in the bucket, .1 + .2 against .1."""
    ids, teacher = torch.tensor([[3, 0, 1]]), torch.tensor([[0.2, 0.5, 0.2]], dtype=torch.float64).log()
    bucket = dv.topk_reverse_kl(logs(STUDENT), ids, teacher)
    assert bucket.item() == pytest.approx(0.4 * math.log(2) + 0.1 * math.log(1 / 3))
    renormalised = dv.topk_reverse_kl(logs(STUDENT), ids, teacher, tail="renormalise")
    assert renormalised.item() == pytest.approx(5 / 9 * math.log(7 / 9) + 4 / 9 * math.log(14 / 9))
    slope = gradient(lambda p: dv.topk_reverse_kl(p, ids, teacher), logs(STUDENT))
    expected = gradient(lambda p: dv.topk_reverse_kl(p, ids[:, 1:], teacher[:, 1:]), logs(STUDENT))
    torch.testing.assert_close(slope, expected)


def test_worked_tokens() -> None:
    """Token B: the student says .4, the teacher .2."""
    student, teacher = torch.tensor([math.log(0.4)]), torch.tensor([math.log(0.2)])
    assert dv.sampled_reverse_kl_advantage(student, teacher).item() == pytest.approx(-math.log(2))
    with_baseline = dv.sampled_reverse_kl_advantage(student, teacher, torch.tensor([0.109]))
    assert with_baseline.item() == pytest.approx(0.109 - math.log(2))
    assert dv.k1_reverse_kl(student, teacher).item() == pytest.approx(math.log(2))
    assert dv.k3_reverse_kl(student, teacher).item() == pytest.approx(0.5 - 1 + math.log(2))
    assert dv.label_loss(student).item() == pytest.approx(-math.log(0.4))
    assert dv.label_loss(student, reweighted=True).item() == pytest.approx(-0.4 * math.log(0.4))


def test_pivot_token_is_worth_four_nats() -> None:
    """The self-teacher that sees the answer: .6 where the student says .01."""
    advantage = dv.sampled_reverse_kl_advantage(torch.tensor([0.01]).log(), torch.tensor([0.6]).log())
    assert advantage.item() == pytest.approx(4.094, abs=1e-3)


def test_entropy_of_a_fair_choice() -> None:
    assert dv.entropy(logs([0.25] * 4)).item() == pytest.approx(math.log(4))


# ---- gradients against autograd on the formula as written


FORMULAS: dict[str, Divergence] = {
    "reverse": lambda p, q: (p.exp() * (p - q)).sum(-1),
    "forward": lambda p, q: (q.exp() * (q - p)).sum(-1),
}
for _beta in (0.1, 0.5, 0.9):

    def _formula(p: Tensor, q: Tensor, beta: float = _beta) -> Tensor:
        m = (beta * q.exp() + (1 - beta) * p.exp()).log()
        return (beta * q.exp() * (q - m) + (1 - beta) * p.exp() * (p - m)).sum(-1)

    FORMULAS[f"jsd {_beta:g}".replace("0.", ".")] = _formula


@pytest.mark.parametrize("name", EXACT)
def test_exact_gradients_are_those_of_the_formula(name: str) -> None:
    student, teacher = pair(vocabulary=11, rows=7)
    torch.testing.assert_close(
        EXACT[name](student.log_softmax(-1), teacher), FORMULAS[name](student.log_softmax(-1), teacher)
    )
    torch.testing.assert_close(
        gradient(lambda p: EXACT[name](p, teacher), student),
        gradient(lambda p: FORMULAS[name](p, teacher), student),
    )


@pytest.mark.parametrize("name", EXACT)
def test_each_row_keeps_its_own_weight(name: str) -> None:
    student, teacher = pair(rows=3)
    weights = torch.tensor([1.0, 0.0, 2.5], dtype=torch.float64)
    whole = gradient(lambda p: EXACT[name](p, teacher) * weights, student)
    for i in range(3):
        alone = gradient(against(EXACT[name], teacher[i : i + 1]), student[i : i + 1])
        torch.testing.assert_close(whole[i : i + 1], weights[i] * alone)


@pytest.mark.parametrize("tail", ["bucket", "renormalise"])
def test_topk_over_the_whole_vocabulary_is_exact(tail: str) -> None:
    student, teacher = pair(rows=4)
    ids = teacher.topk(8).indices
    whole = gradient(lambda p: dv.topk_reverse_kl(p, ids, teacher.gather(-1, ids), tail), student)
    exact = gradient(lambda p: dv.exact_reverse_kl(p, teacher), student)
    torch.testing.assert_close(whole, exact, atol=1e-6, rtol=0)


def test_topk_with_a_tail_points_where_the_exact_one_does() -> None:
    noise, teacher = pair(vocabulary=64, rows=200, scale=2.0)
    student, ids = teacher + 0.5 * noise, teacher.topk(16).indices
    top = gradient(lambda p: dv.topk_reverse_kl(p, ids, teacher.gather(-1, ids)), student)
    assert cosine(top, gradient(lambda p: dv.exact_reverse_kl(p, teacher), student)) > 0.95


# ---- brute force: the expected gradient of what is sampled, summed over every token that could have been


def expected(loss: Callable[[Tensor, int], Tensor], logits: Tensor, odds: Tensor) -> Tensor:
    """sum_y odds(y) * grad loss(y)."""
    gradients = [gradient(against(loss, y), logits) for y in range(logits.shape[-1])]
    return sum((odds[0, y] * g for y, g in enumerate(gradients)), torch.zeros_like(logits))


def sampled(
    teacher: Tensor, behaviour: Tensor | None = None, baseline: bool = False, **clips: float
) -> Callable[[Tensor, int], Tensor]:
    def loss(student: Tensor, y: int) -> Tensor:
        kl = dv.exact_reverse_kl(student, teacher) if baseline else None
        advantage = dv.sampled_reverse_kl_advantage(student[:, y], teacher[:, y], kl)
        old = student[:, y].detach() if behaviour is None else behaviour[:, y]
        return dv.policy_gradient_loss(student[:, y], advantage, old, **clips)[0]

    return loss


@pytest.mark.parametrize("baseline", [False, True])
def test_sampled_advantage_is_unbiased(baseline: bool) -> None:
    student, teacher = pair()
    exact = gradient(lambda p: dv.exact_reverse_kl(p, teacher), student)
    mean = expected(sampled(teacher, baseline=baseline), student, student.softmax(-1))
    torch.testing.assert_close(mean, exact)


@pytest.mark.parametrize("baseline", [False, True])
def test_ratio_corrects_for_a_sampler_that_is_behind(baseline: bool) -> None:
    student, teacher = pair()
    behaviour = (student + 0.3 * pair(seed=1)[0]).log_softmax(-1)
    exact = gradient(lambda p: dv.exact_reverse_kl(p, teacher), student)
    mean = expected(sampled(teacher, behaviour, baseline), student, behaviour.exp())
    torch.testing.assert_close(mean, exact)
    uncorrected = expected(sampled(teacher, None, baseline), student, behaviour.exp())
    assert not torch.allclose(uncorrected, exact, rtol=0.01)


def test_the_baseline_takes_noise_away() -> None:
    student, teacher = pair(vocabulary=32, scale=1.0)
    odds, exact = student.softmax(-1), gradient(lambda p: dv.exact_reverse_kl(p, teacher), student)

    def noise(baseline: bool) -> float:
        loss = sampled(teacher, baseline=baseline)
        each = [gradient(against(loss, y), student) for y in range(32)]
        return float(sum(odds[0, y] * (g - exact).square().sum() for y, g in enumerate(each)))

    assert noise(True) < noise(False)


def test_known_bad_forms_are_bad() -> None:
    """Why `recovery.methods.rules` refuses them: k1, top-k KL as advantage, k3, bare top-k as loss."""
    student, teacher = pair()
    odds, exact = student.softmax(-1), gradient(lambda p: dv.exact_reverse_kl(p, teacher), student)
    zero = torch.zeros_like(exact)
    k1 = expected(lambda p, y: p[:, y] - teacher[:, y], student, odds)
    torch.testing.assert_close(k1, zero)
    ids = teacher.topk(4).indices

    def detached(p: Tensor, y: int) -> Tensor:
        return dv.topk_reverse_kl(p, ids, teacher.gather(-1, ids)).detach() * p[:, y]

    torch.testing.assert_close(expected(detached, student, odds), zero)

    def k3_loss(p: Tensor, y: int) -> Tensor:
        return torch.expm1(teacher[:, y] - p[:, y]) - (teacher[:, y] - p[:, y])

    k3 = expected(k3_loss, student, odds)
    torch.testing.assert_close(k3, gradient(lambda p: dv.exact_forward_kl(p, teacher), student))
    assert cosine(k3, exact) < 0.99

    def bare(p: Tensor) -> Tensor:
        top = p.gather(-1, ids)
        return (top.exp() * (top - teacher.gather(-1, ids))).sum(-1)

    equal = teacher.clone()  # nothing is left to learn, and yet the bare form moves mass out of the set
    assert gradient(bare, equal).abs().max() > 0.01
    assert gradient(lambda p: dv.topk_reverse_kl(p, ids, teacher.gather(-1, ids)), equal).abs().max() < 1e-9


# ---- clips


def test_ratio_clip_by_hand() -> None:
    """r = 1.5, .5, 1.1 with A = 1, then -1: PPO stops a token once it has moved far enough its own way. The
    last token has no advantage, so that nothing of it can be clipped."""
    behaviour = torch.zeros(7)
    student = torch.tensor([1.5, 0.5, 1.1, 1.5, 0.5, 1.1, 0.5]).log().requires_grad_(True)
    advantage = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.0])
    loss, clipped = dv.policy_gradient_loss(student, advantage, behaviour, ratio_clip=0.2)
    torch.testing.assert_close(loss.detach(), torch.tensor([-1.2, -0.5, -1.1, 1.5, 0.8, 1.1, 0.0]))
    assert clipped.tolist() == [True, False, False, False, True, False, False]
    loss.sum().backward()
    torch.testing.assert_close(student.grad, torch.tensor([0.0, -0.5, -1.1, 1.5, 0.0, 1.1, 0.0]))


def test_importance_clip_caps_the_weight_and_keeps_the_gradient() -> None:
    student = torch.tensor([4.0, 0.5]).log().requires_grad_(True)
    loss, _ = dv.policy_gradient_loss(student, torch.ones(2), torch.zeros(2), importance_clip=2.0)
    torch.testing.assert_close(loss.detach(), torch.tensor([-2.0, -0.5]))
    loss.sum().backward()
    torch.testing.assert_close(student.grad, torch.tensor([-2.0, -0.5]))


@pytest.mark.parametrize("importance_clip", [None, 2.0])
def test_extreme_ratios_stay_finite(importance_clip: float | None) -> None:
    student = torch.tensor([-1e-3, -200.0]).requires_grad_(True)
    behaviour = torch.tensor([-200.0, -1e-3])
    loss, _ = dv.policy_gradient_loss(student, torch.ones(2), behaviour, importance_clip=importance_clip)
    loss.sum().backward()
    assert torch.isfinite(torch.cat([loss.detach(), present(student.grad)])).all()


def test_a_reweighted_label_pulls_by_its_own_probability() -> None:
    """The weight is a constant: the gradient of -p log p would be -(p + p log p)."""
    label = torch.tensor([0.4, 0.01]).log().requires_grad_(True)
    dv.label_loss(label, reweighted=True).sum().backward()
    torch.testing.assert_close(label.grad, torch.tensor([-0.4, -0.01]))


@pytest.mark.parametrize(
    "divergence", [dv.exact_reverse_kl, dv.exact_forward_kl, lambda p, q, clip: dv.exact_jsd(p, q, 0.5, clip)]
)
def test_entry_clip(divergence: Callable[[Tensor, Tensor, float | None], Tensor]) -> None:
    student, teacher = pair(vocabulary=16, rows=40, scale=3.0)
    plain = gradient(lambda p: divergence(p, teacher, None), student)
    torch.testing.assert_close(gradient(lambda p: divergence(p, teacher, 1e6), student), plain)
    p = student.log_softmax(-1)
    torch.testing.assert_close(divergence(p, teacher, 1e6), divergence(p, teacher, None))
    clipped = divergence(p, teacher, 0.01)
    assert (clipped >= 0).all()
    assert (clipped <= 16 * 0.01).all()
    assert (clipped <= divergence(p, teacher, None) + 1e-12).all()
    small = gradient(lambda p: divergence(p, teacher, 0.01), student)
    assert small.norm() < plain.norm() / 2


@pytest.mark.parametrize("divergence", [dv.exact_reverse_kl, dv.exact_forward_kl])
def test_clipped_entries_lead_to_the_teacher(divergence: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    student, teacher = pair(vocabulary=8, rows=4, scale=2.0)
    student.requires_grad_(True)
    optimizer = torch.optim.Adam([student], lr=0.05)
    for _ in range(600):
        optimizer.zero_grad()
        divergence(student.log_softmax(-1), teacher, 0.05).sum().backward()
        optimizer.step()
    assert dv.exact_reverse_kl(student.log_softmax(-1), teacher).max() < 0.01


def test_entry_clip_tames_the_pivot_token() -> None:
    """A pivot outweighs a typical token a hundred times; clipped, each entry counts its share at most."""
    student = torch.tensor([[0.01, 0.90, 0.09], [0.34, 0.33, 0.33]]).log()
    teacher = torch.tensor([[0.60, 0.30, 0.10], [0.33, 0.34, 0.33]]).log()
    pivot, typical = dv.exact_reverse_kl(student, teacher)
    assert pivot > 100 * typical
    pivot, clipped_typical = dv.exact_reverse_kl(student, teacher, entry_clip=0.05)
    assert pivot <= 3 * 0.05
    assert clipped_typical == pytest.approx(typical.item(), rel=1e-3)


# ---- properties


@st.composite
def distributions(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    size = draw(st.integers(2, 12))
    numbers = st.lists(st.floats(-12, 12, allow_subnormal=False), min_size=size, max_size=size)
    student, teacher = (torch.tensor([draw(numbers)], dtype=torch.float64).log_softmax(-1) for _ in range(2))
    return student, teacher


@given(distributions())
def test_divergences_are_positive_and_zero_only_when_equal(pair_of: tuple[Tensor, Tensor]) -> None:
    student, teacher = pair_of
    apart = float((student.exp() - teacher.exp()).abs().sum())  # Pinsker: KL >= apart^2 / 2
    for name, divergence in EXACT.items():
        assert divergence(student, student).item() == pytest.approx(0, abs=1e-12)
        bound = apart**2 / 2 if name in ("reverse", "forward") else 0.0
        assert divergence(student, teacher).item() >= bound - 1e-10
        if apart > 1e-4:
            assert divergence(student, teacher).item() > 0


@given(distributions())
def test_jsd_is_symmetric_at_a_half_and_bounded(pair_of: tuple[Tensor, Tensor]) -> None:
    student, teacher = pair_of
    one, other = dv.exact_jsd(student, teacher, 0.5), dv.exact_jsd(teacher, student, 0.5)
    assert one.item() == pytest.approx(other.item(), abs=1e-10)
    assert one.item() <= math.log(2) + 1e-12
    for beta in (0.0, 0.3, 1.0):
        turned = dv.exact_jsd(teacher, student, 1 - beta)
        assert dv.exact_jsd(student, teacher, beta).item() == pytest.approx(turned.item(), abs=1e-10)


@given(distributions(), st.integers(1, 12))
def test_topk_never_exceeds_the_exact_kl(pair_of: tuple[Tensor, Tensor], k: int) -> None:
    student, teacher = pair_of
    top = teacher.topk(min(k, teacher.shape[-1]))
    value = dv.topk_reverse_kl(student, top.indices, top.values).item()
    assert -1e-6 <= value <= dv.exact_reverse_kl(student, teacher).item() + 1e-5


@given(distributions())
def test_k1_and_k3_have_the_kl_as_their_mean(pair_of: tuple[Tensor, Tensor]) -> None:
    student, teacher = pair_of
    kl, p = dv.exact_reverse_kl(student, teacher).item(), student.exp()
    assert float((p * dv.k1_reverse_kl(student, teacher)).sum()) == pytest.approx(kl, abs=1e-9)
    if (teacher - student).max() < 20:
        assert float((p * dv.k3_reverse_kl(student, teacher)).sum()) == pytest.approx(kl, abs=1e-6)
    assert (dv.k3_reverse_kl(student, teacher) >= 0).all()


def test_vanishing_probabilities_stay_finite() -> None:
    student = torch.tensor([[200.0, 0.0, -200.0]]).log_softmax(-1)
    teacher = torch.tensor([[-200.0, 0.0, 200.0]]).log_softmax(-1)
    for divergence in EXACT.values():
        assert torch.isfinite(divergence(student, teacher)).all()
        assert torch.isfinite(gradient(against(divergence, teacher), student)).all()


# ---- a teacher near the student


def near(student: Tensor, teacher: Tensor, budget: float) -> tuple[Tensor, float]:
    """The moved teacher of one token, and its share."""
    moved = teacher.clone()
    return moved, dv.keep_near(moved, student, budget).item()


def test_a_near_teacher_by_hand() -> None:
    """Student [1/2 1/2], teacher [9/10 1/10]: odds 9^a. At a = 1/2 the odds are 3: q = [3/4 1/4]."""
    student, teacher = logs([0.5, 0.5]), logs([0.9, 0.1])
    budget = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)  # KL([3/4 1/4] || [1/2 1/2])
    moved, share = near(student, teacher, budget)
    assert share == pytest.approx(0.5, abs=1e-6)
    torch.testing.assert_close(moved.exp(), torch.tensor([[0.75, 0.25]], dtype=torch.float64))
    loss = dv.exact_reverse_kl(student, moved)
    assert loss.item() == pytest.approx(0.5 * math.log(2 / 3) + 0.5 * math.log(2), abs=1e-6)


@given(distributions(), st.floats(1e-4, 3.0))
def test_the_budget_is_kept_and_used_up(pair_of: tuple[Tensor, Tensor], budget: float) -> None:
    student, teacher = pair_of
    moved, share = near(student, teacher, budget)
    distance = dv.exact_forward_kl(student, moved).item()
    assert 0 <= share <= 1
    assert distance <= budget + 1e-12
    if dv.exact_forward_kl(student, teacher).item() <= budget:
        assert share == 1 and torch.equal(moved, teacher)
    else:
        assert distance == pytest.approx(budget, rel=1e-2)


@given(distributions(), st.floats(1e-4, 1.0), st.floats(1e-4, 1.0))
def test_a_larger_budget_moves_the_teacher_less(
    pair_of: tuple[Tensor, Tensor], one: float, other: float
) -> None:
    student, teacher = pair_of
    tight, loose = (near(student, teacher, budget) for budget in sorted((one, other)))
    assert tight[1] <= loose[1]
    left = [dv.exact_forward_kl(teacher, moved).item() for moved, _ in (tight, loose)]  # KL(q||teacher)
    assert left[0] >= left[1] - 1e-9


@given(distributions(), st.floats(1e-3, 1.0))
def test_a_near_teacher_scales_the_reverse_kls_gradient(
    pair_of: tuple[Tensor, Tensor], budget: float
) -> None:
    """And so a share of 1 is opd, and a share of 0 would be no gradient at all."""
    student, teacher = pair_of
    moved, share = near(student, teacher, budget)
    plain = gradient(lambda p: dv.exact_reverse_kl(p, teacher), student)
    torch.testing.assert_close(gradient(lambda p: dv.exact_reverse_kl(p, moved), student), share * plain)


def test_tokens_are_moved_alike_in_any_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = pair(vocabulary=8, rows=9, scale=2.0)
    whole, pieces = teacher.clone(), teacher.clone()
    shares = dv.keep_near(whole, student.log_softmax(-1), 0.1)
    assert 0 < int((shares < 1).sum()) <= 9
    monkeypatch.setattr(dv, "BISECTED_ENTRIES", 2 * 8)
    assert torch.equal(dv.keep_near(pieces, student.log_softmax(-1), 0.1), shares)
    assert torch.equal(pieces, whole)


def test_fp32_finds_the_share_of_fp64() -> None:
    student, teacher = pair(vocabulary=300, rows=50, scale=3.0)
    student = student.log_softmax(-1)
    precise, rounded = teacher.clone(), teacher.float()
    wanted = dv.keep_near(precise, student, 0.05)
    found = dv.keep_near(rounded, student.float(), 0.05)
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(rounded.double(), precise, atol=1e-3, rtol=1e-3)
    assert (dv.exact_forward_kl(student.float(), rounded) <= 0.05 + 1e-5).all()


def test_each_token_may_have_its_own_budget() -> None:
    """Odds of 9^a: at a = 1/2 they are 3, at a = 1/4 the root of 3."""
    student, teacher = logs([0.5, 0.5]).repeat(4, 1), logs([0.9, 0.1]).repeat(4, 1)
    half, quarter = (
        q * math.log(2 * q) + (1 - q) * math.log(2 - 2 * q)
        for q in (3 / 4, math.sqrt(3) / (1 + math.sqrt(3)))
    )
    shares = dv.keep_near(teacher, student, torch.tensor([9.0, half, 9.0, quarter], dtype=torch.float64))
    assert shares.tolist() == pytest.approx([1.0, 0.5, 1.0, 0.25], abs=1e-6)


def test_a_teacher_moved_by_a_share() -> None:
    """[9/10 1/10] half way to [1/2 1/2] has odds of 3."""
    student, teacher = logs([0.5, 0.5]), logs([0.9, 0.1])
    half = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    whole = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    assert dv.moved_distances(teacher, student, (0.5, 1.0))[0].tolist() == pytest.approx([half, whole])
    share_N = torch.tensor([0.5], dtype=torch.float64)
    assert dv.move(teacher, student, share_N) is share_N
    torch.testing.assert_close(teacher.exp(), torch.tensor([[0.75, 0.25]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("budget", "share"),
    [
        (0.20, 1.0),  # the teacher itself is within it
        (0.09, 0.75),  # 0.5 · (0.09 / 0.04)^(1/2): between the two, KL is the square
        (0.04, 0.5),
        (0.01, 0.25),  # below the first: the square again
    ],
)
def test_the_share_within_a_budget_by_hand(budget: float, share: float) -> None:
    assert dv.share_within((0.5, 1.0), (0.04, 0.16), budget) == pytest.approx(share)


def test_a_teacher_within_the_budget_is_left_where_rounding_puts_a_nearer_one_outside() -> None:
    assert dv.share_within((0.5, 1.0), (0.16, 0.15), 0.155) == 1.0


def test_distances_that_are_no_numbers_leave_the_teacher_and_so_a_loss_that_says_so() -> None:
    assert dv.share_within((0.5, 1.0), (math.nan, math.nan), 0.1) == 1.0


def test_one_share_for_all_is_the_nearest_teacher() -> None:
    """Of two tokens' shares that spend the same on average, the equal ones leave least KL(q||teacher)."""
    student, teacher = pair(vocabulary=6, rows=2, scale=1.5)
    student, fine = student.log_softmax(-1), [n / 400 for n in range(1, 401)]
    spent = dv.moved_distances(teacher, student, fine)
    toward = dv.moved_distances(student, teacher, [1 - share for share in fine])  # KL(q||teacher)
    equal = 200
    budget = float(spent[:, equal].sum())
    for first in (80, 140, 260, 320):
        left = budget - float(spent[0, first])
        second = int((spent[1] <= left).sum()) - 1
        if 0 <= second < 399:
            assert float(toward[0, first] + toward[1, second]) > float(toward[:, equal].sum()) - 1e-3


# ---- an oracle: TRL's own loss

# What TRL 1.16.0 says of the two distributions below: the loss, and its gradient in the first row.
#     loss = GKDTrainer.generalized_jsd_loss(student[None], teacher[None], beta=beta, reduction="sum")
#     (gradient,) = torch.autograd.grad(loss, student)
TRL_SAYS = [
    (0.0, 2.074693, [0.007158, 0.081362, -0.163415, 0.274080, 0.009498, -0.315279, 0.188009, -0.081413]),
    (0.25, 0.362577, [0.000202, 0.009603, -0.025205, 0.043748, -0.003535, -0.034955, 0.028012, -0.017870]),
    (0.5, 0.476615, [-0.000698, 0.008788, -0.030241, 0.059119, -0.009362, -0.036704, 0.034973, -0.025875]),
    (1.0, 2.141717, [-0.016531, -0.023487, -0.127239, 0.405273, -0.101983, -0.129883, 0.138452, -0.144603]),
]


@pytest.mark.parametrize(("beta", "value", "first_row"), TRL_SAYS)
def test_the_loss_is_the_one_that_trl_computed(beta: float, value: float, first_row: list[float]) -> None:
    steps = torch.arange(32).reshape(4, 8)
    student = (steps * 7 % 11 / 4).requires_grad_(True)
    teacher = (steps * 5 % 13 / 4).log_softmax(-1)
    ours = dv.exact_jsd(student.log_softmax(-1), teacher, beta).sum()
    (gradient,) = torch.autograd.grad(ours, student)
    assert ours.item() == pytest.approx(value, abs=1e-5)
    assert gradient[0].tolist() == pytest.approx(first_row, abs=3e-6)


@pytest.mark.parametrize("beta", [0.0, 0.25, 0.5, 1.0])
def test_trl_agrees(beta: float) -> None:
    gkd = pytest.importorskip("trl.experimental.gkd", reason="TRL is not installed")
    student, teacher = pair(vocabulary=32, rows=10)
    student = student.float().requires_grad_(True)
    theirs = gkd.GKDTrainer.generalized_jsd_loss(
        student[None], teacher.float()[None], beta=beta, reduction="sum"
    )
    (their_gradient,) = torch.autograd.grad(theirs, student)
    ours = dv.exact_jsd(student.log_softmax(-1), teacher.float(), beta).sum()
    (our_gradient,) = torch.autograd.grad(ours, student)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(our_gradient, their_gradient, atol=1e-5, rtol=1e-4)
