"""Log-probabilities of given texts, against the model's own logits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import Gemma3Config

from recovery.forward import hidden_states
from recovery.models.chat_model import ChatModel
from recovery.teachers import likelihood
from recovery.teachers.likelihood import (
    _cut,
    continuation_logprobs,
    gap_ids,
    loglikelihoods,
    reader,
    split_ids,
)
from tests.support import tiny


def by_hand(chat_model: ChatModel, before: list[int], after: list[int]) -> float:
    ids = torch.tensor([[*before, *after]])
    with torch.no_grad():
        logprobs = chat_model.model(ids).logits[0].log_softmax(-1)
    return sum(float(logprobs[len(before) + i - 1, token]) for i, token in enumerate(after))


def test_what_fills_a_gap_keeps_its_tokens_where_one_would_straddle_the_border(
    tiny_chat_model: ChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Chinese, which has no space between: 是北 may be one token, and nothing is left behind it."""

    def encode(text: str) -> list[int]:
        return [ord(one) for one in text.replace("是北京", "☐")]

    monkeypatch.setattr(tiny_chat_model, "text_ids", encode)
    context, opening = [ord(one) for one in "首都是"], list(tiny_chat_model.opening_ids)
    assert split_ids(tiny_chat_model, "首都是", "北京") == ([*opening, *context], [])
    assert gap_ids(tiny_chat_model, "首都是", "北京") == ([*opening, *context], [ord("北"), ord("京")])
    for text in ("the capital is ", "", " "):
        assert gap_ids(tiny_chat_model, text, "Oslo") == split_ids(tiny_chat_model, text, "Oslo")


def test_continuations_of_different_lengths(
    tiny_chat_model: ChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [([1, 2, 3], [4]), ([5], [6, 7, 8, 9]), ([10, 11], [12, 13])]
    at_once = [total for total, _ in loglikelihoods(tiny_chat_model, pairs)]
    monkeypatch.setattr(hidden_states, "READ_TOKENS", dict.fromkeys(hidden_states.READ_TOKENS, 6))
    found = continuation_logprobs(reader(tiny_chat_model), pairs, tiny_chat_model.pad_id)
    assert found == pytest.approx([by_hand(tiny_chat_model, *pair) for pair in pairs], abs=1e-4)
    assert found == pytest.approx(at_once, abs=1e-4)


def test_greedy_decoding_yields_what_is_likeliest_at_every_token(tiny_chat_model: ChatModel) -> None:
    """Neither a continuation that begins otherwise, nor one that ends otherwise, nor one beside it."""
    before = [1, 2, 3]
    greedy: list[int] = []
    for _ in range(3):
        with torch.no_grad():
            logits = tiny_chat_model.model(torch.tensor([[*before, *greedy]])).logits[0, -1]
        greedy.append(int(logits.argmax()))
    first = (greedy[0] + 1) % 250
    with torch.no_grad():
        then = int(tiny_chat_model.model(torch.tensor([[*before, first]])).logits[0, -1].argmax())
    asked = [greedy, [first, then], [*greedy[:2], (greedy[2] + 1) % 250], greedy[:1]]
    found = loglikelihoods(tiny_chat_model, [(before, after) for after in asked])
    assert [is_greedy for _, is_greedy in found] == [True, False, False, True]


def test_the_mode_is_put_back_and_nothing_is_nothing(tiny_chat_model: ChatModel) -> None:
    tiny_chat_model.model.train()
    assert continuation_logprobs(reader(tiny_chat_model), [], 0) == []
    continuation_logprobs(reader(tiny_chat_model), [([1], [2])], 0)
    assert tiny_chat_model.model.training


def test_how_many_continuations_are_read_is_said_after_each_chunk(
    tiny_chat_model: ChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood, "CHUNK", 2)
    done: list[tuple[int, int]] = []
    pairs = [([1], [2])] * 3
    continuation_logprobs(reader(tiny_chat_model), pairs, 0, lambda read, of: done.append((read, of)))
    assert done == [(2, 3), (3, 3)]


def test_a_text_is_cut_to_the_length_that_only_the_text_part_of_a_config_names() -> None:
    vision = Gemma3Config(text_config={"max_position_embeddings": 6})
    chat = SimpleNamespace(model=SimpleNamespace(config=vision))
    assert _cut(chat, [1, 2, 3, 4, 5], [6, 7, 8]) == ([3, 4, 5], [6, 7, 8])  # type: ignore[arg-type]
    assert _cut(chat, [1, 2], [3] * 9) == ([2], [3] * 5)  # type: ignore[arg-type]


def test_a_text_is_cut_where_its_second_part_begins(tiny_chat_model: ChatModel) -> None:
    before, after = split_ids(tiny_chat_model, "Ada lives in", " Oslo")
    assert tiny_chat_model.text(before) == "Ada lives in"
    assert tiny_chat_model.text(after) == " Oslo"


@pytest.mark.parametrize(
    ("opening", "block"), [("<think>\n", b"<think>\n\n</think>\n\n"), ("[THINK]", b"[THINK]\n[/THINK]\n\n")]
)
def test_an_answer_is_read_behind_the_thinking_block_that_the_template_opens(
    opening: str, block: bytes
) -> None:
    shut = tiny.chat_model()
    opened = tiny.TEMPLATE.replace("{%- if enable_thinking", f"{{{{- {opening!r} }}}}{{%- if enable_thinking")
    chat_model = ChatModel.of(tiny.model(), tiny.tokenizer(chat_template=opened))
    for asked in ("Which?", "What is <think>?"):
        chat = [{"role": "user", "content": asked}]
        before, after = split_ids(chat_model, chat, "A")
        assert before == [*shut.prompt_ids(chat), *block] and after == [*b"A"]
        assert split_ids(shut, chat, "A") == (shut.prompt_ids(chat), [*b"A"])
    thought = f"So.{block.decode().split()[1]}A"
    assert split_ids(chat_model, chat, thought) == (chat_model.prompt_ids(chat), [*thought.encode()])
