"""Who may talk to the dashboard: this machine's own browser, and nobody through another site's page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def is_loopback(host: str) -> bool:
    return host in LOOPBACK


class Guard:
    """Refuses an unknown Host (a rebound name) or Origin (another site's script); adds headers."""

    def __init__(self, app: App, hosts: tuple[str, ...] = LOOPBACK) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._known(headers):
            await _refuse(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        await self.app(scope, receive, with_headers)

    def _known(self, headers: MutableMapping[str, str]) -> bool:
        origin = headers.get("origin")
        return _name(f"//{headers.get('host', '')}") in self.hosts and (
            origin is None or _name(origin) in self.hosts
        )


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


async def _refuse(scope: Scope, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "http.response.start", "status": 400, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"unknown host or origin"})
