"""Render a page in its frame: navigation, theme switch, notice."""

from __future__ import annotations

import logging
import secrets
from types import ModuleType
from typing import Any

from dashboard.desk import Desk
from dashboard.html import Html, join, tag, text
from dashboard.pages import PAGES
from dashboard.query import Query
from dashboard.words import problem, sentence, spoken
from db.errors import TrackerError
from db.reads import queries

log = logging.getLogger(__name__)
BY_PATH: dict[str, ModuleType] = {page.PATH: page for page in PAGES}


def render(desk: Desk, url: str, notice: str = "", *, done: bool = False) -> Html:
    """Return the framed page for an address. Never raises: errors become a sentence on the page."""
    query, desk = Query.of(url), _holding(desk)
    page = BY_PATH.get(query.path)
    version = _version(desk, page, query)
    body = _body(desk, page, query)
    title = page.TITLE if page else "Not found"
    said = tag("p", spoken(notice), class_="notice") if notice else None
    if page and query.number("n") is not None:
        title += f" {query.number('n')}" if page.TITLE == "Cycle" else f" · cycle {query.number('n')}"
    # The id depends on the page, so the browser replaces the whole element, including old input.
    return tag(
        f"page-{query.path.strip('/') or 'cycles'}" if page else "page-none",
        _header(desk, query),
        tag("div", said, id="said", role="status", aria_live="polite"),
        tag("main", body, id="main", tabindex="-1"),
        id="root",
        class_="root",
        data_title=f"{title} · recover",
        data_version=version,
        data_token=desk.token,
        data_done="1" if done else None,
        data_drawn=secrets.token_hex(4),  # unique per rendering: the script waits for a change
    )


def version(desk: Desk, url: str) -> str:
    """Return the version that a browser compares to detect an outdated page."""
    query = Query.of(url)
    return _version(desk, BY_PATH.get(query.path), query)


def act(desk: Desk, url: str, action: str, fields: dict[str, str]) -> Html:
    """Run the action of a submitted form, and return the page with its result."""
    page = BY_PATH.get(Query.of(url).path)
    work = getattr(page, "ACTIONS", {}).get(action)
    if work is None:
        return render(desk, url, f"This page has no action {action!r:.40}.")
    try:
        said = work(desk, Query.of(url), fields)
    except TrackerError as error:
        return render(desk, url, sentence(error))
    return render(desk, url, said, done=True)


def _holding(desk: Desk) -> Desk:
    try:
        return desk.for_one_drawing()
    except TrackerError:  # the page reports it
        return desk


def _version(desk: Desk, page: ModuleType | None, query: Query) -> str:
    own = getattr(page, "version", None)
    try:
        return str(own(desk, query)) if own else desk.version()
    except TrackerError:
        return "unreadable"


def _body(desk: Desk, page: ModuleType | None, query: Query) -> Html:
    if page is None:
        return problem("There is no such page.", "The links above lead to those that there are.")
    try:
        return Html(page.build(desk, query))
    except TrackerError as error:
        return problem(sentence(error))
    except Exception as error:  # a failing page must not break the others
        log.exception("page %s could not be drawn", query.path)
        return problem(
            f"This page could not be drawn: {type(error).__name__}.",
            "The terminal that runs the dashboard has the details.",
        )


def _header(desk: Desk, query: Query) -> Html:
    def entry(page: Any) -> Html:
        here = query.path == page.PATH
        return tag("a", page.TITLE, href=page.PATH, aria_current="page" if here else None)

    shown = [page for page in PAGES if getattr(page, "IN_NAVIGATION", True)]
    return tag(
        "header",
        tag("a", "Skip to content", href="#main", class_="skip"),
        tag("a", tag("span", class_="mark", aria_hidden="true"), "recover", href="/", class_="brand"),
        _project(desk),
        tag("nav", [entry(page) for page in shown], aria_label="Pages"),
        tag("span", text("offline"), id="offline", role="status", hidden=True),
        tag("button", "Theme", id="theme", type="button", title="Light, dark, or as the system says"),
        class_="top",
    )


def _project(desk: Desk) -> Html | None:
    """Return the label of the project that the pages show, if the database holds several."""
    try:
        several = len(desk.cached("projects", lambda: queries.projects(desk.db))) > 1
    except TrackerError:  # the page reports it
        return None
    return tag("span", f"project {desk.db.project}", class_="soft small") if several else None


def document_head(nonce: str) -> str:
    """Return the head elements of the frame; the script runs before Gradio's."""
    return join(
        tag("link", rel="stylesheet", href="/shell.css"),
        tag("link", rel="icon", href="/favicon.ico"),
        tag("script", src="/shell.js", nonce=nonce),
    )
