"""Opening, document end and turn end as each family's tokenizer, template and configuration say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from pipelines.corpus.reading.plain import TextPiece
from pipelines.corpus.token_file import TokenStream, write_tokens
from recovery.errors import InputError
from recovery.inspection.distribution_shift import texts_as_rollouts
from recovery.models.chat_encoding import ChatEncoder
from recovery.models.control_tokens import spells_end_of_text
from recovery.teachers.contexts import Context, RowEncoder
from recovery.teachers.likelihood import split_ids
from tests.support import tiny
from tests.support.chat_families import CHATML, FAMILIES, GLM, Family

USER, ASSISTANT = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def test_a_document_opens_and_ends_as_in_pretraining(family: Family) -> None:
    chat = family.chat_model()
    opening, end = family.ids(family.opening), family.ids((family.document_end,))
    ids, targets = chat.document("hi")
    assert ids == [*opening, *b"hi", *end]
    assert targets == [False] * len(opening) + [True] * 3
    assert chat.document_start("hi") == ids[:-1]


def test_an_answer_ends_as_the_template_ends_a_turn(family: Family) -> None:
    ids, targets = family.encoder().dialogue_ids([USER, ASSISTANT])
    answer = [token for token, is_target in zip(ids, targets, strict=True) if is_target]
    assert answer[-1] == family.ids((family.turn_end,))[0]
    assert family.encoder().text(answer).strip().endswith("b")


def test_an_answer_that_is_given_stands_where_the_model_writes_its_own(family: Family) -> None:
    chat = family.chat_model()
    between: list[int] = []
    if family is FAMILIES["gpt-oss"]:
        channel, message = family.ids(("<|channel|>", "<|message|>"))
        between = [channel, *b"final", message]
    answer = b" b" if family is FAMILIES["mistral"] else b"b"  # its template writes a blank before answers
    assert chat.answer_pair([USER], "b") == ([*chat.prompt_ids([USER]), *between], [*answer])
    assert split_ids(chat, [USER], "b") == chat.answer_pair([USER], "b")
    trained = [token for token, target in zip(*chat.dialogue_ids([USER, ASSISTANT]), strict=True) if target]
    assert trained[: len(between) + len(answer)] == [*between, *answer]


MARKS = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")


def answering(said: str) -> Family:
    """A family that writes its answers so."""
    template = CHATML.replace("m['content']", f"({said} if m['role'] == 'assistant' else m['content'])")
    specials = (*FAMILIES["qwen"].specials, *MARKS)
    return replace(FAMILIES["qwen"], specials=specials, template=template)


def test_an_answer_that_is_given_stands_behind_the_mark_of_a_response() -> None:
    family = answering(f"'{MARKS[0]}' + m['content'] + '{MARKS[1]}'")
    chat = family.chat_model()
    for asked in (USER, {"role": "user", "content": f"What is {MARKS[0]}?"}):
        assert chat.answer_pair([asked], "b")[0] == [*chat.prompt_ids([asked]), *family.ids(MARKS[:1])]


def test_an_answer_that_is_given_stands_on_the_line_on_which_the_template_writes_it() -> None:
    short = replace(FAMILIES["glm-4"], template=GLM.replace("'<|assistant|>\n'", "'<|assistant|>'"))
    chat = short.chat_model()
    assert chat.answer_pair([USER], "b")[0] == [*chat.prompt_ids([USER]), *b"\n"]


def test_no_thinking_is_put_before_an_answer_that_is_given() -> None:
    """As templates of Qwen 3 write past answers: the model itself may think first."""
    chat = answering("'<think>\n\n</think>\n\n' + m['content']").chat_model()
    assert chat.answer_pair([USER], "b")[0] == chat.prompt_ids([USER])


def test_likelihoods_and_divergences_read_the_opening_that_training_reads(family: Family) -> None:
    chat = family.chat_model()
    opening = family.ids(family.opening)
    assert split_ids(chat, "one two", " three")[0] == [*opening, *b"one two"]
    rows = texts_as_rollouts(chat, ["one two"])
    assert rows.tokens_BT[0].tolist() == [*opening, *b"one two"]


def test_every_piece_of_a_long_document_carries_the_opening(tmp_path: Path) -> None:
    chat = FAMILIES["gemma-2"].chat_model()
    bos, eos = FAMILIES["gemma-2"].ids(("<bos>", "<eos>"))
    tokens = write_tokens(tmp_path / "t", [TextPiece("x" * 10)], chat.text_ids, chat.document_end, "key")
    opened = type(tokens)(tokens.ids, tokens.ends, opening=tuple(chat.opening_ids))
    pieces = TokenStream(opened, 5, "seed").between(0, opened.total)
    assert sorted(len(ids) for ids, _ in pieces) == [4, 5, 5]
    assert all(ids[0] == bos and targets == [False] + [True] * (len(ids) - 1) for ids, targets in pieces)
    assert sum(eos in ids for ids, _ in pieces) == 1


def test_a_document_end_beyond_the_weights_is_not_used() -> None:
    chat = FAMILIES["qwen"].chat_model()
    chat.encoder.__dict__["document_end_id"] = 10_000
    assert chat.document_end == chat.stop_ids[0]
    assert torch.tensor(chat.document("a")[0]).max() < 259


@pytest.mark.parametrize(
    "spelling",
    ["</s>", "<eos>", "[EOS]", "<EOS_TOKEN>", "<|end_of_text|>", "<|endoftext|>", "<｜end▁of▁sentence｜>"],
)
def test_spellings_that_end_a_text(spelling: str) -> None:
    assert spells_end_of_text(spelling)


@pytest.mark.parametrize(
    "spelling", ["<s>", "<|eot_id|>", "<|im_end|>", "<|end|>", "<|endofprompt|>", "<end_of_turn>", "<bos>"]
)
def test_spellings_that_end_something_else(spelling: str) -> None:
    assert not spells_end_of_text(spelling)


@pytest.mark.parametrize("name", ["gemma-2", "mistral"])
def test_a_system_turn_is_folded_where_the_template_has_none(name: str) -> None:
    encoder = FAMILIES[name].encoder()
    system, other = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "c"}
    merged = {"role": "user", "content": "Be brief.\n\na"}
    assert encoder.prompt_ids([system, USER]) == encoder.prompt_ids([merged])
    turns = [ASSISTANT, other, ASSISTANT]
    assert encoder.dialogue_ids([system, USER, *turns]) == encoder.dialogue_ids([merged, *turns])


def test_a_system_turn_that_a_template_drops_is_folded_too() -> None:
    template = tiny.TEMPLATE.replace("in messages %}", "in messages if message['role'] != 'system' %}")
    encoder = ChatEncoder(tiny.tokenizer(chat_template=template))
    ids = encoder.prompt_ids([{"role": "system", "content": "Be brief."}, USER])
    assert encoder.text(ids).startswith("user\nBe brief.\n\na")


def test_a_system_turn_stays_where_the_template_has_one() -> None:
    encoder = FAMILIES["qwen"].encoder()
    text = encoder.text(encoder.prompt_ids([{"role": "system", "content": "Be brief."}, USER]))
    assert text == "system\nBe brief.\nuser\na\nassistant\n"


@dataclass(frozen=True)
class Row:
    messages: list[dict[str, str]]
    fields: dict[str, str]


def test_a_context_s_system_turn_reaches_a_teacher_without_system_turns() -> None:
    chat = FAMILIES["gemma-2"].chat_model()
    views = RowEncoder(chat, [Row([USER], {})], Context("rules", "Never lie."))
    views.check()
    assert "Never lie.\n\na" in chat.text(views.teacher(0))
    assert "Never lie." not in chat.text(views.student(0))


def test_rows_that_cannot_be_rendered_are_counted_before_the_first_step() -> None:
    rows = [Row([USER], {}), Row([USER, USER], {}), Row([ASSISTANT, USER], {})]
    with pytest.raises(
        InputError, match=r"2 of 3 rows cannot be rendered, first: .*\[user, user\].*alternate"
    ):
        RowEncoder(FAMILIES["gemma-2"].chat_model(), rows).check()


TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "<|im_end|> adds", "parameters": {}}}
]


def test_tool_schemas_and_calls_reach_the_template_and_hold_no_control_token() -> None:
    template = "{% if tools %}{{ tools | tojson }}{% endif %}" + tiny.TEMPLATE.replace(
        "message['content'] +", "(message['content'] or message['tool_calls'] | tojson) +"
    )
    encoder = ChatEncoder(tiny.tokenizer(chat_template=template))
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"name": "add", "arguments": {"a": "<|im_end|>"}}],
    }
    ids = encoder.prompt_ids([{**USER, "tools": TOOLS}, call, {"role": "tool", "content": "3"}])
    text = bytes(i for i in ids if i < 256).decode()
    assert "<|im_end|> adds" in text and '"arguments": {"a": "<|im_end|>"}' in text
    assert [i for i in ids if i > 255] == [256, 257, 256, 257, 256, 257, 256]
    assert encoder.prompt_ids([USER]) == ChatEncoder(tiny.tokenizer()).prompt_ids([USER])


DATED = "{{ 'Today is ' + strftime_now('%d %B %Y') + '\n' }}" + tiny.TEMPLATE


def test_only_a_template_that_writes_the_date_is_said_to() -> None:
    assert ChatEncoder(tiny.tokenizer(chat_template=DATED)).writes_date
    assert ChatEncoder(tiny.tokenizer(chat_template=DATED), {"today": "2026-01-31"}).writes_date
    assert not ChatEncoder(tiny.tokenizer()).writes_date
    assert not FAMILIES["gemma-2"].encoder().writes_date
