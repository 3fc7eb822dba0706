"""Build the Gradio application: one component that holds the page, and its two events."""

from __future__ import annotations

from typing import Any

import gradio as gr

from dashboard import page_frame
from dashboard.address import LONGEST_URL
from dashboard.drawing_queue import DrawingQueue
from dashboard.page_context import PageContext

START = "window.recover.start(trigger, watch, element)"


def blocks(context: PageContext, drawings: DrawingQueue) -> Any:
    """Build the page component, the event that requests a page and the event that submits a form."""

    async def look(event: gr.EventData) -> str:
        url = _said(event, "url")
        return await drawings.run(url, lambda: page_frame.render(context, url))

    async def act(event: gr.EventData) -> str:
        url = _said(event, "url")
        action = _said(event, "action")
        fields = _fields(event)
        if context.knows(_said(event, "token")):
            return await drawings.run(url, lambda: page_frame.submit_form(context, url, action, fields))
        refusal = "Refused: the dashboard was started anew. Try again."
        return await drawings.run(url, lambda: page_frame.render(context, url, refusal))

    quick = {
        "queue": False,
        "show_progress": "hidden",
        "api_visibility": "private",
        "trigger_mode": "multiple",
    }
    with gr.Blocks(title="recover", analytics_enabled=False) as page:
        body = gr.HTML("", js_on_load=START, apply_default_css=False)
        body.click(look, None, body, **quick)
        body.submit(act, None, body, **quick)
    return page


def _said(event: Any, name: str) -> str:
    data = event._data if isinstance(event._data, dict) else {}
    return str(data.get(name, ""))[:LONGEST_URL]


def _fields(event: Any) -> dict[str, str]:
    fields = event._data.get("fields") if isinstance(event._data, dict) else None
    return {str(key): str(value) for key, value in fields.items()} if isinstance(fields, dict) else {}
