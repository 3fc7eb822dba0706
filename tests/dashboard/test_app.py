"""The dashboard: figures from rows, who may talk to it, reviews that count."""

from __future__ import annotations

import getpass
import json
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
from click.testing import CliRunner
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from dashboard import app
from dashboard.access.request_guard import RequestGuard
from dashboard.figures.picture import standalone
from dashboard.figures.plane import cycles_plane
from db.cycle_names import STAGES
from db.errors import BadRequest
from db.writes.tracker import Tracker
from pipelines.cli.commands import cli
from recovery.errors import InputError
from recovery.listening import listening
from tests.attacks.load import free_port
from tests.support.browser import until
from tests.support.databases import record_cycle

HOSTILE = "<script>alert(1)</script>"


def a_cycle(number: int, **changes: Any) -> dict[str, Any]:
    def suite(*values: float | None) -> dict[str, Any]:
        stages = dict(zip(STAGES, values, strict=True))
        intervals = {name: [v - 0.02, v + 0.02] if v else None for name, v in stages.items()}
        return {**stages, "n": 700, "intervals": intervals}

    scores = {"ifeval": suite(0.99, 0.2, 0.98), "knowledge": suite(0.05, 0.5, 0.9)}
    return {"cycle": number, "status": "accepted", "scores": scores, "verdict": None, **changes}


def test_the_picture_draws_a_path_a_cycle_and_copes_with_missing_stages(tmp_path: Path) -> None:
    unfinished = a_cycle(2, scores={"ifeval": {"clean": 0.9}, "knowledge": {}})
    picture = standalone(cycles_plane([a_cycle(1), unfinished], {1, 2}))
    elements = ElementTree.fromstring(picture)
    words = "".join(elements.itertext())
    assert "cycle 1" in words and "cycle 2" not in words
    assert "var(" not in picture and ".c-clean{color: #" in picture  # its colours lie in it


def test_the_band_of_a_running_cycle_has_the_margin_of_its_settings() -> None:
    def height(row: dict[str, Any]) -> float:
        found = re.search(r'height="([0-9.]+)" class="band"', cycles_plane([row], {1}))
        assert found
        return float(found[1])

    usual = height(a_cycle(1))  # of an earlier version, which recorded none
    assert height(a_cycle(1, margin=0.06)) == pytest.approx(2 * usual, abs=0.2)
    assert height(a_cycle(1, margin=0.06, verdict={"margin": 0.03})) == usual


