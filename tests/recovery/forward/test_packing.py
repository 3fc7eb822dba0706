"""Midtraining tries whether the model keeps documents of one row apart, says so, and trains either way."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.config.jobs import MidtrainJob
from pipelines.config.sections.midtrain import Mix
from pipelines.machine.init_home import initialise
from pipelines.midtrain import midtrain
from pipelines.runs.progress import Progress
from pipelines.runs.workspace import Workspace
from recovery.models.chat_model import ChatModel
from recovery.training import preflight
from tests.support import tiny

TEXTS = ["The cat sat.", "A dog ran over the hill and back.", "It rains."]


def bloom() -> Any:
    """ALiBi instead of positions: nothing tells it where a document in a row begins."""
    from transformers import BloomConfig, BloomForCausalLM, GenerationConfig

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = BloomConfig(
            vocab_size=259, hidden_size=32, n_head=2, n_layer=2, eos_token_id=257, pad_token_id=258
        )
        made = BloomForCausalLM(config)
    made.generation_config = GenerationConfig(eos_token_id=[257, 258], pad_token_id=258)
    return made.eval()


MODELS = {
    "qwen3": (tiny.model, True, "documents share rows; qwen3 with {} attention keeps them apart"),
    "bloom": (bloom, False, "each document in rows of its own; bloom with"),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_tried(name: str) -> None:
    make, packs, words = MODELS[name]
    check = preflight.packing(ChatModel.of(make(), tiny.tokenizer(), path=name))
    assert check.ok == packs and check.detail.startswith(words.format("sdpa"))


@pytest.mark.parametrize("name", MODELS)
def test_midtraining_takes_the_way_that_the_model_allows(name: str, tmp_path: Path) -> None:
    make, packs, words = MODELS[name]
    (tmp_path / "docs").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "docs" / f"{number}.txt").write_text(text)
    make().save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    said = io.StringIO()
    with Workspace.open(tmp_path / "home", progress=Progress(stream=said)) as ws:
        initialise(ws, model=str(tmp_path / "model"))
        few = {
            "steps": 2,
            "epochs": None,
            "tokens_per_step": 57,
            "row_tokens": 64,
            "mix": Mix(new=1.0),
            "lora": None,
        }
        settings = ws.config.midtrain.model_copy(update=few)
        result = midtrain(ws, MidtrainJob(docs=str(tmp_path / "docs"), student="base", settings=settings))
        assert result["checkpoint"] != ws.clean().id
    lines = [line for line in said.getvalue().splitlines() if line.startswith("  packing ")]
    assert len(lines) == 1 and words.format("varlen") in lines[0]
    assert result["packed"] == packs
    # 13, 34 and 10 tokens: each step is one pass, and nothing predicts a document's first.
    assert result["tokens"] == 2 * (57 - 3)
