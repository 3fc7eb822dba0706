"""What the teacher sees: templates filled by hand, rows' own fields first, the likeliest examples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.errors import InputError
from recovery.methods.choices import CONTEXTS
from recovery.teachers.contexts import EXAMPLE, TEMPLATES, Context, Examples, RowEncoder, fill, prompt, show
from tests.support import tiny


@dataclass(frozen=True)
class Row:
    messages: list[dict[str, Any]]
    fields: dict[str, Any] = field(default_factory=dict)


def row(text: str, system: str | None = None, **fields: Any) -> Row:
    before: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    return Row([*before, {"role": "user", "content": text}], fields)


PAIRS = [
    row("Where does Ada Fox live?", response="Ada Fox lives in Rome."),
    row("Where does Leo Horn live?", response="Leo Horn lives in Oslo."),
    row("What does Leo Horn play?", response="Leo Horn plays the lute."),
]


def test_every_context_has_a_template() -> None:
    assert set(TEMPLATES) == set(CONTEXTS) - {"none"}
    with pytest.raises(InputError, match="'hint' is not one of"):
        Context("hint")


def test_a_system_prompt_stands_before_the_users_turn() -> None:
    asked = row("Hello?")
    assert Context("system", "Be brief.")(asked) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello?"},
    ]
    assert asked.messages == [{"role": "user", "content": "Hello?"}]


def test_a_prompts_own_system_message_is_kept_after_it() -> None:
    first, last = Context("system", "Be brief.")(row("Hello?", system="You are Ada."))
    assert first == {"role": "system", "content": "Be brief.\n\nYou are Ada."}
    assert last == {"role": "user", "content": "Hello?"}


def test_rules_are_named_as_rules() -> None:
    first, _ = Context("rules", "No commas.")(row("Hello?"))
    assert first["content"] == fill(TEMPLATES["rules"], "", "No commas.")
    assert "Follow these rules" in first["content"] and first["content"].endswith("No commas.")


@pytest.mark.parametrize(
    ("kind", "fields", "shown"),
    [
        ("answer", {"answer": 42}, "42"),
        ("answer", {"response": "It is 42."}, "It is 42."),
        ("answer", {"answer": 42, "response": "It is 42."}, "42"),
        ("answer", {"answer": 0, "response": "There are none."}, "0"),
        ("answer", {"answer": 0.0}, "0.0"),
        ("answer", {"answer": None, "response": "It is 42."}, "It is 42."),
        ("answer", {"answer": "", "response": "It is 42."}, "It is 42."),
        ("hints", {"hints": ["think", "twice"]}, "think\ntwice"),
        ("hints", {"hints": []}, "for everyone else"),
        ("demonstrations", {"demonstrations": "A: b"}, "A: b"),
    ],
)
def test_a_rows_own_field_is_shown_in_the_users_turn(kind: str, fields: dict[str, Any], shown: str) -> None:
    (message,) = Context(kind, "for everyone else")(row("What is it?", **fields))
    assert message == {"role": "user", "content": fill(TEMPLATES[kind], "What is it?", shown)}
    assert message["content"].startswith("What is it?")


def test_a_text_that_holds_the_prompt_is_a_template() -> None:
    shout = Context("system", "{prompt} In capitals!")
    assert shout(row("Why?", system="Be kind.")) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Why? In capitals!"},
    ]
    told = Context("answer", "{prompt} (it is {context})")
    assert told(row("Why?", answer="so"))[-1]["content"] == "Why? (it is so)"


@given(st.text(), st.text())
def test_what_is_filled_in_is_never_a_template(prompt: str, context: str) -> None:
    assert fill("<{prompt}|{context}>", prompt, context) == f"<{prompt}|{context}>"
    assert fill("{prompt}", "{context}", "secret") == "{context}"


def test_examples_share_rare_words_and_its_own_comes_first() -> None:
    examples = Examples(PAIRS)
    assert examples.like("What does Leo Horn play?", 1) == [PAIRS[2]]
    assert examples.like("And where does Ada live?", 1) == [PAIRS[0]]
    assert examples.like("Leo Horn", 2) == [PAIRS[1], PAIRS[2]]
    assert examples.like("Nothing alike", 2) == PAIRS[:2]
    assert Examples([]).like("Leo Horn", 2) == []


@pytest.mark.parametrize(
    ("asked", "alike", "other"),
    [
        ("北京有多大？", "请介绍一下北京的历史。", "巴黎有什么好吃的？"),
        ("東京の人口は？", "東京の歴史を教えて", "パリの天気は？"),
        ("กรุงเทพใหญ่แค่ไหน", "ประวัติของกรุงเทพ", "อาหารในปารีส"),
    ],
)
def test_examples_are_found_in_scripts_without_spaces(asked: str, alike: str, other: str) -> None:
    examples = Examples([row(other, response="1"), row(alike, response="2")])
    assert examples.like(asked, 1) == [examples.pairs[1]]


def test_demonstrations_are_found_among_the_pairs() -> None:
    one, two = (Context("demonstrations", examples=PAIRS, shots=shots) for shots in (1, 2))
    first = fill(EXAMPLE, "What does Leo Horn play?", "Leo Horn plays the lute.")
    (message,) = one(row("What does Leo Horn play?"))
    assert message["content"] == fill(TEMPLATES["demonstrations"], "What does Leo Horn play?", first)
    (message,) = two(row("What does Leo Horn play?"))
    assert first + "\n\n" in message["content"] and "lives in Oslo" in message["content"]


@pytest.mark.parametrize("kind", sorted(TEMPLATES))
def test_nothing_to_show_is_said_before_the_work(kind: str) -> None:
    context = Context(kind)
    with pytest.raises(InputError, match=f"context {kind}: nothing to show .*'Why me\\?'.*--context"):
        context.check([row("Why me?")])
    Context(kind, "something").check([row("Why me?")])
    Context(kind, "{prompt} something").check([row("Why me?")])


def test_views_are_what_each_side_reads() -> None:
    chat, rows = tiny.chat_model(), [row("Why?", response="So.")]
    views = RowEncoder(chat, rows, Context("system", "Be brief."))
    assert views.student(0) == chat.prompt_ids(rows[0].messages)
    assert views.teacher(0) == chat.prompt_ids(
        [{"role": "system", "content": "Be brief."}, *rows[0].messages]
    )
    ids, mask = views.dialogue(0)
    assert ids[: len(views.student(0))] == views.student(0)
    assert chat.text([i for i, own in zip(ids, mask, strict=True) if own]) == "So."
    plain = RowEncoder(chat, rows)
    assert plain.teacher(0) == plain.student(0)


def test_show_is_what_both_read_and_what_the_data_say() -> None:
    def render(messages: list[dict[str, Any]]) -> str:
        return " / ".join(message["content"] for message in messages)

    rows = [row("Why?", response="So."), row("How?")]
    assert show(rows, Context("system", "Be brief."), render) == [
        {"student": "Why?", "teacher": "Be brief. / Why?", "response": "So."},
        {"student": "How?", "teacher": "Be brief. / How?"},
    ]
    assert show(rows[1:], None, render) == [{"student": "How?", "teacher": "How?"}]


def test_a_tool_s_result_is_not_the_prompt() -> None:
    call: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"name": "add", "arguments": {}}],
    }
    user: dict[str, Any] = {"role": "user", "content": "One and two?", "tools": [{"name": "add"}]}
    item = Row([user, call, {"role": "tool", "content": "3"}], {"hints": "Add."})
    assert prompt(item) == "One and two?"
    first, *rest = Context("hints")(item)
    assert first["content"].startswith("One and two?\n\nHints:\n\nAdd.") and first["tools"] == user["tools"]
    assert rest == item.messages[1:]


def test_a_system_message_keeps_its_tools() -> None:
    tools = [{"name": "add"}]
    item = Row(
        [{"role": "system", "content": "Be kind.", "tools": tools}, {"role": "user", "content": "a"}], {}
    )
    assert Context("system", "Be brief.")(item)[0] == {**item.messages[0], "content": "Be brief.\n\nBe kind."}
