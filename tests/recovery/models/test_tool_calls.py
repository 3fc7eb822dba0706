"""Tool calls reach a chat template in the form that it writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import tiny
from tests.support.chat_families import encoder

NAMED = "{{ c['function']['name'] }} "
OBJECT = NAMED + "{{ c['function']['arguments'] | tojson }}"
TEXT = NAMED + "{{ c['function']['arguments'] }}"
JOINED = "{{ c['function']['name'] + ' ' + c['function']['arguments'] }}"  # DeepSeek's
EITHER = NAMED + ("{% set a = c['function']['arguments'] %}{{ a if a is string else a | tojson }}")
WHERE_ANY = "{% if m['tool_calls'] %}"
WHERE_NULL = "{% if m['content'] is none %}"  # of DeepSeek's first templates
USER: dict[str, Any] = {"role": "user", "content": "Add."}
RESULT: dict[str, Any] = {"role": "tool", "content": "3"}


def template(call: str, where: str) -> str:
    calls = f"{{% for c in m['tool_calls'] %}}{call}{{% endfor %}}"
    turn = f"{where}{calls}{{% else %}}{{{{ m['content'] }}}}{{% endif %}};"
    return f"{{% for m in messages %}}{turn}{{% endfor %}}"


def calling(arguments: object) -> list[dict[str, Any]]:
    called = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    return [USER, {"role": "assistant", "content": "", "tool_calls": [called]}, RESULT]


@pytest.mark.parametrize("call", [OBJECT, TEXT, JOINED, EITHER])
@pytest.mark.parametrize("where", [WHERE_ANY, WHERE_NULL])
def test_a_call_is_written_as_json_once(call: str, where: str) -> None:
    made = encoder(tiny.tokenizer(chat_template=template(call, where)))
    arguments = {"a": 1, "b": "x<|im_end|>"}
    name, written = made.text(made.prompt_ids(calling(arguments))).split(";")[1].split(" ", 1)
    assert name == "add" and json.loads(written) == arguments


def tool() -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "description": "A number."}}}
    named = {"name": "add", "description": "Add numbers.", "parameters": parameters}
    return {"type": "function", "function": named}


REFUSES = "{% if not tools %}{{ raise_exception('no tools') }}{% endif %}"
SAYS_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %};"
BESIDE_TOOLS = (
    "{% for m in messages %}{% if m['tool_calls'] and tools %}{% for c in m['tool_calls'] %}"
    "{{ c['function']['name'] + ' ' + c['function']['arguments'] }}{% endfor %}"
    "{% else %}{{ m['content'] }}{% endif %};{% endfor %}"
)


@pytest.mark.parametrize("where", [WHERE_ANY, WHERE_NULL])
def test_a_form_that_only_dialogues_with_tools_show_is_found(where: str) -> None:
    joined = template(JOINED, where)
    kinds: list[Any] = [BESIDE_TOOLS, REFUSES + joined, {"default": tiny.TEMPLATE, "tool_use": joined}]
    for kind in (*kinds, {"default": template(OBJECT, where), "tool_use": SAYS_TOOLS + joined}):
        made = encoder(tiny.tokenizer(chat_template=kind))
        asked = [{**USER, "tools": [tool()]}, *calling({"a": 1})[1:]]
        assert 'add {"a": 1};' in made.text(made.prompt_ids(asked))


def test_each_of_two_named_templates_is_given_its_own_form() -> None:
    named = {"default": template(OBJECT, WHERE_ANY), "tool_use": template(JOINED, WHERE_NULL)}
    made = encoder(tiny.tokenizer(chat_template=named))
    for turns in (calling({"a": 1}), [{**USER, "tools": [tool()]}, *calling({"a": 1})[1:]]):
        assert 'add {"a": 1};' in made.text(made.prompt_ids(turns))


def test_turns_without_calls_keep_their_content() -> None:
    made = encoder(tiny.tokenizer(chat_template=template(JOINED, WHERE_NULL)))
    turns = [USER, {"role": "assistant", "content": ""}, {"role": "user", "content": "b"}]
    assert made.text(made.prompt_ids(turns)) == "Add.;;b;"


def test_a_template_that_writes_no_calls_is_given_them_as_they_are() -> None:
    made = encoder(tiny.tokenizer())
    plain = [USER, {"role": "assistant", "content": ""}, RESULT]
    assert made.prompt_ids(calling({"a": 1})) == made.prompt_ids(plain)
