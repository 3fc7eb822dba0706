"""Sequences read without padding: the model's own states and gradients, or the model itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recovery.batches.teacher_scores import TeacherScores
from recovery.cpu import library, llama_forward
from recovery.cpu.llama_forward import CHECKED, reader_of
from recovery.forward.fast_path import fast_path
from recovery.forward.hidden_states import can_pack, hidden_states, plain_states, states_at
from recovery.methods.table import get
from recovery.models.adapters import LoraSpec, adapter_off, add_lora
from recovery.objective.objective import Objective
from recovery.objective.token_signals import TokenSignals
from tests.support import tiny
from tests.support.gradients import agree, states_and_gradients
from tests.support.llama_family import TAKEN, built, chat_of

pytestmark = pytest.mark.skipif(library.library() is None, reason="no compiler here")
TOKENS = torch.arange(28).view(2, 14) % 23


def reader(model: Any) -> Any:
    return reader_of(model, plain_states)


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_taken_where_it_is_right(name: str) -> None:
    model = built(name)
    taken = bool(TAKEN[name])
    assert (reader(model) is not None) == taken
    agree(model, model, TOKENS, None, None)
    with torch.no_grad():
        assert (reader(model) is not None) == taken
        states = hidden_states(model, TOKENS)
        torch.testing.assert_close(states, plain_states(model, TOKENS, None, None), rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module", params=["qwen3", "grouped", "biased"])
def model(request: pytest.FixtureRequest) -> Any:
    return built(request.param)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randint(23, shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 2**16), st.lists(st.integers(1, 75), min_size=1, max_size=5), st.booleans())
def test_padding_on_either_side_changes_nothing(
    model: Any, seed: int, lengths: list[int], left: bool
) -> None:
    tokens = drawn(seed, len(lengths), max(lengths) + seed % 3)
    place = torch.arange(tokens.shape[1])
    ends = torch.tensor(lengths)[:, None]
    there = place >= tokens.shape[1] - ends if left else place < ends
    assert reader(model)
    agree(model, model, tokens, there, None)


@given(st.integers(0, 2**16), st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 9))
def test_sequences_that_share_a_row_do_not_see_each_other(
    model: Any, seed: int, lengths: list[int], padding: int
) -> None:
    positions = torch.cat([*(torch.arange(n) for n in lengths), torch.zeros(padding, dtype=torch.long)])[None]
    tokens = drawn(seed, *positions.shape)
    there = torch.arange(positions.shape[1])[None] < sum(lengths)
    agree(model, model, tokens, there, positions)
    with torch.no_grad():
        row = hidden_states(model, tokens, there, positions)[0, : sum(lengths)]
        alone = [hidden_states(model, part[None])[0] for part in tokens[0, : sum(lengths)].split(lengths)]
    torch.testing.assert_close(row, torch.cat(alone), rtol=1e-3, atol=1e-4)
    assert can_pack(model)


@given(st.integers(0, 2**16), st.lists(st.integers(1, 75), min_size=1, max_size=5), st.integers(0, 4))
def test_some_tokens_are_what_they_are_among_all(
    model: Any, seed: int, lengths: list[int], quarters: int
) -> None:
    """Their states, and the gradients of all weights: none of them, all, or any between."""
    tokens = drawn(seed, len(lengths), max(lengths))
    there = torch.arange(tokens.shape[1]) < torch.tensor(lengths)[:, None]
    wanted = there & (torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)) < quarters / 4)

    def some(*given: Any) -> Tensor:
        states = states_at(model, wanted, *given)
        return torch.zeros(*tokens.shape, 32).masked_scatter(wanted[..., None], states)

    def all_of_them(*given: Any) -> Tensor:
        return plain_states(model, *given).masked_fill(~wanted[..., None], 0)

    found, expected = (
        states_and_gradients(lambda _, *given: read(*given), model, tokens, there, None)  # noqa: B023
        for read in (some, all_of_them)
    )
    steepest = max((float(own.abs().max()) for own in expected[1:]), default=1.0)
    assert len(found) == len(expected)
    for mine, own in zip(found, expected, strict=True):
        scale = max(float(own.abs().max()), 1e-2 * steepest, 1e-6)
        torch.testing.assert_close(mine / scale, own / scale, rtol=1e-3, atol=5e-5)


@pytest.fixture
def own_products() -> Iterator[None]:
    """As where PyTorch's library shows no product, or a slow one."""
    library.library().multiply_with(None, None)
    yield
    library.library().multiply_with(*library.products())


@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (2, 600)])
def test_products_of_our_own_are_as_good(model: Any, shape: tuple[int, int], own_products: None) -> None:
    """Odd sizes, several blocks of tokens, and more rows than a panel is deep."""
    tokens = drawn(shape[1], *shape)
    lengths = torch.tensor([[shape[1]]] * (shape[0] - 1) + [[1]])
    agree(model, model, tokens, torch.arange(shape[1]) < lengths, None)


