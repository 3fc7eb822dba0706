"""Build the Gradio application: one component that holds the page, and its two events."""

from __future__ import annotations

from typing import Any

import gradio as gr

from dashboard import page_frame
from dashboard.page_context import PageContext

START = "window.recover.start(trigger, watch, element)"


def blocks(context: PageContext) -> Any:
    """Build the page component, the event that requests a page and the event that submits a form."""

    def look(event: gr.EventData) -> str:
        return page_frame.render(context, _said(event, "url"))

    def act(event: gr.EventData) -> str:
        if not context.knows(_said(event, "token")):
            return page_frame.render(
                context, _said(event, "url"), "Refused: the dashboard was started anew. Try again."
            )
        fields = event._data.get("fields")
        given = {str(key): str(value) for key, value in fields.items()} if isinstance(fields, dict) else {}
        return page_frame.submit_form(context, _said(event, "url"), _said(event, "action"), given)

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
    return str(data.get(name, ""))[:4000]
