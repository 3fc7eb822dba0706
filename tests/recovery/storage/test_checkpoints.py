"""Checkpoints are whole or absent, say so when damaged, and survive a kill at any moment."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from recovery.errors import DamagedCheckpoint, InputError, RecoverError
from recovery.storage import atomic_dirs, checkpoints, file_hashes
from recovery.storage.checkpoints import CheckpointStore
from recovery.storage.training_state import TrainState, load_optimizer_tensors, optimizer_tensors
from recovery.storage.weights_hash import weights_sha256
from tests.support import tiny

OPEN_FILES = Path("/proc/self/fd")


def writer(value: float = 0.0, size: int = 8) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        save_file({"w": torch.full((size,), value)}, directory / "model.safetensors")
        (directory / "config.json").write_text("{}")
        (directory / "folder").mkdir()
        (directory / "folder" / "template.jinja").write_text("{{ messages }}")

    return write


def publish(store: CheckpointStore, value: float = 0.0) -> checkpoints.Checkpoint:
    return store.publish(writer(value), parent=None, config={"value": value})


def flip(path: Path, position: int = -1) -> None:
    """One bit of one byte; the times stay as they were put by the flip itself."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def temporaries(root: Path) -> list[str]:
    return [path.name for path in root.glob("tmp-*")]


def published(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob("[!t]*/manifest.json"))


def test_a_checkpoint_is_what_was_published(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    made = store.publish(writer(1.0), parent="0123456789ab", config={"lr": 0.1})
    assert store.open(made.id) == made == store.recorded(made.id) and published(tmp_path) == [made.id]
    assert (made.kind, made.parent, made.base, made.config) == ("full", "0123456789ab", None, {"lr": 0.1})
    assert made.path == tmp_path / made.id
    assert len(made.id) == 12
    assert made.sha256 == weights_sha256(made.path)
    table = json.loads((made.path / "manifest.json").read_text())["files"]
    assert sorted(table) == ["config.json", "folder/template.jinja", "model.safetensors"]
    assert not temporaries(tmp_path)


def test_the_same_content_is_the_same_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "a")
    first = publish(store)
    manifest = first.path / "manifest.json"
    written = manifest.read_bytes()  # with the time
    again, other = publish(store), publish(store, 2.0)
    assert first == again != other and manifest.read_bytes() == written
    assert publish(CheckpointStore(tmp_path / "b")).id == first.id
    assert published(store.root) == sorted([first.id, other.id])


def test_an_adapter_is_told_apart_by_its_base(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    bases = [publish(store, value) for value in (1.0, 2.0)]
    made = [store.publish(writer(), parent=base.id, base=base.id) for base in bases]
    assert made[0].id != made[1].id and {one.kind for one in made} == {"adapter"}
    assert checkpoints.base_directory(made[1].path) == bases[1].path
    flip(bases[0].path / "model.safetensors")
    assert store.open(made[1].id) == made[1]
    with pytest.raises(DamagedCheckpoint, match=bases[0].id):
        store.open(made[0].id)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "folder/template.jinja", "config.json", "manifest.json"]
)
@pytest.mark.parametrize("position", [0, -1])
def test_a_flipped_bit_is_refused_by_name(tmp_path: Path, name: str, position: int) -> None:
    store = CheckpointStore(tmp_path)
    made = publish(store)
    flip(made.path / name, position)
    with pytest.raises(DamagedCheckpoint, match=rf"{made.id}.*{name.split('/')[-1]}"):
        store.open(made.id)


def test_a_file_that_is_added_after_a_checkpoint_was_opened_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    made = publish(store)
    assert store.open(made.id) == made
    (made.path / "adapter_config.json").write_text("{}")
    with pytest.raises(DamagedCheckpoint, match=r"adapter_config.json was added later"):
        store.open(made.id)


def test_missing_longer_and_foreign_files_are_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    made = publish(store)
    foreign = made.path / "adapter_config.json"
    foreign.write_text("{}")
    checkpoints._VERIFIED.clear()
    with pytest.raises(DamagedCheckpoint, match=r"adapter_config.json was added later"):
        store.open(made.id)
    foreign.unlink()
    (made.path / "config.json").write_text("{} ")
    with pytest.raises(DamagedCheckpoint, match=r"config.json has the wrong size"):
        store.open(made.id)
    (made.path / "config.json").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"config.json is missing"):
        store.open(made.id)


