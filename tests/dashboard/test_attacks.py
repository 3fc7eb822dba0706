"""Attacks on the dashboard by what models write and what clients send."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Thread
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from dashboard import app, page_frame
from dashboard.access import http_connection, request_guard
from dashboard.access.request_guard import EVENT
from db.reads import queries
from db.writes.tracker import Tracker
from recovery.listening import listening
from tests.support import databases, views
from tests.support.browser import serving, until

SIZE = 1_000_000
LONG_TEXTS = {
    "right to left": "\u202e" * SIZE,
    "zero width": "a\u200b" * (SIZE // 2),
    "combining": "e" + "\u0301" * SIZE,
    "a loop": "no no no, " * (SIZE // 10),
    "one word": "x" * SIZE,
    "half a key": "sk-" * (SIZE // 3),
    "half an address": "http://a:b" * (SIZE // 10),
    "assignments": "token=" * (SIZE // 6),
    "lines": "\n" * SIZE,
}


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracker]:
    """A cycle in which every prompt, answer and expected answer is a megabyte long."""
    with Tracker(tmp_path_factory.mktemp("home") / "recover.db") as tracker:
        run = tracker.start_run("cycle")
        tracker.record_cycle(run.id)
        for number, stage in enumerate(("clean", "midtrained", "recovered")):
            tracker.record_checkpoint(f"{stage}0", path="/c", kind="full", sha256=stage)
            column: dict[str, Any] = {f"{stage}_id": f"{stage}0"}
            tracker.record_cycle(run.id, **column)
            asked = tracker.start_run("eval", parent=run.id, key=stage)
            items = [
                {"key": name, "prompt": words, "response": f"{words}{number}", "passed": number != 1}
                | {"detail": {"answers": [words]}}
                for name, words in LONG_TEXTS.items()
            ]
            databases.record_score(
                tracker, asked.id, f"{stage}0", databases.score("ifeval", 0.5) | {"items": items}
            )
        yield tracker


@pytest.mark.parametrize(
    "url", ["/samples?n=1", "/samples?n=1&whole=right+to+left", "/compare?a=clean0&b=midtrained0", "/"]
)
def test_a_megabyte_of_model_text_makes_no_megabytes_of_page(tracker: Tracker, url: str) -> None:
    context = views.context(tracker)
    begun = time.process_time()
    page = page_frame.render(context, url)
    assert "could not be drawn" not in page
    assert len(page.encode()) < 5_000_000  # 270 MB without a limit
    assert time.process_time() - begun < 5


@pytest.fixture(scope="module")
def address(tracker: Tracker) -> Iterator[str]:
    with serving(tracker) as base:
        yield base


def event(address: str, data: object) -> httpx.Response:
    """Ask for a page as the browser's script does."""
    body = {"data": [], "fn_index": 0, "event_data": data, "session_hash": "abc"}
    headers = {"origin": address, "content-type": "application/json"}
    url = f"{address}/gradio_api/run/predict"
    return httpx.post(url, content=json.dumps(body), headers=headers, timeout=60)


@pytest.mark.parametrize(
    "data",
    [
        {"url": "/samples?n=1&search=\ud800"},
        {"url": "/cycle?n=\ud800&project=\udfff"},
        {"url": "/?search=%ed%a0%80&pick=²"},
        {"url": {"a": 1}},
        {"url": None},
        ["x"],
        "x",
        None,
    ],
    ids=ascii,
)
def test_an_event_of_any_content_is_answered_with_a_page(address: str, data: object) -> None:
    answer = event(address, data)
    assert answer.status_code == 200 and "could not be drawn" not in answer.text


@pytest.mark.parametrize("letters", [12, 450, 4000])
def test_a_click_finds_a_pasted_text_in_any_script(address: str, tracker: Tracker, letters: int) -> None:
    number = queries.cycle_numbers(tracker.db)[-1]
    tracker.add_review(number, "needs-work", "漢" * letters, "ann")
    page = event(address, {"url": f"/?search={quote('漢' * letters)}"}).text
    assert "No cycle matches" not in page and 'class=\\"cycles\\"' in page


