"""A tiny quantised GGUF file of the Llama architecture, written with the gguf package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import tiny

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 32, 64, 2, 1, 2
SPECIALS = (tiny.IM_START, tiny.IM_END, tiny.END_OF_TEXT)


def write(
    path: Path,
    *,
    template: str | None = tiny.TEMPLATE,
    skip: str | None = None,
    context: int = 256,
    pre: str | None = "smollm",
    bos: bool | None = False,
    more: Callable[[Any], Any] | None = None,
) -> Path:
    """Q4_1 matrices, F32 norms, a byte tokenizer that merges two line ends; `skip` leaves out a tensor.

    `pre` and `bos` are what the file says of its pre-tokenizer and of BOS before texts (None: nothing);
    `more` adds to the writer's keys and tensors.
    """
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(context)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    _add_tokenizer(writer, template)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    if bos is not None:
        writer.add_add_bos_token(bos)
    if more is not None:
        more(writer)
    random = np.random.default_rng(0)
    quantised = gguf.GGMLQuantizationType.Q4_1
    for name, shape in _shapes().items():
        if name == skip:
            continue
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
        else:
            values = random.normal(0, 0.2, shape).astype(np.float32)
            writer.add_tensor(name, gguf.quantize(values, quantised), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: Any, template: str | None) -> None:
    ids = tiny.byte_vocabulary()
    tokens = [*sorted(ids, key=lambda token: ids[token]), "ĊĊ", *SPECIALS]
    first = len(tokens) - len(SPECIALS)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * first + [3] * len(SPECIALS))
    writer.add_token_merges(["Ċ Ċ"])
    writer.add_bos_token_id(first)
    writer.add_eos_token_id(first + 1)
    writer.add_pad_token_id(first + 2)
    writer.add_vocab_size(len(tokens))
    if template is not None:
        writer.add_chat_template(template)


def _shapes() -> dict[str, tuple[int, ...]]:
    key_width = HIDDEN // HEADS * KV_HEADS
    layer = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (key_width, HIDDEN),
        "attn_v": (key_width, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    layers = {f"blk.{n}.{name}.weight": shape for n in range(LAYERS) for name, shape in layer.items()}
    return {"token_embd.weight": (257 + len(SPECIALS), HIDDEN), "output_norm.weight": (HIDDEN,)} | layers