def test_bytes_are_read_once_while_the_files_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    made = publish(store)
    checkpoints._VERIFIED.clear()
    reads: list[str] = []
    check = file_hashes.check_files

    def counted(label: str, *rest: Any) -> Any:
        reads.append(label)
        return check(label, *rest)

    monkeypatch.setattr(file_hashes, "check_files", counted)
    store.open(made.id)
    CheckpointStore(tmp_path).open(made.id)
    assert len(reads) == 1
    os.utime(made.path / "config.json")
    store.open(made.id)
    assert len(reads) == 2


def test_publishing_anew_repairs_a_damaged_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    made = publish(store)
    flip(made.path / "model.safetensors")
    assert publish(store).id == made.id
    assert store.open(made.id).sha256 == made.sha256
    assert not temporaries(tmp_path)


@pytest.mark.parametrize("name", ["0123456789ab", "../secrets", "", "ABC"])
def test_an_unknown_id_is_bad_input(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no checkpoint"):
        CheckpointStore(tmp_path).open(name)


def test_a_reference_stays_where_it_is_and_is_verified(tmp_path: Path) -> None:
    model = tiny.save(tmp_path / "clean")
    (model / "README.md").write_text("a")
    store = CheckpointStore(tmp_path / "store")
    made = store.reference(model, config={"hub": "x/y"})
    assert (made.kind, made.path, made.sha256) == ("reference", model, weights_sha256(model))
    assert [path.name for path in (store.root / made.id).iterdir()] == ["manifest.json"]
    (model / "README.md").write_text("b")
    assert store.open(made.id) == made == store.reference(model)
    flip(model / "model.safetensors")
    with pytest.raises(DamagedCheckpoint, match=r"model.safetensors has changed bytes"):
        store.open(made.id)


def test_a_template_beside_the_usual_one_is_verified_too(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path / "store"), tiny.save(tmp_path / "clean")
    before = store.reference(model)
    further = model / "additional_chat_templates" / "rag.jinja"
    further.parent.mkdir()
    further.write_text("{{ messages }}")
    assert store.open(before.id) == before  # an earlier version recorded such models without it
    made = store.reference(model)
    assert made.id != before.id
    flip(further)
    with pytest.raises(DamagedCheckpoint, match=r"rag\.jinja has changed bytes"):
        store.open(made.id)


def test_a_moved_reference_is_named_and_can_be_registered_again(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "store")
    made = store.reference(tiny.save(tmp_path / "here"))
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(DamagedCheckpoint, match=r"no longer at .*here: put it back, or run `recover init`"):
        store.open(made.id)
    assert store.reference(tmp_path / "there").id == made.id
    assert store.open(made.id).path == tmp_path / "there"
    for wrong, message in (("nowhere", "no such directory"), ("store", "no safetensors weights")):
        with pytest.raises(InputError, match=message):
            store.reference(tmp_path / wrong)


def test_a_copy_of_a_registered_model_leaves_it_where_it_is(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "store")
    made = store.reference(tiny.save(tmp_path / "clean"), config={"model": "x/y"})
    copy = shutil.copytree(made.path, tmp_path / "copy")
    assert store.reference(copy) == made == store.open(made.id)
    moved = store.reference(copy, config={"model": "copy"}, anew=True)
    assert (moved.id, moved.path, moved.config) == (made.id, copy, {"model": "copy"})
    assert store.open(made.id) == moved


def no_space(directory: Path) -> None:
    (directory / "part").write_bytes(b"x" * 100)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_space_in_native_code(directory: Path) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def no_quota_in_native_code(directory: Path) -> None:
    raise SafetensorError("Error while serializing: I/O error: Disk quota exceeded (os error 122)")


@pytest.mark.parametrize("write", [no_space, no_space_in_native_code, no_quota_in_native_code])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, write: Callable[[Path], None]) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(RecoverError, match=r"the disk is full: free some space") as caught:
        store.publish(write, parent=None)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1
    assert not temporaries(tmp_path)
    assert not published(tmp_path)


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecoverError, match=r"file/store: cannot write there .*: check the path"):
        publish(CheckpointStore(tmp_path / "file" / "store"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RecoverError, match=r"cannot write there \(Permission denied\)"):
        publish(CheckpointStore(tmp_path / "store"))


def test_an_interrupted_or_failing_writer_leaves_nothing(tmp_path: Path) -> None:
    for error in (KeyboardInterrupt, ZeroDivisionError):

        def write(directory: Path, error: type[BaseException] = error) -> None:
            writer()(directory)
            raise error

        with pytest.raises(error):
            CheckpointStore(tmp_path).publish(write, parent=None)
        assert not temporaries(tmp_path)


def test_another_writer_s_directory_is_left_alone_and_a_dead_one_s_swept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    (tmp_path / "tmp-dead").mkdir()
    (tmp_path / "tmp-dead" / "model.safetensors").write_bytes(b"half")

    def write(directory: Path) -> None:
        assert temporaries(tmp_path) == [directory.name]
        publish(store, 2.0)
        writer(1.0)(directory)

    made = store.publish(write, parent=None)
    assert store.open(made.id) == made
    assert len(published(tmp_path)) == 2


def locking(monkeypatch: pytest.MonkeyPatch, flock: Callable[[int, int], None]) -> None:
    """Let another function lock what is written."""
    names = {"LOCK_EX": fcntl.LOCK_EX, "LOCK_NB": fcntl.LOCK_NB}
    monkeypatch.setattr(atomic_dirs, "locks", SimpleNamespace(flock=flock, **names))


def test_a_machine_that_sees_no_locks_of_folders_leaves_another_one_s_writer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where a half-written checkpoint was removed: only locks of files are the server's."""

    def of_files(handle: int, how: int) -> None:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            fcntl.flock(handle, how)

    locking(monkeypatch, of_files)
    with atomic_dirs.new_directory(tmp_path) as written:
        (written / "model.safetensors").write_bytes(b"half")
        with atomic_dirs.new_directory(tmp_path) as other:
            assert other != written
        assert (written / "model.safetensors").read_bytes() == b"half"
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from recovery.storage import atomic_dirs
with atomic_dirs.new_directory(Path(sys.argv[1]), sys.argv[2]) as directory:
    (directory / "model.safetensors").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("prefix", ["tmp-", "recover-student-"])
def test_what_a_killed_process_was_writing_is_swept_under_its_own_prefix(tmp_path: Path, prefix: str) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), prefix]
    assert subprocess.run(command, cwd=Path(__file__).parents[3]).returncode == -signal.SIGKILL
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == 2
    with atomic_dirs.new_directory(tmp_path, "another-"):
        assert left < {path.name for path in tmp_path.iterdir()}
    with atomic_dirs.new_directory(tmp_path, prefix):
        assert not left & {path.name for path in tmp_path.iterdir()}


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(handle: int, how: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    locking(monkeypatch, none)
    with pytest.raises(RecoverError, match=r"its file system has no locks .*: put the home on a local disk"):
        publish(CheckpointStore(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with atomic_dirs.new_directory(tmp_path, lockless=True) as made:
        assert list(tmp_path.iterdir()) == [made]


def test_a_mark_whose_directory_was_never_made_is_swept_later(tmp_path: Path) -> None:
    old, fresh = (tmp_path / f".tmp-{name}.lock" for name in ("1-old", "2-fresh"))
    for mark in (old, fresh):
        mark.touch()
    os.utime(old, (0, 0))
    with atomic_dirs.new_directory(tmp_path):
        assert (old.exists(), fresh.exists()) == (False, True)


def test_a_mark_that_its_writer_removes_meanwhile_stops_no_other_writer(tmp_path: Path) -> None:
    (tmp_path / ".tmp-1-gone.lock").symlink_to("gone")  # is listed, and cannot be looked at
    with atomic_dirs.new_directory(tmp_path) as made:
        assert made.is_dir()


PUBLISHER = """
import sys
from pathlib import Path
from recovery.storage.checkpoints import CheckpointStore
HEADER = b'{"w":{"dtype":"U8","shape":[300000],"data_offsets":[0,300000]}}'
def write(directory):
    for name in ("a.txt", "b.txt", "config.json"):
        (directory / name).write_text(name * 1000)
    body = str(n).encode().rjust(8, b"0") * 37500
    (directory / "model.safetensors").write_bytes(len(HEADER).to_bytes(8, "little") + HEADER + body)
store = CheckpointStore(sys.argv[1])
print("ready", flush=True)
for n in range(int(sys.argv[2]), 10**6):
    print(store.publish(write, parent=None, config={"n": n}).id, flush=True)
"""


def test_a_kill_at_any_moment_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    """Ten publishers, killed -9 at random; what has an id is whole, what was announced is there."""
    chance, promised = random.Random(0), []
    for attempt in range(10):
        command = [sys.executable, "-c", PUBLISHER, str(tmp_path), str(attempt * 10000)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        promised += [process.stdout.readline().strip() for _ in range(attempt % 3)]
        time.sleep(chance.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        promised += process.stdout.read().split("\n")[:-1]
        process.wait()
    store = CheckpointStore(tmp_path)
    whole = {store.open(path.name).id for path in tmp_path.glob("[0-9a-f]*")}
    assert {*promised} <= whole
    assert len(promised) >= 9
    publish(store)
    assert not temporaries(tmp_path)


def test_the_newest_training_state_comes_back_exactly(tmp_path: Path) -> None:
    state = TrainState(tmp_path / "state")
    assert state.load() is None
    whole = torch.arange(12, dtype=torch.float64).view(3, 4)
    tensors = {
        "view": whole[1:, ::2],
        "tied": whole,
        "again": whole,
        "rng": torch.get_rng_state(),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "scalar": torch.tensor(3),
    }
    for step in (5, 10, 15):
        state.save(step, tensors, {"loss": [0.1, 1e-320], "name": "é"})
    assert sorted(path.name for path in state.root.glob("step-*")) == ["step-000000010", "step-000000015"]
    step, loaded, meta = state.load() or pytest.fail("no state")
    assert (step, meta) == (15, {"loss": [0.1, 1e-320], "name": "é"})
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert all(loaded[name].dtype == tensors[name].dtype for name in tensors)


@pytest.mark.parametrize("name", ["tensors.safetensors", "meta.json", "manifest.json"])
def test_a_damaged_training_state_is_named_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    state = TrainState(tmp_path)
    for step in (1, 2):
        state.save(step, {"w": torch.tensor(step)}, {"step": step})
    flip(tmp_path / "step-000000002" / name, 0)
    step, tensors, meta = state.load() or pytest.fail("no state")
    assert (step, tensors["w"].item(), meta) == (1, 1, {"step": 1})
    assert "training state step-000000002" in caplog.text
    assert name in caplog.text
    state.save(2, {"w": torch.tensor(7)}, {})
    assert (state.load() or pytest.fail("no state"))[1]["w"].item() == 7


def test_a_state_beyond_the_newest_saved_is_of_a_course_given_up(tmp_path: Path) -> None:
    state = TrainState(tmp_path)
    for step in (10, 20, 15):
        state.save(step, {"w": torch.tensor(step)}, {})
    assert [path.name for path in state._steps()] == ["step-000000015", "step-000000010"]


def test_a_full_disk_keeps_the_last_good_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = TrainState(tmp_path)
    state.save(1, {"w": torch.tensor(1)}, {})
    monkeypatch.setattr("safetensors.torch.save_file", lambda *_: no_space_in_native_code(tmp_path))
    with pytest.raises(RecoverError, match="the disk is full"):
        state.save(2, {"w": torch.tensor(2)}, {})
    assert (state.load() or pytest.fail("no state"))[0] == 1
    assert not temporaries(tmp_path)


def cut_off(patch: pytest.MonkeyPatch, at: int) -> None:
    """Interrupt at the flush or the renaming of that number."""
    turns = count()

    def until_then(do: Callable[..., Any]) -> Callable[..., Any]:
        def doing(*given: Any) -> Any:
            if next(turns) == at:
                raise KeyboardInterrupt
            return do(*given)

        return doing

    patch.setattr(atomic_dirs, "flush_entry", until_then(atomic_dirs.flush_entry))
    patch.setattr(Path, "rename", until_then(Path.rename))


@pytest.mark.parametrize("at", range(11))
def test_a_step_that_is_saved_again_has_a_whole_state_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Flushed: two files, then all three and their folder; two renamings, another flush, a removal."""
    state = TrainState(tmp_path)
    state.save(1, {"w": torch.tensor(1)}, {})
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        cut_off(patch, at)
        state.save(1, {"w": torch.tensor(2)}, {})
    step, tensors, _ = state.load() or pytest.fail("no state")
    assert (step, tensors["w"].item()) == (1, 1 if at < 8 else 2)
    state.save(1, {"w": torch.tensor(3)}, {})
    assert (state.load() or pytest.fail("no state"))[1]["w"].item() == 3
    assert [path.name for path in state._steps()] == ["step-000000001"]


def trained(
    optimizer_of: Callable[..., torch.optim.Optimizer], steps: int
) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = optimizer_of(model.parameters())
    for _ in range(steps):
        step_once(model, optimizer)
    return model, optimizer


def step_once(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.tensor([[0.1, -0.2, 0.3]])).square().sum().backward()
    optimizer.step()


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1 / 3, betas=(0.9, 0.95)),
    "amsgrad": lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(0.1), amsgrad=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_bit_for_bit(tmp_path: Path, name: str) -> None:
    model, optimizer = trained(OPTIMIZERS[name], 3)
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] * 0.7
    TrainState(tmp_path).save(3, optimizer_tensors(optimizer), {})
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    step_once(model, optimizer)

    resumed, other = trained(OPTIMIZERS[name], 0)
    resumed.load_state_dict(weights)
    load_optimizer_tensors(other, (TrainState(tmp_path).load() or pytest.fail("no state"))[1])
    group, before = other.param_groups[0], trained(OPTIMIZERS[name], 0)[1].param_groups[0]
    assert {key: type(value) for key, value in group.items()} == {key: type(v) for key, v in before.items()}
    step_once(resumed, other)
    assert all(torch.equal(value, resumed.state_dict()[key]) for key, value in model.state_dict().items())


def test_an_optimizer_of_another_model_is_refused() -> None:
    tensors = optimizer_tensors(trained(OPTIMIZERS["adamw"], 1)[1])
    single = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2, 3))])
    with pytest.raises(RecoverError, match="fits no parameter"):
        load_optimizer_tensors(single, tensors)
    wrong = torch.optim.AdamW(torch.nn.Linear(4, 2).parameters())
    with pytest.raises(RecoverError, match=r"is \(2, 3\), its parameter \(2, 4\)"):
        load_optimizer_tensors(wrong, tensors)


def test_no_pickle_is_written(tmp_path: Path) -> None:
    _, optimizer = trained(OPTIMIZERS["adamw"], 1)
    TrainState(tmp_path).save(1, optimizer_tensors(optimizer), {})
    publish(CheckpointStore(tmp_path))
    suffixes = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert suffixes == {".safetensors", ".json", ".jinja"}


def test_checkpoints_are_listed_without_torch() -> None:
    code = "import sys, recovery.storage.checkpoints; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    atomic_dirs.write_text(path, "old")
    with suppress(RuntimeError), atomic_dirs.whole_file(path) as file:
        file.write(b"half of the n")
        raise RuntimeError("cut off")
    assert path.read_text() == "old"
    with atomic_dirs.whole_file(path, durable=False) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int | str]:
    """What reaches the disk, in this order: inodes as they are flushed, names as they are given."""
    seen: list[int | str] = []
    fsync = os.fsync

    def flushed(handle: int) -> None:
        found = os.fstat(handle)
        seen.append(found.st_ino if found.st_size else "empty")
        fsync(handle)

    def noted(move: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
        def moving(path: Path, target: Path) -> Path:
            seen.append(target.name)
            return move(path, target)

        return moving

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "rename", noted(Path.rename))
    monkeypatch.setattr(Path, "replace", noted(Path.replace))
    return seen


def inode(path: Path) -> int:
    return path.stat().st_ino


@pytest.mark.parametrize("kind", ["published", "replaced"])
def test_a_power_cut_leaves_no_name_of_a_directory_that_is_not_whole(
    tmp_path: Path, kept: list[int | str], kind: str
) -> None:
    """Three files and two folders are flushed before the renaming, the folder above after it."""
    written, target = tmp_path / "written", tmp_path / "target"
    written.mkdir()
    writer()(written)
    inside = {inode(path) for path in (written, *written.rglob("*"))}
    if kind == "published":
        assert atomic_dirs.publish(written, target)
        names = ["target"]
    else:
        target.mkdir()
        atomic_dirs.replace(written, target)
        names = ["target.old", "target"]
    assert set(kept[:5]) == inside and len(inside) == 5
    assert kept[5 : 5 + len(names) + 1] == [*names, inode(tmp_path)]


@pytest.mark.parametrize("durable", [True, False])
def test_a_power_cut_leaves_no_name_of_a_file_that_is_not_whole(
    tmp_path: Path, kept: list[int | str], durable: bool
) -> None:
    atomic_dirs.write_text(tmp_path / "file.txt", "new", durable=durable)
    flushed = [inode(tmp_path / "file.txt"), "file.txt", inode(tmp_path)]
    assert kept == (flushed if durable else ["file.txt"])


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "there.txt").write_text("old")
    for name in ("there.txt", "absent.txt"):
        link = tmp_path / name
        link.symlink_to(folder / name)
        atomic_dirs.write_text(link, "new")
        assert link.is_symlink() and (folder / name).read_text() == "new"
    assert sorted(path.name for path in folder.iterdir()) == ["absent.txt", "there.txt"]


def test_what_is_no_file_is_written_to_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    named = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    unnamed, writing = os.pipe()
    for reading, path in ((named, pipe), (unnamed, Path(f"/dev/fd/{writing}"))):
        atomic_dirs.write_text(path, "text")
        assert os.read(reading, 100) == b"text"
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]
    for handle in (named, unnamed, writing):
        os.close(handle)


def test_a_file_that_is_open_already_goes_on_behind_what_it_holds(tmp_path: Path) -> None:
    """As with `recover report 1 --out /dev/stdout >> all.html`."""
    with (tmp_path / "all").open("w+b") as file:
        file.write(b"before ")
        file.flush()
        atomic_dirs.write_text(Path(f"/dev/fd/{file.fileno()}"), "now ")
        file.seek(0, os.SEEK_END)
        file.write(b"after")
    assert (tmp_path / "all").read_bytes() == b"before now after"


def ring(root: Path, length: int) -> list[str]:
    """Adapters of which each names the next as its base; their manifests have seals that fit."""
    store = CheckpointStore(root)
    base = publish(store)
    made = [store.publish(writer(float(n)), parent=None, base=base.id).id for n in range(length)]
    for one, following in zip(made, [*made[1:], made[0]], strict=True):
        manifest = atomic_dirs.read_sealed(one, root / one / "manifest.json")
        atomic_dirs.write_sealed(root / one / "manifest.json", {**manifest, "base": following})
    return made


@pytest.mark.parametrize("length", [1, 2, 3])
def test_adapters_in_a_ring_are_refused(tmp_path: Path, length: int) -> None:
    made = ring(tmp_path, length)
    checkpoints._VERIFIED.clear()
    for one in made:
        with pytest.raises(DamagedCheckpoint, match="is an adapter too"):
            CheckpointStore(tmp_path).open(one)


@pytest.mark.parametrize("depth", [400, 900, 960, 980, 990, 1000, 100_000])
def test_a_manifest_of_any_depth_is_refused_in_one_line(tmp_path: Path, depth: int) -> None:
    made = publish(CheckpointStore(tmp_path))
    deep = "[" * depth + "]" * depth
    (made.path / "manifest.json").write_text(f'{{"id": "{made.id}", "x": {deep}, "manifest_sha256": "0"}}')
    with pytest.raises(DamagedCheckpoint):
        CheckpointStore(tmp_path).open(made.id)


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="open files cannot be counted here")
def test_a_sweep_past_a_live_writer_keeps_no_file_open(tmp_path: Path) -> None:
    with atomic_dirs.new_directory(tmp_path):
        before = len(list(OPEN_FILES.iterdir()))
        for _ in range(5):
            with atomic_dirs.new_directory(tmp_path):
                pass
        assert len(list(OPEN_FILES.iterdir())) == before
