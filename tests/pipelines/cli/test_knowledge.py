"""From a folder to the weights through the command line: augment, mix, chat, forecast, guard, lost."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from evals.probes import parse_probes
from pipelines.cli.commands import cli
from pipelines.runs.workspace import Workspace
from pipelines.unreachable_facts import _candidates, _kinds, _ranks, _ways, lost
from pipelines.writing.protocol import CUT_OFF, Text
from recovery.models.chat_model import ChatModel
from recovery.teachers.likelihood import Pair
from tests.support import tiny
from tests.support.commands import Recover, make_small, make_world

PAGES = Path(__file__).parents[3]  # of this repository: documents that were not written for a test


def run(*words: object) -> None:
    cli.main(["-q", *map(str, words)], standalone_mode=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a tiny model, and a world beside it."""
    root = tmp_path_factory.mktemp("knowledge")
    make_world(root / "world")
    run("--home", root / "home", "init", "--model", tiny.save(root / "model"), "--preset", "microworld")
    settings = root / "home" / "recover.yaml"
    make_small(settings)  # but long enough for a random model to end an answer
    settings.write_text(settings.read_text().replace("max_new_tokens: 6", "max_new_tokens: 600", 1))
    return root


def answer(recover: Recover, home: Path, *words: object) -> Any:
    said = recover("--json", "--home", home, *words)
    assert said.code == 0, said.err
    return said.json


def test_chat_is_answered_by_the_clean_model_and_the_mix_is_shown(recover: Recover, place: Path) -> None:
    home, docs = place / "home", place / "world" / "docs"
    augmented = place / "augmented"
    augmented.mkdir()
    asked = {"kind": "qa", "text": None, "prompt": "Where does Ada live?", "response": "Oslo"}
    rows = [asked, {"kind": "x", "text": "So"}]
    (augmented / "augmented.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = recover(
        "--home",
        home,
        "midtrain",
        "--docs",
        docs,
        "--mix",
        "new=0.5,chat=0.3,augmented=0.2",
        "--augment",
        augmented,
    )
    assert said.code == 0, said.err
    (run_row,) = answer(recover, home, "ls", "runs")
    assert set(run_row["result"]["mix"]) == {"new", "chat", "augmented"}
    assert "chat 30%" in said.err and "augmented 20%" in said.err
    assert "forward KL to the clean model" in said.err
    kept = [json.loads(line) for line in (home / "runs" / run_row["id"] / "chat.jsonl").open()]
    assert all(0 < start < len(ids) for ids, start in kept)
    names = {row["name"] for row in answer(recover, home, "query", "SELECT DISTINCT name FROM metrics")}
    assert "clean_forward_kl" in names


def test_lost_sorts_the_failed_questions(recover: Recover, place: Path) -> None:
    found = answer(recover, place / "home", "lost", "base", "--probes", place / "world" / "probes.jsonl")
    assert found["asked"] == 1 and found["failed"] == found["unreachable"] + found["lost"]
    assert len(found["items"]) == found["failed"] and found["by_kind"][0]["kind"] == "direct"


def test_candidates_stand_behind_the_thinking_block_that_a_template_opens() -> None:
    opened = tiny.TEMPLATE.replace("{%- if enable_thinking", "{{- '<think>\\n' }}{%- if enable_thinking")
    chat_model = ChatModel.of(tiny.model(), tiny.tokenizer(chat_template=opened))
    (probe,) = parse_probes([{"prompt": "Where?", "answer": "Oslo"}], "here")
    (in_chat,) = _ways(chat_model, probe, None, ["Oslo", "Rome"])
    assert [bytes(before[-19:]) for before, _ in in_chat] == [b"<think>\n\n</think>\n\n"] * 2
    assert [bytes(after) for _, after in in_chat] == [b"Oslo", b"Rome"]


PLACES = {
    "ada": ("Oslo", ["Paris", "Lyon"]),
    "bo": ("Rome", ["Oslo"]),
    "cy": ("Paris", ["Rome"]),
    "di": ("Bonn", ["Kiel"]),
}
MOVED = parse_probes(
    (
        {"id": name, "prompt": f"Where is {name}?", "answer": place, "was": was, "fact": f"{name}/city"}
        for name, (place, was) in PLACES.items()
    ),
    "here",
)


