"""Which hosts only this machine reaches."""

from __future__ import annotations

import pytest

from recovery.loopback import LOOPBACK, in_url, is_loopback


@pytest.mark.parametrize("host", [*LOOPBACK, "Localhost", "127.0.0.2", "0:0:0:0:0:0:0:1"])
def test_a_loopback_host_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "10.0.0.1", "127.0.0.1.evil.example", "127.1", "localhost.evil.example"]
)
def test_any_other_host_is_none(host: str) -> None:
    assert not is_loopback(host)


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert [in_url(host) for host in LOOPBACK] == ["127.0.0.1", "localhost", "[::1]"]
