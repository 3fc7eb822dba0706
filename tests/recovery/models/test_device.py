"""The device and the dtype of a model, by name."""

from __future__ import annotations

import pytest
import torch

from recovery.errors import InputError
from recovery.models import device


def test_device_and_dtype_by_name() -> None:
    assert device.pick_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert device.pick_dtype("auto", torch.device("cpu")) == torch.float32
    with pytest.raises(InputError, match="dtype int8: not one of"):
        device.pick_dtype("int8", torch.device("cpu"))
    with pytest.raises(InputError, match="device abacus: no such device"):
        device.pick_device("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="device cuda: no CUDA GPU is visible"):
            device.pick_device("cuda")


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for fitting in ("1", "2"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", fitting)
        device.require_gpus()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(InputError, match=r"3 processes .* it shows 2: give --processes 2"):
        device.pick_device()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    device.require_gpus()  # all on the CPU
