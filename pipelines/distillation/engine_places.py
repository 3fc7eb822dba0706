"""Start the engines that sample and score, as configured, and stop them with the stage.

`inprocess` uses the trainer's model; `vllm` an LLM in the same process; `server` a vLLM server that starts
and ends with the run; a URL (several with commas) a running server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recovery.engines.key_guard import KEY_VARIABLE
from recovery.errors import InputError
from recovery.launch_env import launched
from recovery.methods.choices import FROZEN, LABELS, TEACHER_WRITES

if TYPE_CHECKING:
    from pipelines.config.sections.distill import DistillConfig
    from pipelines.config.settings import Config
    from pipelines.runs.workspace import Workspace
    from recovery.engines.protocol import Engine, EngineSettings
    from recovery.engines.vllm_server import Server
    from recovery.methods.method import Method
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import AnsweringSampler, Sampler
    from recovery.storage.checkpoints import Checkpoint
    from recovery.teachers.teachers import Teacher

AHEAD_STATES = ("student", "student-kept")  # prefixes that need only the student's samples
INPROCESS, COLOCATED, OWN_SERVER = "inprocess", "vllm", "server"


def check(settings: DistillConfig, method: Method) -> None:
    """Refuse combinations that cannot work before any model is loaded."""
    if launched() > 1:
        _check_several(settings)
    if settings.ahead:
        _check_ahead(settings, method)
    if settings.sampler != INPROCESS and not student_writes(method):
        raise InputError(
            f"method {method.name!r} trains on no answers of the student's alone: keep --sampler {INPROCESS}"
        )
    check_place("sampler", settings.sampler)
    if settings.offload_teacher:
        _check_offload(settings, method)
    where = settings.teacher_engine
    check_place("teacher engine", where)
    if where == INPROCESS:
        return
    if method.teacher not in (*FROZEN, "routed"):
        raise InputError(f"method {method.name!r} has no separate teacher: keep --teacher-engine {INPROCESS}")
    if method.scores == "dense":
        raise InputError(
            f"method {method.name!r} needs whole distributions, which only a teacher in this process gives: "
            f"use opd-topk or opd-sampled, or --teacher-engine {INPROCESS}"
        )
    if method.teacher == "routed" and where != OWN_SERVER:
        raise InputError(f"several teachers need an engine each: give --teacher-engine {OWN_SERVER}")


def _check_ahead(settings: DistillConfig, method: Method) -> None:
    if settings.sampler == INPROCESS:
        raise InputError("ahead: the trainer's own model can't write while it is trained: give --sampler")
    if method.state_kind not in AHEAD_STATES:
        raise InputError(
            f"ahead: method {method.name!r} trains on more than the student's answers: leave out --ahead"
        )
    if method.signal in LABELS and method.temperature != 1:
        raise InputError("ahead: labels are weighed at temperature 1: set temperature=1")
    if settings.save_every == 1:
        raise InputError("ahead: the step after a saved state is not sampled ahead: raise save_every above 1")


def _check_several(settings: DistillConfig) -> None:
    if COLOCATED in (settings.sampler, settings.teacher_engine):
        raise InputError(
            f"several processes: {COLOCATED} runs inside one process: take {OWN_SERVER}, or start "
            "servers with `recover serve` and give their URLs"
        )
    if settings.ahead:
        raise InputError("ahead: works in one training process only: leave out --ahead, or train in one")


def _check_offload(settings: DistillConfig, method: Method) -> None:
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


def student_writes(method: Method) -> bool:
    """Return whether the method trains on prefixes that the student samples."""
    return method.state_kind in ("student", "student-kept", "student-continued", "mix")


def check_place(name: str, where: str) -> None:
    """Refuse an unknown engine, and an engine that is not installed."""
    if where not in (INPROCESS, COLOCATED, OWN_SERVER) and not where.startswith(("http://", "https://")):
        raise InputError(f"{name} {where!r}: give {INPROCESS}, {COLOCATED}, {OWN_SERVER} or a server's URL")
    if where in (COLOCATED, OWN_SERVER):
        from recovery.engines.vllm_local import require_vllm

        require_vllm()


class Engines(ExitStack):
    """The engines of one stage; leaving the context stops those that were started in it.

    In a stage of several processes (`together`), the first one starts the servers and all use them.
    """

    def __init__(self, ws: Workspace, directory: Path, *, together: bool = False) -> None:
        super().__init__()
        self.ws = ws
        self.directory = directory
        self.together = together
        self._colocated = ""

    def sampler(
        self, where: str, student: ChatModel, checkpoint: Checkpoint, *, follow: bool, batch_size: int = 256
    ) -> AnsweringSampler:
        """Return the student's sampler; with `follow`, send it the new weights after each update."""
        from recovery.sampling.in_process import InProcessSampler

        if where == INPROCESS:
            return InProcessSampler(student, batch_size)
        from recovery.engines.engine_sampler import EngineSampler
        from recovery.forward.hidden_states import is_adapter

        rank = adapter_rank(student.model) if is_adapter(student.model) else 0
        base = self.ws.checkpoint(checkpoint.base) if checkpoint.base else checkpoint
        engine = self._engine("sampler", where, base, dtype_of(student), rank)
        sampler = EngineSampler(engine, student, follow=follow)
        self.callback(sampler.close)
        return sampler

    def teacher(self, where: str, student: ChatModel, checkpoint: Checkpoint, kind: str, k: int) -> Teacher:
        """Return a checkpoint as a teacher on an engine; a server's model name identifies its checkpoint."""
        from recovery.engines.engine_teacher import EngineTeacher

        if checkpoint.base:
            raise InputError(
                f"the teacher {checkpoint.id} is an adapter: merge it first (recover merge), or let it score "
                "in this process"
            )
        engine = self._engine("teacher", where, checkpoint, dtype_of(student), 0)
        return EngineTeacher(engine, student, kind, k)

    def _engine(self, role: str, where: str, checkpoint: Checkpoint, dtype: str, rank: int) -> Engine:
        from recovery.engines.vllm_http import ServerEngine
        from recovery.engines.vllm_local import VllmEngine

        check_place(role, where)
        settings = engine_settings(self.ws.config)
        engine: Any
        if where == COLOCATED:
            if self._colocated:
                raise InputError(
                    f"{self._colocated} and {role} cannot both be in this process: start a server for the "
                    "teacher (recover serve)"
                )
            self._colocated = role
            engine = VllmEngine(checkpoint.path, settings, dtype=dtype, rank=rank)
        elif where == OWN_SERVER:
            log = self.directory / f"{role}.log"
            engine = self._on_own_server(make_server(checkpoint, settings, log, dtype=dtype, rank=rank))
        else:
            engine = ServerEngine(where.split(","), settings)
            served = sorted(set(engine.models) - {checkpoint.id})
            if role == "teacher" and served:
                self.ws.progress.say(
                    f"  teacher      {where} serves {', '.join(served)}: not known to be {checkpoint.id}"
                )
        self.callback(engine.close)
        found: Engine = engine
        return found

    def _on_own_server(self, server: Server) -> Engine:
        """Start a server, in the first of several processes, and return the engine that uses it."""
        from recovery import distributed
        from recovery.engines.vllm_http import ServerEngine

        started: list[Server] = []
        if distributed.rank() == 0:
            self.callback(server.stop)
            server.start()
            started = [server]
        url, key = server.url, server.key
        if self.together:
            url, key = distributed.share((url, key))
        return ServerEngine([url], server.settings, servers=started, keys={url: key})


