"""Tell why a chat template cannot ask a dialogue: it rejects the turns, or drops the tools.

Every dialogue but plain questions is rendered, which takes a fraction of a millisecond: a template may reject
one for what its calls hold (arguments that are no object, an id of another length), and take another of the
same roles. Plain questions are all alike to it: one stands for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from recovery.errors import InputError

if TYPE_CHECKING:
    from evals.scores import Message
    from recovery.models.chat_encoding import ChatEncoder


class Refusal(NamedTuple):
    """A dialogue that the template cannot ask."""

    place: int  # among the dialogues that were tried
    why: str


def first_refusal(
    encoder: ChatEncoder, chats: Sequence[Sequence[Message]], *, tools: bool = True
) -> Refusal | None:
    """Return the first dialogue that the template cannot ask, with its `tools`; None if it can ask all."""
    first_plain = next((place for place, chat in enumerate(chats) if is_plain(chat)), None)
    for place, chat in enumerate(chats):
        tried = place == first_plain or not is_plain(chat)
        if tried and (why := _refusal(encoder, chat, tools=tools)):
            return Refusal(place, why)
    return None


def is_plain(chat: Sequence[Message]) -> bool:
    """Return whether it is one user turn without tools."""
    return len(chat) == 1 and chat[0]["role"] == "user" and not chat[0].get("tools")


def _refusal(encoder: ChatEncoder, chat: Sequence[Message], *, tools: bool) -> str:
    """Return why the template cannot ask a dialogue; nothing if it can."""
    try:
        asked = encoder.prompt_text(chat)
        dropped = tools and _has_tools(chat) and asked == encoder.prompt_text(_without_tools(chat))
    except InputError as error:
        return str(error)
    return "the chat template takes no tool schemas" if dropped else ""


def _has_tools(chat: Sequence[Message]) -> bool:
    return any(turn.get("tools") for turn in chat)


def _without_tools(chat: Sequence[Message]) -> list[Message]:
    return [{key: value for key, value in turn.items() if key != "tools"} for turn in chat]
