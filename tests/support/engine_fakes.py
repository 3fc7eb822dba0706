"""An engine without vLLM: a tiny model of its own behind the Engine protocol, or behind vLLM's HTTP paths.

It does everything right until it is told to die, to hang, or to forget what it was given.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from recovery.batches.rollouts import Rollouts
from recovery.engines.canary import CANARY_TOKENS
from recovery.engines.protocol import OnProgress, SampledAnswer, TokenScore
from recovery.engines.vllm_local import _tensors_in
from recovery.errors import EngineLost, InputError
from recovery.forward.hidden_states import unwrap
from recovery.models.chat_model import ChatModel
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.teachers import CheckpointTeacher
from tests.support.present import present


class TinyEngine:
    """`fault` is what goes wrong from now on; restarting mends it unless it is `forever`."""

    name = "tiny engine"
    lengths: Sequence[int | None] = ()

    def __init__(self, origin: ChatModel, fault: str = "", *, forever: bool = False) -> None:
        self.chat_model = copy.copy(origin)
        self.chat_model.model = copy.deepcopy(origin.model)
        self.initial = copy.deepcopy(origin.model.state_dict())
        self.fault = fault
        self.forever = forever
        self.restarts = 0
        self.given = self.before = self.initial

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        stop_ids: Sequence[int],
        on_progress: OnProgress | None = None,
    ) -> list[SampledAnswer]:
        if self.fault == "dies":
            raise EngineLost("connection refused")
        self.chat_model.stop_ids = tuple(stop_ids)
        found = InProcessSampler(self.chat_model).sample(prompts, params)
        rows = zip(found.responses(), found.logprobs_BT, found.mask_BT, strict=True)
        return [SampledAnswer(answer, logprobs[mask].tolist()) for answer, logprobs, mask in rows]

    def score(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], k: int
    ) -> list[list[TokenScore]]:
        rows = [
            (tokens, [i >= start for i in range(len(tokens))])
            for tokens, start in zip(sequences, starts, strict=True)
        ]
        rollouts = Rollouts.from_dialogues(rows, self.chat_model.pad_id)
        scores = CheckpointTeacher(self.chat_model, "topk", max(k, 1)).score(rollouts)
        found: list[list[TokenScore]] = [[] for _ in sequences]
        columns = (scores.sampled_logprobs_N, scores.ids_NK, scores.logprobs_NK)
        lists = [present(column).tolist() for column in columns]
        for row, own, ids, top in zip(rollouts.rows_N.tolist(), *lists, strict=True):
            found[row].append(TokenScore(own, ids[:k], top[:k]))
        return found

    def update_weights(self, student: ChatModel) -> None:
        self.load({name: tensor.detach().clone() for name, tensor in student.model.state_dict().items()})

    def load(self, tensors: dict[str, Any]) -> None:
        if any(not torch.equal(tensor, self.given[name]) for name, tensor in tensors.items()):
            self.before, self.given = self.given, tensors
        if self.fault == "forgets":  # says yes and does nothing
            return
        if self.fault == "falls back":  # to what it was started with
            tensors = self.initial
        if self.fault == "is late":  # holds the weights of the update before
            tensors = self.before
        if self.fault == "loses a layer":
            tensors = {name: tensor for name, tensor in tensors.items() if "layers.1.mlp" not in name}
        self.chat_model.model.load_state_dict(tensors, strict=False)

    def restart(self) -> None:
        self.restarts += 1
        if not self.forever:
            self.fault = ""
        self.chat_model.model.load_state_dict(self.initial)

    def close(self) -> None:
        pass


class FakeServer(ThreadingHTTPServer):
    """vLLM's paths over a TinyEngine.

    `fault`: hangs, fails, loses a row, retokenises, takes no weights, stops in the middle, lost its model,
    sees another disk, keeps its prefixes, wants a key, lets only /v1 through: STATUS (of a proxy, for other
    paths).
    """

    daemon_threads = True
    lock = threading.Lock()  # of all servers: in one process, models compute one after the other
    request_queue_size = 256  # of five, the default, a busy machine refuses some of many who ask at once

    def __init__(self, engine: TinyEngine, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.engine, self.fault = engine, ""
        self.pause = 0.0  # seconds before each part of a streamed answer
        self.name = "tiny"  # of the model
        self.length: int | None = None  # tokens of prompt and answer; a server refuses to be asked for more
        self.served: list[dict[str, Any]] = []
        self.updates: list[str] = []  # the folders from which it took weights
        self.running = 0  # requests of others, which hold keys and values

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore it: the client has stopped waiting."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def _refused(self, path: str) -> tuple[int, Any] | None:
        """Return how the server fails, or what stands before it refuses a path; None if neither does."""
        if self.fault == "fails":
            return 500, {"error": "EngineCore encountered an issue"}
        if self.fault == "wants a key":
            return 401, {"error": "Unauthorized"}
        before, _, status = self.fault.partition(": ")
        if before == "lets only /v1 through" and not path.startswith("/v1/"):
            return int(status), {"error": "no route"}
        return None

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if self.fault == "hangs":
            time.sleep(30)
        if refused := self._refused(path):
            return refused
        if path == "/v1/models":
            said = {} if self.length is None else {"max_model_len": self.length}
            return 200, {"data": [{"id": self.name, **said}]}
        if path == "/v1/completions" and self.fault == "loses a row" and not _of_canary(body):
            self.fault = ""
            return 500, {"error": "once"}
        if path == "/v1/completions" and self.fault == "lost its model":
            return 404, {"error": f"The model `{body['model']}` does not exist."}
        if path == "/v1/completions" and self.length and _tokens(body) > self.length:
            return 400, {"error": f"This model's maximum context length is {self.length} tokens"}
        if path == "/v1/completions":
            with self.lock:
                return 200, {"choices": [self.complete(body)]}
        if path == "/collective_rpc":
            return self.command(body)
        if path == "/v1/load_lora_adapter" and self.fault == "sees another disk":
            return 404, {"error": f"Loading lora failed: No adapter found for {body['lora_path']}"}
        return (200, {}) if path == "/health" else self.reset(path)

    def reset(self, path: str) -> tuple[int, Any]:
        """As vLLM: it resets nothing while requests run, unless it may preempt them."""
        if not path.startswith("/reset_prefix_cache"):
            return 404, {"detail": "Not Found"}
        held = self.running and not path.endswith("?reset_running_requests=true")
        return 200, {"success": not held and self.fault != "keeps its prefixes"}

    def command(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.fault == "takes no weights":
            return 404, {"detail": "Not Found"}
        if self.fault == "answers something else":
            return 200, {}
        if self.fault == "keeps its commands to itself":
            return 403, {"error": "a proxy lets only /v1 through"}
        try:
            return 200, {"results": [self.called(body)]}
        except InputError as error:
            return 500, {"error": str(error)}

    def called(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """Return what a method of the worker extension returns."""
        if body["method"] == "weights_state":
            return {"overwritten": bool(self.updates)}
        self.updates.append(body["kwargs"]["directory"])
        folder = "elsewhere" if self.fault == "sees another disk" else ""
        self.engine.load(dict(_tensors_in(Path(self.updates[-1], folder))))
        return None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the requests for answers, without those of the canary."""
        return [body for body in self.served if not _of_canary(body)]

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.served.append(body)
        prompt = body["prompt"]
        echo = prompt[:-1] if self.fault == "retokenises" else prompt
        if "prompt_logprobs" in body:
            (scores,) = self.engine.score([prompt], [1], body["prompt_logprobs"])
            return {
                "prompt_token_ids": echo,
                "prompt_logprobs": [None, *map(_prompt_logprob, scores, prompt[1:])],
            }
        params = SamplingParams(body["max_tokens"], body["temperature"], body["seed"])
        (sampled,) = self.engine.sample([prompt], params, body["stop_token_ids"])
        logprobs = {"token_logprobs": sampled.logprobs}
        answer = {"token_ids": sampled.tokens, "logprobs": logprobs, "finish_reason": "stop"}
        return {"prompt_token_ids": echo, **answer}


