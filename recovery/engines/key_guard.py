"""An ASGI middleware that vLLM's server runs: every path needs the key, those that take weights included.

vLLM's own `--api-key` guards only the paths below /v1. Without a key, only requests that name this machine
as their host are answered, so that no web page reaches the server under a host name of its own. To a client
that sends a nonce the server answers with its HMAC under the key: so the process that started the server can
tell it from another one on the same port.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

KEY_VARIABLE = "VLLM_API_KEY"
NONCE, PROOF = "x-recover-nonce", "x-recover-proof"
LOOPBACK_NAMES = {"localhost", "127.0.0.1", "[::1]"}

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def proof(key: str, nonce: str) -> str:
    """What a server that holds the key answers to a nonce."""
    return hmac.new(key.encode(), nonce.encode(), hashlib.sha256).hexdigest()


class KeyGuard:
    """Answer 401 to a request without the key; without a key set, 403 to one for another host."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app
        self.key = os.environ.get(KEY_VARIABLE, "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value for name, value in scope.get("headers", [])}
        status = self._status(headers)
        if scope["type"] != "http" and status:
            await send({"type": "websocket.close", "code": 1008})
        elif status:
            await _answer(send, status)
        elif self.key and NONCE in headers:
            await _prove(send, proof(self.key, headers[NONCE].decode("latin-1")))
        else:
            await self.app(scope, receive, send)

    def _status(self, headers: dict[str, bytes]) -> int:
        """The status to refuse a request with, or 0."""
        if self.key:
            given = headers.get("authorization", b"")
            expected = f"Bearer {self.key}".encode()
            proving = NONCE in headers and not given
            return 0 if proving or hmac.compare_digest(given, expected) else 401
        host = headers.get("host", b"").decode("latin-1")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return 0 if name.lower() in LOOPBACK_NAMES else 403


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers or []})
    await send({"type": "http.response.body", "body": b""})


async def _prove(send: Send, answer: str) -> None:
    """Show that the server holds the key, without running anything of vLLM's."""
    await _answer(send, 200, [(PROOF.encode(), answer.encode())])
