"""Token traces: the numbers of each token are right, looking changes nothing, and they are stored once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from db.errors import NotFound
from db.reads import traces as stored
from db.writes.tracker import Tracker
from recovery.inspection import token_traces
from recovery.methods.table import METHODS
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.chat_model import ChatModel
from recovery.objective.objective import Objective
from recovery.sampling.in_process import InProcessSampler
from recovery.teachers.teachers import CheckpointTeacher
from recovery.training.config import TrainConfig
from recovery.training.step_data import Episodes, StepConfig, Task
from recovery.training.token_loss import TokenLoss
from recovery.training.trainer import train
from tests.support import tiny

STEP = StepConfig(prompts_per_step=3, samples_per_prompt=2, max_new_tokens=9, microbatch_tokens=60, seed=3)


@dataclass(frozen=True)
class Row:
    messages: list[dict[str, str]]
    fields: dict[str, Any] = field(default_factory=dict)


TEXTS = ("ab", "cde", "f", "gh")
PROMPTS = [Row([{"role": "user", "content": text}], {"response": text * 2}) for text in TEXTS]


def episodes(name: str, student: ChatModel, teacher: ChatModel, **changes: Any) -> Episodes:
    method = METHODS[name]
    scorer = CheckpointTeacher(teacher, "dense" if method.scores == "none" else method.scores)
    sampler = InProcessSampler(student)
    return Episodes(student, sampler, Task(method, PROMPTS, PROMPTS, scorer), STEP, **changes)


def looked_at(name: str, teacher_seed: int = 7) -> tuple[list[token_traces.Trace], ChatModel, ChatModel]:
    """The traces of one step under a method, with both models as they were."""
    student, teacher = tiny.chat_model(seed=1), tiny.chat_model(seed=teacher_seed)
    found: list[token_traces.Trace] = []
    tracer = token_traces.Tracer(student, Objective(METHODS[name]), 1, lambda step, made: found.extend(made))
    next(iter(episodes(name, student, teacher, on_scored=tracer).updates(1)))
    return found, student, teacher


def logprobs(model: ChatModel, trace: token_traces.Trace) -> torch.Tensor:
    """Independently of the code at hand: transformers' own logits of prompt and response."""
    prompt = list(trace.prompt.encode())
    for text, token in ((tiny.IM_START, 256), (tiny.IM_END, 257)):
        prompt = _replaced(prompt, list(text.encode()), token)
    with torch.no_grad():
        logits = model.model(torch.tensor([prompt + trace.ids])).logits[0]
    return logits[len(prompt) - 1 : -1].log_softmax(-1)


def _replaced(ids: list[int], part: list[int], token: int) -> list[int]:
    at = next((i for i in range(len(ids)) if ids[i : i + len(part)] == part), None)
    return ids if at is None else _replaced([*ids[:at], token, *ids[at + len(part) :]], part, token)


def test_the_numbers_of_each_token_are_those_of_the_two_models() -> None:
    found, student, teacher = looked_at("opd")
    assert [trace.estimator for trace in found] == ["exact"] * 3  # a rollout of each prompt of the step
    for trace in found:
        p_NV, q_NV = logprobs(student, trace), logprobs(teacher, trace)
        at = list(range(len(trace.ids)))
        assert trace.student == pytest.approx(p_NV[at, trace.ids].tolist(), abs=2e-3)
        assert trace.teacher == pytest.approx(q_NV[at, trace.ids].tolist(), abs=2e-3)
        assert trace.divergence == pytest.approx((p_NV.exp() * (p_NV - q_NV)).sum(-1).tolist(), abs=2e-3)
        for top, rows_NV in ((trace.student_top, p_NV), (trace.teacher_top, q_NV)):
            assert top is not None
            for entries, row_V in zip(top, rows_NV, strict=True):
                best = row_V.topk(5)
                assert [p for _, p in entries] == pytest.approx(best.values.tolist(), abs=2e-3)
                assert entries[0][0] == student.tokenizer.decode([int(best.indices[0])])


def test_a_student_that_is_its_teacher_differs_nowhere() -> None:
    found, _, _ = looked_at("opd", teacher_seed=1)
    assert found and all(abs(value) < 1e-3 for trace in found for value in trace.divergence or [math.inf])


