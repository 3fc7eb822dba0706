"""Keep a frozen model's layers in host memory; copy each to the device while it computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recovery.forward.decoder_choice import decoding_way
from recovery.forward.hidden_states import require_layers, unwrap
from recovery.models.chat_model import ChatModel


def rest_on_host(chat_model: ChatModel) -> None:
    """Move the layers' weights to host memory; embeddings and head stay on the device."""
    layers = require_layers(chat_model.model, "distill.offload_teacher")
    # Its trials take gradients, which need the weights after their layer has computed: make them now.
    decoding_way(unwrap(chat_model.model))
    for layer in layers:
        weights = [(parameter, _resting(parameter.data)) for parameter in layer.parameters()]
        layer.register_forward_pre_hook(_Fetch(weights, chat_model.device))
        layer.register_forward_hook(_Release(weights))
        _Release(weights)()


class _Release:
    """Forward hook: point the layer's weights back at host memory."""

    def __init__(self, weights: list[tuple[torch.nn.Parameter, Tensor]]) -> None:
        self.weights = weights

    def __call__(self, *_: Any) -> None:
        for parameter, resting in self.weights:
            parameter.data = resting


class _Fetch(_Release):
    """Forward pre-hook: point the layer's weights at copies on the device."""

    def __init__(self, weights: list[tuple[torch.nn.Parameter, Tensor]], device: torch.device) -> None:
        super().__init__(weights)
        self.device = device

    def __call__(self, *_: Any) -> None:
        for parameter, resting in self.weights:
            parameter.data = fetched(resting, self.device)


def fetched(resting: Tensor, device: torch.device) -> Tensor:
    return resting.to(device, non_blocking=True)


def _resting(weight: Tensor) -> Tensor:
    """Return the weight in host memory, pinned where a GPU copies from it."""
    return weight.cpu().pin_memory() if weight.is_cuda else weight
