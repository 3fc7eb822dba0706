"""Answers a step ahead: whose weights wrote them, what goes on meanwhile, the same numbers after a kill."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.training import OptimizerConfig
from pipelines.engines.engine_checks import check
from recovery.engines.background import in_background
from recovery.engines.canary import CANARY_TOKENS, trainer_logprobs
from recovery.engines.engine_sampler import EngineSampler
from recovery.engines.json_client import JsonClient
from recovery.engines.lookahead import Lookahead, corrected
from recovery.engines.vllm_http import ServerEngine
from recovery.errors import EngineLost, InputError, RecoverError
from recovery.methods.table import METHODS, with_dials
from recovery.models.chat_model import ChatModel
from recovery.objective.objective import Objective
from recovery.sampling.protocol import SamplingParams
from recovery.storage.training_state import TrainState
from recovery.training.config import TrainConfig
from recovery.training.token_loss import TokenLoss
from recovery.training.trainer import train
from tests.support import tiny
from tests.support.engine_fakes import TinyEngine, step
from tests.support.episodes import episodes
from tests.support.present import present

PARAMS = SamplingParams(12, seed=3)
SHORT = SamplingParams(5, 0.0)
ASKED = [[65 + n] * (3 + n) for n in range(6)]
PATIENCE = 60  # seconds, for what happens at once


class ToldEngine(TinyEngine):
    """Remembers when it was given weights and how long the answers were that it wrote.

    The next answers of `PARAMS` wait until `go` is set, and are lost if `lose` is.
    """

    def __init__(self, origin: ChatModel, **faults: Any) -> None:
        super().__init__(origin, **faults)
        self.events: list[str] = []
        self.go, self.lose = threading.Event(), False
        self.go.set()

    def sample(self, prompts: Any, params: Any, *rest: Any) -> Any:
        if params.max_new_tokens == PARAMS.max_new_tokens:
            assert self.go.wait(PATIENCE)
            if self.lose:
                self.lose = self.forever
                raise EngineLost("connection refused")
        written = super().sample(prompts, params, *rest)
        self.events.append(f"wrote {params.max_new_tokens}")
        return written

    def update_weights(self, student: ChatModel) -> None:
        self.events.append("took")
        super().update_weights(student)


@pytest.fixture
def student() -> ChatModel:
    return tiny.chat_model(seed=1)


# The sampler ------------------------------------------------------------------------------------------------


def test_what_was_started_is_written_by_the_weights_of_that_moment(student: ChatModel) -> None:
    engine = ToldEngine(student)
    sampler = EngineSampler(engine, student)
    at_once = sampler.sample(ASKED, PARAMS)
    engine.go.clear()
    answers = sampler.start(ASKED, PARAMS)
    step(student, 1e-1)  # the trainer goes on before a word is written
    engine.go.set()
    late = answers()
    assert late.responses() == at_once.responses()
    torch.testing.assert_close(late.logprobs_N, at_once.logprobs_N, rtol=1e-4, atol=1e-5)
    assert (trainer_logprobs(student, late) - late.logprobs_N).abs().max() > 1e-2


def test_a_call_meanwhile_waits_and_samples_from_the_newer_weights(student: ChatModel) -> None:
    engine = ToldEngine(student)
    sampler = EngineSampler(engine, student)
    expected = sampler.sample(ASKED, PARAMS).responses()
    engine.go.clear()
    answers = sampler.start(ASKED, PARAMS)
    engine.events.clear()
    step(student, 1e-1)
    threading.Timer(0.3, engine.go.set).start()
    answers_then = sampler.generate(ASKED[:2], SHORT)
    assert answers().responses() == expected
    assert engine.events == ["wrote 12", "took", f"wrote {CANARY_TOKENS}", "wrote 5"]
    assert answers_then == EngineSampler(ToldEngine(student), student).generate(ASKED[:2], SHORT)


@pytest.mark.parametrize("forever", [False, True])
def test_an_engine_lost_meanwhile_is_asked_once_more(student: ChatModel, forever: bool) -> None:
    engine = ToldEngine(student, forever=forever)
    sampler = EngineSampler(engine, student)
    sampler.sample(ASKED, PARAMS)
    engine.lose = True
    answers = sampler.start(ASKED, PARAMS)
    step(student, 1e-2)
    if forever:
        with pytest.raises(RecoverError, match=r"lost twice.*`recover resume`"):
            answers()
    else:
        again = answers()
        torch.testing.assert_close(trainer_logprobs(student, again), again.logprobs_N, rtol=1e-4, atol=1e-5)
    assert engine.restarts == 1


# A training -------------------------------------------------------------------------------------------------


def trained(
    steps: int,
    save_every: int,
    state: TrainState | None = None,
    die_in: int | None = None,
    die_writing: int | None = None,
) -> tuple[dict[str, torch.Tensor], list[dict[str, float]], list[tuple[int, int]]]:
    """The weights, every step's numbers, and which update's weights wrote each step's answers."""
    student, seen, updates = tiny.chat_model(seed=1), [], {}
    engine, method = ToldEngine(student), corrected(METHODS["opd"])
    sampler = EngineSampler(engine, student)
    written: list[tuple[int, int]] = []

    def mark(model: Any) -> float:
        return float(sum(p.detach().double().sum() for p in model.parameters()))

    updates[mark(student.model)] = 0
    real = engine.sample

    def sample(prompts: Any, params: Any, *rest: Any) -> Any:
        if params.max_new_tokens != CANARY_TOKENS:
            if len(written) + 1 == die_writing:
                raise KeyboardInterrupt
            written.append((len(written) + 1, updates.get(mark(engine.chat_model.model), -1)))
        return real(prompts, params, *rest)

    engine.sample = sample  # type: ignore[method-assign]
    made = episodes(method, student, sampler=sampler, ahead=Lookahead(sampler, steps, save_every))

    def on_metrics(step: int, metrics: dict[str, float]) -> None:
        if step == die_in:
            raise KeyboardInterrupt
        updates[mark(student.model)] = step
        seen.append(metrics)

    config = TrainConfig(steps=steps, learning_rate=3e-3, seed=4, save_every=save_every)
    loss = TokenLoss(Objective(method, student.stop_ids))
    try:
        train(student, made, loss, config, state=state, on_metrics=on_metrics)
    except KeyboardInterrupt:
        assert die_in or die_writing
        sampler.close()
    weights = {name: p.detach().clone() for name, p in student.model.named_parameters()}
    return weights, seen, written


