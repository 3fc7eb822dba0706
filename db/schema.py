"""Define the tables. A change needs a new revision in migrations/versions; a test compares the two.

Timestamps are UTC text (values.now), except metrics.at, with millions of rows: seconds since 1970.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from db.values import SafeText

REVISION = "0003"  # the newest revision in migrations/versions
VERSION_TABLE = (
    "recover_version"  # not Alembic's default: a PostgreSQL database may hold another application's tables
)

DECIDING = ("approve", "reject")  # reviews that decide what is in use; others are notes
DEFAULT_PROJECT = "default"  # project of the first home; further homes get other names

JSONObject = dict[str, Any]


class Base(DeclarativeBase):
    type_annotation_map: ClassVar = {str: SafeText, float: Double, JSONObject: JSON(none_as_null=True)}


def project_column(*, key: bool = False) -> Mapped[str]:
    """Return the project column: aliases, cycle numbers and runs are scoped by project."""
    return mapped_column(primary_key=key, server_default=text(f"'{DEFAULT_PROJECT}'"))


class Project(Base):
    """One of the homes that share this database."""

    __tablename__ = "projects"

    name: Mapped[str] = mapped_column(primary_key=True)
    home: Mapped[str]  # host:folder
    created_at: Mapped[str]


class Run(Base):
    """One unit of work: a demo, a cycle, or a stage. Parent and key identify a stage for resuming."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(primary_key=True)
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id"), index=True)
    kind: Mapped[str]
    key: Mapped[str | None]
    status: Mapped[str] = mapped_column(index=True)  # running, done, failed, stopped
    seed: Mapped[int | None] = mapped_column(BigInteger)
    attempts: Mapped[int]
    owner: Mapped[str | None]  # host:process that executes it
    git_revision: Mapped[str | None]
    started_at: Mapped[str]
    heartbeat_at: Mapped[str]
    ended_at: Mapped[str | None]
    error: Mapped[str | None]
    progress: Mapped[JSONObject]
    cost: Mapped[JSONObject]  # tokens_sampled, tokens_scored, tokens_trained, seconds, without child runs
    result: Mapped[JSONObject | None]
    config: Mapped[JSONObject]
    versions: Mapped[JSONObject]
    project: Mapped[str] = project_column()
    ordinal: Mapped[int] = mapped_column(
        BigInteger, server_default=text("0")
    )  # order of start, independent of clocks

    @property
    def done(self) -> bool:
        return self.status == "done"


# NULL is never equal to NULL in a unique index, so a run without a parent counts as a child of "".
Index("runs_parent_key", Run.project, func.coalesce(Run.parent_id, text("''")), Run.key, unique=True)
Index("runs_newest", Run.project, Run.ordinal, Run.id)


class Checkpoint(Base):
    """A model on disk, identified by a hash of its content."""

    __tablename__ = "checkpoints"

    id: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str]
    kind: Mapped[str]  # full, adapter, reference
    parent_id: Mapped[str | None]
    base_id: Mapped[str | None]
    sha256: Mapped[str]
    run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id"), index=True)
    created_at: Mapped[str]
    config: Mapped[JSONObject]


Index("checkpoints_newest", Checkpoint.created_at, Checkpoint.id)


class CheckpointPlace(Base):
    """The folder of a checkpoint in one project: several homes may hold the same content."""

    __tablename__ = "checkpoint_places"

    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("checkpoints.id"), primary_key=True)
    project: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str]


class Alias(Base):
    """The current target of a name such as "base" or "current"."""

    __tablename__ = "aliases"

    project: Mapped[str] = project_column(key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("checkpoints.id"))
    moved_at: Mapped[str]


class AliasMove(Base):
    """Every target that an alias has had, with the time of the move: append-only."""

    __tablename__ = "alias_moves"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(index=True)
    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("checkpoints.id"))
    moved_at: Mapped[str]
    project: Mapped[str] = project_column()


class Cycle(Base):
    """One cycle: its clean, midtrained and recovered checkpoints."""

    __tablename__ = "cycles"

    project: Mapped[str] = project_column(key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), unique=True)
    status: Mapped[str]  # running, accepted, rejected, failed
    clean_id: Mapped[str | None] = mapped_column(ForeignKey("checkpoints.id"))
    midtrained_id: Mapped[str | None] = mapped_column(ForeignKey("checkpoints.id"))
    recovered_id: Mapped[str | None] = mapped_column(ForeignKey("checkpoints.id"))
    started_at: Mapped[str]
    ended_at: Mapped[str | None]
    summary: Mapped[JSONObject]


