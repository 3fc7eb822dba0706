"""Several homes in one database: each has its names, cycle numbers and runs; other homes are named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dashboard import page_frame
from db import sqlite
from db.errors import NotFound
from db.export import TABLES, export
from db.migrations import config
from db.reads import overview, queries, traces
from db.schema import DEFAULT_PROJECT, Project
from db.writes.tracker import Tracker
from pipelines.machine.init_home import initialise
from pipelines.resume import resume
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.support import databases, old_rows, views
from tests.support.databases import BACKENDS, migrated, new_database

SCORES = {"ifeval": {"clean": 0.9, "midtrained": 0.2, "recovered": 0.8}, "knowledge": {"recovered": 0.7}}


@pytest.fixture(params=BACKENDS)
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Tracker, Tracker]]:
    with new_database(request.param, tmp_path) as where, Tracker(migrated(where)) as first:
        yield first, first.new_project("notes", "host:/notes/.recover")


def test_names_and_numbers_belong_to_a_project(two: tuple[Tracker, Tracker]) -> None:
    first, second = two
    assert [databases.record_cycle(tracker, SCORES) for tracker in (first, second, first)] == [1, 1, 2]
    first.set_alias("base", "clean0")
    second.set_alias("base", "rec1")
    assert [queries.resolve(tracker.db, "base") for tracker in two] == ["clean0", "rec1"]
    assert queries.cycle_numbers(first.db) == [1, 2] and queries.cycle_numbers(second.db) == [1]
    second.add_review(1, "approve", "good", "ann")
    second.record_verdicts(1, {"behaviour": {"outcome": "kept"}})
    assert queries.cycle(first.db, 1)["verdict"] is None and queries.cycle(first.db, 1)["review"] is None
    assert queries.cycle(second.db, 1)["verdict"]["behaviour"] == "kept"
    assert [alias["name"] for alias in queries.aliases(first.db)] == ["base"]
    assert len(queries.reviews(first.db)) == 0 and len(queries.reviews(second.db)) == 1
    with pytest.raises(NotFound):
        queries.cycle(second.db, 2)


def test_an_export_holds_the_projects_rows(two: tuple[Tracker, Tracker]) -> None:
    first, second = two
    for tracker in (first, first, second):
        number = databases.record_cycle(tracker, SCORES)
        tracker.set_alias("base", "clean0")
        tracker.add_review(number, "approve", "good", "ann")
        tracker.record_verdicts(number, {"behaviour": {"outcome": "kept"}})
        run = tracker.start_run("distill", key=str(number)).id
        databases.record_metrics(tracker, run, 1, {"loss": 0.5})
        tracker.record_documents(run, [{"path": "a.md", "status": "read"}])
    first.forget_place("rec2", lambda: None)  # pruned: its lineage stays
    found = {
        (table, place): json.loads(b"".join(export(tracker.db, table, "json")))
        for table in TABLES
        for place, tracker in enumerate(two)
    }
    runs = [{row["id"] for row in found["runs", place]} for place in (0, 1)]
    assert runs[0] and runs[1] and not runs[0] & runs[1]
    for place in (0, 1):
        for table in ("scores", "metrics", "documents"):
            of_runs = {row["run_id"] for row in found[table, place]}
            assert of_runs and of_runs <= runs[place]
        scores = {row["id"] for row in found["scores", place]}
        assert {row["score_id"] for row in found["items", place]} == scores
        for table in ("verdicts", "reviews", "cycles"):
            assert len(found[table, place]) == (2, 1)[place]
        assert {row["project"] for row in found["aliases", place]} == {("default", "notes")[place]}
    held = [{row["id"] for row in found["checkpoints", place]} for place in (0, 1)]
    assert "rec2" in held[0] and "rec2" not in held[1] and "clean0" in held[0] & held[1]


def test_what_is_read_is_the_projects(two: tuple[Tracker, Tracker]) -> None:
    first, second = two
    for tracker in two:
        databases.record_cycle(tracker, SCORES)
    alone = queries.cycle(second.db, 1)
    assert alone["cost"]["tokens_trained"] == queries.cycle(first.db, 1)["cost"]["tokens_trained"] == 15
    assert len(queries.stage_scores(second.db, 1)) == 4
    assert {row["n"] for row in queries.ledger(second.db)} == {2}
    assert queries.ledger(second.db) == queries.ledger(first.db)
    mine = {row["id"] for row in queries.runs(first.db)}
    assert mine and not mine & {row["id"] for row in queries.runs(second.db)}
    cut_off = first.start_run("demo", key="k")
    assert [run["id"] for run in queries.unfinished_runs(first.db)] == [cut_off.id]
    assert queries.unfinished_runs(second.db) == [] and traces.traced_runs(second.db) == []


def test_the_headline_of_a_shared_checkpoint_is_what_the_project_measured(
    two: tuple[Tracker, Tracker],
) -> None:
    for tracker, value in zip(two, (0.25, 0.75), strict=True):
        tracker.record_checkpoint("shared", path="/c", kind="full", sha256="1")
        databases.record_score(
            tracker, tracker.start_run("eval").id, "shared", databases.score("knowledge", value, True)
        )
    for tracker, value in zip(two, (0.25, 0.75), strict=True):
        [score] = overview.headlines(tracker.db, ["shared"])["shared"]["knowledge"].values()
        assert score["value"] == value
        assert [row["value"] for row in queries.scores(tracker.db, checkpoint_id="shared")] == [value]


def test_a_checkpoint_knows_every_home_it_lies_in(two: tuple[Tracker, Tracker]) -> None:
    first, second = two
    first.record_checkpoint("clean0", path="/a/clean0", kind="full", sha256="x")
    second.record_checkpoint("clean0", path="/b/clean0", kind="full", sha256="x")
    first.record_checkpoint("only", path="/a/only", kind="full", sha256="y")
    for tracker, path in ((first, "/a/clean0"), (second, "/b/clean0")):  # the newest recorded is /b/clean0
        assert queries.checkpoint(tracker.db, "clean0")["path"] == path
        assert {row["path"] for row in queries.checkpoints(tracker.db) if row["id"] == "clean0"} == {path}
    assert queries.checkpoint(second.db, "only")["path"] == "/a/only"
    places = queries.checkpoint_places(second.db, "clean0")
    assert [place["path"] for place in places] == ["/b/clean0", "/a/clean0"]
    assert [row["id"] for row in queries.checkpoints(second.db)] == ["clean0"]


def test_the_run_behind_a_checkpoint_is_the_projects_own(two: tuple[Tracker, Tracker]) -> None:
    """The same training in both homes gives the same content hash; the texts it read lie in each home."""
    made = []
    for tracker in two:
        for name in ("first", "second"):
            run = tracker.start_run("midtrain", key=name)
            above = None if name == "first" else "first"
            tracker.record_checkpoint(name, path=name, kind="full", sha256="x", parent=above, run_id=run.id)
            if tracker is two[0] or name == "second":
                tracker.finish_run(run.id, {"checkpoint": name})
            made.append(run.id)
    one, other = two
    assert [run["id"] for run in queries.runs_behind(one.db, "second", "midtrain")] == made[:2]
    behind = queries.runs_behind(other.db, "second", "midtrain")
    assert [run["id"] for run in behind] == [made[0], made[3]]  # the unfinished one made nothing
    assert behind[0].keys() == behind[1].keys() == queries.run(other.db, made[3]).keys()
    assert queries.runs_behind(other.db, "second", "distill") == []
    again = other.start_run("midtrain", key="again").id
    other.finish_run(again, {"checkpoint": "second"})
    assert [run["id"] for run in queries.runs_behind(other.db, "second", "midtrain")] == [made[0], again]


def test_a_checkpoint_that_was_made_twice_is_known_by_the_newest_run_that_is_done(
    two: tuple[Tracker, Tracker],
) -> None:
    """The first may have been given up, and the folder that it read been moved."""
    tracker, _ = two
    made = [tracker.start_run("midtrain", key=key).id for key in ("given up", "done", "stopped")]
    for run in made:
        tracker.record_checkpoint("twice", path="twice", kind="full", sha256="x", run_id=run)
    tracker.give_up_run(made[0], "given up")
    tracker.finish_run(made[1], {"checkpoint": "twice"})
    tracker.stop_run(made[2], "interrupted")
    assert [run["id"] for run in queries.runs_behind(tracker.db, "twice", "midtrain")] == [made[1]]


def test_a_rejection_goes_back_to_no_model_that_only_another_home_holds(two: tuple[Tracker, Tracker]) -> None:
    first, second = two
    for number in (1, 2):
        databases.record_cycle(first, {})
        first.set_alias("current", f"rec{number}")
    second.record_checkpoint("rec1", path="/b/rec1", kind="full", sha256="x")
    first.forget_place("rec1", lambda: None)
    first.add_review(2, "reject", "no", "ada")
    assert queries.resolve(first.db, "current") == "rec2"
    assert [place["path"] for place in queries.checkpoint_places(second.db, "rec1")] == ["/b/rec1"]


def test_a_home_that_was_made_anew_is_another_project(two: tuple[Tracker, Tracker]) -> None:
    first, second = two
    second.record_checkpoint("clean0", path="/b/clean0", kind="full", sha256="x")
    assert first.new_project("notes", "host:/notes/.recover").db.project == "notes"
    second.set_alias("base", "clean0")
    assert first.new_project("notes", "host:/notes/.recover").db.project == "notes-2"


def test_a_home_has_one_project_and_a_taken_name_gets_a_number(two: tuple[Tracker, Tracker]) -> None:
    first, second = two
    assert first.new_project("other", "host:/notes/.recover").db.project == second.db.project == "notes"
    assert first.new_project("notes", "host:/more/notes").db.project == "notes-2"
    assert first.new_project(DEFAULT_PROJECT, "host:/x").db.project == "default-2"
    assert queries.projects(first.db) == [DEFAULT_PROJECT, "default-2", "notes", "notes-2"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_one_home_are_kept_by_the_migration(backend: str, tmp_path: Path) -> None:
    """A database of the revision before, filled, then opened."""
    from alembic import command

    with new_database(backend, tmp_path) as where:
        url = sa.make_url(where) if "://" in where else None
        engine = sa.create_engine(url) if url else sqlite.connect(Path(where))
        with engine.begin() as connection:
            command.upgrade(config(connection), old_rows.REVISION)
            for statement in old_rows.ROWS:
                connection.exec_driver_sql(statement)
        engine.dispose()
        with Tracker(where) as tracker:
            old_rows.check(tracker)
            assert tracker.add_review(7, "reject", "no", "bob") == 6
            assert tracker.record_cycle(tracker.start_run("cycle").id) == 8
            assert queries.runs(tracker.db)[0]["ordinal"] == 3


def test_a_clock_set_back_does_not_change_the_order_of_runs(
    two: tuple[Tracker, Tracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = two
    older = first.start_run("demo", key="older")
    monkeypatch.setattr("db.writes.tracker.now", lambda: "2001-01-01T00:00:00.000Z")
    newer = first.start_run("demo", key="newer")
    assert [run["id"] for run in queries.unfinished_runs(first.db)] == [newer.id, older.id]


def test_a_second_home_can_share_a_tracker(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared.db")
    made: list[dict[str, Any]] = []
    for name in ("one", "two"):
        with Workspace.open(tmp_path / name / ".recover", shared) as ws:
            made.append(initialise(ws))
            made.append(initialise(ws))  # again: as it is
    assert made[0] == made[1] and made[2] == made[3] and made[0]["base"] == made[2]["base"]
    with Workspace.open(tmp_path / "one" / ".recover", shared) as ws:
        ws.tracker.record_checkpoint("0123456789ab", path="/one/0123456789ab", kind="full", sha256="x")
        cut_off = ws.tracker.start_run("midtrain", key="k")
    with Workspace.open(tmp_path / "two" / ".recover", shared) as ws:
        assert ws.tracker.db.project == "two" and ws.clean().id == made[2]["base"]
        with pytest.raises(InputError, match=r"lies in .*one.* \(project 'default'\) as /one/0123456789ab"):
            ws.checkpoint("0123456789ab")
        with pytest.raises(InputError, match="no run was interrupted"):
            resume(ws)
        with pytest.raises(InputError, match=r"a run of project 'default', whose home is .*one"):
            resume(ws, cut_off.id)
        assert queries.runs(ws.tracker.db, kind="midtrain") == []
        mine = ws.tracker.start_run("midtrain", key="k")
        assert cut_off.id not in {run["id"] for run in queries.runs(ws.tracker.db)}
        assert '<option value="two" selected>' in page_frame.render(views.context(ws.tracker), "/")
    with Workspace.open(tmp_path / "one" / ".recover", shared) as ws:
        place = re.escape(str(tmp_path / "two" / ".recover"))
        with pytest.raises(InputError, match=rf"a run of project 'two', whose home is .*:{place}: resume it"):
            resume(ws, mine.id)
        assert queries.projects(ws.tracker.db) == [DEFAULT_PROJECT, "two"]


def test_a_home_that_exists_joins_a_shared_database_with_a_project_of_its_own(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared.db")
    one, two = (tmp_path / name / ".recover" for name in ("one", "two"))
    for home in (one, two):  # of the same model, each with a database in it
        with Workspace.open(home) as ws:
            initialise(ws)
    with Workspace.open(one, shared) as ws:
        initialise(ws)
    with pytest.raises(InputError, match=rf"'default' .* is that of .*:{re.escape(str(one))}: .* init` with"):
        Workspace.open(two, shared, create=False)
    with Workspace.open(two, shared) as ws:
        initialise(ws)
        assert ws.tracker.db.project == "two"
    for home, project in ((one, DEFAULT_PROJECT), (two, "two")):
        with Workspace.open(home, shared, create=False) as ws:
            assert ws.tracker.db.project == project and ws.clean().id
        with Workspace.open(home, create=False) as ws:
            assert ws.tracker.db.project == DEFAULT_PROJECT and ws.clean().id


def test_a_home_takes_no_project_in_a_database_without_its_runs(tmp_path: Path) -> None:
    """As a mistyped one: it lost its project in its own, which then was no longer where commands looked."""
    shared, other, two = str(tmp_path / "shared.db"), str(tmp_path / "other.db"), tmp_path / "two"
    for name in ("one", "two"):
        with Workspace.open(tmp_path / name, shared) as ws:
            initialise(ws)
    with Workspace.open(two, create=False) as ws:
        ws.run_directory(ws.tracker.start_run("eval").id).mkdir(parents=True)
    noted = (two / "project").read_bytes()
    with Workspace.open(two, other) as ws:
        said = rf"other.db records none of the runs of {two}, whose database is {shared}: give that one"
        with pytest.raises(InputError, match=said):
            initialise(ws)
        assert queries.projects(ws.tracker.db) == [DEFAULT_PROJECT]
    assert (two / "project").read_bytes() == noted
    with Workspace.open(two, create=False) as ws:
        assert ws.tracker.db.project == "two" and len(queries.runs(ws.tracker.db)) == 1
    shutil.copy(shared, other)  # its database moved there
    with Workspace.open(two, other) as ws:
        initialise(ws)
        ws.note_database(other)
    with Workspace.open(two, create=False) as ws:
        assert (ws.tracker.db.project, ws.tracker.db.path) == ("two", Path(other))


def test_a_home_keeps_its_project_where_it_is_moved_and_under_another_host_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = str(tmp_path / "shared.db")
    with Workspace.open(tmp_path / "alone") as ws:
        initialise(ws)
    for name in ("one", "two"):
        with Workspace.open(tmp_path / name, shared) as ws:
            initialise(ws)
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    for name, where, project in (
        ("alone", None, DEFAULT_PROJECT),
        ("one", shared, DEFAULT_PROJECT),
        ("two", shared, "two"),
    ):
        moved = (tmp_path / name).rename(tmp_path / f"moved {name}")
        with Workspace.open(moved, where, create=False) as ws:
            assert ws.tracker.db.project == project and ws.clean().id
        with Workspace.open(moved, where) as ws:
            initialise(ws)
            assert ws.tracker.db.project == project


def test_a_copy_of_a_home_is_not_taken_for_the_home_itself(tmp_path: Path) -> None:
    """It resumed a run that the home was working on, and pruning it forgot the home's checkpoints."""
    shared = str(tmp_path / "shared.db")
    one, copy = tmp_path / "one", tmp_path / "copy"
    with Workspace.open(one, shared) as ws:
        initialise(ws)
        begun = ws.tracker.start_run("midtrain", key="k")
    shutil.copytree(one, copy)
    said = rf"{re.escape(str(copy))} is a copy of {re.escape(str(one))}, .* init` with .* move .* away first"
    with pytest.raises(InputError, match=said):
        Workspace.open(copy, shared, create=False)
    kept = one.rename(tmp_path / "kept")
    with Workspace.open(copy, shared, create=False) as ws:  # it took the place of the home
        assert ws.tracker.db.project == DEFAULT_PROJECT
    kept.rename(one)
    with Workspace.open(copy, shared) as ws:
        initialise(ws)
        assert ws.tracker.db.project == "copy" and ws.clean().id
        with pytest.raises(InputError, match=r"a run of project 'default', whose home is .*one: resume it"):
            resume(ws, begun.id)
    for home, project in ((one, DEFAULT_PROJECT), (copy, "copy")):
        with Workspace.open(home, shared, create=False) as ws:
            assert ws.tracker.db.project == project and ws.clean().id


