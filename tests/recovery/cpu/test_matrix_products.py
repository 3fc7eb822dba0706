"""Matrix products by oneDNN: the same numbers, forwards and backwards, wherever they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recovery.cpu import matrix_products

SIZES = st.integers(0, 90)
EVERYWHERE = """
import torch
from recovery.cpu import matrix_products
matrix_products.is_slow = lambda: True
print(matrix_products.use_onednn() is not None)
torch.manual_seed(0)
states, weight = torch.randn(4, 90, 130, requires_grad=True), torch.randn(110, 130, requires_grad=True)
with torch.profiler.profile() as seen:
    torch.nn.functional.linear(states, weight).square().sum().backward()
print(sum(event.count for event in seen.key_averages() if event.key == "mkldnn::_linear_pointwise"))
exact, other = states.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
torch.nn.functional.linear(exact, other).square().sum().backward()
print(all(torch.allclose(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-2)
          for mine, theirs in ((states, exact), (weight, other))))
"""


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")
@given(SIZES, SIZES, SIZES, st.booleans(), st.booleans(), st.sampled_from([torch.float32, torch.float64]))
def test_products_are_the_same_in_every_shape_and_layout(
    rows: int, inner: int, columns: int, turned: bool, other_turned: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(rows * 8281 + inner * 91 + columns)
    left = torch.randn(inner, rows, generator=generator).to(dtype).t()
    right = torch.randn(columns, inner, generator=generator).to(dtype).t()
    left, right = left if turned else left.contiguous(), right if other_turned else right.contiguous()
    found = matrix_products._mm(left, right)
    assert found.dtype == dtype and found.shape == (rows, columns)
    torch.testing.assert_close(found.double(), left.double() @ right.double(), rtol=1e-4, atol=1e-4)


def test_shapes_that_do_not_fit_are_refused_as_ever() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        matrix_products._mm(torch.ones(70, 80), torch.ones(70, 80))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")
def test_forwards_and_backwards_go_through_it() -> None:
    done = subprocess.run([sys.executable, "-c", EVERYWHERE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "3", "True"], done.stderr


@pytest.mark.parametrize(
    ("capability", "processor", "wanted"),
    [("AVX512", "AuthenticAMD", True), ("AVX512", "GenuineIntel", False), ("AVX2", "AuthenticAMD", False)],
)
def test_it_is_used_where_the_other_is_slow(
    monkeypatch: pytest.MonkeyPatch, capability: str, processor: str, wanted: bool
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(matrix_products, "_processor", lambda: f"vendor_id : {processor}")
    assert matrix_products.is_slow() == wanted
