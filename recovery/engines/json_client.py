"""Send JSON over HTTP to untrusted servers: deadlines, a size limit, no redirects, keys never shown."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import httpx

from recovery import untrusted_json
from recovery.engines import deadline
from recovery.errors import EngineLost, InputError, RecoverError
from recovery.loopback import LOOPBACK, in_url
from recovery.printable import one_line

CONNECT_SECONDS = 10.0
LONGEST_ANSWER = 20  # times the longest silence: what a POST may take altogether
MOST_BYTES = 256 * 2**20  # per response
EVENTS, DONE = "text/event-stream", b"[DONE]"
LONGEST_NAME = 64  # bytes of a line that say which field of an event it is
MOST_QUOTED = 300  # characters of a server's text quoted in a message
UNPROXIED = {f"all://{in_url(name)}": None for name in LOOPBACK}  # a proxy would look on its own machine


class NotFound(RecoverError):
    """The server has no such path, or no such model."""


class Refused(RecoverError):
    """The server refuses the request (HTTP 3xx or 4xx other than 404)."""

    def __init__(self, message: str, status: int, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class TimedOut(EngineLost):
    """The server said nothing for too long, or did not end its answer in time."""


class ServerFailed(EngineLost):
    """The server failed (HTTP 5xx); `retry_after` is its Retry-After header, if sent."""

    def __init__(self, message: str, status: int, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


@dataclass(frozen=True)
class Timeouts:
    """How long to wait: for the next bytes, and for the whole answer.

    White space, and comments and empty events of a stream, are silence: a server may send them for ever.
    """

    idle: float
    total: float

    @classmethod
    def of_post(cls, seconds: float) -> Timeouts:
        """Return the limits of an answer that is written while it is sent."""
        return cls(seconds, LONGEST_ANSWER * seconds)

    def ends(self, began: float, heard: float) -> float:
        """Return the deadline of the next bytes."""
        return min(heard + self.idle, began + self.total)


class JsonClient:
    """A thread-safe client for one or several servers.

    A GET must be complete within its `seconds`; a POST may take LONGEST_ANSWER times as long, but never be
    silent for that long. With `queues`, a server is silent only where it answers none of the POSTs: some may
    wait in its queue while it works on others.
    Raises EngineLost on a timeout or a broken response, Refused or NotFound on a refusal.
    """

    def __init__(
        self,
        connections: int,
        *,
        proxies: bool = False,
        most_bytes: int = MOST_BYTES,
        queues: bool = False,
    ) -> None:
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        self.most_bytes = most_bytes
        self.queues = queues
        self._heard: dict[bytes, float] = {}  # when a server that queues last sent a part of an answer
        client = httpx.Client(limits=limits, trust_env=proxies, follow_redirects=False, mounts=UNPROXIED)
        self._client = deadline.bounded(client)
        self._being_read = 0  # responses
        self._changed = threading.Condition()

    def get(self, url: str, seconds: float, key: str | None = None, **headers: str) -> httpx.Response:
        """Send a GET request and return the response with its body read."""
        request = self._request("GET", url, None, {**authorization(key), **headers})
        with self._answer(request, Timeouts(seconds, total=seconds)) as (response, parts):
            body = b"".join(parts)
        return httpx.Response(response.status_code, headers=_plain(response.headers), content=body)

    def post(self, url: str, body: Any, seconds: float, key: str | None = None) -> Any:
        """Send a POST request and return the response's JSON value; None for an empty body."""
        return parsed(url, self.command(url, body, seconds, key))

    def stream(self, url: str, body: Any, seconds: float, key: str | None = None) -> Generator[Any]:
        """Send a POST request and yield the JSON value of each server-sent event.

        A server that does not stream yields its one value. Leaving the iterator ends the request.
        """
        with self._answer(self._post(url, body, key), Timeouts.of_post(seconds)) as (response, parts):
            if EVENTS in response.headers.get("Content-Type", ""):
                yield from _events(url, parts)
            else:
                yield parsed(url, b"".join(parts))

    def command(self, url: str, body: Any, seconds: float, key: str | None = None) -> bytes:
        """POST, and return the body of the answer: vLLM confirms some commands in plain text."""
        with self._answer(self._post(url, body, key), Timeouts.of_post(seconds)) as (_, parts):
            return b"".join(parts)

    def close(self) -> None:
        """Close the connections once no thread reads an answer: closing a socket does not wake its reader."""
        with self._changed:
            self._changed.wait_for(lambda: self._being_read == 0)
        self._client.close()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._changed:
            self._being_read += 1
        try:
            yield
        finally:
            with self._changed:
                self._being_read -= 1
                self._changed.notify_all()

    def _post(self, url: str, body: Any, key: str | None) -> httpx.Request:
        headers = {**authorization(key), "Content-Type": "application/json"}
        return self._request("POST", url, json.dumps(body).encode(), headers)

    def _request(
        self, method: str, url: str, content: bytes | None, headers: dict[str, str]
    ) -> httpx.Request:
        try:
            return self._client.build_request(method, url, content=content, headers=headers)
        except httpx.InvalidURL as error:
            raise EngineLost(f"no answer (InvalidURL: {one_line(error, MOST_QUOTED)})") from error

    @contextmanager
    def _answer(
        self, request: httpx.Request, timeouts: Timeouts
    ) -> Iterator[tuple[httpx.Response, Iterator[bytes]]]:
        """Send a request; give the response and the parts of its body, if the server accepts the request."""
        seconds = timeouts.idle
        url = str(request.url)
        timeout = httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
        request.extensions["timeout"] = timeout.as_dict()
        began = time.monotonic()
        try:
            with self._counted(), closing(self._send(request, timeouts, began)) as response:
                parts = self._parts(response, timeouts, began)
                if response.status_code >= 300:
                    _raise_for_status(url, response, b"".join(parts))
                yield response, parts
        except httpx.TimeoutException as error:
            if time.monotonic() - began >= timeouts.total:
                raise TimedOut(f"its answer was not complete within {timeouts.total:g} s") from error
            raise TimedOut(f"no answer within {seconds:g} s") from error
        except (httpx.HTTPError, OSError, RuntimeError) as error:  # RuntimeError: this client was closed
            raise EngineLost(f"no answer ({type(error).__name__}: {one_line(error, MOST_QUOTED)})") from error

    def _send(self, request: httpx.Request, timeouts: Timeouts, began: float) -> httpx.Response:
        """Send a request and read the headers of its answer, all of it within the timeouts."""
        with deadline.until(partial(self._ends, request, timeouts, began, began)):
            return self._client.send(request, stream=True)

    def _ends(self, request: httpx.Request, timeouts: Timeouts, began: float, heard: float) -> float:
        """Return the deadline of the next bytes: a server that queues may be answering other requests."""
        return timeouts.ends(began, max(heard, self._heard.get(request.url.netloc, heard)))

    def _parts(self, response: httpx.Response, timeouts: Timeouts, began: float) -> Iterator[bytes]:
        """Yield the body's parts within `most_bytes` and the timeouts: a server may send endlessly."""
        coming = response.iter_bytes()
        content = _Content(EVENTS in response.headers.get("Content-Type", ""))
        size = 0
        heard = time.monotonic()
        while True:
            with deadline.until(partial(self._ends, response.request, timeouts, began, heard)):
                part = next(coming, None)
            if part is None:
                return
            size += len(part)
            if size > self.most_bytes:
                raise EngineLost(f"its answer is larger than {self.most_bytes // 2**20} MiB")
            given = time.monotonic()
            if content.is_in(part):
                heard = given
                self._note(response.request, given)
            yield part
            heard += time.monotonic() - given  # the reader's own time is no silence

    def _note(self, request: httpx.Request, moment: float) -> None:
        """Note a sign of life: a page is none, as a server whose engine hangs sends it too."""
        if self.queues and request.method == "POST":
            self._heard[request.url.netloc] = moment


