"""The CPU engine as `recovery.forward.fast_path` offers it: all that the rest of the project uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recovery.cpu import (
    fused_layers,
    heap,
    library,
    llama_decode,
    llama_forward,
    matrix_products,
    token_kernels,
)
from recovery.forward.fast_path import FastPath


class CpuEngine(FastPath):
    reader = staticmethod(llama_forward.reader_of)
    decoder = staticmethod(llama_decode.decoder_of)
    decoder_bytes = staticmethod(llama_decode.decoder_bytes)
    draw = staticmethod(token_kernels.draw)
    compare = staticmethod(token_kernels.compare)

    def configure(self, model: Any = None) -> None:
        """Keep the heap, multiply by the faster library, fuse the layers of the model's classes."""
        heap.keep()
        matrix_products.use_onednn()
        if model is not None:
            fused_layers.fuse(model)

    def arithmetic(self) -> str:
        """Return the kernels that are loaded, named by source, compiler and processor, or the processor."""
        kernels = library.library()
        return library.processor() if kernels is None else Path(kernels._name).name

    def status(self) -> tuple[bool, str]:
        if library.library() is not None:
            return True, "compiled"
        return False, f"none: {library.why_none()}"
