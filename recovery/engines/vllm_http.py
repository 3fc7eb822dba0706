"""vLLM as a server: started here (`recover serve`, or with a run), or one that runs already, by its URL.

Prompts go in and answers come out as token ids over the OpenAI completions protocol, with vLLM's additions
(return_token_ids, prompt_logprobs). Weights go through a folder that both sides see.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recovery.engines import child_process
from recovery.engines.protocol import EngineSettings, Heard, OnProgress, Written
from recovery.engines.vllm_local import MAX_ENTRIES, QUIET, heard, lora_rank, lora_targets, require_vllm
from recovery.errors import EngineLost, InputError, RecoverError
from recovery.models.hub import quiet
from recovery.models.loading import is_adapter, save, unwrap
from recovery.seeds import step_seed

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import SamplingParams

AT_ONCE = 256  # requests on their way to one server
REVIVE_SECONDS = 60.0  # how long a server that somebody else runs may take to come back
LOG_LINES = 3
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # engines are no business of a proxy's


class NotThere(RecoverError):
    """The server knows no such path, or no such model."""


class Entry(NamedTuple):
    logprob: float
    rank: int


class ServerEngine:
    """One vLLM server or several with the same model, each given its share of the rows."""

    def __init__(self, urls: Sequence[str], settings: EngineSettings, own: Sequence[Server] = ()) -> None:
        self.urls = [url.rstrip("/").removesuffix("/v1") for url in urls]
        self.settings, self.own, self.name = settings, list(own), f"vLLM at {', '.join(self.urls)}"
        self.models = [self._model(url) for url in self.urls]
        self.state, self.closed = 0, False
        self._token = secrets.token_hex(3)  # names of this run's adapters, among others' on the same server

    def _model(self, url: str) -> str:
        try:
            return str(self._get(url, "/v1/models")["data"][0]["id"])
        except (EngineLost, NotThere, KeyError, IndexError, TypeError) as error:
            raise InputError(
                f"{url}: no vLLM server answers there ({error}): start one with `recover serve CHECKPOINT`"
            ) from error

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        stop_ids: Sequence[int],
        on_progress: OnProgress | None = None,
    ) -> list[Written]:
        bodies = [
            {
                "prompt": list(prompt),
                "max_tokens": params.max_new_tokens,
                "temperature": params.temperature,
                "top_p": 1.0,
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "seed": step_seed(params.seed, row),
                "logprobs": 0,
                "stop_token_ids": list(stop_ids),
                "ignore_eos": True,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
            }
            for row, prompt in enumerate(prompts, params.first)
        ]
        choices = self._complete(bodies, on_progress)
        return [Written(choice["token_ids"], choice["logprobs"]["token_logprobs"]) for choice in choices]

    def read(self, sequences: Sequence[Sequence[int]], starts: Sequence[int], k: int) -> list[list[Heard]]:
        bodies = [
            {
                "prompt": list(tokens),
                "max_tokens": 1,
                "temperature": 1.0,
                "prompt_logprobs": k,
                "return_token_ids": True,
            }
            for tokens in sequences
        ]
        choices = self._complete(bodies, None)
        rows = zip(choices, sequences, starts, strict=True)
        return [heard(_entries(one["prompt_logprobs"]), tokens, start, k) for one, tokens, start in rows]

    def _complete(self, bodies: list[dict[str, Any]], on_progress: OnProgress | None) -> list[Any]:
        """One request a row, so that each has its own seed; shared out evenly."""
        choices: list[Any] = [None] * len(bodies)
        with ThreadPoolExecutor(min(len(bodies), AT_ONCE * len(self.urls))) as pool:
            asked = {pool.submit(self._one, row, body): row for row, body in enumerate(bodies)}
            try:
                for done, future in enumerate(as_completed(asked), 1):
                    choices[asked[future]] = future.result()
                    if on_progress:
                        on_progress(done, len(bodies))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return choices

    def _one(self, row: int, body: dict[str, Any]) -> Any:
        if self.closed:
            raise EngineLost("it is not wanted any more")
        place = row % len(self.urls)
        answer = self._post(self.urls[place], "/v1/completions", {**body, "model": self.models[place]})
        choice = answer["choices"][0]
        if choice.get("prompt_token_ids") != body["prompt"]:
            raise RecoverError(
                f"{self.urls[place]}: it changed or hides the prompt's token ids: take vLLM 0.32 or newer"
            )
        return choice

    def take(self, student: ChatModel) -> None:
        """The adapter by its own endpoint, or all weights through the worker that `recover serve` starts."""
        self.state += 1
        folder = Path(tempfile.mkdtemp(prefix="recover-weights-", dir=self.settings.exchange))
        try:
            if is_adapter(student.model):
                save(student, folder)
                self._take_adapter(str(folder))
                return
            with quiet():
                unwrap(student.model).save_pretrained(folder)
            for url in self.urls:
                request = {"method": "take_weights", "kwargs": {"directory": str(folder)}}
                self._order(url, "/collective_rpc", request)
                self._order(url, "/reset_prefix_cache", {})
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _take_adapter(self, folder: str) -> None:
        """Each state has a name of its own: a reload in place can lose weights in silence."""
        name, before = (f"student-{self._token}-{number}" for number in (self.state, self.state - 1))
        for place, url in enumerate(self.urls):
            self._order(url, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})
            if self.models[place] == before:
                with suppress(NotThere):  # a server that was started again has forgotten it already
                    self._post(url, "/v1/unload_lora_adapter", {"lora_name": before})
            self.models[place] = name

    def _order(self, url: str, path: str, body: dict[str, Any]) -> Any:
        try:
            return self._post(url, path, body)
        except NotThere as error:
            raise InputError(
                f"{url}: this server takes no weights ({path} is not there): start it with "
                "`recover serve CHECKPOINT` (for an adapter with --lora RANK)"
            ) from error

    def revive(self) -> None:
        """A server of ours is started anew; for another's we wait a while, in case somebody does."""
        for server in self.own:
            server.restart()
        deadline = time.monotonic() + min(REVIVE_SECONDS, self.settings.timeout_seconds)
        for place, url in enumerate(self.urls):
            while not self._healthy(url):
                if time.monotonic() > deadline:
                    raise EngineLost(f"{url} did not come back")
                time.sleep(0.5)
            if self.models[place].startswith("student-"):
                self.models[place] = self._model(url)

    def close(self) -> None:
        """What is still queued is not asked for any more."""
        self.closed = True
        for server in self.own:
            server.stop()

    def _healthy(self, url: str) -> bool:
        try:
            self._get(url, "/health")
        except (EngineLost, NotThere):
            return False
        return True

    def _get(self, url: str, path: str) -> Any:
        return _request(url + path, None, min(10.0, self.settings.timeout_seconds))

    def _post(self, url: str, path: str, body: dict[str, Any]) -> Any:
        return _request(url + path, body, self.settings.timeout_seconds)


