"""Who may talk to the dashboard and what exists there: this machine's browser, and only what is needed."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from starlette.testclient import TestClient

from dashboard import app
from dashboard.access import login_attempts
from dashboard.access.request_guard import EVENT, RequestGuard
from db.errors import BadRequest
from db.reads import queries
from db.writes.tracker import Tracker
from recovery.loopback import LOOPBACK
from tests.support.dashboards import fill

BASE = "http://127.0.0.1:7860"
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RequestGuard, Tracker]]:
    with Tracker(tmp_path_factory.mktemp("home") / "recover.db") as tracker:
        fill(tracker, 2)
        yield app.make(tracker), tracker


@pytest.fixture
def client(served: tuple[RequestGuard, Tracker]) -> TestClient:
    return TestClient(served[0], base_url=BASE)


def routes(served: Any) -> set[str]:
    """Every path that Gradio or we serve, parameters filled in."""
    found = set()
    waiting = [served.app.app]
    while waiting:
        for route in waiting.pop().routes:
            inner = getattr(route, "original_router", None) or getattr(route, "app", None)
            if hasattr(inner, "routes"):
                waiting.append(inner)
            elif getattr(route, "path", None):
                found.add(re.sub(r"\{[^}]*\}", "x", route.path))
    return found


def test_an_address_that_leads_nowhere_shows_the_way_to_every_page(client: TestClient) -> None:
    answer = client.get("/nowhere<b>?x=<i>", headers={"accept": "text/html,*/*", "host": "127.0.0.1:7860"})
    assert answer.status_code == 404 and "There is no such page." in answer.text
    assert 'href="/methods"' in answer.text and "nowhere" not in answer.text
    assert client.get("/nowhere").text == "there is no such page"


def ask(
    guard: Any, method: str, path: str, headers: dict[str, str], client: str = "127.0.0.1"
) -> tuple[int, bytes, dict[str, str]]:
    """What the guard answers, without a client between: thousands of questions in seconds."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    given = {"host": "127.0.0.1:7860", "content-length": "2", **headers}
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": pairs,
        "client": (client, 50_000),
    }
    asyncio.run(guard(scope, receive, send))
    back = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], sent[1]["body"], back


def test_there_are_many_routes_to_refuse(served: tuple[RequestGuard, Tracker]) -> None:
    paths = routes(served[0])
    assert len(paths) > 50 and "/gradio_api/upload" in paths and "/live" in paths