def test_the_same_is_read_bit_for_bit(model: Any) -> None:
    twice = [states_and_gradients(hidden_states, model, TOKENS, None) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*twice, strict=True))


@pytest.mark.parametrize(("count", "shape"), [(2, (7, 70)), (3, (1, 150))])
def test_several_threads_read_what_one_reads(model: Any, count: int, shape: tuple[int, int]) -> None:
    """Few key heads are divided between threads, blocks of queries for each."""
    threads = torch.get_num_threads()
    tokens = drawn(1, *shape)
    one = states_and_gradients(hidden_states, model, tokens, None)
    torch.set_num_threads(count)
    try:
        agree(model, model, tokens, None, None)
        several = states_and_gradients(hidden_states, model, tokens, None)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one[0], several[0])


def test_it_reads_the_weights_of_the_moment() -> None:
    model = tiny.model()
    before = hidden_states(model, TOKENS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    assert reader(model)
    agree(model, model, TOKENS, None, None)
    assert not torch.allclose(hidden_states(model, TOKENS), before)


def test_who_has_an_adapter_says_the_same_with_gradients_and_without() -> None:
    """Bit for bit: a student whose adapter does nothing yet is its own teacher with the adapter off."""
    chat = add_lora(chat_of(tiny.model()), LoraSpec(rank=4, alpha=8))
    trained = hidden_states(chat.model, TOKENS)
    with torch.no_grad():
        assert torch.equal(hidden_states(chat.model, TOKENS), trained)
        with adapter_off(chat):
            assert torch.equal(hidden_states(chat.model, TOKENS), trained)
    trained.sum().backward()
    assert all(p.grad is not None for n, p in chat.model.named_parameters() if "lora_" in n)


def test_a_student_that_is_its_teacher_has_no_gradient() -> None:
    """To the last digit: an optimizer makes whole steps of whatever is not zero."""
    student, teacher = tiny.model(), tiny.model()
    states, mask = hidden_states(student, TOKENS), torch.ones_like(TOKENS)
    with torch.no_grad():
        scores = TeacherScores(
            hidden_ND=hidden_states(teacher, TOKENS, mask).flatten(0, 1), head=teacher.lm_head
        )
    objective = Objective(get("opd"), stop_ids=[3])
    loss = objective(states.flatten(0, 1), student.lm_head, TOKENS.flatten(), TokenSignals(scores))
    loss.value.backward()
    assert loss.value == 0
    assert not any(p.grad.any() for p in student.parameters() if p.grad is not None)


def test_frozen_weights_get_no_gradient() -> None:
    model = tiny.model()
    model.get_input_embeddings().weight.requires_grad_(False)
    model.model.layers[0].self_attn.k_proj.weight.requires_grad_(False)
    assert reader(model)
    agree(model, model, TOKENS, None, None)


def test_what_only_the_model_can_do_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, heard = tiny.model(), []
    assert reader(model)
    hook = model.model.layers[0].mlp.register_forward_hook(lambda *args: heard.append(1))
    hidden_states(model, TOKENS)
    assert heard
    hook.remove()
    assert reader(model)
    hook = model.model.layers[0].register_full_backward_hook(lambda *args: heard.append(2))
    hidden_states(model, TOKENS).sum().backward()
    assert 2 in heard
    hook.remove()
    assert reader(model)
    model.train().config.attention_dropout = 0.1
    assert reader(model) is None
    assert reader(model.eval())
    model.config.attention_dropout = 0.0
    monkeypatch.setenv("RECOVER_CPU", "off")
    assert fast_path().reader(model, plain_states) is None
    monkeypatch.delenv("RECOVER_CPU")
    assert fast_path().reader(model, plain_states)
    assert reader(model)
    model.gradient_checkpointing_enable()
    assert reader(model) is None
    assert reader(tiny.model().half()) is None


def test_a_text_that_rounding_alone_carries_away_is_checked_against_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = iter([False])
    monkeypatch.setattr(llama_forward, "close", lambda *_, **__: next(found, True))
    assert reader(tiny.model())
    monkeypatch.setattr(llama_forward, "close", lambda *_, **__: False)
    assert reader(tiny.model()) is None


def test_parts_of_the_same_names_that_are_made_otherwise_are_left_to_the_model() -> None:
    model = tiny.model()
    attention = model.model.layers[0].self_attn
    attention.q_proj.bias = torch.nn.Parameter(torch.ones(attention.q_proj.out_features))  # and no key's
    assert reader(model) is None
    assert CHECKED[model] == {True: False}
    agree(model, model, TOKENS, None, None)


def test_nothing_but_padding_is_nothing() -> None:
    model = tiny.model()
    assert not hidden_states(model, TOKENS, torch.zeros_like(TOKENS)).any()
    assert hidden_states(model, TOKENS[:0]).shape == (0, 14, 32)


def test_a_model_that_nobody_needs_is_let_go() -> None:
    model = tiny.model()
    hidden_states(model, TOKENS).sum().backward()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
