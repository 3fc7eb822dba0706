"""Refuse weights that a stage's settings cannot train, or do not name, before any stage begins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config import fitted
from pipelines.config.jobs import Mixture
from pipelines.config.sections.training import LoraConfig
from pipelines.engines.engine_checks import INPROCESS
from pipelines.machine import model_sizes
from pipelines.machine.fitting import fitted_here
from pipelines.merge import require_mergeable
from recovery.command_line import command
from recovery.errors import InputError

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
        if not _holds(Path(named.path).expanduser(), clean):
            raise _other(ws, "path", named.path, model)
    elif named.revision not in (asked, registered.get("revision")):
        raise _other(ws, "revision", named.revision, asked)


def _holds(folder: Path, clean: Checkpoint) -> bool:
    from recovery.storage.weights_hash import weights_sha256

    return folder.is_dir() and weights_sha256(folder) == clean.sha256


def _other(ws: Workspace, key: str, named: str | None, registered: str | None) -> InputError:
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
    lora = getattr(settings, stage).lora
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
    midtrained = _midtrained(ws, student, settings)
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


def _midtrained(ws: Workspace, student: Checkpoint, settings: Config) -> LoraConfig | None:
    """Return the adapter that midtraining asks for, by the memory where the settings leave it open."""
    midtrain = settings.midtrain
    if isinstance(midtrain.lora, str):
        midtrain = fitted_here(ws, student, midtrain, fitted.fit_midtraining)
    return midtrain.adapter


def _distilled(ws: Workspace, student: Checkpoint, settings: Config) -> LoraConfig | None:
    """Return the adapter that recovery asks for, by the memory where the settings leave it open."""
    distill = settings.distill
    if isinstance(distill.lora, str):
        distill = fitted_here(ws, student, distill, fitted.fit_distillation)
    return distill.adapter


def require_sampled(
    ws: Workspace, student: Checkpoint, settings: Config, stages: Sequence[str], samplers: Sequence[str]
) -> None:
    """Refuse an engine to sample an adapter on routed experts: it takes those on linear layers alone."""
    apart = [name for name in samplers if getattr(settings, name).sampler != INPROCESS]
    if not apart:
        return
    way = "set lora.targets to [q_proj, k_proj, v_proj, o_proj] in midtrain and distill"
    if student.base:
        found = _lies_on_experts(student)
        way = "merge it first (`recover merge --weight 0`)"
    else:
        made = {"midtrain": _midtrained, "distill": _distilled}
        found = _would_lie_on_experts(student, [made[stage](ws, student, settings) for stage in stages])
    if found:
        raise InputError(
            f"{apart[0]}.sampler: vLLM does not sample an adapter on routed experts: {way}, or set "
            f"{' and '.join(f'{name}.sampler' for name in apart)} to {INPROCESS}"
        )


def _lies_on_experts(adapter: Checkpoint) -> bool:
    from recovery.models.adapters import CONFIG

    config = json.loads((adapter.path / CONFIG).read_text(encoding="utf-8"))
    return bool(config.get("target_parameters"))


def _would_lie_on_experts(student: Checkpoint, adapters: Sequence[LoraConfig | None]) -> bool:
    from recovery.models.adapters import ALL_LINEAR

    if not any(lora is not None and lora.targets == ALL_LINEAR for lora in adapters):
        return False
    try:
        size = model_sizes.read_size(str(student.path))
    except InputError:  # an unknown family
        return False
    return any(matrix.is_routed for matrix in size.matrices)


def require_mixtures(ws: Workspace, student: Checkpoint, settings: Config) -> None:
    """Refuse a student that surely cannot be merged with the clean model, now or once it is midtrained."""
    from recovery.inspection.saved_names import require_mergeable_once_trained
    from recovery.models.adapters import ALL_LINEAR, adapter_rank

    clean = ws.clean()
    lora = _midtrained(ws, student, settings)
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
    from recovery.models.adapters import CONFIG

    if student.base is None and (student.path / CONFIG).is_file():
        merge = command(ws.named_home, "merge", "--student", str(student.path), "--weight", "0")
        raise InputError(
            f"--student {student.path}: an adapter that this home has not trained: merge it first "
            f"(`{merge}`), and give what that prints as --student"
        )


def _say_what_goes_on(ws: Workspace, student: Checkpoint, stage: str, lora: LoraConfig | str | None) -> None:
    """Say that the student's adapter is trained where the settings ask for all weights."""
    from recovery.models.adapters import adapter_rank

    if lora is None and adapter_rank(student.path) is not None:
        merge = command(ws.named_home, "merge", "--student", student.id, "--weight", "0")
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
    from recovery.models.adapters import ALL_LINEAR, LoraSpec, with_adapter
    from recovery.models.hub import explained

    if lora.targets == ALL_LINEAR and not lora.dropout:
        return
    try:
        empty = model_sizes.read_size(str(student.path)).empty
    except InputError:  # an unknown family
        return
    targets = lora.targets if isinstance(lora.targets, str) else tuple(lora.targets)
    if empty is not None:
        with explained(f"{stage}.lora", "adapter"):
            with_adapter(empty(), LoraSpec(rank=1, dropout=lora.dropout, targets=targets))


def _require_whole_numbers(student: Checkpoint, settings: Config, stage: str) -> None:
    from recovery.models.adapters import adapter_rank

    lora = getattr(settings, stage).lora
    if settings.model.quantize and lora is None and adapter_rank(student.path) is None:
        raise InputError(
            f"{stage}.lora: weights in 4 bits (model.quantize) can't be trained: set it, as to {{rank: 32}}"
        )