def _tokens(body: dict[str, Any]) -> int:
    return len(body["prompt"]) + int(body["max_tokens"])


def _of_canary(body: dict[str, Any]) -> bool:
    return body["max_tokens"] in (1, CANARY_TOKENS)


def _prompt_logprob(score: TokenScore, token: int) -> dict[str, Any]:
    """As vLLM sends them: the token itself first, then the likeliest with their ranks."""
    entries = {str(token): {"logprob": score.logprob, "rank": len(score.ids) + 7}}
    for rank, (name, logprob) in enumerate(zip(score.ids, score.logprobs, strict=True), 1):
        entries[str(name)] = {"logprob": logprob, "rank": rank}
    return entries


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_GET(self) -> None:
        self.reply({})

    def reply(self, body: dict[str, Any]) -> None:
        code, answer = self.server.answer(self.path, body)
        if code == 200 and body.get("stream"):
            self.stream(answer["choices"][0])
            return
        raw = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def stream(self, choice: dict[str, Any]) -> None:
        """Send an answer three tokens at a time, with the pauses and the end that the fault asks for."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        parts = list(_parts(choice))
        if self.server.fault == "stops in the middle":
            parts = parts[:1]
        for part in parts:
            time.sleep(self.server.pause)
            self.wfile.write(f"data: {json.dumps({'choices': [part]})}\n\n".encode())
            self.wfile.flush()
        if self.server.fault != "stops in the middle":
            self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *args: Any) -> None:
        pass


def _parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """As vLLM sends them: the prompt's ids with the first part, the reason to end with the last."""
    tokens = choice["token_ids"]
    logprobs = choice["logprobs"]["token_logprobs"]
    starts = range(0, len(tokens), 3)
    for start in starts:
        end = start + 3
        yield {
            "prompt_token_ids": None if start else choice["prompt_token_ids"],
            "token_ids": tokens[start:end],
            "logprobs": {"token_logprobs": logprobs[start:end]},
            "finish_reason": choice["finish_reason"] if start == starts[-1] else None,
        }


@contextmanager
def serving(engine: TinyEngine, port: int = 0) -> Iterator[FakeServer]:
    server = FakeServer(engine, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def step(student: ChatModel, size: float) -> None:
    """Something like an optimizer step."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in unwrap(student.model).parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * size)
