"""The CPU engine as `recovery.forward.fast_path` offers it: all that the rest of the project uses."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from recovery.cpu import (
    fused_layers,
    heap,
    library,
    llama_decode,
    llama_forward,
    matrix_products,
    token_kernels,
)
from recovery.forward.decoder import ModelDecoder
from recovery.forward.fast_path import FastPath, TokenComparison
from recovery.forward.packed import PackedReader, Read


class CpuEngine(FastPath):
    def configure(self, model: Any = None) -> None:
        """Keep the heap, multiply by the faster library, fuse the layers of the model's classes."""
        heap.keep()
        matrix_products.use_onednn()
        if model is not None:
            fused_layers.fuse(model)

    def reader(self, model: Any, read: Read) -> PackedReader | None:
        return llama_forward.reader_of(model, read)

    def decoder(self, model: Any, pad_id: int, max_new_tokens: int) -> ModelDecoder | None:
        return llama_decode.decoder_of(model, pad_id, max_new_tokens)

    def draw(self, logits_BV: Tensor, numbers_B: Tensor, temperature: float) -> tuple[Tensor, Tensor] | None:
        return token_kernels.draw(logits_BV, numbers_B, temperature)

    def compare(
        self,
        student_NV: Tensor,
        teacher_NV: Tensor,
        tokens_N: Tensor,
        stops: Tensor,
        temperature: float,
        overwrite: bool,
    ) -> tuple[TokenComparison, Tensor | None] | None:
        return token_kernels.compare(student_NV, teacher_NV, tokens_N, stops, temperature, overwrite)

    def status(self) -> tuple[bool, str]:
        if library.library() is not None:
            return True, "compiled"
        return False, "none: with GCC (as `cc`) small models are much faster on a CPU"
