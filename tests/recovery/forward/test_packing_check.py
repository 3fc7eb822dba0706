"""Packing is allowed where sequences cannot reach each other, not where the numbers happen to be close."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recovery.errors import InputError
from recovery.forward.equality import close_per_token
from recovery.forward.hidden_states import plain_states
from recovery.forward.packing_check import LENGTH, sequences_stay_apart
from tests.support import tiny


class Leaking:
    """Reads as transformers does and adds a share of the row's running mean, as a recurrent layer might."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(
        self, model: Any, tokens_BT: Tensor, attention_BT: Tensor | None, positions_BT: Tensor | None
    ) -> Tensor:
        states_BTD = plain_states(model, tokens_BT, attention_BT, positions_BT)
        counts_T = torch.arange(1, states_BTD.shape[1] + 1)
        return states_BTD + self.share * states_BTD.cumsum(1) / counts_T[None, :, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_keeps_sequences_apart(dtype: torch.dtype) -> None:
    assert sequences_stay_apart(tiny.model().to(dtype), plain_states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [1e-4, 0.05])
def test_a_leak_is_seen_however_small_it_is(dtype: torch.dtype, share: float) -> None:
    assert not sequences_stay_apart(tiny.model().to(dtype), Leaking(share))


def test_numbers_alone_would_not_show_it() -> None:
    model, read = tiny.model().to(torch.bfloat16), Leaking(0.05)
    tokens_BT = torch.arange(2 * LENGTH).view(2, LENGTH)
    positions_BT = torch.arange(LENGTH).repeat(2)[None]
    with torch.no_grad():
        alone_TD = read(model, tokens_BT, None, None).flatten(0, 1)
        packed_TD = read(model, tokens_BT.view(1, -1), None, positions_BT)[0]
    assert close_per_token(packed_TD, alone_TD)


def test_sequences_that_are_read_otherwise_when_packed_are_seen() -> None:
    """No token reaches another sequence, but each is read at the wrong position."""

    def shifted(model: Any, tokens: Tensor, attention: Tensor | None, positions: Tensor | None) -> Tensor:
        if positions is None:
            return plain_states(model, tokens, attention, positions)
        return plain_states(model, tokens, attention, positions) * (1 + positions[..., None])

    assert not sequences_stay_apart(tiny.model(), shifted)


def test_a_model_without_positions_cannot_pack() -> None:
    def refusing(model: Any, tokens: Tensor, attention: Tensor | None, positions: Tensor | None) -> Tensor:
        if positions is not None:
            raise InputError("no positions")
        return plain_states(model, tokens, attention, positions)

    assert not sequences_stay_apart(tiny.model(), refusing)


def test_the_model_is_left_as_it_was() -> None:
    model = tiny.model().train()
    model.requires_grad_(False)
    with torch.no_grad():
        assert sequences_stay_apart(model, plain_states)
    assert model.training
    assert not model.get_input_embeddings()._forward_hooks
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_recurrent_hybrid_is_refused() -> None:
    from transformers import FalconH1Config, FalconH1ForCausalLM

    torch.manual_seed(0)
    config = FalconH1Config(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        mamba_d_ssm=32,
        mamba_n_heads=4,
        mamba_d_head=8,
        mamba_n_groups=1,
        mamba_d_state=8,
        mamba_chunk_size=8,
    )
    for dtype in (torch.float32, torch.bfloat16):
        assert not sequences_stay_apart(FalconH1ForCausalLM(config).to(dtype).eval(), plain_states)
