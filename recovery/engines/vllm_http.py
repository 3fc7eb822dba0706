"""Sample and score on vLLM servers over HTTP, in token ids.

Uses the OpenAI completions protocol with vLLM's extensions (return_token_ids, prompt_logprobs). Weights are
exchanged through a folder that client and servers share.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from recovery import distributed
from recovery.engines.background import at_once
from recovery.engines.json_client import JsonClient, NotFound, Refused, ServerFailed, parsed
from recovery.engines.key_guard import KEY_VARIABLE
from recovery.engines.protocol import EngineSettings, OnProgress, SampledAnswer, TokenScore
from recovery.engines.vllm_answers import choice_of, joined, prompt_logprobs, sampled_answer
from recovery.engines.vllm_local import NO_WEIGHTS, scores_of_answer
from recovery.engines.vllm_requests import about_key, room_behind, sampling_request, scoring_request
from recovery.errors import EngineLost, InputError, RecoverError
from recovery.forward.hidden_states import is_adapter, unwrap
from recovery.models.hub import quiet
from recovery.models.saving import save
from recovery.storage import atomic_dirs

if TYPE_CHECKING:
    from recovery.engines.vllm_server import Server
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import SamplingParams

T = TypeVar("T")
Read = Callable[[int, dict[str, Any]], T]
"""Map a row's number and the choice of its completion to what is kept of them."""

COMPLETIONS = "/v1/completions"
RESET_CACHE = "/reset_prefix_cache?reset_running_requests=true"
MOST_REQUESTS = 256  # requests in flight to one server, of all processes that ask it
OUT_OF_REACH = (401, 403, 405, 501)  # what a proxy answers that lets only /v1 through
UNSEEN = ("No adapter found", NO_WEIGHTS)  # vLLM and its worker say so of a folder that they do not see
SENT = "recover-student-"  # before the name of a folder of weights
RESTART_SECONDS = 60.0  # longest wait for an external server to come back


