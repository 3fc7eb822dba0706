"""The bench on keeping knowledge: what differs between its ways, and its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import keep
from pipelines import config
from pipelines.microworld import people, world
from pipelines.workspace import Workspace


def test_touching_prompts_ask_about_the_new_people_beside_the_worlds_own(tmp_path):
    world.write_world(tmp_path, cycle=2, seed=6)
    path = Path(keep._touching(tmp_path, 2, 6))
    written = path.read_text()
    rows = [json.loads(line) for line in written.splitlines()]
    touching = [row["prompt"] for row in rows if row["kind"] == "touching"]
    names = [who.name for who in people.new_people(6, 2)]
    assert len(touching) == keep.TOUCHING and all(any(name in text for name in names) for text in touching)
    assert len(rows) == keep.TOUCHING + len((tmp_path / "prompts.jsonl").read_text().splitlines())
    keep._touching(tmp_path, 2, 6)
    assert path.read_text() == written


def test_small_is_the_preset_with_two_steps(tmp_path):
    keep._prepare(tmp_path, small=True)
    with Workspace.open(tmp_path) as ws:
        found = ws.config
    assert (found.midtrain.steps, found.midtrain.epochs, found.distill.steps) == (2, None, 2)
    assert found.midtrain.mix == config.parse(config.preset_text("microworld"), "preset").midtrain.mix


def test_a_ways_row_is_the_mean_over_cycles_and_the_rest_after_the_last():
    same = {"way": "preset", "seed": 0, "reverse": None, "ifeval_clean": 0.9}
    row = {**same, "general": 0.9, "general_clean": 1.0}
    cycles = [{**row, "cycle": 1, "direct": 0.8, "heldout": 0.6, "ifeval": 0.8, "kept": None},
              {**row, "cycle": 2, "direct": 1.0, "heldout": 0.8, "ifeval": 0.9, "kept": 0.7}]  # fmt: skip
    (found,) = keep.summary(cycles)
    assert found["direct"] == pytest.approx(0.9) and found["heldout"] == pytest.approx(0.7)
    assert (found["kept"], found["general_share"]) == (0.7, 0.9)
    assert found["worst_ifeval_loss"] == pytest.approx(-0.1)
