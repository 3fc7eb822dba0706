"""Seeds derived from a run's seed."""

from __future__ import annotations

import hashlib


def step_seed(seed: int, step: int) -> int:
    """A seed for each step that tells neighbouring runs and steps apart."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{step}".encode()).digest()[:7], "big")
