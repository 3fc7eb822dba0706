"""Render a page in its frame: navigation, theme switch, notice."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dashboard.address import PROJECT, Address
from dashboard.form_controls import choose
from dashboard.markup import Html, tag
from dashboard.page_context import PageContext
from dashboard.page_parts import problem, sentence, with_code
from dashboard.pages import PAGES
from db.errors import TrackerError

log = logging.getLogger(__name__)
BY_PATH: dict[str, ModuleType] = {page.PATH: page for page in PAGES}


def render(context: PageContext, url: str, notice: str = "", *, done: bool = False) -> Html:
    """Return the framed page for an address. Never raises: errors become a sentence on the page."""
    address = Address.of(url)
    context = _of_project(_holding(context), address)
    page = BY_PATH.get(address.path)
    version = _version(context)
    body = _body(context, page, address)
    said = tag("p", with_code(notice), class_="notice") if notice else None
    # The id depends on the page, so the browser replaces the whole element, including old input.
    return tag(
        f"page-{address.path.strip('/') or 'cycles'}" if page else "page-none",
        _header(context, address),
        tag("div", said, id="said", role="status", aria_live="polite"),
        tag("main", body, id="main", tabindex="-1"),
        id="root",
        class_="root",
        data_title=title(url),
        data_path=address.path,
        data_version=version,
        data_token=context.token,
        data_done="1" if done else None,
        data_drawn=secrets.token_hex(4),  # unique per rendering: the script waits for a change
    )


def title(url: str) -> str:
    """Return the title of an address's window, such as "Cycle 3 · recover"."""
    address = Address.of(url)
    page, number = BY_PATH.get(address.path), address.number("n")
    name = page.TITLE if page else "Not found"
    if page and number is not None:
        name += f" {number}" if page.TITLE == "Cycle" else f" · cycle {number}"
    return f"{name} · recover"


def unknown() -> Html:
    """Return the page of an address that leads nowhere, with the way to all others; it needs no script."""
    address = Address("")
    header = tag("header", _brand(address), _navigation(address), class_="top")
    return tag("div", header, tag("main", _no_page(), id="main"), id="root", class_="root")


def version(context: PageContext, url: str) -> str:
    """Return the version by which a browser detects an outdated page."""
    return _version(_of_project(context, Address.of(url)))


def submit_form(context: PageContext, url: str, action: str, fields: dict[str, str]) -> Html:
    """Run the action of a submitted form, and return the page with its result."""
    address = Address.of(url)
    page = BY_PATH.get(address.path)
    work = getattr(page, "ACTIONS", {}).get(action)
    if work is None:
        return render(context, url, f"This page has no action {action!r:.40}.")
    try:
        said = work(_in_project(context, address), address, fields)
    except TrackerError as error:
        return render(context, url, sentence(error))
    return render(context, url, said, done=True)


def route(context: PageContext, url: str, work: Callable[[PageContext, Address], Any]) -> Any:
    """Answer a route of a page's own, such as a download, in the project of its address."""
    address = Address.of(url)
    return work(_in_project(context, address), address)


def _in_project(context: PageContext, address: Address) -> PageContext:
    """Return the context of the project that the address names, if there is one of this name."""
    wanted = address.text(PROJECT)
    return context.of_project(wanted) if wanted in context.projects() else context


def _of_project(context: PageContext, address: Address) -> PageContext:
    """Return the context of the address's project, or, where the database does not answer, the given one."""
    try:
        return _in_project(context, address)
    except TrackerError:  # the page reports it
        return context


def _holding(context: PageContext) -> PageContext:
    try:
        return context.for_one_drawing()
    except TrackerError:  # the page reports it
        return context


def _version(context: PageContext) -> str:
    try:
        return context.version()
    except TrackerError:
        return "unreadable"


def _body(context: PageContext, page: ModuleType | None, address: Address) -> Html:
    if page is None:
        return _no_page()
    try:
        return Html(page.build(_in_project(context, address), address))
    except TrackerError as error:
        return problem(sentence(error))
    except Exception as error:  # a failing page must not break the others
        log.exception("page %s could not be drawn", address.path)
        return problem(
            f"This page could not be drawn: {type(error).__name__}.",
            "The terminal that runs the dashboard has the details.",
        )


def _no_page() -> Html:
    return problem("There is no such page.", "The links above lead to those that there are.")


def _brand(address: Address) -> Html:
    mark = tag("span", class_="mark", aria_hidden="true")
    return tag("a", mark, "recover", href=address.page("/"), class_="brand")


def _navigation(address: Address) -> Html:
    def entry(page: Any) -> Html:
        here = address.path == page.PATH
        return tag("a", page.TITLE, href=address.page(page.PATH), aria_current="page" if here else None)

    return tag("nav", [entry(page) for page in PAGES], aria_label="Pages")


def _header(context: PageContext, address: Address) -> Html:
    return tag(
        "header",
        tag("a", "Skip to content", href="#main", class_="skip"),
        _brand(address),
        _project(context),
        _navigation(address),
        tag("span", "offline", id="offline", role="status", hidden=True),
        tag("button", "Theme", id="theme", type="button", title="Light, dark, or as the system says"),
        class_="top",
    )


def _project(context: PageContext) -> Html | None:
    """Return the list of projects, if the database holds several, to see and switch the shown one."""
    try:
        names = context.projects()
    except TrackerError:  # the page reports it
        return None
    if len(names) < 2:
        return None
    switch = choose("Project", PROJECT, {name: name for name in names}, context.db.project, reset="*")
    return tag("div", switch, class_="project")
