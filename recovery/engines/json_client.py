"""Send JSON over HTTP to untrusted servers: one deadline, one size limit, no redirects, keys never shown."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx

from recovery.errors import EngineLost, InputError, RecoverError
from recovery.printable import one_line

CONNECT_SECONDS = 10.0
MOST_BYTES = 256 * 2**20  # per response
MOST_SAID = 300  # characters of a server's text quoted in a message


class NotThere(RecoverError):
    """The server has no such path, or no such model."""


class Refused(RecoverError):
    """The server refuses the request (HTTP 3xx or 4xx other than 404)."""

    def __init__(self, message: str, status: int, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class ServerFailed(EngineLost):
    """The server failed (HTTP 5xx); `retry_after` is its Retry-After header, if sent."""

    def __init__(self, message: str, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class JsonClient:
    """A thread-safe client for one or several servers.

    Raises EngineLost on a timeout or a broken response, Refused or NotThere on a refusal.
    """

    def __init__(self, connections: int, *, proxies: bool = False, most_bytes: int = MOST_BYTES) -> None:
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        self.most_bytes = most_bytes
        self._client = httpx.Client(limits=limits, trust_env=proxies, follow_redirects=False)

    def get(self, url: str, seconds: float, key: str | None = None, **headers: str) -> httpx.Response:
        """Send a GET request and return the response with its body read."""
        return self._send("GET", url, None, seconds, {**authorization(key), **headers})

    def post(self, url: str, body: Any, seconds: float, key: str | None = None) -> Any:
        """Send a POST request and return the response's JSON value; None for an empty body."""
        return json_of(url, self._post(url, body, seconds, key))

    def command(self, url: str, body: Any, seconds: float, key: str | None = None) -> None:
        """POST, and ignore the body of the answer: vLLM confirms some commands in plain text."""
        self._post(url, body, seconds, key)

    def _post(self, url: str, body: Any, seconds: float, key: str | None) -> httpx.Response:
        content = json.dumps(body).encode()
        headers = {**authorization(key), "Content-Type": "application/json"}
        return self._send("POST", url, content, seconds, headers)

    def close(self) -> None:
        self._client.close()

    def _send(
        self, method: str, url: str, content: bytes | None, seconds: float, headers: dict[str, str]
    ) -> httpx.Response:
        deadline = time.monotonic() + seconds
        timeout = httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
        try:
            request = self._client.build_request(
                method, url, content=content, headers=headers, timeout=timeout
            )
            response = self._client.send(request, stream=True)
            try:
                body = self._body(response, deadline, seconds)
            finally:
                response.close()
        except httpx.TimeoutException as error:
            raise EngineLost(f"no answer within {seconds:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise EngineLost(f"no answer ({type(error).__name__}: {one_line(error, MOST_SAID)})") from error
        _raise_for_status(url, response, body)
        return httpx.Response(response.status_code, headers=_plain(response.headers), content=body)

    def _body(self, response: httpx.Response, deadline: float, seconds: float) -> bytes:
        """Read the body within `most_bytes` and the deadline: a server may send slowly, or endlessly."""
        parts: list[bytes] = []
        size = 0
        for part in response.iter_bytes():
            size += len(part)
            if size > self.most_bytes:
                raise EngineLost(f"its answer is larger than {self.most_bytes // 2**20} MiB")
            if time.monotonic() > deadline:
                raise EngineLost(f"its answer was not complete within {seconds:g} s")
            parts.append(part)
        return b"".join(parts)


def authorization(key: str | None) -> dict[str, str]:
    """Return the Authorization header; raise InputError for an invalid key, without showing the key."""
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InputError(
            "the API key holds characters that no HTTP header may carry: set it without line breaks"
        )
    return {"Authorization": f"Bearer {key}"}


def json_of(url: str, response: httpx.Response) -> Any:
    """Parse a response's body as JSON; return None for an empty body."""
    if not response.content.strip():
        return None
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError) as error:
        raise EngineLost(f"{url}: its answer is not JSON ({type(error).__name__})") from error


def _raise_for_status(url: str, response: httpx.Response, body: bytes) -> None:
    code = response.status_code
    if code < 300:
        return
    retry_after = response.headers.get("Retry-After")
    said = one_line(body[: 4 * MOST_SAID].decode(errors="replace"), MOST_SAID)
    if code < 400:
        raise Refused(
            f"{url}: redirects elsewhere (HTTP {code}): give the address that it redirects to", code
        )
    if code == 404:
        raise NotThere(f"{url}: not there: {said}")
    if code >= 500:
        raise ServerFailed(f"it failed (HTTP {code}: {said})", retry_after)
    raise Refused(f"{url}: refused (HTTP {code}): {said}", code, retry_after)


def _plain(headers: httpx.Headers) -> dict[str, str]:
    """Drop the headers that describe the transfer encoding: the body is decoded already."""
    dropped = {"content-encoding", "content-length", "transfer-encoding"}
    return {name: value for name, value in headers.items() if name.lower() not in dropped}
