"""Check that a model is supported: load it, sample from it, and recompute its log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recovery.errors import InputError, RecoverError
from recovery.forward.decoder_choice import decoding_way
from recovery.forward.equality import NOT_APPLICABLE
from recovery.forward.hidden_states import row_sharing, unwrap
from recovery.models.hub import locate
from recovery.models.loading import ModelSpec, load
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from recovery.storage.weights_hash import ADAPTER_CONFIG
from recovery.training.preflight import TokenMoments, sampler_agrees

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

WORDS = ("a", "Name three rivers, and say where each of them ends.")  # of two lengths, so that one is padded
NEW_TOKENS = 6


def load_supported(spec: ModelSpec) -> ChatModel:
    """Load a full model and check that sampling works; raise InputError with the reason otherwise."""
    directory, _ = locate(spec.path, spec.revision)
    if (directory / ADAPTER_CONFIG).is_file():
        raise InputError(
            f"{spec.path}: an adapter, not a whole model: merge it into its base first, or give the base"
        )
    chat = load(spec)
    if problem := sampling_problem(chat):
        raise InputError(f"{spec.path}: models of type {family(chat)} are not supported: {problem}")
    return chat


def restrictions(chat: ChatModel) -> str | None:
    """Describe in one line what makes this model slower than others to sample from and to train."""
    core = unwrap(chat.model)
    way, sharing = decoding_way(core), row_sharing(core)
    said = []
    if way.sharing.equal_lengths:
        said.append(f"sampled {way.description}, which is slow: its cache, or padding, changes the numbers")
    if sharing.equal_lengths:
        said.append("trained in rows of one length")
    elif sharing.is_limited:
        said.append(f"sequences beyond {sharing.boundary:,} tokens are read apart from shorter ones")
    return f"{family(chat)} models: {'; '.join(said)}" if said else None


def family(chat: ChatModel) -> str:
    """Return the model type of the transformers config."""
    return str(unwrap(chat.model).config.model_type)


def sampling_problem(chat: ChatModel) -> str | None:
    """Sample from two prompts of different lengths, recompute the log-probs, and describe any mismatch."""
    prompts = [chat.prompt_ids([{"role": "user", "content": words}]) for words in WORDS]
    try:
        rollouts = InProcessSampler(chat).sample(prompts, SamplingParams(NEW_TOKENS, seed=0))
        with torch.no_grad():
            check = sampler_agrees(chat, rollouts, TokenMoments.of(chat, rollouts))
    except (torch.OutOfMemoryError, RecoverError):
        raise
    except NOT_APPLICABLE as error:
        said = " ".join(str(error).split())[:160]
        return f"decoding with a KV cache fails ({said})"
    return None if check.ok else f"padded prompts are sampled from another distribution: {check.detail}"
