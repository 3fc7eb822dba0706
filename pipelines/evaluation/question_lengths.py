"""Refuse questions that are too long for a model before it is asked the first one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from evals import dialogues
from pipelines.distillation.lengths import checkpoint_limit, tokens_if_long
from pipelines.evaluation.suites import Suite
from recovery.errors import InputError

if TYPE_CHECKING:
    from evals.scores import Asked
    from pipelines.runs.workspace import Workspace
    from recovery.models.chat_encoding import ChatEncoder
    from recovery.storage.checkpoints import Checkpoint


def require_room(ws: Workspace, checkpoint: Checkpoint, suites: Iterable[Suite]) -> None:
    """Refuse a question that leaves no room for an answer; the tokenizer is loaded for long ones alone."""
    limit = checkpoint_limit(ws, checkpoint)
    if limit is None:
        return
    encoder = cache(lambda: ws.encoder(checkpoint))
    for suite in suites:
        for prompt in suite.prompts:
            tokens = tokens_if_long(lambda asked: _ids(encoder(), asked), prompt, limit)
            if tokens >= limit:
                raise InputError(
                    f"suite {suite.name}: the question {_shown(prompt)[:60]!r} has {tokens:,} tokens, the "
                    f"model reads {limit:,}, answers included: shorten it or leave it out"
                )


def _ids(encoder: ChatEncoder, asked: Asked) -> list[int]:
    if isinstance(asked, str):
        return [*encoder.opening_ids, *encoder.text_ids(asked)]
    return encoder.prompt_ids(asked)


def _shown(asked: Asked) -> str:
    return asked if isinstance(asked, str) else dialogues.shown(asked)