def test_the_old_answers_of_a_changed_fact_are_candidates() -> None:
    answer, *others = _candidates(MOVED[0], _kinds(MOVED))
    assert (answer, others[:2], sorted(others[2:])) == ("Oslo", ["Paris", "Lyon"], ["Bonn", "Rome"])


def test_other_spellings_of_an_answer_are_no_candidates_beside_it() -> None:
    places = ("Oslo", "oslo", "Oslo, Norway", "Rome")
    probes = parse_probes(
        ({"prompt": f"Where is {n}?", "answer": place} for n, place in enumerate(places)), "here"
    )
    assert _candidates(probes[0], _kinds(probes)) == ["Oslo", "Rome"]


@pytest.mark.parametrize(
    ("answer", "was", "others", "kept"),
    [
        ("Oslo, Norway", [], ["Oslo", "Rome"], ["Rome"]),
        ("12", [], ["1", "120", "2", "21"], ["2", "21"]),
        ("100", ["10", "90", "1000"], ["1", "7"], ["90", "7"]),
    ],
)
def test_texts_of_which_one_begins_the_other_are_not_ranked_against_each_other(
    answer: str, was: list[str], others: list[str], kept: list[str]
) -> None:
    """The beginning is at least as likely, whatever the model knows."""
    rows = [{"prompt": f"Which {n}?", "answer": text} for n, text in enumerate([answer, *others])]
    probes = parse_probes([rows[0] | {"was": was}, *rows[1:]], "here")
    first, *candidates = _candidates(probes[0], _kinds(probes))
    assert first == answer and sorted(candidates) == sorted(kept)