@pytest.mark.parametrize(
    ("name", "estimator", "teacher", "top"),
    [
        ("opd-topk", "top-k", True, True),
        ("opd-sampled", "sampled", True, False),
        ("sft", "none", False, False),
    ],
)
def test_a_method_with_fewer_scores_shows_what_it_has(
    name: str, estimator: str, teacher: bool, top: bool
) -> None:
    traces, *_ = looked_at(name)
    assert traces
    for trace in traces:
        assert trace.estimator == estimator and len(trace.student_top) == len(trace.ids) == len(trace.pieces)
        assert (trace.teacher is not None, trace.teacher_top is not None) == (teacher, top)
        assert (trace.divergence is None) == (estimator == "none")
        if estimator == "sampled":
            differences = [p - q for p, q in zip(trace.student, trace.teacher or [], strict=True)]
            assert trace.divergence == pytest.approx(differences, abs=2e-4)


def test_looking_does_not_change_a_training() -> None:
    """Bitwise, and with dropout, which would draw other numbers if looking drew any."""

    def weights(on_scored: Callable[..., None] | None) -> dict[str, torch.Tensor]:
        student = tiny.chat_model(seed=1)
        add_lora(student, LoraSpec(rank=2, dropout=0.5))
        tracer = on_scored and token_traces.Tracer(student, Objective(METHODS["opd"]), 2, on_scored)
        made = episodes("opd", student, tiny.chat_model(seed=7), on_scored=tracer)
        loss = TokenLoss(Objective(METHODS["opd"], student.stop_ids))
        train(student, made, loss, TrainConfig(steps=2, learning_rate=1e-3, seed=4))
        return {name: p.detach().clone() for name, p in student.model.named_parameters() if p.requires_grad}

    seen: list[int] = []
    plain, traced = weights(None), weights(lambda step, made: seen.append(step))
    assert seen == [1, 2]
    assert all(torch.equal(plain[name], traced[name]) for name in plain)


@given(st.integers(1, 100_000))
def test_a_run_is_looked_at_first_last_and_seldom(steps: int) -> None:
    chosen = [step for step in range(1, steps + 1) if token_traces.is_looked_at(step, steps)]
    assert chosen[0] == 1 and chosen[-1] == steps and len(chosen) <= token_traces.SAMPLES + 2


@given(st.text(st.characters(codec="utf-8"), max_size=40))
@settings(deadline=None)
def test_pieces_join_to_the_text_however_characters_are_split(text: str) -> None:
    tokenizer, ids = tiny.tokenizer(), list(text.encode())
    found = list(token_traces.pieces(ids, tokenizer))
    assert len(found) == len(ids) and "".join(found) == text


def test_bytes_that_are_no_text_still_give_a_piece_a_token() -> None:
    ids, tokenizer = [0xFF, 0xFE, 65, 0xE4, 0xB8, 257], tiny.tokenizer()
    found = list(token_traces.pieces(ids, tokenizer))
    assert len(found) == len(ids) and "".join(found) == tokenizer.decode(ids)


def test_traces_are_stored_once_and_read_back(tmp_path: Path) -> None:
    made = looked_at("opd")[0]
    hostile = replace(made[0], prompt="<script>\0\ud800", pieces=["</span>"] * len(made[0].ids))
    with Tracker(tmp_path / "recover.db") as tracker:
        run = tracker.start_run("distill", config={"settings": {"method": "opd"}})
        assert stored.traced_runs(tracker.db) == []
        with tracker.live(run.id) as live:
            for _ in range(2):  # a resumed step is looked at again
                live.traces(10, [trace.row() for trace in (hostile, *made[1:])])
                assert live.flush()
        assert [row["id"] for row in stored.traced_runs(tracker.db)] == [run.id]
        listed = stored.traces(tracker.db, run.id)
        assert [(row["step"], row["place"]) for row in listed] == [(10, place) for place in range(len(made))]
        assert listed[1]["mean"] == pytest.approx(sum(made[1].divergence or []) / len(made[1].ids))
        row = stored.trace(tracker.db, run.id, 10, 0)
        assert row["tokens"]["ids"] == made[0].ids and row["prompt"].startswith("<script>␀")
        with pytest.raises(NotFound):
            stored.trace(tracker.db, run.id, 11, 0)
