"""Every error a user can meet, as one tree.

RecoverError            the work failed                      exit code 1
├── DamagedCheckpoint   a file's bytes are not what was written
├── NonFiniteLoss       training met NaN or infinity and stopped before the update
├── Unstable            an alarm stopped training; says which one and the remedy
├── EngineLost          an engine died, hung, or does not hold the weights it was given
├── InputError          bad usage or bad input               exit code 2
└── GateError           a gate said no (verdict, preflight)  exit code 3

A message is one line: what, where, what to do. The command line prints it without a traceback.
"""

from __future__ import annotations


class RecoverError(Exception):
    """The work failed."""

    exit_code = 1


class DamagedCheckpoint(RecoverError):
    """A checkpoint's bytes differ from its manifest."""


class NonFiniteLoss(RecoverError):
    """The loss or its gradient is NaN or infinite; the last good state was kept."""


class Unstable(RecoverError):
    """A stability alarm went off."""


class EngineLost(RecoverError):
    """An engine gave no answer, or not the trainer's: it died, hung, or lost its weights."""


class InputError(RecoverError):
    """Bad usage or bad input; nothing was changed."""

    exit_code = 2


class GateError(RecoverError):
    """A gate (verdict, preflight) said no."""

    exit_code = 3
