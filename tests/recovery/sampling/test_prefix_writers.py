"""Who writes: every kind of state against what its writers do alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from recovery.batches.rollouts import Rollouts, joined
from recovery.errors import InputError
from recovery.methods import table
from recovery.methods.choices import STATES
from recovery.methods.method import Method
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.chat_model import ChatModel
from recovery.sampling import mixture as mixtures
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.mixture import mixed_logits, sample_mixture
from recovery.sampling.prefix_writers import WRITERS, StepInputs
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.contexts import Context, RowEncoder
from recovery.teachers.teachers import AdapterOffTeacher, CheckpointTeacher, RoutedTeacher
from tests.support import tiny
from tests.support.present import present

PARAMS = SamplingParams(max_new_tokens=12, seed=3)
ROWS = [0, 1, 1, 2]


@dataclass(frozen=True)
class Row:
    messages: list[dict[str, str]]
    fields: dict[str, Any] = field(default_factory=dict)


ITEMS = [
    Row([{"role": "user", "content": text}], {"response": text.upper()}) for text in ("ab", "cde", "f", "gh")
]


@pytest.fixture(scope="module")
def student() -> ChatModel:
    return tiny.chat_model(seed=1)


@pytest.fixture(scope="module")
def teacher() -> CheckpointTeacher:
    return CheckpointTeacher(tiny.chat_model(seed=2))


def inputs(method: str | Method, student: ChatModel, teacher: Any = None, **changes: Any) -> StepInputs:
    context = Context("system", "Z") if changes.pop("context", False) else None
    method = table.get(method) if isinstance(method, str) else method
    made = StepInputs(
        method,
        student,
        InProcessSampler(student),
        teacher,
        RowEncoder(student, ITEMS, context),
        ROWS,
        [3, 0, 1, 2],
        PARAMS,
        random.Random(0),
        lambda rollouts: torch.zeros(len(rollouts)),
    )
    return replace(made, **changes)


def write(*args: Any, **changes: Any) -> Rollouts:
    at = inputs(*args, **changes)
    return WRITERS[at.method.state_kind](at).trained


def same(one: Rollouts, other: Rollouts) -> bool:
    names = ("tokens_BT", "mask_BT", "attention_BT", "logprobs_BT", "finished_B", "prompt_lengths_B")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


def sampled(chat: ChatModel, prompts: list[list[int]], params: SamplingParams = PARAMS) -> Rollouts:
    return InProcessSampler(chat).sample(prompts, params)


def test_every_kind_of_state_has_its_writer() -> None:
    assert set(WRITERS) == set(STATES)


def test_data_are_the_rows_own_answers(student: ChatModel) -> None:
    found = write("sft", student)
    assert found.index_B.tolist() == [3, 0, 1, 2]
    assert [student.text(answer) for answer in found.responses()] == ["GH", "AB", "CDE", "F"]
    assert found.logprobs_BT.abs().sum() == 0 and found.finished_B.all()
    assert found.prompts()[0] == student.prompt_ids(ITEMS[3].messages)


def test_the_student_answers_what_it_sees(student: ChatModel, teacher: CheckpointTeacher) -> None:
    at = inputs("opd", student, teacher, context=True)
    found, by_student = WRITERS["student"](at)
    assert same(found, sampled(student, [student.prompt_ids(ITEMS[row].messages) for row in ROWS]))
    assert found.index_B.tolist() == ROWS
    assert by_student is found


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_mix_is_the_students_answers_and_those_of_the_data(count: int, student: ChatModel) -> None:
    own, read = ROWS[:count], [3, 0, 1, 2][: 4 - count]
    found = write("gkd", student, rows=own, data=read)
    assert (found.logprobs_BT != 0).any(1).tolist() == [True] * count + [False] * (4 - count)
    assert found.index_B.tolist() == own + read


def test_joined_rollouts_are_the_same_rows() -> None:
    rows = Rollouts.from_samples([[1], [1, 2]], [[3, 4, 5], [6]], [[-1, -2, -3], [-4]], [True, False], 258)
    again = joined([rows.select([0]), rows.select([1])], 258)
    assert same(again, rows)
    assert again.index_B.tolist() == [0, 1] and again.rewards_B is None


def test_kept_are_the_answers_with_the_whole_reward(student: ChatModel) -> None:
    earned = torch.tensor([1.0, 0.5, 2.0, 0.0])
    at = inputs("rft", student, rewards=lambda rollouts: earned)
    found, by_student = WRITERS["student-kept"](at)
    assert found.index_B.tolist() == [0, 1]
    assert same(found, present(by_student).select([0, 2]))
    assert len(write("rft", student)) == 0


@pytest.mark.parametrize("name", ["seqkd", "deliberate"])
def test_the_teachers_answers_follow_the_students_prompts(
    name: str, student: ChatModel, teacher: CheckpointTeacher
) -> None:
    """`deliberate` sees rules while it writes; what is trained on does not hold them."""
    hidden = name == "deliberate"
    found = write(name, student, teacher, context=hidden)
    seen = [{"role": "system", "content": "Z"}] if hidden else []
    alone = sampled(teacher.chat_model, [student.prompt_ids([*seen, *ITEMS[row].messages]) for row in ROWS])
    assert found.responses() == alone.responses()
    assert found.prompts() == [student.prompt_ids(ITEMS[row].messages) for row in ROWS]
    torch.testing.assert_close(found.logprobs_N, alone.logprobs_N)


@pytest.mark.parametrize("hidden", [False, True])
def test_the_teacher_goes_on_where_the_student_was(
    hidden: bool, student: ChatModel, teacher: CheckpointTeacher
) -> None:
    method = replace(table.get("opd-continue"), continuation=5)
    at = inputs(method, student, teacher, context=hidden)
    found, by_student = WRITERS["student-continued"](at)
    whole, prompts = present(by_student).responses(), present(by_student).prompts()
    starts = []
    for place, (tokens, mask) in enumerate(
        zip(found.tokens_BT.tolist(), found.mask_BT.tolist(), strict=True)
    ):
        first = mask.index(True)
        starts.append(tokens[len(prompts[place]) : first])
        assert tokens[: len(prompts[place])] == prompts[place]
        assert starts[-1] == whole[place][: len(starts[-1])] != whole[place]
        assert 1 <= sum(mask) <= 5
    assert len({len(start) for start in starts}) > 1
    assert found.prompt_lengths_B.tolist() == [len(prompt) for prompt in prompts]
    read = [at.views.teacher(row) + start for row, start in zip(ROWS, starts, strict=True)]
    alone = sampled(teacher.chat_model, read, SamplingParams(5, seed=PARAMS.seed ^ 1))
    assert found.responses() == alone.responses()


def test_each_row_is_written_by_the_teacher_of_its_route(student: ChatModel) -> None:
    teachers = {name: CheckpointTeacher(tiny.chat_model(seed)) for name, seed in (("a", 2), ("b", 3))}
    method = replace(table.get("seqkd"), teacher="routed")
    found = write(method, student, RoutedTeacher(teachers, ["b", "a", "b", "a"]))
    assert found.index_B.tolist() == ROWS
    prompts = [student.prompt_ids(ITEMS[row].messages) for row in ROWS]
    for name, places in (("a", [1, 2]), ("b", [0, 3])):
        alone = sampled(teachers[name].chat_model, [prompts[place] for place in places]).responses()
        assert [found.responses()[place] for place in places] == alone


@torch.no_grad()
def logprobs(chat: ChatModel, prompt: list[int], answer: list[int]) -> torch.Tensor:
    logits = chat.model(torch.tensor([prompt + answer])).logits[0]
    return logits[len(prompt) - 1 : -1].log_softmax(-1)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_mixture_is_drawn_from_both_distributions(
    hidden: bool, student: ChatModel, teacher: CheckpointTeacher
) -> None:
    at = inputs("minillm", student, teacher, context=hidden)
    found = WRITERS["teacher-mix"](at).trained
    for place, answer in enumerate(found.responses()):
        own = logprobs(student, at.views.student(ROWS[place]), answer).exp()
        theirs = logprobs(teacher.chat_model, at.views.teacher(ROWS[place]), answer).exp()
        mixture = (0.2 * theirs + 0.8 * own).log().gather(-1, torch.tensor(answer)[:, None])[:, 0]
        kept = found.logprobs_BT[place][found.mask_BT[place]]
        torch.testing.assert_close(kept, mixture, atol=1e-4, rtol=0)
    assert found.prompts() == [at.views.student(row) for row in ROWS]


def test_rows_of_a_mixture_leave_when_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long answers with stops in them: the two caches stay in step, whoever has left."""
    stopping = tiny.chat_model(seed=2)
    stopping.stop_ids = tuple(range(0, 260, 8))
    teacher = CheckpointTeacher(tiny.chat_model(seed=3))
    prompts, contexts = [[65 + i] * (i + 1) for i in range(6)], [[90 - i] * (2 * i + 1) for i in range(6)]
    monkeypatch.setattr(mixtures, "MOST_ROWS", 4)
    found = sample_mixture(stopping, teacher, 0.5, prompts, contexts, SamplingParams(40, seed=1))
    assert len({len(answer) for answer in found.responses()}) > 2
    for place, answer in enumerate(found.responses()):
        own, theirs = (
            logprobs(stopping, prompts[place], answer),
            logprobs(teacher.chat_model, contexts[place], answer),
        )
        mixture = torch.logaddexp(own, theirs) - torch.tensor(2.0).log()
        expected = mixture.gather(-1, torch.tensor(answer)[:, None])[:, 0]
        torch.testing.assert_close(
            found.logprobs_BT[place][found.mask_BT[place]], expected, atol=1e-4, rtol=0
        )
        assert all(token not in stopping.stop_ids for token in answer[:-1])


