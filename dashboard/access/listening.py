"""Listen at an address before anything is announced there, and say so once it is served."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import uvicorn

from recovery.errors import InputError

ABSENT = (
    errno.EADDRNOTAVAIL,
    errno.EAFNOSUPPORT,
)  # as of IPv6, which a host's name may have and its kernel not


@contextmanager
def listening(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Listen at every address of a host; refuse one that cannot be had."""
    with ExitStack() as opened:
        try:
            sockets = [opened.enter_context(one) for one in _sockets(host, port)]
        except OSError as error:
            raise _refusal(host, port, error) from error
        yield sockets


def _sockets(host: str, port: int) -> Iterator[socket.socket]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    absent: list[OSError] = []
    addresses = dict.fromkeys((family, address) for family, _, _, _, address in found)
    for family, address in addresses:
        try:
            yield socket.create_server(address, family=family)
        except OSError as error:
            if error.errno not in ABSENT:
                raise
            absent.append(error)
    if len(absent) == len(addresses):
        raise absent[0]


def _refusal(host: str, port: int, error: OSError) -> InputError:
    if error.errno == errno.EADDRINUSE:
        return InputError(f"port {port} is taken: give another with --port")
    why = str(error.strerror).partition(" (while")[0]  # Python adds the address, which is named here
    return InputError(f"--host {host}, --port {port}: nothing can listen there ({why}): give another address")


class Server(uvicorn.Server):
    """uvicorn's server, which says by a call that it serves."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._say_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._say_started()
