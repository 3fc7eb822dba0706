"""Rollouts by hand: what is read of them, other prompts, packing and joining; scores of some tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recovery.batches.rollouts import Rollouts, joined
from recovery.batches.teacher_scores import TeacherScores
from recovery.errors import InputError
from tests.support.present import present

PAD = 99


def sampled() -> Rollouts:
    """Two rows: an answer of one token that was cut off, and one of two tokens."""
    made = Rollouts.from_samples(
        [[1, 2], [3]], [[4], [5, 6]], [[-0.5], [-1.0, -2.0]], [False, True], pad_id=PAD
    )
    return replace(made, rewards_B=torch.tensor([0.25, 0.75]))


def test_the_last_column_is_not_read_unless_it_is_the_only_one() -> None:
    tokens, attention, positions = sampled().model_inputs
    assert tokens.tolist() == [[1, 2], [3, 5]] and positions is None
    assert present(attention).tolist() == [[True, True], [True, True]]
    single = Rollouts.from_dialogues([([7], [True]), ([8], [True])], PAD)
    assert single.model_inputs[0].tolist() == [[7], [8]]
    assert single.predictors_BT.tolist() == [[False], [False]]  # as wide as what is read


def test_a_packed_row_is_read_by_its_positions_without_an_attention_mask() -> None:
    """With one transformers would let each sequence attend to those before it."""
    packed = Rollouts.packed([([1, 2], [True, True]), ([3, 4], [True, True])], PAD, length=4)
    tokens, attention, positions = packed.model_inputs
    assert attention is None and (tokens.tolist(), present(positions).tolist()) == ([[1, 2, 3]], [[0, 1, 0]])


def test_the_longest_pieces_are_packed_first_each_where_it_fits_best() -> None:
    packed = Rollouts.packed([([n] * n, [True] * n) for n in (2, 3, 5, 4)], PAD, length=7)
    assert packed.tokens_BT.tolist() == [[5] * 5 + [2] * 2, [4] * 4 + [3] * 3]


def test_answers_after_other_prompts_are_the_same_ones() -> None:
    swapped = sampled().select([1, 0])
    changed = swapped.with_prompts([[7, 8, 9], [7]], PAD)
    assert changed.tokens_BT.tolist() == [[7, 8, 9, 5, 6], [7, 4, PAD, PAD, PAD]]
    assert changed.finished_B.tolist() == [True, False]
    assert changed.index_B.tolist() == [1, 0]
    assert present(changed.rewards_B).tolist() == [0.75, 0.25]


def test_prompts_are_replaced_one_for_each_row_and_never_in_packed_ones() -> None:
    with pytest.raises(InputError, match="1 prompts for 2 rows"):
        sampled().with_prompts([[7]], PAD)
    packed = Rollouts.packed([([1, 2], [True, True])], PAD, length=4)
    with pytest.raises(InputError, match="packed rows have no prompt to replace"):
        packed.with_prompts([[7]], PAD)


def test_a_sequence_without_a_token_is_refused() -> None:
    with pytest.raises(InputError, match="an empty sequence"):
        Rollouts.from_dialogues([([1], [True]), ([], [])], PAD)


def test_joined_rollouts_are_padded_to_the_longest() -> None:
    longer = Rollouts.from_dialogues([([1, 2, 3, 4], [False, True, True, True])], PAD)
    made = joined([replace(sampled(), rewards_B=None), longer], PAD)
    assert made.tokens_BT.tolist() == [[1, 2, 4, PAD], [3, 5, 6, PAD], [1, 2, 3, 4]]
    assert made.attention_BT.sum(1).tolist() == [3, 3, 4]
    assert made.mask_BT.sum(1).tolist() == [1, 2, 3]
    assert made.logprobs_BT[0].tolist() == [0, 0, -0.5, 0]
    assert made.finished_B.tolist() == [False, True, True] and made.rewards_B is None


def test_the_counted_tokens_of_some_rows_are_found_among_all() -> None:
    assert sampled().places_N(torch.tensor([1])).tolist() == [1, 2]
    assert sampled().places_N(torch.tensor([1, 0])).tolist() == [1, 2, 0]


def test_rows_as_long_as_the_boundary_are_on_its_near_side() -> None:
    rows = Rollouts.from_dialogues([([1] * n, [True] * n) for n in (5, 2, 3)], PAD)
    assert [group.tolist() for group in rows.groups(100, boundary=3)] == [[1, 2], [0]]


def test_the_limit_of_one_process_and_of_no_rows_is_the_most() -> None:
    assert sampled().limit_over(1, 64) == sampled().select([]).limit_over(2, 64) == 64


def test_scores_of_some_tokens_keep_their_head_and_nothing_that_is_not_there() -> None:
    scores = TeacherScores(hidden_ND=torch.tensor([[1.0], [2.0], [3.0]]), head=torch.neg)
    taken = scores.take(torch.tensor([2, 0]))
    assert present(taken.hidden_ND).tolist() == [[3.0], [1.0]]
    assert taken.head is torch.neg and taken.sampled_logprobs_N is None
