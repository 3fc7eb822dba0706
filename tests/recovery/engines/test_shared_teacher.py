"""A teacher's server that several processes ask: only the first one can restart it, for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from recovery import distributed
from recovery.batches.rollouts import Rollouts
from recovery.engines.engine_teacher import EngineTeacher
from recovery.engines.protocol import SampledAnswer, TokenScore
from recovery.errors import EngineLost, RecoverError
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.teachers import scored
from tests.support import tiny

T = TypeVar("T")
PATIENCE = 60  # seconds, for what happens at once


class OneServer:
    """A server that is lost to one of the processes until the first one restarts it, or for good."""

    name = "server"

    def __init__(self, lost_to: int, *, for_good: bool = False) -> None:
        self.lost_to: int | None = lost_to
        self.for_good = for_good
        self.restarted_by: list[int] = []

    def score(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], k: int
    ) -> list[list[TokenScore]]:
        self._require_reached()
        rows = zip(sequences, starts, strict=True)
        return [[TokenScore(-1.0, [], []) for _ in tokens[start:]] for tokens, start in rows]

    def sample(self, prompts: Sequence[Sequence[int]], *_: Any) -> list[SampledAnswer]:
        self._require_reached()
        return [SampledAnswer([67], [-1.0]) for _ in prompts]

    def restart(self) -> None:
        self.restarted_by.append(distributed.rank())
        if not self.for_good:
            self.lost_to = None

    def _require_reached(self) -> None:
        if distributed.rank() == self.lost_to:
            raise EngineLost("connection refused")


def in_two(monkeypatch: pytest.MonkeyPatch, work: Callable[[], T]) -> list[T]:
    """Do the work in two threads, each as one of two processes that gather and share what they have."""
    here = threading.local()
    given: list[Any] = [None, None]
    meeting = threading.Barrier(2, timeout=PATIENCE)

    def gather(value: Any) -> list[Any]:
        given[here.rank] = value
        meeting.wait()
        found = list(given)
        meeting.wait()
        return found

    def as_rank(rank: int) -> T:
        here.rank = rank
        return work()

    monkeypatch.setattr(distributed, "world", lambda: 2)
    monkeypatch.setattr(distributed, "rank", lambda: here.rank)
    monkeypatch.setattr(distributed, "gather", gather)
    monkeypatch.setattr(distributed, "broadcast", lambda value: gather(value)[0])
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(as_rank, range(2)))


def taught_by(server: OneServer) -> EngineTeacher:
    engine: Any = server
    return EngineTeacher(engine, tiny.chat_model(), "sampled")


@pytest.mark.parametrize(("rows", "lost_to"), [(2, 0), (2, 1), (1, 0)])
def test_the_first_process_restarts_the_server_of_a_teacher_that_scores(
    monkeypatch: pytest.MonkeyPatch, rows: int, lost_to: int
) -> None:
    """Of one row, the second process scores nothing: it waits all the same."""
    server = OneServer(lost_to)
    teacher = taught_by(server)
    answers = Rollouts.from_samples([[65]] * rows, [[66, 67]] * rows, [[-1.0] * 2] * rows, [True] * rows, 0)
    found = in_two(monkeypatch, lambda: scored(teacher, answers, max_tokens=1))
    assert server.restarted_by == [0]
    for rank, parts in enumerate(found):
        assert [scores is not None for _, scores in parts] == [row % 2 == rank for row in range(rows)]


@pytest.mark.parametrize("lost_to", [0, 1])
def test_the_first_process_restarts_the_server_of_a_teacher_that_writes(
    monkeypatch: pytest.MonkeyPatch, lost_to: int
) -> None:
    server = OneServer(lost_to)
    teacher = taught_by(server)
    found = in_two(monkeypatch, lambda: teacher.sample([[65]], SamplingParams(1)).responses())
    assert server.restarted_by == [0] and found == [[[67]], [[67]]]


def test_a_server_that_stays_lost_ends_each_process_with_the_same_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = OneServer(1, for_good=True)
    teacher = taught_by(server)

    def refused() -> str:
        with pytest.raises(RecoverError, match=r"server: lost twice \(.*\): .* `recover resume`") as caught:
            teacher.sample([[65]], SamplingParams(1))
        return str(caught.value)

    first, second = in_two(monkeypatch, refused)
    assert first == second and server.restarted_by == [0]
