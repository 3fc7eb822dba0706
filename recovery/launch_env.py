"""Read from the environment how torchrun or `--processes` launched this process. No torch here."""

from __future__ import annotations

import os

from recovery.errors import InputError

RENDEZVOUS = "RECOVER_RENDEZVOUS"  # the file where the processes of one machine meet
PLACES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK")


def unset_blank() -> None:
    """Unset the variables of a launcher that are blank: libraries would read a number there and fail."""
    for name in PLACES:
        if not os.environ.get(name, "1").strip():
            del os.environ[name]


def launched() -> int:
    """Return the number of processes launched together; 1 for a single process."""
    return _number("WORLD_SIZE", 1)


def machines() -> int:
    """Return on how many machines they run, as many on each."""
    return launched() // _number("LOCAL_WORLD_SIZE", launched())


def launched_here() -> int:
    """Return how many of them are on this machine; 1 where the launcher does not say."""
    return _number("LOCAL_WORLD_SIZE", 1)


def launch_rank() -> int:
    """Return this process's place among them; 0 for a single process."""
    return _number("RANK", 0) if launched() > 1 else 0


def local_rank() -> int:
    """Return this process's place among those on this machine, which is that of its GPU."""
    return _number("LOCAL_RANK", 0)


def _number(name: str, default: int) -> int:
    """Return what a launcher has set a variable to; a blank one counts as not set, and -1 as none."""
    text = os.environ.get(name, "").strip()
    if text in ("", "-1"):
        return default
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"the variable {name} is {text!r}, not a number: unset it, or use torchrun")
    return int(text)
