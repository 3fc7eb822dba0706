"""Rows that fill the model's context while many others are still being written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from recovery.models.chat_model import ChatModel
from recovery.sampling import decode_batch
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.mixture import sample_mixture
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.teachers import CheckpointTeacher
from tests.support import tiny

CONTEXT = 32


def learned_positions() -> ChatModel:
    """A random GPT-2, which has no position beyond its context, and never stops by itself."""
    config = GPT2Config(
        vocab_size=259, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2, initializer_range=0.2
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config).eval()
    made = ChatModel.of(model, tiny.tokenizer(), path="tiny")
    made.stop_ids = ()
    return made


def test_a_mixture_ends_where_the_first_of_both_models_has_no_position_left() -> None:
    student, teacher = learned_positions(), learned_positions()
    prompts, contexts = [[1] * 4, [2] * 28, [3] * 5], [[1] * 26, [2] * 5, [3] * 6]
    params = SamplingParams(max_new_tokens=10, seed=3)
    found = sample_mixture(student, CheckpointTeacher(teacher), 0.5, prompts, contexts, params)
    assert [len(response) for response in found.responses()] == [6, 4, 10]
    assert found.finished_B.tolist() == [False] * 3


@pytest.mark.parametrize("look_every", [1, 8])
def test_the_first_row_of_many_to_fill_the_context_is_not_read_beyond_it(
    look_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that fill it at different steps, and one that never does, get the tokens that they get alone."""
    run = decode_batch.DecodeBatch.run

    def looking(batch: decode_batch.DecodeBatch, *given: Any) -> Any:
        batch.look_every = look_every  # as on an accelerator, which looks rarely
        return run(batch, *given)

    monkeypatch.setattr(decode_batch.DecodeBatch, "run", looking)
    chat_model = learned_positions()
    lengths = [28, 25, 25, *range(10, 21), 2]
    prompts = [[row + 1] * length for row, length in enumerate(lengths)]
    params = SamplingParams(max_new_tokens=24, seed=3)
    whole = InProcessSampler(chat_model).sample(prompts, params)
    alone = InProcessSampler(chat_model, batch_size=1).sample(prompts, params)
    assert [len(response) for response in whole.responses()] == [min(24, CONTEXT - n) for n in lengths]
    assert whole.responses() == alone.responses()
    torch.testing.assert_close(whole.logprobs_BT, alone.logprobs_BT, atol=1e-4, rtol=0)
