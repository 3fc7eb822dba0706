"""Read from the environment how torchrun or `--processes` launched this process. No torch here."""

from __future__ import annotations

import os

RENDEZVOUS = "RECOVER_RENDEZVOUS"  # the file where the processes of one machine meet


def launched() -> int:
    """Return the number of processes launched together; 1 for a single process."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def machines() -> int:
    """Return on how many machines they run, as many on each."""
    return launched() // int(os.environ.get("LOCAL_WORLD_SIZE", launched()))


def launched_here() -> int:
    """Return how many of them are on this machine; 1 where the launcher does not say."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def launch_rank() -> int:
    """Return this process's place among them; 0 for a single process."""
    return int(os.environ.get("RANK", "0")) if launched() > 1 else 0