class ServerEngine:
    """One or several vLLM servers with the same model, which share the rows evenly.

    `servers` are those that this process started: they are restarted and stopped with the engine. `keys` are
    the API keys by URL; other servers get the key of the environment.
    """

    def __init__(
        self,
        urls: Sequence[str],
        settings: EngineSettings,
        servers: Sequence[Server] = (),
        keys: Mapping[str, str] | None = None,
        processes: int = 1,
    ) -> None:
        """Connect to servers that so many `processes` ask at the same time."""
        self.urls = [url.rstrip("/").removesuffix("/v1") for url in urls]
        self.name = f"vLLM at {', '.join(self.urls)}"
        self.settings = settings
        self.servers = list(servers)
        self.keys = dict(keys or {})
        self.most_requests = max(1, MOST_REQUESTS // processes) * len(self.urls)
        self.client = JsonClient(self.most_requests, queues=True)
        described = [self._described(url) for url in self.urls]
        self.models = [model for model, _ in described]
        self.lengths = [length for _, length in described]  # tokens of prompt and answer; None: it says none
        self.version = 0  # of the weights that the servers hold
        self.closed = False
        self._adapter: ExitStack[bool | None] = ExitStack()  # the folder of the adapter that the servers hold
        self._token = secrets.token_hex(3)  # makes this run's adapter names unique on a shared server

    def _described(self, url: str) -> tuple[str, int | None]:
        """Return the name of a server's model, and how many tokens of prompt and answer it reads."""
        try:
            entry = self._get(url, "/v1/models")["data"][0]
            model, length = str(entry["id"]), entry.get("max_model_len")
        except Refused as error:
            raise InputError(f"{error}{about_key(error.status)}") from error
        except (EngineLost, NotFound, KeyError, IndexError, TypeError) as error:
            raise InputError(
                f"{url}: no vLLM server answers there ({error}): start one with `recover serve CHECKPOINT`"
            ) from error
        return model, length if type(length) is int and length > 0 else None

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        stop_ids: Sequence[int],
        on_progress: OnProgress | None = None,
    ) -> list[SampledAnswer]:
        bodies = [
            sampling_request(prompt, row, room_behind(prompt, params, self.lengths), params, stop_ids)
            for row, prompt in enumerate(prompts, params.first)
        ]
        return self._complete(
            bodies,
            lambda _, choice: sampled_answer(choice),
            on_progress,
            first=params.first,
            stop_loops=params.stop_loops,
        )

    def score(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], k: int
    ) -> list[list[TokenScore]]:
        bodies = [scoring_request(tokens, k) for tokens in sequences]

        def read(row: int, choice: dict[str, Any]) -> list[TokenScore]:
            tokens = sequences[row]
            start = starts[row]
            return scores_of_answer(prompt_logprobs(choice, tokens, start, k), tokens[start:], 0, k)

        return self._complete(bodies, read, None, first=distributed.rank())

    def _complete(
        self,
        bodies: list[dict[str, Any]],
        read: Read[T],
        on_progress: OnProgress | None,
        *,
        first: int = 0,
        stop_loops: bool = False,
    ) -> list[T]:
        """Send one request per row, each with its seed, spread evenly over the servers; each answer is read
        as it comes, as the JSON of all of them may be larger than the host's memory. `first` is the place of
        the first row among those of all processes: each would begin with the first server.

        Where one fails or the run is asked to end, the others are given up: their answers are not read on.
        """
        answers: list[Any] = [None] * len(bodies)
        given_up = Event()
        with ThreadPoolExecutor(min(len(bodies), self.most_requests)) as pool:
            rows = {
                pool.submit(self._complete_row, row, first, body, read, stop_loops, given_up): row
                for row, body in enumerate(bodies)
            }
            try:
                for done, future in enumerate(as_completed(rows), 1):
                    answers[rows[future]] = future.result()
                    if on_progress:
                        on_progress(done, len(bodies))
            except BaseException:
                given_up.set()
                pool.shutdown(wait=False, cancel_futures=True)  # leaving the block waits for those being read
                raise
        return answers

    def _complete_row(
        self, row: int, first: int, body: dict[str, Any], read: Read[T], stop_loops: bool, given_up: Event
    ) -> T:
        self._require_open()
        place = (first + row) % len(self.urls)
        url = self.urls[place]
        request = {**body, "model": self.models[place]}
        try:
            if "stream" in body:
                choice = self._streamed(url, request, stop_loops, given_up)
            else:
                choice = choice_of(self._post(url, request))
        except NotFound as error:  # it was started again: it knows no adapter, or serves another checkpoint
            raise EngineLost(f"it no longer has the model {self.models[place]} ({error})") from error
        except Refused as error:
            raise RecoverError(f"{error}{about_key(error.status)}") from error
        if choice.get("prompt_token_ids") != body["prompt"]:
            raise RecoverError(f"{url}: it changed or hides the prompt's token ids: take vLLM 0.32 or newer")
        return read(row, choice)

    def _streamed(self, url: str, body: dict[str, Any], stop_loops: bool, given_up: Event) -> dict[str, Any]:
        """Return the choice of a streamed completion, joined from its parts; stop reading one that loops."""
        seconds = self.settings.timeout_seconds
        with closing(self.client.stream(url + COMPLETIONS, body, seconds, self._key(url))) as events:
            return joined(self._until(given_up, events), stop_loops)

    def _until(self, given_up: Event, events: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for event in events:
            self._require_open()
            if given_up.is_set():
                raise EngineLost("its answer was given up, as another one was lost")
            yield choice_of(event)

    def update_weights(self, student: ChatModel) -> None:
        """Send the adapter to its endpoint, or all weights to the worker extension of `recover serve`.

        An adapter's files stay until the next one is loaded: vLLM reads them again after other clients' own.
        """
        self.version += 1
        root = Path(self.settings.exchange or tempfile.gettempdir())
        unused: ExitStack[bool | None] = ExitStack()
        try:
            folder = unused.enter_context(atomic_dirs.new_directory(root, SENT, lockless=True))
            folder.chmod(0o700)
            if is_adapter(student.model):
                save(student, folder)
                at_once(partial(self._load_adapter, str(folder)), range(len(self.urls)))
                unused, self._adapter = self._adapter, unused
                return
            with quiet():
                weights = None if student.weights is None else dict(student.weights)
                unwrap(student.model).save_pretrained(folder, state_dict=weights)
            request = {"method": "load_student_weights", "kwargs": {"directory": str(folder)}}
            at_once(partial(self._update, path="/collective_rpc", body=request), self.urls)
            at_once(self._forget_prefixes, self.urls)
        finally:
            unused.close()

    def _load_adapter(self, folder: str, place: int) -> None:
        """Load each version under a new name: vLLM can silently drop weights when it reloads in place."""
        name = self._adapter_name(self.version)
        before = self._adapter_name(self.version - 1)
        url = self.urls[place]
        self._update(url, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})
        if self.models[place] == before:
            with suppress(NotFound):  # a restarted server no longer has it
                self._command(url, "/v1/unload_lora_adapter", {"lora_name": before})
        self.models[place] = name

    def _forget_prefixes(self, url: str) -> None:
        """Drop the keys and values of the weights before; what others are being answered is read again.

        Without that, one running request keeps them all, and vLLM says so with HTTP 200.
        """
        if parsed(url, self._update(url, RESET_CACHE, {})) not in (None, {"success": True}):
            raise EngineLost(f"{url}: its prefix cache could not be reset")

    def _adapter_name(self, version: int) -> str:
        return f"student-{self._token}-{version}"

    def _update(self, url: str, path: str, body: dict[str, Any]) -> bytes:
        """POST a weight update; raise InputError if the server has no such endpoint or folder."""
        try:
            return self._command(url, path, body)
        except (NotFound, Refused, ServerFailed) as error:
            if any(words in str(error) for words in UNSEEN):
                raise InputError(
                    f"{url}: it does not see the folder with the weights: set engine.exchange to one that "
                    "trainer and servers share"
                ) from error
            if not isinstance(error, NotFound) and error.status not in OUT_OF_REACH:
                raise
            raise InputError(
                f"{url}: this server takes no weights (no {path} at this address): start it with "
                "`recover serve CHECKPOINT` (for an adapter with --lora RANK), and give its own address, not "
                f"a proxy's{'' if isinstance(error, NotFound) else about_key(error.status)}"
            ) from error

    def require_own_weights(self) -> None:
        """Raise InputError for a server that was sent weights: it serves them under its own model's name.

        A server without the endpoint takes none.
        """
        for url, model in zip(self.urls, self.models, strict=True):
            with suppress(NotFound):
                if self._overwritten(url):
                    raise InputError(
                        f"{url}: it was sent other weights since it was started with {model}: start it again "
                        "(`recover serve CHECKPOINT`)"
                    )

    def _overwritten(self, url: str) -> bool:
        """Return whether a server was sent weights since it was started."""
        seconds, request = self.settings.timeout_seconds, {"method": "weights_state"}
        try:
            answer = self.client.post(url + "/collective_rpc", request, seconds, self._key(url))
            return any(worker["overwritten"] for worker in answer["results"])
        except (Refused, ServerFailed, KeyError, TypeError) as error:
            if isinstance(error, Refused | ServerFailed) and error.status in OUT_OF_REACH:
                return False
            if isinstance(error, ServerFailed):
                raise
            raise InputError(
                f"{url}: it does not say whether it was sent weights ({error}): start it with "
                "`recover serve CHECKPOINT`"
            ) from error

    def restart(self) -> None:
        """Restart the servers started by this process; wait up to RESTART_SECONDS for external ones.

        A closed engine stays closed: its servers are not started again, and none is waited for.
        """
        self._require_open()
        for server in self.servers:
            server.restart()
        deadline = time.monotonic() + min(RESTART_SECONDS, self.settings.timeout_seconds)
        for place, url in enumerate(self.urls):
            while not self._healthy(url):
                if time.monotonic() > deadline:
                    raise EngineLost(f"{url} did not come back")
                time.sleep(0.5)
                self._require_open()
            model, self.lengths[place] = self._described(url)
            if self.models[place].startswith("student-"):
                self.models[place] = model

    def close(self) -> None:
        """Cancel queued requests, stop the servers started by this process, close the connections."""
        self.closed = True
        for server in self.servers:
            server.stop()
        self.client.close()
        self._adapter.close()

    def _require_open(self) -> None:
        if self.closed:
            raise EngineLost("it was closed")

    def _healthy(self, url: str) -> bool:
        """Return whether a server is ready; behind a proxy that lets only /v1 through, whether it answers."""
        try:
            try:
                self._fetch(url, "/health")
            except (NotFound, Refused, ServerFailed) as error:
                if isinstance(error, ServerFailed) and error.status not in OUT_OF_REACH:
                    return False
                self._get(url, "/v1/models")
        except (EngineLost, NotFound):
            return False
        return True

    def _key(self, url: str) -> str | None:
        return self.keys.get(url) or os.environ.get(KEY_VARIABLE)

    def _get(self, url: str, path: str) -> Any:
        return parsed(url, self._fetch(url, path))

    def _fetch(self, url: str, path: str) -> bytes:
        seconds = min(10.0, self.settings.timeout_seconds)
        return self.client.get(url + path, seconds, self._key(url)).content

    def _post(self, url: str, body: dict[str, Any]) -> Any:
        return self.client.post(url + COMPLETIONS, body, self.settings.timeout_seconds, self._key(url))

    def _command(self, url: str, path: str, body: dict[str, Any]) -> bytes:
        return self.client.command(url + path, body, self.settings.timeout_seconds, self._key(url))
