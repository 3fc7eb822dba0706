"""Export: every row of every table, in three formats, whatever the rows hold."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyarrow import parquet

from db import export as exporting
from db.errors import BadRequest
from db.export import FORMATS, TABLES, as_csv, as_json, as_parquet, columns, export
from db.writes import transactions
from db.writes.tracker import Tracker
from pipelines.cli.commands import cli
from tests.support import databases

NASTY = '=HYPERLINK("evil")\n"quoted", \u202e<script>'
SCORES = {"ifeval": {"clean": 0.9, "midtrained": 0.2, "recovered": 0.8}, "knowledge": {"recovered": 0.7}}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two cycles, some metrics that are not finite, a trace and a hostile note."""
    folder = tmp_path_factory.mktemp("home")
    with Tracker(folder / "recover.db") as tracker:
        for _ in range(2):
            number = databases.record_cycle(tracker, SCORES)
            tracker.add_review(number, "approve", NASTY, "sam")
        run = tracker.start_run("distill")
        for step in range(5):
            databases.record_metrics(tracker, run.id, step, {"loss": float("nan") if step == 3 else step / 2})
        with tracker.live(run.id) as live:
            trace: dict[str, Any] = {
                "prompt": NASTY,
                "estimator": "none",
                "mean": None,
                "n": 0,
                "tokens": {"ids": []},
            }
            live.traces(1, [trace])
        tracker.record_verdicts(1, {"behaviour": {"outcome": "recovered", "n": 3, "power": 0.5}})
        tracker.record_documents(run.id, [{"path": NASTY, "status": "read", "tokens": 12}])
        tracker.set_alias("base", "clean0")
    return folder


def whole(home: Path, table: str, kind: str) -> bytes:
    with Tracker(home / "recover.db") as tracker:
        return b"".join(export(tracker.db, table, kind))


def read(data: bytes, kind: str) -> list[dict[str, Any]]:
    if kind == "json":
        return list(json.loads(data))
    if kind == "csv":
        return list(csv.DictReader(io.StringIO(data.decode())))
    return list(parquet.read_table(io.BytesIO(data)).to_pylist())


@pytest.mark.parametrize("table", TABLES)
def test_each_table_has_the_same_rows_in_every_format(home: Path, table: str) -> None:
    found = {kind: read(whole(home, table, kind), kind) for kind in FORMATS}
    flat = [exporting.flatten(row) for row in found["json"]]
    assert flat and len(flat) == len(found["csv"]) == len(found["parquet"])
    names = list(dict.fromkeys(name for row in flat for name in row))
    assert list(found["csv"][0]) == list(found["parquet"][0]) == names
    for row, written, typed in zip(flat, found["csv"], found["parquet"], strict=True):
        for name, value in row.items():
            if isinstance(value, bool | int | float | None):
                assert typed[name] == (value if not isinstance(typed[name], str) else json.dumps(value))
            if isinstance(value, str):
                assert typed[name] == value and written[name].removeprefix("'") == value


def test_a_formula_does_not_reach_a_spreadsheet(home: Path) -> None:
    cells = {row["note"] for row in read(whole(home, "reviews", "csv"), "csv")}
    assert cells == {"'" + NASTY}


@pytest.mark.parametrize(
    "before",
    ["", " ", "\r", "\n", "\t", "\ufeff", "\u00a0", "\u3000", "\u200b", "\u2028", "\x00", "\x0b"],
    ids=ascii,
)
@pytest.mark.parametrize("sign", "=+-@＝＋－＠")
def test_a_formula_behind_what_a_spreadsheet_skips_is_text(before: str, sign: str) -> None:
    text = f"{before}{sign}cmd()"
    written = b"".join(as_csv(lambda: iter([{"a": text, f"={text}": 1}, {"a": f"x\r{sign}cmd()"}]))).decode()
    with io.StringIO(written, newline="") as file:
        names, first, second = csv.reader(file)
    assert first[0] == f"'{text}" and names[1].startswith("'") and second[0].startswith("x")
    assert written.startswith('"a","') and f'"x\r{sign}cmd()"' in written  # quoted: a lone CR ends no row


def test_no_format_and_no_command_writes_a_key(tmp_path: Path) -> None:
    secret = "Zq9-longSecret_7"
    with Tracker(tmp_path / "recover.db") as tracker:
        run = tracker.start_run("eval", config={"hub": {"token": secret}, "url": f"https://u:{secret}@h/x"})
        tracker.fail_run(run.id, f"OPENAI_KEY={secret}")
        tracker.record_documents(run.id, [{"path": f"https://h/x?sig={secret}", "status": "read"}])
    for table in ("runs", "documents"):
        for kind in ("csv", "json"):
            assert secret not in whole(tmp_path, table, kind).decode()
        said = CliRunner().invoke(cli, ["--home", str(tmp_path), "export", table])
        assert said.exit_code == 0 and secret not in said.stdout and "(hidden)" in said.stdout


def test_what_is_not_finite_keeps_its_name(home: Path) -> None:
    rows = {row["step"]: row for row in read(whole(home, "metrics", "parquet"), "parquet")}
    assert rows[3]["value"] is None and rows[3]["special"] == "nan" and rows[2]["value"] == 1.0


