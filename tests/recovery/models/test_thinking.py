"""Thinking is cut from answers by every family's marks, and ordinary answers stay as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.models.chat_encoding import ChatEncoder
from recovery.models.thinking import (
    closes_thinking,
    closing_between,
    ends_inside,
    mentions_thinking,
    split_thinking,
)
from tests.support import tiny
from tests.support.chat_families import CHATML, FAMILIES, GEMMA, GLM, HARMONY, LLAMA, MISTRAL, PHI

ANSWER = "* one\n* two\n\nP.S. Paris."
BLOCKS = [
    "<think>\nHm.\n</think>\n\n{}",
    "<think>\n\n</think>\n\n{}",
    "\n<thinking>Hm.</thinking>{}",
    "[THINK]Hm.[/THINK]{}",
    "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>{}<|END_RESPONSE|>",
    "<|START_RESPONSE|>{}<|END_RESPONSE|>",
    "<|START_RESPONSE|>{}",
    "<|begin_of_thought|>Hm.<|end_of_thought|>{}",
    "<think>Hm.</think><answer>\n{}\n</answer>",
    "◁think▷Hm.◁/think▷{}",
    "<seed:think>Hm.</seed:think>{}",
    "<|channel>thought\nHm.<channel|>{}",
    "<think>Hm.</think>\n<think>Again.</think>\n{}",
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{}",
    "<|channel|>analysis<|message|>Hm.assistant<|channel|>final<|message|>{}",
    "<|channel|>final<|message|>{}",
    "analysisWe need bullets.assistantfinal{}",
    "analysis we need bullets. assistantcommentary call assistantfinal{}",
    "Hm, the prompt opened this block.\n</think>\n\n{}",
    "Hm.[/THINK]{}",
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_answer_is_what_comes_after_the_thinking(block: str) -> None:
    thinking, answer = split_thinking(block.format(ANSWER))
    assert answer == ANSWER
    assert ANSWER not in thinking and "<" not in thinking


@pytest.mark.parametrize("block", BLOCKS)
def test_thinking_before_an_empty_answer_is_closed(block: str) -> None:
    thinking, answer = split_thinking(block.format(""))
    assert answer == "" and (not thinking or closes_thinking(block.format("")))


@pytest.mark.parametrize(
    "text",
    [
        "<think>Hm.",
        "<think>Hm.</think>\n<think>Again",
        "Hm, the prompt opened this block.",
        "<|channel|>analysis<|message|>Hm.<|end|>",
        "analysisWe need bullets.",
        "<|START_THINKING|>Hm.",
    ],
)
def test_thinking_that_goes_on_to_the_end_is_not_closed(text: str) -> None:
    assert split_thinking(text, opened=True)[1] == "" and not closes_thinking(text)


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("<think>", "</think>"),
        ("<seed:think>", "</seed:think>"),
        ("[THINK]", "[/THINK]"),
        ("◁think▷", "◁/think▷"),
        ("<|channel>", "<channel|>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
        ("<|think_start|>", "<|think_end|>"),
    ],
)
def test_an_open_block_is_closed_in_its_own_spelling(opening: str, closing: str) -> None:
    prompt = f"user: hi\nassistant: {opening}\n"
    assert closing_between(prompt, ANSWER) == f"\n{closing}\n\n"
    assert split_thinking(closing_between(prompt, ANSWER) + ANSWER, opened=True) == ("", ANSWER)
    assert closing_between(prompt, f"Hm.{closing}{ANSWER}") == ""
    assert closing_between(prompt + closing, ANSWER) == closing_between("user: hi", ANSWER) == ""


@pytest.mark.parametrize(
    "text",
    [
        "<think>Paris? Or",
        "[THINK]Paris",
        "<|START_THINKING|>Paris",
        "<|channel|>analysis<|message|>Paris",
        "analysisThe user wants Paris",
        "<think>Paris</think>",
        "<think>One</think><think>Paris",
    ],
)
def test_thinking_without_an_end_is_no_answer(text: str) -> None:
    thinking, answer = split_thinking(text)
    assert answer == "" and "Paris" in thinking


def test_thinking_that_the_prompt_opened() -> None:
    assert split_thinking("Hm, Paris", opened=True) == ("Hm, Paris", "")
    assert split_thinking("Hm.</think>Paris", opened=True) == ("Hm.", "Paris")
    assert split_thinking("<think>Hm.</think>Paris", opened=True) == ("Hm.", "Paris")


@pytest.mark.parametrize(
    "text",
    [
        "Use <think> and </think> as tags.",
        "analysis of the data: assistant",
        " Analysis. The final answer is Paris.",
        "<thing>Paris</thing>",
        "<answer>Paris</answer>",
        "Write <|START_RESPONSE|> before <|END_RESPONSE|>",
        "I think [THINK] is a mark.",
        "",
    ],
)
def test_answers_that_only_mention_marks_stay(text: str) -> None:
    assert split_thinking(text) == ("", text)


@given(st.text().filter(lambda text: not set(text) & set("<[◁") and not text.lstrip().startswith("analysis")))
def test_a_text_without_marks_is_all_answer(text: str) -> None:
    assert split_thinking(text) == ("", text)


def test_a_prompt_ends_inside_a_block_that_it_opens_last() -> None:
    assert ends_inside("<think>\n") and ends_inside("<think>a</think> b [THINK]")
    assert not ends_inside("a") and not ends_inside("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("mark", ["<think>", "</think>", "[THINK]", "<seed:think>", "<|START_THINKING|>"])
def test_a_template_mentions_thinking_by_the_marks_of_its_family(mark: str) -> None:
    assert mentions_thinking(f"{CHATML}{{{{ '{mark}' }}}}") and mentions_thinking(HARMONY)
    assert not any(mentions_thinking(template) for template in (CHATML, GEMMA, GLM, LLAMA, MISTRAL, PHI))


def test_decoder_choice_keeps_marks_that_are_special_tokens() -> None:
    specials = ("<|im_start|>", "<|im_end|>", "[THINK]", "[/THINK]")
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(specials)})
    encoder = ChatEncoder(tokenizer)
    opening, closing, end = tokenizer.convert_tokens_to_ids(["[THINK]", "[/THINK]", "<|im_end|>"])
    assert encoder.answer([opening, *b"Hm.", closing, *b"Paris", end]) == ("Hm.", "Paris")
    assert encoder.text([opening, *b"Hm.", closing]) == "[THINK]Hm.[/THINK]"


def test_an_answer_without_thinking_loses_the_marks_around_it() -> None:
    """As Cohere's models write it; the marks are special tokens, which decoding keeps."""
    marks = ["<|START_RESPONSE|>", "<|END_RESPONSE|>"]
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    start, end = tokenizer.convert_tokens_to_ids(marks)
    encoder = ChatEncoder(tokenizer)
    assert encoder.answer([start, *b"Oslo", end]) == encoder.answer([*b"Oslo"]) == ("", "Oslo")
    assert encoder.answer([start, *b"Oslo, or"]) == ("", "Oslo, or")


