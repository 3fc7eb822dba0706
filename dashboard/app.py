"""`recover dashboard`: the cycles, their verdicts, and a person's review of them.

Thin for now: one page over `db.queries`, reviews written through `db.tracker`. Names and notes are shown only
in widgets that never render markup.
"""

from __future__ import annotations

import getpass
from typing import Any

from dashboard import plots
from dashboard.security import LOOPBACK, Guard, is_loopback
from db import queries
from db.errors import BadRequest, TrackerError
from db.tracker import DECISIONS, Tracker

COLUMNS = ("cycle", "status", "behaviour", "knowledge", "retention", "IFEval", "known", "review")
EMPTY = "No cycle yet: run `recover demo`, or `recover cycle --docs DIR`."
PAGE = 200  # cycles on the page


def table(cycles: list[dict[str, Any]]) -> list[list[Any]]:
    """A line a cycle, newest first."""
    return [[_cell(value) for value in _line(row)] for row in reversed(cycles)]


def _line(row: dict[str, Any]) -> tuple[Any, ...]:
    verdict, scores = row.get("verdict") or {}, row.get("scores") or {}
    words = tuple(verdict.get(axis) for axis in ("behaviour", "knowledge", "retention"))
    recovered = tuple(scores.get(suite, {}).get("recovered") for suite in ("ifeval", "knowledge"))
    return (row["cycle"], row["status"], *words, *recovered, (row.get("review") or {}).get("decision"))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def build(tracker: Tracker) -> Any:
    """The page."""
    import gradio as gr

    def look() -> tuple[Any, Any, Any, Any]:
        cycles = queries.cycles(tracker.db, limit=PAGE)
        hint = gr.update(value=EMPTY, visible=not cycles)
        return plots.plane(cycles), plots.timeline(cycles), table(cycles), hint

    def review(number: float | None, decision: str | None, note: str, reviewer: str) -> str:
        if not number or not decision or not reviewer.strip():
            return "Give the cycle's number, a decision and your name."
        try:
            tracker.add_review(int(number), decision, note, reviewer.strip())
        except TrackerError as error:
            return str(error)
        return f"Recorded: cycle {int(number)}: {decision}."

    with gr.Blocks(title="recover", analytics_enabled=False) as page:
        gr.Markdown("# recover\nDid it learn, did it keep its manners, may it ship?")
        empty = gr.Textbox(show_label=False, interactive=False, container=False, visible=False)
        with gr.Row():
            plane, line = gr.Plot(show_label=False), gr.Plot(show_label=False)
        rows = gr.Dataframe(headers=list(COLUMNS), datatype="str", interactive=False, label="cycles")
        with gr.Row():
            number = gr.Number(label="cycle", precision=0)
            decision = gr.Radio(list(DECISIONS), label="decision")
            reviewer = gr.Textbox(label="your name", value=_login())
        note = gr.Textbox(label="note")
        said = gr.Textbox(label="review", interactive=False)
        shown = [plane, line, rows, empty]
        gr.Button("Record review", variant="primary").click(
            review, [number, decision, note, reviewer], said, api_name=False
        ).then(look, None, shown, api_name=False)
        page.load(look, None, shown, api_name=False)
        gr.Timer(10).tick(look, None, shown, api_name=False)
    return page


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def make(tracker: Tracker) -> Any:
    """The whole application behind its guard."""
    import gradio as gr
    from fastapi import FastAPI

    return Guard(
        gr.mount_gradio_app(
            FastAPI(docs_url=None, redoc_url=None, openapi_url=None), build(tracker), path="/"
        )
    )


def picture_of(tracker: Tracker, path: str) -> None:
    """The plane of the newest cycles as a file; its ending says which format."""
    cycles = queries.cycles(tracker.db, limit=PAGE)
    if not cycles:
        raise BadRequest(EMPTY)
    try:
        plots.plane(cycles).savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise BadRequest(f"{path} cannot be written: {error}") from error


def serve(tracker: Tracker, *, host: str = LOOPBACK[0], port: int = 7860) -> None:
    """Serves until interrupted; on this machine's own address only, as there is no login yet."""
    if not is_loopback(host):
        raise BadRequest(f"--host {host}: the dashboard has no login yet: use {LOOPBACK[0]} and a tunnel")
    import uvicorn

    print(f"dashboard on http://{host}:{port} (Ctrl-C ends it)", flush=True)
    uvicorn.run(make(tracker), host=host, port=port, log_level="warning")
