"""The free disk: what does not fit at all is refused, what may not fit is said, before the first stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from db.reads import queries
from pipelines.config.fitted import Machine, ModelSize
from pipelines.config.overrides import changed
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.pilot import pilot_job
from pipelines.machine import disk_space, doctor, fitting
from pipelines.machine.disk_space import Written
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.support.small_cycles import make_docs, make_home, settle, trainings
from tests.support.stages import PRESET

SIZE = ModelSize(parameters=1000, adapter=128, activation_bytes=1, cache_bytes=1, embeddings=300)
WHOLE: dict[str, Any] = {  # all weights are trained, in fp32
    "midtrain.lora": None,
    "midtrain.save_every": 10,
    "distill.lora": None,
    "distill.freeze_embeddings": False,
    "distill.save_every": 10,
    "distill.steps": 100,
}


@pytest.fixture
def leave(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Leave so many bytes of every disk free."""

    def left(count: int) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=count))

    return left


def written(size: ModelSize = SIZE, **changes: Any) -> list[Written]:
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return disk_space.written(changed(PRESET, WHOLE | named), size, disk_space.STAGES)


def test_a_training_keeps_two_states_and_writes_a_third() -> None:
    midtrain, distill = written()
    assert midtrain == Written("midtrain", state=12_000, states=3, checkpoint=4000)
    assert distill == Written("distill", state=12_000, states=3, checkpoint=4000)
    assert midtrain.least == 16_000
    assert disk_space.most_at_once([midtrain, distill]) == 36_000 + 8000  # the states go when a stage ends


def test_few_steps_write_few_states() -> None:
    assert [one.states for one in written(midtrain__save_every=0, distill__steps=20)] == [1, 2]
    assert [one.states for one in written(midtrain__steps=5, distill__save_every=1)] == [1, 3]


def test_further_steps_of_a_recovery_write_states_too() -> None:
    further: dict[str, Any] = {"distill__more_steps": 10, "distill__optimizer__schedule": "constant"}
    assert [one.states for one in written(distill__steps=10)] == [3, 1]
    assert [one.states for one in written(distill__steps=10, **further)] == [3, 2]


def test_frozen_embeddings_have_no_state_but_are_stored() -> None:
    _, distill = written(distill__freeze_embeddings=True)
    assert (distill.state, distill.checkpoint) == (12 * 700, 4000)


def test_a_vision_tower_has_no_state_but_is_stored() -> None:
    midtrain, distill = written(replace(SIZE, unused=100), distill__freeze_embeddings=True)
    assert (midtrain.state, midtrain.checkpoint) == (12 * 900, 4000)
    assert (distill.state, distill.checkpoint) == (12 * 600, 4000)


def test_an_adapter_is_all_that_is_written() -> None:
    """Of rank 64, half of the default one's weights; recovery trains the same one."""
    midtrain, distill = written(midtrain__lora={"rank": 64}, distill__lora="auto")
    assert (midtrain.state, midtrain.checkpoint) == (12 * 64, 4 * 64)
    assert (distill.state, distill.checkpoint) == (12 * 64, 4 * 64)
    (of_student, _) = written(ModelSize(1000, 128, 1, 1, rank=32))
    assert of_student.state == 12 * 32


def test_a_mixture_under_a_fresh_adapter_is_a_whole_model() -> None:
    adapter = {"rank": 64}
    midtrain, distill = written(distill__lora=adapter, distill__merge=0.5)
    assert (midtrain.mixture, distill.mixture, distill.checkpoint) == (0, 4000, 4 * 64)
    assert distill.least == 12 * 64 + 4 * 64 + 4000
    assert disk_space.most_at_once([midtrain, distill]) == 36_000 + 4000 + 4000 + 4 * 64
    for without in ({"distill__merge": 0.0}, {"midtrain__lora": adapter}, {"distill__lora": None}):
        changes: dict[str, Any] = {"distill__lora": adapter, "distill__merge": 0.5, **without}
        assert [one.mixture for one in written(**changes)] == [0, 0]


def test_what_is_trained_follows_from_the_memory_where_the_settings_leave_it_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for usable, state in ((1e9, 12_000), (1.0, 12 * 128)):
        machine = Machine(usable, weight_bytes=4)
        monkeypatch.setattr(fitting, "this_machine", lambda model, machine=machine: machine)
        assert written(midtrain__lora="auto")[0].state == state


def test_an_adapter_on_modules_of_its_own_is_refused_nowhere() -> None:
    (midtrain, _) = written(midtrain__lora={"rank": 64, "targets": ["q_proj"]})
    assert midtrain.least == 0


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return make_docs(tmp_path)


