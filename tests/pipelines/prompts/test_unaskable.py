"""Dialogues that a chat template cannot ask, each tried by itself."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.prompts.unaskable import Refusal, first_refusal
from recovery.models.chat_encoding import ChatEncoder
from tests.support import tiny

USER = {"role": "user", "content": "One and two?"}
ITEMS = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set _ = c.arguments | items | list %}"
OBJECTS = ITEMS + "{% endfor %}{% endfor %}" + tiny.TEMPLATE


def calling(arguments: Any) -> list[dict[str, Any]]:
    calls = [{"name": "add", "arguments": arguments}]
    result = {"role": "tool", "content": "3"}
    return [USER, {"role": "assistant", "content": "", "tool_calls": calls}, result]


def test_a_dialogue_is_refused_for_what_its_calls_hold() -> None:
    """One that stands for all of its roles and fields told nothing of the others."""
    encoder = ChatEncoder(tiny.tokenizer(chat_template=OBJECTS))
    good = [calling({"a": 1}), calling({"b": 2})]
    assert first_refusal(encoder, good) is None
    refusal = first_refusal(encoder, [[USER], *good, calling("a=1"), calling("b=2")])
    assert refusal is not None and refusal.place == 3
    assert refusal.why.startswith("the chat template refuses a dialogue of [user, assistant, tool]: ")


def test_one_plain_question_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = ChatEncoder(tiny.tokenizer())
    tried: list[Any] = []
    render = ChatEncoder.prompt_text

    def seen(encoder: ChatEncoder, chat: Any) -> str:
        tried.append(chat)
        return render(encoder, chat)

    monkeypatch.setattr(ChatEncoder, "prompt_text", seen)
    system = [{"role": "system", "content": "Be brief."}, USER]
    assert first_refusal(encoder, [[USER], [USER], system, system]) is None
    assert tried == [[USER], system, system]


def test_dropped_tools_are_a_refusal_where_they_are_wanted() -> None:
    encoder = ChatEncoder(tiny.tokenizer())
    chats: list[list[dict[str, Any]]] = [[USER], [{**USER, "tools": [{"name": "add"}]}]]
    assert first_refusal(encoder, chats) == Refusal(1, "the chat template takes no tool schemas")
    assert first_refusal(encoder, chats, tools=False) is None
