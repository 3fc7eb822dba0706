"""Layers that torch.compile has compiled: the model's own numbers in training, and left alone in sampling."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch._dynamo.utils import counters

from recovery.forward import varlen
from recovery.forward.hidden_states import hidden_states
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.loading import compile_layers
from tests.support import tiny
from tests.support.llama_family import chat_of, sampled

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"),
]


@pytest.mark.parametrize("in_one_row", [False, True])
@pytest.mark.parametrize("adapter", [False, True])
def test_compiled_layers_train_and_write_as_others_do(
    adapter: bool, in_one_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOVER_CPU", "off")  # whose reader would bypass compiled layers
    plain, compiled = chat_of(tiny.model()), chat_of(tiny.model())
    if in_one_row:
        varlen.use_varlen(compiled.model)
    if adapter:
        for chat in (plain, compiled):
            torch.manual_seed(0)
            add_lora(chat, LoraSpec(rank=4, alpha=8))
    compile_layers(compiled)
    counters["stats"].clear()
    assert sampled(compiled).responses() == sampled(plain).responses()
    assert not counters["stats"]
    for shape in ((2, 11), (3, 17)):
        found = []
        for chat in (plain, compiled):
            chat.model.zero_grad()
            tokens = torch.arange(shape[0] * shape[1]).view(shape) % 23
            states = hidden_states(chat.model, tokens)
            (states * torch.linspace(-1, 2, states.numel()).view_as(states).sin()).sum().backward()
            found.append([states.detach(), *(p.grad for p in chat.model.parameters() if p.grad is not None)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert counters["stats"]["unique_graphs"] >= 1
    assert sampled(compiled).responses() == sampled(plain).responses()
    assert list(compiled.model.state_dict()) == list(plain.model.state_dict())
