"""Every path of a server needs its key; without one, only this machine's own names are answered."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pipelines.engines.engine_places import serve
from recovery.engines import vllm_server
from recovery.engines.key_guard import KEY_VARIABLE, NONCE, PROOF, KeyGuard, proof
from recovery.engines.protocol import EngineSettings
from recovery.errors import InputError

PATHS = ("/health", "/v1/models", "/collective_rpc", "/v1/load_lora_adapter", "/reset_prefix_cache")


async def answered(request: Any) -> PlainTextResponse:
    return PlainTextResponse((await request.body()).decode() or "done")


def ask(path: str, method: str = "GET", content: Any = None, **headers: str) -> httpx.Response:
    app = KeyGuard(Starlette(routes=[Route(path, answered, methods=["GET", "POST"])]))

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return await client.request(method, path, headers=headers, content=content)

    return asyncio.run(send())


@pytest.mark.parametrize("path", PATHS)
def test_every_path_needs_the_key(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "right")
    assert ask(path).status_code == 401
    assert ask(path, Authorization="Bearer wrong").status_code == 401
    assert ask(path, Authorization="Bearer right").text == "done"


def test_without_a_key_another_host_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert ask("/health").text == "done"
    for own in ("localhost:8000", "LOCALHOST", "127.0.0.2:8000", "[::1]:8000", "[::1]"):
        assert ask("/health", Host=own).text == "done"
    for other in ("evil.example:8000", "127.0.0.1.evil.example", "[::2]:8000", ""):
        assert ask("/health", Host=other).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 200),
        ({"Content-Type": "application/json", "Origin": "http://127.0.0.1:8000"}, 200),
        ({"Content-Type": "application/json", "Origin": "https://evil.example"}, 403),
        ({"Content-Type": "application/json", "Origin": "http://127.0.0.1:9000"}, 403),
        ({"Content-Type": "application/json", "Origin": "null"}, 403),
        ({"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({}, 200),
        ({"Content-Length": "2"}, 415),
        ({"Origin": "https://evil.example"}, 403),
    ],
)
def test_without_a_key_a_web_page_cannot_post(
    headers: dict[str, str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert ask("/reset_prefix_cache", "POST", **headers).status_code == status


@pytest.mark.parametrize("key", ["", "right"])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ('{"method": "load_student_weights", "kwargs": {"directory": "/tmp/a"}}', 200),
        ('{"method": "weights_state"}', 200),
        ('{"method": "save_sharded_state", "kwargs": {"path": "/home/a", "pattern": "notes.txt"}}', 403),
        ('{"method": "weights_state", "method": "save_sharded_state"}', 403),  # the last one counts
        ('{"method": ["weights_state"]}', 403),
        ("weights_state", 403),
        ("[" * 100_000, 403),
        ("", 403),
    ],
)
def test_only_the_methods_of_weight_updates_are_called(
    body: str, status: int, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's workers have methods that write files wherever they are asked, and call any by its name."""
    monkeypatch.setenv(KEY_VARIABLE, key)

    async def in_parts() -> AsyncIterator[bytes]:
        yield body[:9].encode()
        yield body[9:].encode()

    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    answer = ask("/collective_rpc", "POST", in_parts(), **headers)
    assert (answer.status_code, answer.text) == (status, body if status == 200 else "")


def test_a_port_that_is_taken_is_refused_before_the_checkpoint_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    nowhere: Any = None  # refused before the workspace is looked at
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"^port {port} is taken: give another with --port$"):
            with serve(nowhere, "base", host="127.0.0.1", port=port, rank=0):
                pass


def test_a_nonce_is_answered_with_a_proof_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "right")
    response = ask("/collective_rpc", **{NONCE: "once"})
    assert (response.headers[PROOF], response.text) == (proof("right", "once"), "")
    assert proof("right", "once") != proof("wrong", "once") != proof("wrong", "twice")


@pytest.mark.parametrize(
    ("host", "beyond", "key", "said"),
    [
        ("0.0.0.0", False, "k", "--beyond-this-machine"),
        ("::", False, "k", "--beyond-this-machine"),
        ("node7.example", False, "k", "--beyond-this-machine"),
        ("0.0.0.0", True, "", KEY_VARIABLE),
        ("127.0.0.1", False, "two\nlines", "no HTTP header"),
    ],
)
def test_serve_binds_openly_only_if_asked_to_and_with_a_key(
    host: str, beyond: bool, key: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    nowhere: Any = None  # refused before the workspace is looked at
    with pytest.raises(InputError, match=said) as caught:
        with serve(nowhere, "base", host=host, port=0, rank=0, beyond=beyond):
            pass
    assert "two" not in str(caught.value)


def test_a_stopped_server_has_no_connection_left_and_a_restarted_one_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server, "require_vllm", lambda: None)
    server = vllm_server.Server(tmp_path, EngineSettings(), name="m", log=tmp_path / "vllm.log", key="")
    code = (
        "import http.server as h; H = type('H', (h.BaseHTTPRequestHandler,), "
        "{'do_GET': lambda s: (s.send_response(200), s.end_headers())}); "
        f"h.HTTPServer(('127.0.0.1', {server.port}), H).serve_forever()"
    )
    server.command = [sys.executable, "-c", code]
    server.start()
    server.restart()
    assert server.answers()
    server.stop()
    assert server.client._client.is_closed and not server.answers()
    server.stop()


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://127.0.0.1:"), ("::1", "http://[::1]:")],
)
def test_a_server_has_an_address_and_a_port_of_its_hosts_family(
    host: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address was no URL for ::1, so that a server that ran never seemed to answer."""
    monkeypatch.setattr(vllm_server, "require_vllm", lambda: None)
    log = tmp_path / "vllm.log"
    server = vllm_server.Server(tmp_path, EngineSettings(), name="m", log=log, address=(host, 8123))
    assert server.url == f"{url}8123"
    assert httpx.URL(server.url).port == 8123
    if ":" not in host or Path("/proc/net/if_inet6").exists():
        free = vllm_server.Server(tmp_path, EngineSettings(), name="m", log=log, address=(host, 0))
        assert free.port
