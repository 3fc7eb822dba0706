"""Earlier documents that later ones replace: which they are, and that nothing reads them any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from pipelines.config.jobs import MidtrainJob
from pipelines.config.overrides import override
from pipelines.corpus import superseded, text_file
from pipelines.corpus.manifest import MANIFEST
from pipelines.corpus.reading.superseded_list import SUPERSEDED, patterns
from pipelines.corpus.token_file import Tokens
from pipelines.distill import distill
from pipelines.machine.init_home import initialise
from pipelines.midtrain import midtrain
from pipelines.runs import kept_texts
from pipelines.runs.kept_texts import KeptTokens
from pipelines.runs.pinned_inputs import hashes, inherited, pinned
from pipelines.runs.workspace import Workspace
from pipelines.writing import gap_questions
from recovery.batches.rollouts import Dialogue
from recovery.errors import InputError
from tests.support import stages, tiny
from tests.support.stages import PRESET
from tests.support.token_sequences import sequences

CHAT_MODEL = tiny.chat_model()
MOST = 10**6  # tokens


def folder(place: Path, files: dict[str, str], replaced: str = "") -> Path:
    docs = place / "docs"
    docs.mkdir(parents=True)
    for name, text in files.items():
        (docs / name).parent.mkdir(exist_ok=True)
        (docs / name).write_text(text, encoding="utf-8")
    if replaced:
        (place / SUPERSEDED).write_text(replaced, encoding="utf-8")
    return docs


def run(place: Path, files: dict[str, str], replaced: str = "") -> Path:
    """What a midtraining keeps of a folder."""
    made = place / "run"
    made.mkdir(parents=True)
    docs = folder(place, files, replaced)
    superseded.keep(docs, made)
    text_file.keep(docs, made / kept_texts.KEPT_TEXTS)
    return made


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    first = {"ada.md": "Ada is in Oslo.", "b.jsonl": '{"text": "one"}\n{"text": "two"}\n', "c.md": "Cora."}
    return [
        run(tmp_path / "1", first),
        run(tmp_path / "2", {"ada.md": "Ada is in Rome.", "d.md": "Dora."}, "# moved\n\nada*\nb.jsonl\n"),
        run(tmp_path / "3", {"e.md": "Ada is in Bonn."}, "ada.md\nnever/there.md\n"),
    ]


def texts(tokens: Tokens) -> list[str]:
    found = [CHAT_MODEL.text(list(ids)) for ids, _ in sequences(tokens)]
    return [text.removesuffix(tiny.END_OF_TEXT) for text in found]


def test_a_list_names_documents_of_earlier_runs_and_none_of_its_own(runs: list[Path]) -> None:
    assert superseded.left_out(runs) == [{0, 1, 2}, {0}, frozenset()]
    assert superseded.left_out(runs[:2]) == [{0, 1, 2}, frozenset()]
    assert superseded.left_out(runs[:1]) == [frozenset()]


def test_a_list_that_stays_does_not_name_the_new_edition_too(tmp_path: Path) -> None:
    made = [
        run(tmp_path / "1", {"ada.md": "Ada is in Oslo."}),
        run(tmp_path / "2", {"ada.md": "Ada is in Rome."}, "ada.md\n"),
        run(tmp_path / "3", {"e.md": "Bela."}, "ada.md\n"),
        run(tmp_path / "4", {"ada.md": "Ada is in Bonn."}),
    ]
    assert superseded.left_out(made[:3]) == [{0}, frozenset(), frozenset()]
    assert superseded.left_out(made) == [{0}, frozenset(), frozenset(), frozenset()]


@pytest.mark.parametrize("line", ["prices.csv", "price*", "./prices.csv"])
def test_a_list_that_stays_names_each_month_s_table(tmp_path: Path, line: str) -> None:
    made = [
        run(tmp_path / str(n), {"prices.csv": f"tea\n{n}\n", f"{n}.md": str(n)}, n * f"{line}\n")
        for n in range(3)
    ]
    assert superseded.left_out(made) == [{1}, {1}, frozenset()]


def test_a_pattern_that_stays_spares_what_no_later_folder_brings_again(tmp_path: Path) -> None:
    line = "people/*.md\n"
    made = [
        run(tmp_path / "1", {"people/ada.md": "Ada is in Oslo."}),
        run(tmp_path / "2", {"people/ada.md": "Ada is in Rome.", "people/cora.md": "Cora is here."}, line),
        run(tmp_path / "3", {"people/bo.md": "Bo is here.", "people/cora.md": "Cora is there."}, line),
    ]
    assert superseded.left_out(made) == [{0}, {1}, frozenset()]


def test_a_line_that_comes_back_names_what_came_with_it_before(tmp_path: Path) -> None:
    made = [
        run(tmp_path / "1", {"b.md": "Bela."}),
        run(tmp_path / "2", {"ada.md": "Ada is in Rome."}, "ada.md\n"),
        run(tmp_path / "3", {"c.md": "Cora."}),
        run(tmp_path / "4", {"d.md": "Dora."}, "ada.md\n"),
    ]
    assert superseded.left_out(made[:3]) == [frozenset()] * 3
    assert superseded.left_out(made) == [frozenset(), {0}, frozenset(), frozenset()]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("田中\u3000太郎.md", "田中\u3000太郎.md"),
        ("田中\u3000太郎.md", "田中\u3000*.md"),
        ("a\u00a0b.md", "a\u00a0b.md"),
        ("a\u00a0b.md", r"a\xa0b.md"),
        ("a\u202fb [1].md", "a\u202fb [1].md"),
        ("Zoe\u0308.md", "Zo\u00eb.md"),
        ("Zo\u00eb.md", "Zoe\u0308*"),
    ],
)
def test_a_line_names_a_file_however_its_accents_and_spaces_are_written(
    tmp_path: Path, name: str, line: str
) -> None:
    first = run(tmp_path / "1", {name: "Bread costs two.", "milk.md": "Milk costs one."})
    second = run(tmp_path / "2", {"b.md": "Bread costs three."}, f"{line}\n")
    assert kept_texts.read_evenly([first], current=second) == ["Milk costs one."]
    assert superseded.unmatched([first, second]) == []


def test_the_files_that_are_left_out_are_named_up_to_some(runs: list[Path]) -> None:
    assert superseded.files(runs, superseded.left_out(runs)) == ["ada.md", "b.jsonl"]
    assert superseded.in_words(["ada.md", "b.jsonl"]) == "ada.md, b.jsonl"
    names = [f"{number}.md" for number in range(9)]
    assert superseded.in_words(names) == "0.md, 1.md, 2.md, 3.md, 4.md and 4 more"


def test_lines_that_name_nothing_are_told(runs: list[Path]) -> None:
    assert superseded.unmatched(runs) == ["never/there.md"]
    assert superseded.unmatched(runs[:2]) == []
    assert superseded.unmatched(runs[:1]) == []


def test_only_lines_with_wildcards_are_tried_with_every_file(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of lines would be tried with each of many thousand files."""
    tried: list[str] = []

    def recorded(path: str, pattern: str) -> bool:
        tried.append(pattern)
        return fnmatchcase(path, pattern)

    monkeypatch.setattr(superseded, "fnmatchcase", recorded)
    lines = "ada.md\nd.md\nd*.md\nnever/there.md\nno/such?.md\n"
    last = run(tmp_path / "4", {"f.md": "Ada is in Graz."}, lines)
    assert superseded.left_out([*runs, last]) == [{0, 1, 2}, {0, 1}, frozenset(), frozenset()]
    assert superseded.unmatched([*runs, last]) == ["never/there.md", "no/such?.md"]
    assert set(tried) == {"ada*", "d*.md", "no/such?.md"}


