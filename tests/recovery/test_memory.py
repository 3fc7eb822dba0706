"""How much memory a process may take."""

import psutil
import pytest
import torch

from recovery import control_groups
from recovery.memory import free_memory, main_memory

CPU = torch.device("cpu")


def test_a_container_s_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "memory_limit", lambda: 1000.0)
    monkeypatch.setattr(control_groups, "memory_left", lambda: 350.0)
    assert main_memory() == 1000
    assert free_memory(CPU) == 350


def test_without_a_limit_the_machine_s_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "memory_limit", lambda: float("inf"))
    monkeypatch.setattr(control_groups, "memory_left", lambda: float("inf"))
    assert main_memory() == psutil.virtual_memory().total
    assert 0 < free_memory(CPU) <= main_memory()