class Server:
    """A vLLM server that ends with this process, together with everything it started."""

    def __init__(
        self,
        directory: Path,
        settings: EngineSettings,
        *,
        name: str,
        log: Path,
        dtype: str = "auto",
        rank: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        require_vllm()
        self.host, self.port = host, port or _free_port(host)
        self.settings, self.name, self.log = settings, name, log
        self.command = _command(directory, settings, name, dtype, rank, host, self.port)
        self.process: Any = None

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{host}:{self.port}"

    def start(self, on_wait: Callable[[float], None] | None = None) -> None:
        """Returns when it answers; says what its log says when it doesn't."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = child_process.spawn(self.command, log, _environment())
        started = time.monotonic()
        while not self.answers():
            waited = time.monotonic() - started
            if self.process.poll() is not None or waited > self.settings.start_seconds:
                self.stop()
                raise RecoverError(f"vLLM did not start: {_last_words(self.log)}: its log is {self.log}")
            if on_wait:
                on_wait(waited)
            time.sleep(0.5)

    def answers(self) -> bool:
        try:
            _request(self.url + "/health", None, 5.0)
        except (EngineLost, NotThere):
            return False
        return True

    def wait(self) -> None:
        """Until it ends by itself, which a server should not."""
        code = self.process.wait()
        raise RecoverError(f"vLLM ended (exit code {code}): {_last_words(self.log)}: its log is {self.log}")

    def restart(self) -> None:
        self.stop()
        self.start()

    def stop(self) -> None:
        if self.process is not None:
            child_process.end(self.process)


def _command(
    directory: Path, settings: EngineSettings, name: str, dtype: str, rank: int, host: str, port: int
) -> list[str]:
    """vLLM's own command line; the switches of exactness are not the user's to change."""
    import torch

    options = {
        "model": directory,
        "host": host,
        "port": port,
        "served-model-name": name,
        "dtype": dtype,
        "seed": 0,
        "logprobs-mode": "processed_logprobs",
        "generation-config": "vllm",
        "max-logprobs": MAX_ENTRIES,
        "worker-extension-cls": "recovery.engines.vllm_local.TakesWeights",
    }
    if settings.max_length:
        options["max-model-len"] = settings.max_length
    if rank:
        options |= {"max-lora-rank": lora_rank(rank), "max-loras": 1}
    if torch.cuda.is_available():
        options["gpu-memory-utilization"] = settings.gpu_memory
    else:
        options["kv-cache-memory-bytes"] = int(settings.cpu_cache_gib * 2**30)
    flags = ["--enforce-eager"] * settings.eager
    if not torch.cuda.is_available():
        flags.append("--no-enable-chunked-prefill")  # as in this process: see vllm_engine.py
    if rank:
        flags += ["--enable-lora", "--lora-target-modules", *lora_targets(directory)]
    named = [f"--{option}={value}" for option, value in options.items()]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *named, *flags]


def _environment() -> dict[str, str]:
    """The endpoints that take weights exist only in vLLM's development mode."""
    package = str(Path(__file__).resolve().parents[2])
    found = {**QUIET, "VLLM_LOGGING_LEVEL": "INFO", **os.environ}
    found |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):  # a trainer's, not its
        found.pop(name, None)
    return found


