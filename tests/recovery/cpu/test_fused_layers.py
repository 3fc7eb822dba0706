"""Norms and rotations in few passes: the same numbers, forwards and backwards, in every architecture."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from recovery.cpu import fused_layers
from recovery.forward.fast_path import fast_path
from tests.support.architectures import ARCHITECTURES, SMALL, TOKENS, architecture

SEEDS = st.integers(0, 2**16)
REPLACED = {  # norms and rotations that are replaced; gemma adds 1 to its weights, cohere turns neighbours
    "qwen3": (True, True),
    "llama": (True, True),
    "mistral": (True, True),
    "phi3": (True, True),
    "gemma3_text": (False, True),
    "gemma2": (False, True),
    "cohere": (False, False),
    "granite": (True, True),
    "gpt2": (False, False),
    "hyperclovax": (True, True),
    "bloom": (False, False),
}


def gradients(work: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """What comes out and the gradient of every input, for an uneven sum of the outputs."""
    given = [tensor.clone().requires_grad_() for tensor in inputs]
    out = work(*given)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    (out * weights).sum().backward()
    return [out.detach(), *(tensor.grad for tensor in given if tensor.grad is not None)]


def agree(found: list[Tensor], expected: list[Tensor], parts: float = 0.0) -> None:
    """As near as fp32 can be where `parts` is how large the numbers are that a sum is made of."""
    assert len(found) == len(expected)
    for mine, exact in zip(found, expected, strict=True):
        assert mine.dtype == torch.float32
        bound = 1e-5 * max(float(exact.abs().max()), parts)
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=bound)


@given(SEEDS, st.integers(1, 5), st.integers(1, 4), st.integers(1, 70), st.sampled_from([1e-3, 1.0, 30.0]))
def test_a_norm_is_what_its_formula_says(seed: int, rows: int, heads: int, width: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, heads, generator=generator).transpose(1, 2) * size
    weight = torch.randn(width, generator=generator)

    def formula(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    found = gradients(lambda x, weight: fused_layers.rms_norm(x, weight, 1e-6), x, weight)
    smallest = float(x.pow(2).mean(-1).add(1e-6).sqrt().min())
    agree(found, gradients(formula, x.double(), weight.double()), 2 * float(weight.abs().max()) / smallest)
    with torch.no_grad():
        assert torch.equal(fused_layers.rms_norm(x, weight, 1e-6), found[0])


@given(SEEDS, st.integers(1, 3), st.integers(1, 4), st.integers(1, 9))
def test_a_rotation_turns_every_pair_and_its_gradient_turns_it_back(
    seed: int, heads: int, tokens: int, half: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, tokens, heads, 2 * half, generator=generator).transpose(1, 2)
    cos, sin = torch.randn(2, 2, 1, tokens, 2 * half, generator=generator)

    def formula(x: Tensor) -> Tensor:
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * cos.double() + turned * sin.double()

    found = gradients(lambda x: fused_layers.rotate(x, cos, sin), x)
    agree(found, gradients(formula, x.double()))
    with torch.no_grad():
        assert torch.equal(fused_layers.rotate(x, cos, sin), found[0])


def test_a_quarter_turn_by_hand() -> None:
    x, cos, sin = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.zeros(1, 4), torch.ones(1, 4)
    assert fused_layers.rotate(x, cos, sin).tolist() == [[-3.0, -4.0, 1.0, 2.0]]


def trained(model: Any) -> list[Tensor]:
    """Logits, and the gradient of every weight."""
    model.zero_grad()
    logits = model(TOKENS).logits
    logits.log_softmax(-1)[..., 7].sum().backward()
    return [logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_computes_what_it_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = architecture(name)
    fused_layers.fuse(model)
    assert (norms_replaced(model), rotation_replaced(model)) == REPLACED[name]
    unchanged(model, monkeypatch)


def test_where_a_part_of_a_head_is_turned_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    config = AutoConfig.for_model("phi3", **{**SMALL, "partial_rotary_factor": 0.5})
    model = AutoModelForCausalLM.from_config(config).eval()
    fused_layers.fuse(model)
    unchanged(model, monkeypatch)


def unchanged(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = trained(model)
    monkeypatch.setattr(fused_layers, "in_fp32", lambda *tensors: False)
    for mine, plain in zip(found, trained(model), strict=True):
        scale = float(plain.abs().max().clamp(min=1e-30))
        torch.testing.assert_close(mine / scale, plain / scale, rtol=1e-4, atol=1e-5)


def norms_replaced(model: Any) -> bool:
    norms = {type(m) for m in model.modules() if type(m).__name__.endswith("Norm")}
    return any("_plain" in vars(kind) for kind in norms)


def rotation_replaced(model: Any) -> bool:
    return hasattr(getattr(sys.modules[type(model).__module__], fused_layers.ROTATION, None), "_plain")


def test_shorter_numbers_are_left_to_transformers() -> None:
    model = architecture("qwen3")
    fused_layers.fuse(model)
    norm = model.bfloat16().model.norm
    x = torch.randn(3, 32, dtype=torch.bfloat16)
    assert torch.equal(norm(x), type(norm)._plain(norm, x))


def test_it_leaves_the_global_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    model = architecture("llama")
    torch.manual_seed(5)
    fused_layers.fuse(model)
    assert torch.equal(torch.rand(3), expected)


class Normalisation(torch.nn.Module):
    """What the normalisations of a test are made of: each test has its own, as what is fused is the class."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(8)), 1e-6


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    class MadeHereRMSNorm(Normalisation):
        def forward(self, x: Tensor) -> Tensor:
            return x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight

    monkeypatch.setenv("RECOVER_CPU", "off")
    fast_path().configure(MadeHereRMSNorm())
    assert "_plain" not in vars(MadeHereRMSNorm)
    monkeypatch.delenv("RECOVER_CPU")
    fast_path().configure(MadeHereRMSNorm())
    assert "_plain" in vars(MadeHereRMSNorm)


def test_one_that_does_something_else_is_left_alone() -> None:
    class CenteringRMSNorm(Normalisation):
        def forward(self, x: Tensor) -> Tensor:
            x = x - x.mean(-1, keepdim=True)
            return x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight

    fused_layers.fuse(CenteringRMSNorm())
    assert "_plain" not in vars(CenteringRMSNorm)
