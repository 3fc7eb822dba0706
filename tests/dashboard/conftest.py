"""A home with three recovered cycles and their training runs, one for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dashboard.page_context import PageContext
from db.writes.tracker import Tracker
from tests.support import views


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PageContext, dict[str, str]]]:
    """The pages' context, and the runs by the method of each."""
    with Tracker(tmp_path_factory.mktemp("home") / "recover.db") as tracker:
        yield views.context(tracker), views.with_runs(tracker)
