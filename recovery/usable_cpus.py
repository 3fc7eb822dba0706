"""Count the CPUs that this process may use. No torch here."""

from __future__ import annotations

import os
from math import ceil

from recovery.control_groups import cpu_quota


def usable_cpus() -> int:
    """Return how many CPUs this process may run on: Slurm, cpusets and taskset bind it to some, and
    containers may have the time of fewer."""
    return max(1, ceil(min(cpu_quota(), bound_to())))


def bound_to() -> int:
    """Return the CPUs that this process is bound to."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
