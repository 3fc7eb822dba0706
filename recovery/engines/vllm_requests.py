"""Build the requests to a vLLM server: token ids alone, and the whole distribution; explain its refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recovery.engines.key_guard import KEY_VARIABLE
from recovery.seeds import step_seed

if TYPE_CHECKING:
    from recovery.sampling.protocol import SamplingParams


def room_behind(prompt: Sequence[int], params: SamplingParams, lengths: Sequence[int | None]) -> int:
    """Return how many tokens to ask for behind a prompt, of servers that read `lengths` tokens in all.

    A server refuses to write more than it reads, where a model in this process writes up to its end. The
    smallest length holds for all, so that an answer does not depend on the server. One token is left over: a
    server that scores the answer is asked for one more. Where a prompt leaves no room, its server says so.
    """
    most = params.max_new_tokens
    room = min((length - len(prompt) for length in lengths if length is not None), default=most + 1)
    return min(most, max(1, room - 1)) if room > 0 else most


def sampling_request(
    prompt: Sequence[int], row: int, most: int, params: SamplingParams, stop_ids: Sequence[int]
) -> dict[str, Any]:
    """Return the body that samples an answer of `most` tokens, streamed, with the row's own seed."""
    return {
        "prompt": list(prompt),
        "max_tokens": most,
        "temperature": params.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": step_seed(params.seed, row),
        "logprobs": 0,
        "stop_token_ids": list(stop_ids),
        "ignore_eos": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": True,
    }


def scoring_request(tokens: Sequence[int], k: int) -> dict[str, Any]:
    """Return the body that scores a sequence's tokens and the `k` likeliest at each place."""
    return {
        "prompt": list(tokens),
        "max_tokens": 1,
        "temperature": 1.0,
        "prompt_logprobs": k,
        "return_token_ids": True,
    }


def about_key(status: int) -> str:
    """Return what to set where a server asks for a key, or refuses the one that it got; "" of others."""
    if status not in (401, 403):
        return ""
    nameless = "; one without a key answers only where it is named as this machine, such as 127.0.0.1"
    return f": set {KEY_VARIABLE} to the key of this server{nameless if status == 403 else ''}"
