"""Save a model, and read back what was written before anyone relies on it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from recovery.errors import RecoverError
from recovery.forward.hidden_states import is_adapter, unwrap
from recovery.models.hub import quiet
from recovery.models.quantization import require_whole
from recovery.storage.checkpoints import FURTHER_TEMPLATES, PROCESSOR_TEMPLATE
from recovery.storage.weights_hash import ADAPTER_CONFIG, weight_files

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel


def save(chat: ChatModel, directory: Path | str) -> None:
    """Write weights as safetensors (of an adapter: the adapter alone), tokenizer, templates, generation
    config; raise RecoverError unless every tensor is on disk as it is in memory."""
    if not is_adapter(chat.model):
        require_whole(chat, "saving a model")
    target = Path(directory)
    weights = None if chat.weights is None else dict(chat.weights)  # transformers empties what it writes
    with quiet():
        if is_adapter(chat.model):
            chat.model.save_pretrained(str(target), save_embedding_layers=False, state_dict=weights)
            _settle_adapter_files(target)
            unwrap(chat.model).generation_config.save_pretrained(target)
        else:
            unwrap(chat.model).save_pretrained(target, state_dict=weights)
        chat.tokenizer.save_pretrained(target)
        if chat.directory and not is_adapter(chat.model):
            _copy_processor(chat.directory, target)
        require_saved(chat, target)


def _copy_processor(source: Path, target: Path) -> None:
    """Copy what images are read with, which neither a model nor its tokenizer saves."""
    files = list(source.glob("*processor*.json"))
    if not (target / FURTHER_TEMPLATES).is_dir():
        files += source.glob(PROCESSOR_TEMPLATE)
    for file in files:
        shutil.copyfile(file, target / file.name)


def require_saved(chat: ChatModel, directory: Path) -> None:
    """Raise RecoverError, naming a tensor, unless `directory` holds the model that is in memory.

    The bytes on disk are compared with those in memory under the names that saving uses; the names are then
    read back by the class that will load them, so that a tensor saved under a wrong name is missed.
    """
    if is_adapter(chat.model):
        wrong = _unlike(stored_tensors(chat.model, chat.weights), directory) or _unsaved_adapter(chat)
    else:
        core = unwrap(chat.model)
        wrong = (
            _untied(core, chat.weights)
            or _unlike(checkpoint_tensors(core, chat.weights), directory, left_out(core))
            or _not_restored(core, directory)
        )
    if wrong:
        raise RecoverError(
            f"{chat.path}: saved weights are not those in memory: {wrong}: nothing was published, "
            "the training state is kept; report it with the model's name"
        )


def stored_tensors(model: Any, weights: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return the tensors to save by name, a tied weight once; `weights` replaces a sharded state dict."""
    if is_adapter(model):
        from peft import get_peft_model_state_dict

        state = dict(weights) if weights else None
        return dict(get_peft_model_state_dict(model, state, save_embedding_layers=False))
    core = unwrap(model)
    tied = getattr(core, "all_tied_weights_keys", None) or {}
    whole = weights or core.state_dict()
    return {name: tensor for name, tensor in whole.items() if name not in tied}


def checkpoint_tensors(model: Any, weights: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return a whole model's tensors with the names and shapes of its checkpoint, without copying."""
    core = unwrap(model)
    tensors = {name: tensor.detach() for name, tensor in stored_tensors(core, weights).items()}
    return dict(revert_weight_conversion(core, tensors))


def _unlike(tensors: Mapping[str, Tensor], directory: Path, computed: Collection[str] = ()) -> str | None:
    """Compare names, dtypes, shapes and bytes; describe the first difference, but for computed tensors."""
    missing = dict(tensors)
    for path in weight_files(directory):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if name not in missing:
                    return f"{name} is in the file only"
                if not _same_bytes(file.get_tensor(name), missing.pop(name)):
                    return f"{name} differs"
    return next((f"{name} is missing" for name in missing if name not in computed), None)


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    flat = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*flat)


def left_out(core: Any) -> set[str]:
    """Return the names that transformers leaves out on purpose, because they are computed."""
    return set(getattr(core, "_keys_to_ignore_on_save", None) or ())


def _untied(core: Any, weights: Mapping[str, Tensor] | None) -> str | None:
    """Describe a weight that is saved as another's copy and is none: loading would overwrite it."""
    tensors = weights or core.state_dict()
    for name, source in (getattr(core, "all_tied_weights_keys", None) or {}).items():
        copy, original = tensors.get(name), tensors.get(source)
        if copy is not None and original is not None and not _same_bytes(copy, original):
            return f"{name} is declared a copy of {source} and differs from it"
    return None


def _not_restored(core: Any, directory: Path) -> str | None:
    """Load the names and shapes, without the numbers, as transformers will; describe what does not arrive."""
    _, report = _own_class(core).from_pretrained(
        directory, device_map="meta", output_loading_info=True, local_files_only=True, use_safetensors=True
    )
    lost = sorted(report["missing_keys"]) + sorted(key[0] for key in report["mismatched_keys"])
    return f"{lost[0]} does not load again" if lost else None


def _own_class(core: Any) -> Any:
    """Return the class as transformers defines it: FSDP2 puts a subclass in its place."""
    from torch.distributed.fsdp import FSDPModule

    return next(cls for cls in type(core).__mro__ if not issubclass(cls, FSDPModule))


def _unsaved_adapter(chat: ChatModel) -> str | None:
    """Describe an adapter weight that peft does not list among those it saves."""
    trained = [(name, one) for name, one in chat.model.named_parameters() if ".lora_" in name]
    saved = stored_tensors(chat.model, chat.weights)
    if sum(one.numel() for _, one in trained) == sum(one.numel() for one in saved.values()):
        return None
    bare = {name.replace(".default", "") for name, _ in trained}
    return f"{next(iter(sorted(bare - saved.keys())), 'an adapter weight')} is missing"


def _settle_adapter_files(directory: Path) -> None:
    """Sort the target modules, which peft lists in the order of a set: equal adapters get equal bytes."""
    (directory / "README.md").unlink(missing_ok=True)
    path = directory / ADAPTER_CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("target_modules", "target_parameters"):
        if isinstance(config.get(key), list):
            config[key] = sorted(config[key])
    path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
