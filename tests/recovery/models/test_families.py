"""Opening, document end and turn end as each family's tokenizer, template and configuration say."""

from __future__ import annotations

import pytest
import torch

from pipelines.corpus.reading.plain import Piece
from pipelines.corpus.token_file import TokenStream, write_tokens
from recovery.inspection.distribution_shift import texts_as_rollouts
from recovery.models.chat_encoding import spells_end_of_text
from recovery.teachers.likelihood import split_ids
from tests.support.families import FAMILIES, Family

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


def test_likelihoods_and_divergences_read_the_opening_that_training_reads(family: Family) -> None:
    chat = family.chat_model()
    opening = family.ids(family.opening)
    assert split_ids(chat, "one two", " three")[0] == [*opening, *b"one two"]
    rows = texts_as_rollouts(chat, ["one two"])
    assert rows.tokens_BT[0].tolist() == [*opening, *b"one two"]


def test_every_piece_of_a_long_document_carries_the_opening(tmp_path) -> None:
    chat = FAMILIES["gemma-2"].chat_model()
    bos, eos = FAMILIES["gemma-2"].ids(("<bos>", "<eos>"))
    tokens = write_tokens(tmp_path / "t", [Piece("x" * 10)], chat.text_ids, chat.document_end, "key")
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