FOREIGN: list[dict[str, str]] = [
    {"host": "evil.example"},
    {"host": "127.0.0.1.evil.example:7860"},
    {"host": "2130706433:7860"},
    {"host": "localhost.evil.example"},
    {"host": ""},
    {"host": "127.0.0.1:7860@evil.example"},
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:7861"},
    {"origin": "https://127.0.0.1:7860.evil.example"},
    {"origin": "http://localhost:7860"},
    {"origin": "file://"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_no_route_answers_another_site(served: tuple[RequestGuard, Tracker], headers: dict[str, str]) -> None:
    for path in sorted(routes(served[0]) | {"/", "/cycle", "/live"}):
        for method in ("GET", "POST"):
            status, body, back = ask(served[0], method, path, headers)
            assert status in (400, 403), (method, path)
            assert b"page-" not in body and "access-control-allow-origin" not in back


@pytest.mark.parametrize(
    ("url", "title"), [("/", "Cycles"), ("/cycle?n=2", "Cycle 2"), ("/samples?n=2", "Samples · cycle 2")]
)
def test_a_window_has_the_title_of_its_page_before_any_script_runs(
    client: TestClient, url: str, title: str
) -> None:
    assert f"<title>{title} · recover</title>" in client.get(url).text


def test_a_link_from_another_site_may_be_followed(client: TestClient) -> None:
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/cycle?n=1", headers=followed).status_code == 200


ALLOWED = {
    "/",
    "/cycle",
    "/behaviour",
    "/samples",
    "/live",
    "/style.css",
    "/page.js",
    "/theme.css",
    "/manifest.json",
    "/favicon.ico",
    "/assets/x",
    "/static/x",
    "/gradio_api/startup-events",
    "/gradio_api/heartbeat/x",
}


def test_only_what_is_needed_exists(served: tuple[RequestGuard, Tracker]) -> None:
    own = {"sec-fetch-site": "same-origin", "origin": BASE}
    closed = sorted(routes(served[0]) - ALLOWED - served[0].pages - {EVENT})
    assert closed
    for path in closed:
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            assert ask(served[0], method, path, own)[0] == 404, (method, path)


TRAVERSALS = [
    "/file=/etc/passwd",
    "/gradio_api/file=/etc/passwd",
    "/gradio_api/file=../../etc/passwd",
    "/file/etc/passwd",
    "/gradio_api/file/etc/passwd",
    "/assets/../../../../etc/passwd",
    "/assets/..%2f..%2f..%2fetc/passwd",
    "/assets/%2e%2e/%2e%2e/etc/passwd",
    "/static/../__init__.py",
    "/static/....//....//etc/passwd",
    "/static/..%5c..%5cetc",
    "/assets//etc/passwd",
    "/gradio_api/proxy=http://169.254.169.254/",
    "/proxy=http://a.b/",
    "/gradio_api/upload",
    "/upload",
    "/gradio_api/stream/x/1/1/playlist.m3u8",
    "/svelte/../../etc/passwd",
    "/custom_component/x/client/component/../../x",
    "/gradio_api/custom_component/x/client/component/index.js",
    "/config",
    "/gradio_api/info",
    "/gradio_api/openapi.json",
    "/monitoring",
    "/gradio_api/queue/data",
    "/gradio_api/queue/join",
    "/gradio_api/call/look",
    "/gradio_api/run/look",
    "/gradio_api/api/predict",
    "/gradio_api/app_id",
    "/gradio_api/token",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/login",
    "/logout",
    "/robots.txt",
    "/recover.db",
    "/recover.yaml",
    "/.env",
    "/page.js/../app.py",
    "/gradio_api/deep_link",
    "/cycle/../app.py",
    "/gradio_api/vibe-code/",
    "/gradio_api/reset",
    "/gradio_api/component_server",
    "/gradio_api/process_recording",
]


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_file_and_no_other_door(served: tuple[RequestGuard, Tracker], path: str) -> None:
    for method in ("GET", "POST"):
        status, body, _ = ask(served[0], method, path, {"origin": BASE})
        assert status == 404 and b"root:" not in body


def test_websockets_are_closed(served: tuple[RequestGuard, Tracker]) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/gradio_api/queue/join", "headers": [(b"host", b"127.0.0.1:7860")]}
    asyncio.run(served[0](scope, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_every_answer_forbids_framing_sniffing_and_foreign_content(client: TestClient) -> None:
    for path in ("/", "/live", "/style.css", "/nowhere", "/theme.css"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert (
            "frame-ancestors 'none'" in policy
            and "default-src 'none'" in policy
            and "connect-src 'self'" in policy
        )
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]


def test_script_and_style_sheet_are_asked_for_anew(client: TestClient) -> None:
    for path in ("/page.js", "/style.css"):
        assert client.get(path).headers["cache-control"] == "no-cache"


def test_the_document_points_nowhere_else_and_its_nonce_is_new_each_time(client: TestClient) -> None:
    first, second = client.get("/"), client.get("/")
    nonces = [re.findall(r'<script[^>]*nonce="([^"]+)"', page.text) for page in (first, second)]
    assert len(nonces[0]) == first.text.count("<script") and len(set(nonces[0])) == 1
    assert nonces[0][0] != nonces[1][0] and nonces[0][0] in first.headers["content-security-policy"]
    loads = re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:)?//[^"]*"', first.text)
    assert loads == []


# Events -----------------------------------------------------------------------------------------------------


def event(client: TestClient, name: int, data: dict[str, Any], **headers: str) -> Any:
    body = {"data": [], "fn_index": name, "event_data": data, "session_hash": "abc"}
    return client.post("/gradio_api/run/predict", json=body, headers={"origin": BASE, **headers})


def act(client: TestClient, token: str, reviewer: str) -> str:
    fields = {"cycle": "1", "decision": "reject", "note": "", "reviewer": reviewer}
    said = event(client, 1, {"url": "/cycle?n=1", "action": "review", "token": token, "fields": fields})
    assert said.status_code == 200
    return str(said.json()["data"][0])


def test_a_page_comes_by_event_and_a_change_needs_the_launchs_token(
    served: tuple[RequestGuard, Tracker], client: TestClient
) -> None:
    assert "page-cycle" in event(client, 0, {"url": "/cycle?n=1"}).json()["data"][0]
    token = re.findall(r'data-token="([^"]+)"', client.get("/cycle?n=1").text)[0]
    assert "Refused" in act(client, "", "eve") and "Refused" in act(client, token[:-1], "eve")
    assert "Recorded" in act(client, token, "ann")
    assert [row["reviewer"] for row in queries.reviews(served[1].db)] == ["ann"]


def test_an_event_without_an_origin_or_too_long_is_refused(client: TestClient) -> None:
    body = {"data": [], "fn_index": 0, "event_data": {"url": "/"}, "session_hash": "abc"}
    assert client.post("/gradio_api/run/predict", json=body).status_code == 403
    assert event(client, 0, {"url": "x" * 300_000}).status_code == 413
    assert "no such page" in event(client, 0, {"url": "/x" * 5000}).json()["data"][0]


@pytest.mark.parametrize(
    "changed", [{"fn_index": True}, {"fn_index": 2}, {"data": {}}, {"session_hash": None}]
)
def test_what_is_no_event_of_a_page_is_refused(client: TestClient, changed: dict[str, Any]) -> None:
    body = {"data": [], "fn_index": 0, "event_data": {"url": "/"}, "session_hash": "abc", **changed}
    said = client.post("/gradio_api/run/predict", json=body, headers={"origin": BASE})
    assert (said.status_code, said.text) == (400, "the request is no event of a page")


# Login ------------------------------------------------------------------------------------------------------


def basic(words: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(words.encode()).decode()}


def test_with_a_password_nothing_is_seen_without_it(
    served: tuple[RequestGuard, Tracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.access.login_attempts.BURST", 100)
    guard = RequestGuard(served[0].app, served[0].pages, hosts=(*LOOPBACK, "lab.example"), password=PASSWORD)
    away = TestClient(guard, base_url="http://lab.example")
    for headers in (
        {},
        basic("ann:wrong"),
        basic("ann"),
        basic(f"{PASSWORD}:"),
        {"authorization": "Basic ???"},
        {"authorization": f"Bearer {PASSWORD}"},
    ):
        for path in ("/", "/live", "/page.js", "/gradio_api/startup-events"):
            assert away.get(path, headers=headers).status_code == 401
    assert ask(guard, "GET", "/live", {"authorization": "Basic \xe9\xe9", "host": "lab.example"})[0] == 401
    assert away.get("/", headers=basic(f"ann:{PASSWORD}")).status_code == 200
    assert away.get("/", headers=basic(f"ann:{PASSWORD}") | {"host": "other.example"}).status_code == 400


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "lab.example"])
def test_other_machines_need_a_login(host: str, tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker, pytest.raises(BadRequest, match="need a login"):
        app.serve(tracker, host=host)


def test_any_loopback_address_is_this_machine_alone() -> None:
    app._require_login("127.0.0.2", None)
    assert app._names("127.0.0.2") == ("127.0.0.2",)
    assert set(app._names("192.168.1.5")) > {"192.168.1.5"}


def test_a_password_cannot_be_guessed_by_many_tries(served: tuple[RequestGuard, Tracker]) -> None:
    guard = RequestGuard(served[0].app, served[0].pages, password=PASSWORD)

    def status(address: str, words: str) -> int:
        return ask(guard, "GET", "/live", basic(words), client=address)[0]

    tries = [status("10.0.0.1", f"ann:guess {i}") for i in range(200)]
    assert tries.count(401) == login_attempts.BURST and tries[-1] == 429
    assert status("10.0.0.1", f"ann:{PASSWORD}") == 429  # not even compared
    assert status("10.0.0.2", f"ann:{PASSWORD}") == 200
    networks = [status(f"2001:db8::{i:x}", "ann:guess") for i in range(30)]
    assert networks.count(401) == login_attempts.BURST
    everywhere = [status(f"10.1.{i // 250}.{i % 250}", "ann:guess") for i in range(300)]
    assert everywhere.count(401) < login_attempts.BURST_OF_ALL + 5
    assert status("10.0.0.2", f"ann:{PASSWORD}") == 200  # it gave the right one before


def test_an_ipv4_address_written_as_ipv6_has_its_own_limit() -> None:
    """As a server that listens on :: sees them: in one network of IPv6 they would be all of IPv4."""
    attempts = login_attempts.LoginAttempts()
    for _ in range(login_attempts.BURST):
        attempts.failed("::ffff:203.0.113.9")
    assert attempts.allowed("::ffff:10.0.0.5")
    assert not attempts.allowed("::ffff:203.0.113.9") and not attempts.allowed("203.0.113.9")


def test_who_has_logged_in_takes_no_try_of_new_addresses() -> None:
    attempts = login_attempts.LoginAttempts()
    attempts.succeeded("10.0.0.2")
    for _ in range(login_attempts.BURST_OF_ALL):
        attempts.failed("10.0.0.2")
    assert attempts.allowed("10.0.0.1") and not attempts.allowed("10.0.0.2")


def test_only_the_newest_addresses_that_have_logged_in_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(login_attempts, "MOST_ADDRESSES", 2)
    attempts = login_attempts.LoginAttempts()
    for number in (1, 2, 3):
        attempts.succeeded(f"10.0.0.{number}")
    for number in range(login_attempts.BURST_OF_ALL):
        attempts.failed(f"10.1.0.{number}")
    assert [attempts.allowed(f"10.0.0.{number}") for number in (1, 2, 3)] == [False, True, True]


@pytest.mark.parametrize(
    "password", [" ", "\t" * 20, "\u200b" * 20, "\u00a0" * 12, "short", "\u3164" * 12, "\u2800" * 12]
)
def test_a_password_that_looks_empty_is_refused(password: str, tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker, pytest.raises(BadRequest, match="too short"):
        app.serve(tracker, host="0.0.0.0", password=password)


def test_a_password_that_no_browser_can_send_is_refused() -> None:
    password = b"correct h\xf6rse".decode(errors="surrogateescape")  # Latin-1, as the environment holds it
    with pytest.raises(BadRequest, match="is not UTF-8"):
        app._require_login("127.0.0.1", password)
    app._require_login("127.0.0.1", "correct h\xf6rse")


@pytest.mark.parametrize(
    "headers",
    [
        {"transfer-encoding": "chunked"},
        {"transfer-encoding": "chunked", "content-length": "2"},
        {"content-length": "²"},
        {"content-length": "9" * 5000},
        {"content-length": "-1"},
    ],
)
def test_a_body_of_unknown_length_is_refused(
    served: tuple[RequestGuard, Tracker], headers: dict[str, str]
) -> None:
    own = {"origin": BASE, "sec-fetch-site": "same-origin"}
    assert ask(served[0], "POST", EVENT, own | headers)[0] in (411, 413)


def test_a_token_of_any_characters_is_refused_and_no_error(client: TestClient) -> None:
    for token in ("é", "𝔰", "\0"):
        assert "Refused" in act(client, token, "eve")
    assert client.get("/export/file?table=runs&format=csv&token=%C3%A9%F0%9D%94%B0").status_code == 403


def test_gradio_keeps_its_files_in_a_folder_of_this_process(served: tuple[RequestGuard, Tracker]) -> None:
    from gradio.utils import get_upload_folder

    folder = Path(get_upload_folder())
    assert folder != Path("/tmp/gradio") and folder.stat().st_mode & 0o777 == 0o700


def test_a_repeated_click_with_another_decision_is_refused_in_words(
    served: tuple[RequestGuard, Tracker], client: TestClient
) -> None:
    token = re.findall(r'data-token="([^"]+)"', client.get("/cycle?n=2").text)[0]
    said = []
    for decision in ("reject", "reject", "approve"):
        fields = {"cycle": "2", "decision": decision, "note": "", "reviewer": "cy", "click": "one"}
        given = {"url": "/cycle?n=2", "action": "review", "token": token, "fields": fields}
        said.append(event(client, 1, given).json()["data"][0])
    assert "Recorded" in said[0] and "Recorded" in said[1]
    assert "approved" not in said[2].split("<main")[0] and "already recorded" in said[2]
    assert [row["decision"] for row in queries.reviews(served[1].db, cycle=2)] == ["reject"]
