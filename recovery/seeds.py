"""Seeds derived from a run's seed."""

from __future__ import annotations

import hashlib


def step_seed(seed: int, step: int) -> int:
    """Return the seed of a step; neighbouring runs and steps get different ones."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{step}".encode()).digest()[:7], "big")