def test_a_picture_is_an_svg_file(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        record_cycle(tracker, {"ifeval": {"clean": 0.9}, "knowledge": {"clean": 0.1}})
        for name in ("plane.png", "missing/plane.svg"):
            with pytest.raises(BadRequest, match="svg"):
                app.picture_of(tracker, tmp_path / name)
        app.picture_of(tracker, tmp_path / "plane.svg")
    assert (tmp_path / "plane.svg").read_text(encoding="utf-8").startswith("<svg")


def test_a_picture_of_nothing_is_refused_and_not_written(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        tracker.record_cycle(tracker.start_run("cycle").id)
        with pytest.raises(BadRequest, match="no cycle has scores of both IFEval and knowledge yet"):
            app.picture_of(tracker, tmp_path / "plane.svg")
    assert not (tmp_path / "plane.svg").exists()


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_says_where_it_serves_in_the_form_that_was_asked_for(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}

    def server(*_: object, started: Callable[[], None]) -> SimpleNamespace:
        return SimpleNamespace(run=lambda sockets: started(), handle_exit=None)

    monkeypatch.setattr(app, "make", lambda *_, **given: made.update(given))
    monkeypatch.setattr(app, "server", server)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    options = ["--home", str(tmp_path), *(["--json"] if as_json else [])]
    assert CliRunner().invoke(cli, ["-q", *options, "init"]).exit_code == 0
    port = free_port()
    shown = CliRunner().invoke(cli, [*options, "dashboard", "--port", str(port)]).stdout
    url = f"http://127.0.0.1:{port}"
    assert json.loads(shown) == {"url": url} if as_json else f"dashboard on {url}" in shown
    assert made["command"]("ls") == f"recover --home {tmp_path} ls"  # as its pages write them


def test_an_address_is_announced_once_it_answers() -> None:
    said: list[str] = []
    with listening("127.0.0.1", 0) as sockets:
        url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        serving = app.server(INSIDE, "127.0.0.1", 0, started=lambda: said.append(url))
        thread = Thread(target=serving.run, kwargs={"sockets": sockets}, daemon=True)
        assert said == []
        thread.start()
        try:
            until(lambda: said)
            assert httpx.get(url).text == "in"
        finally:
            serving.should_exit = True
            thread.join(20)


def test_a_port_that_is_taken_is_refused_and_not_announced(tmp_path: Path) -> None:
    said: list[str] = []
    with Tracker(tmp_path / "recover.db") as tracker, socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"^port {port} is taken: give another with --port$"):
            app.serve(tracker, port=port, announce=said.append)
    assert said == []


def test_an_address_of_another_machine_is_refused_in_one_line() -> None:
    with pytest.raises(
        InputError, match=r"--host 192\.0\.2\.1, --port 7860: nothing can listen there \([^()]+\)"
    ):
        with listening("192.0.2.1", 7860):
            pass


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6")
def test_all_interfaces_are_those_of_both_stacks() -> None:
    with listening("::", free_port()) as sockets:
        assert {one.family for one in sockets} == {socket.AF_INET6, socket.AF_INET}


def test_the_address_of_all_interfaces_is_the_machines_name() -> None:
    for host in ("0.0.0.0", "::"):
        assert app._url(host, 7860) == f"http://{socket.gethostname().lower()}:7860"
    assert app._url("::1", 7860) == "http://[::1]:7860"


@pytest.mark.parametrize(("password", "offered"), [(None, "ann"), ("correct horse", "")])
def test_the_login_name_is_offered_to_its_owner_alone(
    password: str | None, offered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    with Tracker(tmp_path / "recover.db") as tracker:
        assert app.make(tracker, password=password).app.context.reviewer == offered


INSIDE = Starlette(routes=[Route("/", lambda request: PlainTextResponse("in"))])
GUARDED = TestClient(RequestGuard(INSIDE), base_url="http://127.0.0.1:7860")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": ""},
        {"host": "[::1"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost.evil.example"},
    ],
)
def test_an_unknown_host_or_origin_is_refused(headers: dict[str, str]) -> None:
    assert GUARDED.get("/", headers=headers).status_code in (400, 403)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost:7860"},
        {"host": "[::1]:7860"},
        {"origin": "http://127.0.0.1:7860"},
    ],
)
def test_this_machines_own_browser_comes_in_and_gets_the_headers(headers: dict[str, str]) -> None:
    answer = GUARDED.get("/", headers=headers)
    assert answer.status_code == 200 and answer.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("192.168.1.20:7860", 200),
        ("[fe80::1]:7860", 200),
        ("127.0.0.1:7860", 200),
        ("evil.example:7860", 400),
        ("192.168.1.20.evil.example:7860", 400),
        ("192.168.1.20:7860@evil.example", 400),
        ("2130706433:7860", 400),
        ("", 400),
    ],
)
def test_on_all_interfaces_every_address_is_let_in_and_no_other_name(host: str, status: int) -> None:
    client = TestClient(RequestGuard(INSIDE, addresses=True), base_url="http://127.0.0.1:7860")
    assert client.get("/", headers={"host": host}).status_code == status


def test_on_one_interface_no_other_address_is_let_in() -> None:
    assert GUARDED.get("/", headers={"host": "192.168.1.20:7860"}).status_code == 400


def test_an_allowed_host_may_be_written_in_capitals() -> None:
    guard = RequestGuard(INSIDE, hosts=("Lab.Example",))
    client = TestClient(guard, base_url="http://Lab.Example:7860")
    for host in ("Lab.Example:7860", "lab.example:7860", "LAB.EXAMPLE"):
        assert client.get("/", headers={"host": host}).text == "in"
    refused = client.get("/", headers={"host": "other.example"})
    assert refused.status_code == 400
    assert refused.text == "unknown host: start the dashboard with --allow-host NAME"


def test_the_real_page_is_served_behind_the_guard(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        tracker.record_cycle(tracker.start_run("cycle", key=HOSTILE).id)
        client = TestClient(app.make(tracker), base_url="http://127.0.0.1:7860")
        page = client.get("/")
        assert page.status_code == 200 and HOSTILE not in page.text and "running" in page.text
        assert "'nonce-" in page.headers["content-security-policy"]
        assert client.get("/", headers={"host": "evil.example"}).status_code == 400


def test_no_picture_without_a_cycle(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker, pytest.raises(BadRequest, match="No cycle yet"):
        app.picture_of(tracker, tmp_path / "plane.png")
