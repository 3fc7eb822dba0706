"""Authenticate every request to a vLLM server with an ASGI middleware, weight updates included.

vLLM's `--api-key` protects only the paths below /v1. Without a key, only requests that a web page cannot send
are answered: with a loopback Host header, which prevents DNS rebinding, of no other origin, and with JSON as
their body, which no form sends. The answer to a nonce is its HMAC under
the key, so that the process that started the server can tell it from another one on the same port.

Of the workers' methods only those of the weight updates are called: others write files wherever they are
asked.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from recovery import untrusted_json
from recovery.loopback import is_loopback
from recovery.same_site import host_name, is_same_site

KEY_VARIABLE = "VLLM_API_KEY"
NONCE, PROOF = "x-recover-nonce", "x-recover-proof"
WORKER_CALLS = "/collective_rpc"
WORKER_METHODS = ("load_student_weights", "weights_state")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def proof(key: str, nonce: str) -> str:
    """Return the HMAC of a nonce under the key."""
    return hmac.new(key.encode(), nonce.encode(), hashlib.sha256).hexdigest()


class KeyGuard:
    """Answer 401 to requests without the key; if no key is set, refuse those that a web page may send."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app
        self.key = os.environ.get(KEY_VARIABLE, "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value for name, value in scope.get("headers", [])}
        status = self._status(scope.get("method", "GET"), headers)
        if scope["type"] != "http" and status:
            await send({"type": "websocket.close", "code": 1008})
        elif status:
            await _answer(send, status)
        elif self.key and NONCE in headers:
            await _send_proof(send, proof(self.key, headers[NONCE].decode("latin-1")))
        elif scope.get("method") == "POST" and scope["path"].endswith(WORKER_CALLS):
            await self._call_worker(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _call_worker(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a call of a worker's method if it is one of ours; answer 403 to any other."""
        body = await _body(receive)
        if _method(body) not in WORKER_METHODS:
            await _answer(send, 403)
            return
        messages = iter([{"type": "http.request", "body": body}])

        async def receive_again() -> MutableMapping[str, Any]:
            return next(messages, None) or await receive()

        await self.app(scope, receive_again, send)

    def _status(self, method: str, headers: dict[str, bytes]) -> int:
        """Return the HTTP status of a refusal, or 0 to accept the request."""
        if self.key:
            given = headers.get("authorization", b"")
            expected = f"Bearer {self.key}".encode()
            proving = NONCE in headers and not given
            return 0 if proving or hmac.compare_digest(given, expected) else 401
        return _status_without_key(method, {name: value.decode("latin-1") for name, value in headers.items()})


def _status_without_key(method: str, headers: dict[str, str]) -> int:
    """Return the status of a refusal: of another host's name, of another site's page, of a form.

    A browser names the origin of every POST, so that one without a body needs no type.
    """
    if not is_loopback(host_name(headers) or "") or not is_same_site(headers):
        return 403
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    is_empty = not kind and headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
    return 0 if method in ("GET", "HEAD") or kind == "application/json" or is_empty else 415


async def _body(receive: Receive) -> bytes:
    """Return the whole body of a request."""
    parts = []
    while (message := await receive()).get("more_body"):
        parts.append(message.get("body", b""))
    return b"".join([*parts, message.get("body", b"")])


def _method(body: bytes) -> Any:
    """Return the name of the method that a request calls; None where it names none."""
    try:
        return untrusted_json.parse_object(body).get("method")
    except ValueError:
        return None


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers or []})
    await send({"type": "http.response.body", "body": b""})


async def _send_proof(send: Send, answer: str) -> None:
    """Send the proof that the server holds the key, without calling vLLM's application."""
    await _answer(send, 200, [(PROOF.encode(), answer.encode())])
