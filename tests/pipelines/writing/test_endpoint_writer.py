"""An endpoint that refuses, cuts short, says nothing or is slow costs as little as it can."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipelines.writing.in_flight import STEADY, InFlight, Waited
from pipelines.writing.protocol import CUT_OFF, REFUSED, Text
from pipelines.writing.text_cache import GOES_ON, Cache, key_of, written
from pipelines.writing.writers import KEY_VARIABLE, EndpointWriter, _wait
from recovery.engines.json_client import Refused, TimedOut
from recovery.errors import InputError, RecoverError

Body = dict[str, Any]
EMPTY = [{"content": ""}]


class Endpoint(ThreadingHTTPServer):
    """A chat server that answers as `answer` says, from the body of a request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer: Callable[[Body], tuple[int, Any]] = says
        self.seen: list[Body] = []

    def writer(self, **options: Any) -> EndpointWriter:
        return EndpointWriter(f"http://127.0.0.1:{self.server_port}/v1", "m", **options)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Endpoint)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.seen.append(body)
        status, said = server.answer(body)
        data = json.dumps(said).encode()
        if isinstance(said, list):
            data = "".join(f"data: {json.dumps(part)}\n\n" for part in said).encode() + b"data: [DONE]\n\n"
        self.send_response(status)
        self.send_header(
            "Content-Type", "text/event-stream" if isinstance(said, list) else "application/json"
        )
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


def asked(body: Body) -> str:
    return str(body["messages"][0]["content"])


def says(body: Body, **more: Any) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"content": asked(body)}, **more}]}


def refuses(message: str, status: int = 400) -> tuple[int, Any]:
    return status, {"error": {"message": message}}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    ("reason", "flaw"),
    [
        ("stop", None),
        ("eos", None),
        ("end_turn", None),
        ("", None),
        (None, None),
        ("length", CUT_OFF),
        ("content_filter", CUT_OFF),
        ("model_length", CUT_OFF),
        ("error", CUT_OFF),
    ],
)
def test_a_text_that_ends_too_early_is_marked(
    endpoint: Endpoint, reason: str | None, flaw: str | None
) -> None:
    """Whether it comes as a whole or in parts, of which the last says why it is the last."""
    endpoint.answer = lambda body: says(body, finish_reason=reason)
    assert [*endpoint.writer().write(["hello"])] == [(0, Text("hello", flaw))]
    parts: list[dict[str, Any]] = [
        {"delta": {"content": "hel"}},
        {"delta": {"content": "lo"}},
        {"delta": {}, "finish_reason": reason},
    ]
    endpoint.answer = lambda body: (200, [{"choices": [part]} for part in parts] + [{"choices": []}])
    assert [*endpoint.writer().write(["hello"])] == [(0, Text("hello", flaw))]


@pytest.mark.parametrize("status", [400, 403, 413, 422, 500, 200])
def test_a_request_that_is_refused_stops_nothing(tmp_path: Path, endpoint: Endpoint, status: int) -> None:
    """Neither at once nor in a later run, which asks for it alone."""
    endpoint.answer = lambda body: refuses("filtered", status) if "bad" in asked(body) else says(body)
    for number, seen in ((1, 2), (2, 3)):
        writer = endpoint.writer(tries=1)
        texts = written(Cache(tmp_path / "c.jsonl"), writer, ["good", "bad"])
        assert [(text.said, text.flaw) for text in texts] == [("good", None), ("", REFUSED)], number
        assert len(endpoint.seen) == seen


