"""Write a GGUF file as a safetensors checkpoint: dequantised weights, tokenizer, chat template, stop tokens.

transformers reads the file; what is written is read back and compared with that reading tensor by tensor.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from recovery.errors import DamagedCheckpoint, InputError
from recovery.extras import to_install
from recovery.models.chat_encoding import ChatEncoder, stop_tokens
from recovery.models.hub import explained, quiet
from recovery.storage import atomic_dirs
from recovery.storage.weights_hash import weight_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
# Pre-tokenizers (`tokenizer.ggml.pre`) that split digits first, which transformers does not read.
DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}


@dataclass(frozen=True)
class ConvertedModel:
    """A GGUF file as a model directory, and the precision that it came from, such as "4-bit Q4_1"."""

    source: Path
    directory: Path
    precision: str


def find(path: str) -> Path | None:
    """Return the GGUF file that a model path names: the file itself, or the only one in a folder."""
    place = Path(path).expanduser()
    if place.is_file():
        return _whole(place) if place.suffix.lower() == ".gguf" else None
    if not place.is_dir() or any((place / name).exists() for name in ("config.json", "adapter_config.json")):
        return None
    found = sorted(file for file in place.iterdir() if file.suffix.lower() == ".gguf")
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:4])
        raise InputError(f"{path}: holds {len(found)} GGUF files ({names}): name one of them")
    return _whole(found[0]) if found else None


def converted_folder(source: Path, root: Path) -> Path:
    """Return where `convert` writes the checkpoint: a folder named by the file's name and content."""
    with source.open("rb") as stream:
        content = hashlib.file_digest(stream, "sha256").hexdigest()
    return root / f"{source.stem}-{content[:12]}"


def convert(source: Path, root: Path) -> ConvertedModel:
    """Write the checkpoint to its folder below `root`, unless it is there."""
    _require_package(source)
    with explained(str(source), "GGUF file"):
        metadata = _Metadata.of(source)
    target = converted_folder(source, root)
    if not target.is_dir():
        with quiet(), contextlib.redirect_stderr(io.StringIO()):  # a bar for every tensor
            tokenizer = _tokenizer(source, metadata)
            model = _model(source, metadata)
        _settle_generation(model, tokenizer)
        with atomic_dirs.new_directory(root) as directory, quiet():
            model.save_pretrained(directory)
            tokenizer.save_pretrained(directory)
            _compare(source, model, directory)
            atomic_dirs.publish(directory, target)
    return ConvertedModel(source, target, metadata.precision)


@dataclass(frozen=True)
class _Metadata:
    """What the file's header says beyond the weights."""

    precision: str
    dtype: torch.dtype
    chat_template: str | None
    digits_apart: bool

    @classmethod
    def of(cls, source: Path) -> _Metadata:
        from gguf import GGUFReader

        reader = GGUFReader(source)
        sizes: Counter[str] = Counter()
        for tensor in reader.tensors:
            sizes[tensor.tensor_type.name] += int(tensor.n_elements)
        commonest = sizes.most_common(1)[0][0]
        digits = re.search(r"\d+", commonest)
        values = {
            name: reader.fields[name].contents()
            for name in ("tokenizer.chat_template", "tokenizer.ggml.pre")
            if name in reader.fields
        }
        return cls(
            precision=f"{digits[0] if digits else '?'}-bit {commonest}",
            dtype={"F16": torch.float16, "BF16": torch.bfloat16}.get(commonest, torch.float32),
            chat_template=values.get("tokenizer.chat_template"),
            digits_apart=values.get("tokenizer.ggml.pre") in DIGITS_APART,
        )


def _whole(file: Path) -> Path:
    split = SPLIT.search(file.stem)
    if split and int(split[2]) > 1:
        raise InputError(f"{file}: one of {int(split[2])} parts: join them with llama-gguf-split --merge")
    return file


def _require_package(source: Path) -> None:
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise InputError(f"{source}: reading it needs the gguf package; {to_install('gguf')}") from error


def _tokenizer(source: Path, metadata: _Metadata) -> PreTrainedTokenizerBase:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    with explained(str(source), "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    for name in ("is_local", "local_files_only", "gguf_file"):  # how it was loaded would be saved with it
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.chat_template = tokenizer.chat_template or metadata.chat_template
    if not tokenizer.chat_template:
        raise InputError(f"{source}: no chat template: use the instruct or chat version of this model")
    if metadata.digits_apart:
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    return tokenizer


def _model(source: Path, metadata: _Metadata) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    with explained(str(source), "model"):
        loader: Any = AutoModelForCausalLM
        model, report = loader.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=metadata.dtype,
            local_files_only=True,
            output_loading_info=True,
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(f"{source}: no weights for {missing[0]}: the file is incomplete, fetch it again")
    model.hf_quantizer = None  # the weights are dequantised
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def _settle_generation(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Name every stop token in the generation config: the file's own, the tokenizer's and the template's."""
    config = model.generation_config
    stops = stop_tokens(config.eos_token_id, ChatEncoder(tokenizer))
    config.eos_token_id = list(stops)
    config._from_model_config = False  # it now says more than the model's configuration
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id


def _compare(source: Path, model: PreTrainedModel, directory: Path) -> None:
    """Read the written weights back and compare each with the model in memory."""
    from safetensors import safe_open

    expected = dict(model.state_dict())
    written = set[str]()
    for shard in weight_files(directory):
        with safe_open(shard, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                written.add(name)
                if name not in expected or not torch.equal(tensors.get_tensor(name), expected[name]):
                    raise DamagedCheckpoint(f"{source}: {name} was not written as it was read: report it")
    stored = {expected[name].data_ptr() for name in written}
    lost = [name for name, tensor in expected.items() if tensor.data_ptr() not in stored]
    if lost:
        raise DamagedCheckpoint(f"{source}: {lost[0]} was not written: report it")
