"""Answer a page's address with a whole HTML document, readable before any script has run."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path
from typing import Any

from starlette.responses import HTMLResponse

from dashboard import page_frame
from dashboard.access.request_guard import policy
from dashboard.drawing_queue import DrawingQueue
from dashboard.markup import document
from dashboard.page_context import PageContext


class PageDocuments:
    """Middleware that answers a page's address with the rendered page in a document that starts Gradio."""

    def __init__(self, app: Any, context: PageContext, drawings: DrawingQueue) -> None:
        self.app = app
        self.context = context
        self.drawings = drawings
        self.scripts, self.style_sheets = _gradios_assets()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] not in page_frame.BY_PATH:
            await self.app(scope, receive, send)
            return
        url = f"{scope['path']}?{scope['query_string'].decode('latin-1')}"
        nonce = secrets.token_urlsafe(16)
        made = document(
            "page.html",
            nonce=nonce,
            title=page_frame.title(url),
            config=await self._gradios_config(scope, receive),
            scripts=self.scripts,
            style_sheets=self.style_sheets,
            page=await self.drawings.run(url, lambda: page_frame.render(self.context, url)),
        )
        headers = {"content-security-policy": policy(nonce).decode(), "cache-control": "no-store"}
        await HTMLResponse(made, headers=headers)(scope, receive, send)

    async def _gradios_config(self, scope: Any, receive: Any) -> Any:
        """Ask Gradio for the configuration that its script starts with."""
        parts: list[bytes] = []

        async def collect(message: Any) -> None:
            parts.append(message.get("body", b""))

        headers = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        inner = {"method": "GET", "path": "/config", "raw_path": b"/config", "query_string": b"page="}
        await self.app({**scope, **inner, "headers": headers}, receive, collect)
        return json.loads(b"".join(parts))


def _gradios_assets() -> tuple[list[str], list[str]]:
    """Return Gradio's entry scripts and style sheets, whose names differ from version to version."""
    from gradio.routes import STATIC_TEMPLATE_LIB

    own = (Path(STATIC_TEMPLATE_LIB) / "frontend" / "index.html").read_text(encoding="utf-8")
    scripts = re.findall(r'<script type="module"[^>]* src="\./(assets/[^"]+)"', own)
    style_sheets = re.findall(r'<link rel="stylesheet"[^>]* href="\./(assets/[^"]+)"', own)
    if not scripts:
        raise RuntimeError("this version of Gradio starts otherwise: templates/page.html must follow it")
    return scripts, style_sheets