def test_no_proxy_is_asked_for_an_endpoint_on_this_machine(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nothing listens
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    writer = endpoint.writer(pause=lambda _: None)
    assert [*writer.write(["hello"])] == [(0, Text("hello"))]


def test_an_endpoint_that_refuses_all_is_quoted(tmp_path: Path, endpoint: Endpoint) -> None:
    endpoint.answer = lambda body: refuses("no such size of answers")
    with pytest.raises(RecoverError, match=r"answers no request .*no such size of answers") as caught:
        written(Cache(tmp_path / "c.jsonl"), endpoint.writer(), ["one", "two"])
    assert str(caught.value).isprintable() and len(endpoint.seen) == 2


def test_an_endpoint_that_refuses_one_document_is_asked_on_but_not_one_that_refuses_from_then_on(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    """Whether it still answers shows a text that it wrote before, or the last one."""
    endpoint.answer = lambda body: refuses("no credit") if "bad" in asked(body) else says(body)
    filtered = [f"bad {number}" for number in range(9)]
    for name, requests in (("last", [*filtered, "good"]), ("first", ["good", *filtered, "fine"])):
        texts = written(Cache(tmp_path / name), endpoint.writer(at_once=2), requests)
        refused = [text.flaw == REFUSED for text in texts]
        assert refused == ["bad" in request for request in requests]
    endpoint.seen.clear()
    endpoint.answer = lambda body: says(body) if len(endpoint.seen) <= 2 else refuses("no credit", 402)
    with pytest.raises(RecoverError, match=r"no credit.*what was written so far is kept"):
        written(Cache(tmp_path / "b"), endpoint.writer(at_once=2), [str(number) for number in range(20)])
    assert len(Cache(tmp_path / "b").texts) == 2
    assert 2 + 2 + 1 <= len(endpoint.seen) <= 2 + 2 + 1 + 2  # two may be under way


def test_the_first_refusal_is_quoted_where_another_parameter_does_not_help(endpoint: Endpoint) -> None:
    endpoint.answer = lambda body: refuses(
        "max_tokens: at most 64" if "max_tokens" in body else "max_completion_tokens: unknown field"
    )
    ((_, text),) = endpoint.writer().write(["hello"])
    assert text.flaw == REFUSED and "max_tokens: at most 64" in text.reason


def test_what_a_server_says_of_a_wrong_key_is_quoted_without_it(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "my-very-own-words")
    endpoint.answer = lambda body: refuses("key my-very-own-words is unknown", 401)
    with pytest.raises(RecoverError, match=r"HTTP 401.*key \(key\) is unknown"):
        list(endpoint.writer().write(["hello"]))


def test_parameters_that_an_endpoint_refuses_are_left_out_from_then_on(endpoint: Endpoint) -> None:
    def answer(body: Body) -> tuple[int, Any]:
        if "max_tokens" in body:
            return refuses("'max_tokens' is not supported. Use 'max_completion_tokens' instead.")
        if "stream" in body:
            return refuses("Your organization must be verified to stream this model.")
        if "temperature" in body:
            return refuses("'temperature' does not support 0.7 with this model.")
        return refuses("unknown field: seed", 422) if "seed" in body else says(body)

    endpoint.answer = answer
    writer = endpoint.writer()
    assert [*writer.write(["hello"])] == [(0, Text("hello"))] and len(endpoint.seen) == 5
    assert [*writer.write(["again"])] == [(0, Text("again"))] and len(endpoint.seen) == 6
    assert endpoint.seen[-1]["max_completion_tokens"] == 512
    assert not {"max_tokens", "temperature", "seed", "stream"} & set(endpoint.seen[-1])


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"content": [{"type": "text", "text": "hello"}, {"type": "thinking", "thinking": []}]}},
        {"message": {"content": [{"type": "text", "text": "hello"}]}},
        {"delta": {"content": "hello"}},
    ],
)
def test_an_answer_in_a_form_of_its_own_is_read(endpoint: Endpoint, choice: Body) -> None:
    """With events that hold no part of it."""
    others: list[Body] = [{"delta": None, "finish_reason": "stop"}, {"content_filter_results": {}}]
    endpoint.answer = lambda body: (200, [{"choices": [one]} for one in (choice, *others)])
    assert [*endpoint.writer(tries=1).write(["hello"])] == [(0, Text("hello"))]


def test_a_whole_answer_of_thinking_alone_says_nothing(endpoint: Endpoint) -> None:
    thought = {"message": {"content": None, "reasoning_content": "hm"}, "finish_reason": "length"}
    endpoint.answer = lambda body: (200, {"choices": [thought]})
    assert [*endpoint.writer(tries=1).write(["hello"])] == [(0, Text("", CUT_OFF))]


