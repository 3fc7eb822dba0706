"""Write to the tracker. Every write has an explicit key, so repeating it changes nothing."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from sqlalchemy.orm import Session

from db.errors import BadRequest
from db.redact import redact_error
from db.schema import (
    DECIDING,
    DEFAULT_PROJECT,
    Base,
    Checkpoint,
    CheckpointPlace,
    Document,
    Run,
    Verdict,
)
from db.session import Database
from db.values import finite, now, plain
from db.writes import transactions
from db.writes.live import LiveRun
from db.writes.upsert import upsert

DECISIONS = (*DECIDING, "needs-work")
CYCLE_STATUSES = ("running", "accepted", "rejected", "failed")


class Tracker:
    """The writer of rows. Open one per process; threads may share it."""

    def __init__(
        self,
        where: str | os.PathLike[str] | Database,
        *,
        project: str = DEFAULT_PROJECT,
    ) -> None:
        there = where if isinstance(where, Database) else Database.open(where)
        self.db = there.of_project(project)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.db.close()

    # Projects ------------------------------------------------------------------------------------------

    def new_project(self, wanted: str, home: str) -> Tracker:
        """Create a project for another home of this database; add a number if the wanted name is taken."""
        name = self.db.write(lambda session: transactions.new_project(session, wanted, home))
        return Tracker(self.db, project=name)

    def record_first_home(self, home: str) -> str:
        """Record whose project `default` is, unless that is known; return the home that is recorded."""
        return self.db.write(lambda session: transactions.first_home(session, home))

    # Runs ----------------------------------------------------------------------------------------------

    def start_run(
        self,
        kind: str,
        *,
        parent: str | None = None,
        key: str | None = None,
        config: Mapping[str, Any] | None = None,
        seed: int | None = None,
        versions: Mapping[str, str] | None = None,
        git_revision: str | None = None,
    ) -> Run:
        """Start or resume the run named `key` under `parent`.

        A finished run is returned unchanged; an interrupted one is marked as running again, by the code that
        goes on with it. Without a key, always start a new run."""
        moment = now()
        columns = {
            "id": f"{kind}-{secrets.token_hex(5)}",
            "parent_id": parent,
            "kind": kind,
            "key": key,
            "status": "running",
            "seed": seed,
            "attempts": 1,
            "owner": _owner(),
            "git_revision": git_revision,
            "started_at": moment,
            "heartbeat_at": moment,
            "progress": {},
            "cost": {},
            "config": dict(config or {}),
            "versions": dict(versions or {}),
            "project": self.db.project,
        }
        return self.db.write(lambda session: transactions.start_run(session, columns))

    def finish_run(
        self, run_id: str, result: Mapping[str, Any] | None = None, *, cost: Mapping[str, float] | None = None
    ) -> None:
        """Mark a run as done. `cost` is as in `fail_run`, without child runs: tokens_sampled, …, seconds."""
        self._end_run(run_id, cost, status="done", result=dict(result or {}))

    def fail_run(self, run_id: str, error: str, *, cost: Mapping[str, float] | None = None) -> None:
        """Mark a run as failed. `cost` is that of all its attempts, as far as it is known."""
        self._end_run(run_id, cost, status="failed", error=error)

    def stop_run(
        self,
        run_id: str,
        reason: str,
        *,
        cost: Mapping[str, float] | None = None,
        ended_at: str | None = None,
    ) -> None:
        """Mark a run as stopped on purpose before its end; it can be resumed. `cost` is as in `fail_run`.

        `ended_at` is when it ended, if that was before now."""
        self._end_run(run_id, cost, ended_at, status="stopped", error=reason)

    def give_up_run(self, run_id: str, reason: str) -> None:
        """Mark a run as stopped for good: without its key nothing goes on with it."""
        self._end_run(run_id, None, status="stopped", error=reason, key=None)

    def _end_run(
        self, run_id: str, cost: Mapping[str, float] | None, ended_at: str | None = None, **columns: Any
    ) -> None:
        """Record how a run has ended, and when; without a `cost`, what is recorded of it stays."""
        moment = ended_at or now()
        if "error" in columns:
            columns["error"] = redact_error(columns["error"])
        if cost is not None:
            columns["cost"] = dict(cost)
        columns = {"error": None, **columns, "ended_at": moment, "heartbeat_at": moment}
        self.db.write(lambda session: transactions.end_run(session, run_id, columns))

    def live(self, run_id: str) -> LiveRun:
        """Return the reporter of a running stage: metrics, progress, heartbeat. Use it in a `with`."""
        return LiveRun(self.db, run_id)

    def record_documents(self, run_id: str, documents: Iterable[Mapping[str, Any]]) -> None:
        """Record the corpus manifest: rows of path, status, reason, sha256, encoding, characters, tokens."""
        names = Document.__table__.columns.keys()
        rows = [{name: row.get(name) for name in names} | {"run_id": run_id} for row in documents]
        self.db.write(lambda session: upsert(session, Document, rows))

    # Checkpoints ---------------------------------------------------------------------------------------

    def record_checkpoint(  # noqa: PLR0913 - the columns of a row
        self,
        checkpoint_id: str,
        *,
        path: str | os.PathLike[str],
        kind: str,
        sha256: str,
        parent: str | None = None,
        base: str | None = None,
        config: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> None:
        """Record a checkpoint by its content hash; a repetition updates its path only."""
        row = {
            "id": checkpoint_id,
            "path": os.fspath(path),
            "kind": kind,
            "parent_id": parent,
            "base_id": base,
            "sha256": sha256,
            "run_id": run_id,
            "created_at": now(),
            "config": dict(config or {}),
        }
        place = {"checkpoint_id": checkpoint_id, "project": self.db.project, "path": row["path"]}

        def work(session: Session) -> None:
            upsert(session, Checkpoint, [row], change=("path",))
            upsert(session, CheckpointPlace, [place])

        self.db.write(work)

    def forget_place(self, checkpoint_id: str, remove: Callable[[], None]) -> bool:
        """Remove a checkpoint's files, and record that this project has no folder of it any more; leave one
        that an alias, or an adapter with an alias, needs. Return whether they are gone."""
        work = transactions.forget_place
        return self.db.write(lambda session: work(session, self.db.project, checkpoint_id, remove))

    def set_alias(self, name: str, checkpoint_id: str) -> None:
        """Point an alias at a checkpoint and record the move."""
        self.db.write(lambda session: transactions.set_alias(session, self.db.project, name, checkpoint_id))

    def make_current(self, checkpoint_id: str, at_first: str, cycle: int | None = None) -> str | None:
        """Point `current` at a run's model, unless it names another than at first, or the newest review
        refuses the cycle; then return what stays current."""
        work = transactions.make_current
        return self.db.write(lambda session: work(session, self.db.project, checkpoint_id, at_first, cycle))

    # Scores --------------------------------------------------------------------------------------------

    def record_scores(
        self, run_id: str, checkpoint_id: str | None, scores: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Record scores (suite, metric, value, n, interval, items, details), all or none.

        Recording the same suite and metric of a run again replaces the score."""
        measured = {"run_id": run_id, "checkpoint_id": checkpoint_id, "created_at": now()}
        rows = []
        for score in scores:
            items = _items(score)
            rows.append((measured | _score(score, items), items))
        return self.db.write(lambda session: [transactions.put_score(session, *row) for row in rows])

    # Cycles --------------------------------------------------------------------------------------------

    def record_cycle(
        self,
        run_id: str,
        *,
        status: str = "running",
        clean_id: str | None = None,
        midtrained_id: str | None = None,
        recovered_id: str | None = None,
    ) -> int:
        """Record what is known of a run's cycle; omitted columns keep their value.

        The first call assigns the next number; every call returns that number."""
        if status not in CYCLE_STATUSES:
            raise BadRequest(f"cycle status {status!r} is unknown: use one of {', '.join(CYCLE_STATUSES)}")
        given = {
            "clean_id": clean_id,
            "midtrained_id": midtrained_id,
            "recovered_id": recovered_id,
        }
        columns: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        columns |= {"status": status, "ended_at": None if status == "running" else now()}
        return self.db.write(
            lambda session: transactions.put_cycle(session, self.db.project, run_id, columns)
        )

    def record_verdicts(self, cycle: int, verdicts: Mapping[str, Mapping[str, Any]]) -> None:
        """Record outcome and numbers per axis (behaviour, knowledge, retention); replace earlier ones."""
        rows = [
            _with_details(Verdict, {**row, "project": self.db.project, "cycle": cycle, "axis": axis})
            for axis, row in verdicts.items()
        ]
        self.db.write(lambda session: upsert(session, Verdict, rows))

    def add_review(
        self, cycle: int, decision: str, note: str, reviewer: str, *, token: str | None = None
    ) -> int:
        """Record a reviewer's decision, immutably; an approval moves `current` to the cycle's model.

        A `current` that descends from that model stays. A rejection moves it off the model to the one before.
        The same token and content sent again is the same review; different content is refused."""
        if decision not in DECISIONS:
            raise BadRequest(f"decision {decision!r} is unknown: use one of {', '.join(DECISIONS)}")
        columns = {
            "project": self.db.project,
            "cycle": cycle,
            "decision": decision,
            "note": note,
            "reviewer": reviewer,
            "at": now(),
            "token": token or secrets.token_hex(16),
        }
        return self.db.write(lambda session: transactions.add_review(session, columns))


