"""`recover prune` removes the files of checkpoints that nothing needs, and what given-up runs hold."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from db.errors import BadRequest
from db.reads import queries
from pipelines.cli.cycle_text import cycle_text
from pipelines.cli.prune import given_up_text, prune_text
from pipelines.config.sections.training import LoraConfig
from pipelines.cycle import cycle
from pipelines.distill import distill_alone
from pipelines.job_from_options.cycle import cycle_job
from pipelines.prune import prune
from pipelines.resume import resume
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.storage.checkpoints import Checkpoint
from tests.support.databases import record_score
from tests.support.small_cycles import make_docs, make_home, settle
from tests.support.stages import distillation, write_prompts


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    with make_home(tmp_path) as workspace:
        settle(workspace, margin=0.4, learning_rate=1e-4)
        yield workspace


def published(ws: Workspace, text: str, *, run: str | None = None, base: str | None = None) -> str:
    """Publish a checkpoint of other bytes than any other."""

    def write(folder: Path) -> None:
        for file in ws.clean().path.glob("*.safetensors"):
            (folder / file.name).write_bytes(file.read_bytes())
        (folder / "config.json").write_text(f'{{"name": "{text}"}}')

    made: Checkpoint = ws.store.publish(write, parent=ws.clean().id, base=base)
    ws.record(made, run)
    return made.id


def turned(ws: Workspace, number: int, status: str = "done") -> dict[str, str]:
    """Record a cycle with a midtrained and a recovered checkpoint."""
    run = ws.tracker.start_run("cycle", key=f"{number}").id
    made = {name: published(ws, f"{name} {number}", run=run) for name in ("midtrained", "recovered")}
    stages = {f"{name}_id": checkpoint for name, checkpoint in made.items()}
    ws.tracker.record_cycle(run, status="accepted", clean_id=ws.clean().id, **stages)
    if status == "done":
        ws.tracker.finish_run(run)
    else:
        ws.tracker.stop_run(run, status)
    return made


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def there(ws: Workspace) -> set[str]:
    return {path.parent.name for path in ws.store.root.glob("[!t]*/manifest.json")}


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (0, "no checkpoint was made yet"),
        (1, "the home needs its 1 checkpoint"),
        (4, "the home needs its 4 checkpoints"),
    ],
)
def test_why_nothing_can_be_removed_is_said(kept: int, said: str) -> None:
    found = {"checkpoints": [], "states": 0, "kept": kept, "unfinished": []}
    assert prune_text(found) == f"nothing to remove: {said}"


def test_what_is_needed_stays_and_what_is_recorded_stays_too(ws: Workspace) -> None:
    first, second, third = (turned(ws, number) for number in (1, 2, 3))
    ws.tracker.set_alias("best", first["recovered"])
    ws.tracker.set_alias("current", third["recovered"])
    base = published(ws, "base of an adapter")
    adapter = published(ws, "adapter", base=base)
    ws.tracker.set_alias("small", adapter)
    scored = ws.tracker.start_run("eval", key="scored").id
    record_score(
        ws.tracker, scored, second["midtrained"], {"suite": "s", "metric": "m", "value": 0.5, "n": 2}
    )
    ws.tracker.finish_run(scored)
    before = there(ws)
    listed = prune(ws, cycles=1)
    spare = {first["midtrained"], *second.values()}
    assert {row["id"] for row in listed["checkpoints"]} == spare
    assert [row["what"] for row in listed["checkpoints"]] == [
        "cycle:1:midtrained",
        "cycle:2:midtrained",
        "cycle:2:recovered",
    ]
    assert listed["bytes"] == sum(ws.store.size(checkpoint) for checkpoint in spare) > 0
    assert there(ws) == before  # nothing is removed unless asked for
    assert prune(ws, cycles=1, remove=True) == {**listed, "removed": True}
    assert there(ws) == before - spare
    assert {row["id"] for row in queries.checkpoints(ws.tracker.db, limit=99)} == before - spare
    assert queries.checkpoint(ws.tracker.db, "cycle:2:midtrained")["id"] == second["midtrained"]
    assert len(queries.scores(ws.tracker.db, checkpoint_id=second["midtrained"])) == 1
    with pytest.raises(InputError, match="is recorded, but its files are not in"):
        ws.checkpoint("cycle:2:midtrained")
    with pytest.raises(BadRequest, match="has no files here any more"):
        ws.tracker.add_review(2, "approve", "after all", "ada")
    assert queries.cycle(ws.tracker.db, 2)["review"] is None
    assert prune(ws, cycles=1)["checkpoints"] == []
    assert turned(ws, 2)["midtrained"] == second["midtrained"]  # the same bytes again are a checkpoint again
    assert ws.checkpoint("cycle:2:midtrained").id == second["midtrained"]


def test_the_model_that_a_rejection_falls_back_to_stays(ws: Workspace) -> None:
    """However many rejected cycles lie between it and the one in use."""
    first, second, third, fourth = (turned(ws, number) for number in (1, 2, 3, 4))
    for number in (1, 2):
        ws.tracker.add_review(number, "approve", "good", "ada")
    ws.tracker.add_review(2, "reject", "not so good", "ada")
    ws.tracker.add_review(4, "approve", "good", "ada")
    prune(ws, cycles=1, remove=True)
    assert {second["recovered"], third["recovered"]}.isdisjoint(there(ws))
    ws.tracker.add_review(4, "reject", "after all", "ada")
    assert queries.resolve(ws.tracker.db, "current") == first["recovered"] in there(ws)
    assert fourth["recovered"] in there(ws)


def test_a_run_that_may_be_resumed_keeps_what_it_needs(ws: Workspace) -> None:
    turned(ws, 1, status="interrupted")
    named = published(ws, "named by a waiting run")
    parent = ws.tracker.start_run("sweep", key="waiting", config={"checkpoints": [named]}).id
    below = ws.tracker.start_run("merge", parent=parent, key="below").id
    result = published(ws, "result of a stage below it", run=below)
    ws.tracker.finish_run(below, {"checkpoint": result})
    spare = published(ws, "spare")
    assert [row["id"] for row in prune(ws, cycles=0)["checkpoints"]] == [spare]


def test_the_newest_of_each_stage_that_was_run_by_itself_stays(ws: Workspace) -> None:
    made = []
    for number, kind in enumerate(("midtrain", "merge", "midtrain")):
        run = ws.tracker.start_run(kind, key=f"{number}").id
        made.append(published(ws, f"by hand {number}", run=run))
        ws.tracker.finish_run(run, {"checkpoint": made[-1]})
    assert [row["id"] for row in prune(ws, cycles=0)["checkpoints"]] == made[:1]


def test_all_that_the_newest_sweep_and_search_made_stays(ws: Workspace) -> None:
    made = []
    for number in range(2):
        point, offered = (published(ws, f"{what} {number}") for what in ("point", "offered"))
        swept = ws.tracker.start_run("sweep", key=f"sweep {number}").id
        ws.tracker.finish_run(swept, {"points": [{"checkpoint": ws.clean().id}, {"checkpoint": point}]})
        search = ws.tracker.start_run("locate", key=f"locate {number}").id
        ws.tracker.finish_run(search, {"checkpoint": ws.clean().id, "offered": {"checkpoint": offered}})
        made.append({point, offered})
    assert {row["id"] for row in prune(ws, cycles=0)["checkpoints"]} == made[0]


def test_the_teachers_that_recover_yaml_routes_to_stay(ws: Workspace) -> None:
    teachers = turned(ws, 1)
    adapter = published(ws, "adapter", base=teachers["recovered"])
    spare, by_folder = published(ws, "spare"), published(ws, "by its folder")
    names = {"a": "cycle:1:midtrained", "b": adapter[:8], "c": str(ws.clean().path), "d": "nobody"}
    names["e"] = str(ws.store.root / by_folder)
    path = ws.home / "recover.yaml"
    path.write_text(path.read_text().replace("distill:\n", f"distill:\n  routes: {names}\n"))
    vars(ws).pop("config", None)
    assert [row["id"] for row in prune(ws, cycles=0)["checkpoints"]] == [spare]


def test_an_interrupted_cycle_is_resumed_after_a_prune(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = make_docs(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.cycle.distill", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cycle(ws, cycle_job(ws, docs), key="one")
    midtrained = queries.cycle(ws.tracker.db, 1)["checkpoints"]["midtrained"]
    assert midtrained in there(ws)
    prune(ws, cycles=0, remove=True)
    assert midtrained in there(ws)
    assert resume(ws)["cycle"] == 1


def test_a_kill_between_files_and_record_is_mended_by_the_next(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare, remove = published(ws, "spare"), ws.store.remove

    def killed(checkpoint: str) -> None:
        remove(checkpoint)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ws.store, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            prune(ws, remove=True)
    assert spare not in there(ws)
    assert [row["bytes"] for row in prune(ws, remove=True)["checkpoints"]] == [0]
    assert prune(ws)["checkpoints"] == []


def test_what_a_run_makes_current_while_it_is_looked_at_stays(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ws.tracker.start_run("distill", key="ending").id
    made = published(ws, "of a run that ends", run=run)

    def end(_: Workspace) -> set[str]:
        ws.tracker.set_alias("current", made)
        ws.tracker.finish_run(run, {"checkpoint": made})
        return set()

    monkeypatch.setattr("pipelines.prune._routes", end)
    assert prune(ws)["checkpoints"] == []


@pytest.mark.parametrize("given_up", [False, True])
def test_a_model_that_is_approved_before_its_files_are_removed_stays_with_its_base(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch, given_up: bool
) -> None:
    """`current` would name a model without files."""
    run = ws.tracker.start_run("cycle", key="old").id
    base, spare = (published(ws, text, run=run) for text in ("base of an adapter", "spare"))
    adapter = published(ws, "adapter", run=run, base=base)
    number = ws.tracker.record_cycle(run, clean_id=ws.clean().id, recovered_id=adapter)
    if given_up:
        ws.tracker.stop_run(run, "interrupted")
    else:
        ws.tracker.finish_run(run)
    size = ws.store.size(spare)

    def approve(_: object) -> None:
        ws.tracker.add_review(number, "approve", "good", "ada")

    monkeypatch.setattr("pipelines.prune._remove_states", approve)
    found = prune(ws, cycles=0, remove=True, run=run if given_up else None)
    assert ([row["id"] for row in found["checkpoints"]], found["kept"]) == ([spare], 2)
    assert found["bytes"] == size
    assert ws.checkpoint("current").id == adapter and there(ws) == {ws.clean().id, base, adapter}


def with_state(ws: Workspace, run: str, size: int) -> Path:
    """Give a run a training state of so many bytes."""
    state = ws.run_directory(run) / "state" / "step-3"
    state.mkdir(parents=True)
    (state / "tensors").write_bytes(bytes(size))
    return state.parent


def cut_off(ws: Workspace, number: int) -> tuple[str, str, Path]:
    """Record a cycle that was interrupted in its distillation: its run, its midtrained model, its state."""
    run = ws.tracker.start_run("cycle", key=f"cut off {number}").id
    training = ws.tracker.start_run("midtrain", parent=run, key="midtrain").id
    midtrained = published(ws, f"cut off {number}", run=training)
    ws.tracker.finish_run(training, {"checkpoint": midtrained})
    ws.tracker.record_cycle(run, clean_id=ws.clean().id, midtrained_id=midtrained)
    recovery = ws.tracker.start_run("distill", parent=run, key="distill").id
    state = with_state(ws, recovery, 300)
    ws.tracker.stop_run(recovery, "interrupted")
    ws.tracker.stop_run(run, "interrupted")
    return run, midtrained, state


def test_unfinished_runs_that_hold_states_are_named_until_they_are_given_up(ws: Workspace) -> None:
    kept = turned(ws, 1)
    run, midtrained, state = cut_off(ws, 2)
    (held,) = prune(ws)["unfinished"]
    size = 300 + ws.store.size(midtrained)
    assert (held["run"], held["status"], held["bytes"]) == (run, "stopped", size)
    assert f"{run}  stopped" in prune_text(prune(ws))
    listed = prune(ws, run=run)
    assert [row["id"] for row in listed["checkpoints"]] == [midtrained]
    assert (listed["states"], listed["bytes"]) == (300, size)
    assert state.is_dir() and midtrained in there(ws)  # nothing is removed unless asked for
    assert "add --yes" in given_up_text(listed) and run in given_up_text(listed)
    assert prune(ws, run=run, remove=True) == {**listed, "removed": True}
    assert not state.exists() and there(ws) == {ws.clean().id, *kept.values()}
    assert prune(ws)["unfinished"] == []
    with pytest.raises(InputError, match="no run was interrupted"):
        resume(ws)
    with pytest.raises(
        InputError, match=rf"{run} is never resumed \(given up \(interrupted\)\): begin a new"
    ):
        resume(ws, run)
    shown = cycle_text(queries.cycle(ws.tracker.db, 2))
    assert "reason     given up (interrupted)" in shown and "to go on" not in shown
    assert prune(ws, run=run, remove=True)["bytes"] == 0
    assert queries.run(ws.tracker.db, run)["error"] == "given up (interrupted)"
    assert prune(ws, cycles=1)["checkpoints"] == []  # the newest cycle that goes on is the first


def test_states_that_a_kill_left_of_runs_that_are_done_are_removed(ws: Workspace) -> None:
    """Between the end that was recorded and the removal, as no command goes on with such a run."""
    done, other = (ws.tracker.start_run("choose", key=key).id for key in ("done", "other"))
    below = ws.tracker.start_run("distill", parent=done, key="left out").id
    ws.tracker.fail_run(below, "cut off")
    waiting = ws.tracker.start_run("distill", parent=other, key="waiting").id
    for run in (waiting, other):
        ws.tracker.stop_run(run, "interrupted")
    ws.tracker.finish_run(done)
    left, left_below, kept = (with_state(ws, run, 2**20) for run in (done, below, waiting))
    (ws.home / "runs" / "unrecorded" / "state").mkdir(parents=True)
    listed = prune(ws)
    assert (listed["checkpoints"], listed["states"], listed["bytes"]) == ([], 2**21, 2**21)
    assert "2.0 MiB of states of runs that are done; add --yes to remove" in prune_text(listed)
    assert left.is_dir() and left_below.is_dir()
    with (ws.run_directory(done) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as if its process were removing them now
        assert prune(ws)["states"] == 2**20
    assert prune(ws, remove=True) == {**listed, "removed": True}
    assert not left.exists() and not left_below.exists() and kept.is_dir()
    assert (ws.home / "runs" / "unrecorded" / "state").is_dir()
    assert prune(ws)["states"] == 0


def test_cycles_that_broke_off_do_not_push_out_the_newest_recovered_one(ws: Workspace) -> None:
    rejected = turned(ws, 1)
    for number in (2, 3):
        cut_off(ws, number)
    assert prune(ws, remove=True)["checkpoints"] == []
    assert set(rejected.values()) <= there(ws)
    assert {row["id"] for row in prune(ws, cycles=0)["checkpoints"]} == set(rejected.values())


def test_an_unfinished_run_without_a_state_is_named_with_the_checkpoints_that_only_it_needs(
    ws: Workspace,
) -> None:
    """A search that was cut off holds a model for each mixture."""
    search = ws.tracker.start_run("locate", key="search").id
    mixtures = []
    for number in range(2):
        merged = ws.tracker.start_run("merge", parent=search, key=f"put back:{number}").id
        mixtures.append(published(ws, f"mixture {number}", run=merged))
        ws.tracker.finish_run(merged, {"checkpoint": mixtures[-1]})
    ws.tracker.set_alias("best", mixtures[0])
    ws.tracker.stop_run(search, "interrupted")
    waiting = ws.tracker.start_run("eval", key="waiting").id  # holds nothing
    ws.tracker.stop_run(waiting, "interrupted")
    found = prune(ws)
    assert found["checkpoints"] == []
    held = [(row["run"], row["bytes"]) for row in found["unfinished"]]
    assert held == [(search, ws.store.size(mixtures[1]))] == [(search, prune(ws, run=search)["bytes"])]
    assert f"{search}  stopped" in prune_text(found)
    prune(ws, run=search, remove=True)
    assert there(ws) == {ws.clean().id, mixtures[0]} and prune(ws)["unfinished"] == []


def test_unfinished_runs_that_together_keep_a_model_are_all_named(ws: Workspace) -> None:
    """None of them alone keeps it, and none has made it."""
    kept = published(ws, "named by two runs")
    runs = [ws.tracker.start_run("eval", key=key, config={"checkpoint": kept}).id for key in "ab"]
    for run in runs:
        ws.tracker.stop_run(run, "interrupted")
    size = ws.store.size(kept)
    named = {row["run"]: (row["bytes"], row["further"]) for row in prune(ws)["unfinished"]}
    assert named == dict.fromkeys(runs, (0, size))
    assert all(run in prune_text(prune(ws)) for run in runs)
    for run in runs:
        prune(ws, run=run, remove=True)
    assert [row["id"] for row in prune(ws)["checkpoints"]] == [kept]


def test_an_unfinished_run_is_named_with_the_base_of_the_adapter_that_it_needs(ws: Workspace) -> None:
    base = published(ws, "base of an adapter")
    adapter = published(ws, "adapter", base=base)
    waiting = ws.tracker.start_run("eval", key="waiting", config={"checkpoint": adapter}).id
    ws.tracker.stop_run(waiting, "interrupted")
    [named] = prune(ws)["unfinished"]
    assert named["further"] == ws.store.size(base) + ws.store.size(adapter)
    prune(ws, run=waiting, remove=True)
    assert {row["id"] for row in prune(ws)["checkpoints"]} == {base, adapter}


def test_an_unfinished_run_keeps_the_teacher_that_it_does_not_name(ws: Workspace) -> None:
    """With teacher=previous it is the checkpoint that the student's last midtraining began with."""
    base = published(ws, "base of an adapter")
    before = published(ws, "before", base=base)
    training = ws.tracker.start_run("midtrain", key="m", config={"student": before}).id
    student = published(ws, "student", run=training)
    ws.tracker.finish_run(training, {"checkpoint": student})
    config = {"student": student, "teacher": ws.clean().id, "settings": {"dials": {"teacher": "previous"}}}
    waiting = ws.tracker.start_run("distill", key="waiting", config=config).id
    ws.tracker.stop_run(waiting, "interrupted")
    assert prune(ws)["checkpoints"] == []
    [named] = prune(ws)["unfinished"]
    assert named["further"] == ws.store.size(base) + ws.store.size(before)
    prune(ws, run=waiting, remove=True)
    assert {row["id"] for row in prune(ws)["checkpoints"]} == {base, before}


