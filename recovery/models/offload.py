"""A model whose layers rest in the host's memory: each comes to the device for as long as it computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recovery.forward.hidden_states import unwrap
from recovery.models.chat_model import ChatModel


def rest_on_host(chat_model: ChatModel) -> None:
    """The weights of a frozen model's layers; its embeddings and head stay on the device."""
    for layer in unwrap(chat_model.model).get_decoder().layers:
        weights = [(parameter, _resting(parameter.data)) for parameter in layer.parameters()]
        layer.register_forward_pre_hook(_Fetch(weights, chat_model.device))
        layer.register_forward_hook(_Leave(weights))
        _Leave(weights)()


class _Leave:
    """After a layer: its weights are those on the host."""

    def __init__(self, weights: list[tuple[torch.nn.Parameter, Tensor]]) -> None:
        self.weights = weights

    def __call__(self, *_: Any) -> None:
        for parameter, resting in self.weights:
            parameter.data = resting


class _Fetch(_Leave):
    """Before a layer: its weights are copies on the device."""

    def __init__(self, weights: list[tuple[torch.nn.Parameter, Tensor]], device: torch.device) -> None:
        super().__init__(weights)
        self.device = device

    def __call__(self, *_: Any) -> None:
        for parameter, resting in self.weights:
            parameter.data = fetched(resting, self.device)


def fetched(resting: Tensor, device: torch.device) -> Tensor:
    return resting.to(device, non_blocking=True)


def _resting(weight: Tensor) -> Tensor:
    """Where a GPU takes it, in memory that it can read by itself."""
    return weight.cpu().pin_memory() if weight.is_cuda else weight