class _Content:
    """Tells the bytes of a body that carry something from white space, comments and empty events."""

    def __init__(self, is_events: bool) -> None:
        self._is_events = is_events
        self._begun = b""  # of the current line of a stream of events

    def is_in(self, part: bytes) -> bool:
        if not self._is_events:
            return bool(part.strip())
        first, *others = part.split(b"\n")
        lines = [self._begun + first, *others]
        self._begun = lines[-1].lstrip()[:LONGEST_NAME]
        return any(_event_value(line) for line in lines) and bool(part.strip())


def authorization(key: str | None) -> dict[str, str]:
    """Return the Authorization header; raise InputError for an invalid key, without showing the key."""
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InputError(
            "the API key holds characters that no HTTP header may carry: set it without line breaks"
        )
    return {"Authorization": f"Bearer {key}"}


def parsed(url: str, body: bytes) -> Any:
    """Parse a response's body as JSON; return None for an empty body."""
    if not body.strip():
        return None
    try:
        return untrusted_json.parse(body)
    except ValueError as error:
        raise EngineLost(f"{url}: its answer is not JSON ({type(error).__name__})") from error


def _events(url: str, parts: Iterable[bytes]) -> Iterator[Any]:
    """Yield the JSON value of each server-sent event; raise EngineLost unless the last one is `[DONE]`."""
    for line in _lines(parts):
        value = _event_value(line)
        if value == DONE:
            return
        if value:
            yield parsed(url, value)
    raise EngineLost(f"{url}: it stopped in the middle of an answer")


def _event_value(line: bytes) -> bytes:
    """Return the data of a line of events; nothing for a comment, another field or an empty line."""
    name, _, value = line.strip().partition(b":")
    return value.strip() if name == b"data" else b""


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the complete lines of a body that arrives in parts, and the last one if it ends the answer."""
    begun: list[bytes] = []
    for part in parts:
        first, *others = part.split(b"\n")
        begun.append(first)
        for following in others:
            yield b"".join(begun)
            begun = [following]
    if _event_value(b"".join(begun)) == DONE:  # some servers send no line break behind it
        yield b"".join(begun)


def _raise_for_status(url: str, response: httpx.Response, body: bytes) -> NoReturn:
    code = response.status_code
    retry_after = response.headers.get("Retry-After")
    key = response.request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
    shown = body.replace(key, b"(key)") if key else body  # before it is cut: half a key tells as much
    said = one_line(shown[: 4 * MOST_QUOTED].decode(errors="replace"), MOST_QUOTED)
    if code < 400:
        raise Refused(
            f"{url}: redirects elsewhere (HTTP {code}): give the address that it redirects to", code
        )
    if code == 404:
        raise NotFound(f"{url}: not there: {said}")
    if code >= 500:
        raise ServerFailed(f"it failed (HTTP {code}: {said})", code, retry_after)
    raise Refused(f"{url}: refused (HTTP {code}): {said}", code, retry_after)


def _plain(headers: httpx.Headers) -> list[tuple[bytes, bytes]]:
    """Drop the headers that describe the transfer encoding: the body is decoded already."""
    dropped = {b"content-encoding", b"content-length", b"transfer-encoding"}
    return [(name, value) for name, value in headers.raw if name.lower() not in dropped]
