"""Tell which hosts only this machine reaches."""

from __future__ import annotations

from ipaddress import ip_address

LOOPBACK = ("127.0.0.1", "localhost", "::1")  # the usual ones


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is reachable from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_url(url: str) -> bool:
    """Return whether a URL leads to this machine, as the client that opens it reads it."""
    import httpx  # every command reads settings, and few name a URL

    try:
        return is_loopback(httpx.URL(url).host)
    except httpx.InvalidURL:
        return False


def in_url(host: str) -> str:
    """Return a host as URLs and Host headers have it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
