"""Read what a vLLM server answers, and refuse what no intact server sends: each failure is an EngineLost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from recovery.engines.json_client import MOST_QUOTED
from recovery.engines.protocol import SampledAnswer
from recovery.errors import EngineLost
from recovery.printable import one_line
from recovery.sampling.loops import loop_end


class LogprobEntry(NamedTuple):
    logprob: float
    rank: int


def joined(parts: Iterable[dict[str, Any]], stop_loops: bool = False) -> dict[str, Any]:
    """Join the parts of a choice: each holds the tokens since the last one, the first one the prompt's.

    With `stop_loops`, take no more parts once the tokens only repeat themselves.
    """
    first: dict[str, Any] = {}
    tokens: list[Any] = []
    logprobs: list[Any] = []
    ended = None
    for part in parts:
        sent = part.get("logprobs")
        first = {**part, **first}
        new = _list(part.get("token_ids"))
        tokens += new
        logprobs += _list(sent.get("token_logprobs") if isinstance(sent, dict) else None)
        ended = part.get("finish_reason")
        end = _loop_end(tokens, len(tokens) - len(new)) if stop_loops else None
        if end is not None:
            tokens = tokens[:end]
            logprobs = logprobs[:end]
            ended = "loop"
            break
    if ended in (None, "abort", "error"):
        raise EngineLost("it ended an answer early")
    return {**first, "token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}


def _loop_end(tokens: list[Any], seen: int) -> int | None:
    return loop_end(tokens, seen) if all(map(_is_token_id, tokens[seen:])) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def choice_of(answer: Any) -> dict[str, Any]:
    """Return the single choice of a completion; raise EngineLost for any other response."""
    if isinstance(answer, dict) and "error" in answer:
        raise EngineLost(f"it failed: {one_line(answer['error'], MOST_QUOTED)}")
    try:
        choice = answer["choices"][0]
    except (KeyError, IndexError, TypeError) as error:
        raise EngineLost("its answer holds no completion") from error
    if not isinstance(choice, dict):
        raise EngineLost("its answer holds no completion")
    return choice


def sampled_answer(choice: dict[str, Any]) -> SampledAnswer:
    """Return the sampled tokens and their log-probabilities, validated."""
    logprobs = choice.get("logprobs")
    tokens = choice.get("token_ids")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not (isinstance(tokens, list) and isinstance(values, list) and len(tokens) == len(values) and tokens):
        raise EngineLost("its completion lacks token ids or log-probabilities")
    if not (all(map(_is_token_id, tokens)) and all(map(_is_logprob, values))):
        raise EngineLost("its completion holds invalid token ids or log-probabilities")
    return SampledAnswer(tokens, values)


def prompt_logprobs(
    choice: dict[str, Any], tokens: Sequence[int], start: int, k: int
) -> list[dict[int, LogprobEntry]]:
    """Return the log-probabilities of a prompt's tokens from `start` on, validated: each has its own and the
    K best. The others, which a long prompt has many of, are not read.
    """
    sent = choice.get("prompt_logprobs")
    if not isinstance(sent, list) or len(sent) != len(tokens):
        raise EngineLost(f"it sends no log-probabilities for the {len(tokens)} tokens of the prompt")
    positions = [_logprobs_at(at) for at in sent[start:]]
    if not all(token in at and len(at) >= k for token, at in zip(tokens[start:], positions, strict=True)):
        raise EngineLost(f"its log-probabilities lack a token of the prompt, or one of the {k} best")
    return positions


def _logprobs_at(at: Any) -> dict[int, LogprobEntry]:
    """Return the entries at one position by token id, validated."""
    try:
        entries = {int(token): LogprobEntry(float(e["logprob"]), int(e["rank"])) for token, e in at.items()}
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise EngineLost("it sends log-probabilities in another form than vLLM's") from error
    if not (
        all(map(_is_token_id, entries)) and all(_is_logprob(entry.logprob) for entry in entries.values())
    ):
        raise EngineLost("it sends invalid token ids or log-probabilities")
    return entries


def _is_token_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_logprob(value: Any) -> bool:
    return type(value) in (int, float) and not math.isnan(value) and value <= 1e-3
