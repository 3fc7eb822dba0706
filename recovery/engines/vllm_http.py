"""Sample and score on vLLM servers over HTTP, in token ids.

Uses the OpenAI completions protocol with vLLM's extensions (return_token_ids, prompt_logprobs). Weights are
exchanged through a folder that client and servers share.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recovery.distributed import world
from recovery.engines.json_client import MOST_SAID, JsonClient, NotThere, parsed
from recovery.engines.key_guard import KEY_VARIABLE
from recovery.engines.protocol import EngineSettings, OnProgress, SampledAnswer, TokenScore
from recovery.engines.vllm_local import scores_of_answer
from recovery.errors import EngineLost, InputError, RecoverError
from recovery.models.hub import quiet
from recovery.models.loading import is_adapter, save, unwrap
from recovery.printable import one_line
from recovery.sampling.loops import loop_end
from recovery.seeds import step_seed

if TYPE_CHECKING:
    from recovery.engines.vllm_server import Server
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import SamplingParams

COMPLETIONS = "/v1/completions"
AT_ONCE = 256  # requests in flight to one server, of all processes
REVIVE_SECONDS = 60.0  # longest wait for an external server to come back


class LogprobEntry(NamedTuple):
    logprob: float
    rank: int


class ServerEngine:
    """One or several vLLM servers with the same model, which share the rows evenly.

    `own` lists the servers that this process started for the engine, each with a key of its own; `keys`
    are those of servers that another process started, by URL.
    """

    def __init__(
        self,
        urls: Sequence[str],
        settings: EngineSettings,
        own: Sequence[Server] = (),
        keys: Mapping[str, str] | None = None,
    ) -> None:
        self.urls = [url.rstrip("/").removesuffix("/v1") for url in urls]
        self.settings, self.own, self.name = settings, list(own), f"vLLM at {', '.join(self.urls)}"
        self.keys = {server.url: server.key for server in own} | dict(keys or {})
        self.at_once = max(1, AT_ONCE // world()) * len(self.urls)
        self.client = JsonClient(self.at_once)
        self.models = [self._model(url) for url in self.urls]
        self.state, self.closed = 0, False
        self._token = secrets.token_hex(3)  # makes this run's adapter names unique on a shared server

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
    ) -> list[SampledAnswer]:
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
                "stream": True,
            }
            for row, prompt in enumerate(prompts, params.first)
        ]
        choices = self._complete(bodies, on_progress, stop_loops=params.stop_loops)
        return [_written(choice) for choice in choices]

    def read(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], k: int
    ) -> list[list[TokenScore]]:
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
        return [scores_of_answer(_entries(one, tokens, k), tokens, start, k) for one, tokens, start in rows]

    def _complete(
        self, bodies: list[dict[str, Any]], on_progress: OnProgress | None, *, stop_loops: bool = False
    ) -> list[Any]:
        """Send one request per row, each with its seed, spread evenly over the servers."""
        choices: list[Any] = [None] * len(bodies)
        with ThreadPoolExecutor(min(len(bodies), self.at_once)) as pool:
            asked = {pool.submit(self._one, row, body, stop_loops): row for row, body in enumerate(bodies)}
            try:
                for done, future in enumerate(as_completed(asked), 1):
                    choices[asked[future]] = future.result()
                    if on_progress:
                        on_progress(done, len(bodies))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return choices

    def _one(self, row: int, body: dict[str, Any], stop_loops: bool) -> Any:
        if self.closed:
            raise EngineLost("it was closed")
        place = row % len(self.urls)
        url, body = self.urls[place], {**body, "model": self.models[place]}
        streams = "stream" in body
        choice = self._streamed(url, body, stop_loops) if streams else _choice(self._post(url, body))
        if choice.get("prompt_token_ids") != body["prompt"]:
            raise RecoverError(f"{url}: it changed or hides the prompt's token ids: take vLLM 0.32 or newer")
        return choice

    def _streamed(self, url: str, body: dict[str, Any], stop_loops: bool) -> dict[str, Any]:
        """Return the choice of a streamed completion, joined from its parts; leave one that is a loop."""
        seconds = self.settings.timeout_seconds
        with closing(self.client.stream(url + COMPLETIONS, body, seconds, self._key(url))) as events:
            return joined(self._until_closed(events), stop_loops)

    def _until_closed(self, events: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for event in events:
            if self.closed:
                raise EngineLost("it was closed")
            yield _choice(event)

    def take(self, student: ChatModel) -> None:
        """Send the adapter to its endpoint, or all weights to the worker extension of `recover serve`."""
        self.state += 1
        folder = Path(tempfile.mkdtemp(prefix="recover-weights-", dir=self.settings.exchange))
        try:
            if is_adapter(student.model):
                save(student, folder)
                self._take_adapter(str(folder))
                return
            with quiet():
                weights = None if student.weights is None else dict(student.weights)
                unwrap(student.model).save_pretrained(folder, state_dict=weights)
            for url in self.urls:
                request = {"method": "take_weights", "kwargs": {"directory": str(folder)}}
                self._order(url, "/collective_rpc", request)
                self._order(url, "/reset_prefix_cache", {})
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _take_adapter(self, folder: str) -> None:
        """Load each version under a new name: vLLM can silently drop weights when it reloads in place."""
        name, before = (f"student-{self._token}-{number}" for number in (self.state, self.state - 1))
        for place, url in enumerate(self.urls):
            self._order(url, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})
            if self.models[place] == before:
                with suppress(NotThere):  # a restarted server no longer has it
                    self._command(url, "/v1/unload_lora_adapter", {"lora_name": before})
            self.models[place] = name

    def _order(self, url: str, path: str, body: dict[str, Any]) -> None:
        try:
            self._command(url, path, body)
        except NotThere as error:
            raise InputError(
                f"{url}: this server takes no weights ({path} is not there): start it with "
                "`recover serve CHECKPOINT` (for an adapter with --lora RANK)"
            ) from error

    def revive(self) -> None:
        """Restart the servers started by this process; wait up to REVIVE_SECONDS for external ones."""
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
        """Cancel queued requests, stop the servers started by this process, close the connections."""
        self.closed = True
        for server in self.own:
            server.stop()
        self.client.close()

    def _healthy(self, url: str) -> bool:
        try:
            self._get(url, "/health")
        except (EngineLost, NotThere):
            return False
        return True

    def _key(self, url: str) -> str | None:
        return self.keys.get(url) or os.environ.get(KEY_VARIABLE)

    def _get(self, url: str, path: str) -> Any:
        seconds = min(10.0, self.settings.timeout_seconds)
        return parsed(url, self.client.get(url + path, seconds, self._key(url)).content)

    def _post(self, url: str, body: dict[str, Any]) -> Any:
        return self.client.post(url + COMPLETIONS, body, self.settings.timeout_seconds, self._key(url))

    def _command(self, url: str, path: str, body: dict[str, Any]) -> None:
        self.client.command(url + path, body, self.settings.timeout_seconds, self._key(url))


def joined(parts: Iterable[dict[str, Any]], stop_loops: bool = False) -> dict[str, Any]:
    """Join the parts of a choice: each holds the tokens since the last one, the first one the prompt's.

    With `stop_loops`, take no more parts once the tokens only repeat themselves.
    """
    whole: dict[str, Any] = {}
    tokens: list[Any] = []
    logprobs: list[Any] = []
    ended = None
    for part in parts:
        found = part.get("logprobs")
        whole = {**part, **whole}
        new = _list(part.get("token_ids"))
        tokens += new
        logprobs += _list(found.get("token_logprobs") if isinstance(found, dict) else None)
        ended = part.get("finish_reason")
        end = _loop_end(tokens, len(tokens) - len(new)) if stop_loops else None
        if end is not None:
            tokens, logprobs, ended = tokens[:end], logprobs[:end], "loop"
            break
    if ended in (None, "abort", "error"):
        raise EngineLost("it ended an answer early")
    return {**whole, "token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}


def _loop_end(tokens: list[Any], seen: int) -> int | None:
    return loop_end(tokens, seen) if all(map(_is_id, tokens[seen:])) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _choice(answer: Any) -> dict[str, Any]:
    """Return the single choice of a completion; raise EngineLost for any other response."""
    if isinstance(answer, dict) and "error" in answer:
        raise EngineLost(f"it failed: {one_line(answer['error'], MOST_SAID)}")
    try:
        choice = answer["choices"][0]
    except (KeyError, IndexError, TypeError) as error:
        raise EngineLost("its answer holds no completion") from error
    if not isinstance(choice, dict):
        raise EngineLost("its answer holds no completion")
    return choice


def _written(choice: dict[str, Any]) -> SampledAnswer:
    """Return the sampled tokens and their log-probabilities, validated."""
    logprobs = choice.get("logprobs")
    tokens = choice.get("token_ids")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not (isinstance(tokens, list) and isinstance(values, list) and len(tokens) == len(values) and tokens):
        raise EngineLost("its completion lacks token ids or log-probabilities")
    if not (all(map(_is_id, tokens)) and all(map(_is_logprob, values))):
        raise EngineLost("its completion holds invalid token ids or log-probabilities")
    return SampledAnswer(tokens, values)


def _entries(choice: dict[str, Any], tokens: Sequence[int], k: int) -> list[dict[int, LogprobEntry] | None]:
    """Return the log-probabilities of a prompt's tokens, validated: each has its own and the K best."""
    found = choice.get("prompt_logprobs")
    if not isinstance(found, list) or len(found) != len(tokens):
        raise EngineLost(f"it sends no log-probabilities for the {len(tokens)} tokens of the prompt")
    read = [_entries_at(at) for at in found[1:]]
    if not all(token in at and len(at) >= k for token, at in zip(tokens[1:], read, strict=True)):
        raise EngineLost(f"its log-probabilities lack a token of the prompt, or one of the {k} best")
    return [None, *read]


def _entries_at(at: Any) -> dict[int, LogprobEntry]:
    """Return the entries at one position by token id, validated."""
    try:
        entries = {int(token): LogprobEntry(float(e["logprob"]), int(e["rank"])) for token, e in at.items()}
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise EngineLost("it sends log-probabilities in another form than vLLM's") from error
    if not (all(map(_is_id, entries)) and all(_is_logprob(entry.logprob) for entry in entries.values())):
        raise EngineLost("it sends invalid token ids or log-probabilities")
    return entries


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_logprob(value: Any) -> bool:
    return type(value) in (int, float) and not math.isnan(value) and value <= 1e-3
