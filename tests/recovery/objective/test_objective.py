"""The one estimator: every row, against numbers worked by hand, brute force, and itself cut otherwise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from recovery.batches.teacher_scores import TeacherScores
from recovery.errors import InputError
from recovery.methods.method import Method
from recovery.methods.table import METHODS, get, with_dials
from recovery.objective import divergences as dv
from recovery.objective import signal_geometry
from recovery.objective.objective import Loss, Objective
from recovery.objective.token_signals import TokenSignals
from tests.support.present import present
from tests.support.tensors import cosine

pytestmark = pytest.mark.usefixtures("with_and_without_cpu_engine")
N, D, V, STOP = 23, 6, 32, (3, 5)
ROW = 5  # tokens of a sequence


class World:
    """A linear student and teacher over the same vocabulary, and everything that a method may ask for."""

    def __init__(self, n: int = N, vocabulary: int = V, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.head, self.teacher_head = (torch.nn.Linear(D, vocabulary, bias=False) for _ in range(2))
        with torch.no_grad():
            self.head.weight.copy_(normal(vocabulary, D))
            self.teacher_head.weight.copy_(self.head.weight + 0.5 * normal(vocabulary, D))
        self.hidden_ND, self.tokens_N = normal(n, D), torch.randint(0, vocabulary, (n,), generator=generator)
        self.dense = TeacherScores(hidden_ND=self.hidden_ND + 0.2 * normal(n, D), head=self.teacher_head)
        self.anchor = TeacherScores(hidden_ND=self.hidden_ND.clone(), head=self.teacher_head)
        self.behaviour_N = self.student_NV[torch.arange(n), self.tokens_N].detach() + 0.05 * normal(n)
        self.advantages_N = normal(n)
        self.rows_N = torch.arange(n) // ROW

    @property
    def student_NV(self) -> Tensor:
        return self.head(self.hidden_ND).log_softmax(-1)

    @property
    def teacher_NV(self) -> Tensor:
        return self.teacher_head(self.dense.hidden_ND).log_softmax(-1).detach()

    def sampled(self) -> TeacherScores:
        return TeacherScores(sampled_logprobs_N=self.teacher_NV.gather(-1, self.tokens_N[:, None])[:, 0])

    def topk(self, k: int = 16) -> TeacherScores:
        top = self.teacher_NV.topk(k)
        return replace(self.sampled(), ids_NK=top.indices, logprobs_NK=top.values)

    def inputs(self) -> dict[str, Any]:
        return {
            "scores": self.dense,
            "behaviour_N": self.behaviour_N,
            "advantages_N": self.advantages_N,
            "anchor": self.anchor,
            "rows_N": self.rows_N,
        }

    def run(
        self, method: Method | str, chunk: int | None = None, **changes: Any
    ) -> tuple[Loss, list[Tensor]]:
        """The loss and the gradients of hidden states and head."""
        method = get(method) if isinstance(method, str) else method
        hidden_ND = changes.pop("hidden_ND", self.hidden_ND).detach().clone().requires_grad_(True)
        tokens_N = changes.pop("tokens_N", self.tokens_N)
        inputs = {**self.inputs(), **changes}
        loss = Objective(method, STOP, chunk)(hidden_ND, self.head, tokens_N, TokenSignals(**inputs))
        self.head.weight.grad = None
        loss.value.backward()
        assert hidden_ND.grad is not None
        gradient = self.head.weight.grad
        return loss, [hidden_ND.grad, torch.zeros_like(self.head.weight) if gradient is None else gradient]


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def worked(signal: str, **dials: Any) -> Loss:
    """Token B, student [.5 .4 .1], teacher [.7 .2 .1], as one token with identity heads."""
    method = with_dials(get(dials.pop("row", "opd")), {"signal": signal, **dials})
    hidden_ND = torch.tensor([[0.5, 0.4, 0.1]]).log().requires_grad_(True)
    scores = TeacherScores(hidden_ND=torch.tensor([[0.7, 0.2, 0.1]]).log(), head=torch.nn.Identity())
    return Objective(method, [2])(hidden_ND, torch.nn.Identity(), torch.tensor([1]), TokenSignals(scores))


@pytest.mark.parametrize(
    ("signal", "dials", "expected"),
    [
        ("reverse_kl", {}, 0.1090228),
        ("forward_kl", {}, 0.0969011),
        ("jsd", {"beta": 0.5}, 0.0253623),
        ("topk_reverse_kl", {"k": 1}, 0.0871767),
        ("topk_reverse_kl", {"k": 2, "tail": "renormalise"}, 0.1211364),
        ("sampled_reverse_kl", {}, math.log(2)),
        ("sampled_reverse_kl", {"teacher_baseline": "closed-form"}, math.log(2) - 0.1090228),
        ("label", {"row": "seqkd"}, -math.log(0.4)),
        ("label_dft", {"row": "seqkd"}, -0.4 * math.log(0.4)),
    ],
)
def test_worked_example(signal: str, dials: dict[str, Any], expected: float) -> None:
    assert worked(signal, **dials).value.item() == pytest.approx(expected, abs=1e-6)


def test_a_teachers_padding_among_its_likeliest_tokens_is_no_end() -> None:
    """Heads may differ by padding, which ended a training at its first loss."""
    hidden_ND = torch.tensor([[0.5, 0.4, 0.1]]).log().requires_grad_(True)
    scores = TeacherScores(
        sampled_logprobs_N=torch.tensor([0.2]).log(),
        ids_NK=torch.tensor([[0, 3]]),
        logprobs_NK=torch.tensor([[0.7, 0.2]]).log(),
    )
    method = with_dials("opd-topk", {"k": 2})
    loss = Objective(method, [2])(hidden_ND, torch.nn.Identity(), torch.tensor([1]), TokenSignals(scores))
    assert loss.value.item() == pytest.approx(0.0871767, abs=1e-6)  # as of entry 0 alone
    assert loss.metrics["topk_reverse_kl"] == pytest.approx(0.0871767, abs=1e-6)


def test_a_signal_without_a_loss_trains_nothing() -> None:
    """A new one was trained as the reverse KL."""
    method = replace(get("opd"))
    object.__setattr__(method, "signal", "new_kl")
    scores = TeacherScores(hidden_ND=torch.zeros(1, 3), head=torch.nn.Identity())
    with pytest.raises(NotImplementedError, match="signal=new_kl: the objective has no loss for it"):
        Objective(method)(torch.zeros(1, 3), torch.nn.Identity(), torch.tensor([1]), TokenSignals(scores))


def test_worked_metrics() -> None:
    loss = worked("reverse_kl")
    assert loss.tokens == 1
    entropy = -(0.5 * math.log(0.5) + 0.4 * math.log(0.4) + 0.1 * math.log(0.1))
    expected = {
        "entropy": entropy,
        "logprob": math.log(0.4),
        "teacher_logprob": math.log(0.2),
        "reverse_kl": 0.1090228,
        "k1_reverse_kl": math.log(2),
        "k3_reverse_kl": 0.5 - 1 + math.log(2),
        "student_stop_mass": 0.1,
        "teacher_stop_mass": 0.1,
    }
    assert loss.metrics == pytest.approx(expected, abs=1e-6)


def test_a_near_teacher_in_the_loss() -> None:
    """Half way from [.5 .4 .1] to [.7 .2 .1] is q = sqrt([.35 .08 .01]) / .974451."""
    q = (0.607119, 0.290259, 0.102622)
    budget = sum(b * math.log(b / a) for a, b in zip((0.5, 0.4, 0.1), q, strict=True))  # 0.0276
    near = worked("reverse_kl", row="opd-near", kl_budget=budget)
    expected = sum(a * math.log(a / b) for a, b in zip((0.5, 0.4, 0.1), q, strict=True))
    assert near.value.item() == pytest.approx(expected, abs=1e-5)
    assert near.metrics["teacher_share"] == pytest.approx(0.5, abs=1e-3)
    assert near.metrics["reverse_kl"] == pytest.approx(0.1090228, abs=1e-6)  # to the clean model, as in opd
    assert worked("forward_kl", row="opd-near", kl_budget=budget).value.item() == pytest.approx(
        budget, abs=1e-6
    )


def moved(signals: dict[str, Any], **dials: Any) -> Loss:
    """The worked example with a budget or a share that the step gives."""
    method = with_dials("opd-near", dials)
    hidden_ND = torch.tensor([[0.5, 0.4, 0.1]]).log().requires_grad_(True)
    scores = TeacherScores(hidden_ND=torch.tensor([[0.7, 0.2, 0.1]]).log(), head=torch.nn.Identity())
    tensors: dict[str, Any] = {name: torch.tensor([value]) for name, value in signals.items()}
    given = TokenSignals(scores, **tensors)
    return Objective(method, [2])(hidden_ND, torch.nn.Identity(), torch.tensor([1]), given)


def test_a_steps_budget_and_share_in_the_loss() -> None:
    """Half way is q = [.607119 .290259 .102622], at KL(q||p) = 0.0276, as above."""
    q = (0.607119, 0.290259, 0.102622)
    expected = sum(a * math.log(a / b) for a, b in zip((0.5, 0.4, 0.1), q, strict=True))
    budget = sum(b * math.log(b / a) for a, b in zip((0.5, 0.4, 0.1), q, strict=True))
    falling = moved({"budget_N": budget}, kl_budget=9.0, kl_budget_final=budget)
    shared = moved({"share_N": 0.5}, kl_budget_of="step")
    for loss in (falling, shared):
        assert loss.value.item() == pytest.approx(expected, abs=1e-5)
        assert loss.metrics["teacher_share"] == pytest.approx(0.5, abs=1e-3)
    with pytest.raises(InputError, match="bounds the KL of a whole step"):
        moved({}, kl_budget_of="step")


def test_a_wide_budget_is_opd() -> None:
    wide = worked("reverse_kl", row="opd-near", kl_budget=0.1)  # KL(teacher||student) is 0.0969
    assert wide.value.item() == pytest.approx(worked("reverse_kl").value.item(), abs=1e-6)
    assert wide.metrics["teacher_share"] == 1


# ---- every row


@pytest.mark.parametrize("name", METHODS)
def test_every_row_gives_a_loss_and_gradients(world: World, name: str) -> None:
    loss, gradients = world.run(name)
    assert torch.isfinite(loss.value)
    assert loss.tokens == N
    assert loss.signal_N is not None
    assert loss.signal_N.shape == (N,)
    assert all(torch.isfinite(gradient).all() and gradient.abs().max() > 0 for gradient in gradients)
    assert {"entropy", "logprob", "student_stop_mass"} <= set(loss.metrics)
    assert all(math.isfinite(value) for value in loss.metrics.values())


@pytest.mark.parametrize("chunk", [1, 7, 22, 23, 100])
@pytest.mark.parametrize("name", METHODS)
def test_chunk_size_changes_nothing(world: World, name: str, chunk: int) -> None:
    whole, gradients = world.run(name)
    cut, cut_gradients = world.run(name, chunk)
    torch.testing.assert_close(cut.value, whole.value, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(cut_gradients, gradients, atol=1e-5, rtol=1e-4)
    assert cut.metrics == pytest.approx(whole.metrics, rel=1e-4, abs=1e-5)
    assert cut.maxima == pytest.approx(whole.maxima)


@pytest.mark.parametrize("name", METHODS)
def test_masked_tokens_change_nothing(world: World, name: str) -> None:
    """Zero weight is the same as not being there, whatever stands there, non-finite numbers included."""
    kept = torch.arange(N) % 3 != 0
    alone = {key: _take(value, kept) for key, value in world.inputs().items()}
    loss, gradients = world.run(name, hidden_ND=world.hidden_ND[kept], tokens_N=world.tokens_N[kept], **alone)
    hidden_ND = world.hidden_ND.clone()
    hidden_ND[~kept] = math.nan
    masked, masked_gradients = world.run(name, hidden_ND=hidden_ND, weights_N=kept.float())
    torch.testing.assert_close(masked.value, loss.value)
    torch.testing.assert_close(masked_gradients[0][kept], gradients[0])
    assert masked_gradients[0][~kept].abs().max() == 0
    torch.testing.assert_close(masked_gradients[1], gradients[1])
    assert masked.metrics == pytest.approx(loss.metrics, rel=1e-5)
    assert masked.tokens == int(kept.sum())


def _take(value: Any, index: Tensor) -> Any:
    return value.take(index.nonzero()[:, 0]) if isinstance(value, TeacherScores) else value[index]


@pytest.mark.parametrize("name", METHODS)
def test_nothing_to_train_on_is_a_zero_loss(world: World, name: str) -> None:
    masked, gradients = world.run(name, weights_N=torch.zeros(N))
    assert masked.value.item() == 0
    assert masked.tokens == 0
    assert masked.metrics == {}
    assert all(gradient.abs().max() == 0 for gradient in gradients)


@pytest.mark.parametrize("name", METHODS)
def test_a_weight_of_two_is_the_sequence_twice(world: World, name: str) -> None:
    weights = torch.ones(N)
    weights[:ROW] = 2.0
    twice = torch.cat([torch.arange(N), torch.arange(ROW)])
    doubled: dict[str, Any] = {
        key: value.take(twice) if isinstance(value, TeacherScores) else value[twice]
        for key, value in world.inputs().items()
    }
    doubled["rows_N"] = torch.cat([world.rows_N, torch.full((ROW,), N)])
    doubled |= {"hidden_ND": world.hidden_ND[twice], "tokens_N": world.tokens_N[twice]}
    loss, gradients = world.run(name, **doubled)
    weighted, weighted_gradients = world.run(name, weights_N=weights)
    torch.testing.assert_close(weighted.value, loss.value)
    torch.testing.assert_close(weighted_gradients[1], gradients[1])
    assert weighted.tokens == loss.tokens
    assert weighted.metrics == pytest.approx(loss.metrics, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_bf16_is_close(world: World, name: str) -> None:
    """Logits are made in bf16, everything after in fp32."""
    whole, gradients = world.run(name)
    half = World()
    half.head, half.teacher_head = half.head.bfloat16(), half.teacher_head.bfloat16()
    half.hidden_ND = half.hidden_ND.bfloat16()
    half.dense = TeacherScores(hidden_ND=present(half.dense.hidden_ND).bfloat16(), head=half.teacher_head)
    half.anchor = TeacherScores(hidden_ND=present(half.anchor.hidden_ND).bfloat16(), head=half.teacher_head)
    loss, half_gradients = half.run(name)
    assert loss.value.dtype == torch.float32
    assert loss.value.item() == pytest.approx(whole.value.item(), rel=0.05, abs=0.3)
    for ours, theirs in zip(half_gradients, gradients, strict=True):
        assert cosine(ours.float(), theirs) > 0.98


def test_a_row_of_ones_own_needs_no_other_change(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "mine", Method("mine", "student", "jsd", "base", beta=0.2, anchor_beta=0.1))
    loss, _ = world.run("mine")
    expected = dv.exact_jsd(world.student_NV, world.teacher_NV, 0.2)
    anchor_NV = world.teacher_head(world.anchor.hidden_ND).log_softmax(-1)
    expected = expected + 0.1 * dv.exact_reverse_kl(world.student_NV, anchor_NV)
    torch.testing.assert_close(loss.value, expected.sum())


# ---- estimators


def states(samples: int, seed: int = 0) -> tuple[World, Tensor]:
    """Four states of a small softmax, each with tokens sampled from the student; and the exact gradient."""
    world = World(n=4, vocabulary=12, seed=seed)
    _, (exact, _) = world.run("opd")
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.multinomial(world.student_NV.exp(), samples, replacement=True, generator=generator)
    rows = torch.arange(4).repeat_interleave(samples)
    world.hidden_ND, world.dense = world.hidden_ND[rows], world.dense.take(rows)
    world.tokens_N, world.advantages_N = tokens.flatten(), world.advantages_N[rows]
    world.behaviour_N = world.student_NV.gather(-1, world.tokens_N[:, None])[:, 0].detach()
    world.rows_N = torch.arange(len(rows))
    return world, exact


@pytest.mark.parametrize(
    "dials",
    [{}, {"teacher_baseline": "closed-form"}, {"epochs": 1, "ratio_clip": None}, {"importance_clip": 4.0}],
)
def test_sampled_gradient_is_the_exact_one_on_average(dials: dict[str, Any]) -> None:
    world, exact = states(20_000)
    _, (gradient, _) = world.run(with_dials("opd-sampled", dials))
    mean = gradient.view(4, -1, D).mean(1)
    assert cosine(mean, exact) > 0.99
    assert float(mean.norm() / exact.norm()) == pytest.approx(1, abs=0.1)


def test_topk_gradient_is_close_to_the_exact_one() -> None:
    world = World(n=200)
    _, (exact, _) = world.run("opd")
    _, (gradient, _) = world.run("opd-topk")
    assert cosine(gradient, exact) > 0.95
    _, (remote, _) = world.run("opd-topk", scores=world.topk())
    torch.testing.assert_close(remote, gradient)


def test_reward_gradient_raises_what_was_rewarded() -> None:
    """One state, a reward for token 2 alone: the mean gradient is that of -p(2)."""
    world, _ = states(20_000)
    rewarded = (world.tokens_N == 2).float()
    _, (gradient, _) = world.run("rl", advantages_N=rewarded)
    hidden_ND = world.hidden_ND[::20_000].clone().requires_grad_(True)
    (-world.head(hidden_ND).softmax(-1)[:, 2]).sum().backward()
    assert cosine(gradient.view(4, -1, D).mean(1), present(hidden_ND.grad)) > 0.99


def test_lam_mixes_teacher_and_reward(world: World) -> None:
    teacher = world.run("opd")[1]
    reward = world.run(with_dials("rl", {"ratio_clip": "off"}))[1]
    mixed = world.run("opd-reward")[1]
    for both, one, other in zip(mixed, teacher, reward, strict=True):
        torch.testing.assert_close(both, 0.7 * one + 0.3 * other)


def test_lam_mixes_sampled_advantages_before_the_clip(world: World) -> None:
    dials = {"lam": 0.25, "reward_baseline": "none"}
    loss, _ = world.run(with_dials("opd-sampled", dials))
    student_N = world.student_NV.gather(-1, world.tokens_N[:, None])[:, 0]
    teacher_N = present(world.sampled().sampled_logprobs_N)
    advantage_N = 0.25 * (teacher_N - student_N) + 0.75 * world.advantages_N
    expected, clipped = dv.policy_gradient_loss(student_N, advantage_N.detach(), world.behaviour_N, 0.2)
    torch.testing.assert_close(loss.value, expected.sum())
    torch.testing.assert_close(loss.signal_N, advantage_N.detach())
    assert loss.metrics["clip_fraction"] == clipped.sum()


def test_student_equal_to_teacher_has_nothing_to_learn(world: World) -> None:
    same = TeacherScores(hidden_ND=world.hidden_ND, head=world.head)
    for name in ("opd", "gkd", "opd-topk", "opsd", "opd-sampled"):
        loss, gradients = world.run(name, scores=same)
        assert loss.value.item() == pytest.approx(0, abs=1e-4)
        assert all(gradient.abs().max() < 1e-4 for gradient in gradients)


def test_temperature_softens_both(world: World) -> None:
    loss, _ = world.run(with_dials("opd", {"temperature": "2"}))
    student = (world.head(world.hidden_ND) / 2).log_softmax(-1)
    teacher = (world.teacher_head(world.dense.hidden_ND) / 2).log_softmax(-1)
    torch.testing.assert_close(loss.value, dv.exact_reverse_kl(student, teacher).sum())


def test_temperature_softens_the_anchor_too(world: World) -> None:
    loss, _ = world.run(with_dials("opd", {"temperature": "2", "anchor_beta": "0.5"}))
    student = (world.head(world.hidden_ND) / 2).log_softmax(-1)
    teacher = (world.teacher_head(world.dense.hidden_ND) / 2).log_softmax(-1)
    anchor = (world.teacher_head(world.anchor.hidden_ND) / 2).log_softmax(-1)
    expected = dv.exact_reverse_kl(student, teacher) + 0.5 * dv.exact_reverse_kl(student, anchor)
    torch.testing.assert_close(loss.value, expected.sum())


def test_importance_weights_of_prefixes_are_capped(world: World) -> None:
    behaviour_N = world.behaviour_N - 0.3
    loss, _ = world.run("minillm", behaviour_N=behaviour_N)
    student_N = world.student_NV.gather(-1, world.tokens_N[:, None])[:, 0].detach()
    ratio_N = (student_N - behaviour_N).exp()
    prefix_N = torch.stack([ratio_N[n - n % ROW : n].prod() for n in range(N)])
    expected = prefix_N.clamp(max=2.0) * dv.exact_reverse_kl(world.student_NV, world.teacher_NV)
    torch.testing.assert_close(loss.value, expected.sum())
    assert loss.metrics["importance_weight"] == pytest.approx(float(prefix_N.clamp(max=2.0).sum()), rel=1e-4)
    assert loss.metrics["importance_truncated"] == int((prefix_N > 2.0).sum()) > 0


def test_the_anchor_is_weighed_as_the_rest(world: World) -> None:
    behaviour_N = world.behaviour_N - 0.3
    free, _ = world.run("minillm", behaviour_N=behaviour_N)
    anchored, _ = world.run(with_dials("minillm", {"anchor_beta": 0.5}), behaviour_N=behaviour_N)
    student_N = world.student_NV.gather(-1, world.tokens_N[:, None])[:, 0].detach()
    ratio_N = (student_N - behaviour_N).exp()
    weight_N = torch.stack([ratio_N[n - n % ROW : n].prod() for n in range(N)]).clamp(max=2.0)
    anchor_NV = world.teacher_head(world.anchor.hidden_ND).log_softmax(-1)
    expected = 0.5 * weight_N @ dv.exact_reverse_kl(world.student_NV, anchor_NV)
    torch.testing.assert_close(anchored.value, free.value + expected, rtol=1e-5, atol=1e-4)


def test_data_tokens_have_no_sampler(world: World) -> None:
    """Behaviour 0 means that nobody sampled the token: ratio 1, no gap."""
    loss, _ = world.run(with_dials("gkd", {"importance_clip": 2.0}), behaviour_N=torch.zeros(N))
    torch.testing.assert_close(loss.value, dv.exact_jsd(world.student_NV, world.teacher_NV, 0.5).sum())
    assert loss.metrics["sampler_gap"] == 0


def test_sampler_gap_is_seen(world: World) -> None:
    behaviour_N = world.student_NV.gather(-1, world.tokens_N[:, None])[:, 0].detach()
    behaviour_N[7] -= 0.5
    loss, _ = world.run("opd", behaviour_N=behaviour_N)
    assert loss.metrics["sampler_gap"] == pytest.approx(0.5, abs=1e-4)
    assert loss.maxima["sampler_gap_max"] == pytest.approx(0.5, abs=1e-4)


def test_no_gap_is_told_between_two_temperatures(world: World) -> None:
    """Labels are read at temperature 1, whatever they were sampled at."""
    for temperature, told in ((1.0, True), (0.7, False)):
        loss, _ = world.run(with_dials("rft", {"temperature": temperature}), behaviour_N=-torch.ones(N))
        assert ("sampler_gap" in loss.metrics) == ("sampler_gap_max" in loss.maxima) == told
    loss, _ = world.run(with_dials("opd", {"temperature": 0.7}), behaviour_N=-torch.ones(N))
    assert loss.metrics["sampler_gap"] > 0


def test_stop_mass_of_a_remote_teacher(world: World) -> None:
    loss, _ = world.run("opd-topk", scores=world.topk(V))
    expected = world.teacher_NV[:, list(STOP)].exp().sum()
    assert loss.metrics["teacher_stop_mass"] == pytest.approx(expected.item(), rel=1e-4)
    assert loss.metrics["student_stop_mass"] == pytest.approx(
        world.student_NV[:, list(STOP)].exp().sum().item(), rel=1e-4
    )


def test_padded_vocabulary_rows_are_left_out(world: World) -> None:
    """A student with 4 rows more than its teacher, which no tokenizer entry uses."""
    wide = World()
    padding = 3 * torch.randn(4, D)
    wide.head = torch.nn.Linear(D, V + 4, bias=False)
    with torch.no_grad():
        wide.head.weight.copy_(torch.cat([world.head.weight, padding]))
    loss, gradients = wide.run("opd")
    narrow, narrow_gradients = world.run("opd")
    torch.testing.assert_close(loss.value, narrow.value)
    torch.testing.assert_close(gradients[0], narrow_gradients[0])
    assert gradients[1][V:].abs().max() < 1e-5
    with pytest.raises(InputError, match="tokenizer"):
        wide.run("opd", tokens_N=torch.full((N,), V + 1))


def test_a_teacher_with_rows_that_no_token_uses_is_read_without_them(world: World) -> None:
    padded = torch.nn.Linear(D, V + 4, bias=False)
    with torch.no_grad():
        padded.weight.copy_(torch.cat([world.teacher_head.weight, 3 * torch.randn(4, D)]))
    scores = TeacherScores(hidden_ND=world.dense.hidden_ND, head=padded)
    for method in ("opd", "gkd"):
        loss, gradients = world.run(method, scores=scores)
        narrow, narrow_gradients = world.run(method)
        torch.testing.assert_close(loss.value, narrow.value)
        torch.testing.assert_close(gradients[0], narrow_gradients[0])


def test_of_more_entries_than_asked_for_the_likeliest_count(world: World) -> None:
    method = with_dials("opd-topk", {"k": 4})
    more, fewer = (world.run(method, scores=world.topk(k)) for k in (16, 4))
    torch.testing.assert_close(more[0].value, fewer[0].value)
    torch.testing.assert_close(more[1], fewer[1])


@pytest.mark.parametrize(
    ("width", "vocabulary", "chunk"), [(1, 2**16, 96), (64, 2**20, 12), (512, 2**16, 128), (4096, 2**16, 192)]
)
def test_a_chunk_is_small_for_a_small_head_and_bounded_for_a_large_one(
    width: int, vocabulary: int, chunk: int
) -> None:
    """3 * 2^21 logits, a quarter of the head's weights where that is more, and never more than 3 * 2^22."""
    objective = Objective(get("opd"), STOP)
    assert objective._chunk_size(lambda hidden: torch.zeros(1, vocabulary), torch.zeros(3, width)) == chunk


