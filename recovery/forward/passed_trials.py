"""Remember which trials a model's architecture has passed, so that its next model needs none.

A cycle loads one architecture five times or more. What a trial looks for, code that mixes rows or computes
other numbers, does not depend on the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

from torch import distributed
from torch.nn import Module

from recovery.forward.fast_path import fast_path

Found = TypeVar("Found")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_passed: dict[Hashable, Any] = {}


def tried(trial: str, model: Any, passes: Callable[[Found], bool], try_it: Callable[[], Found]) -> Found:
    """Return what a trial finds; what passes is found again for each later model that is built the same.

    What does not pass is tried anew, as weights may be damaged.
    """
    built = _architecture(model)
    if built is None:
        return try_it()
    place = (trial, built)
    if place in _passed:
        found: Found = _passed[place]
        return found
    found = try_it()
    if passes(found):
        _passed[place] = found
    return found


def _architecture(model: Any) -> Hashable | None:
    """Return all that a forward pass depends on but for the numbers; None where that is not known.

    Between several processes nothing is remembered: all of them must make a trial, or none.
    """
    modules = list(model.named_modules())
    if distributed.is_available() and distributed.is_initialized():
        return None
    if any(_is_changed(module) for _, module in modules):
        return None
    return (
        _settings(model.config),
        model.config._attn_implementation,
        type(fast_path()),
        tuple((name, type(module), type(module).forward) for name, module in modules),
        tuple(_tensors(model)),
    )


def _settings(config: Any) -> str:
    """Return a config's settings as text, without the folder that it was read from."""
    return repr(_without_place(config.to_dict()))


def _without_place(found: Any) -> Any:
    if not isinstance(found, dict):
        return found
    return {name: _without_place(value) for name, value in found.items() if name != "_name_or_path"}


def _is_changed(module: Module) -> bool:
    """Return whether an instance computes otherwise than its class: by a hook, or a forward of its own."""
    return "forward" in vars(module) or any(getattr(module, hooks) for hooks in HOOKS)


def _tensors(model: Any) -> Iterator[Hashable]:
    for named in (model.named_parameters(), model.named_buffers()):
        for name, tensor in named:
            yield name, type(tensor), tensor.shape, tensor.dtype, tensor.device
