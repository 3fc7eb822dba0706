"""Write a GGUF file as a safetensors checkpoint: dequantised weights, tokenizer, chat template, stop tokens.

transformers reads the file; what is written is read back and compared with that reading tensor by tensor.
What that reading leaves out, as BOS before texts and how positions are scaled, is added, or the file refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from recovery.errors import DamagedCheckpoint, InputError
from recovery.extras import to_install
from recovery.memory import gib, main_memory
from recovery.models import gguf_positions
from recovery.models.chat_encoding import ChatEncoder, stop_tokens
from recovery.models.hub import explained, quiet
from recovery.named_paths import expanded
from recovery.storage import atomic_dirs
from recovery.storage.weights_hash import ADAPTER_CONFIG, weight_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Show = Callable[[int, int], None]  # how many of a number are done
Counting = Callable[[str], Show]

SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
# Pre-tokenizers (`tokenizer.ggml.pre`) that split digits first, which transformers does not read.
DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
# Those that split as GPT-2 does, which transformers takes for every name that it does not know.
AS_GPT2 = {"default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "a.x-4.0", "mellum", "exaone4"}
AS_GPT2 |= {"trillion", "granite-docling"}
# Those before whose texts llama.cpp puts BOS where the file does not say.
BOS_FIRST = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}
BOS_FIRST |= {"jina-v5-nano", "tekken", "chameleon"}
READ = {"general.architecture", "tokenizer.chat_template"}
READ |= {f"tokenizer.ggml.{name}" for name in ("model", "pre", "add_bos_token", "bos_token_id")}


@dataclass(frozen=True)
class ConvertedModel:
    """A GGUF file as a model directory, and the precision that it came from, such as "4-bit Q4_1".

    `remark` says what may differ from the model's training; usually it is empty.
    """

    source: Path
    directory: Path
    precision: str
    remark: str = ""


def find(path: str) -> Path | None:
    """Return the GGUF file that a model path names: the file itself, or the only one in a folder."""
    if not path:  # which would be the current folder
        return None
    place = expanded(path)
    if place.is_file():
        return _whole(place) if place.suffix.lower() == ".gguf" else None
    if not place.is_dir() or any((place / name).exists() for name in ("config.json", ADAPTER_CONFIG)):
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


def convert(source: Path, root: Path, counting: Counting = lambda _: lambda *_: None) -> ConvertedModel:
    """Write the checkpoint to its folder below `root`, unless it is there.

    `counting`, given what is done to the tensors, returns what shows to how many it is done.
    """
    _require_package(source)
    with explained(str(source), "GGUF file"):
        metadata = _Metadata.of(source)
    target = converted_folder(source, root)
    if not target.is_dir():
        _require_room(source, metadata, root)
        with quiet(), _counted_by(counting):
            tokenizer = _tokenizer(source, metadata)
            model = _model(source, metadata)
        _settle_generation(model, tokenizer)
        with atomic_dirs.new_directory(root) as directory, quiet():
            model.save_pretrained(directory)
            tokenizer.save_pretrained(directory)
            _compare(source, model, directory, counting("compare"))
            atomic_dirs.publish(directory, target)
    return ConvertedModel(source, target, metadata.precision, _remark(source, metadata, target))


@contextlib.contextmanager
def _counted_by(counting: Counting) -> Iterator[None]:
    """Count the tensors that transformers reads in place of its own bar."""
    from transformers import modeling_gguf_pytorch_utils as reading

    def counted(tensors: Sequence[Any], **_: Any) -> Iterator[Any]:
        show = counting("read")
        for done, tensor in enumerate(tensors, 1):
            yield tensor
            show(done, len(tensors))

    module: Any = reading
    bar, module.tqdm = module.tqdm, counted
    try:
        yield
    finally:
        module.tqdm = bar


@dataclass(frozen=True)
class _Metadata:
    """What the file's header says beyond the weights."""

    precision: str
    dtype: torch.dtype
    weights: int
    architecture: str
    chat_template: str | None
    byte_level: bool
    pre_tokenizer: str | None
    bos: int | None  # the token that is put before texts
    rope: dict[str, Any]  # the keys that begin with the architecture and ".rope."
    factors: dict[str, torch.Tensor]  # those of the scaling of positions that are stored as tensors
    tensors: tuple[str, ...]

    @classmethod
    def of(cls, source: Path) -> _Metadata:
        from gguf import GGUFReader, dequantize

        reader = GGUFReader(source)
        commonest = _commonest_type(reader.tensors)
        digits = re.search(r"\d+", commonest)
        values = {
            name: field.contents()
            for name, field in reader.fields.items()
            if name in READ or ".rope." in name
        }
        architecture = values["general.architecture"]
        prefix = f"{architecture}.rope."
        return cls(
            precision=f"{digits[0] if digits else '?'}-bit {commonest}",
            dtype={"F16": torch.float16, "BF16": torch.bfloat16}.get(commonest, torch.float32),
            weights=sum(int(tensor.n_elements) for tensor in reader.tensors),
            architecture=architecture,
            chat_template=values.get("tokenizer.chat_template"),
            byte_level=values.get("tokenizer.ggml.model") == "gpt2",
            pre_tokenizer=values.get("tokenizer.ggml.pre"),
            bos=_bos_before_texts(values),
            rope={key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)},
            factors={
                tensor.name: torch.tensor(dequantize(tensor.data, tensor.tensor_type).tolist())
                for tensor in reader.tensors
                if tensor.name in gguf_positions.FACTORS
            },
            tensors=tuple(tensor.name for tensor in reader.tensors),
        )