@pytest.mark.parametrize("chunk", [5, N])
def test_the_head_never_sees_more_than_a_chunk_and_each_token_once(world: World, chunk: int) -> None:
    rows: list[int] = []

    def head(hidden: Tensor) -> Tensor:
        rows.append(len(hidden))
        return world.head(hidden)

    hidden_ND = world.hidden_ND.clone().requires_grad_(True)
    loss = Objective(get("opd"), STOP, chunk=chunk)(
        hidden_ND, head, world.tokens_N, TokenSignals(world.dense)
    )
    loss.value.backward()
    assert max(rows) == chunk
    assert sum(rows) == N


def test_the_clip_makes_a_self_teacher_less_concentrated() -> None:
    """Two hundred typical tokens and one pivot (.01 against .6): `pid` with and without its clip."""
    student = torch.tensor([[0.34, 0.33, 0.33]]).repeat(201, 1)
    teacher = torch.tensor([[0.33, 0.34, 0.33]]).repeat(201, 1)
    student[100], teacher[100] = torch.tensor([0.01, 0.90, 0.09]), torch.tensor([0.60, 0.30, 0.10])
    scores = TeacherScores(hidden_ND=teacher.log(), head=torch.nn.Identity())

    def share(method: Method) -> tuple[float, float]:
        hidden_ND = student.log().requires_grad_(True)
        tokens_N = torch.zeros(201, dtype=torch.long)
        loss = Objective(method)(hidden_ND, torch.nn.Identity(), tokens_N, TokenSignals(scores))
        loss.value.backward()
        pull = present(hidden_ND.grad)[100].norm()
        return signal_geometry.concentration(present(loss.signal_N)), float(pull)

    (clipped, pull), (free, free_pull) = share(get("pid")), share(with_dials("pid", {"entry_clip": "off"}))
    assert free > 0.9
    assert clipped < free
    assert pull < free_pull / 4


