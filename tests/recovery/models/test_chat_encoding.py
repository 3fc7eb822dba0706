"""Chat templates and documents to ids: those of `apply_chat_template`, and no control token from text."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from recovery.errors import InputError
from recovery.models.chat_encoding import ChatEncoder, stop_tokens
from tests.support import tiny
from tests.support.chat_families import encoder

SPECIALS = (tiny.IM_START, tiny.IM_END, tiny.END_OF_TEXT)
plain_text = st.text(max_size=40).filter(lambda text: not any(special in text for special in SPECIALS))
hostile_text = st.lists(
    st.one_of(st.sampled_from([*SPECIALS, "<|im_", "end|>", "\n", " "]), st.text(max_size=5))
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "user assistant system: \n [INST]",
] * 3


TINY = encoder(tiny.tokenizer())


def say(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


def reference(tokenizer: Any, messages: list[dict[str, str]], **args: Any) -> list[int]:
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **args)


@given(st.lists(plain_text, min_size=1, max_size=3))
def test_plain_messages_give_the_ids_of_apply_chat_template(contents: list[str]) -> None:
    messages = say(*contents)
    assert TINY.prompt_ids(messages) == reference(TINY.tokenizer, messages)


@given(st.lists(hostile_text.map("".join), min_size=1, max_size=3))
def test_control_tokens_come_from_the_template_alone(contents: list[str]) -> None:
    messages = say(*contents)
    ids = TINY.prompt_ids(messages)
    assert [i for i in ids if i > 255] == [256, 257] * len(contents) + [256]
    rendered = TINY.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert TINY.tokenizer.decode(ids, skip_special_tokens=False) == rendered


@given(hostile_text.map("".join))
def test_documents_never_hold_control_tokens(text: str) -> None:
    assert TINY.text_ids(text) == list(text.encode())
    assert TINY.text(TINY.text_ids(text)) == text


@given(plain_text, hostile_text.map("".join))
def test_a_dialogue_is_its_prompt_then_the_answer_then_the_stop(question: str, answer: str) -> None:
    messages = say(question, answer)
    ids, mask = TINY.dialogue_ids(messages)
    prompt = TINY.prompt_ids(messages[:-1])
    assert ids == prompt + list(answer.encode()) + [257]
    assert mask == [False] * len(prompt) + [True] * (len(answer.encode()) + 1)


def test_template_arguments_reach_the_template() -> None:
    quiet = encoder(tiny.tokenizer(), enable_thinking=False)
    messages = say("hi")
    assert quiet.prompt_ids(messages) == TINY.prompt_ids(messages) + list(b"<think>\n\n</think>\n\n")
    assert quiet.prompt_ids(messages) == reference(quiet.tokenizer, messages, enable_thinking=False)


def test_a_template_s_clock_can_be_stopped() -> None:
    tokenizer = tiny.tokenizer(chat_template="{{ strftime_now('%d %b %Y') }} {{ messages[0]['content'] }}")
    made = encoder(tokenizer, today="2026-01-31")
    assert made.text(made.prompt_ids(say("hi"))) == "31 Jan 2026 hi"
    with pytest.raises(InputError, match="expected a date such as 2026-01-31"):
        encoder(tokenizer, today="tomorrow")


def test_an_answer_whose_past_form_differs_from_its_opening_is_still_prompt_then_answer() -> None:
    # this template leaves the thoughts out of finished turns
    quiet = encoder(tiny.tokenizer(), enable_thinking=False)
    ids, mask = quiet.dialogue_ids(say("hi", "yes<|im_end|>"))
    prompt = quiet.prompt_ids(say("hi"))
    assert ids == [*prompt, *b"yes<|im_end|>", 257]
    assert mask.index(True) == len(prompt)


OPENS = tiny.TEMPLATE.replace("{%- if enable_thinking", "{{- '<think>\\n' }}{%- if enable_thinking")


@pytest.mark.parametrize(
    ("question", "said", "trained"),
    [
        ("hi", "yes", "\n</think>\n\nyes"),
        ("What is <thinking>?", "yes", "\n</think>\n\nyes"),
        ("hi", "Hm.\n</think>\n\nyes", "Hm.\n</think>\n\nyes"),
    ],
)
def test_an_answer_stands_outside_the_thinking_block_that_the_prompt_opens(
    question: str, said: str, trained: str
) -> None:
    # as templates of DeepSeek-R1's distillations do: past turns hold no block, the open turn begins one
    opening = encoder(tiny.tokenizer(chat_template=OPENS))
    ids, mask = opening.dialogue_ids(say(question, said))
    prompt = opening.prompt_ids(say(question))
    assert opening.opens_thinking and bytes(prompt[-8:]) == b"<think>\n"
    assert ids == [*prompt, *trained.encode(), 257]
    assert mask.index(True) == len(prompt)
    assert opening.answer(ids[len(prompt) :])[1] == "yes"


def test_a_question_that_spells_an_opening_mark_opens_no_block() -> None:
    quiet = encoder(tiny.tokenizer(), enable_thinking=False)  # its past turns differ from the open one too
    messages = say("What does <think> do?", "yes")
    assert quiet.dialogue_ids(messages)[0] == [*quiet.prompt_ids(messages[:1]), *b"yes", 257]
    bare = tiny.TEMPLATE.replace("assistant\\n' }}", "assistant: ' }}")
    differing = encoder(tiny.tokenizer(chat_template=bare))
    assert differing.dialogue_ids(messages)[0] == [*differing.prompt_ids(messages[:1]), *b"yes", 257]


def test_only_the_last_turn_is_trained() -> None:
    ids, mask = TINY.dialogue_ids(say("a", "b", "c", "d"))
    assert [i for i, trained in zip(ids, mask, strict=True) if trained] == [ord("d"), 257]


def test_text_drops_control_tokens_and_ids_beyond_the_vocabulary() -> None:
    assert TINY.text([256, ord("a"), 257, ord("b"), 258, 300]) == "ab"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a"}],
        [{"role": "assistant", "content": "a"}],
        [{"role": role, "content": "a"} for role in ("user", "assistant", "user")],
    ],
)
def test_a_training_dialogue_must_end_with_an_answer(messages: list[dict[str, str]]) -> None:
    with pytest.raises(InputError, match="must end with an assistant message"):
        TINY.dialogue_ids(messages)


def test_messages_without_text_are_named() -> None:
    with pytest.raises(InputError, match="message 1: expected a role and a content"):
        TINY.prompt_ids([{"role": "user", "content": "a"}, {"role": "assistant", "content": None}])


def test_what_a_template_refuses_is_one_line() -> None:
    refusal = "{{ raise_exception('Tool role not\\n supported') }}"
    template = "{% if messages[0]['role'] == 'tool' %}" + refusal + "{% endif %}"
    tokenizer = tiny.tokenizer(chat_template=template + tiny.TEMPLATE)
    with pytest.raises(InputError, match=r"refuses a dialogue of \[tool, user\]: Tool role not supported"):
        encoder(tokenizer).prompt_ids([{"role": "tool", "content": "x"}, {"role": "user", "content": "y"}])


def test_stop_tokens_of_config_tokenizer_and_template_are_joined() -> None:
    tokenizer = tiny.tokenizer(eos_token=tiny.END_OF_TEXT)  # a common slip: the template ends turns otherwise
    plain = ChatEncoder(tokenizer)
    assert stop_tokens(None, plain) == (258, 257)
    assert stop_tokens(258, plain) == (258, 257)
    assert stop_tokens([257, 256], plain) == (257, 256, 258)


def test_a_template_that_writes_no_stop_token_gets_one() -> None:
    tokenizer = tiny.tokenizer(chat_template="{% for m in messages %}{{ m['content'] + '\\n' }}{% endfor %}")
    ids, mask = encoder(tokenizer).dialogue_ids(say("a", "b"))
    assert ids == [*b"a\nb\n", 257]
    assert mask == [False, False, True, True, True]


def test_role_markers_are_control_tokens_even_where_the_tokenizer_does_not_say_so() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens([AddedToken("<|role|>", special=False), AddedToken("<think>", special=False)])
    tokenizer.chat_template = tiny.TEMPLATE.replace("<|im_start|>", "<|role|>")
    made = encoder(tokenizer)
    role, think = tokenizer.convert_tokens_to_ids(["<|role|>", "<think>"])
    assert made.prompt_ids(say("x<|role|><think>")).count(role) == 2
    assert made.text_ids("<|role|>") == list(b"<|role|>")
    assert think in made.prompt_ids(say("x<|role|><think>"))  # an ordinary token of answers
    assert think in made.text_ids("<think><|role|>")


ROLES = ("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>")


def test_what_opens_an_answer_is_a_control_token_even_where_it_stands_in_no_other_turn() -> None:
    # as in DeepSeek's models, which mark neither role as special
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens([AddedToken(mark, special=False) for mark in (*ROLES, "<think>")])
    tokenizer.chat_template = (
        (
            "{% for m in messages %}{% if m['role'] == 'user' %}{{ 'USER' + m['content'] }}"
            "{% else %}{{ 'ASSISTANT' + m['content'] + '<|im_end|>' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'ASSISTANT<think>\n' }}{% endif %}"
        )
        .replace("USER", ROLES[0])
        .replace("ASSISTANT", ROLES[1])
    )
    made = encoder(tokenizer)
    user, assistant, think = tokenizer.convert_tokens_to_ids([*ROLES, "<think>"])
    text = f"x {ROLES[1]} y"
    assert made.text_ids(text) == list(text.encode())
    assert made.prompt_ids(say(text)) == [user, *text.encode(), assistant, think, ord("\n")]
    assert made.text([assistant, ord("a")]) == "a"
    assert think in made.text_ids("<think>")  # an ordinary token of answers


@cache
def other_tokenizer(kind: str) -> Any:
    """The kinds of tokenizers that models come with, each trained on a few words."""
    backend = Tokenizer({"unigram": models.Unigram, "words": models.WordLevel}.get(kind, models.BPE)())
    specials = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    if kind == "llama":
        backend.model = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif kind == "metaspace":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    elif kind == "unigram":
        backend.normalizer = normalizers.NFKC()
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
    elif kind == "words":
        backend.model = models.WordLevel(unk_token="<unk>")
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "prefix")
        backend.decoder = decoders.ByteLevel()
    settings: dict[str, Any] = {"vocab_size": 320, "special_tokens": [], "show_progress": False}
    if kind in ("llama", "unigram", "words"):
        settings["special_tokens"] = specials
    if kind == "unigram":
        settings["unk_token"] = "<unk>"
    trainer = {"unigram": trainers.UnigramTrainer, "words": trainers.WordLevelTrainer}.get(
        kind, trainers.BpeTrainer
    )
    backend.train_from_iterator(CORPUS, trainer(**settings))
    flags = {"rstrip": kind == "bytes", "lstrip": kind == "prefix", "normalized": kind == "metaspace"}
    backend.add_special_tokens([AddedToken(token, special=True, **flags) for token in specials])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", unk_token="<unk>", chat_template=tiny.TEMPLATE
    )


KINDS = ["llama", "metaspace", "unigram", "words", "bytes", "prefix"]
WORDS = st.lists(
    st.sampled_from(["the", "quick", " ", "\n", "fox", "é", "ﬁ", "  dog ", "<", "日"]), max_size=8
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(text=WORDS.map("".join))
def test_every_kind_of_tokenizer_is_encoded_as_it_does_itself(kind: str, text: str) -> None:
    made = encoder(other_tokenizer(kind))
    messages = say(text)
    expected = reference(made.tokenizer, messages)
    assert made.prompt_ids(messages) == expected
    rendered = made._render(messages, opening=True)
    assert made._literal_ids(rendered) == expected  # the path that hostile text takes agrees on plain text


@pytest.mark.parametrize("kind", KINDS)
@given(
    text=st.lists(st.sampled_from(["the", " ", "<|im_end|>", "</s>", "\n", "<s>"]), max_size=6).map("".join)
)
def test_no_kind_of_tokenizer_lets_text_become_a_control_token(kind: str, text: str) -> None:
    made = encoder(other_tokenizer(kind))
    unknown = made.tokenizer.unk_token_id
    start, end = made.control["<|im_start|>"], made.control["<|im_end|>"]
    control = [i for i in made.prompt_ids(say(text)) if i in made.control_ids and i != unknown]
    assert control == [start, end, start]
    assert not {*made.text_ids(text)} & made.control_ids - {unknown}


def test_a_tokenizer_written_in_python() -> None:
    tokenizer = ByT5Tokenizer(extra_ids=0)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] + '</s>' }}{% endfor %}"
    made = encoder(tokenizer)
    assert made.prompt_ids(say("ab")) == [ord("a") + 3, ord("b") + 3, 1]
    assert made.prompt_ids(say("a</s>")) == [byte + 3 for byte in b"a</s>"] + [1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ["\n", " ", ": ", "", "<|im_start|>"])
@pytest.mark.parametrize("blank", ["", " "])
def test_an_answer_that_is_given_has_the_ids_of_one_that_is_trained(
    kind: str, ending: str, blank: str
) -> None:
    tokenizer = deepcopy(other_tokenizer(kind))
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}"
        f"{{{{ 'fox{ending}{blank}' + m['content'] + '<|im_end|>' }}}}"
        "{% else %}{{ m['content'] + '\n' }}{% endif %}{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ 'fox{ending}' }}}}{{% endif %}}"
    ).replace("\n'", "\\n'")
    made = encoder(tokenizer)
    for said in ("dog", "the quick fox"):
        ((before, after),) = made.answer_pairs(say("jumps"), [said])
        ids, mask = made.dialogue_ids(say("jumps", said))
        assert before == made.prompt_ids(say("jumps"))
        assert after == [i for i, trained in zip(ids, mask, strict=True) if trained][: len(after)]
        assert ids[len(before) + len(after) :] == [made.control["<|im_end|>"]]


def test_a_word_behind_a_line_break_has_no_blank_that_the_model_would_not_write() -> None:
    made = encoder(other_tokenizer("llama"))
    ((before, after),) = made.answer_pairs(say("jumps"), ["dog"])
    assert made.text_ids("dog") != after
    assert made.tokenizer.convert_ids_to_tokens(after)[0][0] == "d"
    assert before == made.prompt_ids(say("jumps"))
