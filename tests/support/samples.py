"""Prompts to sample from, and what samples are compared with."""

from __future__ import annotations

import random

import torch
from transformers import PreTrainedModel

from recovery.batches.rollouts import Rollouts


def prompts_of(n: int, low: int = 3, high: int = 20, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(250) for _ in range(draw.randrange(low, high))] for _ in range(n)]


STOPS = tuple(range(0, 250, 8))


@torch.no_grad()
def teacher_forced(model: PreTrainedModel, rollouts: Rollouts) -> torch.Tensor:
    logits = model(rollouts.tokens_BT, attention_mask=rollouts.attention_BT).logits
    logprobs = logits[:, :-1].log_softmax(-1).gather(-1, rollouts.tokens_BT[:, 1:, None])[..., 0]
    return logprobs[rollouts.mask_BT[:, 1:]]


@torch.no_grad()
def likeliest(
    model: PreTrainedModel, prompts: list[list[int]], responses: list[list[int]]
) -> list[list[int]]:
    """The token that a forward pass of each response finds likeliest in the place of each of its tokens."""
    found = []
    for prompt, response in zip(prompts, responses, strict=True):
        logits_TV = model(torch.tensor([prompt + response])).logits[0]
        found.append(logits_TV[len(prompt) - 1 : -1].argmax(-1).tolist())
    return found


def generated(
    model: PreTrainedModel, prompts: list[list[int]], stops: tuple[int, ...], limit: int
) -> list[list[int]]:
    """transformers' greedy responses, stop token included."""
    responses = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=limit,
            eos_token_id=list(stops),
            pad_token_id=258,
        )
        responses.append(out[0, len(prompt) :].tolist())
    return responses