def test_channels_are_read_from_token_ids() -> None:
    family = FAMILIES["gpt-oss"]
    channel, message, end, start, stop = family.ids(
        ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>")
    )
    ids = [channel, *b"analysis", message, *b"Hm.", end, start, *b"assistant", channel, *b"final", message]
    assert family.encoder().answer([*ids, *b"Paris", stop]) == ("Hm.", "Paris")
    assert family.encoder().answer([channel, *b"analysis", message, *b"Paris"]) == ("Paris", "")


def test_a_template_that_opens_the_block_is_known_from_the_template() -> None:
    asks = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    opens = FAMILIES["qwen"].template.replace(
        asks, asks + "{% if add_generation_prompt %}<think>\n{% endif %}"
    )
    assert ChatEncoder(tiny.tokenizer(chat_template=opens)).answer(b"Hm, Paris") == ("Hm, Paris", "")
    quiet = ChatEncoder(tiny.tokenizer(), {"enable_thinking": False})  # an empty block, closed
    assert quiet.answer(b"Paris") == ("", "Paris")


def test_a_block_that_is_opened_behind_some_turns_alone_is_looked_up_in_the_prompt() -> None:
    """As R1's distillations open none behind a tool's result: its answers were taken for thinking."""
    asks = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    opens = FAMILIES["qwen"].template.replace(
        asks,
        asks + "{% if add_generation_prompt and messages[-1]['role'] == 'user' %}<think>\n{% endif %}",
    )
    encoder = ChatEncoder(tiny.tokenizer(chat_template=opens))
    asked = {"role": "user", "content": "Where does Ada live? Leave <think> away."}
    after_user = encoder.prompt_ids([asked])
    after_tool = encoder.prompt_ids([asked, {"role": "tool", "content": "Oslo"}])
    assert encoder.opens_thinking
    assert encoder.answer(b"Oslo", after_user) == ("Oslo", "")
    assert encoder.answer(b"Oslo", after_tool) == ("", "Oslo")
    assert encoder.answer(b"Hm.</think>Oslo", after_user) == ("Hm.", "Oslo")