def test_a_disk_without_room_for_one_state_is_refused_before_the_first_stage(
    tmp_path: Path, docs: Path, leave: Callable[[int], None]
) -> None:
    with make_home(tmp_path) as ws:
        settle(ws, margin=0.4, learning_rate=1e-12)
        leave(1000)
        for build in (*trainings(ws, docs), lambda: pilot_job(ws, docs, 50.0)):
            with pytest.raises(
                InputError, match=r"home: 0\.0 GiB are free there, and .*`recover --home \S+ prune` lists it"
            ):
                build()
        assert queries.runs(ws.tracker.db) == []


def test_a_disk_that_may_become_full_is_said_once(
    tmp_path: Path, docs: Path, leave: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_home(tmp_path) as ws:
        settle(ws, margin=0.4, learning_rate=1e-12)
        said: list[str] = []
        monkeypatch.setattr(ws.progress, "say", said.append)
        needed, taken = _cycle_bytes(ws)
        for free, how, lines in (
            (needed, None, 1),
            (taken - 1, None, 1),
            (taken, None, 0),
            (taken, "auto", 1),  # which makes further checkpoints
        ):
            leave(free)
            said.clear()
            cycle_job(ws, docs, recover_with=how)
            assert len([line for line in said if line.startswith("  disk  ")]) == lines
        leave(needed - 1)
        with pytest.raises(InputError, match="are free there"):
            cycle_job(ws, docs)


@pytest.mark.parametrize(("how", "trained", "mixtures"), [("auto", 3, 4), ("merge", 1, 3)])
def test_a_mixture_of_an_adapter_counts_as_a_whole_model(
    tmp_path: Path,
    docs: Path,
    leave: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    trained: int,
    mixtures: int,
) -> None:
    adapter: dict[str, Any] = {"midtrain.lora": {"rank": 2}, "distill.lora": {"rank": 2}}
    with make_home(tmp_path) as ws:
        settle(ws, margin=0.4, learning_rate=1e-12)
        size = fitting.checkpoint_size(ws, ws.clean())
        (one,) = disk_space.written(changed(ws.config, adapter), size, ("midtrain",))
        whole = 4 * size.parameters
        assert one.checkpoint < whole / 9
        taken = one.state * one.states + trained * one.checkpoint + mixtures * whole
        said: list[str] = []
        monkeypatch.setattr(ws.progress, "say", said.append)
        for free, lines in ((taken - 1, 1), (taken, 0)):
            leave(free)
            said.clear()
            cycle_job(ws, docs, recover_with=how, changes=adapter)
            assert len([line for line in said if line.startswith("  disk  ")]) == lines


def test_a_pilot_counts_a_checkpoint_of_each_rate(
    tmp_path: Path, docs: Path, leave: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_home(tmp_path) as ws:
        settle(ws, margin=0.4, learning_rate=1e-12)
        (midtrain,) = disk_space.written(ws.config, fitting.checkpoint_size(ws, ws.clean()), ("midtrain",))
        taken = midtrain.state * midtrain.states + 2 * midtrain.checkpoint
        said: list[str] = []
        monkeypatch.setattr(ws.progress, "say", said.append)
        for free, lines in ((taken - 1, 1), (taken, 0)):
            leave(free)
            said.clear()
            pilot_job(ws, docs, 50.0)
            assert len([line for line in said if line.startswith("  disk  ")]) == lines


def test_doctor_asks_for_what_a_cycle_needs(
    tmp_path: Path, leave: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "FREE_GIB", 0)
    with make_home(tmp_path) as ws:
        needed, taken = _cycle_bytes(ws)
        assert taken > needed > 0
        for free, ready in ((needed - 1, False), (needed, True)):
            leave(free)
            row = doctor._disk(ws.home)
            assert row["ok"] is ready
            assert row["detail"].endswith(" GiB free, a cycle takes up to 0.0 GiB")
    assert "a cycle" not in doctor._disk(tmp_path / "new")["detail"]


def _cycle_bytes(ws: Workspace) -> tuple[int, int]:
    return disk_space.cycle_bytes(ws.config)


def test_doctor_says_what_init_has_not_made_yet(tmp_path: Path) -> None:
    rows = doctor._settings(tmp_path), doctor._database(tmp_path, None)
    assert [(row["ok"], row["detail"]) for row in rows] == [
        (True, "not there yet: `recover init` writes recover.yaml"),
        (True, "not there yet: `recover init` makes it (SQLite)"),
    ]
    assert doctor._database(tmp_path, str(tmp_path / "new.db"))["detail"].startswith("not there yet")
    assert list(tmp_path.iterdir()) == []
