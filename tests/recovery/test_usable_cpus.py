"""How many CPUs a process may use: those that it is bound to, not those of the machine."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines.corpus.reading.formats import Limits
from pipelines.corpus.reading.pool import Pool
from pipelines.runs import launch
from recovery.storage.file_hashes import workers
from recovery.usable_cpus import usable_cpus


@pytest.fixture(autouse=True)
def without_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machine that runs the tests."""
    monkeypatch.setattr("recovery.usable_cpus.cpu_quota", lambda: math.inf)


@pytest.fixture
def bound_to_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by taskset, on a machine of 64."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {4, 5, 6}, raising=False)


@pytest.mark.usefixtures("bound_to_three")
def test_the_cpus_that_a_process_is_bound_to_count() -> None:
    assert usable_cpus() == 3
    assert workers() == 3
    with Pool(Limits()) as pool:
        assert pool._threads._max_workers == 3


@pytest.mark.usefixtures("bound_to_three")
@pytest.mark.parametrize(("quota", "cpus"), [(1.5, 2), (0.2, 1), (3.0, 3), (64.0, 3)])
def test_the_time_of_fewer_cpus_counts(quota: float, cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by `docker --cpus 1.5`, which shows all CPUs."""
    monkeypatch.setattr("recovery.usable_cpus.cpu_quota", lambda: quota)
    assert usable_cpus() == cpus


def test_a_container_s_threads_are_as_many_as_it_has_time_for() -> None:
    code = (
        "import os, recovery.control_groups as groups\n"
        "groups.cpu_quota = lambda: 1.0\n"
        "os.sched_getaffinity = lambda process: {1, 2, 3}\n"
        "os.environ.pop('OMP_NUM_THREADS', None)\n"  # which importing set by the quota of this machine
        "import importlib, recovery\n"
        "importlib.reload(recovery.usable_cpus), importlib.reload(recovery)\n"
        "print(os.environ['OMP_NUM_THREADS'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert told.stdout == "1\n", told.stderr


def test_where_none_are_named_those_of_the_machine_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert usable_cpus() == 64


@pytest.mark.usefixtures("bound_to_three")
@pytest.mark.parametrize(("count", "threads"), [(1, "3"), (2, "1"), (8, "1")])
def test_processes_share_the_cpus_that_they_may_use(
    count: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, str]] = []

    def start(command: list[str], *, env: dict[str, str], **_: Any) -> None:
        started.append(env)

    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # as a container's own process got it
    monkeypatch.setattr(subprocess, "Popen", start)
    launch._spawn(0, count, Path("rendezvous"))
    assert [environment["OMP_NUM_THREADS"] for environment in started] == [threads]
