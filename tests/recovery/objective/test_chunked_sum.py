"""A sum over chunks has the gradient of the whole, in the precision that a long sum needs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recovery.objective.chunked_sum import add_gradient, chunked_sum
from recovery.objective.divergences import slices

N, D, V = 256, 16, 64


def gradients(dtype: torch.dtype, chunk: int) -> tuple[Tensor, Tensor]:
    """The gradients of the states and of the head, for a sum whose gradients all point the same way."""
    generator = torch.Generator().manual_seed(0)
    states_ND = torch.rand(N, D, generator=generator).to(dtype).requires_grad_()
    head = torch.nn.Linear(D, V, bias=False).to(dtype)
    with torch.no_grad():
        head.weight.copy_(torch.rand(V, D, generator=generator))
    value = chunked_sum(
        lambda rows, part_ND: head(part_ND).float().square().sum(), states_ND, slices(N, chunk)
    )
    value.backward()
    assert states_ND.grad is not None and head.weight.grad is not None
    return states_ND.grad, head.weight.grad


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize("chunk", [1, 2, 100, N])
def test_the_head_gradient_of_many_bf16_chunks_is_that_of_one(chunk: int) -> None:
    whole, parts = gradients(torch.bfloat16, N), gradients(torch.bfloat16, chunk)
    assert relative_error(parts[0], whole[0]) == 0
    assert relative_error(parts[1], whole[1]) < 0.004  # one rounding to bf16 at the end
    assert parts[1].dtype == torch.bfloat16


def test_what_is_done_with_the_sum_scales_its_gradients() -> None:
    states_ND = torch.tensor([[1.0], [2.0]], requires_grad=True)
    weight = torch.tensor([[3.0]], requires_grad=True)
    value = chunked_sum(lambda rows, part_ND: (part_ND @ weight).square().sum(), states_ND, slices(2, 1))
    (10 * value).backward()
    assert states_ND.grad is not None and weight.grad is not None
    assert states_ND.grad.tolist() == [[180.0], [360.0]]  # 10 · 2 · 9 x
    assert weight.grad.tolist() == [[300.0]]  # 10 · 2 w (1 + 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wider_dtypes_keep_their_precision(dtype: torch.dtype) -> None:
    whole, parts = gradients(dtype, N), gradients(dtype, 3)
    assert relative_error(parts[1], whole[1]) < 10 * torch.finfo(dtype).eps
    assert parts[1].dtype == dtype


@pytest.mark.parametrize("at_once", [1, 5, 6, 100])
def test_a_gradient_is_added_in_the_total_of_a_wider_dtype_part_by_part(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Also where the last part is shorter: 1 + 2⁻⁹ would be 1 in bf16."""
    monkeypatch.setattr("recovery.objective.chunked_sum.AT_ONCE", at_once)
    total = torch.full((3, 2), 2.0**-9)
    upright = torch.full((2, 3), 2.0**-9).T
    for one in (total, upright):
        add_gradient(one, torch.arange(1, 7, dtype=torch.bfloat16).view(3, 2))
    assert upright.tolist() == total.tolist()
    assert total.tolist() == [[1 + 2**-9, 2 + 2**-9], [3 + 2**-9, 4 + 2**-9], [5 + 2**-9, 6 + 2**-9]]
