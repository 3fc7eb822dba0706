"""The training loop: the same numbers after a kill, the same gradient however it is cut, and no step on
NaN.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from recovery import distributed
from recovery.batches.rollouts import Rollouts
from recovery.errors import InputError, NonFiniteLoss, OutOfMemory, Unstable
from recovery.forward.hidden_states import decoder_layers, unwrap
from recovery.forward.isolation import Sharing
from recovery.forward.precision import fp32_on_tensor_cores, matmul_precision
from recovery.methods import table
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.chat_model import ChatModel
from recovery.objective.objective import Loss, Objective
from recovery.objective.token_signals import TokenSignals
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from recovery.seeds import step_seed
from recovery.storage.training_state import TrainState
from recovery.teachers.teachers import AdapterOffTeacher, CheckpointTeacher, SelfTeacher, Teacher, scored
from recovery.training import trainer, updater
from recovery.training.config import TrainConfig, learning_rate_at
from recovery.training.token_loss import TokenLoss
from recovery.training.trainer import Batches, TrainReport, train
from recovery.training.updater import Microbatch
from tests.support import tiny
from tests.support.present import present
from tests.support.watched_state import WatchedState

CONFIG = TrainConfig(steps=6, learning_rate=1e-3, warmup_steps=2, weight_decay=0.01, seed=5, save_every=1)
TIMES = {"tokens_per_second", "step_seconds", "eta_seconds", "batch_seconds"}


def dialogues(n: int, seed: int) -> list[tuple[list[int], list[bool]]]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 24, (n,), generator=draw).tolist()
    return [
        (torch.randint(0, 250, (k,), generator=draw).tolist(), [i > 1 for i in range(k)]) for k in lengths
    ]


class Texts:
    """Eight documents a step, in `parts` microbatches."""

    def __init__(self, parts: int = 1) -> None:
        self.parts = parts

    def updates(self, step: int) -> Iterable[Sequence[Microbatch]]:
        rows = dialogues(8, seed=step)
        size = len(rows) // self.parts
        chunks = [rows[i : i + size] for i in range(0, len(rows), size)]
        yield [Microbatch(Rollouts.from_dialogues(chunk, pad_id=258)) for chunk in chunks]


class Twice(Texts):
    """Two updates a step."""

    def updates(self, step: int) -> Iterable[Sequence[Microbatch]]:
        for part in (2 * step - 1, 2 * step):
            yield from super().updates(part)


class OnPolicy:
    """Samples from the student as it is now, has a teacher score, and trains twice on it."""

    def __init__(self, student: ChatModel, teacher: Teacher, seed: int) -> None:
        self.sampler, self.teacher, self.seed = InProcessSampler(student), teacher, seed

    def updates(self, step: int) -> Iterable[Sequence[Microbatch]]:
        params = SamplingParams(max_new_tokens=12, seed=step_seed(self.seed, step))
        rollouts = self.sampler.sample([[65 + i, 66] for i in range(6)], params)
        for _ in range(2):
            parts = scored(self.teacher, rollouts, max_tokens=40)
            yield [Microbatch(part, TokenSignals(scores, part.logprobs_N)) for part, scores in parts]

    def metrics(self) -> dict[str, float]:
        return {"response_tokens": 12.0}


class Averaging(OnPolicy):
    """The same with a teacher that follows the student."""

    teacher: SelfTeacher

    def updates(self, step: int) -> Iterable[Sequence[Microbatch]]:
        self.teacher.follow()
        yield from super().updates(step)

    def state_tensors(self) -> dict[str, torch.Tensor]:
        return self.teacher.state_tensors()

    def load_state_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        self.teacher.load_state_tensors(tensors)


LABELS = TokenLoss(Objective(table.get("sft")))


Case = tuple[ChatModel, Batches, TokenLoss]


def texts_case() -> Case:
    return tiny.chat_model(), Texts(2), LABELS


def bf16_case() -> Case:
    student = tiny.chat_model()
    student.model.to(torch.bfloat16)
    return student, Texts(2), LABELS


def on_policy_case() -> Case:
    student = tiny.chat_model(seed=1)
    return (
        student,
        OnPolicy(student, CheckpointTeacher(tiny.chat_model()), 9),
        TokenLoss(Objective(table.get("opd"))),
    )


def lora_case() -> Case:
    student = add_lora(tiny.chat_model(), LoraSpec(rank=4, dropout=0.1))
    with torch.no_grad():
        for name, parameter in student.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    loss = TokenLoss(Objective(table.get("opd-sampled"), (257, 258)))
    return student, OnPolicy(student, AdapterOffTeacher(student), 9), loss


@pytest.mark.parametrize("recomputing", [True, False])
def test_without_dropout_the_trainer_s_probabilities_are_the_sampler_s(recomputing: bool) -> None:
    """Else a ratio of the two would be far from 1 of a student that has not moved."""
    gaps: list[float] = []
    for dropout in (True, False):
        student, batches, loss = lora_case()
        if recomputing:
            unwrap(student.model).gradient_checkpointing_enable({"use_reentrant": False})
        config = TrainConfig(steps=1, learning_rate=1e-12, dropout=dropout)
        train(student, batches, loss, config, on_metrics=lambda _, seen: gaps.append(seen["sampler_gap_max"]))
        assert all(layer.training == (dropout or recomputing) for layer in decoder_layers(student.model)[1])
    assert gaps[1] < 1e-3 < gaps[0]


def average_case() -> Case:
    student = tiny.chat_model()
    teacher = SelfTeacher(student, decay=0.5)
    torch.nn.init.normal_(student.model.lm_head.weight, generator=torch.Generator().manual_seed(1))
    return student, Averaging(student, teacher, 9), TokenLoss(Objective(table.get("opd")))


def trained(
    case: Case, state: TrainState | None, die_after: int | None = None
) -> tuple[dict[str, torch.Tensor], list[dict[str, float]], TrainReport | None]:
    """Weights, metrics without times, report if it ends; `die_after` is a kill between two steps."""
    chat_model, batches, loss = case
    seen: list[dict[str, float]] = []

    def after(step: int) -> None:
        if step == die_after:
            raise KeyboardInterrupt

    report = None
    try:
        report = train(
            chat_model,
            batches,
            loss,
            CONFIG,
            state=WatchedState(state.root, after) if state else None,
            on_metrics=lambda step, metrics: seen.append({"step": step, **metrics}),
        )
    except KeyboardInterrupt:
        assert die_after
    weights = {name: p.detach().clone() for name, p in chat_model.model.named_parameters()}
    return weights, [{k: v for k, v in m.items() if k not in TIMES} for m in seen], report


CASES = {
    "texts": texts_case,
    "bf16": bf16_case,
    "on-policy": on_policy_case,
    "lora": lora_case,
    "moving average": average_case,
}


@pytest.mark.parametrize("name", CASES)
def test_a_killed_training_goes_on_bitwise(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    weights, metrics, report = trained(CASES[name](), None)
    state = TrainState(tmp_path)
    trained(CASES[name](), state, die_after=3)
    torch.manual_seed(2)
    again, rest, resumed = trained(CASES[name](), state)
    assert [m["step"] for m in rest] == [4, 5, 6]
    assert metrics[3:] == rest
    assert all(torch.equal(weights[k], again[k]) for k in weights)
    report, resumed = present(report), present(resumed)
    assert (resumed.steps, resumed.tokens, resumed.stopped) == (report.steps, report.tokens, None)
    start = dict(CASES[name]()[0].model.named_parameters())
    assert any(not torch.equal(weights[k], start[k]) for k in weights)


def test_every_step_draws_its_own_dropout_again_where_the_seed_is_the_same() -> None:
    def drawn(seed: int) -> list[float]:
        numbers: list[float] = []

        def loss(model: PreTrainedModel, microbatch: Microbatch) -> Loss:
            numbers.append(float(torch.rand(1)))
            return LABELS(model, microbatch)

        train(tiny.chat_model(), Texts(), loss, replace(CONFIG, steps=3, save_every=0, seed=seed))
        return numbers

    first, again, other = drawn(5), drawn(5), drawn(6)
    assert first == again and len({*first, *other}) == 6


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_microbatches_change_nothing(parts: int) -> None:
    """Rows of different lengths: only the global token count gives one gradient for every cut."""
    whole, cut = tiny.chat_model(), tiny.chat_model()
    config = replace(CONFIG, steps=1, save_every=0)
    seen: list[dict[str, float]] = []
    for model, n in ((whole, 1), (cut, parts)):
        train(model, Texts(n), LABELS, config, on_metrics=lambda _, metrics: seen.append(metrics))
    for name in ("loss", "grad_norm", "tokens", "entropy"):
        assert seen[0][name] == pytest.approx(seen[1][name], rel=1e-5)
    for a, b in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=0)


def test_the_gradient_is_that_of_the_mean_over_all_tokens() -> None:
    chat_model = tiny.chat_model()
    microbatches = next(iter(Texts(4).updates(1)))
    rows = [part.rollouts for part in microbatches]
    total = sum(len(r.tokens_N) for r in rows)
    values = [LABELS(chat_model.model, Microbatch(r)).value for r in rows]
    mean = torch.stack(values).sum() / total
    mean.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in chat_model.model.parameters()))
    seen: list[dict[str, float]] = []
    config = replace(CONFIG, steps=1, save_every=0)
    train(chat_model, Texts(4), LABELS, config, on_metrics=lambda _, metrics: seen.append(metrics))
    assert seen[0]["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert seen[0]["loss"] == pytest.approx(mean.item(), rel=1e-5)


def test_gradients_are_not_rescaled_by_settings_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    for steps in ("1", "4"):
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", steps)
        train(
            tiny.chat_model(),
            Texts(),
            LABELS,
            replace(CONFIG, steps=1, save_every=0),
            on_metrics=lambda _, metrics: norms.append(metrics["grad_norm"]),
        )
    assert norms[0] == norms[1]


def bad_at(step: int, value: float) -> Callable[..., Loss]:
    """A loss function that turns non-finite at the `step`-th call."""
    calls = iter(range(1, 1000))

    def loss(model: PreTrainedModel, microbatch: Microbatch) -> Loss:
        good = LABELS(model, microbatch)
        return replace(good, value=good.value * value) if next(calls) == step else good

    return loss


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_loss_stops_before_its_update(value: float, tmp_path: Path) -> None:
    good, config = tiny.chat_model(), replace(CONFIG, schedule="constant", save_every=0)
    train(good, Texts(), LABELS, replace(config, steps=2))
    bad, state, steps = tiny.chat_model(), TrainState(tmp_path), []
    with pytest.raises(NonFiniteLoss, match=r"step 3: the loss is (nan|inf).*lower the learning rate"):
        train(
            bad, Texts(), bad_at(3, value), config, state=state, on_metrics=lambda step, _: steps.append(step)
        )
    assert steps == [1, 2]
    for a, b in zip(good.model.parameters(), bad.model.parameters(), strict=True):
        assert torch.equal(a, b)
    kept, tensors, _ = present(state.load())
    assert kept == 2
    assert torch.equal(tensors["weights.model.norm.weight"], good.model.model.norm.weight)


def failing_at(step: int, error: Exception) -> Callable[..., Loss]:
    """A loss function that fails at the `step`-th call."""
    calls = iter(range(1, 1000))

    def loss(model: PreTrainedModel, microbatch: Microbatch) -> Loss:
        if next(calls) == step:
            raise error
        return LABELS(model, microbatch)

    return loss


HOST_ERROR = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"


LIBRARY_ERROR = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError(HOST_ERROR), RuntimeError(LIBRARY_ERROR)],
)
def test_a_lack_of_memory_names_its_step_and_the_last_whole_one_is_saved(
    error: Exception, tmp_path: Path
) -> None:
    config, state = replace(CONFIG, save_every=0), TrainState(tmp_path)
    with pytest.raises(OutOfMemory, match="out of memory in step 3: lower microbatch_tokens"):
        train(tiny.chat_model(), Texts(), failing_at(3, error), config, state=state)
    assert present(state.load())[0] == 2


def test_a_lack_of_memory_of_an_adapter_names_what_takes_it() -> None:
    """It is trained already, and no lower microbatch divides a row."""
    student, error = add_lora(tiny.chat_model(), LoraSpec(rank=2)), torch.OutOfMemoryError("out of memory")
    with pytest.raises(OutOfMemory, match=r"row: max_new_tokens\) or the rank of lora, or set ") as caught:
        train(student, Texts(), failing_at(1, error), CONFIG)
    assert "train an adapter" not in str(caught.value)


def test_a_lack_of_memory_for_the_optimizer_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer, "Updater", fail)
    with pytest.raises(OutOfMemory, match=r"out of memory before its first step: .* or train an adapter"):
        train(tiny.chat_model(), Texts(), LABELS, CONFIG)


def test_other_errors_of_a_step_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="a size mismatch"):
        train(tiny.chat_model(), Texts(), failing_at(1, RuntimeError("a size mismatch")), CONFIG)


def test_a_non_finite_loss_between_the_updates_of_a_step_says_how_many_are_in() -> None:
    whole = r"step 2: the loss is nan and .*; the weights are those before it: lower"
    begun = (
        r"step 2: .* those after 1 of its updates, and `recover resume` goes back to the last saved state: "
    )
    for call, message in ((3, whole), (4, begun)):
        with pytest.raises(NonFiniteLoss, match=message):
            train(tiny.chat_model(), Twice(), bad_at(call, math.nan), CONFIG)


def test_a_step_s_microbatches_are_gone_before_the_next_one_is_made() -> None:
    """With them go the states of a teacher, which may fill a part of the GPU."""
    made: list[weakref.ref[Rollouts]] = []

    class Watched(Twice):
        def updates(self, step: int) -> Iterable[Sequence[Microbatch]]:
            assert [there for there in made if there() is not None] == []
            for microbatches in super().updates(step):
                made.extend(weakref.ref(part.rollouts) for part in microbatches)
                yield microbatches

    train(tiny.chat_model(), Watched(2), LABELS, replace(CONFIG, save_every=0))
    assert len(made) == 6 * 2 * 2


def interrupted(batches: Any, step: int, update: int = 0) -> Any:
    """Batches that are interrupted as the given update of a step is asked for."""
    whole = batches.updates

    def updates(at: int) -> Iterable[Sequence[Microbatch]]:
        for number, microbatches in enumerate(whole(at)):
            if (at, number) == (step, update):
                raise KeyboardInterrupt
            yield microbatches

    batches.updates = updates
    return batches


@pytest.mark.parametrize("name", ["texts", "on-policy", "lora"])
def test_an_interrupted_training_repeats_no_whole_step(name: str, tmp_path: Path) -> None:
    config, state = replace(CONFIG, save_every=0), TrainState(tmp_path)
    whole, batches, loss = CASES[name]()
    train(whole, batches, loss, config)
    halted, batches, loss = CASES[name]()
    with pytest.raises(KeyboardInterrupt):
        train(halted, interrupted(batches, step=4), loss, config, state=state)
    again, batches, loss = CASES[name]()
    steps: list[int] = []
    train(again, batches, loss, config, state=state, on_metrics=lambda step, _: steps.append(step))
    assert steps == [4, 5, 6]
    assert all(
        torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True)
    )


@pytest.mark.parametrize(("name", "update"), [("on-policy", 1), ("moving average", 0)])
def test_a_state_that_has_moved_on_is_not_saved(name: str, update: int, tmp_path: Path) -> None:
    """Weights between two updates of a step are no step's; a teacher has followed before the first one."""
    student, batches, loss = CASES[name]()
    state = TrainState(tmp_path)
    halted = interrupted(batches, step=4, update=update)
    with pytest.raises(KeyboardInterrupt):
        train(student, halted, loss, replace(CONFIG, save_every=2), state=state)
    assert present(state.load())[0] == 2


