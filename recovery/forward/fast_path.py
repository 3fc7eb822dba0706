"""What an engine may compute in place of PyTorch and transformers, and the one place where it is chosen.

The only engine today is `recovery/cpu` (Llama-like models on a CPU). Every method may return None: the caller
then goes on with its own implementation, so that deleting the engine changes speed and nothing else.

Shapes: B rows, N tokens, V vocabulary.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from recovery.forward.decoder import Decoder
    from recovery.forward.packed import PackedReader, Read

SWITCH = "RECOVER_CPU"  # off: use PyTorch and transformers alone
ENGINE = "recovery.cpu.engine"


@dataclass(frozen=True)
class TokenComparison:
    """Statistics of student and teacher at each token."""

    reverse_kl_N: Any
    entropy_N: Tensor
    student_N: Tensor  # log-probability of the token
    teacher_N: Any
    student_stop_N: Tensor  # probability of the stop tokens together
    teacher_stop_N: Any


class FastPath:
    """The engine that offers nothing; others override what they can do."""

    def configure(self, model: Any = None) -> None:
        """Apply settings of the whole process, and those for the classes of a model loaded on a CPU."""

    def reader(self, model: Any, read: Read) -> PackedReader | None:
        """Return a reader of the model's current weights, checked against `read`."""
        return None

    def decoder(self, model: Any, pad_id: int, max_new_tokens: int) -> Decoder | None:
        """Return a decoder of the model's current weights, checked against the model."""
        return None

    def decoder_bytes(self, model: Any) -> float:
        """Return what the decoder of a model holds beside the model and the KV cache."""
        return 0.0

    def draw(self, logits_BV: Tensor, numbers_B: Tensor, temperature: float) -> tuple[Tensor, Tensor] | None:
        """Draw each row's token by inverse transform sampling of its number; return it with its log-prob."""
        return None

    def compare(
        self,
        student_NV: Tensor,
        teacher_NV: Tensor,
        tokens_N: Tensor,
        stops: Tensor,
        temperature: float,
        overwrite: bool,
    ) -> tuple[TokenComparison, Tensor | None] | None:
        """Return statistics of two sets of logits, and the reverse KL's gradient along the student's.

        There is no gradient where none is required; with `overwrite` it may take the student logits' memory.
        """
        return None

    def arithmetic(self) -> str:
        """Return what decides how its results are rounded on this machine; nothing where it computes none."""
        return ""

    def status(self) -> tuple[bool, str]:
        """Return whether the engine is ready on this machine, and a line for `recover doctor`."""
        return False, f"off: {SWITCH} is set, or the engine is not installed"


def fast_path() -> FastPath:
    """Return the CPU engine, or an empty one if it is switched off or absent."""
    return FastPath() if os.environ.get(SWITCH) == "off" else _engine()


@cache
def _engine() -> FastPath:
    try:
        return import_module(ENGINE).CpuEngine()
    except ModuleNotFoundError as error:
        if error.name is None or not ENGINE.startswith(error.name):
            raise
        return FastPath()
