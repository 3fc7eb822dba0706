"""Refuse questions that a model cannot be asked before it is asked the first one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from evals import dialogues
from evals.families.table import FAMILIES
from evals.knowledge import OF_MULTIHOP, RETRIEVAL, ProbeQuestions
from evals.probes import EARLIER
from pipelines.engines.engine_checks import INPROCESS
from pipelines.engines.engine_places import engine_lengths
from pipelines.evaluation.suites import Suite
from pipelines.prompts.lengths import checkpoint_limit, smallest, tokens_if_long
from pipelines.prompts.unaskable import first_refusal, is_plain
from recovery.errors import InputError

if TYPE_CHECKING:
    from evals.scores import Asked, Message
    from pipelines.runs.workspace import Workspace
    from recovery.models.chat_encoding import ChatEncoder
    from recovery.storage.checkpoints import Checkpoint


def require_answerable(ws: Workspace, checkpoint: Checkpoint, suites: Iterable[Suite], sampler: str) -> None:
    """Refuse a question that leaves no room for an answer, or whose turns the chat template rejects.

    The tokenizer is loaded for long questions and for those of several turns alone."""
    room = _room(ws, checkpoint, sampler)
    encoder = cache(lambda: ws.encoder(checkpoint))
    for suite in suites:
        if suite.name not in FAMILIES:  # a family that cannot be asked is not measured
            _require_turns(suite, encoder)
        _require_room(suite, encoder, room)


def unaskable_families(ws: Workspace, checkpoint: Checkpoint, suites: Iterable[Suite]) -> dict[str, str]:
    """Return the families that the chat template cannot ask, and why."""
    families = [suite for suite in suites if suite.name in FAMILIES]
    if not families:  # the tokenizer is loaded for them alone
        return {}
    encoder = ws.encoder(checkpoint)
    refusals = {suite.name: first_refusal(encoder, _chats(suite)) for suite in families}
    return {name: refusal.why for name, refusal in refusals.items() if refusal}


@dataclass(frozen=True)
class _Room:
    """The tokens of a question and its answer together, and what reads no more."""

    tokens: float
    reader: str


def _room(ws: Workspace, checkpoint: Checkpoint, sampler: str) -> _Room:
    """Return what the model reads, or the engine that answers where that reads less."""
    own = smallest(checkpoint_limit(ws, checkpoint))
    engine = smallest(*engine_lengths(sampler, ws.config)) if sampler != INPROCESS else own
    return _Room(own, "the model") if own <= engine else _Room(engine, "the engine that answers")


def _require_room(suite: Suite, encoder: Callable[[], ChatEncoder], room: _Room) -> None:
    for prompt in suite.prompts:
        tokens = tokens_if_long(lambda asked: _ids(encoder(), asked), prompt, room.tokens)
        if tokens >= room.tokens:
            remedy = "give fewer --passages" if _has_retrieved(suite, prompt) else "shorten it"
            raise InputError(
                f"suite {suite.name}: the question {_shown(prompt)[:60]!r} has {tokens:,} tokens, "
                f"{room.reader} reads {room.tokens:,.0f}, answers included: {remedy} or leave it out"
            )


def _has_retrieved(suite: Suite, prompt: Asked) -> bool:
    """Return whether passages that a retriever found stand before a question."""
    asked = suite.questions.ways() if isinstance(suite.questions, ProbeQuestions) else []
    return any(prompt in way.prompts for way in asked if way.metric in (RETRIEVAL, OF_MULTIHOP[RETRIEVAL]))


def _require_turns(suite: Suite, encoder: Callable[[], ChatEncoder]) -> None:
    """Refuse questions that the template rejects or whose tools it drops; plain ones every template takes.

    What an earlier cycle asked without its tools is asked so again.
    """
    again = suite.name.startswith(EARLIER)
    chats = [messages for messages in _chats(suite) if not is_plain(messages)]
    if chats and (refusal := first_refusal(encoder(), chats, tools=not again)):
        asked = dialogues.shown(chats[refusal.place])
        raise InputError(f"suite {suite.name}: {asked[:60]!r}: {refusal.why}")


def _chats(suite: Suite) -> list[list[Message]]:
    """Return what a suite asks in chat; the rest are texts to go on with."""
    return [asked for asked in suite.prompts if not isinstance(asked, str)]


def _ids(encoder: ChatEncoder, asked: Asked) -> list[int]:
    if isinstance(asked, str):
        return [*encoder.opening_ids, *encoder.text_ids(asked)]
    return encoder.prompt_ids(asked)


def _shown(asked: Asked) -> str:
    return asked if isinstance(asked, str) else dialogues.shown(asked)
