"""How much memory a process may take."""

from pathlib import Path

import psutil
import torch

from recovery.memory import free_memory, main_memory

CPU = torch.device("cpu")


def test_a_container_s_limit_counts(tmp_path: Path) -> None:
    for name, text in {
        "memory.max": "1000",
        "memory.current": "700",
        "memory.stat": "anon 5\ninactive_file 50",
    }.items():
        (tmp_path / name).write_text(text)
    assert main_memory(tmp_path) == 1000
    assert free_memory(CPU, tmp_path) == 350


def test_without_a_limit_the_machine_s_memory_counts(tmp_path: Path) -> None:
    assert main_memory(tmp_path) == psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("max\n")
    assert main_memory(tmp_path) == psutil.virtual_memory().total
    assert 0 < free_memory(CPU, tmp_path) <= main_memory(tmp_path)
