"""Guard the dashboard: allowed hosts and origins, allowed routes, login, response headers.

Gradio adds routes for files, uploads, proxies, queues and more. The dashboard needs none of them, so an allow
list decides, whatever a later version adds.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from dashboard.access.authentication import Login
from recovery.loopback import LOOPBACK
from recovery.same_site import host_name, is_own_origin, is_same_site

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

EVERYWHERE = ("0.0.0.0", "::", "")  # all interfaces
EVENT = "/gradio_api/run/predict"  # the only route that accepts POST
EVENTS = 2  # of a page: one draws, one records
EVENT_FIELDS = {"data": list, "fn_index": int, "session_hash": str}
GET = (
    "/theme.css",
    "/manifest.json",
    "/favicon.ico",
    "/style.css",
    "/page.js",
    "/live",
    "/gradio_api/startup-events",
)
BELOW = re.compile(
    r"/(assets|static)/[A-Za-z0-9_@.-]+(/[A-Za-z0-9_@.-]+)*|/gradio_api/heartbeat/[A-Za-z0-9]{1,40}"
)
LONGEST_BODY = 200_000
BODY_SECONDS = 20.0
NO_PAGE = 404, "there is no such page"
HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
# gr.HTML compiles its template (a constant) with Function: hence unsafe-eval. Inline scripts need the
# nonce, so injected markup cannot run; connections to other hosts are blocked.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval' {nonce}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)


def policy(nonce: str = "") -> bytes:
    return POLICY.format(nonce=f"'nonce-{nonce}'" if nonce else "").encode()


def is_everywhere(host: str) -> bool:
    return host in EVERYWHERE


class RequestGuard:
    """Refuse an unknown Host (DNS rebinding), cross-site requests, and any route that is not listed."""

    def __init__(
        self,
        app: App,
        pages: Collection[str] = ("/",),
        hosts: tuple[str, ...] = LOOPBACK,
        addresses: bool = False,
        password: str | None = None,
        unknown: str = "",
    ) -> None:
        """`unknown` is the HTML document that a browser gets for an address that leads nowhere.

        With `addresses` any IP address is let in beside `hosts`: only a name can be led elsewhere."""
        self.app = app
        self.unknown = unknown
        self.pages = frozenset(pages)
        self.hosts = tuple(host.lower() for host in hosts)
        self.addresses = addresses
        self.login = None if password is None else Login(password)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is None and self.login is not None:
            refusal = self.login.refusal(scope, headers)
        if refusal is not None:
            shown = self.unknown if refusal == NO_PAGE and "text/html" in headers.get("accept", "") else ""
            await _refuse(scope, send, *refusal, html=shown)
            return
        if scope["method"] == "POST":
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    body = await _body(receive)
            except TimeoutError:
                await _refuse(scope, send, 408, "the request took too long to arrive")
                return
            if not _is_event(body):
                await _refuse(scope, send, 400, "the request is no event of a page")
                return
            receive = _replayed(body, receive)

        await self.app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, headers: MutableMapping[str, str]) -> tuple[int, str] | None:
        if scope["type"] != "http":
            return 404, "no websockets here"
        if not self._is_own(host_name(headers)):
            return 400, "unknown host: start the dashboard with --allow-host NAME"
        if not _same_site(scope["method"], headers):
            return 403, "a request from another site"
        if not self._exists(scope):
            return NO_PAGE
        if "transfer-encoding" in headers:
            return 411, "the request does not say how long it is"
        if scope["method"] == "POST" and not 0 < _length(headers) <= LONGEST_BODY:
            return 413, "the request is too long, or does not say how long it is"
        return None

    def _is_own(self, name: str | None) -> bool:
        return name in self.hosts or (self.addresses and _is_address(name or ""))

    def _exists(self, scope: Scope) -> bool:
        path = scope["path"]
        raw = scope.get("raw_path", b"")
        if ".." in path or b"%" in raw.split(b"?")[0]:
            return False
        if scope["method"] == "POST":
            return bool(path == EVENT)
        known = path in self.pages or path in GET or BELOW.fullmatch(path)
        return scope["method"] in ("GET", "HEAD") and bool(known)


def _length(headers: MutableMapping[str, str]) -> int:
    """Return the declared content length; 0 if it is missing or invalid."""
    said = headers.get("content-length", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 10 else 0


async def _body(receive: Receive) -> bytes:
    """Return the request's body; the server has already bounded it by its declared length."""
    parts = []
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _is_event(body: bytes) -> bool:
    """Return whether the body is what a page sends, in strict JSON: Gradio fails on anything else."""
    try:
        event = json.loads(body, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        return False
    if not isinstance(event, dict):
        return False
    typed = all(type(event.get(name)) is kind for name, kind in EVENT_FIELDS.items())
    return typed and event["fn_index"] in range(EVENTS)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body once, then what follows it."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return pending.pop() if pending else await receive()

    return again


def _with_headers(send: Send) -> Send:
    """Return a `send` that adds the headers to every response, and the policy where a page has none."""

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            there = message.get("headers", [])
            has_policy = any(name == b"content-security-policy" for name, _ in there)
            own = [] if has_policy else [(b"content-security-policy", policy())]
            message["headers"] = [*there, *HEADERS, *own]
        await send(message)

    return sent


def _same_site(method: str, headers: MutableMapping[str, str]) -> bool:
    """Check Origin and Sec-Fetch-Site; a POST must carry this site's Origin."""
    if not is_own_origin(headers) or (method == "POST" and "origin" not in headers):
        return False
    typed_or_followed = (
        method == "GET"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
    return is_same_site(headers) or typed_or_followed


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _refuse(scope: Scope, send: Any, status: int, why: str, html: str = "") -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [
        (b"content-type", b"text/html; charset=utf-8" if html else b"text/plain; charset=utf-8"),
        (b"content-security-policy", policy()),
        *HEADERS,
    ]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="recover", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": (html or why).encode()})