def test_no_text_and_no_token_of_them_is_read(runs: list[Path], tmp_path: Path) -> None:
    now = ["Cora.", "Dora.", "Ada is in Bonn."]
    assert kept_texts.read_evenly(runs) == now
    kept = KeptTokens.of(runs, CHAT_MODEL)
    assert texts(kept.joined(tmp_path / "all", MOST, 0, longest=MOST)) == now
    for seed in range(9):
        some = texts(kept.joined(tmp_path / "some", 9, seed, longest=MOST))
        assert 0 < len(some) < 3 and set(some) < set(now)


def test_a_run_whose_manifest_is_lost_brings_nothing_back(runs: list[Path]) -> None:
    """What it says of each document's file is needed to leave any out."""
    (runs[0] / MANIFEST).unlink()
    with pytest.raises(InputError, match=r"1/run/manifest\.jsonl: the manifest of kept documents") as refused:
        kept_texts.read_evenly(runs)
    assert "\n" not in str(refused.value)


def test_the_current_run_supersedes_without_being_read_itself(runs: list[Path], tmp_path: Path) -> None:
    kept = KeptTokens.of(runs[:2], CHAT_MODEL, current=runs[2])
    assert texts(kept.joined(tmp_path / "all", MOST, 0, longest=MOST)) == ["Cora.", "Dora."]
    assert len(KeptTokens.of(runs[:2], CHAT_MODEL).joined(tmp_path / "other", MOST, 0, longest=MOST)) == 3


