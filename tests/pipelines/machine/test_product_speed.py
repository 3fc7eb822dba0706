"""The speed of a machine's products: what is measured, and which dtype it speaks for."""

from __future__ import annotations

import pytest
import torch

from pipelines.machine import product_speed


def test_a_gpu_is_not_timed_by_the_threads_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread that happens to be quicker than sixteen would make it sixteen times as fast."""
    monkeypatch.setattr(product_speed, "on_gpu", lambda: True)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr("torch.set_num_threads", lambda threads: pytest.fail(f"{threads} threads"))
    assert product_speed.product_seconds(lambda: torch.ones(1)) < 1.0


@pytest.mark.parametrize(
    ("together", "alone", "taken"), [(2.0, 3.0, 2.0), (160.0, 3.0, 1.5), (3.0, 3.0, 3.0)]
)
def test_a_crowded_machine_is_measured_by_one_thread(
    monkeypatch: pytest.MonkeyPatch, together: float, alone: float, taken: float
) -> None:
    """Two threads that are slower than one wait for a core that other work holds."""
    threads = [2]
    monkeypatch.setattr("torch.get_num_threads", lambda: threads[-1])
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    monkeypatch.setattr(product_speed, "_seconds", lambda _: together if threads[-1] == 2 else alone)
    assert product_speed._uncrowded(lambda: None) == taken  # type: ignore[arg-type, return-value]
    assert threads == [2, 1, 2]


@pytest.mark.parametrize(
    ("gpu", "processes", "threads", "taken"),
    [(False, 2, 1, 2), (False, 2, 2, 1), (False, 4, 1, 2), (False, 1, 1, 1), (True, 4, 2, 4)],
)
def test_processes_on_a_cpu_each_compute_with_their_own_threads(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, processes: int, threads: int, taken: int
) -> None:
    """On two cores: the speed that is measured is that of one process."""
    monkeypatch.setattr(product_speed, "on_gpu", lambda: gpu)
    monkeypatch.setattr(product_speed, "usable_cpus", lambda: 2)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, str(processes))
    assert product_speed.processes_at_once() == taken


@pytest.mark.parametrize(
    ("instructions", "fp32", "bfloat16", "wanted"),
    [
        ("avx512_bf16", 5.0, 2.5, True),  # AMD's, which halve the time
        ("avx512_bf16", 3.0, 6.0, False),  # Intel's without AMX
        ("amx_bf16", 3.0, 0.5, True),
        ("avx512_f", 5.0, 1.0, False),  # emulated: nothing to measure
    ],
)
def test_bfloat16_is_chosen_by_its_speed_not_by_its_instructions(
    monkeypatch: pytest.MonkeyPatch, instructions: str, fp32: float, bfloat16: float, wanted: bool
) -> None:
    seconds = {torch.float32: fp32, torch.bfloat16: bfloat16}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {instructions: True})
    monkeypatch.setattr(product_speed, "_large", seconds.__getitem__)
    assert product_speed.is_faster_in_bfloat16.__wrapped__() is wanted


def test_what_products_take_is_measured() -> None:
    assert 0 < product_speed._large(torch.float32) < 10