def _commonest_type(tensors: Iterable[Any]) -> str:
    """Return the type that most weights are stored in."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.tensor_type.name] += int(tensor.n_elements)
    return sizes.most_common(1)[0][0]


def _bos_before_texts(values: dict[str, Any]) -> int | None:
    """Return the token that stands before every text, by llama.cpp's rule where the file does not say."""
    kind = values.get("tokenizer.ggml.model")
    usual = kind == "llama" or (kind == "gpt2" and values.get("tokenizer.ggml.pre") in BOS_FIRST)
    added = values.get("tokenizer.ggml.add_bos_token", usual)
    return values.get("tokenizer.ggml.bos_token_id") if added else None


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


def _require_room(source: Path, metadata: _Metadata, root: Path) -> None:
    """Refuse a file that memory, or the disk, cannot hold once it is dequantised."""
    needed = metadata.weights * metadata.dtype.itemsize
    dequantised = f"{source}: dequantised its weights take {gib(needed)}"
    if needed > main_memory():
        raise InputError(
            f"{dequantised}, and the memory here is {gib(main_memory())}: take a smaller model, or "
            "the original safetensors checkpoint in bfloat16 on a machine that holds it"
        )
    there = atomic_dirs.nearest(root)
    free = shutil.disk_usage(there).free
    if needed > free:
        raise InputError(
            f"{dequantised}, and {gib(free)} are free in {there}: free some, or take a --home on another disk"
        )


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
    if metadata.pre_tokenizer in DIGITS_APART:
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    if metadata.bos is not None:
        if tokenizer.bos_token_id != metadata.bos:
            raise _unread(source, "the BOS token")
        tokenizer.add_bos_token = True
    return tokenizer


def _remark(source: Path, metadata: _Metadata, directory: Path) -> str:
    """Say where GPT-2's pre-tokenizer stands in for one that is unknown."""
    if not metadata.byte_level or metadata.pre_tokenizer in AS_GPT2:
        return ""
    written = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))["pre_tokenizer"] or {}
    if written.get("type") != "ByteLevel" or not written.get("use_regex", True):
        return ""
    named = repr(metadata.pre_tokenizer) if metadata.pre_tokenizer else "not named"
    return (
        f"{source.name}: its pre-tokenizer ({named}) is unknown, GPT-2's takes its place: numbers and other "
        "scripts may be cut otherwise than in training: better use the original safetensors checkpoint"
    )


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
    _require_all_read(source, metadata, model, report)
    lost = gguf_positions.settle(model.config, metadata.architecture, metadata.rope, metadata.factors)
    if lost:
        raise _unread(source, ", ".join(lost))
    model.hf_quantizer = None  # the weights are dequantised
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def _unread(source: Path, what: str) -> InputError:
    remedy = "use the model's original safetensors checkpoint"
    return InputError(f"{source}: transformers does not read {what} of this file: {remedy}")


def _require_all_read(source: Path, metadata: _Metadata, model: PreTrainedModel, report: Any) -> None:
    """Refuse a model that lacks weights, and a file with tensors that are not in the model."""
    from transformers import modeling_gguf_pytorch_utils as reading

    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(f"{source}: no weights for {missing[0]}: the file is incomplete, fetch it again")
    unread = sorted(report["unexpected_keys"])
    with contextlib.suppress(NotImplementedError):  # an architecture whose reading reports them itself
        kind: Any = reading.TENSOR_PROCESSORS.get(metadata.architecture, reading.TensorProcessor)
        known = reading.get_gguf_hf_weights_map(model, kind())
        # Experts are listed without their suffix.
        read = {*known, *(f"{name}.weight" for name in known), *gguf_positions.FACTORS}
        unread += [name for name in metadata.tensors if name not in read]
    if unread:
        raise _unread(source, ", ".join(unread[:3]))


def _settle_generation(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Name every stop token in the generation config: the file's own, the tokenizer's and the template's."""
    config = model.generation_config
    stops = stop_tokens(config.eos_token_id, ChatEncoder(tokenizer))
    config.eos_token_id = list(stops)
    config._from_model_config = False  # it now says more than the model's configuration
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id


def _compare(source: Path, model: PreTrainedModel, directory: Path, show: Show = lambda *_: None) -> None:
    """Read the written weights back and compare each with the model in memory."""
    from safetensors import safe_open

    expected = dict(model.state_dict())
    total = len({tensor.data_ptr() for tensor in expected.values()})  # tied ones are written once
    written = set[str]()
    for shard in weight_files(directory):
        with safe_open(shard, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                written.add(name)
                show(len(written), total)
                if name not in expected or not torch.equal(tensors.get_tensor(name), expected[name]):
                    raise DamagedCheckpoint(f"{source}: {name} was not written as it was read: report it")
    stored = {expected[name].data_ptr() for name in written}
    lost = [name for name, tensor in expected.items() if tensor.data_ptr() not in stored]
    if lost:
        raise DamagedCheckpoint(f"{source}: {lost[0]} was not written: report it")
