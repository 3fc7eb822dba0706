"""Set deadlines for the reads and writes of HTTP connections: timeouts of single reads bound no answer.

A server that sends a byte now and then never lets a read time out, whether the byte is one of a header, of
white space or of an empty compressed block.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx

_bound = threading.local()


@contextmanager
def until(deadline: Callable[[], float]) -> Iterator[None]:
    """Set a deadline, on the monotonic clock, for this thread's reads and writes inside the block.

    It may be moved while a read waits, which then waits until the later one.
    """
    before = getattr(_bound, "deadline", None)
    _bound.deadline = deadline
    try:
        yield
    finally:
        _bound.deadline = before


def bounded(client: httpx.Client) -> httpx.Client:
    """Make a client's connections obey `until`; httpx has no setting for how its pools reach the network."""
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.HTTPTransport):
            pool: Any = transport._pool
            pool._network_backend = _Network(pool._network_backend)
    return client


def _left(timeout: float | None) -> float | None:
    deadline = getattr(_bound, "deadline", None)
    if deadline is None:
        return timeout
    seconds = float(deadline()) - time.monotonic()
    if seconds <= 0:
        raise httpcore.ReadTimeout("the deadline has passed")
    return seconds if timeout is None else min(timeout, seconds)


def _may_go_on() -> bool:
    deadline = getattr(_bound, "deadline", None)
    return deadline is not None and bool(deadline() > time.monotonic())


class _Network(httpcore.NetworkBackend):
    def __init__(self, inner: httpcore.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *given: Any, **named: Any
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.connect_tcp(host, port, _left(timeout), *given, **named))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        while True:
            try:
                return self._inner.read(max_bytes, _left(timeout))
            except httpcore.ReadTimeout:
                if not _may_go_on():
                    raise

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, _left(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, _left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
