"""What midtraining did to the embeddings: documents push down every token that they do not hold.

A softmax takes from all tokens what it gives to the one that came, and AdamW makes of the smallest pull that
lasts a whole step: chat's own markers, which no document holds, end far from where they were. So it is told
how far tokens moved that were read, and how far the others.
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

AT_ONCE = 2**24  # ids looked at at once


def copy_of(chat_model: ChatModel) -> Tensor | None:
    """The embeddings as they are, if they are to be trained."""
    weight = unwrap(chat_model.model).get_input_embeddings().weight
    return weight.detach().to("cpu", copy=True) if weight.requires_grad else None


def _trained(chat_model: ChatModel) -> Tensor:
    """The embeddings after a training; where the model holds shards, they lie beside it."""
    core, whole = unwrap(chat_model.model), chat_model.weights
    weight = core.get_input_embeddings().weight
    if whole:
        weight = whole[next(name for name, one in core.named_parameters() if one is weight)]
    found: Tensor = weight.detach().to("cpu", torch.float32)
    return found


def moved(before: Tensor, chat_model: ChatModel, sources: Iterable[Source]) -> dict[str, float]:
    """How far tokens went, as a share of how long they were: those that were read, and the others."""
    went_V, long_V = (_trained(chat_model) - before.float()).norm(dim=1), before.float().norm(dim=1)
    read_V = _read(sources, len(before))
    groups = {"read": read_V, "others": ~read_V}
    return {
        name: float(went_V[these_V].sum() / long_V[these_V].sum())
        for name, these_V in groups.items()
        if these_V.any()
    }


def _read(sources: Iterable[Source], vocabulary: int) -> Tensor:
    """Which tokens are read."""
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
    """One line, with what to do where tokens that were never read went further than those that were."""
    read, others = found.get("read", 0.0), found.get("others", 0.0)
    line = f"  embeddings   of tokens read moved by {read:.0%} of their length, of all others by {others:.0%}"
    if others > read:
        line += ": `recover merge --method embeddings --weight 1` puts them back"
    return line
