"""Check that sequences packed into one row neither influence each other nor change by being packed.

Reachability decides: a hidden state of one sequence must have a gradient of exactly zero with respect to the
embeddings of the other. Masked attention gives exact zeros in every dtype, whereas a recurrent layer that
carries its state on leaks a gradient, however small the difference between the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from recovery.errors import InputError
from recovery.forward.equality import close_per_token, first_tokens
from recovery.forward.eval_mode import evaluating
from recovery.forward.packed import Read

Embeddings = list[tuple[Tensor, Tensor]]  # token ids and embeddings of each pass
LENGTH = 6  # tokens of each of the two sequences


def sequences_stay_apart(model: Any, read: Read) -> bool:
    """Return whether two sequences that share a row are read as if each had a row to itself."""
    return any(_stay_apart(model, read, start) for start in first_tokens(model, 2 * LENGTH))


def _stay_apart(model: Any, read: Read, start: int) -> bool:
    device = model.get_input_embeddings().weight.device
    tokens_BT = torch.arange(start, start + 2 * LENGTH, device=device).view(2, LENGTH)
    positions_BT = torch.arange(LENGTH, device=device).repeat(2)[None]
    with evaluating(model), torch.inference_mode(False), torch.enable_grad():
        try:
            with embeddings_as_leaves(model) as embeddings:
                packed_TD = read(model, tokens_BT.view(1, -1), None, positions_BT)[0]
        except InputError:  # the model takes no positions
            return False
        with torch.no_grad():
            alone_TD = read(model, tokens_BT, None, None).flatten(0, 1)
        return close_per_token(packed_TD, alone_TD) and not reach_others(
            packed_TD.split(LENGTH), tokens_BT.tolist(), embeddings
        )


def reach_others(
    outputs: Iterable[Tensor], sequences: Sequence[Sequence[int]], embeddings: Embeddings
) -> bool:
    """Return whether a sequence's output has a gradient along the embedding of a token of another one."""
    generator = torch.Generator().manual_seed(0)
    leaves = [leaf for _, leaf in embeddings]
    for output, sequence in zip(outputs, sequences, strict=True):
        value = (output * torch.randn(output.shape, generator=generator).to(output)).sum()
        gradients = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
        for (ids, _), gradient in zip(embeddings, gradients, strict=True):
            others = ~torch.isin(ids, ids.new_tensor(sequence))
            if gradient is not None and bool(gradient[others].any()):
                return True
    return False


@contextmanager
def embeddings_as_leaves(model: Any) -> Iterator[Embeddings]:
    """Collect token ids and embeddings of every forward pass in the block; these are leaves of its graph."""
    collected: Embeddings = []

    def collect(module: Any, inputs: Any, output: Tensor) -> Tensor:
        collected.append((inputs[0], output.detach().requires_grad_()))
        return collected[-1][1]

    hook = model.get_input_embeddings().register_forward_hook(collect)
    try:
        yield collected
    finally:
        hook.remove()
