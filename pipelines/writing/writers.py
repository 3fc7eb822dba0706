"""Writers of new text: a checkpoint through the sampler, or any OpenAI-compatible endpoint."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from pipelines.writing.in_flight import TOO_MANY, InFlight, Waited
from pipelines.writing.protocol import CUT_OFF, REFUSED, TOO_LONG, Text
from recovery.engines.background import in_background
from recovery.engines.json_client import MOST_QUOTED, JsonClient, NotFound, Refused, authorization
from recovery.errors import EngineLost, InputError, RecoverError
from recovery.forward.context_length import context_length
from recovery.models.thinking import split_thinking
from recovery.printable import one_line

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

SEED = 0  # of every text, and a part of the name that kept texts have
KEY_VARIABLE = "RECOVER_API_KEY"
TEMPORARY = {408, 409, 425, TOO_MANY, 500, 502, 503, 504, 529}
NO_KEY = 401
OF_PARAMETERS = {400, 422}  # refused for what the request says, perhaps for a parameter
PARAMETERS = ("max_tokens", "temperature", "seed", "stream")  # that some endpoints refuse
# Reasons to finish where the text ends; all others cut it off.
WHOLE = ("stop", "stop_sequence", "eos", "eos_token", "end_turn")
LONGEST_PAUSE = 60.0
FIRST_PAUSE = 1.0
FIRST_PAUSE_OF_LIMIT = 5.0  # the pauses of five tries outlast a limit by the minute
MOST_BYTES = 16 * 2**20  # of one answer
OF_PRESETS = {"enable_thinking": False}  # what an earlier version wrote with them is still theirs


class Unawaited(Exception):
    """A request was given up with all others."""


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
        at_once: int = 32,
    ) -> None:
        self.chat_model = chat_model
        self.at_once = at_once
        self.limit = max_new_tokens
        self.temperature = temperature
        self.name = f"{name}:{max_new_tokens}:{temperature}:{SEED}{_told(chat_model.template_args)}"

    def write(self, requests: Sequence[str]) -> Iterable[tuple[int, Text]]:
        """Write to all requests that leave room for a text."""
        prompts = [self.chat_model.prompt_ids([{"role": "user", "content": text}]) for text in requests]
        longest = context_length(self.chat_model.model.config)
        asked = [place for place, ids in enumerate(prompts) if longest is None or len(ids) < longest]
        texts = [Text("", TOO_LONG)] * len(prompts)
        if asked:
            for place, text in zip(asked, self._sampled([prompts[place] for place in asked]), strict=True):
                texts[place] = text
        return enumerate(texts)

    def _sampled(self, prompts: Sequence[Sequence[int]]) -> Iterator[Text]:
        from recovery.sampling.in_process import InProcessSampler, without_stops
        from recovery.sampling.protocol import SamplingParams

        params = SamplingParams(self.limit, self.temperature, SEED)
        found = InProcessSampler(self.chat_model, self.at_once).sample(prompts, params)
        answers = map(self.chat_model.answer, without_stops(found.responses(), self.chat_model.stop_ids))
        flaws = (None if ended else CUT_OFF for ended in found.finished_B.tolist())
        return map(Text, answers, flaws)


def _told(template_args: Mapping[str, Any]) -> str:
    """Return a mark of what the chat template is given besides the day; none where presets give it."""
    args = {name: value for name, value in template_args.items() if name != "today"}
    if args == OF_PRESETS:
        return ""
    return f":{hashlib.sha256(repr(sorted(args.items())).encode()).hexdigest()[:12]}"


@dataclass
class EndpointWriter:
    """`POST URL/chat/completions`; the key comes from the environment and goes into a header only."""

    url: str
    model: str
    max_new_tokens: int = 512
    temperature: float = 0.7
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
        self.name = f"{self.url}:{self.model}:{self.max_new_tokens}:{self.temperature}:{SEED}"
        authorization(os.environ.get(KEY_VARIABLE))
        self._address = self.url.rstrip("/") + "/chat/completions"
        self._client = JsonClient(self.at_once, proxies=True, most_bytes=MOST_BYTES)
        self._in_flight = InFlight(self.at_once)
        self._unwanted: frozenset[str] = frozenset()  # parameters without which it answers

    def write(self, requests: Sequence[str]) -> Iterator[tuple[int, Text]]:
        """Yield texts as they come, and send the next request for each; raise the first error after the texts
        of those that are under way.

        An interruption waits for none: it comes after the texts that are there, and no more is sent.
        """
        stopped = threading.Event()
        coming = enumerate(requests)
        places: dict[Future[Text], int] = {}
        failed: BaseException | None = None
        try:
            while True:
                for place, text in islice(coming, 0 if failed else self.at_once - len(places)):
                    places[in_background(partial(self._one, text, stopped))] = place
                if not places:
                    break
                for future in wait(places, return_when=FIRST_COMPLETED).done:
                    failed = failed or future.exception()
                    yield from _written(future, places[future])
                    del places[future]
        except KeyboardInterrupt:
            stopped.set()
            for future, place in places.items():
                if future.done():
                    yield from _written(future, place)
            raise
        finally:
            stopped.set()
        if failed:
            raise failed

    def _one(self, text: str, stopped: threading.Event) -> Text:
        """Return the answer, or that the endpoint gives none, as to a text that it filters or fails at; ask
        again after what may pass."""
        unwanted, tried, answered = self._unwanted, 0, 0
        first: Refused | None = None
        while True:
            try:
                return self._answer(text, unwanted, stopped)
            except Waited:
                continue
            except (NotFound, Refused, EngineLost) as error:
                if _is_of_all(error):
                    raise self._no_answer(error) from error
                if isinstance(error, Refused) and error.status in OF_PARAMETERS:
                    named = _named(error) - unwanted
                    first = first or error
                    if not named:
                        return Text("", REFUSED, self._refusal(first))
                    unwanted |= named
                    continue
                if _is_limit(error) and self._in_flight.parts > answered:
                    tried, answered = 0, self._in_flight.parts  # others use up what the limit leaves
                tried += 1
                if tried == self.tries or not _may_pass(error):
                    return Text("", REFUSED, str(self._no_answer(error)))
                self.pause(_wait(error, tried - 1))

    def _answer(self, text: str, unwanted: frozenset[str], stopped: threading.Event) -> Text:
        """Return the text of a streamed answer, or of a whole one from an endpoint that does not stream."""
        key = os.environ.get(KEY_VARIABLE)
        said: list[str] = []
        flaw: str | None = None
        with self._in_flight.one() as count:
            _require_awaited(stopped)
            for event in self._client.stream(self._address, self._body(text, unwanted), self.timeout, key):
                _require_awaited(stopped)
                count()
                said.append(_content(event))
                flaw = CUT_OFF if _is_cut_off(event) else flaw
        self._unwanted |= unwanted
        return Text(split_thinking("".join(said))[1], flaw)

    def _body(self, text: str, unwanted: frozenset[str]) -> dict[str, Any]:
        limit = "max_completion_tokens" if "max_tokens" in unwanted else "max_tokens"
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            limit: self.max_new_tokens,
            "temperature": self.temperature,
            "seed": SEED,
            "stream": True,
        }
        return {name: value for name, value in body.items() if name not in unwanted}

    def _refusal(self, error: RecoverError) -> str:
        return (
            f"{self.url}: {self.model} answers no request ({self._quoted(error)}): mend what it names, or "
            "give another --writer or --model"
        )

    def _no_answer(self, error: RecoverError) -> RecoverError:
        return RecoverError(
            f"{self.url}: no answer from {self.model} ({self._quoted(error)}): check the URL, --model and "
            f"{KEY_VARIABLE}; what was written so far is kept, run the same command again"
        )

    def _quoted(self, error: RecoverError) -> str:
        """Return what an error says, without the address and, where a server repeats it, the key."""
        said = str(error).removeprefix(f"{self._address}: ")
        key = os.environ.get(KEY_VARIABLE)
        return one_line(said.replace(key, "(key)") if key else said, 2 * MOST_QUOTED)


def _written(future: Future[Text], place: int) -> Iterator[tuple[int, Text]]:
    """Yield the text of a request that is done, unless it failed."""
    if future.exception() is None:
        yield place, future.result()


def _require_awaited(stopped: threading.Event) -> None:
    """End a request whose answer is no longer read: neither send it nor let the endpoint write on."""
    if stopped.is_set():
        raise Unawaited


def _named(error: Refused) -> frozenset[str]:
    """Return the parameters that a refusal names."""
    return frozenset(name for name in PARAMETERS if re.search(rf"\b{name}\b", str(error)))


def _is_of_all(error: RecoverError) -> bool:
    """Return whether an error is one of the address or the key, and not of a request."""
    return isinstance(error, NotFound) or (
        isinstance(error, Refused) and (error.status < 400 or error.status == NO_KEY)
    )


def _may_pass(error: RecoverError) -> bool:
    return isinstance(error, EngineLost) or getattr(error, "status", 404) in TEMPORARY


def _content(event: Any) -> str:
    """Return the text that an event adds; raise EngineLost for anything else than an answer's part."""
    if isinstance(event, dict) and event.get("error"):
        raise EngineLost(f"in place of an answer: {json.dumps(event['error'])}")
    try:
        choices = event["choices"]
        # No choice: a count of the tokens; no part of one: what a filter says. No content: a role, thinking.
        part = (choices[0].get("delta") or choices[0].get("message") or {}) if choices else {}
        content = part.get("content") or ""
        if isinstance(content, list):
            content = "".join(piece["text"] for piece in content if piece["type"] == "text")
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise EngineLost("its answer holds no message") from error
    if not isinstance(content, str) or any("\ud800" <= mark <= "\udfff" for mark in content):
        raise EngineLost("its answer holds no text")
    return content


def _is_cut_off(event: Any) -> bool:
    """Return whether an event that holds a part of an answer says that it ends too early."""
    reason = event["choices"][0].get("finish_reason") if event["choices"] else None
    return bool(reason) and reason not in WHOLE


def _is_limit(error: RecoverError) -> bool:
    return getattr(error, "status", None) == TOO_MANY


def _wait(error: RecoverError, attempt: int) -> float:
    """Return the seconds to wait: twice as many after each attempt, and those that the server asks for."""
    first = FIRST_PAUSE_OF_LIMIT if _is_limit(error) else FIRST_PAUSE
    return min(LONGEST_PAUSE, max(first * 2.0**attempt, _asked_for(getattr(error, "retry_after", None))))


def _asked_for(retry_after: str | None) -> float:
    """Return the seconds in a Retry-After header, a number or a date; none where it is neither."""
    if retry_after is None:
        return 0.0
    try:
        return float(retry_after)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(retry_after).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
