"""Samples of texts: all where they are few, else some drawn evenly, in their order."""

from __future__ import annotations

import gzip
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


def test_a_folder_without_documents_gives_no_sample(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no readable document"):
        sample_of_folder(tmp_path, 10)


def test_of_kept_texts_characters_count_and_not_their_bytes(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {f"{number}.txt": f"第{number}章讲了一条河。" for number in range(9)}
    text_file.keep(papers.write(tmp_path / "docs", files), tmp_path / "run" / KEPT_TEXTS)
    assert read_evenly([tmp_path / "run"], 9 * 9) == list(files.values())
    assert len(read_evenly([tmp_path / "run"], 3 * 9)) == 3
