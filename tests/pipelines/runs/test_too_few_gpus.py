"""More processes than GPUs end before they join each other, with one line for all of them."""

from __future__ import annotations

import pytest
import torch

from pipelines.cli import REFUSED, main


def begin(monkeypatch: pytest.MonkeyPatch, rank: int, gpus: int) -> list[str]:
    """Begin one of two processes; return what ran then."""
    ran: list[str] = []
    monkeypatch.setattr("pipelines.cli.commands.main", lambda: ran.append("the command"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for name, value in {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "RANK": rank, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, str(value))
    main()
    return ran


@pytest.mark.parametrize(("rank", "lines"), [(0, 1), (1, 0)])
def test_each_process_ends_and_the_first_says_why(
    rank: int, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        begin(monkeypatch, rank, gpus=1)
    assert ended.value.code == REFUSED
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines
    assert all(line.startswith("Error: 2 processes on this machine") for line in said)


@pytest.mark.parametrize("gpus", [0, 2])
def test_with_a_gpu_for_each_or_none_at_all_they_begin(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert begin(monkeypatch, 1, gpus) == ["the command"]
