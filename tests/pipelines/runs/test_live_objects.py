"""What several stages in one process leave in memory: no model of a stage outlives it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelines.cycle import cycle
from pipelines.job_from_options.cycle import cycle_job
from recovery.models.chat_model import ChatModel
from tests.support.small_cycles import make_docs, make_home, settle


@contextmanager
def no_collection() -> Iterator[None]:
    """Free only what nothing refers to; what refers to itself stays, as between two collections."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def live_models() -> int:
    return sum(type(found) is ChatModel for found in gc.get_objects())


@pytest.mark.slow
def test_a_cycle_leaves_no_model_in_memory(tmp_path: Path) -> None:
    docs = make_docs(tmp_path)
    with make_home(tmp_path) as ws:
        settle(ws, margin=0.4, learning_rate=1e-4)
        cycle(ws, cycle_job(ws, docs), key="first")  # what is loaded once per process is loaded now
        with no_collection():
            before = live_models()
            cycle(ws, cycle_job(ws, docs), key="second")
            assert live_models() == before
