"""Listen at every address of a host, or refuse in one line a port that another process has taken."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from recovery.errors import InputError

ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # IPv6, which a host's name may have and its kernel not
BOTH_STACKS = ("::", "0.0.0.0")  # a socket of :: takes IPv6 alone


@contextmanager
def listening(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Listen at every address of a host, of `::` on both stacks; refuse one that cannot be had."""
    with ExitStack() as opened:
        try:
            sockets = [opened.enter_context(one) for one in _sockets(host, port)]
        except OSError as error:
            raise _refusal(host, port, error) from error
        yield sockets


def require_free(host: str, port: int) -> None:
    """Refuse an address at which another process listens; port 0 is any free one."""
    if port:
        with listening(host, port):
            pass


def _sockets(host: str, port: int) -> Iterator[socket.socket]:
    absent: list[OSError] = []
    addresses = _addresses(host, port)
    for family, address in addresses:
        try:
            yield socket.create_server(address, family=family)
        except OSError as error:
            if error.errno not in ABSENT:
                raise
            absent.append(error)
    if len(absent) == len(addresses):
        raise absent[0]


def _addresses(host: str, port: int) -> dict[tuple[int, tuple[object, ...]], None]:
    """Return the addresses of a host by family, each once, in order."""
    names = BOTH_STACKS if host == BOTH_STACKS[0] else (host or None,)
    flags = socket.AI_PASSIVE
    found = [
        entry
        for name in names
        for entry in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=flags)
    ]
    return dict.fromkeys((family, address) for family, _, _, _, address in found)


def _refusal(host: str, port: int, error: OSError) -> InputError:
    if error.errno == errno.EADDRINUSE:
        return InputError(f"port {port} is taken: give another with --port")
    why = str(error.strerror).partition(" (while")[0]  # Python adds the address, which is named here
    return InputError(f"--host {host}, --port {port}: nothing can listen there ({why}): give another address")
