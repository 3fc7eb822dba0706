"""An empty database for each test, and a home with three recovered cycles, one for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.page_context import PageContext
from db.writes.tracker import Tracker
from tests.support import views
from tests.support.commands import recover
from tests.support.databases import migrated

__all__ = ["recover"]


@pytest.fixture
def context(tmp_path: Path) -> Iterator[PageContext]:
    """Pages of an empty database."""
    with Tracker(migrated(tmp_path / "recover.db")) as tracker:
        yield views.context(tracker)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PageContext, dict[str, str]]]:
    """The pages' context, and the runs by the method of each."""
    with Tracker(tmp_path_factory.mktemp("home") / "recover.db") as tracker:
        yield views.context(tracker), views.with_runs(tracker)
