"""Tell why a chat template cannot ask a dialogue: it rejects the turns, or drops the tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from recovery.errors import InputError

if TYPE_CHECKING:
    from evals.scores import Message
    from recovery.models.chat_encoding import ChatEncoder


def first_refusal(encoder: ChatEncoder, chats: Iterable[Sequence[Message]], *, tools: bool = True) -> str:
    """Return why the template cannot ask one of these dialogues, with its `tools`; nothing if it can."""
    return next(filter(None, (_refusal(encoder, chat, tools=tools) for chat in chats)), "")


def _refusal(encoder: ChatEncoder, chat: Sequence[Message], *, tools: bool) -> str:
    plain = [{key: value for key, value in turn.items() if key != "tools"} for turn in chat]
    try:
        asked, without_tools = encoder.prompt_ids(chat), encoder.prompt_ids(plain)
    except InputError as error:
        return str(error)
    dropped = tools and asked == without_tools and list(chat) != plain
    return "the chat template takes no tool schemas" if dropped else ""
