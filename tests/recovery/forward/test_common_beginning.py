"""What all prompts begin with is read once, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recovery.forward import decoder_choice
from recovery.forward.common_beginning import SAVED, common_beginning
from recovery.forward.decoder_choice import decoding_way
from recovery.forward.kv_cache import KVCache
from recovery.forward.model_decoder import ModelDecoder
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from tests.support import families, tiny
from tests.support.samples import prompts_of, teacher_forced

SYSTEM = [7, 8, 9] * 20


def test_by_hand() -> None:
    prompts = [[1, 2, 3, 4], [1, 2, 5], [1, 2, 3, 9, 9]]
    assert common_beginning(prompts, saves_at_least=4) == 2
    assert common_beginning(prompts, saves_at_least=5) == 0
    assert common_beginning([[1, 2], [1, 2, 3]], saves_at_least=1) == 1, (
        "the second token's logits are wanted"
    )
    assert common_beginning([[1, 2, 3]], saves_at_least=1) == 0
    assert common_beginning([[1] * SAVED, [1] * (SAVED + 1)]) == 0
    assert common_beginning([[1] * (SAVED + 1)] * 2) == SAVED


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=2, max_size=6))
def test_it_is_the_longest_that_leaves_each_a_token(prompts: list[list[int]]) -> None:
    found = common_beginning(prompts, saves_at_least=1)
    longest = max(n for n in range(min(map(len, prompts))) if all(p[:n] == prompts[0][:n] for p in prompts))
    assert found == longest


@pytest.mark.parametrize("lengths", [(1, 40), (5, 6)], ids=["padded", "nearly of one length"])
def test_answers_and_log_probs_are_those_of_whole_prompts(
    lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = tiny.chat_model()
    prompts = [SYSTEM + prompt for prompt in prompts_of(12, *lengths)] * 2
    read: list[list[int]] = []
    whole = ModelDecoder._read

    def counting(self: Any, rests: Any, *given: Any) -> torch.Tensor:
        read.extend(map(list, rests))
        return whole(self, rests, *given)

    monkeypatch.setenv("RECOVER_CPU", "off")
    monkeypatch.setattr(ModelDecoder, "_read", counting)
    rollouts = InProcessSampler(chat).sample(prompts, SamplingParams(9, seed=5))
    assert read.count(SYSTEM) == 1 and sum(map(len, read)) < sum(map(len, prompts)) / 4
    torch.testing.assert_close(rollouts.logprobs_N, teacher_forced(chat.model, rollouts), atol=1e-4, rtol=0)
    responses = rollouts.responses()
    monkeypatch.setattr(decoder_choice, "_begins_soundly", lambda *_: False)
    apart = tiny.chat_model()
    assert InProcessSampler(apart).sample(prompts, SamplingParams(9, seed=5)).responses() == responses


def test_a_gap_is_closed_row_by_row() -> None:
    cache, slots = KVCache(1), torch.arange(3.0).view(1, 1, 3, 1)
    cache.layers[0].update(slots, -slots)
    held = cache.repeated(rows=3, room=2)
    held.layers[0].update(torch.full((3, 1, 2, 1), 9.0), torch.full((3, 1, 2, 1), 9.0))
    held.close_gaps(3, [0, 1, 1])
    keys, values = held.layers[0].filled()
    assert keys[:, 0, :, 0].tolist() == [[0, 1, 2, 9, 9], [0, 0, 1, 2, 9], [0, 0, 1, 2, 9]]
    assert values[1, 0, 1:, 0].tolist() == [0, -1, -2, 9]


def test_models_whose_beginning_depends_on_the_rest_read_whole_prompts() -> None:
    """Recurrent states have a cache of their own, and a long row changes rotary frequencies of LongRoPE."""
    for name in ("Mamba 2", "Phi-3, long context"):
        assert decoding_way(families.model(families.named(name))).saves_at_least > SAVED
    assert decoding_way(families.model(families.named("Llama"))).saves_at_least == SAVED


def test_a_model_that_loses_the_beginning_reads_whole_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCache, "close_gaps", lambda *_: None)
    assert decoding_way(tiny.chat_model().model).saves_at_least > SAVED
