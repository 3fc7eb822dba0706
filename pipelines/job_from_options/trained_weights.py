"""Refuse weights that a stage's settings cannot train, or do not name, before any stage begins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.config.jobs import Mixture
from pipelines.config.sections.training import LoraConfig
from pipelines.engines.engine_checks import INPROCESS
from pipelines.machine import model_sizes
from pipelines.machine.fitting import adapter_of
from pipelines.merge import require_mergeable
from recovery.errors import InputError
from recovery.named_paths import expanded
from recovery.storage.weights_hash import ADAPTER_CONFIG

if TYPE_CHECKING:
    from pipelines.config.settings import Config
    from pipelines.job_from_options.inputs import Changes
    from pipelines.runs.workspace import Workspace
    from recovery.storage.checkpoints import Checkpoint


def require_registered(ws: Workspace) -> None:
    """Refuse to train where recover.yaml names another model than the one registered as `base`.

    Its folder may lie elsewhere by now.
    """
    clean, named = ws.clean(), ws.config.model
    registered = clean.config
    model, asked = registered.get("model", named.path), registered.get("asked", named.revision)
    if named.path != model:
        if not _holds(expanded(named.path), clean):
            raise _another_model(ws, "path", named.path, model)
    elif named.revision not in (asked, registered.get("revision")):
        raise _another_model(ws, "revision", named.revision, asked)


def _holds(folder: Path, clean: Checkpoint) -> bool:
    from recovery.storage.weights_hash import weights_sha256

    return folder.is_dir() and weights_sha256(folder) == clean.sha256


def _another_model(ws: Workspace, key: str, named: str | None, registered: str | None) -> InputError:
    return InputError(
        f"{ws.home}: recover.yaml names model.{key} {named or 'none'}, but this home was made with "
        f"{registered or 'none'}: set it back, or make another --home for that model with `recover init`"
    )


def require_trainable(
    ws: Workspace, student: Checkpoint, settings: Config, stage: str, changes: Changes
) -> None:
    """Refuse a stage that cannot train the student: another rank, unknown modules, or weights in 4 bits."""
    from recovery.models.adapters import require_rank

    _require_known_base(ws, student)
    lora = settings.training(stage).lora
    if isinstance(lora, LoraConfig) or (lora is None and f"{stage}.lora" in changes):
        require_rank(student.path, lora.rank if lora else 0)
    _require_modules(student, stage, lora)
    _require_whole_numbers(student, settings, stage)
    if stage == "distill":
        require_sampled(ws, student, settings, [stage], ["distill"])
    _say_what_goes_on(ws, student, stage, lora)


def require_both_trainable(ws: Workspace, student: Checkpoint, settings: Config, *, distils: bool) -> None:
    """Refuse a cycle whose midtraining cannot train the student, or whose recovery what that leaves."""
    from recovery.models.adapters import adapter_rank

    _require_known_base(ws, student)
    rank = adapter_rank(student.path)
    midtrained = adapter_of(ws, student, settings.midtrain)
    stages: dict[str, LoraConfig | str | None] = {"midtrain": midtrained}
    if distils:
        stages["distill"] = settings.distill.lora
    for stage, lora in stages.items():
        if not isinstance(lora, LoraConfig):
            continue
        if rank not in (None, lora.rank):
            raise InputError(
                f"{stage}.lora: the adapter to train will be of rank {rank}, one of rank {lora.rank} cannot "
                f"take its place: give rank {rank} or auto"
            )
        if rank is None:  # else the adapter keeps its modules
            _require_modules(student, stage, lora)
        rank = lora.rank
    _require_whole_numbers(student, settings, "midtrain")
    require_sampled(ws, student, settings, list(stages), ["distill", "eval"] if distils else ["eval"])
    _say_what_goes_on(ws, student, "midtrain", midtrained)
    if distils and settings.distill.merge and (midtrained or student.base):
        _require_mixable(student, ws.clean())


def require_sampled(
    ws: Workspace, student: Checkpoint, settings: Config, stages: Sequence[str], samplers: Sequence[str]
) -> None:
    """Refuse an engine to sample the student, or what these stages make of it, if vLLM does not take that."""
    engines = {"distill": settings.distill.sampler, "eval": settings.eval.sampler}
    apart = [name for name in samplers if engines[name] != INPROCESS]
    if not apart:
        return
    lora = None if student.base else _adapter_to_come(ws, student, settings, stages)
    whole = _sent_whole(ws, student, lora, stages, apart)
    why = _not_taken(ws, student, lora) or (whole and _not_replaced(whole))
    if why:
        names = " and ".join(f"{name}.sampler" for name in apart)
        raise InputError(f"{apart[0]}.sampler: {why}, or set {names} to {INPROCESS}")


def _adapter_to_come(
    ws: Workspace, student: Checkpoint, settings: Config, stages: Sequence[str]
) -> LoraConfig | None:
    """Return the first adapter that these stages make of a whole model: a later stage goes on with it."""
    adapters = (adapter_of(ws, student, settings.training(stage)) for stage in stages)
    return next((lora for lora in adapters if lora is not None), None)


def _sent_whole(
    ws: Workspace, student: Checkpoint, lora: LoraConfig | None, stages: Sequence[str], apart: Sequence[str]
) -> Checkpoint | None:
    """Return the stored weights that an engine starts with and is sent anew, all of them, if there are any.

    Those of midtraining are saved as the trainer has them; before it the clean model is evaluated.
    """
    if "midtrain" in stages:
        return ws.clean() if "eval" in apart else None
    return student if lora is None and not student.base else None


def _not_replaced(checkpoint: Checkpoint) -> str | None:
    """Return why vLLM does not take the trainer's weights in place of the stored ones, if it does not."""
    from recovery.models.quantization import quantised_as

    method = quantised_as(checkpoint.path)
    if method is None:
        return None
    return (
        f"vLLM holds {checkpoint.id} in {method.upper()}, as it is stored, and takes none of the trainer's "
        "weights, which are unpacked: make the home with a copy of the model in bfloat16"
    )