def test_an_error_in_place_of_an_answer_is_quoted(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to be an answer without a message."""
    monkeypatch.setenv(KEY_VARIABLE, "my-very-own-words")
    endpoint.answer = lambda body: refuses("my-very-own-words has no credit", 200)
    ((_, text),) = endpoint.writer(tries=1).write(["hello"])
    assert text.flaw == REFUSED and '{"message": "(key) has no credit"}' in text.reason


def test_a_parameter_that_is_not_to_blame_stays(endpoint: Endpoint) -> None:
    endpoint.answer = lambda body: refuses("the seed of evil") if asked(body) == "bad" else says(body)
    writer = endpoint.writer()
    assert [text.flaw for _, text in writer.write(["bad"])] == [REFUSED]
    assert [*writer.write(["good"])] == [(0, Text("good"))] and "seed" in endpoint.seen[-1]


def test_an_empty_text_is_asked_for_once_a_run_and_again_in_the_next(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    endpoint.answer = lambda body: says(body) if len(endpoint.seen) > 3 else says(body | {"messages": EMPTY})
    cache, writer = Cache(tmp_path / "c.jsonl"), endpoint.writer()
    cache.add([(key_of(writer.name, "good"), Text("good")), (key_of(writer.name, "late"), Text(""))])
    for seen in (1, 2, 3):
        texts = written(Cache(cache.path), writer, ["good", "late"])
        assert texts == [Text("good"), Text("")] and len(endpoint.seen) == seen
    assert written(Cache(cache.path), writer, ["good", "late"]) == [Text("good"), Text("late")]
    assert written(Cache(cache.path), writer, ["good", "late"]) == [Text("good"), Text("late")]
    assert len(endpoint.seen) == 4


def test_an_endpoint_that_says_nothing_at_first_is_asked_no_further(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    endpoint.answer = lambda body: says(body | {"messages": EMPTY}) if "a" in asked(body) else says(body)
    requests = ["a", "aa", "b", "c"]
    with pytest.raises(InputError, match="only thinking or nothing"):
        written(Cache(tmp_path / "c.jsonl"), endpoint.writer(at_once=2), requests)
    assert len(endpoint.seen) <= 3
    texts = written(Cache(tmp_path / "c.jsonl"), endpoint.writer(at_once=2), requests[::-1])
    assert [text.said.strip() for text in texts] == ["c", "b", "", ""]


# Slow endpoints -------------------------------------------------------------------------------------------


class OneSlot:
    """Answers one request at a time; the others time out while parts of its answer come."""

    def __init__(self, in_flight: InFlight) -> None:
        self.in_flight = in_flight
        self.slot = threading.Lock()
        self.waiting = threading.Barrier(in_flight.most)
        self.lost = threading.Event()

    def stream(self, *_: object) -> Iterator[Any]:
        before = self.in_flight.parts
        if not self.lost.is_set():
            self.waiting.wait(timeout=60)
        while not self.slot.acquire(timeout=0.01):
            if self.in_flight.parts > before:
                self.lost.set()
                raise TimedOut("no answer within 1 s")
        try:
            yield {"choices": [{"delta": {"content": "said"}}]}
            self.lost.wait(timeout=60)
        finally:
            self.slot.release()


def test_requests_that_wait_for_each_other_lose_no_try(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    writer = EndpointWriter("http://127.0.0.1:1/v1", "m", tries=1, at_once=4, pause=pauses.append)
    monkeypatch.setattr(writer._client, "stream", OneSlot(writer._in_flight).stream)
    assert sorted(writer.write(["a", "b", "c", "d"])) == [(place, Text("said")) for place in range(4)]
    assert writer._in_flight.most < 4 and not pauses


def test_one_lost_connection_does_not_slow_all_that_follows() -> None:
    under_way = InFlight(4)

    def wait_in_vain() -> None:
        with under_way.one():
            under_way.parts += 1  # of another answer
            raise TimedOut("no answer within 1 s")

    with pytest.raises(Waited):
        wait_in_vain()
    seen = [under_way.most]
    for _ in range(STEADY):
        with under_way.one():
            seen.append(under_way.most)
    assert seen == [2] * (STEADY + 1) and under_way.most == 4


def test_an_endpoint_that_answers_nothing_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(*_: object) -> Iterator[Any]:
        yield {"choices": [{"delta": {"content": "be"}}]}  # a part of its own saves no request
        raise TimedOut("no answer within 1 s")

    pauses: list[float] = []
    writer = EndpointWriter("http://127.0.0.1:1/v1", "m", tries=3, at_once=4, pause=pauses.append)
    monkeypatch.setattr(writer._client, "stream", stream)
    ((_, text),) = writer.write(["a"])
    assert text.flaw == REFUSED and "no answer within 1 s" in text.reason
    assert pauses == [1.0, 2.0] and writer._in_flight.most == 4


def test_a_slow_answer_holds_up_no_others(tmp_path: Path, endpoint: Endpoint) -> None:
    """Each batch waited for its slowest answer."""
    others_came = threading.Event()

    def answer(body: Body) -> tuple[int, Any]:
        if asked(body) == "slow":
            assert others_came.wait(60)
        return says(body)

    endpoint.answer = answer
    shown: list[tuple[int, int]] = []

    def show(done: int, total: int) -> None:
        shown.append((done, total))
        if done == 7:
            others_came.set()

    requests = ["slow", *map(str, range(7))]
    texts = written(Cache(tmp_path / "c.jsonl"), endpoint.writer(at_once=2), requests, show)
    assert [text.said for text in texts] == requests
    assert shown == [(done, 8) for done in range(9)]


def test_a_silent_server_is_told_from_one_that_is_away() -> None:
    """By the class of the error that the client raises."""
    with Endpoint() as server:  # accepts connections, and serves none
        writer = server.writer()
        with pytest.raises(TimedOut, match=r"no answer within 0\.3 s"):
            list(writer._client.stream(writer._address, {}, 0.3))


# Limits ---------------------------------------------------------------------------------------------------


def test_a_limit_by_the_minute_is_waited_for(endpoint: Endpoint) -> None:
    """It ended the command after a quarter of a minute."""
    endpoint.answer = lambda body: says(body) if len(endpoint.seen) > 4 else refuses("too many", 429)
    pauses: list[float] = []
    writer = endpoint.writer(at_once=8, pause=pauses.append)
    assert [*writer.write(["hello"])] == [(0, Text("hello"))]
    assert pauses == [5.0, 10.0, 20.0, 40.0] and writer._in_flight.most == 1


def test_a_limit_ends_nothing_while_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    writer = EndpointWriter("http://127.0.0.1:1/v1", "m", tries=2, pause=pauses.append)

    def stream(*_: object) -> Iterator[Any]:
        if len(pauses) < 5:
            writer._in_flight.parts += 1  # of another answer
            raise Refused("too many", 429)
        yield {"choices": [{"delta": {"content": "said"}}]}

    monkeypatch.setattr(writer._client, "stream", stream)
    assert [*writer.write(["a"])] == [(0, Text("said"))] and pauses == [5.0] * 5


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        (None, 5.0),
        ("7", 7.0),
        ("7.5", 7.5),
        ("0", 5.0),
        ("3600", 60.0),
        ("nan", 5.0),
        ("soon", 5.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 5.0),
    ],
)
def test_a_server_may_ask_for_a_longer_wait(asked: str | None, seconds: float) -> None:
    assert _wait(Refused("too many", 429, asked), 0) == seconds


def test_a_server_may_ask_to_wait_until_a_moment() -> None:
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 20 < _wait(Refused("too many", 429, moment), 0) <= 30


# Interruptions --------------------------------------------------------------------------------------------


Futures = Sequence[Future[Text]]


def interrupted_once(monkeypatch: pytest.MonkeyPatch, ready: Callable[[Futures], bool]) -> Futures:
    """Interrupt a writer that waits for answers, once something has happened; return what it waits for."""
    awaited: list[Future[Text]] = []

    def interrupt(futures: Futures, **_: object) -> None:
        awaited.extend(futures)
        while not ready(awaited):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.writing.writers.wait", interrupt)
    return awaited


def test_an_interruption_keeps_what_has_come(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for all other answers, and then threw all of them away."""
    held = threading.Event()

    def answer(body: Body) -> tuple[int, Any]:
        held.wait(60 * (asked(body) == "slow"))
        return says(body)

    endpoint.answer = answer
    interrupted_once(monkeypatch, lambda awaited: sum(future.done() for future in awaited) == 2)
    with pytest.raises(KeyboardInterrupt) as cut_off:
        written(Cache(tmp_path / "c.jsonl"), endpoint.writer(), ["one", "slow", "two"])
    assert cut_off.value.__notes__ == [GOES_ON]
    assert not held.is_set()
    held.set()
    assert {text.said for text in Cache(tmp_path / "c.jsonl").texts.values()} == {"one", "two"}


def test_after_an_interruption_nothing_more_is_sent(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()

    def fails(body: Body) -> tuple[int, Any]:
        held.wait(60)
        return refuses("busy", 503)

    endpoint.answer = fails
    awaited = interrupted_once(monkeypatch, lambda _: len(endpoint.seen) == 2)
    writer = endpoint.writer(at_once=2, pause=lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        list(writer.write(["one", "two", "three"]))
    held.set()
    assert not wait(awaited, timeout=60).not_done
    assert len(endpoint.seen) == 2  # neither again, nor the one that waited for its turn


WRITING = """
import signal, sys
from pipelines.writing.writers import EndpointWriter

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
list(EndpointWriter(sys.argv[1], "m").write(["hello"]))
"""


def test_an_interrupted_process_does_not_wait_for_an_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        command = [sys.executable, "-c", WRITING, f"http://127.0.0.1:{silent.getsockname()[1]}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
            try:
                connection, _ = silent.accept()
                child.send_signal(signal.SIGINT)
                said = child.communicate(timeout=60)[1]
            finally:
                child.kill()
            connection.close()
    assert "KeyboardInterrupt" in said
