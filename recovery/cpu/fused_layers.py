"""Compute RMS norms and rotary positions on a CPU in few passes over memory.

transformers writes both as chains of small operations, which cost a third of a training step where matrices
are small. A class or function is replaced for this process, in fp32 on a CPU only, and only if the
replacement gives the same numbers in a check: an architecture that computes something else keeps its own.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ROTATION = "apply_rotary_pos_emb"  # in every architecture that has one
PARAMETERS = ["q", "k", "cos", "sin", "unsqueeze_dim"]


def fuse(model: torch.nn.Module) -> None:
    """Replace what can be replaced in the model's classes and module."""
    norms = {type(part): part for part in model.modules() if type(part).__name__.endswith("RMSNorm")}
    for kind, norm in norms.items():
        if "_plain" not in vars(kind):
            _replace_norm(norm)
    module = sys.modules[type(model).__module__]
    rotation = getattr(module, ROTATION, None)
    if rotation is not None and not hasattr(rotation, "_plain") and _is_rotation(rotation):
        setattr(module, ROTATION, _dispatching(rotation))


def epsilon(norm: Any) -> float:
    """Return a norm's epsilon, by either of its names; 0 where it has none."""
    return getattr(norm, "variance_epsilon", None) or getattr(norm, "eps", None) or 0.0


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Divide x by its root mean square over the last dimension and multiply by the weight."""
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _RmsNorm.apply(x, weight, epsilon)
    return _normed(x, weight, epsilon)[0]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the two halves of the last dimension against each other."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _Rotation.apply(x, cos, sin)
    return _rotated(x, cos, sin)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        y, scale = _normed(x, weight, epsilon)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Use the layer norm's gradient with a mean of 0, and undo what it subtracts for the mean."""
        x, weight, scale = ctx.saved_tensors
        x = x.contiguous()
        grad = grad.contiguous()
        width = x.shape[-1]
        mean = torch.zeros_like(scale)
        wanted = [True, ctx.needs_input_grad[1], False]
        grad_x, grad_weight, _ = torch.ops.aten.native_layer_norm_backward(
            grad, x, [width], mean, scale, weight, None, wanted
        )
        grad_x.add_((grad @ weight).unsqueeze(-1).mul_(scale).div_(width))
        return grad_x, grad_weight, None


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Rotate the gradient back."""
        cos, sin = ctx.saved_tensors
        return _rotated(grad, cos, -sin.roll(sin.shape[-1] // 2, -1)), None, None


def _normed(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = torch.addcmul(_scalar(epsilon), length, length, value=1 / x.shape[-1]).rsqrt_()
    return (x * scale).mul_(weight), scale


@cache
def _scalar(value: float) -> Tensor:
    """Create the tensor once: in small steps creating it takes as long as using it."""
    with torch.inference_mode(False):
        return torch.tensor(value)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    turned[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return turned


def _replace_norm(norm: Any) -> None:
    """Replace the forward of the module's class, if that computes the same."""
    kind = type(norm)
    plain = type(norm).forward
    if not _is_rms_norm(norm):
        return

    @wraps(plain)
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        weight = getattr(self, "weight", None)  # some instances of a class have none
        if weight is not None and in_fp32(hidden_states, weight):
            return rms_norm(hidden_states, weight, epsilon(self))
        return plain(self, hidden_states)

    kind.forward = forward
    kind._plain = plain


def _dispatching(plain: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    @wraps(plain)
    def apply(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        if not in_fp32(q, k, cos, sin) or not q.shape[-1] == k.shape[-1] == cos.shape[-1]:
            return plain(q, k, cos, sin, unsqueeze_dim)
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return rotate(q, cos, sin), rotate(k, cos, sin)

    apply._plain = plain  # type: ignore[attr-defined]
    return apply


def in_fp32(*tensors: Tensor) -> bool:
    """Return whether all are fp32 tensors on the CPU."""
    return all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)


def _is_rms_norm(norm: Any) -> bool:
    """Return whether the module computes `rms_norm`, on small numbers too, where epsilon counts."""
    weight = getattr(norm, "weight", None)
    if weight is None or weight.ndim != 1 or not in_fp32(weight) or not epsilon(norm):
        return False
    probe = copy.deepcopy(norm)
    random = _random()
    x = torch.randn(4, len(weight), generator=random) * torch.tensor([[1.0], [10.0], [1e-2], [1e-4]])
    torch.nn.init.normal_(probe.weight, generator=random)
    return _same(lambda: probe(x), lambda: rms_norm(x, probe.weight, epsilon(norm)))


def _is_rotation(plain: Callable[..., Any]) -> bool:
    if list(inspect.signature(plain).parameters) != PARAMETERS:
        return False
    random = _random()
    q, k = torch.randn(2, 3, 5, 8, generator=random), torch.randn(2, 1, 5, 8, generator=random)
    cos, sin = torch.randn(2, 2, 5, 8, generator=random)
    wide = cos[:, None], sin[:, None]
    return _same(
        lambda: torch.cat([part.flatten() for part in plain(q, k, cos, sin)]),
        lambda: torch.cat([rotate(q, *wide).flatten(), rotate(k, *wide).flatten()]),
    )


def _random() -> torch.Generator:
    """Return a generator of its own: the global one belongs to a run's seed."""
    return torch.Generator().manual_seed(0)


@torch.no_grad()
def _same(plain: Callable[[], Tensor], ours: Callable[[], Tensor]) -> bool:
    try:
        return torch.allclose(plain(), ours(), rtol=1e-4, atol=1e-6)
    except (RuntimeError, TypeError, ValueError):  # it takes other shapes: another kind of rotation
        return False
