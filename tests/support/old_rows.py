"""The rows of a database that an older version wrote, and what they are after the migration."""

from __future__ import annotations

from db.reads import queries
from db.writes.tracker import Tracker

REVISION = "0002"
RUN = (
    "INSERT INTO runs VALUES ('{0}', NULL, 'cycle', NULL, 'done', 1, 1, NULL, NULL, '{1}', '{1}', NULL, "
    "NULL, '{{}}', '{{}}', NULL, '{{}}', '{{}}')"
)
ROWS = (
    RUN.format("r1", "2026-01-01"),
    RUN.format("r2", "2026-01-02"),
    "INSERT INTO checkpoints VALUES ('c1', '/c1', 'full', NULL, NULL, 'x', 'r1', '2026-01-01', '{}')",
    "INSERT INTO aliases VALUES ('current', 'c1', '2026-01-01')",
    "INSERT INTO cycles VALUES (7, 'r1', 'accepted', 'c1', 'c1', 'c1', '2026-01-01', NULL, '{\"a\": [1]}')",
    "INSERT INTO verdicts VALUES (7, 'behaviour', 'kept', 0, 0, 0, 0.03, 5, 1, 1, 0.5, NULL, "
    "'{\"power\": 0.5}')",
    "INSERT INTO reviews VALUES (5, 7, 'approve', 'ok', 'ann', 't', '2026-01-01')",
)


def check(tracker: Tracker) -> None:
    """Assert that the rows say what they said."""
    document = queries.cycle(tracker.db, 7)
    assert document["summary"] == {"a": [1]} and document["review"]["note"] == "ok"
    assert document["verdict"]["axes"]["behaviour"]["details"] == {"power": 0.5}
    assert queries.resolve(tracker.db, "current") == "c1"
    assert [run["id"] for run in queries.runs(tracker.db, limit=10**6)][-2:] == ["r2", "r1"]
