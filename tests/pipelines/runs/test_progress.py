"""The pace of answers, by a clock set by hand; and what a progress line may hold."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from pipelines.corpus import documents
from pipelines.corpus.reading.formats import Limits
from pipelines.runs.progress import Pace, Progress, counting, reading_progress, time_left


def test_the_time_left_is_bounded_by_the_limit_and_by_what_finished_answers_took() -> None:
    now = [100.0]
    pace = Pace(answers=10, longest=50, clock=lambda: now[0])
    assert pace.eta_seconds(0) is None and pace.note("ifeval") == "ifeval"
    now[0] = 110.0
    pace.see(100)  # 10 a second; 400 more at most
    assert pace.eta_seconds(0) == pytest.approx(40.0)
    assert pace.eta_seconds(5) == pytest.approx(10.0)  # five answers took ten seconds
    assert pace.note("ifeval") == "ifeval  100 tokens, 10 a second"


def test_what_is_counted_shows_the_time_left_at_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("pipelines.runs.progress.time.monotonic", lambda: now[0])
    lines: list[tuple[int, int, float | None, str]] = []

    def step(done: int, total: int, *, eta_seconds: float | None, note: str) -> None:
        lines.append((done, total, eta_seconds, note))

    show = counting(step, "tokens")
    show(0, 40)
    now[0] = 110.0
    show(10, 40)
    assert lines == [(0, 40, None, "tokens"), (10, 40, 30.0, "tokens")]
    resumed = counting(step, "tokens", before=30)
    resumed(30, 40)
    now[0] = 120.0
    resumed(35, 40)
    assert lines[2:] == [(30, 40, None, "tokens"), (35, 40, 10.0, "tokens")]


def test_no_line_holds_what_a_terminal_obeys() -> None:
    shown = io.StringIO()
    progress = Progress(stream=shown)
    progress.say("read \x1b]0;title\x07.pdf")
    progress.step("eval \x1b[2J", 3, 3, note="\u202egnp.exe")
    assert shown.getvalue().splitlines() == [
        "read ‹001B›]0;title‹0007›.pdf",
        "  eval ‹001B›[2J       3/3  ‹202E›gnp.exe",
    ]


def test_a_log_shows_the_last_step_once_however_often_it_is_reported() -> None:
    shown = io.StringIO()
    progress = Progress(stream=shown)
    for number in range(1000):
        progress.step("midtrain", 7, 7, note=f"tokens{number if number else ''}")
    progress.say("next")
    progress.step("midtrain", 7, 7, note="tokens")
    line = "  midtrain        7/7  tokens"
    assert shown.getvalue().splitlines() == [line, "next", line]


def test_what_is_read_of_a_folder_ends_at_what_was_counted(tmp_path: Path) -> None:
    """Hidden names, links and folders once made it "20,655.7 of 20,593.9 MB", with all files long done."""
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "inner.txt").write_bytes(b"x" * 80_000)
    for name in (".hidden", "a.md", "b.png", "sub/c.txt"):
        (tmp_path / name).write_text("Ada lives in Oslo. " * 5000)
    (tmp_path / "link.md").symlink_to("a.md")
    seen: list[tuple[int, int, str]] = []

    def step(done: int, total: int, *, eta_seconds: float | None, note: str) -> None:
        seen.append((done, total, note))

    for _ in documents.read_folder(tmp_path, progress=reading_progress(step, tmp_path)):
        pass
    assert [done for done, _, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert {total for _, total, _ in seen} == {6}
    assert seen[-1][2] == "files, 0.3 of 0.3 MB"


def test_what_is_left_out_of_a_folder_is_not_counted_as_to_be_read(tmp_path: Path) -> None:
    (tmp_path / "vendor" / "deep").mkdir(parents=True)
    for name in ("a.md", "vendor/b.md", "vendor/deep/c.md"):
        (tmp_path / name).write_text("Ada lives in Oslo. " * 5000)
    seen: list[tuple[int, int, str]] = []

    def step(done: int, total: int, *, eta_seconds: float | None, note: str) -> None:
        seen.append((done, total, note))

    progress = reading_progress(step, tmp_path, ["vendor"])
    for _ in documents.read_folder(tmp_path, Limits(leave_out=("vendor",)), progress=progress):
        pass
    assert [(done, total) for done, total, _ in seen] == [(1, 2), (2, 2)]
    assert seen[-1][2] == "files, 0.1 of 0.1 MB"


def test_no_time_left_is_guessed_from_the_first_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.runs.progress.time.monotonic", lambda: 100.0)
    assert time_left(99.5, 50, 100) is None  # half a second
    assert time_left(90.0, 50, 100) == 10.0
