"""The KV cache holds what a cache that copies everything holds, after any order of writing and dropping."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from recovery.forward.kv_cache import KVCache
from recovery.models.size import cache_numbers
from recovery.sampling.decode_batch import remaining
from tests.support import tiny


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_unfinished_rows_are_kept_and_few_move(ended: list[bool]) -> None:
    rows = remaining(torch.tensor(ended)).tolist()
    assert sorted(rows) == [i for i, done in enumerate(ended) if not done]
    moved = [i for i, row in enumerate(rows) if row != i]
    assert all(ended[i] for i in moved)


@given(
    st.integers(0, 2**16),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.lists(st.sampled_from(["write", "leave", "order"]), max_size=40),
)
def test_it_holds_what_a_cache_that_copies_holds(seed: int, groups: list[int], acts: list[str]) -> None:
    """Prompts of several lengths, then any order of writing, dropping and reordering."""
    random = torch.Generator().manual_seed(seed)
    draw = lambda rows, slots: torch.randn(2, rows, 2, slots, 3, generator=random)  # noqa: E731
    width = max(5 * (i + 1) for i in range(len(groups)))
    parts, expected = [], []
    for i, rows in enumerate(groups):
        part, read = KVCache(1), draw(rows, 5 * (i + 1))
        part.layers[0].update(*read)
        parts.append(part)
        expected.append(torch.nn.functional.pad(read, (0, 0, width - read.shape[3], 0)))
    slots, held = KVCache.joined(parts, width), torch.cat(expected, 1)
    for act in acts:
        rows = held.shape[1]
        if act == "write":
            new = draw(rows, 1)
            slots.make_room(held.shape[3] + 1)
            slots.layers[0].update(*new)
            held = torch.cat([held, new], 3)
        else:
            order = torch.randint(rows, (rows,), generator=random)
            if act == "leave":
                order = remaining(torch.rand(rows, generator=random) < 0.3)
            if len(order):
                slots.reorder_cache(order)
                held = held[:, order]
        assert torch.equal(torch.stack(slots.layers[0].filled()), held)
        assert slots.get_seq_length() == held.shape[3]


def test_a_tokens_bytes_are_those_that_are_allocated() -> None:
    model = tiny.model(num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    cache = KVCache(3)
    with torch.no_grad():
        model(torch.arange(5)[None], past_key_values=cache, use_cache=True)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert held == 5 * 4 * cache_numbers(model)


def test_no_more_slots_than_the_capacity_are_allocated() -> None:
    part = KVCache(1)
    part.layers[0].update(*torch.zeros(2, 3, 1, 10, 4))
    cache = KVCache.joined([part], 10, 12)
    assert cache.slots == 12
    for filled in range(11, 13):
        cache.make_room(filled)
        cache.layers[0].update(*torch.ones(2, 3, 1, 1, 4))
    assert cache.slots == cache.get_seq_length() == 12