def test_answers_are_one_step_old_but_after_a_saved_state() -> None:
    _, seen, written = trained(steps=7, save_every=3)
    assert written == [(1, 0), (2, 0), (3, 1), (4, 3), (5, 3), (6, 4), (7, 6)]
    gaps = [metrics["sampler_gap"] for metrics in seen]
    assert all((gap < 1e-4) == (number in (1, 4, 7)) for number, gap in enumerate(gaps, 1))
    assert all("importance_weight" in metrics for metrics in seen)
    _, _, written = trained(steps=4, save_every=0)
    assert written == [(1, 0), (2, 0), (3, 1), (4, 2)]


@pytest.mark.parametrize("die_in", [4, 5, 6])  # answers are under way in the first two
def test_a_killed_training_goes_on_bitwise(tmp_path: Path, die_in: int) -> None:
    weights, seen, _ = trained(steps=7, save_every=3)
    state = TrainState(tmp_path)
    trained(steps=7, save_every=3, state=state, die_in=die_in)
    again, rest, _ = trained(steps=7, save_every=3, state=state)
    assert len(rest) == 4 and [m["loss"] for m in rest] == [m["loss"] for m in seen[3:]]
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_a_step_whose_answers_are_one_step_old_is_not_begun_anew_from_the_step_before_it(
    tmp_path: Path,
) -> None:
    weights, _, _ = trained(steps=7, save_every=3)
    state = TrainState(tmp_path)
    trained(steps=7, save_every=3, state=state, die_writing=6)
    assert present(state.load())[0] == 3
    again, _, _ = trained(steps=7, save_every=3, state=state)
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def noted(seen: list[dict[str, float]], _: int, metrics: dict[str, float]) -> None:
    seen.append(metrics)