def test_after_an_alarm_training_goes_on_behind_its_step(tmp_path: Path) -> None:
    def alarm(step: int, metrics: dict[str, float]) -> str | None:
        if step == 3:
            raise Unstable("an alarm")
        return None

    config, state = replace(CONFIG, save_every=0), TrainState(tmp_path)
    with pytest.raises(Unstable):
        train(tiny.chat_model(), Texts(), LABELS, config, state=state, should_stop=alarm)
    assert present(state.load())[0] == 3


class Checks:
    """A `should_stop` that keeps the loss of each step that it is asked about, and does something at one."""

    def __init__(self, step: int = 0, act: Callable[[], str | None] = lambda: None) -> None:
        self.step, self.act = step, act
        self.losses: dict[int, float] = {}

    def __call__(self, step: int, metrics: dict[str, float]) -> str | None:
        self.losses[step] = metrics["loss"]
        return self.act() if step == self.step else None


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize("name", ["texts", "on-policy", "lora"])
@pytest.mark.parametrize("step", [4, 6])
def test_an_interrupted_check_of_a_step_is_made_first(name: str, step: int, tmp_path: Path) -> None:
    config, state, checks = replace(CONFIG, save_every=0), TrainState(tmp_path), Checks()
    whole, batches, loss = CASES[name]()
    train(whole, batches, loss, config, should_stop=checks)
    halted, batches, loss = CASES[name]()
    interrupt = Checks(step, raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        train(halted, batches, loss, config, state=state, should_stop=interrupt)
    again, batches, loss = CASES[name]()
    steps: list[int] = []
    rest = Checks()
    train(
        again,
        batches,
        loss,
        config,
        state=state,
        should_stop=rest,
        on_metrics=lambda step, _: steps.append(step),
    )
    assert steps == list(range(step + 1, 7))
    assert list(rest.losses) == list(range(step, 7))
    assert rest.losses == {at: checks.losses[at] for at in rest.losses}
    assert all(
        torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True)
    )


