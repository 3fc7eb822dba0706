"""Writing, on each kind of database: named rows, so that writing twice is writing once."""

from __future__ import annotations

import json
import math
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from db.errors import BadRequest, NotFound, TrackerError
from db.reads import checkpoints, curves, queries
from db.redact import HIDDEN
from db.schema import AliasMove, Base, Item, Metric
from db.session import Database
from db.values import plain, storable
from db.writes.points import Point
from db.writes.tracker import Tracker
from tests.support.databases import items, record_cycle, record_metrics, record_score, score


def count(tracker: Tracker, model: type[Base]) -> int:
    with tracker.db.read() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(model)) or 0


# Runs ------------------------------------------------------------------------------------------------------


def test_a_stage_is_started_once_and_done_once(tracker: Tracker) -> None:
    cycle = tracker.start_run("cycle", key="cycle:1", config={"steps": 3}, seed=7, versions={"torch": "2"})
    stage = tracker.start_run("midtrain", parent=cycle.id, key="midtrain")
    assert (cycle.config, cycle.seed, cycle.status, stage.attempts) == ({"steps": 3}, 7, "running", 1)
    tracker.fail_run(stage.id, "the disk is full")
    again = tracker.start_run("midtrain", parent=cycle.id, key="midtrain")
    assert (again.id, again.status, again.error, again.ended_at, again.attempts) == (
        stage.id,
        "running",
        None,
        None,
        2,
    )
    tracker.finish_run(stage.id, {"checkpoint": "abc"}, cost={"seconds": 1.5})
    done = tracker.start_run("midtrain", parent=cycle.id, key="midtrain")
    assert done.done and done.result == {"checkpoint": "abc"} and done.cost == {"seconds": 1.5}
    assert done.attempts == 2


def test_a_run_names_the_code_that_went_on_with_it(tracker: Tracker) -> None:
    tracker.start_run("eval", key="one", versions={"recover": "1"}, git_revision="abc")
    tracker.start_run("eval", key="one")
    began = tracker.start_run("eval", key="one")
    assert (began.versions, began.git_revision) == ({"recover": "1"}, "abc")
    run = tracker.start_run("eval", key="one", versions={"recover": "2"})
    tracker.finish_run(run.id)
    again = tracker.start_run("eval", key="one", versions={"recover": "3"})
    assert (again.versions, again.git_revision) == ({"recover": "2"}, None)


def test_a_run_that_ends_without_a_known_cost_keeps_what_is_recorded(tracker: Tracker) -> None:
    run = tracker.start_run("distill", key="one").id
    tracker.fail_run(run, "the disk is full", cost={"seconds": 1.5})
    tracker.stop_run(run, "interrupted")
    assert queries.run(tracker.db, run)["cost"] == {"seconds": 1.5}
    tracker.finish_run(run, {"checkpoint": "abc"})
    assert queries.run(tracker.db, run)["cost"] == {"seconds": 1.5}
    tracker.finish_run(run, cost={})
    assert queries.run(tracker.db, run)["cost"] == {}


def test_a_run_that_is_done_stays_done_whatever_ends_its_process_then(tracker: Tracker) -> None:
    run = tracker.start_run("distill", key="one").id
    tracker.finish_run(run, {"checkpoint": "abc"}, cost={"seconds": 1.5})
    done = queries.run(tracker.db, run)
    tracker.stop_run(run, "interrupted", cost={"seconds": 2.0})
    tracker.fail_run(run, "the disk is full")
    tracker.give_up_run(run, "given up")
    assert queries.run(tracker.db, run) == done


def test_runs_that_start_at_once_have_an_order(tracker: Tracker) -> None:
    """On a server two starts read the same newest run; `resume` may then go on with the wrong one."""
    mine = tracker.new_project("mine", "host:/home")
    together = threading.Barrier(4, timeout=60)

    def start() -> None:
        for _ in range(4):
            together.wait()
            mine.start_run("demo")

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(run["ordinal"] for run in queries.runs(mine.db)) == [*range(1, 17)]