def test_a_changed_fact_whose_old_answer_is_likelier_is_not_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the answers to other questions were candidates; and while they were read nothing was shown."""
    likely = {"Lyon": -1.0, "Oslo": -2.0}

    def scored(_: object, pairs: Sequence[Pair], __: int, show: Callable[[int, int], None]) -> list[float]:
        show(len(pairs), len(pairs))
        return [likely.get(bytes(answer).decode(), -9.0) for _, answer in pairs]

    monkeypatch.setattr("recovery.teachers.likelihood.continuation_logprobs", scored)
    shown: list[tuple[int, int]] = []

    def step(done: int, of: int, **_: object) -> None:
        shown.append((done, of))

    ((rank, _),) = _ranks(tiny.chat_model(), MOVED[:1], MOVED, step)
    assert rank == 1 and shown == [(5, 5)]


def test_lost_refuses_a_suite_that_has_no_question(recover: Recover, place: Path) -> None:
    probes = place / "world" / "probes.jsonl"
    said = recover("--home", place / "home", "lost", "base", "--probes", probes, "--suite", "updates")
    assert said.code == 2 and "asks nothing of updates" in said.err


def test_lost_sorts_the_shipped_general_questions_where_no_file_has_any(
    recover: Recover, place: Path, tmp_path: Path
) -> None:
    run("--home", tmp_path, "init", "--model", place / "model", "--preset", "microworld")
    with Workspace.open(tmp_path) as ws:
        found = lost(ws, "base", "retention", {"eval.limit": 3, "eval.probe_max_new_tokens": 4})
    assert found["asked"] == 3 and len(found["items"]) == found["failed"]
    said = recover("--home", tmp_path, "lost", "base", "--suite", "updates")
    assert said.code == 2 and "no probes lie beside the documents of base" in said.err


def test_lost_asks_the_clean_model_about_what_was_midtrained_last(
    recover: Recover, place: Path, tmp_path: Path
) -> None:
    """As after a rejected first cycle, whose `current` is the clean model: no probes were found."""
    run("--home", tmp_path, "init", "--model", place / "model", "--preset", "microworld")
    make_small(tmp_path / "recover.yaml")
    docs = place / "world" / "docs"
    run("--home", tmp_path, "midtrain", "--docs", docs, "--mix", "new=1")
    said = recover("--home", tmp_path, "--json", "lost")
    assert said.code == 0 and said.json["asked"] == 1
    assert f"about        {docs}, which" in said.err


def test_lost_asks_anew_where_only_several_samples_are_recorded(recover: Recover, place: Path) -> None:
    """It said "fails 0 of 0 questions" where recover.yaml sets eval.samples."""
    settings, probes = place / "home" / "recover.yaml", place / "world" / "other.jsonl"
    asked = {"id": "bo", "suite": "knowledge", "kind": "direct", "prompt": "Where does Bo live?"}
    probes.write_text(json.dumps(asked | {"answer": "Rome"}))
    text = settings.read_text()
    settings.write_text(text.replace("\neval:\n", "\neval:\n  samples: 2\n", 1))
    found = answer(recover, place / "home", "lost", "base", "--probes", probes)
    settings.write_text(text)
    assert found["asked"] == 1


def test_lost_judges_by_the_answers_that_the_probes_have_now(recover: Recover, place: Path) -> None:
    """What an earlier file of the same questions took as right counted on."""
    home, probes = place / "home", place / "world" / "corrected.jsonl"
    asked = {"id": "cy", "suite": "knowledge", "kind": "direct", "prompt": "Where does Cy live?"}
    judged = "SELECT detail FROM items WHERE key = 'cy' ORDER BY score_id"
    answers = []
    for right in ("Rome", "Bonn", "Bonn"):
        probes.write_text(json.dumps(asked | {"answer": right}))
        assert answer(recover, home, "lost", "base", "--probes", probes)["asked"] == 1
        rows = answer(recover, home, "query", judged)
        answers.append([json.loads(row["detail"])["answers"] for row in rows])
    assert answers == [[["Rome"]], [["Rome"], ["Bonn"]], [["Rome"], ["Bonn"]]]


def test_probes_are_made_and_can_be_asked(recover: Recover, place: Path) -> None:
    home, out = place / "home", place / "made.jsonl"
    docs = place / "more"
    docs.mkdir()
    facts = [("Ada Horn", "harp"), ("Bo Adler", "lute"), ("Cy Baum", "drum"), ("Di Crane", "tuba")]
    for name, thing in facts:
        (docs / f"{name[:2]}.md").write_text(f"Here {name} plays the {thing}. There {name} stays at home.")
    found = answer(recover, home, "probes", "--docs", docs, "--out", out)
    assert found["by_kind"]["cloze"] >= 3 and found["made_from"] == "gaps, no writer"
    scores = answer(recover, home, "eval", "base", "--suite", "knowledge", "--probes", out)["scores"]
    assert scores["knowledge"]["n"] == 2 * found["by_kind"]["cloze"]
    assert "cloze" in scores["knowledge"]["apart"]
    few = f"knowledge: with {found['facts']['new']} independent questions a model that lost nothing passes "
    assert found["power"].startswith(few) and "725 questions give 80%" in found["power"]
    assert found["power"].endswith(": add documents, or questions of your own in qa.jsonl")
    assert not found["tables"] and not found["refused"]
    rows = "\n".join(f"| {name} | {thing} |" for name, thing in facts)
    table = "| Boat | Length |\n|---|---|\n| Aurora | 12 |\n| Beluga | 34 |\n"
    (docs / "tables.md").write_text(f"{rows}\n\n" * 10 + f"x   y   z\n\n{table}", encoding="utf-8")
    found = answer(recover, home, "probes", "--docs", docs, "--out", out)
    assert found["refused"] == {"rows of tables that cannot be asked about": 41}
    assert "Boat | Length" in out.read_text(encoding="utf-8")
    assert found["tables"].startswith(
        "more rows of tables that cannot be asked about (41) than facts that can"
    )


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ([{"question": "Who?", "answer": "?!"}], "qa.jsonl, probe 1: the answer '?!' has no words"),
        ([{"id": "a", "question": q, "answer": "x"} for q in "WV"], "qa.jsonl: id 'a' occurs twice"),
        ([{"question": "Who?", "answer": "Ada", "aliases": 5}], "qa.jsonl, probe 1: `aliases`"),
    ],
)
def test_questions_that_cannot_be_asked_replace_no_probes(
    recover: Recover, place: Path, tmp_path: Path, own: list[dict[str, Any]], message: str
) -> None:
    """The new file was written first and checked afterwards."""
    questions, out = tmp_path / "qa.jsonl", tmp_path / "probes.jsonl"
    questions.write_text("\n".join(map(json.dumps, own)))
    out.write_text("earlier probes")
    docs = place / "world" / "docs"
    said = recover("--home", place / "home", "probes", "--docs", docs, "--out", out, "--qa", questions)
    assert said.code == 2 and message in said.error
    assert out.read_text() == "earlier probes"


def test_own_questions_and_a_writer_are_not_both_taken(recover: Recover, tmp_path: Path, place: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "ada.md").write_text("Ada lives in Oslo.")
    (tmp_path / "qa.jsonl").write_text('{"question": "Where does Ada live?", "answer": "Oslo"}')
    asked = ("--home", place / "home", "probes", "--docs", docs, "--out", tmp_path / "probes.jsonl")
    for words in (("--writer", "gaps"), ("--count", "5"), ("--seed", "0")):
        said = recover(*asked, *words)
        assert said.code == 2 and f"qa.jsonl takes the place of {words[0]}" in said.error
    assert not (tmp_path / "probes.jsonl").exists()
    assert recover(*asked).code == 0


@pytest.mark.slow
def test_as_many_facts_are_asked_about_as_a_verdict_needs(recover: Recover, place: Path) -> None:
    """By default there were 100, with which an equally good model passes once in five times."""
    docs, home, out = PAGES / "docs", place / "home", place / "many.jsonl"
    found = answer(recover, home, "probes", "--docs", docs, "--out", out)
    assert 300 < sum(found["facts"].values()) <= 725
    found = answer(recover, home, "probes", "--docs", docs, "--out", out, "--count", "7")
    assert sum(found["facts"].values()) == 7


def test_the_writers_that_need_no_model_are_taken_or_refused_as_help_says(
    recover: Recover, place: Path
) -> None:
    """Help offered template, which ended as "checkpoint 'template' is not recorded"."""
    docs = place / "gaps"
    docs.mkdir()
    for name, thing in [
        ("Ada Horn", "harp"),
        ("Bo Adler", "lute"),
        ("Cy Baum", "drum"),
        ("Di Crane", "tuba"),
    ]:
        (docs / f"{name[:2]}.md").write_text(f"Here {name} plays the {thing}. There {name} stays at home.")
    words = ("probes", "--docs", docs, "--out", place / "gaps.jsonl", "--writer")
    found = answer(recover, place / "home", *words, "gaps")
    assert found["made_from"] == "gaps, no writer"
    assert found["by_kind"]["direct"] == found["facts"]["new"] < found["by_fact_status"]["new"]
    shown = recover("--home", place / "home", *words, "gaps").out
    assert f"facts: {found['facts']['new']} new, 0 changed, 0 stable" in shown
    said = recover("--home", place / "home", *words, "template")
    assert said.code == 2 and "--writer template writes for `recover augment` only" in said.error
    assert "|template" in recover("augment", "--help").out
    assert "template" not in recover("probes", "--help").out


class Thinking:
    """A writer whose thinking takes all of its tokens."""

    name, at_once, together = "thinking", 2, True
    given: list[int] = []

    def __init__(self, *_: object, max_new_tokens: int, temperature: float) -> None:
        self.given.append(max_new_tokens)

    def write(self, requests: Sequence[str]) -> list[tuple[int, Text]]:
        return [(place, Text("", CUT_OFF)) for place, _ in enumerate(requests)]


def test_a_writer_that_thinks_first_may_be_given_more_tokens(
    recover: Recover, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.writing.commands.LocalWriter", Thinking)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "ada.md").write_text("Ada Horn plays the harp. Ada Horn lives in Oslo.")
    asked = ("probes", "--docs", tmp_path / "docs", "--out", tmp_path / "p.jsonl", "--writer", "base")
    for words in ((), ("--max-new-tokens", "700")):
        said = recover("-q", "--home", place / "home", *asked, *words)
        assert said.code == 2 and "only thinking or nothing: give a larger --max-new-tokens" in said.err
    assert Thinking.given == [128, 700]


def test_augment_says_which_kinds_it_no_longer_holds(recover: Recover, place: Path, tmp_path: Path) -> None:
    """A second command with other kinds took the first one's place in silence."""
    docs, out = tmp_path / "docs", tmp_path / "aug"
    docs.mkdir()
    out.mkdir()
    (docs / "ada.md").write_text("Ada Horn plays the harp in Oslo.")
    rows = [{"kind": kind, "text": f"Ada {n}"} for n, kind in enumerate(("summary", "summary", "qa"))]
    (out / "augmented.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("augment", "--docs", docs, "--out", out, "--writer", "gaps")
    said = recover("-q", "--home", place / "home", *words).out
    assert "no longer in it: 2 summary (one command writes all kinds)" in said
    assert "no longer" not in recover("-q", "--home", place / "home", *words).out


WRITING = [("augment", "deep/aug"), ("probes", "deep/p.jsonl")]


@pytest.mark.parametrize(("command", "out"), [*WRITING, ("augment", ".")])
def test_a_place_to_write_where_a_file_stands_is_refused_before_documents_are_read(
    recover: Recover, place: Path, tmp_path: Path, command: str, out: str
) -> None:
    """A writer's first texts, paid ones perhaps, were lost."""
    (tmp_path / "docs").mkdir()
    taken = tmp_path / "taken"
    taken.write_text("")
    words = (command, "--docs", tmp_path / "docs", "--writer", "base", "--out")
    said = recover("-q", "--home", place / "home", *words, taken / out)
    assert said.code == 2 and f"--out: {taken} is a file" in said.error
    said = recover("-q", "--home", place / "home", *words, tmp_path / out)
    assert said.code == 2 and "no readable document" in said.error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docs", "taken"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize(("command", "out"), WRITING)
def test_a_folder_that_may_not_be_written_to_is_refused_before_documents_are_read(
    recover: Recover, place: Path, tmp_path: Path, command: str, out: str
) -> None:
    for name in ("docs", "closed"):
        (tmp_path / name).mkdir()
    closed = tmp_path / "closed"
    closed.chmod(0o500)
    words = (command, "--docs", tmp_path / "docs", "--writer", "base", "--out", closed / out)
    said = recover("-q", "--home", place / "home", *words)
    assert said.code == 2 and f"--out: {closed} cannot be written to" in said.error


@pytest.mark.parametrize(
    "words", [("probes", "--out", "p.jsonl"), ("augment", "--out", "a", "--writer", "gaps"), ("midtrain",)]
)
def test_documents_are_read_within_the_configured_limits(
    recover: Recover, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Only a midtraining that had begun took them from recover.yaml."""
    monkeypatch.chdir(tmp_path)
    home, docs = tmp_path / "home", tmp_path / "docs"
    docs.mkdir()
    (docs / "a.html").write_text(f"<p>Ada Horn plays the harp.</p><!--{'x' * 2**20}-->")
    (docs / "vendor").mkdir()
    (docs / "vendor" / "b.md").write_text("Bo Adler plays the lute.")
    run("--home", home, "init", "--model", place / "model", "--preset", "microworld")
    settings = yaml.safe_load((home / "recover.yaml").read_text())
    settings["midtrain"]["reading"] = {"largest_file_mib": 1, "leave_out": ["vendor"]}
    (home / "recover.yaml").write_text(yaml.safe_dump(settings))
    said = recover("-q", "--home", home, words[0], "--docs", docs, *words[1:])
    reasons = "larger than 1 MiB (a.html), left out, as midtrain.reading.leave_out says (vendor)"
    assert said.code == 2 and f"holds no readable document (2 skipped: {reasons})" in said.error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--writer", "https://host/v1"), "--model"),
        (("--kinds", "poem"), "poem"),
        (("--writer", "template"), "no written text is usable"),
    ],
)
def test_wrong_options_of_augment_are_refused_in_one_line(
    recover: Recover, place: Path, words: tuple[str, str], message: str
) -> None:
    docs, out = place / "world" / "docs", place / "never"
    said = recover("-q", "--home", place / "home", "augment", "--docs", docs, "--out", out, *words)
    assert said.code == 2 and message in said.error
