"""Measure how far midtraining moved the embeddings of tokens that it read, and of all others.

The softmax pushes down every token that is not the target, and AdamW turns the smallest steady gradient into
full steps: chat markers, which no document holds, end far from where they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch

from pipelines.corpus.token_file import Tokens
from recovery.forward.hidden_states import unwrap

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.corpus.token_file import Dialogue
    from recovery.models.chat_model import ChatModel

    Source = Tokens | list[Dialogue]

AT_ONCE = 2**24  # ids of a block


def copy_of(chat_model: ChatModel) -> Tensor | None:
    """Return a copy of the embeddings if they are trained."""
    weight = unwrap(chat_model.model).get_input_embeddings().weight
    return weight.detach().to("cpu", copy=True) if weight.requires_grad else None


def _trained(chat_model: ChatModel) -> Tensor:
    """Return the trained embeddings; a sharded model keeps the whole ones beside it."""
    core = unwrap(chat_model.model)
    whole = chat_model.weights
    weight = core.get_input_embeddings().weight
    if whole:
        weight = whole[next(name for name, one in core.named_parameters() if one is weight)]
    found: Tensor = weight.detach().to("cpu", torch.float32)
    return found


def moved(before: Tensor, chat_model: ChatModel, sources: Iterable[Source]) -> dict[str, float]:
    """Return the relative distance that read tokens moved, and that of the others."""
    went_V, long_V = (_trained(chat_model) - before.float()).norm(dim=1), before.float().norm(dim=1)
    read_V = _read(sources, len(before))
    groups = {"read": read_V, "others": ~read_V}
    return {
        name: float(went_V[these_V].sum() / long_V[these_V].sum())
        for name, these_V in groups.items()
        if these_V.any()
    }


def _read(sources: Iterable[Source], vocabulary: int) -> Tensor:
    """Return a mask of the tokens that occur in the sources."""
    read_V = np.zeros(vocabulary, np.bool_)
    for source in sources:
        if isinstance(source, Tokens):
            for start in range(0, source.total, AT_ONCE):
                read_V[source.ids[start : start + AT_ONCE]] = True
        else:
            for ids, _ in source:
                read_V[list(ids)] = True
    return torch.from_numpy(read_V)


def in_words(found: dict[str, float]) -> str:
    """Return one line of the log; where unread tokens moved further, it names what measures the effect.

    On the microworld the clean embeddings put back return what was forgotten, on SmolLM2-135M nothing of it.
    """
    read, others = found.get("read", 0.0), found.get("others", 0.0)
    line = f"  embeddings   of tokens read moved by {read:.0%} of their length, of all others by {others:.0%}"
    if others > read:
        line += ": `recover locate` measures whether putting them back returns what was forgotten"
    return line
