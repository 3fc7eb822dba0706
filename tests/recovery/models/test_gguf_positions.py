"""What a GGUF file says of rotary positions: taken over where that is certain, else refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Phi3Config

from recovery.errors import InputError
from recovery.models import gguf
from recovery.models.gguf_positions import LLAMA3_FACTORS, settle
from tests.support import tiny_gguf

HEAD, THETA = tiny_gguf.HIDDEN // tiny_gguf.HEADS, 10_000.0
YARN = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 64}


def llama3_factors(factor: float) -> list[float]:
    """The divisors that llama.cpp's converter writes for Llama 3.1 and later."""
    found = []
    for pair in range(HEAD // 2):
        wavelength = 2 * math.pi * THETA ** (2 * pair / HEAD)
        smooth = (8192 / wavelength - 1) / (4 - 1)
        between = 1 / ((1 - smooth) / factor + smooth)
        found.append(1.0 if wavelength < 8192 / 4 else factor if wavelength > 8192 else between)
    return found


def converted(directory: Path, factors: list[float]) -> gguf.ConvertedModel:
    """A tiny file with these factors as a checkpoint."""
    pytest.importorskip("gguf")
    values = np.array(factors, np.float32)
    source = tiny_gguf.write(
        directory / "tiny.Q4_1.gguf",
        context=131_072,
        more=lambda writer: writer.add_tensor(LLAMA3_FACTORS, values),
    )
    return gguf.convert(source, directory / "out")


def llama() -> Any:
    return LlamaConfig(
        hidden_size=tiny_gguf.HIDDEN, num_attention_heads=tiny_gguf.HEADS, max_position_embeddings=256
    )


def test_llama_3_scales_positions_as_the_file_s_factors_do(tmp_path: Path) -> None:
    factors = llama3_factors(8.0)
    assert len({round(one, 3) for one in factors}) == 3
    model = AutoModelForCausalLM.from_pretrained(converted(tmp_path, factors).directory)
    assert model.config.rope_parameters["rope_type"] == "llama3"
    plain = THETA ** (-torch.arange(0, HEAD, 2) / HEAD)
    torch.testing.assert_close(
        model.model.rotary_emb.inv_freq, plain / torch.tensor(factors), rtol=1e-4, atol=0
    )


def test_other_factors_are_refused(tmp_path: Path) -> None:
    factors = llama3_factors(8.0)
    factors[1] = 1.01
    with pytest.raises(InputError, match=r"does not read rope_freqs\.weight of this file"):
        converted(tmp_path, factors)


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        (YARN, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
        (YARN | {"scaling.yarn_beta_fast": 16.0}, {"rope_type": "yarn", "beta_fast": 16.0}),
        ({"scaling.type": "linear", "scaling.factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"scaling.factor": 2.0, "scaling.finetuned": True}, {"rope_type": "linear", "factor": 2.0}),
        ({"scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"scaling.type": "none", "scaling.factor": 2.0}, {"rope_type": "default"}),
        ({"scaling.type": "linear", "scaling.factor": 1.0}, {"rope_type": "default"}),
        ({"freq_base": 5e5, "dimension_count": HEAD}, {"rope_type": "default", "rope_theta": 5e5}),
    ],
)
def test_scalings_with_a_name_in_transformers_are_taken_over(
    rope: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = llama()
    assert settle(config, "llama", rope, {}) == []
    assert expected.items() <= config.rope_parameters.items()


@pytest.mark.parametrize(
    ("architecture", "rope", "factors", "named"),
    [
        ("llama", {"scaling.type": "longrope", "scaling.factor": 4.0}, [], "llama.rope.scaling.type"),
        ("llama", {"scaling.type": "yarn", "scaling.factor": 4.0}, [], "llama.rope.scaling.type"),
        ("llama", YARN | {"scaling.attn_factor": 1.5}, [], "llama.rope.scaling.attn_factor"),
        ("stablelm", YARN, [], "stablelm.rope.scaling.type"),
        ("llama", YARN, [LLAMA3_FACTORS], LLAMA3_FACTORS),
        ("llama", {}, ["rope_factors_long.weight"], "rope_factors_long.weight"),
        ("llama", {"dimension_count": 12}, [], "llama.rope.dimension_count"),
    ],
)
def test_what_has_none_is_named(
    architecture: str, rope: dict[str, Any], factors: list[str], named: str
) -> None:
    tensors = {name: torch.ones(HEAD // 2) for name in factors}
    assert named in settle(llama(), architecture, rope, tensors)


def test_gemma_3_scales_its_layers_with_full_attention_alone() -> None:
    config = Gemma3TextConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=6, head_dim=16)
    assert settle(config, "gemma3", {"scaling.type": "linear", "scaling.factor": 8.0}, {}) == []
    assert config.rope_parameters["full_attention"]["factor"] == 8.0
    assert config.rope_parameters["sliding_attention"]["rope_type"] == "default"


def test_phi_3_with_short_contexts_is_whole_and_heads_rotated_in_part_are_refused() -> None:
    config = Phi3Config(hidden_size=32, num_attention_heads=2)
    short = {"scaling.original_context_length": 4096, "dimension_count": 16}
    assert settle(config, "phi3", short, {}) == []
    assert settle(config, "phi3", short | {"dimension_count": 12}, {}) == ["phi3.rope.dimension_count"]
