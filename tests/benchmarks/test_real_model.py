"""The speed benchmarks on a model that is not the shipped one: both sides do the same work."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.common import Ratio, installed
from benchmarks.speed import material, midtrain, real_model, sampler
from benchmarks.speed.material import Material
from recovery.sampling.protocol import SamplingParams
from tests.support import tiny, tiny_gguf

ROOT = page.PAGE.parent.parent
STEPS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return Material(tiny.save(tmp_path_factory.mktemp("model") / "tiny"))


def test_generate_gives_the_sampler_s_greedy_answers(model: Material) -> None:
    chat = model.load(attention="sdpa")
    prompts = [chat.prompt_ids(prompt.messages) for prompt in model.prompts(3)]
    writers: dict[str, sampler.Writer] = {
        sampler.OURS: lambda asked, params: sampler.sampled(chat, asked, params),
        sampler.GENERATE: lambda asked, params: sampler.generated(chat, asked, params),
    }
    case = sampler.Case(3, new_tokens=6, temperature=0.0)
    turns = sampler.compare(writers, prompts, case, rounds=2)
    row = turns.row(case, limit=1.0)
    assert row["same answers"] == "100%"
    assert all(len(answer) <= 6 for answers in turns.written["generate"] for answer in answers)
    assert turns.speeds["recover"][1] == pytest.approx(
        sum(map(len, turns.written["recover"][1])) / turns.seconds["recover"][1]
    )


@pytest.mark.slow
def test_a_peer_whose_process_fails_ends_the_benchmark(model: Material) -> None:
    with sampler.beside("no such peer", model.load(), "float32", Path(sys.executable)) as write:
        with pytest.raises(SystemExit, match="no such peer: its process has ended"):
            write([[1]], SamplingParams(1))


def test_answers_end_with_their_stop_token(model: Material) -> None:
    chat = model.load(attention="sdpa")
    prompts = [chat.prompt_ids(prompt.messages) for prompt in model.prompts(8)]
    for write in (sampler.sampled, sampler.generated):
        answers = write(chat, prompts, SamplingParams(60, temperature=3.0, seed=1))
        ended = [answer for answer in answers if len(answer) < 60]
        assert ended and all(answer[-1] in chat.stop_ids for answer in ended)
        assert not any(token in chat.stop_ids for answer in answers for token in answer[:-1])


def test_both_trainers_follow_the_same_losses(model: Material) -> None:
    chat, documents, settings = midtrain.work(model, 96)
    ours = midtrain.ours(chat, documents, settings, STEPS)
    theirs = midtrain.theirs(*midtrain.work(model, 96, attention="sdpa"), STEPS)
    assert len(ours.losses) == len(theirs.losses) == STEPS
    assert midtrain.largest_gap(ours.losses, theirs.losses) < 1e-3
    assert ours.losses[0] != pytest.approx(ours.losses[1], abs=1e-3)
    assert len(ours.speeds) == len(theirs.speeds) == STEPS - 1


def test_a_ratio_is_taken_round_by_round() -> None:
    ratio = Ratio.of([10.0, 1.0, 30.0], [5.0, 0.5, 10.0])
    assert ratio.median == 2.0 and str(ratio) == "2 (2-3)"


def test_a_gguf_file_is_converted_for_the_benchmark(tmp_path: Path) -> None:
    with material.checkpoint(str(tiny_gguf.write(tmp_path / "small.gguf"))) as directory:
        found = Material(directory)
        assert found.describe(found.load()).startswith("small (")
    assert not directory.exists()


def test_only_parts_that_exist_can_be_asked_for() -> None:
    assert real_model.parts("distill,sampling") == ["distill", "sampling"]
    with pytest.raises(argparse.ArgumentTypeError, match="samplng: choose from sampling"):
        real_model.parts("samplng,distill")


@pytest.mark.slow
def test_every_part_runs_and_is_written(tmp_path: Path, model: Material) -> None:
    written = tmp_path / "benchmarks.md"
    written.write_text(page.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    words = ["--model", str(model.directory), "--quick", "--no-vllm", "--write-docs", "--page", str(written)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "benchmarks.speed.real_model", *words]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    found = written.read_text(encoding="utf-8").split("## a real model")[1]
    assert "| 2 | bfloat16 | 1 |" in found.replace(".0 |", " |")
    assert "times HF Trainer" in found and "where our step goes" in found
    assert ("| TRL |" in found) == (installed("trl") is not None)
