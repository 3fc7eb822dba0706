"""Documents split at the end of a sentence: where, how often, and that nothing is lost."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.mixed_tokens import MixedTokens
from pipelines.corpus.sentence_splits import SHORTEST, SentenceSplits
from pipelines.corpus.token_file import Tokens, TokenStream
from tests.support import stages, tiny
from tests.support.present import present

CHAT_MODEL = tiny.chat_model()
NOTICE = "On 3 May, Ada moved. Her home is Oslo, 3.5 km off! 住在京都。很好。\nShe stays"


def splits(share: float = 1.0) -> SentenceSplits:
    return present(SentenceSplits.of(CHAT_MODEL, share))


def ids_of(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(CHAT_MODEL.text_ids(text), np.uint32)


def texts(stream: TokenStream, start: int, end: int) -> list[str]:
    return [CHAT_MODEL.text(list(ids)) for ids, _ in stream.between(start, end)]


def test_a_document_is_split_between_sentences_and_nowhere_else() -> None:
    ids, rng = ids_of(NOTICE), random.Random(0)
    found = {CHAT_MODEL.text(ids[: splits().at(ids, rng)].tolist()) for _ in range(300)}
    assert {NOTICE[: len(one)] for one in found} == found
    assert {NOTICE[len(one) :][:4] for one in found} >= {" Her", " 住在京", "She "}
    assert not any(one.endswith("3.") for one in found)


def test_words_of_sentencepiece_begin_with_its_mark_where_their_text_lost_the_space() -> None:
    names = ["<s>", "▁Ada", "▁moved", ".", "▁Her", "s"]

    class Pieces:
        def __len__(self) -> int:
            return len(names)

        def get_vocab(self) -> dict[str, int]:
            return {name: number for number, name in enumerate(names)}

        def batch_decode(self, rows: list[list[int]]) -> list[str]:
            return [names[number].removeprefix("▁") for (number,) in rows]

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [names[number] for number in ids]

    found = SentenceSplits.of(replace(CHAT_MODEL, tokenizer=Pieces()), 1.0)
    assert present(found).spaced_V.tolist() == [False, True, True, False, True, False]


def test_one_sentence_and_a_share_of_none_stay_whole() -> None:
    assert SentenceSplits.of(CHAT_MODEL, 0.0) is None
    assert splits().at(ids_of("Ada lives in Oslo, at 3.5 km."), random.Random(0)) is None
    assert splits().at(ids_of("No. Yes it is so"), random.Random(0)) is None  # a part would be too short
    drawn = [splits(0.3).at(ids_of(NOTICE), random.Random(seed)) for seed in range(1000)]
    assert sum(at is not None for at in drawn) == pytest.approx(300, abs=60)


@given(st.lists(st.text("ab. \n", max_size=40), min_size=1, max_size=8), st.integers(1, 60))
def test_every_token_is_read_once_a_pass_and_in_order(documents: list[str], step: int) -> None:
    sequences = [([*CHAT_MODEL.text_ids(text), 258], [True] * (len(text) + 1)) for text in documents]
    whole, split = (TokenStream(sequences, 30, "0", one) for one in (None, splits()))
    for at in range(0, 2 * whole.total, step):
        expected = [token for ids, _ in whole.between(at, at + step) for token in ids]
        found = [ids for ids, _ in split.between(at, at + step)]
        assert [token for ids in found for token in ids] == expected
        assert all(len(ids) >= SHORTEST or len(ids) in map(len, _pieces(whole)) for ids in found)


def _pieces(stream: TokenStream) -> list[list[int]]:
    return [list(ids) for ids, _ in stream.between(0, stream.total)]


def test_each_pass_splits_at_another_place_and_the_same_for_the_same_seed() -> None:
    sequences = [(ids_of(NOTICE).tolist(), [True] * len(ids_of(NOTICE)))]
    one, other = (TokenStream(sequences, 200, "7", splits()) for _ in range(2))
    passes = [texts(one, at * one.total, (at + 1) * one.total) for at in range(12)]
    assert all("".join(parts) == NOTICE and len(parts) == 2 for parts in passes)
    assert len({parts[0] for parts in passes}) > 2
    assert texts(other, 5 * one.total, 6 * one.total) == passes[5]


def test_the_opening_token_stands_before_both_parts() -> None:
    tokens = Tokens(ids_of(NOTICE), np.array([len(ids_of(NOTICE))]), opening=(1,))
    parts = TokenStream(tokens, 200, "7", splits()).between(0, tokens.total)
    assert len(parts) == 2 and all(next(iter(ids)) == 1 and not mask[0] for ids, mask in parts)


def test_chats_are_never_split() -> None:
    document = (ids_of(NOTICE).tolist(), [True] * len(ids_of(NOTICE)))
    changes = {"mix": {"new": 0.5, "chat": 0.5}, "row_tokens": 200}
    settings = stages.PRESET.midtrain.model_copy(update={})
    batches = MixedTokens(
        {"new": [document], "chat": [document]},
        type(settings).model_validate(settings.model_dump() | changes),
        258,
        0,
        splits=splits(),
    )
    counts = {name: len(s.between(0, s.total)) for name, s in batches.streams.items()}
    assert counts == {"new": 2, "chat": 1}
