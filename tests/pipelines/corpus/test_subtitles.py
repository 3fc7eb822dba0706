"""Subtitles are read as a transcript."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pipelines.corpus import documents
from pipelines.corpus.as_markdown.subtitles import as_text
from tests.support import papers

MEETING = """WEBVTT - A meeting

NOTE
made by hand

1
00:00:01.000 --> 00:00:04.000 align:start position:0%
<v Ada Horn>Welcome to <i>all</i>.

00:04.500 --> 00:08.000
<v Ada Horn>It begins on
the ninth.

00:08.000 --> 00:09.000
<v.loud Bo>Thanks.

00:12.000 --> 00:13.000
Then they left.
"""
FILM = """1
00:00:01,000 --> 00:00:04,000
It begins on
the ninth.

2
00:00:04,500 --> 00:00:08,000
{\\an8}the ninth.
- <b>Who</b> said so?
- Ada did.

3
00:00:08,500 --> 00:00:09,000
Ada: I did.
"""
JAPANESE = (
    "1\n00:00:01,000 --> 00:00:02,000\n東京は\n首都です。\n\n2\n00:00:02,000 --> 00:00:03,000\n大きい。\n"
)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (MEETING, "Ada Horn: Welcome to all. It begins on the ninth.\nBo: Thanks.\nThen they left.\n"),
        (FILM, "It begins on the ninth.\n- Who said so?\n- Ada did.\nAda: I did.\n"),
        (JAPANESE, "東京は首都です。大きい。\n"),
        ("No times here.\n\nNone.\n", "No times here.\n\nNone.\n"),
        ("WEBVTT\n", "WEBVTT\n"),
        ("00:01.000 --> 00:02.000\nR&amp;D&nbsp;say &lt;5.\n", "R&D say <5.\n"),
    ],
)
def test_what_is_said_is_read(shown: str, said: str) -> None:
    assert as_text(shown) == said


def test_files_of_subtitles_are_documents(tmp_path: Path) -> None:
    root = papers.write(tmp_path, {"a.vtt": MEETING.replace("\n", "\r\n"), "b.srt": FILM})
    assert documents.read_corpus(root).texts == (as_text(MEETING), as_text(FILM))


@pytest.mark.parametrize("piece", ["00:00:01,000 --> 00:00:02,000\na\n\n", "<v ", "\n \n", "a: ", "{\\a"])
def test_no_file_takes_long(piece: str) -> None:
    began = time.process_time()
    as_text("00:00:01,000 --> 00:00:02,000\n" + piece * (400_000 // len(piece)))
    assert time.process_time() - began < 5