class Metric(Base):
    """One point of one metric. `special` names NaN and infinity: SQLite would turn NaN into NULL."""

    __tablename__ = "metrics"
    __table_args__ = ({"sqlite_with_rowid": False},)  # clustered by key: half the size, one look-up

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    value: Mapped[float | None]
    special: Mapped[str | None]
    at: Mapped[float]


class Trace(Base):
    """One rollout of a training step, token by token, with the student's and the teacher's likelihoods."""

    __tablename__ = "traces"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)  # index among the step's rollouts
    prompt: Mapped[str]
    estimator: Mapped[str]  # exact, top-k, sampled, none: the divergence's estimator
    mean: Mapped[float | None]  # mean divergence per token
    n: Mapped[int]
    tokens: Mapped[JSONObject]  # lists with one entry per token


class Score(Base):
    """One metric of one suite for one checkpoint, or for responses from a file (no checkpoint)."""

    __tablename__ = "scores"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    checkpoint_id: Mapped[str | None] = mapped_column(ForeignKey("checkpoints.id"))
    suite: Mapped[str]
    metric: Mapped[str]
    value: Mapped[float | None]  # None: undefined, such as a mean over nothing
    n: Mapped[int]
    low: Mapped[float | None]
    high: Mapped[float | None]
    item_set: Mapped[str | None]  # hash of the items' keys and prompts: only equal sets may be paired
    created_at: Mapped[str]
    details: Mapped[JSONObject]


Index(
    "scores_unique",
    Score.run_id,
    func.coalesce(Score.checkpoint_id, text("''")),
    Score.suite,
    Score.metric,
    unique=True,
)
Index("scores_checkpoint", Score.checkpoint_id, Score.suite)


class Item(Base):
    """One prompt's result under one score."""

    __tablename__ = "items"

    score_id: Mapped[int] = mapped_column(ForeignKey("scores.id", ondelete="CASCADE"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    passed: Mapped[bool]
    prompt: Mapped[str]
    response: Mapped[str]
    detail: Mapped[JSONObject]


class Verdict(Base):
    """The outcome on one axis (behaviour, knowledge, retention) of a cycle, with its numbers."""

    __tablename__ = "verdicts"
    __table_args__ = (ForeignKeyConstraint(("project", "cycle"), ("cycles.project", "cycles.number")),)

    project: Mapped[str] = project_column(key=True)
    cycle: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    axis: Mapped[str] = mapped_column(primary_key=True)
    outcome: Mapped[str]
    difference: Mapped[float | None]
    lower_bound: Mapped[float | None]
    upper_bound: Mapped[float | None]
    margin: Mapped[float | None]
    n: Mapped[int | None]
    gained: Mapped[int | None]
    lost: Mapped[int | None]
    p_value: Mapped[float | None]
    needed_n: Mapped[int | None] = mapped_column(BigInteger)
    details: Mapped[JSONObject]  # further numbers, other tests


class Review(Base):
    """A reviewer's decision about a cycle: append-only."""

    __tablename__ = "reviews"
    __table_args__ = (
        UniqueConstraint("token"),
        ForeignKeyConstraint(("project", "cycle"), ("cycles.project", "cycles.number")),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    project: Mapped[str] = project_column()
    cycle: Mapped[int]
    decision: Mapped[str]  # approve, reject, needs-work
    note: Mapped[str]
    reviewer: Mapped[str]
    token: Mapped[str]  # makes a repeated submission one review
    at: Mapped[str]


Index("reviews_cycle", Review.project, Review.cycle)


class Document(Base):
    """One file of a run's corpus: read, or skipped and why."""

    __tablename__ = "documents"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str]  # read, skipped
    reason: Mapped[str | None]
    sha256: Mapped[str | None]
    encoding: Mapped[str | None]
    characters: Mapped[int | None] = mapped_column(BigInteger)
    tokens: Mapped[int | None] = mapped_column(BigInteger)
