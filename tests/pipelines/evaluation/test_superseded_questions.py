"""Questions that only superseded documents answer: which they are, however passages and documents are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.corpus import superseded, text_file
from pipelines.corpus.reading.plain import TextPiece
from pipelines.evaluation.superseded_questions import _standing_in, _words, outdated
from pipelines.runs.kept_texts import KEPT_TEXTS
from tests.support.small_cycles import lines

FIRST = {
    "ada.md": "# Ada\n\nAda lives in **Oslo**.\nAda has a\ncat. She sings.",
    "bo.md": "Bo lives in Bonn.",
}
TURNS = [
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": "Hi!"},
    {"role": "user", "content": "Where is Ada?"},
]


def kept(place: Path, files: dict[str, str], replaced: str = "") -> Path:
    docs, run = place / "docs", place / "run"
    docs.mkdir(parents=True)
    run.mkdir()
    for name, text in files.items():
        (docs / name).write_text(text, encoding="utf-8")
    if replaced:
        (place / "superseded.txt").write_text(replaced, encoding="utf-8")
    superseded.keep(docs, run)
    text_file.keep(docs, run / KEPT_TEXTS)
    return run


@pytest.mark.parametrize(
    ("probe", "left_out"),
    [
        ({"answer": "Oslo", "passage": "Ada lives in Oslo. Ada has a cat."}, True),
        ({"answer": "Oslo", "passage": "Ada lives in Oslo.", "messages": TURNS}, True),
        ({"answer": "a cat", "passage": "Ada lives in Oslo. Ada has a cat."}, False),
        ({"answer": "Oslo"}, False),
        ({"answer": "Bonn", "passage": "Bo lives in Bonn."}, False),
        ({"answer": "Rome", "passage": "Cy lives in Rome."}, False),  # it stands nowhere
        ({"answer": "Bonn", "passage": ["Bo lives in Bonn.", "She sings."]}, True),  # it takes both
        ({"answer": "two", "passage": "Ada lives in Oslo. Ada has a cat."}, False),  # no sentence names it
        ({"answer": "two", "passage": "Ada lives in Oslo. She sings."}, True),
        ({"answer": "Oslo", "passage": "Ada lives in Oslo.", "suite": "retention"}, False),
    ],
)
def test_a_question_is_left_out_if_no_document_that_is_read_answers_it(
    tmp_path: Path, probe: dict[str, Any], left_out: bool
) -> None:
    second = {"ada.md": "Now Ada has a cat. Her town is Rome."}
    runs = [kept(tmp_path / "1", FIRST), kept(tmp_path / "2", second, "ada.md\n")]
    asked = {"prompt": "Where?", **probe} if "messages" not in probe else probe
    earlier = {1: str(lines(tmp_path / "probes.jsonl", [{"id": "it", **asked}]))}
    assert outdated(runs, earlier) == ({1: ["it"]} if left_out else {})
    assert outdated(runs[:1], earlier) == {}


@pytest.mark.parametrize(
    ("edition", "left_out"),
    [
        ("| Option | Default | Unit |\n|---|---|---|\n| wait | 30 | s |\n| port | 80 | |", True),
        ("| Name | Default | Unit |\n|---|---|---|\n| wait | 45 | s |\n| port | 80 | |", False),
        ("| Option | Default | Unit |\n|---|---|---|\n| wait | 45 | seconds |\n| port | 80 | |", True),
        ("| Option | Default | Unit |\n|---|---|---|\n| wait | 45.5 | s |\n| port | 80 | |", True),
    ],
)
def test_of_a_table_only_the_row_has_to_stand(tmp_path: Path, edition: str, left_out: bool) -> None:
    """Another title took the question away; a row that has changed may say another value."""
    first = "| Option | Default | Unit |\n|---|---|---|\n| wait | 45 | s |\n| port | 80 | |"
    runs = [kept(tmp_path / "1", {"a.md": first}), kept(tmp_path / "2", {"a.md": edition}, "a.md\n")]
    probe = {
        "id": "it",
        "prompt": "Option: wait; Default:",
        "answer": "45",
        "passage": ["Option | Default | Unit", "wait | 45 | s"],
    }
    earlier = {1: str(lines(tmp_path / "probes.jsonl", [probe]))}
    assert outdated(runs, earlier) == ({1: ["it"]} if left_out else {})


def test_a_sentence_is_found_across_the_pieces_of_one_document_only() -> None:
    sentence = _words("Ada lives in the town of Oslo.")
    halves = ["So Ada lives in the", "town of Oslo, they say."]
    for goes_on in (True, False):
        pieces = [TextPiece(text, goes_on=goes_on) for text in halves]
        assert _standing_in([sentence], pieces) == ({sentence} if goes_on else set())
    assert _standing_in([], [TextPiece(halves[0])]) == set()
