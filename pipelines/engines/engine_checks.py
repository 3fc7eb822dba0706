"""Refuse engines that are unknown, not installed, or cannot do what a method needs; no model is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.errors import InputError
from recovery.launch_env import launched, machines
from recovery.methods.choices import FROZEN, LABELS, STUDENT_ALONE, STUDENT_BEGINS, TEACHER_WRITES

if TYPE_CHECKING:
    from pipelines.config.sections.distill import DistillConfig
    from pipelines.config.settings import Config
    from recovery.methods.method import Method

INPROCESS, COLOCATED, OWN_SERVER = "inprocess", "vllm", "server"


def check(settings: DistillConfig, method: Method, *, sharded: bool = False) -> None:
    """Refuse combinations that cannot work before any model is loaded."""
    if launched() > 1:
        _check_several(settings, method, sharded)
    if settings.ahead:
        _check_ahead(settings, method)
    if settings.sampler != INPROCESS and not student_writes(method):
        raise InputError(
            f"method {method.name!r} trains on no answers of the student's alone: keep --sampler {INPROCESS}"
        )
    check_place("sampler", settings.sampler)
    if settings.sampler != INPROCESS:
        _check_adapter(settings)
    if settings.offload_teacher:
        check_offload(settings, method)
    check_place("teacher engine", settings.teacher_engine)
    if settings.teacher_engine != INPROCESS:
        _check_teacher_engine(settings, method)


def _check_adapter(settings: DistillConfig) -> None:
    """Refuse an adapter of a rank that vLLM does not take."""
    from recovery.engines.vllm_lora import lora_rank

    if settings.lora is not None and settings.lora != "auto":
        lora_rank(settings.lora.rank)


def _check_teacher_engine(settings: DistillConfig, method: Method) -> None:
    """Refuse methods that need more of a teacher than its engine gives."""
    from recovery.engines.vllm_local import MAX_ENTRIES

    where = settings.teacher_engine
    if method.teacher not in (*FROZEN, "routed"):
        raise InputError(f"method {method.name!r} has no separate teacher: keep --teacher-engine {INPROCESS}")
    if method.state_kind == "teacher-mix":
        raise InputError(
            f"method {method.name!r}: with states={method.states} both models write each token: keep "
            f"--teacher-engine {INPROCESS}"
        )
    if method.scores == "dense":
        raise InputError(
            f"method {method.name!r} needs whole distributions, which only a teacher in this process gives: "
            f"use opd-topk or opd-sampled, or --teacher-engine {INPROCESS}"
        )
    if method.scores == "topk" and method.k > MAX_ENTRIES:
        raise InputError(
            f"k={method.k}: an engine sends at most {MAX_ENTRIES} entries a token: set k to that or less, or "
            f"keep --teacher-engine {INPROCESS}"
        )
    if method.teacher == "routed" and where != OWN_SERVER:
        raise InputError(f"several teachers need an engine each: give --teacher-engine {OWN_SERVER}")
    if settings.sampler == where == COLOCATED:
        raise InputError(
            "sampler and teacher cannot both be in this process: start a server for the teacher "
            "(recover serve)"
        )


def require_watched(settings: DistillConfig, method: Method) -> None:
    """Refuse a bound on what would not be watched, and a stop that would never come; a run that began with
    one goes on."""
    if settings.tripwire_share is not None and (why := _unwatched(settings, method)):
        raise InputError(
            f"tripwire: nothing would be watched, as {why}: leave out --tripwire (distill.tripwire_share)"
        )
    if settings.stop is not None and settings.most_steps < (second := 2 * settings.stop.every):
        raise InputError(
            f"distill.stop: {_steps_end(settings)} before its second look, after {second}: lower "
            "distill.stop.every, take more steps, or leave out --stop-when-recovered"
        )


def _unwatched(settings: DistillConfig, method: Method) -> str | None:
    """Return why a tripwire would never look, if so."""
    if method.teacher not in FROZEN or settings.teacher_engine != INPROCESS:
        return "it compares with a clean teacher in this process"
    if not settings.tripwire_every:
        return "distill.tripwire_every is 0"
    if settings.most_steps < (every := settings.tripwire_every):
        return f"{_steps_end(settings)} before the first look (distill.tripwire_every: {every})"
    return None


def _steps_end(settings: DistillConfig) -> str:
    most = settings.most_steps
    return "1 step ends" if most == 1 else f"{most} steps end"


def require_engines(began: Config, now: Config, *, distils: bool) -> None:
    """Refuse to go on with a run whose engines would answer otherwise than when it began, or do not work in
    as many processes as there are now."""
    _require_same_answers(began, now)
    check_place("sampler", began.eval.sampler)
    if distils:
        check(began.distill, began.distill.resolved_method(), sharded=now.model.shard)


def _require_same_answers(began: Config, now: Config) -> None:
    """Refuse to go on with evaluations on an engine that would answer otherwise than when the run began."""
    if began.eval.sampler == INPROCESS:
        return
    for name in ("max_length", "arguments"):
        if getattr(began.engine, name) != getattr(now.engine, name):
            raise InputError(
                f"engine.{name}: changed since the run began, whose evaluations are compared: restore it, or "
                "begin a new run"
            )


def _check_ahead(settings: DistillConfig, method: Method) -> None:
    if settings.sampler == INPROCESS:
        raise InputError("ahead: the trainer's own model can't write while it is trained: give --sampler")
    if method.state_kind not in STUDENT_ALONE:
        raise InputError(
            f"ahead: method {method.name!r} trains on more than the student's answers: leave out --ahead"
        )
    if method.signal in LABELS and method.temperature != 1:
        raise InputError("ahead: labels are weighed at temperature 1: set temperature=1")
    if settings.save_every == 1:
        raise InputError("ahead: the step after a saved state is not sampled ahead: raise save_every above 1")


def _check_several(settings: DistillConfig, method: Method, sharded: bool) -> None:
    if sharded and method.teacher == "self-ema":
        raise InputError(f"method {method.name!r} needs the student unsharded: set model.shard to false")
    if OWN_SERVER in (settings.sampler, settings.teacher_engine) and machines() > 1:
        raise InputError(
            f"several machines: {OWN_SERVER} answers on its own machine alone: start servers with "
            "`recover serve` and give their URLs"
        )
    if settings.ahead:
        raise InputError("ahead: works in one training process only: leave out --ahead, or train in one")


def check_offload(settings: DistillConfig, method: Method) -> None:
    """Refuse to offload a teacher that is not there beside the student, or samples."""
    if method.teacher not in (*FROZEN, "routed") and not method.anchor_beta:
        raise InputError(
            f"offload_teacher: method {method.name!r} loads no teacher beside the student: leave it out"
        )
    if method.state_kind in TEACHER_WRITES:
        raise InputError(
            f"offload_teacher: too slow with method {method.name!r}, whose teacher samples: leave it out"
        )
    if settings.stop is not None:
        raise InputError(
            "offload_teacher: too slow with distill.stop, for which the clean model samples: leave one out"
        )
    if settings.teacher_engine != INPROCESS:
        raise InputError("offload_teacher: the teacher is not in this process: leave out teacher_engine")


def may_offload(settings: DistillConfig) -> bool:
    """Return whether a run would take distill.offload_teacher."""
    try:
        check_offload(settings, settings.resolved_method())
    except InputError:
        return False
    return True


def student_writes(method: Method) -> bool:
    """Return whether the method trains on prefixes that the student samples."""
    return method.state_kind in STUDENT_BEGINS


def check_place(name: str, where: str) -> None:
    """Refuse an unknown engine, one that several processes cannot use, and one that is not installed."""
    if where not in (INPROCESS, COLOCATED, OWN_SERVER) and not where.startswith(("http://", "https://")):
        raise InputError(f"{name} {where!r}: give {INPROCESS}, {COLOCATED}, {OWN_SERVER} or a server's URL")
    if where == COLOCATED and launched() > 1:
        raise InputError(
            f"several processes: {name} {COLOCATED} runs inside one process: take {OWN_SERVER}, or start "
            "servers with `recover serve` and give their URLs"
        )
    if where in (COLOCATED, OWN_SERVER):
        from recovery.engines.vllm_local import require_vllm

        require_vllm()