def test_a_check_made_after_an_interruption_may_end_the_training(tmp_path: Path) -> None:
    config, state = replace(CONFIG, save_every=0), TrainState(tmp_path)
    interrupt = Checks(3, raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        train(tiny.chat_model(), Texts(), LABELS, config, state=state, should_stop=interrupt)
    enough = Checks(3, lambda: "good enough")
    for should_stop in (enough, None):
        report = train(tiny.chat_model(), Texts(), LABELS, config, state=state, should_stop=should_stop)
        assert (report.steps, report.stopped) == (3, "good enough")
    assert list(enough.losses) == [3]


def test_an_alarm_in_a_check_made_after_an_interruption_does_not_come_again(tmp_path: Path) -> None:
    config, state = replace(CONFIG, save_every=0), TrainState(tmp_path)
    for error in (KeyboardInterrupt(), Unstable("an alarm")):
        checks = Checks(3, raising(error))
        with pytest.raises(type(error)):
            train(tiny.chat_model(), Texts(), LABELS, config, state=state, should_stop=checks)
    rest = Checks()
    train(tiny.chat_model(), Texts(), LABELS, config, state=state, should_stop=rest)
    assert list(rest.losses) == [4, 5, 6]


def test_a_state_that_cannot_be_saved_does_not_hide_why_training_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(TrainState):
        def save(self, *_: Any) -> None:
            raise OSError("no space left")

    with pytest.raises(NonFiniteLoss):
        train(
            tiny.chat_model(),
            Texts(),
            bad_at(3, math.nan),
            replace(CONFIG, save_every=0),
            state=Full(tmp_path),
        )
    assert "step 2 was not saved (OSError: no space left)" in caplog.text


def test_training_goes_on_from_the_state_kept_before_a_non_finite_loss(tmp_path: Path) -> None:
    config, whole, state = replace(CONFIG, save_every=0), tiny.chat_model(), TrainState(tmp_path)
    train(whole, Texts(), LABELS, config)
    halted = tiny.chat_model()
    with pytest.raises(NonFiniteLoss):
        train(halted, Texts(), bad_at(4, math.nan), config, state=state)
    train(halted, Texts(), LABELS, config, state=state)
    assert all(
        torch.equal(a, b) for a, b in zip(whole.model.parameters(), halted.model.parameters(), strict=True)
    )


def test_an_update_without_tokens_changes_nothing() -> None:
    class Silent:
        def updates(self, step: int) -> Iterable[Sequence[Microbatch]]:
            yield [Microbatch(Rollouts.from_dialogues([([1, 2, 3], [False] * 3)], pad_id=258))]

    chat_model = tiny.chat_model()
    before = [p.clone() for p in chat_model.model.parameters()]
    seen: list[dict[str, float]] = []
    train(chat_model, Silent(), LABELS, replace(CONFIG, steps=2), on_metrics=lambda _, m: seen.append(m))
    assert all(torch.equal(a, b) for a, b in zip(before, chat_model.model.parameters(), strict=True))
    assert seen[0]["loss"] == 0
    assert seen[0]["tokens"] == 0


def test_bf16_weights_follow_steps_too_small_for_them() -> None:
    """bf16 keeps 8 bits: 5e-5 on a weight near 0.2 rounds away unless an fp32 copy adds the steps up."""
    chat_model = tiny.chat_model()
    chat_model.model.to(torch.bfloat16)
    before = chat_model.model.model.embed_tokens.weight.detach().clone()
    config = TrainConfig(steps=30, learning_rate=5e-5, schedule="constant")
    rows = [Microbatch(Rollouts.from_dialogues(dialogues(2, 0), pad_id=258))]

    class Same:
        def updates(self, step: int) -> Iterable[Sequence[Microbatch]]:
            yield rows

    train(chat_model, Same(), LABELS, config)
    moved = (chat_model.model.model.embed_tokens.weight - before).abs()
    large = before.abs() > 0.1
    assert (moved[large] > 0).float().mean() > 0.1
    assert chat_model.model.dtype == torch.bfloat16


def test_shards_hand_back_the_adapter_that_they_round() -> None:
    student = tiny.chat_model()
    student.model.to(torch.bfloat16)
    model = add_lora(student, LoraSpec(rank=4)).model
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    rounded = distributed._in_one_dtype(model)
    assert before and rounded.keys() == before.keys()
    assert all(torch.equal(rounded[name], before[name]) for name in before)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert distributed._in_one_dtype(tiny.chat_model().model) == {}


def test_shards_refuse_sequences_that_need_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As LongRoPE does where some are longer than its boundary; in passes of their own they may be."""
    monkeypatch.setattr(updater, "row_sharing", lambda model: Sharing(boundary=8))
    short, long = ([([1] * length, [True] * length)] for length in (6, 12))
    apart = [Microbatch(Rollouts.from_dialogues(rows, pad_id=258)) for rows in (short, long)]
    updater._require_one_pass(None, apart)
    together = Microbatch(Rollouts.from_dialogues([*short, *long], pad_id=258))
    with pytest.raises(InputError, match=r"within 8 tokens can't share a pass .* longer ones: set it"):
        updater._require_one_pass(None, [*apart, together])


def test_rows_of_a_model_in_shards_end_at_its_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever number of processes the run goes on."""
    model = tiny.model()
    context = model.config.max_position_embeddings
    monkeypatch.setattr(distributed, "row_sharing", lambda model: Sharing(boundary=8))
    assert (distributed.boundary(model), distributed.longest_row(model, sharded=False)) == (math.inf, context)
    monkeypatch.setattr(distributed, "is_sharded", lambda model: True)
    assert (distributed.boundary(model), distributed.longest_row(model, sharded=True)) == (8, 8)
    monkeypatch.setattr(distributed, "row_sharing", lambda model: Sharing())
    assert (distributed.boundary(model), distributed.longest_row(model, sharded=True)) == (math.inf, context)


def test_training_learns() -> None:
    losses: list[float] = []

    class Same:
        def updates(self, step: int) -> Iterable[Sequence[Microbatch]]:
            yield from Texts().updates(1)

    config = TrainConfig(steps=15, learning_rate=1e-2, clip_norm=0)
    train(tiny.chat_model(), Same(), LABELS, config, on_metrics=lambda _, m: losses.append(m["loss"]))
    assert losses[-1] < 0.5 * losses[0]


def test_distillation_lowers_the_divergence() -> None:
    student, batches, loss = on_policy_case()
    seen: list[float] = []
    config = TrainConfig(steps=8, learning_rate=5e-3)
    train(student, batches, loss, config, on_metrics=lambda _, m: seen.append(m["reverse_kl"]))
    assert seen[-1] < 0.8 * seen[0]


def test_stopping_saves_and_says_why(tmp_path: Path) -> None:
    state = TrainState(tmp_path)
    saved: list[int] = []
    report = train(
        tiny.chat_model(),
        Texts(),
        LABELS,
        replace(CONFIG, save_every=0),
        state=WatchedState(tmp_path, saved.append),
        should_stop=lambda step, metrics: "good enough" if step == 2 and metrics["loss"] else None,
    )
    assert (report.steps, report.stopped, saved) == (2, "good enough", [2])
    assert present(state.load())[0] == 2
    again = train(tiny.chat_model(), Texts(), LABELS, replace(CONFIG, save_every=0), state=state)
    assert (again.steps, again.stopped) == (2, "good enough")  # killed before it was published: no further


def test_states_are_saved_when_asked(tmp_path: Path) -> None:
    saved: list[int] = []
    train(
        tiny.chat_model(),
        Texts(),
        LABELS,
        replace(CONFIG, steps=5, save_every=2),
        state=WatchedState(tmp_path, saved.append),
    )
    assert saved == [2, 4, 5]


def test_a_finished_training_is_not_repeated(tmp_path: Path) -> None:
    state = TrainState(tmp_path)
    first = train(tiny.chat_model(), Texts(), LABELS, CONFIG, state=state)
    again = train(
        tiny.chat_model(),
        Texts(),
        LABELS,
        CONFIG,
        state=state,
        on_metrics=lambda *_: pytest.fail("a step was repeated"),
    )
    assert (again.steps, again.tokens) == (first.steps, first.tokens)


@pytest.mark.parametrize("later", [replace(CONFIG, shard=True), replace(CONFIG, dropout=False)])
def test_a_state_does_not_hold_what_changes_no_run(tmp_path: Path, later: TrainConfig) -> None:
    """Those of earlier versions lack these settings, too."""
    state = TrainState(tmp_path)
    train(tiny.chat_model(), Texts(), LABELS, CONFIG, state=state)
    again = train(tiny.chat_model(), Texts(), LABELS, later, state=state)
    assert again.steps == CONFIG.steps


def test_a_state_of_other_settings_or_weights_is_refused(tmp_path: Path) -> None:
    state = TrainState(tmp_path)
    train(tiny.chat_model(), Texts(), LABELS, CONFIG, state=state)
    with pytest.raises(InputError, match=r"learning_rate 0\.001, not 0.002: resume with the same settings"):
        train(tiny.chat_model(), Texts(), LABELS, replace(CONFIG, learning_rate=2e-3), state=state)
    with pytest.raises(InputError, match="not those of this model"):
        train(add_lora(tiny.chat_model(), LoraSpec(rank=2)), Texts(), LABELS, CONFIG, state=state)


def test_a_frozen_model_is_refused() -> None:
    chat_model = tiny.chat_model()
    chat_model.model.requires_grad_(False)
    with pytest.raises(InputError, match="no trainable weights"):
        train(chat_model, Texts(), LABELS, CONFIG)


def test_metrics_that_nobody_can_take_do_not_stop_training(caplog: pytest.LogCaptureFixture) -> None:
    def on_metrics(step: int, metrics: dict[str, float]) -> None:
        raise OSError("disk full")

    report = train(tiny.chat_model(), Texts(), LABELS, replace(CONFIG, steps=3), on_metrics=on_metrics)
    assert report.steps == 3
    assert [record.message for record in caplog.records] == [
        "step 1: its metrics were not reported (OSError: disk full)"
    ]


def test_every_step_reports() -> None:
    student, batches, loss = on_policy_case()
    seen: list[dict[str, float]] = []
    train(
        student, batches, loss, replace(CONFIG, steps=2), on_metrics=lambda _, metrics: seen.append(metrics)
    )
    wanted = TIMES | {
        "loss",
        "lr",
        "grad_norm",
        "tokens",
        "reverse_kl",
        "entropy",
        "sampler_gap_max",
        "response_tokens",
    }
    assert wanted <= seen[0].keys()
    assert 0 < seen[0]["tokens"] <= 2 * 12 * 6
    assert seen[0]["sampler_gap_max"] >= seen[0]["sampler_gap"] >= 0
    assert seen[0]["eta_seconds"] == pytest.approx(seen[0]["step_seconds"])
    assert seen[0]["tokens_per_second"] == pytest.approx(seen[0]["tokens"] / seen[0]["step_seconds"])


def test_learning_rates_by_hand() -> None:
    config = TrainConfig(steps=20, learning_rate=1.0, warmup_steps=2, final_lr_fraction=0.2)
    rate = partial(learning_rate_at, config=config)
    assert [rate(1), rate(2)] == [0.5, 1.0]
    assert rate(3) == 1.0
    assert rate(12) == pytest.approx(0.2 + 0.8 * 0.5)
    assert rate(20) == pytest.approx(0.2 + 0.8 * 0.0075961235)  # (1 + cos(pi * 17 / 18)) / 2
    linear = replace(config, schedule="linear")
    assert [learning_rate_at(12, linear), learning_rate_at(20, linear)] == pytest.approx(
        [0.6, 0.2 + 0.8 / 18]
    )
    assert learning_rate_at(9, replace(config, schedule="constant")) == 1.0


@pytest.mark.parametrize(("steps", "warmup"), [(3, 0), (16, 1), (199, 19), (200, 20), (5000, 20)])
def test_warm_up_takes_at_most_a_tenth_of_the_steps(steps: int, warmup: int) -> None:
    config = TrainConfig(steps=steps, learning_rate=1.0, warmup_steps=20, schedule="constant")
    rates = [learning_rate_at(step, config) for step in range(1, min(steps, 30) + 1)]
    assert rates.index(1.0) == max(0, warmup - 1)
    assert sum(rate < 1 for rate in rates) == max(0, warmup - 1)


@pytest.mark.parametrize(("device", "inside"), [("cpu", "highest"), ("cuda:0", "high")])
def test_fp32_products_take_tensor_cores_on_a_gpu_while_training(device: str, inside: str) -> None:
    with fp32_on_tensor_cores(device):
        assert torch.get_float32_matmul_precision() == inside
    assert torch.get_float32_matmul_precision() == "highest"


def test_training_sets_the_precision_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []

    def spy(device: torch.device) -> Any:
        devices.append(device.type)
        return nullcontext()

    monkeypatch.setattr(trainer, "fp32_on_tensor_cores", spy)
    train(tiny.chat_model(), Texts(), LABELS, replace(CONFIG, steps=1, save_every=0))
    assert devices == ["cpu"]


def test_checks_measure_at_the_precision_of_what_they_compare_with() -> None:
    seen: list[str] = []
    with matmul_precision("high"):
        train(
            tiny.chat_model(),
            Texts(),
            LABELS,
            replace(CONFIG, steps=1, save_every=0),
            should_stop=lambda step, metrics: seen.append(torch.get_float32_matmul_precision()),
        )
        assert (seen, torch.get_float32_matmul_precision()) == (["highest"], "high")


def test_step_seeds_differ() -> None:
    assert len({step_seed(seed, step) for seed in range(30) for step in range(30)}) == 900
    assert step_seed(3, 4) == step_seed(3, 4) < 2**56


@pytest.mark.parametrize(
    "bad",
    [
        {"steps": -1},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"schedule": "step"},
        {"clip_norm": -1},
    ],
)
def test_bad_settings(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"training: {next(iter(bad))} is "):
        TrainConfig(**{"steps": 1, "learning_rate": 1e-3, **bad})
