"""The tokens of a cycle's stages, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.config.overrides import changed
from pipelines.config.settings import Config, parse, preset_text
from pipelines.machine.stage_tokens import (
    StageTokens,
    UsualLengths,
    evaluation_tokens,
    midtraining_tokens,
    recovery_tokens,
    sharing_processes,
)

USUAL = UsualLengths(prompt=100, answer=50)
SMALL = {
    "midtrain.steps": 10,
    "midtrain.tokens_per_step": 300,
    "midtrain.mix": {"new": 0.8, "questions": 0.0, "earlier": 0.0, "chat": 0.2},
    "distill.steps": 5,
    "distill.prompts_per_step": 4,
    "distill.samples_per_prompt": 2,
    "distill.max_new_tokens": 1000,
    "distill.rehearsal": 0.2,
}


def settings(**changes: Any) -> Config:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return changed(parse(preset_text("real"), "preset"), SMALL | named)


def midtraining(longest: int = 1000, **changes: Any) -> StageTokens:
    chosen = settings(**changes).midtrain
    return midtraining_tokens(chosen, chosen.mix.at_first, 2400, USUAL, longest)


def recovery(**changes: Any) -> StageTokens:
    return recovery_tokens(settings(**changes).distill, USUAL)


def test_midtraining_trains_its_steps_and_has_the_chat_of_its_mix_answered() -> None:
    """A fifth of 3,000 tokens are 4 chats of 150."""
    found = midtraining()
    assert (found.trained, found.sampled, found.scored) == (3000, 4 * 50, 4 * 100)


def test_without_steps_the_documents_passes_are_trained_in_their_share() -> None:
    assert midtraining(midtrain__steps=None, midtrain__epochs=3).trained == pytest.approx(3 * 2400 / 0.8)


def test_no_more_chats_are_answered_than_prompts_are_taken() -> None:
    assert midtraining(midtrain__chat_prompts=3).sampled == 3 * 50


def test_more_chats_are_answered_where_each_would_be_read_more_than_four_times() -> None:
    """A fifth of 60,000 tokens are 80 chats of 150."""
    assert midtraining(midtrain__steps=200, midtrain__chat_prompts=3).sampled == 80 / 4 * 50


def test_answers_are_cut_at_their_limit() -> None:
    assert midtraining(longest=20).sampled == pytest.approx(600 / 120 * 20)
    assert recovery(distill__max_new_tokens=20).sampled == 5 * 8 * 20


def test_a_midtraining_by_passages_counts_its_answers_among_the_trained_tokens() -> None:
    assert midtraining(midtrain__method="passage") == StageTokens(trained=3000)


def test_recovery_writes_scores_and_trains_answers_and_rehearses_a_share_of_their_tokens() -> None:
    """Of 40 answers of 50 tokens, which are four fifths, a fifth more is rehearsed: 500."""
    found = recovery()
    assert (found.rows, found.sampled, found.scored) == (8, 40 * 50, 40 * 100 + 40 * 150)
    assert found.trained == pytest.approx(40 * 150 + 500)


def test_data_is_not_sampled_and_not_scored_without_a_teacher() -> None:
    found = recovery(distill__method="sft")
    assert (found.sampled, found.scored) == (0, 0)
    assert found.trained > 0


def test_each_epoch_trains_on_the_answers_and_what_is_rehearsed_again() -> None:
    """opd-sampled passes twice over answers that are written and scored once."""
    found = recovery(distill__method="opd-sampled")
    assert (found.sampled, found.scored) == (40 * 50, 40 * 100 + 40 * 150)
    assert found.trained == pytest.approx(2 * (40 * 150 + 500))


def test_of_a_mix_the_student_writes_its_share_alone() -> None:
    """Of 40 answers 20 are read from the data; the teacher scores all."""
    found = recovery(distill__method="gkd")
    assert (found.rows, found.sampled, found.scored) == (4, 20 * 50, 20 * 100 + 40 * 150)
    assert found.trained == pytest.approx(40 * 150 + 500)


def test_a_teacher_that_only_writes_reads_the_prompts_alone() -> None:
    found = recovery(distill__method="seqkd")
    assert (found.sampled, found.scored) == (40 * 50, 40 * 100)


def test_an_anchor_reads_the_answers_too() -> None:
    assert recovery(distill__method="asft").scored == 40 * 150
    assert recovery(distill__dials={"anchor_beta": 0.1}).scored == 40 * 100 + 2 * 40 * 150


@pytest.mark.parametrize(
    ("minibatches", "microbatch_tokens", "processes", "sharing"),
    [
        (1, 16384, 4, 4),
        (1, 16384, 16, 8),  # of 8 answers each is a microbatch
        (2, 300, 4, 2),  # 4 microbatches, of which an update takes two
        (2, 200, 2, 1.5),  # 6 microbatches, of which an update takes three
        (2, 0, 2, 1),  # auto: one microbatch may hold them all
    ],
)
def test_processes_share_what_an_update_has_of_microbatches(
    minibatches: int, microbatch_tokens: int, processes: int, sharing: float
) -> None:
    """Of 8 answers of 150 tokens a step; the estimate divided by all processes that there are."""
    dials = {"minibatches": minibatches}
    made = settings(distill__dials=dials, distill__microbatch_tokens=microbatch_tokens)
    assert sharing_processes(made.distill, USUAL, processes) == sharing
    assert sharing_processes(made.distill, USUAL, 1) == 1


def test_a_cycle_evaluates_three_times() -> None:
    assert evaluation_tokens(10, prompt=100, answer=7) == StageTokens(10, sampled=210, scored=3000)
