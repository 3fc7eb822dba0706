"""Start the engines that sample and score, as configured, and stop them with the stage.

`inprocess` uses the trainer's model; `vllm` an LLM in the same process; `server` a vLLM server that starts
and ends with the run; a URL (several with commas) a running server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from db.reads import queries
from pipelines.engines.engine_checks import COLOCATED, INPROCESS, OWN_SERVER, check_place
from recovery.engines.key_guard import KEY_VARIABLE
from recovery.errors import InputError
from recovery.listening import require_free
from recovery.loopback import is_loopback

if TYPE_CHECKING:
    from pipelines.config.settings import Config
    from pipelines.runs.workspace import Workspace
    from recovery.engines.engine_teacher import EngineTeacher
    from recovery.engines.protocol import Engine, EngineSettings
    from recovery.engines.vllm_http import ServerEngine
    from recovery.engines.vllm_server import Server
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import AnsweringSampler, Sampler
    from recovery.storage.checkpoints import Checkpoint


class Engines(ExitStack):
    """The engines of one stage; leaving the context stops those that were started in it.

    In a stage of several processes (`together`), the first one starts the servers and all use them.
    """

    def __init__(self, ws: Workspace, directory: Path, *, together: bool = False) -> None:
        super().__init__()
        self.ws = ws
        self.directory = directory
        self.together = together

    def sampler(
        self, where: str, student: ChatModel, checkpoint: Checkpoint, *, follow: bool, batch_size: int = 256
    ) -> AnsweringSampler:
        """Return the student's sampler; with `follow`, send it the new weights after each update."""
        from recovery.sampling.in_process import InProcessSampler

        if where == INPROCESS:
            return InProcessSampler(student, batch_size)
        from recovery.engines.engine_sampler import EngineSampler
        from recovery.forward.hidden_states import is_adapter

        model: Any = student.model
        rank = max(config.r for config in model.peft_config.values()) if is_adapter(model) else 0
        base = self.ws.checkpoint(checkpoint.base) if checkpoint.base else checkpoint
        engine = self._engine("sampler", where, base, dtype_of(student), rank)
        external = where not in (COLOCATED, OWN_SERVER)
        sampler = EngineSampler(engine, student, follow=follow, external=external)
        self.callback(sampler.close)
        return sampler

    def teacher(
        self, where: str, student: ChatModel, checkpoint: Checkpoint, kind: str, k: int
    ) -> EngineTeacher:
        """Return a checkpoint as a teacher on an engine; a server's model name identifies its checkpoint."""
        from recovery.engines.engine_teacher import EngineTeacher
        from recovery.engines.vllm_http import ServerEngine

        require_whole_teacher(checkpoint)
        engine = self._engine("teacher", where, checkpoint, dtype_of(student), 0)
        if isinstance(engine, ServerEngine) and where != OWN_SERVER:
            engine.require_own_weights()
            self._name_served(engine, where, checkpoint)
            return EngineTeacher(engine, student, kind, k, check=engine.require_own_weights)
        return EngineTeacher(engine, student, kind, k)

    def _name_served(self, engine: ServerEngine, where: str, checkpoint: Checkpoint) -> None:
        """Refuse a running server of another checkpoint of this home; say where one serves something else."""
        served = sorted(set(engine.models) - {checkpoint.id})
        known = {row["id"] for row in queries.checkpoints(self.ws.tracker.db, limit=None)} & set(served)
        if known:
            raise InputError(
                f"{where} serves the checkpoint {min(known)}, but the teacher is {checkpoint.id}: serve "
                f"that one (`{self.ws.command('serve', checkpoint.id)}`), or name the other as "
                "--teacher"
            )
        if served:
            self.ws.progress.say(
                f"  teacher      {where} serves {', '.join(served)}: not known to be {checkpoint.id}"
            )

    def _engine(self, role: str, where: str, checkpoint: Checkpoint, dtype: str, rank: int) -> Engine:
        from recovery.engines.vllm_http import ServerEngine
        from recovery.engines.vllm_local import VllmEngine
        from recovery.engines.vllm_server import Server

        check_place(role, where)
        settings = engine_settings(self.ws.config)
        engine: Any
        if where == COLOCATED:
            engine = VllmEngine(checkpoint.path, settings, dtype=dtype, rank=rank)
        elif where == OWN_SERVER:
            log = self.directory / f"{role}.log"
            server = Server(checkpoint.path, settings, name=checkpoint.id, log=log, dtype=dtype, rank=rank)
            engine = self._on_own_server(server)
        else:
            engine = ServerEngine(where.split(","), settings, processes=self._processes())
        self.callback(engine.close)
        found: Engine = engine
        return found

    def _on_own_server(self, server: Server) -> Engine:
        """Start a server, in the first of several processes, and return the engine that uses it."""
        from recovery import distributed
        from recovery.engines.vllm_http import ServerEngine
        from recovery.memory import release_cached

        release_cached()  # of earlier stages, on every GPU: the server's process needs it
        started: list[Server] = []
        if distributed.rank() == 0:
            self.callback(server.stop)
            server.start()
            started = [server]
        url, key = server.url, server.key
        if self.together:
            url, key = distributed.broadcast((url, key))
        keys = {url: key}
        return ServerEngine([url], server.settings, started, keys, processes=self._processes())

    def _processes(self) -> int:
        """Return how many processes ask an engine at once: evaluations are the first one's alone."""
        from recovery.distributed import world

        return world() if self.together else 1


