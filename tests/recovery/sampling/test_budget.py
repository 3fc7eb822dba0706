"""What is decoded together: like lengths, within rows, tokens and bytes."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

from recovery.batches.rollouts import Rollouts
from recovery.forward.fast_path import fast_path
from recovery.models.size import decoding_bytes, size_of
from recovery.sampling import budget as budgets
from recovery.sampling import split_sampler
from recovery.sampling.budget import WASTE, Budget, in_batches
from recovery.sampling.protocol import SamplingParams
from tests.support import families, tiny

NEW = 256


def batches_of(lengths: list[int], budget: Budget) -> list[list[int]]:
    """Return the lengths in each batch."""
    batches: list[list[int]] = []
    in_batches(lengths, budget, lambda rows: batches.append([lengths[row] for row in rows]))
    return batches


def test_one_long_prompt_does_not_make_every_row_long() -> None:
    lengths = [20 + NEW] * 63 + [1200 + NEW]
    assert batches_of(lengths, Budget(rows=256)) == [[1200 + NEW], [20 + NEW] * 63]


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=30),
    st.integers(1, 12),
    st.one_of(st.just(inf), st.integers(1, 3000)),
    st.one_of(st.just(inf), st.integers(1, 30000)),
)
def test_batches_hold_every_row_once_within_all_bounds(
    lengths: list[int], rows: int, tokens: float, memory: float
) -> None:
    batches = batches_of(lengths, Budget(rows, tokens, memory, token_bytes=10, row_bytes=50))
    assert sorted(length for batch in batches for length in batch) == sorted(lengths)
    for batch in batches:
        slots = len(batch) * max(batch)
        assert len(batch) <= rows
        assert len(batch) == 1 or slots <= tokens
        assert len(batch) == 1 or 10 * slots + 50 * len(batch) <= memory
        assert max(batch) <= WASTE * min(batch)


def test_the_bound_is_the_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model()
    monkeypatch.setattr(budgets, "free_memory", lambda device: 10_000_000.0)
    budget = Budget.of([model], 10_000)
    token, row = decoding_bytes(model)
    assert token >= 4 * size_of(model).cache_numbers
    per_row = 100 * token + row + budgets.LOGITS_BYTES * 259
    held = fast_path().decoder_bytes(model)
    fitting = int((budgets.FREE_SHARE * 10_000_000 - held) / per_row)
    assert budget.fits(fitting, 100) and not budget.fits(fitting + 1, 100)
    both = Budget.of([model, model], 10_000)
    fitting = int((budgets.FREE_SHARE * 10_000_000 - 2 * held) / (2 * per_row))
    assert both.fits(fitting, 100) and not both.fits(fitting + 1, 100)


def test_processes_that_sample_at_the_same_time_share_the_memory_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each took it for its own, and together they had more than there was."""
    model = tiny.model()
    monkeypatch.setattr(budgets, "free_memory", lambda device: 10_000_000.0)
    shared = Budget.of([model], 10_000, together=2)
    monkeypatch.setattr(budgets, "free_memory", lambda device: 5_000_000.0)
    assert shared == Budget.of([model], 10_000)


def test_each_of_several_processes_knows_how_many_sample_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are fewer answers than processes, and each writes them all."""
    alone: dict[str, Any] = {"world": lambda: 2, "rank": lambda: 0, "gather": lambda part: [part]}
    for name, stand_in in (alone | {"broadcast": lambda part: part}).items():
        monkeypatch.setattr(split_sampler, name, stand_in)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    found: list[int] = []

    def write(part: slice, params: SamplingParams) -> Rollouts:
        found.append(params.together)
        return Rollouts.from_samples([[1]], [[2]], [[0.0]], [True], pad_id=0)

    for count in (1, 4):
        split_sampler.in_parts(count, write, SamplingParams(), pad_id=0)
    assert found == [2, 2]


def test_states_that_do_not_grow_count_for_each_row() -> None:
    """Latents are unfolded again at every step; a recurrent state is as large for any row."""
    cached = {
        name: decoding_bytes(families.model(families.named(name))) for name in ("DeepSeek V3", "Mamba 2")
    }
    heads, nope, rope, value, latent = 4, 8, 8, 8, 8
    kept, unfolded = 2 * (latent + rope), heads * (nope + value) + heads * (nope + rope)
    assert cached["DeepSeek V3"][0] >= 4 * (kept + unfolded)
    assert cached["Mamba 2"][0] < 4 and cached["Mamba 2"][1] > 4 * 32
    hybrid = families.model(families.named("Falcon-H1"))
    with torch.inference_mode():
        assert decoding_bytes(hybrid)[1] > 0  # counted, as within the sampler
        layers = hybrid(torch.arange(1, 6)[None], use_cache=True).past_key_values.layers
    states = sum(part.nbytes for part in tree_leaves([layer.recurrent_states for layer in layers]))
    assert decoding_bytes(hybrid)[1] > states > 0
