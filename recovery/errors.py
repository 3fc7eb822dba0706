"""Define every error that is shown to a user, as one class tree with exit codes.

RecoverError            the work failed                      exit code 1
├── DamagedCheckpoint   a file's bytes are not what was written
├── NonFiniteLoss       the loss or gradient is not finite; training stopped before the update
├── Unstable            an alarm stopped training; the message names it and the remedy
├── OutOfMemory         a model, a single row, or a step of training does not fit on the device
├── EngineLost          an engine died, hung, or holds other weights than the trainer's
├── InputError          bad usage or bad input               exit code 2
└── GateError           a gate failed (verdict, preflight)   exit code 3

A message is one line: what, where, what to do. The command line prints it without a traceback.
"""

from __future__ import annotations


class RecoverError(Exception):
    """The work failed. The message is made one line: those of libraries often have several."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(" ".join(message.split()) if "\n" in message else message)


class DamagedCheckpoint(RecoverError):
    """A checkpoint's bytes differ from its manifest."""


class NonFiniteLoss(RecoverError):
    """The loss or its gradient is NaN or infinite; training stopped before the update."""


class Unstable(RecoverError):
    """A stability alarm stopped training."""


class OutOfMemory(RecoverError):
    """A model, a single row of what it reads or writes, or a step of training does not fit on the device."""


class EngineLost(RecoverError):
    """An engine died, hung, returned an invalid answer, or holds other weights than the trainer's."""


class InputError(RecoverError):
    """Bad usage or bad input; nothing was changed."""

    exit_code = 2


class GateError(RecoverError):
    """A gate (verdict, preflight) failed."""

    exit_code = 3


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
