"""Masked residuals against numbers worked by hand, and as files of several chunks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file, save_file

from db.reads import queries
from pipelines.config.jobs import MergeJob, SweepJob
from pipelines.machine.init_home import initialise
from pipelines.merge import check_options, merge
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.models import merging
from recovery.models.merging import merge_weights
from recovery.models.task_vectors import Mask, Residual, magnitude_of_rank
from tests.support import tiny
from tests.support.weight_reads import watched_reads

Weights = dict[str, torch.Tensor]
NUMBERS = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)

# origin 0 everywhere, so that a model is its own task vector
ADDED = [5.0, -4.0, 3.0, -2.0, 1.0]
OWN = [-1.0, -1.0, -6.0, 3.0, 0.5]


@pytest.mark.parametrize(
    ("keep", "elect_signs", "wanted"),
    [
        (1.0, False, [4.0, -5.0, -3.0, 1.0, 1.5]),  # the plain sum
        (0.4, False, [4.0, -5.0, -6.0, 3.0, 0.5]),  # 5 and -4 are added
        (0.3, False, [4.0, -5.0, -6.0, 3.0, 0.5]),  # 1.5 of five entries: rounded to 2
        (0.01, False, [4.0, -1.0, -6.0, 3.0, 0.5]),  # at least one
        (1.0, True, [4.0, -5.0, -6.0, 3.0, 1.5]),  # 3 loses against -6 and -2 against 3; 5 wins against -1
        (0.6, True, [4.0, -5.0, -6.0, 3.0, 0.5]),  # 5, -4 and 3 are left; 3 loses against -6
        (0.8, True, [4.0, -5.0, -6.0, 3.0, 0.5]),
    ],
)
def test_masks_by_hand(keep: float, elect_signs: bool, wanted: list[float], tmp_path: Path) -> None:
    made = merged(tmp_path, [OWN, ADDED, [0.0] * 5], 1.0, keep=keep, elect_signs=elect_signs)
    assert made.tolist() == wanted


def test_a_residual_is_masked_unscaled_and_added_by_its_weight(tmp_path: Path) -> None:
    """From origin 1: the residual is 4, -2; the student's own change -3, 0.5. Half of 4 is added though -3
    outweighs that half, and -2 although 0.5 opposes it."""
    made = merged(tmp_path, [[-2.0, 1.5], [5.0, -1.0], [1.0, 1.0]], 0.5, elect_signs=True)
    assert made.tolist() == [0.0, 0.5]


def test_what_the_cut_takes_from_the_students_change_opposes_nothing() -> None:
    student, other = torch.tensor([-2.0, 9.0]), torch.tensor([1.0, 8.0])
    origin = torch.zeros(2)
    assert Mask(added=0.0, own=2.0)(student, other, origin).tolist() == [False, True]
    assert Mask(added=0.0, own=3.0)(student, other, origin).tolist() == [True, True]
    assert Mask(added=2.0, own=None)(student, other, origin).tolist() == [False, True]


def test_signs_that_balance_are_left_out() -> None:
    origin = torch.zeros(1)
    assert Mask(added=0.0, own=0.0)(torch.tensor([-1.0]), torch.tensor([1.0]), origin).tolist() == [False]


@given(st.lists(NUMBERS, min_size=1, max_size=40), st.data())
def test_the_magnitude_of_a_rank_is_that_of_the_sorted_numbers(
    numbers: list[float], data: st.DataObject
) -> None:
    rank = data.draw(st.integers(1, len(numbers)))
    tensor = torch.tensor(numbers)
    wanted = tensor.abs().sort(descending=True).values[rank - 1].item()
    assert magnitude_of_rank(lambda: tensor.split(7), rank) == wanted


def test_numbers_that_differ_in_the_last_bit_are_ranked() -> None:
    one = torch.tensor(1.0)
    next_up = torch.nextafter(one, torch.tensor(2.0))
    parts = [torch.stack([one, next_up]), torch.tensor([[0.0]]), torch.empty(0)]
    found = [magnitude_of_rank(lambda: parts, rank) for rank in (1, 2, 3)]
    assert found == [next_up.item(), 1.0, 0.0]


@settings(max_examples=25)
@given(
    arrays(np.float32, (3, 8), elements=NUMBERS), st.floats(0, 1, allow_subnormal=False), st.floats(0.01, 1)
)
def test_the_plain_merge_keeps_all_and_a_mask_leaves_entries_as_either_was(
    tmp_path_factory: pytest.TempPathFactory,
    numbers: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    weight: float,
    keep: float,
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    rows: list[list[float]] = numbers.tolist()
    plain = merged(folder / "plain", rows, weight)
    assert torch.equal(merged(folder / "all", rows, weight, keep=1.0), plain)
    student, other, origin = map(torch.tensor, rows)
    masked = merged(folder / "masked", rows, weight, keep=keep)
    cut = magnitude_of_rank(lambda: [other - origin], max(1, round(keep * 8)))
    stays = (other - origin).abs() >= cut
    assert torch.equal(masked, torch.where(stays, plain, student))


def merged(
    folder: Path, rows: list[list[float]], weight: float, *, keep: float = 1.0, elect_signs: bool = False
) -> torch.Tensor:
    """Add the residual of the last two of three models of one tensor to the first one."""
    (folder / "made").mkdir(parents=True)
    paths = []
    for number, row in enumerate(rows):
        path = folder / str(number)
        path.mkdir()
        (path / "config.json").write_text("{}")
        save_file({"w": torch.tensor(row)}, path / "model.safetensors")
        paths.append(path)
    residual = Residual(paths[2], keep, elect_signs)
    merge_weights(paths[0], paths[1], folder / "made", weight, "residual", residual=residual)
    return load_file(folder / "made" / "model.safetensors")["w"]


def test_a_mask_is_the_same_however_few_rows_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student, other, origin = (tiny.save(tmp_path / str(seed), seed=seed) for seed in range(3))
    sizes = watched_reads(monkeypatch)
    made: dict[int, Weights] = {}
    for chunk in (2**24, 1000):
        monkeypatch.setattr(merging, "CHUNK", chunk)
        sizes.clear()
        target = tmp_path / f"chunk-{chunk}"
        target.mkdir()
        residual = Residual(origin, keep=0.2, elect_signs=True)
        merge_weights(student, other, target, 0.7, "residual", residual=residual)
        made[chunk] = load_file(target / "model.safetensors")
    assert max(sizes) <= 1000
    before = load_file(student / "model.safetensors")
    for name, tensor in made[1000].items():
        assert torch.equal(tensor, made[2**24][name])
        assert (tensor != before[name]).float().mean() <= 0.2 + 1 / tensor.numel()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in made[1000].items())


@pytest.mark.parametrize("keep", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(keep: float) -> None:
    with pytest.raises(InputError, match="no share"):
        Residual(Path(), keep)
    with pytest.raises(InputError, match=r"--keep .* is no share"):
        check_options(MergeJob(student="a", other="b", weight=1, kind="residual", origin="c", keep=keep))


def test_a_stage_and_a_sweep_hand_the_masks_on(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")))
        ids = []
        for change in (0.5, 2.0):
            chat = ws.load(ws.clean())
            with torch.no_grad():
                chat.model.get_parameter("model.norm.weight")[:4].add_(torch.tensor([change, -change, 1, 1]))
            ids.append(ws.publish(chat, parent=ws.clean(), run_id=None, config={}).id)
        how = {"student": ids[0], "other": ids[1], "kind": "residual", "origin": ws.clean().id}
        job = MergeJob.model_validate(how | {"weight": 1.0, "keep": 1 / 16, "elect_signs": True})
        made = merge(ws, job, key="m")["checkpoint"]
        norm = ws.load(ws.checkpoint(made)).model.get_parameter("model.norm.weight")
        assert norm[:5].tolist() == [3.5, -1.5, 2.0, 2.0, 1.0]  # two of 32 entries: 2 and -2 are added
        (run,) = queries.runs(ws.tracker.db, kind="merge")
        assert MergeJob(**json.loads(json.dumps(run["config"]))) == job
        swept = {**how, "weights": (1.0,), "suites": (), "settings": ws.config.eval, "keep": 1 / 16}
        found = sweep_points(ws, SweepJob.model_validate(swept | {"elect_signs": True}))
        assert found == [ids[0], made]


def sweep_points(ws: Workspace, job: SweepJob) -> list[str]:
    from pipelines.sweep import sweep

    return [point["checkpoint"] for point in sweep(ws, job, key="s")["points"]]
