"""The pace of answers, by a clock set by hand; and what a progress line may hold."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import termios
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines.corpus import documents
from pipelines.corpus.reading.formats import Limits
from pipelines.runs import progress as progress_module
from pipelines.runs.progress import Pace, Progress, counting, duration, reading_progress, time_left


def test_the_time_left_is_bounded_by_the_limit_and_by_what_finished_answers_took() -> None:
    now = [100.0]
    pace = Pace(answers=10, longest=50, clock=lambda: now[0])
    assert pace.eta_seconds(0) is None and pace.note("ifeval") == "ifeval"
    now[0] = 105.0
    pace.see(50)  # prompts were read before: nothing is known of the pace
    assert pace.eta_seconds(0) is None
    now[0] = 110.0
    pace.see(100)  # 10 a second since; 400 more at most
    assert pace.eta_seconds(0) == pytest.approx(40.0)
    assert pace.eta_seconds(5) == pytest.approx(10.0)  # five answers took ten seconds
    assert pace.note("ifeval") == "ifeval  100 tokens, 10 a second"


def test_the_prompts_that_are_read_first_are_no_part_of_the_pace() -> None:
    """541 answers of 256 tokens at most, after 39 seconds of reading: an hour and a half was said for three
    minutes."""
    now = [0.0]
    pace = Pace(answers=541, longest=256, clock=lambda: now[0])
    now[0] = 39.0
    pace.see(1024)
    assert pace.eta_seconds(0) is None
    now[0] = 49.0
    pace.see(9957)
    assert pace.eta_seconds(53) == pytest.approx((541 * 256 - 9957) / ((9957 - 1024) / 10))


def test_a_batch_that_is_written_again_leaves_no_time_below_zero() -> None:
    """Where memory runs out, the sampler halves its batch: the tokens fall below those seen first."""
    now = [0.0]
    pace = Pace(answers=10, longest=1000, clock=lambda: now[0])
    for at, tokens in ((40.0, 5000), (60.0, 128)):
        now[0] = at
        pace.see(tokens)
    assert pace.eta_seconds(0) is None
    now[0] = 70.0
    pace.see(628)
    assert pace.eta_seconds(0) == pytest.approx((10_000 - 628) / 50)


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
    resumed = counting(step, "tokens")
    resumed(30, 40)
    now[0] = 120.0
    resumed(35, 40)
    assert lines[2:] == [(30, 40, None, "tokens"), (35, 40, 10.0, "tokens")]


def test_what_comes_before_the_first_number_is_no_part_of_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 prompts were read for three minutes before the first token: 157 hours were said for 12 minutes."""
    now = [0.0]
    monkeypatch.setattr("pipelines.runs.progress.time.monotonic", lambda: now[0])
    etas: list[float | None] = []
    show = counting(lambda done, total, *, eta_seconds, note: etas.append(eta_seconds), "tokens")
    for at, done in ((180.0, 64), (180.5, 264), (190.0, 2064)):
        now[0] = at
        show(done, 10_064)
    assert etas == [None, None, pytest.approx((10_064 - 2064) / 200)]


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
    assert seen[-1][2] == "files, 285.0 of 285.0 kB"


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
    assert seen[-1][2] == "files, 95.0 of 95.0 kB"


def test_no_time_left_is_guessed_from_the_first_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.runs.progress.time.monotonic", lambda: 100.0)
    assert time_left(99.5, 50, 100) is None  # half a second
    assert time_left(90.0, 50, 100) == 10.0


class Lost(io.StringIO):
    """A stream that nothing reads any more."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str, /) -> int:
        raise self.error


CLOSED = ValueError("I/O operation on closed file.")


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "gone"), OSError(errno.EIO, "gone"), CLOSED])
def test_a_run_goes_on_where_its_progress_cannot_be_written(error: Exception) -> None:
    progress = Progress(stream=Lost(error))
    progress.step("midtrain", 1, 2)
    assert progress.quiet
    progress.say("next")
    progress.step("midtrain", 2, 2)
    progress.end()


RUN = """
from pipelines.runs.progress import Progress
progress = Progress()
for number in range(3):
    progress.say("line")
print("done")
"""


def test_a_lost_pipe_does_not_change_how_a_run_ends() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", RUN], stdout=subprocess.PIPE, stderr=writing, text=True)
    os.close(writing)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_closed_standard_error_is_quiet() -> None:
    words = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", RUN]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n")


class Terminal(io.StringIO):
    """A terminal that does not say how wide it is."""

    def isatty(self) -> bool:
        return True


def test_what_follows_the_progress_in_a_terminal_begins_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal()
    progress = Progress(stream=shown)
    progress.step("midtrain", 40, 40, note="tokens")
    progress.end()
    progress.end()
    shown.write("result\n")
    assert shown.getvalue() == "  midtrain       40/40  tokens\nresult\n"


def test_a_line_that_is_rewritten_is_never_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal()
    Progress(stream=shown).step("midtrain", 7, 40, note="tokens" * 40)
    assert len(shown.getvalue()) == 79
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (24, 40))
    with os.fdopen(slave, "w") as narrow:
        Progress(stream=narrow).step("midtrain", 7, 40, eta_seconds=65.0, note="loss 1.234  reverse kl 0.1")
        line = os.read(master, 1000).decode()
    os.close(master)
    assert line == "  midtrain        7/40  loss   ETA 1:05" and len(line) == 39


def test_a_terminal_that_cannot_rewrite_a_line_is_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    shown = Terminal()
    progress = Progress(stream=shown)
    progress.step("midtrain", 1, 2, note="tokens")
    progress.step("midtrain", 2, 2, note="tokens")
    assert shown.getvalue().splitlines() == [f"  midtrain        {number}/2  tokens" for number in (1, 2)]


@pytest.mark.parametrize(("terminal", "shown"), [(True, [1, 3, 5]), (False, [1, 5])])
def test_a_log_has_a_line_in_ten_seconds_and_a_terminal_ten_in_one(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: list[int]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    now = 100.0
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now))
    stream = Terminal() if terminal else io.StringIO()
    progress = Progress(stream=stream)
    for step, passed in enumerate((0.0, 0.05, 0.1, 0.05, 9.9), 1):
        now += passed
        progress.step("midtrain", step, 9)
    assert [step for step in range(1, 10) if f"{step}/9" in stream.getvalue()] == shown


def test_the_last_step_has_no_time_left_and_a_line_that_stays_replaces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal()
    progress = Progress(stream=shown)
    progress.step("eval", 2, 2, eta_seconds=5.0, note="ok")
    line = "  eval            2/2  ok"
    progress.say("done at postgresql://ada:geheim-7@host/db")
    first, said = shown.getvalue().split("\r", 1)
    assert first == line and said.startswith(f"{' ' * len(line)}\rdone at postgresql://")
    assert "geheim" not in said


def test_a_duration_of_an_hour_is_said_in_hours() -> None:
    assert [duration(seconds) for seconds in (59.6, 3599, 3600)] == ["1:00", "59:59", "1:00:00"]