def in_step(sampler: Sampler) -> Sampler:
    """Return the sampler as all processes of a training use it together."""
    from recovery.distributed import world
    from recovery.engines.engine_sampler import EngineSampler
    from recovery.engines.shared import SharedSampler
    from recovery.engines.vllm_http import ServerEngine

    if world() > 1 and isinstance(sampler, EngineSampler) and isinstance(sampler.engine, ServerEngine):
        return SharedSampler(sampler, sampler.engine)
    return sampler


def make_server(
    checkpoint: Checkpoint,
    settings: EngineSettings,
    log: Path,
    *,
    dtype: str,
    rank: int = 0,
    address: tuple[str, int] = ("127.0.0.1", 0),
    key: str | None = None,
) -> Server:
    """Return a server of a checkpoint, with the checkpoint's id as model name for clients to verify."""
    from recovery.engines.vllm_server import Server

    if checkpoint.base:
        raise InputError(
            f"{checkpoint.id} is an adapter: serve its base {checkpoint.base} with --lora RANK, or merge it"
        )
    return Server(
        checkpoint.path,
        settings,
        name=checkpoint.id,
        log=log,
        dtype=dtype,
        rank=rank,
        address=address,
        key=key,
    )


def engine_settings(config: Config) -> EngineSettings:
    from recovery.engines.protocol import EngineSettings

    trust = config.model.trust_remote_code
    return EngineSettings(**config.engine.model_dump(), trust_remote_code=trust)


def dtype_of(student: ChatModel) -> str:
    return str(student.model.dtype).removeprefix("torch.")


def adapter_rank(model: Any) -> int:
    return max(config.r for config in model.peft_config.values())


@contextmanager
def serve(
    ws: Workspace, ref: str, *, host: str, port: int, rank: int, beyond: bool = False
) -> Iterator[Server]:
    """Serve a checkpoint inside the context; outside loopback only if configured, and with a key."""
    from recovery.engines.json_client import authorization

    key = os.environ.get(KEY_VARIABLE, "")
    authorization(key)
    if not _is_loopback(host):
        if not beyond:
            raise InputError(
                f"--host {host}: any client that reaches it can change the model: add --beyond-this-machine"
            )
        if not key:
            raise InputError(f"--host {host}: set {KEY_VARIABLE} to a long random key, on both sides")
    checkpoint = ws.checkpoint(ref)
    settings = engine_settings(ws.config)
    dtype = ws.config.model.dtype
    log = ws.home / "engines" / f"{checkpoint.id}.log"
    address = host, port
    server = make_server(checkpoint, settings, log, dtype=dtype, rank=rank, address=address, key=key)
    with ExitStack() as stack:
        stack.callback(server.stop)
        server.start(lambda waited: ws.progress.say(f"  vllm         starting, {waited:.0f} s"))
        yield server


def _is_loopback(host: str) -> bool:
    """Return whether the address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
