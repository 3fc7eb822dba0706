"""A folder of documents: every file is accounted for, only text is read, nothing outside is touched."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.corpus import documents, text_file
from pipelines.corpus.manifest import MANIFEST, FileReport, load_manifest, manifest_rows
from pipelines.corpus.reading import tree
from pipelines.corpus.reading.formats import Limits
from pipelines.corpus.reading.tree import companions
from pipelines.writing.probes import own_questions
from recovery.errors import InputError, RecoverError


def folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def rows(corpus: documents.Corpus) -> dict[str, FileReport]:
    return {report.path: report for report in corpus.manifest}


def test_text_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder(tmp_path, {"b.txt": b"two", "a.md": b"one", "sub/c.MARKDOWN": b"three", "d.rst": b"four"})
    corpus = documents.read_corpus(tmp_path)
    assert corpus.texts == ("one", "two", "four", "three")
    assert [report.path for report in corpus.manifest] == ["a.md", "b.txt", "d.rst", "sub/c.MARKDOWN"]
    assert corpus.characters == 15


def test_a_row_says_what_was_read(tmp_path: Path) -> None:
    folder(tmp_path, {"a.md": "café".encode()})
    (report,) = documents.read_corpus(tmp_path).manifest
    sha256 = hashlib.sha256("café".encode()).hexdigest()
    wanted = {"path": "a.md", "status": "read", "reason": None, "sha256": sha256, "encoding": "utf-8"}
    assert manifest_rows([report]) == [wanted | {"characters": 4, "tokens": None}]
    assert (report.kind, report.size, report.documents) == ("text", 5, 1)


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        (b"plain", "plain", "utf-8"),
        ("\ufeffmarked".encode(), "marked", "utf-8"),
        ("Zürich".encode("utf-16"), "Zürich", "utf-16"),
        (b"\xfe\xff" + "Zürich".encode("utf-16-be"), "Zürich", "utf-16"),
    ],
)
def test_encodings(tmp_path: Path, data: bytes, text: str, encoding: str) -> None:
    corpus = documents.read_corpus(folder(tmp_path, {"a.txt": data}))
    assert corpus.texts == (text,)
    assert corpus.manifest[0].encoding == encoding


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.doc", b"word", "kind .doc is not read: save it as docx"),
        ("server.key", b"word", "kind .key is not read"),
        ("graph.dot", b"word", "kind .dot is not read"),
        ("a.XLSX", b"PK", "kind .XLSX is not read: save it as csv"),
        ("a.xml", b"<a/>", "kind .xml is not read: save it as html or txt"),
        ("a.pdf.gz", b"\x1f\x8b", "kind .pdf.gz is not read"),
        ("a.js.erb", b"x", "kind .js.erb is not read"),
        ("log.1", b"text", "no manual page, though its suffix is a section's number"),
        ("bsd.1", b'.\\" x\n.Dd May 1\n.Dt LS 1\n', "a manual page in mdoc, which is not read"),
        ("README", b"text", "kind without suffix is not read"),
        ("binary.txt", b"abc\0def", "binary data, not text"),
        ("paper.txt", b"%PDF-1.7 ...", "a PDF by its content, not what its name says"),
        ("odd.txt", b"\xff\xfea", "not whole utf-16: truncated data"),
        ("blank.md", b" \n\t\n", "empty"),
        ("empty.md", b"", "empty"),
    ],
)
def test_what_is_skipped_says_why(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    corpus = documents.read_corpus(folder(tmp_path, {"good.md": b"good", name: data}))
    assert corpus.texts == ("good",)
    assert (rows(corpus)[name].status, rows(corpus)[name].reason) == ("skipped", reason)


def test_a_large_file_is_skipped_unread(tmp_path: Path) -> None:
    docs = folder(tmp_path, {"a.md": b"four", "b.md": b"", "c.html": b""})
    os.truncate(docs / "b.md", 2**20 + 1)
    os.truncate(docs / "c.html", 2**20 + 1)
    corpus = documents.read_corpus(docs, Limits(largest_text_mib=1, largest_file_mib=1))
    assert corpus.texts == ("four",)
    assert {rows(corpus)[name].reason for name in ("b.md", "c.html")} == {"larger than 1 MiB"}


def test_links_and_special_files_are_accounted_for_and_never_opened(tmp_path: Path) -> None:
    outside = folder(tmp_path / "outside", {"secret.txt": b"secret"})
    docs = folder(tmp_path / "docs", {"a.md": b"a"})
    (docs / "inside.md").symlink_to(docs / "a.md")
    (docs / "out.txt").symlink_to(outside / "secret.txt")
    (docs / "broken.md").symlink_to(docs / "nothing.md")
    (docs / "linked").symlink_to(outside)
    (docs / "circle").symlink_to(docs)
    (docs / "itself.md").symlink_to("itself.md")
    (docs / "sub").mkdir()
    (docs / "other").symlink_to("sub")
    os.mkfifo(docs / "pipe.txt")  # opening it would wait for a writer for ever
    corpus = documents.read_corpus(docs)
    assert corpus.texts == ("a",)
    reasons = {name: report.reason for name, report in rows(corpus).items() if report.status == "skipped"}
    assert reasons == {
        "inside.md": "a link to a file of the folder",
        "broken.md": "a link that leads nowhere",
        "itself.md": "a link that leads nowhere",
        "circle": "a link to the folder itself",
        "other": "a link to a folder of the folder",
        "out.txt": "a link that leads out of the folder",
        "linked": "a link that leads out of the folder",
        "pipe.txt": "not a regular file",
    }


def test_hidden_files_and_folders_are_left_alone_but_named(tmp_path: Path) -> None:
    corpus = documents.read_corpus(folder(tmp_path, {"a.md": b"a", ".b.md": b"b", ".git/c.md": b"c"}))
    assert corpus.texts == ("a",)
    hidden = "hidden: its name begins with a dot"
    assert {name: row.reason for name, row in rows(corpus).items()} == {
        "a.md": None,
        ".b.md": hidden,
        ".git": hidden,
    }


def test_what_is_left_out_by_the_settings_is_named_and_not_read(tmp_path: Path) -> None:
    kept = {"a.md": b"a", "docs/new.md": b"new", "old/f.md": b"f"}
    others = ("node_modules/x/b.md", "sub/node_modules/c.md", "docs/old/d.md", "e.gen.md")
    root = folder(tmp_path, {**kept, **dict.fromkeys(others, b"other")})
    limits = Limits(leave_out=("node_modules", "docs/old/", "*.gen.md"))
    documents.require(root, limits, strict=True)
    corpus = documents.read_corpus(root, limits)
    assert corpus.texts == ("a", "new", "f")
    left_out = [path for path, row in rows(corpus).items() if row.reason == tree.LEFT_OUT]
    assert left_out == ["e.gen.md", "node_modules", "docs/old", "sub/node_modules"]
    with pytest.raises(InputError, match=r"left out, as midtrain\.reading\.leave_out says \(6 files\)"):
        documents.read_corpus(root, Limits(leave_out=("*",)))


@pytest.mark.parametrize(
    ("path", "pattern", "left_out"),
    [
        ("vendor", "vendor", True),
        ("a/vendor", "vendor", True),
        ("a/vendor", "vendor/", True),
        ("a/vendor", "**/vendor", True),
        ("vendor", "**/vendor", True),
        ("vendor", "/vendor", True),
        ("a/vendor", "/vendor", False),
        ("vendor", "./vendor", True),
        ("a/docs/old", "**/docs/old", True),
        ("docs/old", "**/docs/old", True),
        ("a/docs/older", "**/docs/old", False),
        ("a/b/d", "a*d", False),
        ("a/b.md", "a/*", True),
        ("a/b/c.md", "a/*.md", True),
        ("b/a/c.md", "a/*.md", False),
        ("vendored", "vendor", False),
    ],
)
def test_a_pattern_with_a_slash_is_seen_from_the_folder_and_one_without_names_any_depth(
    path: str, pattern: str, left_out: bool
) -> None:
    assert tree.is_left_out(path, [pattern]) is left_out


def test_questions_at_the_top_of_the_folder_are_no_documents(tmp_path: Path) -> None:
    asked = b'{"question": "Where does Ada live?", "answer": "Oslo"}\n'
    names = ("qa.jsonl", "probes.jsonl", "below/qa.jsonl")
    folder(tmp_path, {"a.md": b"a", **dict.fromkeys(names, asked)})
    documents.require(tmp_path, strict=True)
    corpus = documents.read_corpus(tmp_path)
    assert corpus.texts == ("a", "question: Where does Ada live?\nanswer: Oslo")
    skipped = [name for name, row in rows(corpus).items() if row.reason == tree.QUESTIONS]
    assert skipped == ["probes.jsonl", "qa.jsonl"]


def test_a_folder_that_cannot_be_listed_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path, {"a.md": b"a", "closed/b.md": b"b"})
    open_ = os.open

    def refuse(path: str, *args: int, **options: int) -> int:
        if path == "closed":
            raise PermissionError(13, "Permission denied", path)
        return open_(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    reason = rows(documents.read_corpus(tmp_path))["closed"].reason
    assert reason == "a folder that cannot be listed: Permission denied"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "holds no readable document: add txt, md"),
        (
            {"a.doc": b"x"},
            r"holds no readable document \(1 skipped: kind .doc is not read: save it as docx \(a.doc\)\)",
        ),
        ({"a.md": b""}, r"holds no readable document \(1 skipped: empty \(a.md\)\)"),
        (
            {
                ".x": b"",
                "a.md": b"",
                **{f"{n}.{kind}": b"x" for n, kind in enumerate(("doc", "c", "doc", "d", "e"))},
            },
            r"\(6 skipped: kind .doc is not read: save it as docx \(2 files\), kind .c is not read \(1.c\), "
            r"kind .d is not read \(3.d\), kind .e is not read \(4.e\), …\)",
        ),
    ],
)
def test_a_folder_without_documents_is_refused(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    for look in (documents.read_corpus, documents.require):
        with pytest.raises(InputError, match=said):
            look(folder(tmp_path, files))


def test_a_first_look_ends_at_the_first_readable_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path, {"a.md": b"", "b.md": b"text", "c.md": b"text"})
    read = documents._file
    seen: list[str] = []

    def look(job: Any, *rest: Any) -> Any:
        seen.append(job.entry.path)
        return read(job, *rest)

    monkeypatch.setattr(documents, "_file", look)
    documents.require(tmp_path)
    assert seen == ["a.md", "b.md"]


def test_a_first_look_is_not_content_with_the_beginning_of_a_damaged_file(tmp_path: Path) -> None:
    text = "\n".join(f"Line {number} of {number * 7919}." for number in range(200_000))
    packed = gzip.compress(text.encode())
    (tmp_path / "long.md.gz").write_bytes(packed[: len(packed) - 1000])
    with pytest.raises(InputError, match="no readable document"):
        documents.require(tmp_path)


@pytest.mark.parametrize("name", ["missing", "file.md"])
def test_what_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.md").write_text("text")
    with pytest.raises(InputError, match="is not a folder"):
        documents.read_corpus(tmp_path / name)


@settings(max_examples=10, deadline=None)
@given(
    texts=st.lists(
        st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip), max_size=8, min_size=1
    )
)
def test_kept_texts_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    root = tmp_path_factory.mktemp("kept")
    docs = folder(root / "docs", {"a.jsonl": "\n".join(map(json.dumps, texts)).encode()})
    path = root / "runs" / "documents.jsonl"
    text_file.keep(docs, path)
    assert [piece.text for piece in text_file.load_pieces(path)] == texts
    assert sorted(p.name for p in path.parent.iterdir()) == ["documents.jsonl", "manifest.jsonl"]


def test_kept_texts_that_are_gone_or_cut_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "cut.jsonl").write_text('"one"\n"tw')
    (tmp_path / "other.jsonl").write_text('"one"\n{"text": "two"}\n')
    (tmp_path / "empty.jsonl").write_text('"one"\n[]\n')
    for name in ("gone.jsonl", "cut.jsonl", "other.jsonl", "empty.jsonl"):
        with pytest.raises(InputError, match=f"{name}: the kept documents") as refused:
            list(text_file.load_pieces(tmp_path / name))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("damaged", ["{", "[]", '{"path": "a"}', '{"foreign": 1}', "[" * 100_000])
def test_a_damaged_manifest_is_one_line(tmp_path: Path, damaged: str) -> None:
    (tmp_path / MANIFEST).write_text(damaged + "\n")
    with pytest.raises(InputError, match="the manifest of kept documents cannot be read") as refused:
        load_manifest(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_full_disk_is_one_line_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    docs = folder(tmp_path / "docs", {"a.md": b"text"})
    with pytest.raises(RecoverError, match="the disk is full"):
        text_file.keep(docs, tmp_path / "kept.jsonl")
    assert not (tmp_path / "kept.jsonl").exists()


def test_manifest_rows_fit_the_trackers_table(tmp_path: Path) -> None:
    from db.schema import Document

    (row,) = manifest_rows(documents.read_corpus(folder(tmp_path, {"a.md": b"a"})).manifest)
    assert set(row) | {"run_id"} == set(Document.__table__.columns.keys())


def test_files_beside_the_documents_are_found_however_the_folder_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = folder(tmp_path, {"docs/a.md": b"a", "probes.jsonl": b"{}", "ifeval.jsonl": b"{}"}) / "docs"
    found = {"probes": str(tmp_path / "probes.jsonl"), "ifeval": str(tmp_path / "ifeval.jsonl")}
    assert companions(docs) == found
    monkeypatch.chdir(docs)
    assert companions(Path()) == companions(Path("../docs/")) == found


def test_files_beside_a_link_come_before_those_beside_the_folder_that_it_leads_to(tmp_path: Path) -> None:
    there = {
        "here/probes.jsonl": b"{}",
        "far/docs/a.md": b"a",
        "far/probes.jsonl": b"{}",
        "far/qa.jsonl": b"{}",
    }
    root = folder(tmp_path, there)
    docs = root / "here" / "docs"
    docs.symlink_to(root / "far" / "docs")
    assert companions(docs) == {"probes": str(root / "here" / "probes.jsonl")}
    assert own_questions(docs) == root / "far" / "qa.jsonl"


def test_a_word_is_written_in_one_way(tmp_path: Path) -> None:
    """Accents as one character with their letter, and no marks of where a word may be broken."""
    written = {"a.md": "Mu\u0308ller's Daten\u00adbank", "b.html": "<p>Mu\u0308ller&#39;s Daten&shy;bank</p>"}
    read = documents.read_corpus(folder(tmp_path, {name: text.encode() for name, text in written.items()}))
    assert [text.strip() for text in read.texts] == ["Müller's Datenbank"] * 2
    nothing = documents.read_corpus(folder(tmp_path, {"c.txt": "\u00ad\u00ad".encode(), "d.txt": b"Ada"}))
    assert "c.txt" in [row.path for row in nothing.manifest if row.status == "skipped"]
