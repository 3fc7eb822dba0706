"""Who writes when new text is needed: a checkpoint through the sampler, or any OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from recovery.errors import InputError, RecoverError
from recovery.models.thinking import split_thinking

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

KEY_VARIABLE = "RECOVER_API_KEY"
TEMPORARY = {408, 409, 425, 429, 500, 502, 503, 504, 529}
LONGEST_PAUSE = 60.0


class Writer(Protocol):
    """`name` tells one writer's texts from another's in a cache; `at_once` is a good number of requests."""

    name: str
    at_once: int

    def write(self, requests: Sequence[str]) -> list[str]: ...


class LocalWriter:
    """A checkpoint in this process; the same requests together give the same texts."""

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
        self.chat_model, self.at_once = chat_model, at_once
        self.limit, self.temperature, self.seed = max_new_tokens, temperature, seed
        self.name = f"{name}:{max_new_tokens}:{temperature}:{seed}"

    def write(self, requests: Sequence[str]) -> list[str]:
        from recovery.sampling.in_process import InProcessSampler
        from recovery.sampling.protocol import SamplingParams

        prompts = [self.chat_model.prompt_ids([{"role": "user", "content": text}]) for text in requests]
        params = SamplingParams(self.limit, self.temperature, self.seed)
        found = InProcessSampler(self.chat_model, self.at_once).generate(prompts, params)
        return [self.chat_model.answer(ids) for ids in found]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to whoever it names."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass
class EndpointWriter:
    """`POST URL/chat/completions`; the key comes from the environment and goes into a header only."""

    url: str
    model: str
    max_new_tokens: int = 512
    temperature: float = 0.7
    seed: int = 0
    timeout: float = 120.0
    tries: int = 5
    at_once: int = 16
    pause: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"--writer {self.url}: an endpoint begins with http:// or https://")
        if parts.username or parts.password:
            raise InputError(f"--writer: put no key into the URL, but into {KEY_VARIABLE}")
        self.name = f"{self.url}:{self.model}:{self.max_new_tokens}:{self.temperature}:{self.seed}"
        self._opener = urllib.request.build_opener(_NoRedirect)

    def write(self, requests: Sequence[str]) -> list[str]:
        with ThreadPoolExecutor(max(1, min(self.at_once, len(requests)))) as pool:
            return list(pool.map(self._one, requests))

    def _one(self, text: str) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
        }
        problem = ""
        for attempt in range(self.tries):
            try:
                return _content(self._post(body))
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}"
                wait = _wait(error.headers.get("Retry-After"), attempt)
                if error.code not in TEMPORARY:
                    break
            except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
                problem, wait = type(error).__name__, _wait(None, attempt)
            if attempt + 1 < self.tries:
                self.pause(wait)
        raise RecoverError(
            f"{self.url}: no answer from {self.model} ({problem}): check the URL, --model and "
            f"{KEY_VARIABLE}; what was written so far is kept, run the same command again"
        )

    def _post(self, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        address = self.url.rstrip("/") + "/chat/completions"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers, method="POST")
        with self._opener.open(request, timeout=self.timeout) as answer:
            return json.load(answer)


def _content(answer: Any) -> str:
    content = answer["choices"][0]["message"]["content"]
    if not isinstance(content, str):
        raise TypeError("no text")
    return split_thinking(content)[1]


def _wait(asked: str | None, attempt: int) -> float:
    """What the server asks for, else twice as long each time."""
    return min(LONGEST_PAUSE, float(asked) if asked and asked.isdigit() else 2.0**attempt)
