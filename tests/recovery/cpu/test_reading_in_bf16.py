"""Sequences of a bf16 model read by the kernels: nearer to exact numbers than transformers reads them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recovery.batches.teacher_scores import TeacherScores
from recovery.cpu import library, llama_forward
from recovery.cpu.llama_forward import CHECKED, reader_of
from recovery.forward.hidden_states import hidden_states, plain_states
from recovery.methods.table import get
from recovery.objective.objective import Objective
from recovery.objective.token_signals import TokenSignals
from tests.support import tiny
from tests.support.gradients import states_and_gradients
from tests.support.llama_family import TAKEN, built

KERNELS = library.library()
HALF = torch.bfloat16
pytestmark = pytest.mark.skipif(
    KERNELS is None or not KERNELS.multiplies_bf16(), reason="no compiler here, or no bf16"
)
TOKENS = torch.arange(28).view(2, 14) % 23
TRAINED = ["llama", "qwen3", "biased", "grouped"]


def reader(model: Any) -> Any:
    return reader_of(model, plain_states)


@pytest.fixture(scope="module", params=["a library's products", "products of our own"])
def products(request: pytest.FixtureRequest) -> Iterator[str]:
    assert KERNELS is not None
    if "own" in request.param:
        KERNELS.multiply_with(None, None)
    yield request.param
    KERNELS.multiply_with(*library.products())


@pytest.fixture(scope="module", params=TRAINED)
def model(request: pytest.FixtureRequest) -> Any:
    model = built(request.param).to(HALF)
    assert reader(model)
    return model


def distance(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    """How far states and gradients are from exact ones, as a share of the longest gradient or state."""
    sizes = [float(exact[0].norm())] + [max(float(one.norm()) for one in exact[1:])] * len(exact[1:])
    return [
        float((mine.float() - own).norm()) / size for mine, own, size in zip(found, exact, sizes, strict=True)
    ]


@given(st.integers(0, 2**16), st.lists(st.integers(1, 75), min_size=1, max_size=5), st.booleans())
def test_it_is_no_farther_from_exact_numbers_than_the_model_itself(
    model: Any, products: str, seed: int, lengths: list[int], left: bool
) -> None:
    tokens = torch.randint(23, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    place, ends = torch.arange(tokens.shape[1]), torch.tensor(lengths)[:, None]
    there = place >= tokens.shape[1] - ends if left else place < ends
    exact = states_and_gradients(plain_states, copy.deepcopy(model).float(), tokens, there, None)
    mine = states_and_gradients(hidden_states, model, tokens, there, None)
    its = states_and_gradients(plain_states, model, tokens, there, None)
    assert [one.dtype for one in mine] == [HALF] * len(its)
    found, own = distance(mine, exact), distance(its, exact)
    assert max(found) < 0.03
    assert sum(found) <= 1.2 * sum(own)  # of single tokens rounding alone decides


@pytest.mark.parametrize("shape", [(1, 1), (3, 41), (2, 601)])
def test_odd_numbers_of_tokens_and_several_blocks(model: Any, products: str, shape: tuple[int, int]) -> None:
    tokens = torch.randint(23, shape, generator=torch.Generator().manual_seed(shape[1]))
    exact = states_and_gradients(plain_states, copy.deepcopy(model).float(), tokens, None, None)
    found, own = (
        distance(states_and_gradients(read, model, tokens, None, None), exact)
        for read in (hidden_states, plain_states)
    )
    assert max(found) < 0.03
    assert sum(found) < (1.2 if tokens.numel() < 100 else 0.9) * sum(own)


def test_the_same_is_read_bit_for_bit_by_any_number_of_threads(model: Any, products: str) -> None:
    threads = torch.get_num_threads()
    tokens = torch.randint(23, (7, 70), generator=torch.Generator().manual_seed(1))
    one, again = (states_and_gradients(hidden_states, model, tokens, None) for _ in range(2))
    torch.set_num_threads(2)
    try:
        two = states_and_gradients(hidden_states, model, tokens, None)
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, one, again))
    exact = states_and_gradients(plain_states, copy.deepcopy(model).float(), tokens, None)
    assert max(distance(two, exact)) < 0.03


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_taken_where_fp32_is(name: str) -> None:
    model = built(name).to(HALF)
    assert (reader(model) is not None) == bool(TAKEN[name])
    with torch.no_grad():
        assert (reader(model) is not None) == bool(TAKEN[name])


def test_a_student_that_is_its_teacher_has_no_gradient() -> None:
    student, teacher = tiny.model().to(HALF), tiny.model().to(HALF)
    states = hidden_states(student, TOKENS)
    with torch.no_grad():
        scores = TeacherScores(hidden_ND=hidden_states(teacher, TOKENS).flatten(0, 1), head=teacher.lm_head)
    objective = Objective(get("opd"), stop_ids=[3])
    loss = objective(states.flatten(0, 1), student.lm_head, TOKENS.flatten(), TokenSignals(scores))
    loss.value.backward()
    assert CHECKED[student] == {True: True} and CHECKED[teacher] == {False: True}
    assert loss.value == 0
    assert not any(p.grad.any() for p in student.parameters() if p.grad is not None)


def test_without_room_for_a_copy_or_without_the_instruction_it_is_left_to_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert reader(tiny.model().to(HALF))
    monkeypatch.setattr(llama_forward, "MEMORY_SHARE", 1e-9)
    assert reader(tiny.model().to(HALF)) is None
    assert reader(tiny.model())
    monkeypatch.undo()
    monkeypatch.setattr(llama_forward, "library", lambda: SimpleNamespace(multiplies_bf16=lambda: 0))
    assert reader(tiny.model().to(HALF)) is None


def test_layers_of_mixed_types_are_left_to_the_model() -> None:
    model = tiny.model().to(HALF)
    model.model.layers[0].input_layernorm.float()
    assert reader(model) is None