def test_a_line_that_is_a_path_with_brackets_names_that_file(tmp_path: Path) -> None:
    """As a pattern alone, `[2024]` would be one of four digits."""
    first = run(tmp_path / "1", {"prices [2024].md": "Bread costs two.", "milk.md": "Milk costs one."})
    second = run(tmp_path / "2", {"prices [2025].md": "Bread costs three."}, "prices [2024].md\n")
    assert kept_texts.read_evenly([first], current=second) == ["Milk costs one."]


def test_where_everything_is_superseded_nothing_is_left(tmp_path: Path) -> None:
    one = run(tmp_path / "1", {"a.md": "Ada."})
    other = run(tmp_path / "2", {"b.md": "Bela."}, "*\n")
    assert (
        len(KeptTokens.of([one], CHAT_MODEL, current=other).joined(tmp_path / "all", MOST, 0, longest=MOST))
        == 0
    )
    assert texts(
        KeptTokens.of([one, other], CHAT_MODEL).joined(tmp_path / "both", MOST, 0, longest=MOST)
    ) == ["Bela."]


def test_a_list_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SUPERSEDED
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"superseded\.txt"):
        patterns(path)


def test_midtraining_and_recovery_leave_them_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages.write_prompts(tmp_path, 20)
    read: list[list[str]] = []
    rows: list[int] = []
    join = KeptTokens.joined

    def recorded(self: KeptTokens, target: Path, most: int, seed: int, *, longest: int) -> Tokens:
        found = join(self, target, most, seed, longest=longest)
        read.append(texts(found))
        rows.append(longest)
        return found

    asked: list[list[str]] = []
    make = gap_questions.chats

    def questions(texts: Sequence[str], *others: Any, **options: Any) -> Iterator[Dialogue]:
        asked.append(list(texts))
        return make(texts, *others, **options)

    monkeypatch.setattr(KeptTokens, "joined", recorded)
    monkeypatch.setattr(gap_questions, "chats", questions)
    worlds = [
        folder(
            tmp_path / "1", {"ada.md": "Ada is in Oslo, so they say.", "c.md": "Cora has a cat, they say."}
        ),
        folder(tmp_path / "2", {"d.md": "Ada is in Rome by now, they say."}, "ada.md\ndocs/c.md\n"),
    ]
    settings = override(PRESET.midtrain, {"steps": 2, "tokens_per_step": 64, "row_tokens": 64})
    with Workspace.open(tmp_path / "home") as ws:
        said: list[str] = []
        monkeypatch.setattr(ws.progress, "say", said.append)
        initialise(ws, model=str(tiny.save(tmp_path / "model")))
        student = "base"
        for docs in worlds:
            job = MidtrainJob(docs=str(docs), student=student, settings=settings)
            student = midtrain(ws, job)["checkpoint"]
        assert read == [["Cora has a cat, they say."]]
        assert asked[-2:] == [["Ada is in Rome by now, they say."], ["Cora has a cat, they say."]]
        assert "  superseded   1 earlier documents are left out of replay: ada.md" in said
        assert "  superseded   no earlier document is named docs/c.md" in said
        short = {"steps": 1, "prompts_per_step": 2, "max_new_tokens": 48, "preflight": False}
        recovery = override(PRESET.distill, short)
        distill(ws, stages.distillation(tmp_path, student, recovery))
    assert read[1:] == [["Cora has a cat, they say."]]  # beside the newest documents
    assert rows == [64, 48]  # those of midtraining, and of an answer
    assert asked[-2:] == [["Ada is in Rome by now, they say."], ["Cora has a cat, they say."]]


def test_a_changed_list_is_a_changed_input(tmp_path: Path) -> None:
    docs = folder(tmp_path / "1", {"a.md": "Ada."})
    job = MidtrainJob(docs=str(docs), student="base", settings=PRESET.midtrain)
    assert "superseded" not in hashes(job.sources())
    (tmp_path / "1" / SUPERSEDED).write_text("b.md\n")
    assert job.sources()["superseded"] == str((tmp_path / "1" / SUPERSEDED).resolve())
    assert "superseded" in hashes(job.sources())


@pytest.mark.parametrize("there", [False, True])
def test_a_list_that_appears_or_vanishes_is_a_changed_input(tmp_path: Path, there: bool) -> None:
    docs = folder(tmp_path / "1", {"a.md": "Ada."}, "b.md\n" if there else "")
    path = tmp_path / "1" / SUPERSEDED
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")))
        job = MidtrainJob(docs=str(docs), student="base", settings=PRESET.midtrain)
        begun = pinned(ws, job)
        assert pinned(ws, begun) == begun
        if there:
            path.unlink()
        else:
            path.write_text("b.md\n")
        said = (
            "was there when the run began: restore" if there else "was not there when the run began: remove"
        )
        for resumed in (begun, inherited(job, begun)):
            with pytest.raises(InputError, match=said):
                pinned(ws, resumed)
