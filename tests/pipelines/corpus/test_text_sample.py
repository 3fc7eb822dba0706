"""Samples of texts: all where they are few, else some drawn evenly, in their order."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus import text_file
from pipelines.corpus.entities import sample
from pipelines.corpus.text_sample import TextSample, sample_of_folder
from pipelines.runs.kept_texts import KEPT_TEXTS, read_evenly
from recovery.errors import InputError
from tests.support import papers


@given(st.lists(st.text("ab", max_size=9), max_size=30), st.integers(1, 60))
def test_a_sample_is_in_order_within_its_limit_and_always_the_same(texts: list[str], most: int) -> None:
    found = TextSample.of(texts, most)
    kept, numbered = found.texts(), found.numbered()
    assert list(numbered) == sorted(numbered) and all(texts[n] == text for n, text in numbered.items())
    assert kept == TextSample.of(texts, most).texts() == TextSample.of(kept, most).texts()
    assert sum(map(len, kept)) <= most or len(kept) == 1
    assert kept == texts or sum(map(len, texts)) > most


class Draws(random.Random):
    """Numbers in the place of chance."""

    def __init__(self, *numbers: float) -> None:
        super().__init__(0)
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


def drawn(most: int, **texts: float) -> TextSample:
    """A sample to which texts were added, each with its draw."""
    found = TextSample(most, Draws(*texts.values()))
    for text in texts:
        found.add(text)
    return found


def test_the_lowest_draws_are_kept_and_no_higher_one_behind_a_dropped_one() -> None:
    """Short texts that are left room for would be likelier than long ones."""
    assert drawn(8, aaaaa=0.2, bbbbb=0.5, cc=0.9).texts() == ["aaaaa"]
    assert drawn(8, aaaaa=0.5, bbbbb=0.2, cc=0.4).texts() == ["bbbbb", "cc"]
    assert drawn(8, aa=0.4, bbb=0.3, ccc=0.2, dd=0.1).texts() == ["bbb", "ccc", "dd"]


def test_a_text_longer_than_the_limit_is_kept_alone() -> None:
    assert drawn(3, aaaaa=0.2).texts() == ["aaaaa"]
    assert drawn(3, aaaaa=0.2, bbbbb=0.1, c=0.3).texts() == ["bbbbb"]


def test_samples_join_by_the_draws_that_they_have() -> None:
    whole = drawn(8, a=0.1)
    whole.join(drawn(8, bbbbb=0.2, ccccc=0.3))  # which dropped one
    whole.draws = Draws(0.4, 0.15)
    whole.add("dd")
    assert whole.texts() == ["a", "bbbbb"]  # there is room for it, but not before the one that was dropped
    whole.add("ee")
    assert whole.numbered() == {0: "a", 1: "bbbbb", 3: "ee"}


def test_each_language_of_a_folder_in_the_order_of_its_names_has_its_share() -> None:
    """Every third text was German alone."""
    texts = [f"{number:03}.{language}: a page" for number in range(300) for language in ("de", "en", "fr")]
    found = sample(texts, sum(map(len, texts)) // 3)
    assert len(found) == 300
    assert all(60 < count < 140 for count in Counter(text.split(":")[0][-2:] for text in found).values())


def test_a_folder_is_sampled_while_it_is_read_without_what_is_skipped(tmp_path: Path) -> None:
    texts = {f"{number:03}.md": f"Text {number:03} of the folder." for number in range(200)}
    torn = gzip.compress(b"words and words " * 4000)[:-20]
    root = papers.write(tmp_path, {**texts, "100.txt.gz": torn})
    assert sample_of_folder(root, 10**6) == list(texts.values())
    some = sample_of_folder(root, 1000)
    assert len(some) == 1000 // 23 and set(some) < set(texts.values())
    assert some == sorted(some) == sample_of_folder(root, 1000)
    numbers = [int(text[5:8]) for text in some]
    assert numbers[0] < 30 and numbers[-1] > 170 and 70 < sum(numbers) / len(numbers) < 130  # of all of it


def test_a_folder_without_documents_gives_no_sample(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no readable document"):
        sample_of_folder(tmp_path, 10)


def test_of_kept_texts_characters_count_and_not_their_bytes(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {f"{number}.txt": f"第{number}章讲了一条河。" for number in range(9)}
    text_file.keep(papers.write(tmp_path / "docs", files), tmp_path / "run" / KEPT_TEXTS)
    assert read_evenly([tmp_path / "run"], 9 * 9) == list(files.values())
    assert len(read_evenly([tmp_path / "run"], 3 * 9)) == 3
