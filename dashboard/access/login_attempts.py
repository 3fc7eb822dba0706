"""Rate-limit password attempts, per address and over all new addresses together."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from dataclasses import dataclass

BURST, SECONDS_EACH = 10, 6.0  # wrong passwords per address: burst size, seconds to refill one
BURST_OF_ALL, SECONDS_EACH_OF_ALL = 100, 1.0  # over all addresses without a successful login
MOST_ADDRESSES = 10_000  # addresses remembered


@dataclass
class TokenBucket:
    """A token bucket that refills with time; a wrong password takes one token."""

    burst: int
    seconds_each: float
    left: float
    at: float

    @classmethod
    def full(cls, burst: int, seconds_each: float) -> TokenBucket:
        return cls(burst, seconds_each, burst, time.monotonic())

    def is_empty(self) -> bool:
        now = time.monotonic()
        self.left = min(self.burst, self.left + (now - self.at) / self.seconds_each)
        self.at = now
        return self.left < 1

    def take(self) -> None:
        self.left -= 1


class LoginAttempts:
    """Reject passwords from an address whose bucket is empty, without comparing them.

    An address that once gave the right password is exempt from the limit over all addresses."""

    def __init__(self) -> None:
        self._all = TokenBucket.full(BURST_OF_ALL, SECONDS_EACH_OF_ALL)
        self._addresses: OrderedDict[str, TokenBucket] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()

    def allowed(self, address: str) -> bool:
        name = _network(address)
        if name not in self._known and self._all.is_empty():
            return False
        return name not in self._addresses or not self._addresses[name].is_empty()

    def failed(self, address: str) -> None:
        name = _network(address)
        bucket = self._addresses.setdefault(name, TokenBucket.full(BURST, SECONDS_EACH))
        bucket.take()
        if name not in self._known:
            self._all.take()
        _forget(self._addresses)

    def succeeded(self, address: str) -> None:
        self._known[_network(address)] = None
        _forget(self._known)


def _network(address: str) -> str:
    """Return the network that shares a limit: an IPv6 host controls a whole /64."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    ip = getattr(ip, "ipv4_mapped", None) or ip  # a server that listens on :: has these for IPv4's
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network(f"{ip}/64", strict=False))


def _forget(addresses: OrderedDict[str, TokenBucket] | OrderedDict[str, None]) -> None:
    while len(addresses) > MOST_ADDRESSES:
        addresses.popitem(last=False)