def test_an_unfinished_distillation_keeps_the_mixture_under_its_adapter(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier one with the same share has made it, and is recorded as its maker."""
    write_prompts(tmp_path, 4)
    other = ws.load(ws.clean())
    with torch.no_grad():
        other.model.get_parameter("model.norm.weight").mul_(1.5)
    student = ws.publish(other, parent=ws.clean(), run_id=None, config={})
    lora = {"merge": 0.3, "merge_of": "all", "lora": LoraConfig(rank=2), "rehearsal": 0.0}
    settings = ws.config.distill.model_copy(update=lora)
    monkeypatch.setattr("pipelines.distill.run", interrupt)
    for key in ("first", "second"):
        with pytest.raises(KeyboardInterrupt):
            distill_alone(ws, distillation(tmp_path, student.id, settings), key=key)
    second, first = (run["id"] for run in queries.runs(ws.tracker.db, kind="distill"))
    [mixture] = there(ws) - {ws.clean().id, student.id}
    assert queries.checkpoint(ws.tracker.db, mixture)["run_id"] == first
    assert prune(ws, run=first, remove=True)["checkpoints"] == []
    assert there(ws) == {ws.clean().id, student.id, mixture}
    [held] = prune(ws)["unfinished"]
    assert held["run"] == second and held["further"] >= ws.store.size(mixture)
    prune(ws, run=second, remove=True)
    assert {row["id"] for row in prune(ws)["checkpoints"]} == {student.id, mixture}


def test_stages_that_had_ended_before_their_run_is_given_up_keep_when(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _, _ = cut_off(ws, 1)
    killed = ws.tracker.start_run("eval", parent=run, key="eval:recovered").id
    ended = {row["id"]: row["ended_at"] for row in queries.runs(ws.tracker.db, parent=run)}
    later = "2999-01-01T00:00:00.000Z"
    monkeypatch.setattr("db.writes.tracker.now", lambda: later)
    prune(ws, run=run, remove=True)
    stages = queries.runs(ws.tracker.db, parent=run)
    assert {row["id"]: row["ended_at"] for row in stages} == {**ended, killed: later}
    assert {row["status"] for row in stages if row["kind"] != "midtrain"} == {"stopped"}
    assert queries.run(ws.tracker.db, run)["ended_at"] == later


def test_giving_up_a_run_removes_nothing_that_something_else_needs(ws: Workspace) -> None:
    run, midtrained, _ = cut_off(ws, 1)
    other, second, state = cut_off(ws, 2)
    ws.tracker.set_alias("best", midtrained)
    assert prune(ws, run=run, remove=True)["checkpoints"] == []
    assert there(ws) == {ws.clean().id, midtrained, second} and state.is_dir()
    assert [row["run"] for row in prune(ws)["unfinished"]] == [other]


def test_the_finished_cycles_of_a_demo_that_is_given_up_stay(ws: Workspace) -> None:
    demo = ws.tracker.start_run("demo", key="demo").id
    done = ws.tracker.start_run("cycle", parent=demo, key="cycle:1").id
    made = published(ws, "of the first", run=done)
    ws.tracker.record_cycle(done, status="accepted", clean_id=ws.clean().id, recovered_id=made)
    ws.tracker.finish_run(done, {"cycle": 1})
    ws.tracker.stop_run(demo, "interrupted")
    state = with_state(ws, demo, 5)
    assert prune(ws, run=demo, remove=True)["checkpoints"] == []
    assert made in there(ws) and not state.exists()
    assert queries.run(ws.tracker.db, done)["status"] == "done"


def test_a_run_that_is_done_or_at_work_is_not_given_up(ws: Workspace) -> None:
    done = ws.tracker.start_run("eval", key="done").id
    ws.tracker.finish_run(done)
    with pytest.raises(InputError, match="is done"):
        prune(ws, run=done, remove=True)
    run, _, state = cut_off(ws, 1)
    ws.run_directory(run).mkdir()
    with (ws.run_directory(run) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as if a process worked on it now
        assert prune(ws)["unfinished"] == []
        with pytest.raises(InputError, match="is at work"):
            prune(ws, run=run, remove=True)
    elsewhere = ws.tracker.start_run("midtrain", key="elsewhere").id  # gave a sign a moment ago
    with pytest.raises(InputError, match="is at work"):
        prune(ws, run=elsewhere, remove=True)
    assert state.is_dir()