def _request(url: str, body: dict[str, Any] | None, seconds: float) -> Any:
    """JSON there and back. No answer, or one that something broke: EngineLost; a refusal: RecoverError."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("VLLM_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    try:
        with _direct.open(request, timeout=seconds) as answer:
            raw = answer.read()
        return json.loads(raw) if raw.strip().startswith((b"{", b"[")) else None
    except urllib.error.HTTPError as error:
        said = " ".join(error.read().decode(errors="replace").split())[:300]
        if error.code == 404:
            raise NotThere(f"{url}: not there: {said}") from error
        if error.code >= 500:
            raise EngineLost(f"it failed (HTTP {error.code}: {said})") from error
        raise RecoverError(f"{url}: refused (HTTP {error.code}): {said}") from error
    except TimeoutError as error:
        raise EngineLost(f"no answer within {seconds:g} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise EngineLost(f"no answer within {seconds:g} s") from error
        raise EngineLost(f"no answer ({type(error).__name__}: {reason})") from error


def _entries(prompt_logprobs: Any) -> list[dict[int, Entry] | None]:
    return [
        None if at is None else {int(token): Entry(e["logprob"], e["rank"]) for token, e in at.items()}
        for at in prompt_logprobs
    ]


def _free_port(host: str) -> int:
    with socket.socket() as one:
        one.bind((host, 0))
        return int(one.getsockname()[1])


def _last_words(log: Path) -> str:
    """The end of a log in one line, errors first."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return " | ".join((errors or lines)[-LOG_LINES:])[-400:] or "it said nothing"