def test_an_unknown_table_is_refused_in_a_sentence(home: Path) -> None:
    with pytest.raises(
        BadRequest, match="no table is called 'runs; DROP TABLE runs': choose one of cycles, "
    ):
        whole(home, "runs; DROP TABLE runs", "csv")
    with pytest.raises(BadRequest, match="no format is called 'xml': choose one of csv, json, parquet"):
        whole(home, "runs", "xml")


@pytest.mark.parametrize("write", [as_csv, as_json, as_parquet])
def test_a_table_of_any_length_takes_little_memory(write: Any) -> None:
    """24,000 rows are more than 12 MB as a list."""

    def rows() -> Iterator[dict[str, Any]]:
        return ({"n": n, "text": f"row {n} " * 3, "nested": {"x": n / 2}} for n in range(24_000))

    tracemalloc.start()
    try:
        size = sum(len(piece) for piece in write(rows))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 100_000 and peak < 8_000_000


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_of_large_rows_few_are_held_at_once(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace holds every token of an answer: 2,000 of them took gigabytes."""
    read: list[dict[str, Any]] = []

    def counted(row: dict[str, Any]) -> dict[str, Any]:
        read.append(row)
        return row

    with Tracker(tmp_path / "recover.db") as tracker:
        with tracker.live(tracker.start_run("distill").id) as live:
            live.traces(1, [{"prompt": "p", "estimator": "none", "mean": None, "n": 0, "tokens": {}}] * 250)
        monkeypatch.setattr(exporting, "redact", counted)
        pieces = export(tracker.db, "traces", kind)
        next(pieces)
        assert len(read) == 250 + 100  # the first pass is for the names of the columns
        assert b"".join(pieces) and len(read) == 250 + 250


def test_columns_that_appear_late_or_change_their_type_are_kept() -> None:
    rows: list[dict[str, Any]] = [{"a": 1}, {"a": 2.5, "b": {"c": "x"}}, {"b": {"c": 3}, "d": [1]}]
    assert columns(rows) == {"a": float, "b.c": str, "d": list}
    (first, *_) = read(b"".join(as_parquet(lambda: iter(rows))), "parquet")
    assert first == {"a": 1.0, "b.c": None, "d": None}


@pytest.mark.parametrize("kind", FORMATS)
def test_an_empty_table_is_an_empty_file_of_its_format(tmp_path: Path, kind: str) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        assert read(b"".join(export(tracker.db, "reviews", kind)) or b"\n", kind) == []


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("backend", databases.BACKENDS)
def test_a_cycle_that_ends_meanwhile_does_not_change_an_export(
    tmp_path: Path, kind: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A summary would become a number in a column of text, and a column that the first pass did not see."""
    with databases.new_database(backend, tmp_path) as where, Tracker(where) as tracker:
        run = tracker.start_run("cycle")
        tracker.record_cycle(run.id)

        def summarise(**summary: Any) -> None:
            given = {"summary": summary}
            tracker.db.write(
                lambda session: transactions.put_cycle(session, tracker.db.project, run.id, given)
            )

        summarise(note="before")

        def meanwhile(rows: Iterator[dict[str, Any]]) -> dict[str, type]:
            names = columns(rows)
            tracker.record_cycle(run.id, status="accepted")
            summarise(note=7, late=True)
            tracker.record_cycle(tracker.start_run("cycle").id)
            return names

        monkeypatch.setattr(exporting, "columns", meanwhile)
        found = read(b"".join(export(tracker.db, "cycles", kind)), kind)
    assert len(found) == 1
    assert found[0]["status"] == "running" and found[0]["summary.note"] == "before"


def test_the_command_writes_a_file_by_its_ending_or_nothing(home: Path, tmp_path: Path) -> None:
    def recover(*words: str) -> Any:
        return CliRunner().invoke(cli, ["--home", str(home), *words], catch_exceptions=True)

    target = tmp_path / "cycles.parquet"
    assert recover("export", "cycles", "--out", str(target)).exit_code == 0
    assert [row["cycle"] for row in read(target.read_bytes(), "parquet")] == [1, 2]
    assert len(recover("export", "metrics", "--format", "csv").stdout.splitlines()) == 6
    assert json.loads(recover("--json", "export", "reviews").stdout)[0]["note"] == NASTY
    assert recover("export", "nonsense").exit_code != 0
    assert recover("export", "nonsense", "--out", str(target)).exit_code != 0
    assert target.read_bytes()[:4] == b"PAR1" and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("text", "cell"),
    [("-5", "-5"), ("+1.5e-3", "+1.5e-3"), ("-2+3", "'-2+3"), ("-5\n=1", "'-5\n=1"), ("-", "'-")],
)
def test_a_number_with_a_sign_is_shown_as_it_is(text: str, cell: str) -> None:
    rows = b"".join(as_csv(lambda: iter([{"response": text}]))).decode()
    assert list(csv.reader(io.StringIO(rows)))[1] == [cell]
