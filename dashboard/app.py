"""Build and serve the web application of `recover dashboard`; draw its static picture.

Gradio handles the events: one component holds the page, and an event takes an address and returns the page
for it. The first document sent to a browser already contains the page, so it is readable before any script
has run.
"""

from __future__ import annotations

import atexit
import getpass
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dashboard import page_frame
from dashboard.access.authentication import SHORTEST_PASSWORD, is_utf8, is_weak
from dashboard.access.request_guard import RequestGuard, is_everywhere
from dashboard.address import LONGEST_URL
from dashboard.drawing_queue import DrawingQueue
from dashboard.figures.picture import standalone
from dashboard.figures.plane import cycles_plane, is_measured
from dashboard.markup import document
from dashboard.page_context import PageContext
from dashboard.page_document import PageDocuments
from dashboard.page_parts import sentence
from dashboard.pages import PAGES
from db.errors import BadRequest, TrackerError
from db.reads import queries
from db.writes.tracker import Tracker
from recovery.command_line import Command, unnamed
from recovery.loopback import LOOPBACK, in_url, is_loopback

STATIC = Path(__file__).parent / "static"
SWITCH_SECONDS = 0.0005  # between threads: a light page is not slowed by heavy ones beside it
MOST_CYCLES, MOST_PATHS = 200, 12  # drawn in the picture, as marks and as paths


def make(
    tracker: Tracker,
    *,
    hosts: tuple[str, ...] = LOOPBACK,
    addresses: bool = False,
    password: str | None = None,
    command: Command = unnamed,
) -> Any:
    """Return the ASGI application, wrapped in the security guard; `command` writes those that pages show."""
    _keep_files_private()
    sys.setswitchinterval(SWITCH_SECONDS)
    import gradio as gr
    from fastapi import FastAPI

    from dashboard.gradio_page import blocks

    reviewer = "" if password else _login()  # a password is for several people
    context = PageContext(tracker, token=secrets.token_urlsafe(24), reviewer=reviewer, typed=command)
    drawings = DrawingQueue()
    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    served = _routes(outer, context)
    app = gr.mount_gradio_app(
        outer,
        blocks(context, drawings),
        path="/",
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        theme=gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
    )
    return RequestGuard(
        PageDocuments(app, context, drawings),
        pages=(*page_frame.BY_PATH, *served),
        hosts=hosts,
        addresses=addresses,
        password=password,
        unknown=document("unknown.html", page=page_frame.unknown()),
    )


def _keep_files_private() -> None:
    """Point Gradio to a private temporary folder; another user may have created /tmp/gradio."""
    folder = tempfile.mkdtemp(prefix="recover-dashboard-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["GRADIO_TEMP_DIR"] = folder


def _routes(app: Any, context: PageContext) -> list[str]:
    """Add the routes beside Gradio's: style sheet, script, page versions, downloads; return the downloads."""
    from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
    from starlette.requests import Request

    def static(name: str, kind: str) -> None:
        fresh = {"cache-control": "no-cache"}  # else a browser goes on with those of an earlier version
        app.add_api_route(f"/{name}", lambda: FileResponse(STATIC / name, media_type=kind, headers=fresh))

    def live(url: str = "/") -> JSONResponse:
        return JSONResponse(
            {"version": page_frame.version(context, url[:LONGEST_URL])}, headers={"cache-control": "no-store"}
        )

    static("style.css", "text/css")
    static("page.js", "text/javascript")
    app.add_api_route("/live", live)
    served = {path: work for page in PAGES for path, work in getattr(page, "ROUTES", {}).items()}
    for path, work in served.items():

        def serve(request: Request, work: Any = work) -> Any:
            try:
                return page_frame.route(context, str(request.url), work)
            except TrackerError as error:
                return PlainTextResponse(sentence(error), 503)

        app.add_route(path, serve)
    return list(served)


def serve(
    tracker: Tracker,
    *,
    host: str = LOOPBACK[0],
    port: int = 7860,
    names: tuple[str, ...] = (),
    password: str | None = None,
    command: Command = unnamed,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve until interrupted, and announce the address once it is served.

    Any address except loopback requires a password."""
    _require_login(host, password)
    from recovery.listening import listening

    with listening(host, port) as sockets, suppress(KeyboardInterrupt):
        app = make(
            tracker,
            hosts=(*LOOPBACK, *_names(host), *names),
            addresses=is_everywhere(host),
            password=password or None,
            command=command,
        )
        serving = server(app, host, port, started=lambda: announce(_url(host, port)))
        if callable(signal.getsignal(signal.SIGHUP)):  # the command's way to end; below nohup there is none
            signal.signal(signal.SIGHUP, serving.handle_exit)  # uvicorn hears only the other two
        serving.run(sockets=sockets)


def _require_login(host: str, password: str | None) -> None:
    """Refuse an address for other machines without a password, and a password that fits none."""
    if not is_loopback(host) and not password:
        raise BadRequest(
            f"--host {host}: other machines need a login: set RECOVER_DASHBOARD_PASSWORD, "
            f"or use {LOOPBACK[0]} and a tunnel"
        )
    if password and not is_utf8(password):
        raise BadRequest(
            "RECOVER_DASHBOARD_PASSWORD is not UTF-8, in which browsers send it: set it from a UTF-8 terminal"
        )
    if password and is_weak(password):
        raise BadRequest(
            f"RECOVER_DASHBOARD_PASSWORD is too short: it needs {SHORTEST_PASSWORD} visible characters"
        )


def server(
    app: Any, host: str, port: int, *, started: Callable[[], None] = lambda: None, **options: Any
) -> Any:
    """Return a uvicorn server of the application, which calls `started` once it serves."""
    import uvicorn

    from dashboard.access.http_connection import HttpConnection
    from dashboard.access.listening import Server

    settings = {"log_level": "warning", "server_header": False, **options}
    return Server(uvicorn.Config(app, host=host, port=port, http=HttpConnection, **settings), started)


def _url(host: str, port: int) -> str:
    """Return the address for a browser: of all interfaces it has this machine's name."""
    name = socket.gethostname().lower() if is_everywhere(host) else host
    return f"http://{in_url(name)}:{port}"


def _names(host: str) -> tuple[str, ...]:
    """Return the host names that browsers may send: the address, and this machine's where others reach it."""
    return (host,) if is_loopback(host) else (host, socket.gethostname(), socket.getfqdn())


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def picture_of(tracker: Tracker, path: Path) -> None:
    """Write the plane of the newest cycles as a picture: SVG."""
    cycles = queries.cycles(tracker.db, limit=MOST_CYCLES)
    if not cycles:
        raise BadRequest("No cycle yet: run `recover demo`, or `recover cycle --docs DIR`.")
    if path.suffix.lower() != ".svg":
        raise BadRequest(f"{path}: the picture is drawn as SVG: give a name that ends in .svg")
    measured = [row["cycle"] for row in cycles if is_measured(row)]
    plane = cycles_plane(cycles, measured[-MOST_PATHS:])
    if not measured:
        raise BadRequest(
            "no cycle has scores of both IFEval and knowledge yet, which the picture shows: wait for one, "
            "or let the next `recover cycle` ask about both"
        )
    try:
        path.write_text(standalone(plane), encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}: give another name") from error
