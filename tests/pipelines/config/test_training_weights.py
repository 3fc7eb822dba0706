"""The weights of a training: which are trained, and whether a second model is beside them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from pipelines.config.fitted import ModelSize
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.config.sections.training import LoraConfig, OptimizerConfig
from pipelines.config.training_weights import (
    averaged_bytes,
    copied_bytes,
    second_model,
    staying_bytes,
    surely_trained,
    trained,
)

OPTIMIZER = OptimizerConfig(learning_rate=1e-4)
SIZE = ModelSize(parameters=1000, adapter=128, activation_bytes=3, cache_bytes=1, embeddings=300, unused=100)
USUAL, HEAD = LoraConfig(), LoraConfig(targets=["q_proj", "lm_head"])


def distilling(method: str = "opd", **values: Any) -> DistillConfig:
    return DistillConfig(prompts="p", optimizer=OPTIMIZER, method=method, **values)


def test_what_no_text_meets_is_never_trained_nor_are_frozen_embeddings() -> None:
    assert trained(SIZE, None, freeze_embeddings=False) == 900
    assert trained(SIZE, None, freeze_embeddings=True) == 600


def test_an_adapter_is_counted_by_its_rank() -> None:
    """On modules of its own as on all layers, or as nothing where too much would be refused."""
    half = LoraConfig(rank=64)
    assert trained(SIZE, half, freeze_embeddings=True) == surely_trained(SIZE, half, False) == 64
    assert trained(SIZE, HEAD, freeze_embeddings=False) == 128
    assert surely_trained(SIZE, HEAD, freeze_embeddings=False) == 0


@pytest.mark.parametrize("method", ["sft", "dft", "rft", "rl"])
def test_a_method_without_a_teacher_has_no_second_model(method: str) -> None:
    assert not second_model(distilling(method), on_teacher=False)


@pytest.mark.parametrize(("method", "stands_in"), [("opd", True), ("asft", True), ("opd-multi", False)])
def test_an_adapter_on_the_clean_model_stands_in_for_that_one_alone(method: str, stands_in: bool) -> None:
    """ASFT's clean model is an anchor; of routed prompts others may teach."""
    found = [second_model(distilling(method, lora=lora), on_teacher=True) for lora in (None, USUAL, HEAD)]
    assert found == [True, not stands_in, True]
    assert second_model(distilling(method, lora=USUAL), on_teacher=False)


def test_a_teacher_on_an_engine_is_no_model_of_this_process_but_an_anchor_is() -> None:
    elsewhere = {"teacher_engine": "http://127.0.0.1:9"}
    assert not second_model(distilling("opd-topk", **elsewhere), on_teacher=False)
    assert not second_model(distilling("opd-multi", **elsewhere), on_teacher=False)
    anchored = distilling("opd-topk", dials={"anchor_beta": 0.1}, **elsewhere)
    assert second_model(anchored, on_teacher=False)


def test_a_student_that_teaches_itself_copies_what_is_trained() -> None:
    for lora, copied in ((None, 2), (USUAL, 4)):
        frozen, averaged = (distilling(name, lora=lora) for name in ("opcd", "sdft"))
        assert [copied_bytes(one, 2) for one in (frozen, averaged, distilling(lora=lora))] == [
            copied,
            copied,
            0,
        ]
        assert [averaged_bytes(one) for one in (frozen, averaged)] == [0, 4]
        assert not second_model(frozen, on_teacher=False)
        assert second_model(frozen, on_teacher=False, sharded=True) is (lora is not None)


def test_midtraining_has_a_second_model_where_passages_are_read() -> None:
    text = MidtrainConfig(optimizer=OPTIMIZER)
    passage = text.model_copy(update={"method": "passage"})
    assert not second_model(text, on_teacher=False)
    assert second_model(passage, on_teacher=True)
    assert not second_model(passage.model_copy(update={"lora": USUAL}), on_teacher=True)
    assert copied_bytes(text, 2) == averaged_bytes(text) == 0


def test_one_layer_of_an_offloaded_model_stays_beside_its_ends() -> None:
    assert staying_bytes(2000.0, ends=800.0, layers=4) == 800 + 300


def test_no_torch_is_needed() -> None:
    code = "import sys, pipelines.config.training_weights; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
