"""Watch how much of a stored tensor is read at once."""

from __future__ import annotations

import pytest
import torch

from recovery.models.merging import StoredWeights


def watched_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the number of entries of every read of stored weights."""
    sizes: list[int] = []
    read = StoredWeights.read

    def watched(self: StoredWeights, name: str, rows: slice) -> torch.Tensor:
        found = read(self, name, rows)
        sizes.append(found.numel())
        return found

    monkeypatch.setattr(StoredWeights, "read", watched)
    return sizes
