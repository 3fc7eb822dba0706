"""Count the CPUs that this process may use. No torch here."""

from __future__ import annotations

import os


def usable_cpus() -> int:
    """Return how many CPUs this process may run on: Slurm, cpusets and taskset bind it to some."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
