"""The seed of a run, and the seeds derived from it."""

from __future__ import annotations

import hashlib

MOST_SEED = 2**32 - 1  # what random generators take and databases hold


def step_seed(seed: int, step: int) -> int:
    """Return the seed of a step; neighbouring runs and steps get different ones."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{step}".encode()).digest()[:7], "big")