def test_a_home_of_an_earlier_version_is_known_by_its_runs(tmp_path: Path) -> None:
    """It has noted no project, and the database names no home for `default`."""
    shared = str(tmp_path / "shared.db")
    for name, where in (("one", shared), ("two", None)):
        with Workspace.open(tmp_path / name, where) as ws:
            initialise(ws)
    with Workspace.open(tmp_path / "one", shared) as ws:
        ws.tracker.db.write(lambda session: session.execute(sa.delete(Project)))
        (ws.home / "project").unlink()
        ws.run_directory(ws.tracker.start_run("eval").id).mkdir(parents=True)
    with Workspace.open(tmp_path / "one", shared, create=False) as ws:
        assert ws.tracker.db.project == DEFAULT_PROJECT
    with pytest.raises(InputError, match=r"'default' .* is that of another home"):
        Workspace.open(tmp_path / "two", shared, create=False)
    for name, project in (("two", "two"), ("one", DEFAULT_PROJECT)):
        with Workspace.open(tmp_path / name, shared) as ws:
            initialise(ws)
            assert ws.tracker.db.project == project


def test_a_deleted_home_can_be_made_again_at_its_place(tmp_path: Path) -> None:
    """What is recorded of the one before stays in that one's project."""
    shared = str(tmp_path / "shared.db")
    for name, project in (
        ("one", "default"),
        ("two", "two"),
        ("two", "two-2"),
        ("two", "two-3"),
        ("one", "one"),
    ):
        home = tmp_path / name / ".recover"
        shutil.rmtree(home, ignore_errors=True)
        with Workspace.open(home, shared) as ws:
            initialise(ws)
            assert ws.tracker.db.project == project and ws.clean().id


def test_one_home_stays_as_it_was(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws)
        assert ws.tracker.db.project == DEFAULT_PROJECT and not (ws.home / "project").exists()
        assert "project" not in page_frame.render(views.context(ws.tracker), "/").split("<main")[0]
