"""The tracker of a new database of each kind; a file that needs another has its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from db.writes.tracker import Tracker
from tests.support.databases import BACKENDS, migrated, new_database


@pytest.fixture(params=BACKENDS)
def tracker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tracker]:
    with new_database(request.param, tmp_path) as where, Tracker(migrated(where)) as opened:
        yield opened