def _not_taken(ws: Workspace, student: Checkpoint, lora: LoraConfig | None) -> str | None:
    """Return why vLLM does not take the student's adapter, or the one that it will have, if it does not."""
    if student.base:
        found, way = _lies_beyond(ws, student), "merge it first (`recover merge --weight 0`)"
    else:
        found = lora is not None and _would_lie_beyond(student, lora.targets)
        way = "set lora.targets to [q_proj, k_proj, v_proj, o_proj] in midtrain and distill"
    why = "vLLM does not sample an adapter on routed experts, the embeddings or the head"
    return f"{why}: {way}" if found else None


def _lies_beyond(ws: Workspace, adapter: Checkpoint) -> bool:
    """Return whether an adapter lies on experts, the embeddings or the head."""
    config = json.loads((adapter.path / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    if config.get("target_parameters"):
        return True
    return _would_lie_beyond(ws.checkpoint(str(adapter.base)), config["target_modules"])


def _would_lie_beyond(base: Checkpoint, targets: str | Sequence[str]) -> bool:
    from recovery.models.adapters import changes_vocabulary

    tried = _empty_with_adapter(base, targets)
    if tried is None:
        return False
    return bool(tried.peft_config["default"].target_parameters) or changes_vocabulary(tried)


def require_mixtures(ws: Workspace, student: Checkpoint, settings: Config) -> None:
    """Refuse a student that surely cannot be merged with the clean model, now or once it is midtrained."""
    from recovery.inspection.saved_names import require_mergeable_once_trained
    from recovery.models.adapters import ALL_LINEAR, adapter_rank

    clean = ws.clean()
    lora = adapter_of(ws, student, settings.midtrain)
    if adapter_rank(student.path) is not None or (lora is not None and lora.targets != ALL_LINEAR):
        require_mergeable(ws, Mixture(student=student.id, other=clean.id))
        return
    require_mergeable_once_trained(
        student.path,
        clean.path,
        adapter=lora is not None,
        trust_remote_code=ws.config.model.trust_remote_code,
    )


def _require_known_base(ws: Workspace, student: Checkpoint) -> None:
    """Refuse an adapter's folder from elsewhere: what is trained on it would name the adapter as its base."""
    if student.base is None and (student.path / ADAPTER_CONFIG).is_file():
        merge = ws.command("merge", "--student", str(student.path), "--weight", "0")
        raise InputError(
            f"--student {student.path}: an adapter that this home has not trained: merge it first "
            f"(`{merge}`), and give what that prints as --student"
        )


def _say_what_goes_on(ws: Workspace, student: Checkpoint, stage: str, lora: LoraConfig | str | None) -> None:
    """Say that the student's adapter is trained where the settings ask for all weights."""
    from recovery.models.adapters import adapter_rank

    if lora is None and adapter_rank(student.path) is not None:
        merge = ws.command("merge", "--student", student.id, "--weight", "0")
        ws.progress.say(
            f"  lora         {stage}.lora is null, but the student's adapter goes on: to train all weights, "
            f"run `{merge}` and give what it prints as --student"
        )


def _require_mixable(student: Checkpoint, clean: Checkpoint) -> None:
    """Refuse to mix the clean model into an adapter on another one."""
    if (student.base or student.id) == clean.id:
        return
    otherwise = (
        "merge the adapter first (`recover merge --weight 0`)"
        if student.base
        else "train all weights (midtrain.lora: null)"
    )
    raise InputError(
        "distill.merge: the adapter to recover will be on another model than the clean one: set it to 0, or "
        + otherwise
    )


def _require_modules(student: Checkpoint, stage: str, lora: LoraConfig | str | None) -> None:
    """Refuse an adapter that the model cannot have, by its modules' names or its dropout.

    It is tried on the model without its numbers.
    """
    if not isinstance(lora, LoraConfig) or student.base:
        return
    from recovery.models.adapters import ALL_LINEAR
    from recovery.models.hub import explained

    if lora.targets != ALL_LINEAR or lora.dropout:
        with explained(f"{stage}.lora", "adapter"):
            _empty_with_adapter(student, lora.targets, lora.dropout)


def _empty_with_adapter(base: Checkpoint, targets: str | Sequence[str], dropout: float = 0.0) -> Any:
    """Return a model without numbers, with an adapter on these modules; None of an unknown architecture."""
    from recovery.models.adapters import LoraSpec, with_adapter

    try:
        empty = model_sizes.read_size(str(base.path)).empty
    except InputError:
        return None
    names = targets if isinstance(targets, str) else tuple(targets)
    return with_adapter(empty(), LoraSpec(rank=1, dropout=dropout, targets=names)) if empty else None


def _require_whole_numbers(student: Checkpoint, settings: Config, stage: str) -> None:
    from recovery.models.adapters import adapter_rank

    lora = settings.training(stage).lora
    if settings.model.quantize and lora is None and adapter_rank(student.path) is None:
        raise InputError(
            f"{stage}.lora: weights in 4 bits (model.quantize) can't be trained: set it, as to {{rank: 32}}"
        )
