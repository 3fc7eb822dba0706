"""Start, authenticate and stop a vLLM server process."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recovery.engines import child_process
from recovery.engines.json_client import JsonClient, NotFound, Refused
from recovery.engines.key_guard import KEY_VARIABLE, NONCE, PROOF, proof
from recovery.engines.protocol import EngineSettings
from recovery.engines.vllm_local import QUIET, require_vllm, run_options, to_start
from recovery.engines.vllm_lora import lora_targets
from recovery.errors import EngineLost, RecoverError
from recovery.loopback import LOOPBACK, in_url
from recovery.printable import one_line

HEALTH_SECONDS = 5.0
LOG_LINES = 3
STREAM_TOKENS = 32  # of an answer, sent at once: one by one they would keep the client busier than the GPU
# The trainer's own process group: by these a server would wait for the store of torchrun, which is not its.
TRAINER_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TORCHRUN_PREFIXES = ("TORCHELASTIC_", "GROUP_", "ROLE_")


class Server:
    """A vLLM server that ends with this process, together with its children."""

    def __init__(  # noqa: PLR0913 - what a server is started with
        self,
        directory: Path,
        settings: EngineSettings,
        *,
        name: str,
        log: Path,
        dtype: str = "auto",
        rank: int = 0,
        address: tuple[str, int] = (LOOPBACK[0], 0),
        key: str | None = None,
    ) -> None:
        """Build the command. `address`: host and port (0: a free one). `key`: default random, "" for none."""
        require_vllm()
        self.host, self.port = address
        self.port = self.port or _free_port(self.host)
        self.key = key if key is not None else secrets.token_hex(32)
        self.settings = settings
        self.name = name
        self.log = log
        self.log_start = 0  # what lies before was written by earlier servers
        self.command = _command(directory, settings, name, dtype, rank, self.host, self.port)
        self.process: Any = None
        self.client = JsonClient(1)

    @property
    def url(self) -> str:
        host = LOOPBACK[0] if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{in_url(host)}:{self.port}"

    def start(self, on_wait: Callable[[float], None] | None = None) -> None:
        """Start the server and block until it answers; raise RecoverError with its last log lines if not."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.log_start = log.tell()
            self.process = child_process.spawn(
                self.command, log, _environment(self.key, self.settings.devices)
            )
        started = time.monotonic()
        while not self.answers():
            waited = time.monotonic() - started
            if self.process.poll() is not None or waited > self.settings.start_seconds:
                self.stop()
                said = self._log_tail()
                raise RecoverError(f"vLLM did not start: {said}: {to_start(said)}; its log is {self.log}")
            if on_wait:
                on_wait(waited)
            time.sleep(0.5)

    def answers(self) -> bool:
        """Return whether the server is ready; raise RecoverError if another process answers on its port."""
        try:
            if self.key and not self._proves_itself():
                raise RecoverError(f"another process answers at {self.url}: end it, or give another --port")
            self.client.get(self.url + "/health", HEALTH_SECONDS, self.key)
        except (EngineLost, NotFound):
            return False
        return True

    def _proves_itself(self) -> bool:
        nonce = secrets.token_hex(16)
        try:
            response = self.client.get(self.url + "/health", HEALTH_SECONDS, **{NONCE: nonce})
        except (NotFound, Refused):
            return False
        return hmac.compare_digest(response.headers.get(PROOF, ""), proof(self.key, nonce))

    def wait(self) -> None:
        """Block until the server exits, then raise RecoverError: it should not exit by itself."""
        code = self.process.wait()
        raise RecoverError(f"vLLM ended (exit code {code}): {self._log_tail()}: its log is {self.log}")

    def _log_tail(self) -> str:
        """Return the last lines that this server wrote as one printable line: those with errors, if any."""
        with self.log.open("rb") as log:
            log.seek(self.log_start)
            text = log.read().decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return one_line(" | ".join((errors or lines)[-LOG_LINES:])[-400:], 400) or "its log is empty"

    def restart(self) -> None:
        self.stop()
        self.client = JsonClient(1)
        self.start()

    def stop(self) -> None:
        """End the server, and close what is connected to it."""
        if self.process is not None:
            child_process.end(self.process)
        self.client.close()


def _command(
    directory: Path, settings: EngineSettings, name: str, dtype: str, rank: int, host: str, port: int
) -> list[str]:
    """Return vLLM's command line; options that override the user's come last."""
    options = run_options(directory, settings, dtype, rank) | {
        "host": host,
        "port": port,
        "served-model-name": name,
        "middleware": "recovery.engines.key_guard.KeyGuard",
    }
    if settings.trust_remote_code:
        options["trust-remote-code"] = True
    users = {"stream-interval": STREAM_TOKENS, **settings.arguments}
    named = [_argument(option, value) for option, value in [*users.items(), *options.items()]]
    if rank:
        named += ["--lora-target-modules", *lora_targets(directory, settings.trust_remote_code)]
    return [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server", *named]


def _argument(name: str, value: bool | str | int | float) -> str:
    """Return an argument as vLLM reads it: a flag has no value, and `no-` before it switches it off."""
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


def _environment(key: str, devices: str | None) -> dict[str, str]:
    """Return the server's environment, in vLLM's development mode: only there it accepts new weights."""
    package = str(Path(__file__).resolve().parents[2])
    found = {**QUIET, "VLLM_LOGGING_LEVEL": "INFO", **os.environ}
    found |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "PYTHONSAFEPATH": "1"}
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    found[KEY_VARIABLE] = key
    if devices is not None:
        found["CUDA_VISIBLE_DEVICES"] = devices
    return {name: value for name, value in found.items() if not _is_trainers(name)}


def _is_trainers(name: str) -> bool:
    return name in TRAINER_VARIABLES or name.startswith(TORCHRUN_PREFIXES)


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as one:
        one.bind((host, 0))
        return int(one.getsockname()[1])
