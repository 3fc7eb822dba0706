"""Where results, warnings and errors are printed: below the progress, and only where something reads them."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.commands import _Warnings
from pipelines.cli.options import Session
from pipelines.cli.table import table
from pipelines.corpus import preview
from pipelines.runs import launch, progress
from recovery.command_line import unnamed
from recovery.errors import InputError, RecoverError
from tests.support.commands import Recover, make_world


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make standard error look like a terminal."""
    monkeypatch.setattr(progress, "_can_rewrite", lambda stream: True)


def test_small_numbers_are_printed_as_such() -> None:
    row = {"rate": 2e-5, "p": 0.0005, "none": 0.0, "score": 0.12345, "lost": -12.5, "nan": float("nan")}
    assert table([row]).splitlines()[1].split() == ["2e-05", "0.0005", "0.000", "0.123", "-12.500", "nan"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("columns", "row", "lines"),
    [
        (
            20,
            {"key": "seed", "meaning": "of sampling and training"},
            ["seed  of sampling", "      and training"],
        ),
        (33, {"key": "seed", "meaning": "of sampling and training"}, ["seed  of sampling and training"]),
        (22, {"key": "1", "path": "a" * 30}, [f"1    {'a' * 17}", f"     {'a' * 13}"]),
        (14, {"key": "1", "path": "a" * 30}, [f"1    {'a' * 30}"]),  # it would be broken once more
    ],
)
def test_a_table_is_folded_to_the_width_of_a_terminal_and_whole_where_it_is_piped(
    monkeypatch: pytest.MonkeyPatch, columns: int, row: dict[str, str], lines: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    whole = f"{row['key']:<5}{row['path']}" if "path" in row else f"{row['key']:<6}{row['meaning']}"
    assert table([row]).splitlines()[1:] == [whole]
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert table([row]).splitlines()[1:] == lines


@pytest.mark.usefixtures("terminal")
def test_a_result_begins_below_the_progress(recover: Recover, tmp_path: Path) -> None:
    said = recover("--home", tmp_path / "home", "corpus", make_world(tmp_path))
    assert said.code == 0 and said.out
    assert said.err.endswith("2/2  files, 0.2 of 0.2 kB\n")


@pytest.mark.usefixtures("terminal")
def test_an_error_begins_below_the_progress(
    recover: Recover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, progress: Callable[[int, int], None], **__: object) -> Any:
        progress(1, 10)
        raise InputError("this file cannot be read")

    monkeypatch.setattr(preview, "preview", fail)
    said = recover("--home", tmp_path / "home", "corpus", make_world(tmp_path))
    assert said.code == 2
    assert said.err.splitlines()[-1] == "Error: this file cannot be read"


@pytest.mark.usefixtures("terminal")
def test_a_warning_begins_below_the_progress() -> None:
    shown = io.StringIO()
    live = progress.Progress(stream=shown)
    handler = _Warnings(Session(progress=live))
    handler.setStream(shown)
    live.step("midtrain", 1, 2)
    handler.emit(logging.makeLogRecord({"msg": "step 1 was not saved"}))
    assert shown.getvalue().splitlines()[-1] == "step 1 was not saved"


def test_no_error_is_printed_among_the_results_where_standard_error_is_closed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipelines.cli", "--home", str(tmp_path / "none"), "ls"]
    done = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *command], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_result_for_which_the_disk_has_no_room_ends_in_one_line() -> None:
    command = [sys.executable, "-m", "pipelines.cli", "settings", "seed"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("Error: the disk is full") and line.endswith(": free some space and run it again")


def test_a_killed_process_is_named_with_the_command_that_goes_on(
    recover: Recover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spawn(rank: int, count: int, rendezvous: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sh", "-c", "exit 1" if rank else "kill -KILL $$"])

    monkeypatch.setattr(launch, "_spawn", spawn)
    home, database = tmp_path / "home", tmp_path / "other.db"
    named = "--processes", 2, "--home", home, "--db", database
    said = recover("midtrain", "--docs", tmp_path, *named)
    assert said.code == 1
    assert said.error == (
        "Error: process 1 of 2 was ended by SIGKILL, as happens where memory runs out: "
        f"go on with `recover --home {home} --db {database} resume --processes 2`"
    )


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([0, 0], 0),
        ([3, -9], 3),
        ([130, None], 130),
        ([0, 2], 2),
        ([0, -11], 1),
        ([0, None], 1),
        ([None, 2], 2),
    ],
)
def test_several_processes_end_with_a_code_that_is_listed(codes: list[int | None], code: int) -> None:
    assert launch._outcome(codes, unnamed) == code


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ([-15, 1], "process 1 of 2 was ended by SIGTERM:"),
        ([None, -9], "process 2 of 2 was ended by SIGKILL,"),
    ],
)
def test_a_signal_is_an_error_unless_the_first_process_has_ended_by_itself(
    codes: list[int | None], said: str
) -> None:
    with pytest.raises(RecoverError, match=said):
        launch._outcome(codes, unnamed)


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_any_encoding_of_standard_output_takes_any_text(
    tmp_path: Path, encoding: str, form: list[str]
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.txt").write_text("Sizes ≥ 3 and a smile 😀 in Łódź.\n" * 9, encoding="utf-8")
    program = "from pipelines.cli import main; main()"
    words = ["-q", "--home", str(tmp_path / "home"), *form, "corpus", str(docs)]
    ran = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    if form:
        assert "😀" in json.dumps(json.loads(ran.stdout), ensure_ascii=False)