@pytest.mark.parametrize("seed", [1, 2])
def test_one_step_off_ends_where_on_policy_ends(seed: int) -> None:
    """With small steps the answers of a moment ago are as good: both come as near to the teacher."""
    losses = {}
    for ahead in (True, False):
        student = tiny.chat_model(seed)
        sampler = EngineSampler(ToldEngine(student), student)
        method = corrected(METHODS["opd"])
        early = Lookahead(sampler, 30, 0) if ahead else None
        made = episodes(method, student, sampler=sampler, seed=seed, ahead=early)
        seen: list[dict[str, float]] = []
        config = TrainConfig(steps=30, learning_rate=3e-3, seed=4)
        loss = TokenLoss(Objective(method, student.stop_ids))
        train(student, made, loss, config, on_metrics=partial(noted, seen))
        kls = [metrics["reverse_kl"] for metrics in seen]
        losses[ahead] = sum(kls[:5]) / 5, sum(kls[-5:]) / 5
    assert all(end < 0.75 * begin for begin, end in losses.values())
    assert losses[True][1] == pytest.approx(losses[False][1], rel=0.25)


# Settings ---------------------------------------------------------------------------------------------------


def settings(**changes: Any) -> DistillConfig:
    optimizer = OptimizerConfig(learning_rate=1e-4)
    return DistillConfig(prompts="p", optimizer=optimizer, **{"ahead": 1, "sampler": "http://a", **changes})


def test_where_nobody_can_write_meanwhile_it_is_refused() -> None:
    check(settings(), METHODS["opd"])
    with pytest.raises(InputError, match=r"ahead: .* give --sampler"):
        check(settings(sampler="inprocess"), METHODS["opd"])
    for method, changes, said in (
        ("gkd", {}, "'gkd'"),
        ("opd", {"save_every": 1}, "save_every"),
        ("rft", {}, "temperature=1"),
    ):
        row = with_dials(method, {"temperature": 0.7}) if method == "rft" else METHODS[method]
        with pytest.raises(InputError, match=rf"ahead: .*{said}"):
            check(settings(**changes), row)
    check(settings(), METHODS["rft"])


class SlowServer(ServerEngine):
    """Answers one request after the other, until it is closed."""

    def __init__(self) -> None:
        self.urls, self.models, self.servers, self.closed, self.asked = ["u"], ["m"], [], False, 0
        self.most_requests, self.client, self._adapter = 1, JsonClient(1), ExitStack()
        self.first, self.go = threading.Event(), threading.Event()

    def _post(self, url: str, body: dict[str, Any]) -> Any:
        self.asked += 1
        self.first.set()
        assert self.go.wait(PATIENCE)
        return {"choices": [{"prompt_token_ids": body["prompt"]}]}


def test_what_is_queued_when_a_run_ends_is_not_asked_for() -> None:
    engine = SlowServer()
    bodies = [{"prompt": [number]} for number in range(50)]
    answers = in_background(lambda: engine._complete(bodies, lambda _, choice: choice, None))
    assert engine.first.wait(PATIENCE)
    engine.close()
    engine.go.set()
    assert isinstance(answers.exception(PATIENCE), EngineLost)
    assert engine.asked == 1


def test_a_limit_to_weights_that_was_set_stays() -> None:
    assert corrected(METHODS["opd"]).importance_clip == 2.0
    assert corrected(with_dials("opd", {"importance_clip": 1.5})).importance_clip == 1.5
