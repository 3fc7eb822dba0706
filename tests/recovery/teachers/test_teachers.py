"""What teachers say, against reading every row alone."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from recovery.batches.rollouts import Rollouts
from recovery.batches.teacher_scores import TeacherScores
from recovery.errors import InputError
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.chat_model import ChatModel
from recovery.teachers.teachers import (
    AdapterOffTeacher,
    CheckpointTeacher,
    RoutedTeacher,
    SelfTeacher,
    scored,
)
from tests.support import tiny
from tests.support.present import present

SHAPES = ((3, 4), (1, 9), (6, 1), (2, 2), (5, 5))


def rollouts(seed: int = 0) -> Rollouts:
    draw = torch.Generator().manual_seed(seed)

    def ids(n: int) -> list[int]:
        return torch.randint(0, 250, (n,), generator=draw).tolist()

    pairs = [(ids(a), ids(b)) for a, b in SHAPES]
    prompts, responses = [p for p, _ in pairs], [r for _, r in pairs]
    return Rollouts.from_samples(
        prompts, responses, [[-1.0] * len(r) for r in responses], [True] * 5, pad_id=258
    )


@torch.no_grad()
def one_by_one(
    model: PreTrainedModel, rows: Rollouts, prompts: list[list[int]] | None = None
) -> torch.Tensor:
    """logprobs_NV of each counted token, every row read alone, unpadded."""
    found = []
    for prompt, response in zip(prompts or rows.prompts(), rows.responses(), strict=True):
        logits = model(torch.tensor([prompt + response])).logits[0]
        found.append(logits[len(prompt) - 1 : -1].log_softmax(-1))
    return torch.cat(found)


def dense(scores: TeacherScores) -> torch.Tensor:
    return present(scores.head)(present(scores.hidden_ND)).log_softmax(-1)


@pytest.mark.parametrize("max_tokens", [1, 12, 10_000])
def test_dense_scores_are_in_the_rollouts_order(max_tokens: int) -> None:
    chat_model, rows = tiny.chat_model(), rollouts()
    scores = CheckpointTeacher(chat_model, max_tokens=max_tokens).score(rows)
    torch.testing.assert_close(dense(scores), one_by_one(chat_model.model, rows), atol=1e-4, rtol=0)
    assert present(scores.hidden_ND).shape == (rows.n_tokens, 32)
    assert not present(scores.hidden_ND).requires_grad
    assert not dense(scores).requires_grad


def test_sampled_scores() -> None:
    chat_model, rows = tiny.chat_model(), rollouts()
    scores = CheckpointTeacher(chat_model, "sampled", max_tokens=20).score(rows)
    expected = one_by_one(chat_model.model, rows).gather(-1, rows.tokens_N[:, None])[:, 0]
    torch.testing.assert_close(scores.sampled_logprobs_N, expected, atol=1e-4, rtol=0)
    assert scores.head is None
    assert scores.hidden_ND is None
    assert scores.ids_NK is None


def test_topk_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.teachers.teachers.HEAD_ENTRIES", 3 * 259)
    chat_model, rows = tiny.chat_model(), rollouts()
    scores = CheckpointTeacher(chat_model, "topk", k=5).score(rows)
    logprobs_NV = one_by_one(chat_model.model, rows)
    assert torch.equal(present(scores.ids_NK), logprobs_NV.topk(5).indices)
    torch.testing.assert_close(scores.logprobs_NK, logprobs_NV.topk(5).values, atol=1e-4, rtol=0)
    sampled_N = logprobs_NV.gather(-1, rows.tokens_N[:, None])[:, 0]
    torch.testing.assert_close(scores.sampled_logprobs_N, sampled_N, atol=1e-4, rtol=0)


def test_a_teacher_may_see_another_prompt() -> None:
    chat_model, rows = tiny.chat_model(), rollouts()
    contexts = [[7] * n for n in (9, 2, 4, 1, 3)]
    scores = CheckpointTeacher(chat_model).score(rows, contexts)
    torch.testing.assert_close(dense(scores), one_by_one(chat_model.model, rows, contexts), atol=1e-4, rtol=0)
    with pytest.raises(InputError, match="4 prompts for 5 rows"):
        CheckpointTeacher(chat_model).score(rows, contexts[:4])


def test_a_checkpoint_teacher_is_frozen() -> None:
    chat_model = tiny.chat_model()
    chat_model.model.train()
    CheckpointTeacher(chat_model)
    assert not chat_model.model.training
    assert not any(p.requires_grad for p in chat_model.model.parameters())
    with pytest.raises(InputError, match="'logits' is not one of dense, sampled, topk"):
        CheckpointTeacher(chat_model, "logits")


def adapted() -> ChatModel:
    student = add_lora(tiny.chat_model(), LoraSpec(rank=4, dropout=0.5))
    for name, parameter in student.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    return student


def test_adapter_off_is_the_clean_model_and_the_student_stays_trainable() -> None:
    student, rows = adapted(), rollouts()
    student.model.train()
    trainable = [name for name, p in student.model.named_parameters() if p.requires_grad]
    scores = AdapterOffTeacher(student).score(rows)
    torch.testing.assert_close(dense(scores), one_by_one(tiny.model(), rows), atol=1e-4, rtol=0)
    assert student.model.training
    assert trainable == [name for name, p in student.model.named_parameters() if p.requires_grad]
    student.model.eval()
    assert (one_by_one(student.model, rows) - dense(scores)).abs().max() > 0.1


def test_adapter_off_needs_an_adapter_that_leaves_the_head_alone() -> None:
    with pytest.raises(InputError, match="no adapter to switch off"):
        AdapterOffTeacher(tiny.chat_model())
    student = adapted()
    student.model.get_output_embeddings().requires_grad_(True)
    with pytest.raises(InputError, match="output head"):
        AdapterOffTeacher(student)


def shift(model: PreTrainedModel, by: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(by)


def test_a_self_teacher_stays_where_the_student_started() -> None:
    student, rows = tiny.chat_model(), rollouts()
    teacher, before = SelfTeacher(student), one_by_one(student.model, rows)
    shift(student.model, 0.1)
    teacher.follow()
    torch.testing.assert_close(dense(teacher.score(rows)), before, atol=1e-4, rtol=0)
    assert all(p.requires_grad for p in student.model.parameters())


def test_a_moving_average_by_hand() -> None:
    """Weights w, then w + 1: after one step of decay 0.75 the average is w + 0.25, after two w + 0.4375."""
    student = tiny.chat_model()
    teacher, start = SelfTeacher(student, decay=0.75), student.model.model.norm.weight.detach().clone()
    shift(student.model, 1.0)
    for expected in (0.25, 0.4375):
        teacher.follow()
        torch.testing.assert_close(teacher.chat_model.model.model.norm.weight, start + expected)
    other = SelfTeacher(tiny.chat_model(), decay=0.75)
    other.load_state_tensors(teacher.state_tensors())
    assert torch.equal(dense(other.score(rollouts())), dense(teacher.score(rollouts())))
    with pytest.raises(InputError, match="decay"):
        SelfTeacher(student, decay=2.0)


def test_the_copy_of_a_lora_student_shares_what_does_not_change() -> None:
    student = adapted()
    teacher = SelfTeacher(student)
    mine, theirs = dict(student.model.named_parameters()), dict(teacher.chat_model.model.named_parameters())
    shared = {name for name in mine if mine[name] is theirs[name]}
    assert shared == {name for name in mine if "lora" not in name}
    assert all(mine[name].requires_grad for name in mine.keys() - shared)


def routed(kind: str) -> RoutedTeacher:
    teachers = {name: CheckpointTeacher(tiny.chat_model(seed), kind) for name, seed in (("a", 1), ("b", 2))}
    return RoutedTeacher(teachers, ["a", "b", "b", "a", "b"])


def test_routed_scores_come_from_each_rows_teacher() -> None:
    seen = []
    for part, scores in scored(routed("sampled"), rollouts(), 1000):
        seed = 1 if int(part.index_B[0]) in (0, 3) else 2
        expected = one_by_one(tiny.model(seed), part).gather(-1, part.tokens_N[:, None])[:, 0]
        torch.testing.assert_close(present(scores).sampled_logprobs_N, expected, atol=1e-4, rtol=0)
        seen += part.index_B.tolist()
    assert sorted(seen) == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match="no teacher for route 'c'"):
        RoutedTeacher({}, ["c"])


@pytest.mark.parametrize("max_tokens", [1, 25, 1000])
@pytest.mark.parametrize("several", [False, True])
def test_scored_microbatches_hold_their_own_scores(max_tokens: int, several: bool) -> None:
    rows = rollouts()
    teacher = routed("dense") if several else CheckpointTeacher(tiny.chat_model(1))
    seen = []
    for part, scores in scored(teacher, rows, max_tokens):
        assert part.tokens_BT.numel() <= max_tokens or len(part) == 1
        for i, row in enumerate(part.index_B.tolist()):
            seed = 2 if several and row in (1, 2, 4) else 1
            expected = one_by_one(tiny.model(seed), rows.select([row]))
            torch.testing.assert_close(dense(present(scores))[part.rows_N == i], expected, atol=1e-4, rtol=0)
            seen.append(row)
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_contexts_travel_with_their_rows() -> None:
    rows, contexts = rollouts(), [[n] * (n + 1) for n in range(5)]
    for part, scores in scored(CheckpointTeacher(tiny.chat_model()), rows, 16, contexts):
        mine = [contexts[i] for i in part.index_B.tolist()]
        torch.testing.assert_close(
            dense(present(scores)), one_by_one(tiny.model(), part, mine), atol=1e-4, rtol=0
        )
