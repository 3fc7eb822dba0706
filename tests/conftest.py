"""Fixtures every test may use. One thread, as tiny tensors gain nothing from more; no network."""

from __future__ import annotations

import gc
import os
import time
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from hypothesis import settings

from recovery import hub_data
from tests.support import tiny
from tests.support.environment import keep_apart
from tests.support.unflushed import unflushed

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    from pipelines.runs.workspace import Workspace
    from recovery.models.chat_model import ChatModel

LATE = "the time given with --within was over"
STARTED = time.monotonic()
keep_apart()
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
torch.set_flush_denormal(True)
settings.register_profile("house", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--within", type=float, metavar="SECONDS", help="begin no test later than this")


def pytest_runtest_setup(item: pytest.Item) -> None:
    within = item.config.getoption("--within")
    if within is not None and time.monotonic() - STARTED > within:
        pytest.skip(LATE)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave modules and tests, some million objects that all stay, out of every garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were left out for want of time: they have not passed."""
    late = sum(LATE in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if late:
        terminalreporter.write_line(f"left out, as the time given with --within was over: {late}")


@pytest.fixture(autouse=True, scope="session")
def disk_not_waited_for() -> Iterator[None]:
    """What a test writes is so little that to wait for the disk takes longer."""
    with unflushed():
        yield


@pytest.fixture(autouse=True)
def hub_not_yet_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test may not see that the hub did not answer another one."""
    monkeypatch.setattr(hub_data, "reach", hub_data.Reach())


@pytest.fixture(params=["CPU engine", "PyTorch"])
def with_and_without_cpu_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test twice: with the CPU engine, and by PyTorch and transformers alone."""
    if request.param == "PyTorch":
        monkeypatch.setenv("RECOVER_CPU", "off")
    elif os.environ.get("RECOVER_CPU") == "off":
        pytest.skip("the CPU engine is switched off")


@pytest.fixture
def ws(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    """A home whose midtraining changes nothing and whose margin is wide: all that is measured passes.

    In a file that is marked `new_home`, a home as `recover init` makes it."""
    from tests.support.small_cycles import make_home, settle

    with make_home(tmp_path) as workspace:
        if request.node.get_closest_marker("new_home") is None:
            settle(workspace, margin=0.4, learning_rate=1e-12)
        yield workspace


@pytest.fixture
def tiny_model() -> Qwen3ForCausalLM:
    return tiny.model()


@pytest.fixture
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    return tiny.tokenizer()


@pytest.fixture
def tiny_chat_model() -> ChatModel:
    return tiny.chat_model()