def in_step(sampler: Sampler) -> Sampler:
    """Return the sampler as all processes of a training use it together."""
    from recovery.distributed import world
    from recovery.engines.engine_sampler import EngineSampler
    from recovery.engines.shared_sampler import SharedSampler
    from recovery.engines.vllm_http import ServerEngine

    if world() > 1 and isinstance(sampler, EngineSampler) and isinstance(sampler.engine, ServerEngine):
        return SharedSampler(sampler, sampler.engine)
    return sampler


def length_of(sampler: Sampler) -> int | None:
    """Return how many tokens of prompt and answer a sampler's engine reads, if it has one that says so."""
    from recovery.engines.engine_sampler import EngineSampler

    lengths = sampler.engine.lengths if isinstance(sampler, EngineSampler) else ()
    return min((length for length in lengths if length is not None), default=None)


def require_whole(ws: Workspace, checkpoint: Checkpoint) -> None:
    """Refuse to serve an adapter, with the command that makes a whole checkpoint of it."""
    if checkpoint.base:
        words = "merge", "--student", checkpoint.id, "--with", checkpoint.base, "--weight", "0"
        raise InputError(
            f"{checkpoint.id} is an adapter: `{ws.command(*words)}` writes a whole checkpoint to "
            "serve; --lora RANK on its base is for the sampler of a running training"
        )


def require_whole_teacher(checkpoint: Checkpoint) -> None:
    """Refuse an adapter as a teacher on an engine, which holds whole models."""
    if checkpoint.base:
        raise InputError(
            f"the teacher {checkpoint.id} is an adapter: merge it first (recover merge), or let it score "
            "in this process"
        )


def require_place(name: str, where: str, config: Config) -> None:
    """Refuse an unknown engine, one that is not installed, a folder for weights that cannot be written to,
    and URLs at which no server answers."""
    check_place(name, where)
    if where != INPROCESS:
        _require_exchange(config.engine.exchange)
    _running_lengths(where, config)


def _require_exchange(folder: str | None) -> None:
    if folder is not None and not (Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise InputError(
            f"engine.exchange: {folder} is no folder that can be written to: create it, or set another one"
        )


def engine_lengths(where: str, config: Config) -> list[int | None]:
    """Return how many tokens of prompt and answer an engine reads, as configured and as its servers say."""
    return [config.engine.max_length, *_running_lengths(where, config)]


def _running_lengths(where: str, config: Config) -> Sequence[int | None]:
    """Return how many tokens each server at these URLs reads, as it says; refuse one that does not answer."""
    from recovery.engines.vllm_http import ServerEngine

    if where in (INPROCESS, COLOCATED, OWN_SERVER):
        return ()
    running = ServerEngine(where.split(","), engine_settings(config))
    running.close()
    return running.lengths


def engine_settings(config: Config) -> EngineSettings:
    from recovery.engines.protocol import EngineSettings

    trust = config.model.trust_remote_code
    return EngineSettings(**config.engine.model_dump(), trust_remote_code=trust)


def dtype_of(student: ChatModel) -> str:
    return str(student.model.dtype).removeprefix("torch.")


def _trained_dtype(config: Config) -> str:
    """Return the dtype that a trainer on this machine has: vLLM's `auto` is the checkpoint's own."""
    from recovery.models.device import pick_device, pick_dtype

    return str(pick_dtype(config.model.dtype, pick_device())).removeprefix("torch.")


@contextmanager
def serve(
    ws: Workspace, ref: str, *, host: str, port: int, rank: int, beyond: bool = False
) -> Iterator[Server]:
    """Serve a checkpoint inside the context; outside loopback only if configured, and with a key."""
    from recovery.engines.json_client import authorization
    from recovery.engines.vllm_server import Server

    key = os.environ.get(KEY_VARIABLE, "")
    authorization(key)
    if not is_loopback(host):
        if not beyond:
            raise InputError(
                f"--host {host}: any client that reaches it can change the model: add --beyond-this-machine"
            )
        if not key:
            raise InputError(f"--host {host}: set {KEY_VARIABLE} to a long random key, on both sides")
    require_free(host, port)
    checkpoint = ws.checkpoint(ref)
    require_whole(ws, checkpoint)
    settings = engine_settings(ws.config)
    dtype = _trained_dtype(ws.config)
    log = ws.home / "engines" / f"{checkpoint.id}.log"
    server = Server(
        checkpoint.path,
        settings,
        name=checkpoint.id,
        log=log,
        dtype=dtype,
        rank=rank,
        address=(host, port),
        key=key,
    )
    with ExitStack() as stack:
        stack.callback(server.stop)
        server.start(lambda waited: ws.progress.say(f"  vllm         starting, {waited:.0f} s"))
        yield server
