"""Servers that drip, flood, redirect and lie cost one clear line, within the deadline."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from recovery.engines.background import in_background
from recovery.engines.json_client import JsonClient, NotFound, Refused
from recovery.engines.vllm_answers import choice_of, prompt_logprobs, sampled_answer
from recovery.errors import EngineLost, InputError, RecoverError

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """A server on the loopback interface that answers every request so."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                answer(self)
            except (BrokenPipeError, ConnectionResetError):
                return

        do_GET = do_POST

        def log_message(self, *args: Any) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads = True
    threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_address[1]}"
    finally:
        running.shutdown()
        running.server_close()


def says(status: int, body: bytes, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def drips(
    handler: BaseHTTPRequestHandler, count: int = 200, data: bytes = b" ", kind: str = "application/json"
) -> None:
    """The same few bytes now and then, for a long time."""
    handler.send_response(200)
    handler.send_header("Content-Type", kind)
    handler.end_headers()
    for _ in range(count):
        handler.wfile.write(data)
        handler.wfile.flush()
        time.sleep(0.1)


def floods(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(4096):
        handler.wfile.write(b" " * 65536)


def cuts(handler: BaseHTTPRequestHandler) -> None:
    """Less than was promised."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')


def test_a_command_may_be_confirmed_in_plain_text() -> None:
    with server(says(200, b"Success: it was added.")) as url:
        assert JsonClient(1).command(url, {}, 10.0) == b"Success: it was added."
    with server(says(400, b"no")) as url, pytest.raises(Refused):
        JsonClient(1).command(url, {}, 10.0)


def ask(answer: Answer, seconds: float = 10.0, key: str | None = None) -> Any:
    with server(answer) as url:
        return JsonClient(4, most_bytes=2**20).post(url, {}, seconds, key)


def test_json_comes_back() -> None:
    assert ask(says(200, b'{"a": [1]}')) == {"a": [1]}
    assert ask(says(200, b"")) is None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (floods, "larger than 1 MiB"),
        (cuts, "no answer"),
        (says(200, b"<html>"), "not JSON"),
        (says(200, b"[" * 100_000), "not JSON"),
        (says(500, b"\x1b]0;title\x07gone\nwrong"), "HTTP 500: ‹001B›]0;title‹0007›gone wrong"),
    ],
)
def test_broken_answers_are_lost_ones(answer: Answer, said: str) -> None:
    with pytest.raises(EngineLost) as caught:
        ask(answer)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)


def test_a_header_of_any_characters_is_taken() -> None:
    with server(says(200, b"[1]", X_Name="f\xfcr dich")) as url:
        assert JsonClient(1).get(url, 10.0).content == b"[1]"


def test_a_page_has_to_be_complete_by_the_deadline() -> None:
    started = time.monotonic()
    with server(drips) as url, pytest.raises(EngineLost, match=r"not complete within 0\.2 s"):
        JsonClient(1).get(url, 0.2)
    assert time.monotonic() - started < 5


def hangs(handler: BaseHTTPRequestHandler) -> None:
    """The headers, a first byte, and then nothing."""
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b" ")
    handler.wfile.flush()
    time.sleep(10)


def test_an_answer_may_take_long_but_never_pause_for_long() -> None:
    assert ask(partial(drips, count=20, data=b"1"), seconds=1.5) == int("1" * 20)  # and two seconds long
    started = time.monotonic()
    with pytest.raises(EngineLost, match=r"within 0\.2 s"):
        ask(hangs, seconds=0.2)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("data", "kind"), [(b"1", "application/json"), (b"data: 1\n\n", "text/event-stream")]
)
def test_no_answer_goes_on_for_ever(data: bytes, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.engines.json_client.LONGEST_ANSWER", 0.625)
    started = time.monotonic()
    with pytest.raises(EngineLost, match="not complete within 1 s"):
        ask(partial(drips, count=10**6, data=data, kind=kind), seconds=1.6)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("data", [b" ", b"\n", b"\r\n\t"])
def test_white_space_is_silence(data: bytes) -> None:
    started = time.monotonic()
    with pytest.raises(EngineLost, match=r"within 0\.2 s"):
        ask(partial(drips, data=data), seconds=0.2)
    assert time.monotonic() - started < 8


@pytest.mark.parametrize("data", [b": alive\n\n", b"\n", b":", b"event: x\n", b"data:\n\n", b"id"])
def test_comments_and_empty_events_are_silence(data: bytes) -> None:
    started = time.monotonic()
    answer = partial(drips, data=data, kind="text/event-stream")
    with server(answer) as url, pytest.raises(EngineLost, match=r"within 0\.2 s"):
        list(JsonClient(1).stream(url, {}, 0.2))
    assert time.monotonic() - started < 8


def test_events_may_come_for_long_and_be_read_slowly() -> None:
    with server(partial(drips, count=8, data=b"data: 1\n", kind="text/event-stream")) as url:
        coming = JsonClient(1).stream(url, {}, 1.5)
        assert next(coming) == 1
        time.sleep(2.0)  # the reader's own time
        assert [next(coming) for _ in range(7)] == [1] * 7


def queues(handler: BaseHTTPRequestHandler, count: int = 40) -> None:
    """Answer one request slowly all the time; another one waits, and is answered before that ends."""
    if handler.path == "/running":
        drips(handler, count=count, data=b"1")
    else:
        time.sleep(0.075 * count)
        says(200, b"7")(handler)


@pytest.mark.slow
def test_a_server_that_answers_others_is_not_silent_to_a_request_in_its_queue() -> None:
    with server(queues) as url:
        client = JsonClient(4, queues=True)
        running = in_background(partial(client.post, url + "/running", {}, 1.5))
        assert client.post(url + "/queued", {}, 1.5) == 7
        assert running.result(60) == int("1" * 40)
        with pytest.raises(EngineLost, match=r"no answer within 1\.5 s"):  # silent to all
            client.post(url + "/queued", {}, 1.5)


@pytest.mark.parametrize("patient", [True, False])
def test_a_page_is_no_sign_of_life_and_each_request_counts_alone_by_default(patient: bool) -> None:
    """A server whose engine hangs still sends pages; what other endpoints answer says nothing of this one."""
    with server(partial(queues, count=13)) as url:
        client = JsonClient(4, queues=patient)
        ask: Callable[..., Any] = client.get if patient else partial(client.post, body={})
        running = in_background(partial(ask, url + "/running", seconds=10.0))
        with pytest.raises(EngineLost, match=r"no answer within 0\.5 s"):
            client.post(url + "/queued", {}, 0.5)
        running.result(60)


def drips_headers(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    for _ in range(200):
        handler.wfile.write(b"x")
        time.sleep(0.1)


def goes_on_informing(handler: BaseHTTPRequestHandler) -> None:
    for _ in range(200):
        handler.wfile.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        time.sleep(0.1)


def drips_nothing_compressed(handler: BaseHTTPRequestHandler) -> None:
    """Empty blocks, each of which is a part of a whole gzip stream."""
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.end_headers()
    handler.wfile.write(b"\x1f\x8b\x08\0\0\0\0\0\0\xff")
    for _ in range(200):
        handler.wfile.write(b"\0\0\0\xff\xff")
        time.sleep(0.1)


@pytest.mark.parametrize("answer", [drips_headers, goes_on_informing, drips_nothing_compressed])
@pytest.mark.parametrize("method", ["get", "post"])
def test_what_comes_before_or_without_content_is_silence(answer: Answer, method: str) -> None:
    started = time.monotonic()
    with server(answer) as url, pytest.raises(EngineLost, match=r"within 0\.2 s"):
        JsonClient(1).get(url, 0.2) if method == "get" else JsonClient(1).post(url, {}, 0.2)
    assert time.monotonic() - started < 8


def events(*lines: bytes) -> Answer:
    """Send lines of an event stream in pieces of five bytes."""
    body = b"".join(line + b"\n" for line in lines)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        handler.end_headers()
        for start in range(0, len(body), 5):
            handler.wfile.write(body[start : start + 5])
            handler.wfile.flush()

    return answer


def streamed(answer: Answer) -> list[Any]:
    with server(answer) as url:
        return list(JsonClient(1, most_bytes=2**20).stream(url, {}, 10.0))


def test_events_come_one_by_one() -> None:
    sent = events(b": alive", b'data: {"a": 1}', b"", b"event: more\r", b'data:{"a": 2}\r', b"data: [DONE]")
    assert streamed(sent) == [{"a": 1}, {"a": 2}]
    assert streamed(says(200, b'{"a": 3}')) == [{"a": 3}]  # a server that does not stream
    unbroken = says(200, b'data: {"a": 4}\n\ndata: [DONE]', Content_Type="text/event-stream")
    assert streamed(unbroken) == [{"a": 4}]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (events(b'data: {"a": 1}'), "in the middle of an answer"),
        (says(200, b'data: {"a": 1', Content_Type="text/event-stream"), "in the middle of an answer"),
        (events(b"data: {", b"data: [DONE]"), "not JSON"),
        (says(200, b"data: " + b" " * 2**20, Content_Type="text/event-stream"), "larger than 1 MiB"),
        (says(500, b"gone"), "HTTP 500"),
    ],
)
def test_broken_streams_are_lost_answers(answer: Answer, said: str) -> None:
    with pytest.raises(EngineLost, match=said):
        streamed(answer)


def test_a_key_that_a_server_repeats_is_shown_in_no_part() -> None:
    """It was cut at 300 characters before it was looked for."""
    secret = "sk-0123456789abcdef"
    said = ("x" * 290 + secret + " is wrong").encode()
    for status in (401, 404, 500):
        with pytest.raises(RecoverError) as caught:
            ask(says(status, said), key=secret)
        assert "sk-" not in str(caught.value) and "x(key)" in str(caught.value)


def test_a_redirect_is_refused_and_takes_no_key_along() -> None:
    seen: list[str | None] = []

    def elsewhere(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers.get("Authorization"))
        says(200, b"{}")(handler)

    with server(elsewhere) as other, pytest.raises(Refused, match="redirects elsewhere"):
        ask(says(307, b"", Location=other), key="secret")
    assert seen == []


def test_refusals_say_what_the_server_says() -> None:
    with pytest.raises(NotFound, match="not there: no such model"):
        ask(says(404, b"no such model"))
    with pytest.raises(Refused, match="HTTP 429") as caught:
        ask(says(429, b"slow down", Retry_After="7"))
    assert (caught.value.status, caught.value.retry_after) == (429, "7")


@pytest.mark.parametrize("key", ["first\nsecond", "two words", "schlüssel", "a\x00b"])
def test_a_key_that_no_header_may_carry_is_refused_unseen(key: str) -> None:
    with pytest.raises(InputError) as caught:
        ask(says(200, b"{}"), key=key)
    assert key not in str(caught.value) and key.split()[0] not in str(caught.value)


WHOLE = {"token_ids": [1, 2], "logprobs": {"token_logprobs": [-0.5, -1]}}


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"token_ids": [1, 2]},
        WHOLE | {"token_ids": [1]},
        WHOLE | {"token_ids": []},
        WHOLE | {"token_ids": [1, -(10**9)]},
        WHOLE | {"token_ids": [1, "2"]},
        WHOLE | {"token_ids": [1, True]},
        WHOLE | {"logprobs": {"token_logprobs": [-0.5, None]}},
        WHOLE | {"logprobs": {"token_logprobs": [-0.5, float("nan")]}},
        WHOLE | {"logprobs": {"token_logprobs": [-0.5, 3.0]}},
        WHOLE | {"logprobs": []},
    ],
)
def test_completions_are_checked(broken: dict[str, Any]) -> None:
    assert sampled_answer(WHOLE).tokens == [1, 2]
    with pytest.raises(EngineLost):
        sampled_answer(broken)


@pytest.mark.parametrize("answer", [None, [], {}, {"choices": []}, {"choices": [None]}, {"choices": 3}, "x"])
def test_an_answer_without_a_completion_is_lost(answer: Any) -> None:
    with pytest.raises(EngineLost, match="no completion"):
        choice_of(answer)


@pytest.mark.parametrize(
    "entries",
    [
        None,
        [None],
        [None, {"5": {"logprob": -1.0}}],
        [None, {"x": {"logprob": -1.0, "rank": 1}}],
        [None, {"-5": {"logprob": -1.0, "rank": 1}}],
        [None, {"5": {"logprob": "-inf?", "rank": 1}}],
        [None, ["5"]],
        [None, None],
        [None, {}],
        [None, {"6": {"logprob": -1.0, "rank": 1}, "7": {"logprob": -2.0, "rank": 2}}],
        [None, {"5": {"logprob": -1.0, "rank": 1}}, None],
    ],
)
def test_log_probabilities_of_a_prompt_are_checked(entries: Any) -> None:
    good = {"prompt_logprobs": json.loads('[null, {"5": {"logprob": -1.0, "rank": 1}}]')}
    assert prompt_logprobs(good, [3, 5], 1, 1) == [{5: (-1.0, 1)}]
    with pytest.raises(EngineLost, match="one of the 2 best"):
        prompt_logprobs(good, [3, 5], 1, 2)
    with pytest.raises(EngineLost):
        prompt_logprobs({"prompt_logprobs": entries}, [3, 5], 1, 1)


def test_log_probabilities_before_the_answer_are_not_read() -> None:
    """Checking those of the prompt took most of the time of scoring."""
    entries = [None, "left out", {"7": {"logprob": -2.0, "rank": 1}}]
    assert prompt_logprobs({"prompt_logprobs": entries}, [3, 5, 7], 2, 1) == [{7: (-2.0, 1)}]
    with pytest.raises(EngineLost, match="for the 4 tokens of the prompt"):
        prompt_logprobs({"prompt_logprobs": entries}, [3, 5, 7, 9], 2, 1)
