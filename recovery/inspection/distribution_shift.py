"""Measure the KL divergence between two models on token sequences, and collect the hidden states visited.

Shapes: N counted tokens, V vocabulary, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recovery.batches.rollouts import Rollouts
from recovery.errors import InputError
from recovery.forward.hidden_states import hidden_states, logits_of, predicting_states
from recovery.objective.divergences import entropy, exact_forward_kl, exact_reverse_kl

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

MAX_TOKENS = 8192  # per forward pass
CHUNK = 2048  # tokens whose full distributions are in memory at once
PER_ROW = 4  # hidden states of an answer
LONGEST = 512  # tokens of a document


@torch.no_grad()
def divergence(student: ChatModel, clean: ChatModel, rollouts: Rollouts) -> dict[str, float]:
    """Return means over the counted tokens in nats: forward_kl KL(clean||student), reverse_kl
    KL(student||clean), and the entropy of each model."""
    names = ("forward_kl", "reverse_kl", "entropy", "entropy_clean")
    totals = dict.fromkeys(names, 0.0)
    count = 0
    for part in rollouts.split(MAX_TOKENS):
        student_ND = _states(student, part)
        clean_ND = _states(clean, part)
        for one_ND, other_ND in zip(student_ND.split(CHUNK), clean_ND.split(CHUNK), strict=True):
            p_NV = _logprobs(student, one_ND)
            q_NV = _logprobs(clean, other_ND)
            if p_NV.shape != q_NV.shape:
                raise InputError(
                    f"drift: heads of {p_NV.shape[1]} and {q_NV.shape[1]} entries: give two of one vocabulary"
                )
            values = (
                exact_forward_kl(p_NV, q_NV),
                exact_reverse_kl(p_NV, q_NV),
                entropy(p_NV),
                entropy(q_NV),
            )
            for name, values_N in zip(names, values, strict=True):
                totals[name] += float(values_N.double().sum())
            count += len(one_ND)
    return {name: total / max(count, 1) for name, total in totals.items()}


@torch.no_grad()
def visited(chat_model: ChatModel, rollouts: Rollouts) -> tuple[Tensor, list[list[int]]]:
    """Return the hidden states (S, D) at evenly spaced positions of each row's answer, and their prefixes."""
    states: list[Tensor] = []
    prefixes: list[list[int]] = []
    for part in rollouts.split(MAX_TOKENS):
        read = part.to(chat_model.device)
        hidden_BTD = hidden_states(chat_model.model, read.tokens_BT, read.attention_BT)
        answers = zip(part.prompt_lengths_B.tolist(), part.lengths_B.tolist(), strict=True)
        for row, (start, end) in enumerate(answers):
            places = torch.linspace(start, end, PER_ROW + 1)[1:].long().unique().tolist()
            states += [hidden_BTD[row, place - 1].float().cpu() for place in places]
            prefixes += [part.tokens_BT[row, :place].tolist() for place in places]
    return torch.stack(states), prefixes


def texts_as_rollouts(chat_model: ChatModel, texts: Sequence[str]) -> Rollouts:
    """Encode plain documents as rollouts in which every token but the first is counted."""
    rows = [chat_model.document_start(text)[:LONGEST] for text in texts]
    rows = [ids for ids in rows if len(ids) > 1]
    if not rows:
        raise InputError("drift: no text of two tokens or more to read: give other documents")
    return Rollouts.from_dialogues([(ids, [True] * len(ids)) for ids in rows], chat_model.pad_id)


def _states(chat_model: ChatModel, part: Rollouts) -> Tensor:
    return predicting_states(chat_model.model, part.to(chat_model.device))


def _logprobs(chat_model: ChatModel, states_ND: Tensor) -> Tensor:
    return logits_of(chat_model.model, states_ND).log_softmax(-1, dtype=torch.float32)
