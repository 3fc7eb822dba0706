"""Two processes train as one does: data parallel and in shards, on data and on own samples, killed or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from recovery import distributed
from recovery.storage.training_state import TrainState, Unprefixed
from tests.support import tiny
from tests.support.engine_fakes import TinyEngine, serving

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CASES = ("texts", "opd", "texts-lora", "opd-lora", "opd-few", "opd-even", "opd-server", "minillm", "rft")


def launch(processes: int, folder: Path, *cases: str, server: str = "") -> int:
    """Runs the cases of two.py one after the other in so many processes."""
    environment = {**os.environ, "SERVER_URL": server, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}"}
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [
            sys.executable,
            *(several if processes > 1 else []),
            str(ROOT / "tests" / "support" / "two.py"),
            str(folder),
            *cases,
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    if done.returncode and all(case.endswith(":0") for case in cases):
        pytest.fail(done.stderr[-3000:])
    return done.returncode


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case by one process, by two, and by two in shards."""
    folder = tmp_path_factory.mktemp("trained")
    with serving(TinyEngine(tiny.chat_model(seed=1, tie_word_embeddings=True))) as server:
        launch(1, folder, *(f"{case}:one:0" for case in CASES), server=server.url)
        server.fault = "loses a row"
        several = (f"{case}:{how}:0" for case in CASES for how in ("two", "shard"))
        launch(2, folder, *several, server=server.url)
    trainings, steps = 3, 3
    assert len(server.updates) == trainings * steps + 1  # by one process each; once more after the loss
    assert trainings * steps * 6 < len(server.rows) <= (trainings * steps + 1) * 6
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = (folder / "model").glob("*.safetensors")
    return load_file(path)


def seen(folder: Path) -> list[dict[str, float]]:
    return json.loads((folder / "seen.json").read_text(encoding="utf-8"))


def looks(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "looks.json").read_text(encoding="utf-8"))


def assert_equal(one: Path, other: Path, last: int | None = None) -> None:
    """The same losses and the same weights, as far as float32 adds up the same in another order."""
    rows = zip(seen(one)[-last:] if last else seen(one), seen(other), strict=True)
    for a, b in rows:
        assert a == pytest.approx(b, rel=1e-4), f"step {a['step']}"
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], atol=2e-5, rtol=0, msg=name)


@pytest.mark.parametrize("how", ["two", "shard"])
@pytest.mark.parametrize("case", CASES)
def test_two_processes_do_as_one(case: str, how: str, trained: Path) -> None:
    assert_equal(trained / f"{case}-one", trained / f"{case}-{how}")


def test_each_process_of_a_sharded_training_writes_its_own_rows(trained: Path) -> None:
    state = trained / "texts-shard" / "state" / "step-000000003"
    assert [path.name for path in sorted(state.glob("*.safetensors"))] == [
        "shard-00000.safetensors",
        "shard-00001.safetensors",
    ]
    _, tensors, _ = TrainState(state.parent).load()  # type: ignore[misc]
    _, whole, _ = TrainState(trained / "texts-one" / "state").load()  # type: ignore[misc]
    assert set(tensors) == set(whole)
    for name in whole:
        torch.testing.assert_close(tensors[name], whole[name], atol=2e-5, rtol=1e-3, msg=name)


def test_no_microbatch_is_lost_in_shards_of_16_bits(tmp_path: Path) -> None:
    """All weights: of each process's microbatches only the first one counted."""
    launch(1, tmp_path, "texts-whole:one:0")
    launch(2, tmp_path, "texts-whole:two:0", "texts-whole:shard:0")
    one, *others = (seen(tmp_path / f"texts-whole-{how}") for how in ("one", "two", "shard"))
    for other in others:
        assert [row["grad_norm"] for row in other] == pytest.approx(
            [row["grad_norm"] for row in one], rel=0.03
        )
        assert [row["loss"] for row in other] == pytest.approx([row["loss"] for row in one], rel=0.01)


def test_an_adapter_on_shards_of_16_bits_is_published_as_it_was_trained(tmp_path: Path) -> None:
    """The shards hold it in bf16; the optimizer's fp32 copy is in the state, and is what is published."""
    launch(2, tmp_path, "texts-half:shard:0")
    folder = tmp_path / "texts-half-shard"
    _, tensors, _ = TrainState(folder / "state").load()  # type: ignore[misc]
    trained = {name.replace(".default", ""): one for name, one in Unprefixed("weights", tensors).items()}
    published = weights(folder)
    assert published.keys() == trained.keys()
    assert all(torch.equal(published[name], trained[name]) for name in trained)
    assert any((one != one.bfloat16()).any() for one in published.values())


@pytest.mark.parametrize("name", ["opd", "opd-server"])
def test_a_sharded_student_is_gathered_only_for_a_look(name: str, tmp_path: Path) -> None:
    """The checks and traces of one process see the same, and so does the training that goes on."""
    with serving(TinyEngine(tiny.chat_model(seed=1, tie_word_embeddings=True))) as server:
        launch(1, tmp_path, f"{name}:one-looks:0", server=server.url)
        launch(2, tmp_path, f"{name}:shard-looks:0", server=server.url)
    one, sharded = (looks(tmp_path / f"{name}-{how}-looks") for how in ("one", "shard"))
    assert len(one["whole"]) == 6
    assert sharded["whole"] == []
    assert sharded["answers"] == one["answers"]
    torch.testing.assert_close(
        torch.tensor(sharded["log_probs"]), torch.tensor(one["log_probs"]), atol=1e-3, rtol=1e-3
    )
    assert_equal(tmp_path / f"{name}-one-looks", tmp_path / f"{name}-shard-looks")


@pytest.mark.parametrize("processes", [1, 2])
def test_killed_on_two_and_resumed(processes: int, trained: Path, tmp_path: Path) -> None:
    """Data parallel and in shards; both go on in one process and in two."""
    for how in ("two", "shard"):
        assert launch(2, tmp_path, f"opd:{how}:1") != 0
        assert not (tmp_path / f"opd-{how}" / "seen.json").exists()
    launch(processes, tmp_path, "opd:two:0", "opd:shard:0")
    for how in ("two", "shard"):
        assert_equal(trained / "opd-one", tmp_path / f"opd-{how}", last=2)


def test_microbatches_are_shared_out_as_the_updater_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven microbatches in two updates: 0 2 4 6 and 1 3 5; of each, every second one is this process's."""
    monkeypatch.setattr(distributed, "world", lambda: 2)
    for rank, wanted in ((0, [0, 1, 4, 5]), (1, [2, 3, 6])):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        assert distributed.mine(7, 2) == wanted
