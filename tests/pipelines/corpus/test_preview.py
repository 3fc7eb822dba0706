"""`recover corpus`: what training would see, before it is trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.cli.commands import cli
from pipelines.config.fitted import fit_to_corpus
from pipelines.config.sections.midtrain import MidtrainConfig, Mix
from pipelines.config.sections.training import OptimizerConfig
from pipelines.corpus import preview
from pipelines.corpus.reading import plain
from recovery.errors import InputError
from tests.support import papers, tiny

TEXT = "Ada lives in Oslo. "


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    files: dict[str, bytes | str] = {
        "a.md": TEXT * 4,
        "b.jsonl": '{"text": "one"}\n{"text": "two"}\n',
        "c.txt": TEXT * 4 + "\n",
        "d.bin": b"\0",
        "e.txt": b"a\0b",
    }
    return papers.write(tmp_path / "docs", files)


def settings(**changes: object) -> MidtrainConfig:
    made = {"tokens_per_step": 16, "optimizer": OptimizerConfig(learning_rate=1e-3), "epochs": 2.0}
    return MidtrainConfig(**{**made, "mix": Mix(new=0.5, chat=0.5), **changes})  # type: ignore[arg-type]


def said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    cli.main([*map(str, words)], standalone_mode=False)
    return str(capsys.readouterr().out)


def test_counts_by_kind_add_up(docs: Path) -> None:
    made = preview.preview(docs, encode=lambda text: list(text.encode()))
    *kinds, total = preview.by_kind(made)
    assert [row["kind"] for row in kinds] == ["jsonl", "other", "text"]
    assert total == {
        "kind": "total",
        "files": 5,
        "read": 3,
        "skipped": 2,
        "documents": 4,
        "characters": 76 + 77 + 6,
        "tokens": 76 + 77 + 6 + 4,
        "markup": 0,
    }
    assert all(sum(row[name] for row in kinds) == total[name] for name in total if name != "kind")


def test_a_long_document_is_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "PIECE", 20)
    (tmp_path / "a.txt").write_text("All of this is one text.\n\n" * 9)
    assert [row["text"][:11] for row in preview.preview(tmp_path).first] == ["All of this"]


def test_the_steps_are_those_that_training_takes(docs: Path) -> None:
    made = preview.preview(docs, encode=lambda text: list(text.encode()))
    fitted = fit_to_corpus(settings(row_tokens=16), made.tokens, 0.5)
    plan = preview.training(made, fitted)
    assert plan["steps"] == 2 * 163 // 8 == 40  # a document is never seen more often than `epochs` says
    assert plan["passes"] == pytest.approx(40 * 8 / 163)
    fixed = preview.training(made, settings(epochs=None, steps=10))
    assert (fixed["steps"], fixed["passes"]) == (10, pytest.approx(80 / 163))


def test_the_command_shows_it_all_and_makes_no_home(
    docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    text = said(capsys, "-q", "--home", home, "corpus", docs)
    for part in ("total", "kind .bin is not read", "binary data, not text", "near-duplicates", "begins"):
        assert part in text
    found = json.loads(said(capsys, "-q", "--home", home, "corpus", docs, "--json"))
    assert (found["read"], found["skipped"], found["training"]) == (3, 2, None)
    assert found["tokens_are"] == "estimated at 4 characters each"
    assert found["near_duplicates"] == [{"path": "c.txt", "like": "a.md", "similarity": 1.0}]
    assert found["first"][1] == {"path": "b.jsonl", "text": "one"}
    assert json.loads(said(capsys, "-q", "--home", home, "corpus", "--docs", docs, "--json")) == found
    assert [row["path"] for row in found["manifest"]] == ["a.md", "b.jsonl", "c.txt", "d.bin", "e.txt"]
    assert not home.exists()


def test_markup_that_is_left_out_is_counted(
    docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "left out" not in said(capsys, "-q", "--home", tmp_path / "home", "corpus", docs)
    (docs / "page.md").write_text("Text. <!-- a remark -->\n")
    text = said(capsys, "-q", "--home", tmp_path / "home", "corpus", docs)
    assert "left out of text files: 18 characters of markup" in text


def test_where_the_text_comes_from_and_what_is_remarked_of_it(
    docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "folders\n" not in said(capsys, "-q", "--home", tmp_path / "home", "corpus", docs)
    papers.write(docs, {"part.pdf": papers.pdf("Cover.", ""), "wiki/bo/b.md": "Bo plays the lute. " * 40})
    text = said(capsys, "-q", "--home", tmp_path / "home", "corpus", docs)
    rows = text.partition("\nfolders\n")[2].splitlines()[1:3]
    assert [row.split() for row in rows] == [["wiki", "1", "760"], [".", "4", "167"]]
    assert "1 of 2 pages hold no text" in text
    found = json.loads(said(capsys, "-q", "--home", tmp_path / "home", "corpus", docs, "--json"))
    assert found["folders"][0] == {"folder": "wiki", "read": 1, "characters": 760}


def test_files_that_are_skipped_for_one_reason_are_one_line(
    docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(9):
        (docs / f"{n}.png").touch()
    text = said(capsys, "-q", "--home", tmp_path / "home", "corpus", docs)
    rows = text.partition("skipped\n")[2].splitlines()[1:4]
    assert [row.split()[0] for row in rows] == ["9", "1", "1"]
    assert "kind .png is not read" in rows[0]
    assert text.count(".png") == 2


def test_tokens_are_the_models_own(docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    with pytest.raises(InputError, match="run `recover init` first"):
        said(capsys, "-q", "--home", home, "corpus", docs, "--tokens")
    said(capsys, "-q", "--home", home, "init")
    found = json.loads(said(capsys, "-q", "--home", home, "corpus", docs, "--tokens", "--json"))
    assert found["tokens_are"] == "counted"
    assert 4 < found["tokens"] < found["characters"]
    assert found["training"]["steps"] > 0


def test_planned_rows_are_no_longer_than_the_model_s_context(
    docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, model = tmp_path / "home", tiny.save(tmp_path / "model", max_position_embeddings=96)
    said(capsys, "-q", "--home", home, "init", "--model", model, "--preset", "microworld")
    planned = json.loads(said(capsys, "-q", "--home", home, "corpus", docs, "--json"))["training"]
    assert planned["row_tokens"] == 96  # the preset's are of 256


def test_retold_documents_have_no_part_in_the_plan(
    docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    said(capsys, "-q", "--home", home, "init")
    path = home / "recover.yaml"
    mixed = path.read_text().replace("{new: 0.4, earlier: 0.3, questions: 0.3}", "{new: 0.5, augmented: 0.5}")
    path.write_text(mixed)
    planned = json.loads(said(capsys, "-q", "--home", home, "corpus", docs, "--json"))["training"]
    assert planned["share_of_new"] == 1.0


def test_no_length_is_told_where_the_questions_about_the_folder_decide_it(
    docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    said(capsys, "-q", "--home", home, "init")
    path = home / "recover.yaml"
    path.write_text(path.read_text().replace("midtrain:\n", "midtrain:\n  method: passage\n", 1))
    assert json.loads(said(capsys, "-q", "--home", home, "corpus", docs, "--json"))["training"] is None
    [told] = [
        line
        for line in said(capsys, "-q", "--home", home, "corpus", docs).splitlines()
        if line.startswith("training: ")
    ]
    assert told.startswith("training: by questions about these documents (midtrain.method: passage)")
    assert "steps of" not in told


def test_the_command_says_what_comes_next(
    docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"

    def onward() -> str:
        return said(capsys, "-q", "--home", home, "corpus", docs).splitlines()[-1]

    recover = f"next: `recover --home {home}"
    assert onward().startswith(f"{recover} init --model MODEL` sets up")
    said(capsys, "-q", "--home", home, "init")
    probes = docs.parent / "probes.jsonl"
    assert onward().startswith(f"{recover} probes --docs {docs} --out {probes}` writes")
    probes.touch()
    assert onward().startswith(f"{recover} cycle --docs {docs}` learns")


def test_strict_and_empty_folders_are_bad_input(
    docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for words, message in (
        ((docs, "--strict"), r"d\.bin: kind \.bin is not read"),
        ((tmp_path / "empty",), "holds no readable document"),
        ((tmp_path / "missing",), "is not a folder"),
    ):
        with pytest.raises(InputError, match=message) as refused:
            said(capsys, "-q", "--home", tmp_path / "home", "corpus", *words)
        assert refused.value.exit_code == 2


def test_files_with_tables_that_are_not_asked_about_are_remarked(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "a.md": "So:\n\n| ash | 31 |\n| oak | 27 |\n",
        "b.html": "<table><tr><td>elm<td>35<tr><td>fir<td>36</table>",
        "c.md": "| Name | Port |\n|---|---|\n| yew | 44 |\n| box | 45 |\n",
        "d.jsonl": '{"text": "| bay | 51 |\\n| fig | 52 |"}\nnone\n',
    }
    made = preview.preview(papers.write(tmp_path / "docs", files))
    remark = "holds tables without titles, whose cells are not asked about"
    assert [report.reason for report in made.manifest] == [
        remark,
        remark,
        None,
        f"1 of 2 lines are no JSON; {remark}",
    ]
    assert preview.remarks(made)[0] == {"files": 2, "remark": remark, "such as": "a.md"}
