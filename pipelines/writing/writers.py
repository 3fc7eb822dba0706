"""Writers of new text: a checkpoint through the sampler, or any OpenAI-compatible endpoint."""

from __future__ import annotations

import os
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from recovery.engines.json_client import JsonClient, NotFound, Refused, authorization
from recovery.errors import EngineLost, InputError, RecoverError
from recovery.models.thinking import split_thinking

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

KEY_VARIABLE = "RECOVER_API_KEY"
TEMPORARY = {408, 409, 425, 429, 500, 502, 503, 504, 529}
LONGEST_PAUSE = 60.0
MOST_BYTES = 16 * 2**20  # of one answer


class Writer(Protocol):
    """`name` identifies the writer in a cache; `at_once` is a suitable number of requests per call.

    `together` says that a text depends on what else is requested in the same call.
    """

    name: str
    at_once: int
    together: bool

    def write(self, requests: Sequence[str]) -> Iterable[tuple[int, str]]:
        """Yield the place of each request with its text, as it is there."""


class LocalWriter:
    """A checkpoint in this process; the same requests together give the same texts."""

    together = True

    def __init__(
        self,
        chat_model: ChatModel,
        name: str,
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int = 0,
        at_once: int = 32,
    ) -> None:
        self.chat_model = chat_model
        self.at_once = at_once
        self.limit = max_new_tokens
        self.temperature = temperature
        self.seed = seed
        self.name = f"{name}:{max_new_tokens}:{temperature}:{seed}"

    def write(self, requests: Sequence[str]) -> Iterable[tuple[int, str]]:
        from recovery.sampling.in_process import InProcessSampler
        from recovery.sampling.protocol import SamplingParams

        prompts = [self.chat_model.prompt_ids([{"role": "user", "content": text}]) for text in requests]
        params = SamplingParams(self.limit, self.temperature, self.seed)
        found = InProcessSampler(self.chat_model, self.at_once).generate(prompts, params)
        return enumerate(map(self.chat_model.answer, found))


@dataclass
class EndpointWriter:
    """`POST URL/chat/completions`; the key comes from the environment and goes into a header only."""

    url: str
    model: str
    max_new_tokens: int = 512
    temperature: float = 0.7
    seed: int = 0
    timeout: float = 120.0  # seconds without a sign of life
    tries: int = 5
    at_once: int = 16
    together: bool = False
    pause: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"--writer {self.url}: an endpoint begins with http:// or https://")
        if parts.username or parts.password:
            raise InputError(f"--writer: put no key into the URL, but into {KEY_VARIABLE}")
        self.name = f"{self.url}:{self.model}:{self.max_new_tokens}:{self.temperature}:{self.seed}"
        authorization(os.environ.get(KEY_VARIABLE))
        self._client = JsonClient(self.at_once, proxies=True, most_bytes=MOST_BYTES)

    def write(self, requests: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Yield texts as they come; raise the first error after those of all other requests."""
        with ThreadPoolExecutor(max(1, min(self.at_once, len(requests)))) as pool:
            places = {pool.submit(self._one, text): place for place, text in enumerate(requests)}
            failed = None
            for future in as_completed(places):
                failed = failed or future.exception()
                if future.exception() is None:
                    yield places[future], future.result()
        if failed:
            raise failed

    def _one(self, text: str) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stream": True,
        }
        problem = ""
        for attempt in range(self.tries):
            try:
                return self._answer(body)
            except (NotFound, Refused) as error:
                status = getattr(error, "status", 404)
                problem = f"HTTP {status}"
                if status not in TEMPORARY:
                    break
                wait = _wait(getattr(error, "retry_after", None), attempt)
            except EngineLost as error:
                problem = str(error)
                wait = _wait(getattr(error, "retry_after", None), attempt)
            if attempt + 1 < self.tries:
                self.pause(wait)
        raise RecoverError(
            f"{self.url}: no answer from {self.model} ({problem}): check the URL, --model and "
            f"{KEY_VARIABLE}; what was written so far is kept, run the same command again"
        )

    def _answer(self, body: dict[str, Any]) -> str:
        """Return the text of a streamed answer, or of a whole one from an endpoint that does not stream."""
        address = self.url.rstrip("/") + "/chat/completions"
        key = os.environ.get(KEY_VARIABLE)
        events = self._client.stream(address, body, self.timeout, key)
        return split_thinking("".join(map(_content, events)))[1]


def _content(event: Any) -> str:
    """Return the text that an event adds; raise EngineLost for anything else than an answer's part."""
    try:
        choices = event["choices"]
        if not choices:  # such as a count of the tokens
            return ""
        part = choices[0]["delta"] if "delta" in choices[0] else choices[0]["message"]
        content = part.get("content") if "delta" in choices[0] else part["content"]
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise EngineLost("its answer holds no message") from error
    if content is None and "delta" in choices[0]:  # a part that names the role, or holds thinking
        return ""
    if not isinstance(content, str) or any("\ud800" <= mark <= "\udfff" for mark in content):
        raise EngineLost("its answer holds no text")
    return content


def _wait(asked: str | None, attempt: int) -> float:
    """Return the seconds to wait: the server's Retry-After, else exponential backoff."""
    return min(LONGEST_PAUSE, float(asked) if asked and asked.isdigit() else 2.0**attempt)