def test_keys_are_names_under_a_parent(tracker: Tracker) -> None:
    one, two = tracker.start_run("cycle", key="cycle:1"), tracker.start_run("cycle", key="cycle:2")
    assert tracker.start_run("cycle", key="cycle:1").id == one.id != two.id
    stages = {tracker.start_run("eval", parent=run, key="eval:clean").id for run in (one.id, two.id, None)}
    assert len(stages) == 3
    assert tracker.start_run("eval").id != tracker.start_run("eval").id  # without a key: always new


def test_ending_a_run_that_was_never_started(tracker: Tracker) -> None:
    with pytest.raises(NotFound, match="run nobody is not recorded"):
        tracker.finish_run("nobody")


def test_a_parent_that_is_not_recorded(tracker: Tracker) -> None:
    with pytest.raises(TrackerError, match="refers to something that is not recorded"):
        tracker.start_run("midtrain", parent="nobody")


def test_a_seed_beyond_64_bits(tracker: Tracker) -> None:
    with pytest.raises(TrackerError):
        tracker.start_run("demo", seed=2**80)


# Writing again ---------------------------------------------------------------------------------------------


def test_a_lost_connection_after_the_commit_is_written_once(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst moment: the rows are there, but the answer is lost, so the tracker has to write again."""
    record_cycle(tracker, {"ifeval": {"clean": 0.9}})
    run = tracker.start_run("eval", key="eval")
    once, calls = type(tracker.db)._write_once, 0

    def answer_lost(self: Database, work: Callable[..., Any], deadline: float) -> Any:
        nonlocal calls
        calls += 1
        result = once(self, work, deadline)
        if calls % 2:
            raise OperationalError("COMMIT", {}, Exception(), connection_invalidated=True)
        return result

    monkeypatch.setattr(type(tracker.db), "_write_once", answer_lost)
    monkeypatch.setattr("db.session.RETRY_PAUSES", (0.0,))
    before = {model: count(tracker, model) for model in (mapper.class_ for mapper in Base.registry.mappers)}
    record_metrics(tracker, run.id, 1, {"loss": 1.0, "kl": 2.0})
    record_score(tracker, run.id, "clean0", score("ifeval", 0.5, True, False))
    tracker.record_cycle(run.id)
    tracker.record_verdicts(1, {"behaviour": {"outcome": "recovered", "n": 2}})
    tracker.add_review(1, "reject", "no", "ada")
    tracker.set_alias("base", "clean0")
    tracker.record_documents(run.id, [{"path": "a.md", "status": "read"}])
    tracker.start_run("demo")
    new = {model.__tablename__: count(tracker, model) - number for model, number in before.items()}
    assert new == {
        "runs": 1,
        "metrics": 2,
        "scores": 1,
        "items": 2,
        "cycles": 1,
        "verdicts": 1,
        "reviews": 1,
        "aliases": 1,
        "alias_moves": 1,
        "documents": 1,
        "checkpoints": 0,
        "traces": 0,
        "projects": 0,
        "checkpoint_places": 0,
    }
    assert calls == 16


# Metrics ---------------------------------------------------------------------------------------------------


def double(bits: int) -> float:
    return float(struct.unpack("<d", bits.to_bytes(8, "little"))[0])


# By their bits: st.floats() refuses to work where torch flushes subnormal numbers to zero.
doubles = st.builds(
    lambda sign, exponent, fraction: double(sign << 63 | exponent << 52 | fraction),
    st.integers(0, 1),
    st.integers(1, 2047),
    st.integers(0, 2**52 - 1),
)
specials = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0, 0.1, sys.float_info.max])


@given(values=st.dictionaries(st.text(max_size=8), doubles | specials, max_size=4))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_float_comes_back(tracker: Tracker, values: dict[str, float]) -> None:
    names = {storable(name): value for name, value in values.items()}
    run = tracker.start_run("distill")
    for _ in range(2):
        record_metrics(tracker, run.id, 3, values)
    rows = {row["name"]: row for row in curves.latest_metrics(tracker.db, run.id)}
    back = {name: float(row["special"] or row["value"]) for name, row in rows.items()}
    assert back == pytest.approx(names, rel=0, abs=0, nan_ok=True)
    assert all((row["value"] is None) == (row["special"] is not None) for row in rows.values())


def test_a_step_logged_again_is_replaced(tracker: Tracker) -> None:
    run = tracker.start_run("distill")
    record_metrics(tracker, run.id, 1, {"loss": math.nan})
    record_metrics(tracker, run.id, 1, {"loss": 2.5})
    assert [(row["value"], row["special"]) for row in curves.latest_metrics(tracker.db, run.id)] == [
        (2.5, None)
    ]
    assert count(tracker, Metric) == 1


@pytest.mark.parametrize(("step", "value"), [(1, "high"), (1, None), (1, [1, 2]), (2**63, 1.0), ("one", 1.0)])
def test_what_is_not_a_number(tracker: Tracker, step: int, value: float) -> None:
    with pytest.raises(BadRequest, match="metric 'loss'"):
        record_metrics(tracker, tracker.start_run("distill").id, step, {"loss": value})


def test_a_metric_whose_name_no_index_takes_is_refused(tracker: Tracker) -> None:
    """PostgreSQL refused it together with the other points that were written with it, again and again."""
    run = tracker.start_run("distill")
    record_metrics(tracker, run.id, 1, {"\U0001f642" * 500: 1.0})
    with pytest.raises(BadRequest, match="has a name of more than 500 characters"):
        record_metrics(tracker, run.id, 1, {"n" * 501: 1.0})
    assert count(tracker, Metric) == 1


def test_a_point_of_the_last_step_holds_a_number_or_the_name_of_what_is_none() -> None:
    number, special = (Point.of("run", "loss", 2**63 - 1, value) for value in (2.5, math.nan))
    assert (number.step, number.value, number.special) == (2**63 - 1, 2.5, None)
    assert (special.value, special.special) == (None, "nan")


# Checkpoints and aliases -----------------------------------------------------------------------------------


def test_a_checkpoint_recorded_again_keeps_its_first_row(tracker: Tracker) -> None:
    for path in ("/old", "/new"):
        tracker.record_checkpoint("abc123", path=Path(path), kind="full", sha256="00", config={"path": path})
    rows = queries.checkpoints(tracker.db)
    assert [(row["id"], row["path"], row["config"]) for row in rows] == [("abc123", "/new", {"path": "/old"})]


def test_aliases_move_and_remember(tracker: Tracker) -> None:
    assert queries.current_checkpoint(tracker.db) is None
    for name in ("one", "two"):
        tracker.record_checkpoint(name, path="/c", kind="full", sha256="00")
    for name in ("one", "one", "two"):
        tracker.set_alias("current", name)
    assert [(row["name"], row["checkpoint_id"]) for row in queries.aliases(tracker.db)] == [
        ("current", "two")
    ]
    assert queries.current_checkpoint(tracker.db) == "two"
    assert targets_of_current(tracker) == ["two", "one"]
    with pytest.raises(NotFound, match="checkpoint three is not recorded"):
        tracker.set_alias("current", "three")


# Scores ----------------------------------------------------------------------------------------------------


def test_a_score_recorded_again_replaces_its_items(tracker: Tracker) -> None:
    run = tracker.start_run("eval")
    first = record_score(tracker, run.id, None, score("ifeval", 0.5, True, False, True))
    again = record_score(tracker, run.id, None, score("ifeval", 1.0, True, True))
    assert first == again
    (row,) = queries.scores(tracker.db)
    assert (row["value"], row["low"], row["high"], row["details"]) == (1.0, 0.95, 1.05, {"note": "ifeval"})
    assert [(item["key"], item["passed"], item["detail"]) for item in queries.items(tracker.db, first)] == [
        ("p0", True, {"i": 0}),
        ("p1", True, {"i": 1}),
    ]


def test_a_score_and_its_items_come_together_or_not_at_all(tracker: Tracker) -> None:
    run = tracker.start_run("eval")
    bad = score("ifeval", 0.5, True, False)
    bad["items"][1]["key"] = "p0"
    with pytest.raises(BadRequest, match="1 items have the key of another"):
        record_score(tracker, run.id, None, bad)
    with pytest.raises(TrackerError, match="not recorded"):
        record_score(tracker, run.id, "nobody", score("ifeval", 0.5, True))
    assert (count(tracker, Item), queries.scores(tracker.db, run_id=run.id)) == (0, [])


def test_several_scores_come_together_or_not_at_all(tracker: Tracker) -> None:
    run = tracker.start_run("eval")
    headline, cloze = (score("knowledge", 0.5, True, False, metric=name) for name in ("lenient", "cloze"))
    ids = tracker.record_scores(run.id, None, [headline, cloze])
    assert {row["id"]: row["metric"] for row in queries.scores(tracker.db)} == dict(
        zip(ids, ("lenient", "cloze"), strict=True)
    )
    cloze["items"][1]["key"] = "p0"
    other = tracker.start_run("eval")
    with pytest.raises(BadRequest, match="1 items have the key of another"):
        tracker.record_scores(other.id, None, [headline, cloze])
    headline["value"], cloze["items"] = 1.0, [*items(True), items(True, True)[1] | {"passed": None}]
    with pytest.raises(TrackerError):
        tracker.record_scores(run.id, None, [headline, cloze])
    assert [row["value"] for row in queries.scores(tracker.db)] == [0.5, 0.5]
    assert count(tracker, Item) == 4


def test_an_undefined_score_has_no_value(tracker: Tracker) -> None:
    nothing = score("ifeval", math.nan) | {"interval": [math.nan, math.inf]}
    record_score(tracker, tracker.start_run("eval").id, None, nothing)
    (row,) = queries.scores(tracker.db)
    assert (row["value"], row["low"], row["high"], row["item_set"]) == (None, None, None, None)


def test_hostile_text_is_stored(tracker: Tracker) -> None:
    hostile = "\0 \udc80 '; DROP TABLE runs; -- <script>alert(1)</script> 𝕏 " + "long " * 10_000
    asked = score("ifeval", 0.5) | {
        "items": [items(True)[0] | {"response": hostile, "detail": {"x": hostile}}]
    }
    found = queries.items(tracker.db, record_score(tracker, tracker.start_run("eval").id, None, asked))
    assert found[0]["response"] == found[0]["detail"]["x"] == storable(hostile)
    assert found[0]["response"].startswith("␀ \\udc80 '; DROP")


# Cycles and reviews ----------------------------------------------------------------------------------------


def test_cycles_are_numbered_once(tracker: Tracker) -> None:
    runs = [tracker.start_run("cycle", key=f"cycle:{number}") for number in (1, 2)]
    assert [tracker.record_cycle(run.id) for run in (*runs, *runs)] == [1, 2, 1, 2]
    with pytest.raises(BadRequest, match="cycle status 'great' is unknown"):
        tracker.record_cycle(runs[0].id, status="great")


def test_a_cycle_keeps_what_it_knew(tracker: Tracker) -> None:
    tracker.record_checkpoint("abc", path="/c", kind="full", sha256="00")
    run = tracker.start_run("cycle")
    tracker.record_cycle(run.id, clean_id="abc")
    tracker.record_cycle(run.id, status="rejected")
    cycle = queries.cycle(tracker.db, 1)
    found = cycle["checkpoints"]["clean"], cycle["status"], cycle["summary"]
    assert found == ("abc", "rejected", {})
    assert cycle["ended_at"] >= cycle["started_at"]


def test_nothing_ends_before_its_start_when_the_clock_is_set_back(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tracker.start_run("cycle")
    tracker.record_cycle(run.id)
    for module in ("tracker", "transactions"):
        monkeypatch.setattr(f"db.writes.{module}.now", lambda: "2001-01-01T00:00:00.000Z")
    tracker.record_cycle(run.id, status="rejected")
    tracker.finish_run(run.id)
    ended, cycle = queries.run(tracker.db, run.id), queries.cycle(tracker.db, 1)
    assert ended["ended_at"] == ended["started_at"] and cycle["ended_at"] == cycle["started_at"]


def test_a_verdict_keeps_every_number(tracker: Tracker) -> None:
    number = tracker.record_cycle(tracker.start_run("cycle").id)
    for needed in (10, 10**12):
        row = {
            "outcome": "underpowered",
            "n": 5,
            "needed_n": needed,
            "power": math.nan,
            "bootstrap": (-0.1, 0.2),
        }
        tracker.record_verdicts(number, {"behaviour": row})
    verdict = queries.cycle(tracker.db, number)["verdict"]
    assert (verdict["behaviour"], verdict["knowledge"]) == ("underpowered", "not measured")
    behaviour = verdict["axes"]["behaviour"]
    assert (behaviour["n"], behaviour["needed_n"], behaviour["margin"]) == (5, 10**12, None)
    assert behaviour["details"] == {"power": "nan", "bootstrap": [-0.1, 0.2]}


def test_a_review_is_kept_and_approval_moves_current(tracker: Tracker) -> None:
    record_cycle(tracker, {})
    first = tracker.add_review(1, "reject", "what about p3?", "ada", token="click 1")
    assert tracker.add_review(1, "reject", "what about p3?", "ada", token="click 1") == first
    assert queries.aliases(tracker.db) == []
    tracker.add_review(1, "approve", "fine now", "grace")
    assert [(row["name"], row["checkpoint_id"]) for row in queries.aliases(tracker.db)] == [
        ("current", "rec1")
    ]
    assert [row["reviewer"] for row in queries.reviews(tracker.db, cycle=1)] == ["grace", "ada"]


def test_a_rejection_takes_the_model_out_of_use(tracker: Tracker) -> None:
    """`current` goes back over all that was refused, but not below what was approved since."""

    def current() -> str:
        (row,) = (row for row in queries.aliases(tracker.db) if row["name"] == "current")
        return str(row["checkpoint_id"])

    for number in (1, 2, 3):
        assert record_cycle(tracker, {}) == number
        tracker.set_alias("current", f"rec{number}")
    tracker.add_review(1, "reject", "not the newest", "ada")
    assert current() == "rec3"
    tracker.add_review(3, "needs-work", "perhaps", "ada")
    assert current() == "rec3"
    tracker.add_review(3, "reject", "no", "ada")
    assert current() == "rec2"
    tracker.add_review(3, "needs-work", "a note behind a decision changes nothing", "ada")
    assert tracker.make_current("rec3", "rec2", cycle=3) == "rec2"
    tracker.add_review(1, "needs-work", "nor here", "ada")
    tracker.add_review(2, "reject", "nor this", "ada")
    assert current() == "rec2"  # no earlier one is left: the first was refused, too
    tracker.add_review(1, "approve", "after all", "ada")
    tracker.add_review(3, "approve", "this as well", "ada")
    tracker.forget_place("rec1", lambda: None)
    tracker.add_review(3, "reject", "no", "ada", token="once")
    assert current() == "rec3"  # whose files are here, while the first one's are not
    assert targets_of_current(tracker) == ["rec3", "rec1", "rec2", "rec3", "rec2", "rec1"]


@pytest.mark.parametrize(
    ("decisions", "moved"),
    [
        ((), True),
        (("reject", "approve"), True),
        (("approve", "reject"), False),
        (("approve", "reject", "needs-work"), False),
    ],
)
def test_the_newest_decision_says_whether_a_cycle_that_ends_is_current(
    tracker: Tracker, decisions: tuple[str, ...], moved: bool
) -> None:
    number = record_cycle(tracker, {})
    for decision in decisions:
        tracker.add_review(number, decision, "", "ada")
    assert (tracker.make_current("rec1", "clean0", cycle=number) is None) is moved


def test_the_model_of_a_run_is_current_where_nothing_has_moved_it(tracker: Tracker) -> None:
    for _ in range(3):
        record_cycle(tracker, {})
    tracker.set_alias("current", "rec1")
    assert tracker.make_current("rec2", "rec1", cycle=2) is None
    assert tracker.make_current("rec2", "rec1", cycle=2) is None  # again, after a lost connection
    for cycle in (3, None):
        assert tracker.make_current("rec3", "rec1", cycle) == "rec2"
    assert tracker.make_current("rec3", "rec2") is None
    assert targets_of_current(tracker) == ["rec3", "rec2", "rec1"]


def targets_of_current(tracker: Tracker) -> list[str]:
    """Every checkpoint that `current` has named, newest first."""
    moves = sa.select(AliasMove.checkpoint_id).where(AliasMove.name == "current")
    with tracker.db.read() as connection:
        return list(connection.scalars(moves.order_by(AliasMove.id.desc())))


def record_line(tracker: Tracker, starts: list[str]) -> None:
    """Accepted cycles 1, 2, ..., each trained from the checkpoint that is named; the last one is current."""
    tracker.record_checkpoint("clean0", path="/c/clean0", kind="full", sha256="0")
    for number, before in enumerate(starts, 1):
        made = f"mid{number}", f"rec{number}"
        for name, parent in zip(made, (before, made[0]), strict=True):
            tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name, parent=parent)
        run = tracker.start_run("cycle", key=f"{number}").id
        tracker.record_cycle(run, midtrained_id=made[0], recovered_id=made[1], status="accepted")
        tracker.set_alias("current", made[1])


def test_a_model_that_another_cycle_in_use_has_made_too_stays_current(tracker: Tracker) -> None:
    """Equal weights are one checkpoint: two attempts from the same start may end in one."""
    record_line(tracker, ["clean0", "rec1"])
    again = tracker.start_run("cycle", key="again").id
    tracker.record_cycle(again, midtrained_id="mid2", recovered_id="rec2", status="accepted")
    later = record_later_cycle(tracker, "rec2")
    tracker.add_review(2, "reject", "the older attempt", "ada")
    tracker.add_review(later, "reject", "", "ada")
    assert queries.resolve(tracker.db, "current") == "rec2"  # falls back to it, as cycle 3 has it in use
    tracker.add_review(2, "needs-work", "a note", "ada")
    tracker.add_review(2, "reject", "once more", "ada")
    assert queries.resolve(tracker.db, "current") == "rec2"
    tracker.add_review(3, "reject", "the newer attempt as well", "ada")
    assert queries.resolve(tracker.db, "current") == "rec1"


def record_later_cycle(tracker: Tracker, before: str) -> int:
    """Record an accepted cycle behind a checkpoint, whose model becomes current; return its number."""
    tracker.record_checkpoint("later", path="/c/later", kind="full", sha256="later", parent=before)
    run = tracker.start_run("cycle", key="later").id
    number = tracker.record_cycle(run, midtrained_id="later", recovered_id="later", status="accepted")
    tracker.set_alias("current", "later")
    return int(number)


def test_an_approval_of_a_cycle_behind_current_only_lifts_its_rejection(tracker: Tracker) -> None:
    record_line(tracker, ["clean0", "rec1", "rec2"])
    tracker.add_review(2, "reject", "by mistake", "ada")
    tracker.add_review(2, "approve", "undone", "ada")
    assert queries.resolve(tracker.db, "current") == "rec3"
    tracker.add_review(3, "reject", "", "ada")
    assert queries.resolve(tracker.db, "current") == "rec2"  # which is refused no longer
    for number in (1, 2):
        tracker.add_review(number, "reject", "", "ada")
    assert queries.resolve(tracker.db, "current") == "rec2"  # refused, but no other is left
    tracker.add_review(1, "approve", "", "ada")
    assert queries.resolve(tracker.db, "current") == "rec1"


def test_cycles_in_use_that_a_model_lacks(tracker: Tracker) -> None:
    record_line(tracker, ["clean0", "rec1", "rec2", "rec2"])
    names = ("clean0", "rec2", "mid3", "rec3", "rec4")

    def lacking() -> list[list[int]]:
        return [queries.used_cycles_outside(tracker.db, name) for name in names]

    assert lacking() == [[1, 2, 3, 4], [3, 4], [4], [4], [3]]
    tracker.add_review(4, "reject", "", "ada")
    tracker.add_review(4, "needs-work", "", "ada")
    assert lacking() == [[1, 2, 3], [3], [], [], [3]]
    tracker.add_review(4, "approve", "", "ada")
    assert lacking()[3] == [4]


def test_decisions_at_once_leave_no_refused_model_in_use(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one rejection looks for an earlier model to go back to, another refuses that one."""
    for number in (1, 2, 3):
        record_cycle(tracker, {})
        tracker.set_alias("current", f"rec{number}")
    other = threading.Thread(target=tracker.add_review, args=(2, "reject", "", "bob"))
    refused = checkpoints.refused_models

    def meanwhile(session: Session, project: str) -> set[str | None]:
        found = refused(session, project)
        if other.ident is None:
            other.start()
            other.join(1.0)  # it ends, or waits for this one to end
        return found

    monkeypatch.setattr(checkpoints, "refused_models", meanwhile)
    tracker.add_review(3, "reject", "", "ada")
    other.join()
    assert queries.resolve(tracker.db, "current") == "rec1"


def test_a_repeated_request_is_one_review_and_says_so_when_it_is_another(tracker: Tracker) -> None:
    number = record_cycle(tracker, {"ifeval": {"clean": 0.9}})
    first = tracker.add_review(number, "reject", "no\0", "ada", token="one request")
    assert tracker.add_review(number, "reject", "no\0", "ada", token="one request") == first
    for changed in (("approve", "no\0", "ada"), ("reject", "yes", "ada"), ("reject", "no\0", "bob")):
        with pytest.raises(BadRequest, match="already recorded, as 'reject' of cycle 1 by ada"):
            tracker.add_review(number, *changed, token="one request")
    other = record_cycle(tracker, {})
    with pytest.raises(BadRequest, match="already recorded, as 'reject' of cycle 1 by ada"):
        tracker.add_review(other, "reject", "no\0", "ada", token="one request")
    assert [row["decision"] for row in queries.reviews(tracker.db)] == ["reject"]


def test_an_error_is_stored_without_keys(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "first-half\nsecond-half")
    for said in (
        "invalid header b'Bearer first-half\\nsecond-half'",
        "no: first-half\nsecond-half",
        "a second-half",
    ):
        run = tracker.start_run("serve")
        tracker.fail_run(run.id, said)
        error = queries.run(tracker.db, run.id)["error"]
        assert "half" not in error and HIDDEN in error


def test_reviews_that_are_refused(tracker: Tracker) -> None:
    tracker.record_cycle(tracker.start_run("cycle").id)
    with pytest.raises(BadRequest, match="decision 'maybe' is unknown"):
        tracker.add_review(1, "maybe", "", "ada")
    with pytest.raises(NotFound, match="cycle 9 is not recorded"):
        tracker.add_review(9, "reject", "", "ada")
    with pytest.raises(BadRequest, match="no recovered model yet"):
        tracker.add_review(1, "approve", "", "ada")
    assert queries.reviews(tracker.db) == []


def test_the_manifest_accounts_for_every_file(tracker: Tracker) -> None:
    run = tracker.start_run("midtrain")
    rows: list[dict[str, Any]] = [
        {"path": "a.md", "status": "read", "tokens": 12},
        {"path": "b\udc80.pdf", "status": "skipped", "reason": "?"},
    ]
    for _ in range(2):
        tracker.record_documents(run.id, rows)
    found = queries.documents(tracker.db, run.id)
    assert [(row["path"], row["tokens"], row["reason"]) for row in found] == [
        ("a.md", 12, None),
        ("b\\udc80.pdf", None, "?"),
    ]
    assert [row["path"] for row in queries.documents(tracker.db, run.id, after="a.md")] == ["b\\udc80.pdf"]


# Values ----------------------------------------------------------------------------------------------------


@dataclass
class Thing:
    size: float


def test_values_become_plain() -> None:
    numpy = pytest.importorskip("numpy")
    given_value = {
        1: (math.nan, -math.inf),
        "thing": Thing(1.5),
        "path": Path("/a"),
        "numpy": numpy.float32(0.5),
        "yes": numpy.bool_(True),
        "bytes": b"\xff",
        "none": None,
    }
    assert plain(given_value) == {
        "1": ["nan", "-inf"],
        "thing": {"size": 1.5},
        "path": "/a",
        "numpy": 0.5,
        "yes": True,
        "bytes": "ff",
        "none": None,
    }


@pytest.mark.parametrize(
    ("numeric", "expected"),
    [("3000", 3000), ("2.5", 2.5), ("2.0", 2), ("-1e3", -1000), ("NaN", "nan"), ("-Infinity", "-inf")],
)
def test_a_numeric_of_the_server_becomes_a_number(numeric: str, expected: Any) -> None:
    found = plain([Decimal(numeric)])
    assert found == [expected] and type(found[0]) is type(expected)


@pytest.mark.parametrize("numeric", ["1e299", "1e5000", "1e-5000", "7" * 5000])
def test_a_numeric_of_any_size_can_be_written_as_json(numeric: str) -> None:
    assert json.dumps(plain(Decimal(numeric)), allow_nan=False)


def test_a_write_that_fails_leaves_nothing(tracker: Tracker) -> None:
    def work(session: Session) -> None:
        session.execute(sa.text("INSERT INTO aliases VALUES ('default', 'x', 'y', 'z')"))

    with pytest.raises(TrackerError):
        tracker.db.write(work)
    assert queries.aliases(tracker.db) == []
