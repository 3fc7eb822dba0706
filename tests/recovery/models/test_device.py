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