def adapted() -> ChatModel:
    """The tiny model with an adapter that changes what it writes."""
    student = add_lora(tiny.chat_model(), LoraSpec(rank=4))
    with torch.no_grad():
        for name, parameter in student.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(len(name)))
    return student


def test_a_teacher_below_the_students_adapter_writes_without_it() -> None:
    student = adapted()
    prompts = [student.prompt_ids(ITEMS[row].messages) for row in ROWS]
    clean = sampled(tiny.chat_model(), prompts).responses()
    assert write("seqkd", student, AdapterOffTeacher(student)).responses() == clean
    assert sampled(student, prompts).responses() != clean


def test_a_mixture_with_ones_own_weights_without_the_adapter() -> None:
    student = adapted()
    prompts = [[65, 66], [70]]
    found = sample_mixture(student, AdapterOffTeacher(student), 0.3, prompts, prompts, PARAMS)
    for place, answer in enumerate(found.responses()):
        own, clean = (
            logprobs(student, prompts[place], answer),
            logprobs(tiny.chat_model(), prompts[place], answer),
        )
        mixture = (0.3 * clean.exp() + 0.7 * own.exp()).log().gather(-1, torch.tensor(answer)[:, None])[:, 0]
        torch.testing.assert_close(found.logprobs_BT[place][found.mask_BT[place]], mixture, atol=1e-4, rtol=0)


def test_mixed_logits_by_hand() -> None:
    """[.7 .3] and [.5 .5] at share 1/4 for the second: [.65 .35]; entries that only one has are left out."""
    p, q = torch.tensor([[0.7, 0.3]]).log(), torch.tensor([[0.5, 0.5, 1e-9]]).log()
    torch.testing.assert_close(mixed_logits(p, q, 0.25, 1.0).exp(), torch.tensor([[0.65, 0.35]]))
    tempered = mixed_logits(2 * p, 2 * q, 0.25, 2.0) / 2
    torch.testing.assert_close(tempered.softmax(-1), torch.tensor([[0.65, 0.35]]))


def test_a_teacher_that_only_scores_cannot_write(student: ChatModel) -> None:
    with pytest.raises(InputError, match="only scores"):
        write("seqkd", student, object())
    with pytest.raises(InputError, match="in this process"):
        write("minillm", student, object())