# ---- what is missing is said


@pytest.mark.parametrize(
    ("name", "missing", "message"),
    [
        ("opd", {"scores": None}, "dense teacher scores"),
        ("opd-sampled", {"scores": None}, "sampled teacher scores"),
        ("opd-sampled", {"behaviour_N": None}, "behaviour_N"),
        ("minillm", {"behaviour_N": None}, "behaviour_N"),
        ("minillm", {"rows_N": None}, "rows_N"),
        ("rl", {"advantages_N": None}, "reward"),
        ("opd-reward", {"advantages_N": None}, "reward"),
        ("asft", {"anchor": None}, "anchor"),
    ],
)
def test_missing_inputs_are_named(world: World, name: str, missing: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        world.run(name, **missing)


def test_scores_of_the_wrong_kind_are_named(world: World) -> None:
    with pytest.raises(InputError, match="dense"):
        world.run("opd", scores=world.topk())
    with pytest.raises(InputError, match="k=16"):
        world.run("opd-topk", scores=world.topk(4))
    with pytest.raises(InputError, match="chunk"):
        Objective(get("opd"), chunk=0)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_an_anchor_gives_whole_distributions(world: World, direction: str) -> None:
    with pytest.raises(InputError, match="no dense anchor scores"):
        world.run(with_dials("asft", {"anchor_kl": direction}), anchor=world.topk(16))


def test_asft_is_a_dft_label_and_a_tenth_of_the_forward_kl(world: World) -> None:
    loss, _ = world.run("asft")
    student_NV = world.student_NV
    label_N = student_NV.gather(-1, world.tokens_N[:, None])[:, 0]
    anchor_NV = world.teacher_head(world.anchor.hidden_ND).log_softmax(-1)
    forward_N = (anchor_NV.exp() * (anchor_NV - student_NV)).sum(-1)
    torch.testing.assert_close(loss.value, (-label_N * label_N.exp() + 0.1 * forward_N).sum())