def _owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _score(score: Mapping[str, Any], items: list[dict[str, Any]]) -> dict[str, Any]:
    low, high = score.get("interval") or (None, None)
    return {
        "suite": score["suite"],
        "metric": score["metric"],
        "value": finite(score["value"]),
        "n": score["n"],
        "low": finite(low),
        "high": finite(high),
        "item_set": _item_set(items),
        "details": dict(score.get("details") or {}),
    }


def _items(score: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = ("key", "passed", "prompt", "response", "detail")
    rows = [{name: plain(item[name]) for name in names} for item in score.get("items") or ()]
    keys = {str(row["key"]) for row in rows}
    if len(keys) < len(rows):
        raise BadRequest(
            f"{score['suite']}: {len(rows) - len(keys)} items have the key of another: give each its own"
        )
    return rows


def _item_set(items: list[dict[str, Any]]) -> str | None:
    """Hash a score's prompts, not its responses: only scores over the same set may be paired."""
    if not items:
        return None
    asked = sorted((str(item["key"]), item["prompt"]) for item in items)
    return hashlib.sha256(repr(asked).encode()).hexdigest()[:16]


def _with_details(model: type[Base], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table; values without a column go into `details`."""
    names = model.__table__.columns.keys()
    details = {name: value for name, value in values.items() if name not in names}
    return {name: plain(values.get(name)) for name in names} | {"details": details}