@pytest.mark.parametrize(
    "path",
    [
        "/?q=%ff%fe",
        "/cycle?n=%C3%A9&project=%ff",
        "/live?url=%ed%a0%80",
        "/live?url=/samples%3Fsearch%3D%25ED",
    ],
)
def test_an_address_of_any_bytes_is_answered(address: str, path: str) -> None:
    answer = httpx.get(address + path, timeout=60)
    assert answer.status_code == 200 and "could not be drawn" not in answer.text


@pytest.mark.parametrize(
    "header",
    [
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 999999999",
    ],
)
def test_a_long_body_is_refused_before_it_is_read(address: str, header: str) -> None:
    place = urlsplit(address)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=30) as client:
        lines = [
            "POST /gradio_api/run/predict HTTP/1.1",
            f"Host: {place.netloc}",
            f"Origin: {address}",
            header,
        ]
        client.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = client.recv(200)  # although not a byte of the body was sent
    assert answer.split()[1] in (b"400", b"411", b"413")


def connected(address: str, sent: bytes) -> socket.socket:
    place = urlsplit(address)
    client = socket.create_connection((place.hostname or "", place.port or 0), timeout=60)
    client.sendall(sent)
    return client


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nX-Long: ", b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /"]
)
def test_a_connection_that_sends_no_whole_request_is_closed(
    address: str, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_SECONDS", 0.3)
    with connected(address, sent) as client:
        while client.recv(2**16):  # until the server closes
            pass


def test_a_body_that_does_not_arrive_is_given_up(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_guard, "BODY_SECONDS", 0.3)
    head = f"POST {EVENT} HTTP/1.1\r\nHost: {urlsplit(address).netloc}\r\nOrigin: {address}\r\n"
    with connected(address, f"{head}Content-Length: 100\r\n\r\n{{".encode()) as client:
        assert client.recv(200).split()[1] == b"408"


@contextmanager
def answering_at_length() -> Iterator[tuple[str, Any]]:
    """The address of a server whose only answer is many times what its connections hold, and the server."""
    inside = Starlette(routes=[Route("/", lambda request: PlainTextResponse("x" * 8 * SIZE))])
    with listening("127.0.0.1", 0) as sockets:
        sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        server = app.server(inside, "127.0.0.1", 0, log_level="error", timeout_graceful_shutdown=1)
        thread = Thread(target=server.run, kwargs={"sockets": sockets}, daemon=True)
        thread.start()
        try:
            until(lambda: server.started)
            yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}", server
        finally:
            server.should_exit = True
            thread.join(20)


def test_an_answer_that_is_not_taken_is_given_up_and_one_that_is_taken_slowly_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connection, "STUCK_SECONDS", 0.3)
    request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with answering_at_length() as (address, server):
        begun, taken = time.monotonic(), 0
        with connected(address, request) as slow:
            while part := slow.recv(2**17):
                taken += len(part)
                time.sleep(0.01)
        assert taken > 8 * SIZE and time.monotonic() - begun > 2 * http_connection.STUCK_SECONDS
        with connected(address, request):
            until(lambda: server.server_state.connections)
            until(lambda: not server.server_state.connections, patience=5)


def test_of_too_many_connections_the_oldest_that_waits_is_closed(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "MOST_OPEN", 5)
    with ExitStack() as stack:
        waiting = [stack.enter_context(connected(address, b"")) for _ in range(9)]
        assert httpx.get(f"{address}/live", timeout=60).status_code == 200
        assert [client.recv(1) for client in waiting[:4]] == [b""] * 4


NOT_JSON = ["", "[]", "{", '{"session_hash": NaN}', '{"session_hash": 1e999}', "[" * 100_000]


@pytest.mark.parametrize("body", NOT_JSON, ids=lambda body: body[:30])
def test_a_body_that_is_no_object_in_strict_json_is_refused(address: str, body: str) -> None:
    headers = {"origin": address, "content-type": "application/json"}
    answer = httpx.post(address + EVENT, content=body, headers=headers, timeout=60)
    assert answer.status_code in (400, 413)
