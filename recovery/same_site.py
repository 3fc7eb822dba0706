"""Tell requests that a web page of another site sends to a server on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit


def host_name(headers: Mapping[str, str]) -> str | None:
    """Return the Host header's name or address, without port and brackets."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname
    except ValueError:
        return None


def is_own_origin(headers: Mapping[str, str]) -> bool:
    """Return whether the Origin header, if there is one, names the requested host itself."""
    origin = headers.get("origin")
    return origin is None or _netloc(origin) == headers.get("host", "").lower()


def is_same_site(headers: Mapping[str, str]) -> bool:
    """Return whether no header says that the request comes from another origin; programs send neither."""
    return is_own_origin(headers) and headers.get("sec-fetch-site", "none") in ("same-origin", "none")


def _netloc(url: str) -> str | None:
    try:
        return urlsplit(url).netloc.lower() or None
    except ValueError:
        return None
