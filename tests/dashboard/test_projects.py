"""Several projects in one database: which one a page is of, and how a reader switches."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from dashboard import app, page_frame
from dashboard.page_context import PageContext
from db.errors import TrackerError
from db.reads import queries
from db.writes.tracker import Tracker
from tests.support import databases, views


@pytest.fixture
def context(tmp_path: Path) -> Iterator[PageContext]:
    """Two cycles in the first project, one in the project `notes`."""
    with Tracker(tmp_path / "recover.db") as first:
        second = first.new_project("notes", "host:/notes/.recover")
        for tracker, knowledge in ((first, 0.41), (first, 0.42), (second, 0.77)):
            databases.record_cycle(tracker, views.SCORES | {"knowledge": {"recovered": knowledge}})
        yield views.context(first)


def test_the_address_names_the_project_and_every_link_keeps_it(context: PageContext) -> None:
    own, other = views.look(context, "/"), views.look(context, "/?project=notes")
    assert "All cycles 2" in own.text and "All cycles 1" in other.text
    for url in ("/", "/cycle", "/samples", "/behaviour", "/knowledge", "/methods", "/export"):
        links = [given["href"] for given in views.look(context, f"{url}?project=notes").all("a")]
        assert all("project=notes" in link for link in links if not link.startswith("#")), url
    assert not [given for given in own.all("a") if "project=" in given["href"]]


def test_the_list_shows_this_project_and_offers_the_others(context: PageContext) -> None:
    for url, chosen in (("/", "default"), ("/?project=notes", "notes"), ("/?project=unknown", "default")):
        options = [(given["value"], "selected" in given) for given in _projects(context, url)]
        assert options == [(name, name == chosen) for name in ("default", "notes")]


def _projects(context: PageContext, url: str) -> list[dict[str, str]]:
    header = str(page_frame.render(context, url)).split("<main")[0]
    return views.scan(header).all("option")


def test_what_is_kept_of_one_project_is_not_shown_of_another(context: PageContext) -> None:
    for _ in range(2):
        assert "42.0" in views.look(context, "/?project=default").text
        assert "77.0" in views.look(context, "/?project=notes").text


def test_a_review_is_of_the_project_that_was_looked_at(context: PageContext) -> None:
    fields = {"cycle": "1", "decision": "reject", "note": "", "reviewer": "ann", "click": "c"}
    assert "Recorded" in page_frame.submit_form(context, "/cycle?n=1&project=notes", "review", fields)
    notes = context.of_project("notes")
    assert len(queries.reviews(notes.db)) == 1 and queries.reviews(context.db) == []


def test_a_server_that_is_away_leads_to_no_other_project(
    context: PageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object) -> list[str]:
        raise TrackerError("the server is away")

    monkeypatch.setattr(queries, "projects", away)
    fields = {"cycle": "1", "decision": "reject", "note": "", "reviewer": "ann", "click": "c"}
    said = page_frame.submit_form(context, "/cycle?n=1&project=notes", "review", fields)
    assert "The server is away." in said and "Recorded" not in said
    assert queries.reviews(context.db) == queries.reviews(context.of_project("notes").db) == []
    body = page_frame.render(context, "/?project=notes").split("<main")[1]
    assert "The server is away." in body and "41.0" not in body
    routes = FastAPI()
    app._routes(routes, context)
    download = f"/export/file?project=notes&table=runs&format=csv&token={context.token}"
    answer = TestClient(routes).get(download)
    assert (answer.status_code, answer.text) == (503, "The server is away.")


def test_commands_of_another_project_name_its_home_and_its_machine(context: PageContext) -> None:
    context.tracker.new_project("near", f"{socket.gethostname()}:/near/.recover")
    commands = {name: context.of_project(name).command("resume", "r1") for name in context.projects()}
    assert commands == {
        "default": "recover resume r1",
        "near": "recover --home /near/.recover resume r1",
        "notes": "recover --home /notes/.recover resume r1  # on host",
    }
    unknown = context.of_project("notes").of_project("default")  # no home of it is recorded
    assert unknown.command("resume", "r1") == "recover --home HOME resume r1"
