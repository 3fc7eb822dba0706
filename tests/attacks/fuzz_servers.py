"""Ask servers whose answers were changed: completions, scores, chat, and the bytes of HTTP itself."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from pipelines.writing.writers import EndpointWriter
from recovery.engines.protocol import EngineSettings
from recovery.engines.vllm_http import ServerEngine
from recovery.errors import RecoverError
from recovery.sampling.protocol import SamplingParams
from tests.attacks.attack import NotHeld, Size, require_some
from tests.attacks.mutation import mutated, mutated_value

SECONDS = 3.0  # of one answer
QUICK = 900  # answers
TOKENS = [5, 6, 7]
MODELS = {"object": "list", "data": [{"id": "student"}]}
WRITTEN = {
    "choices": [
        {
            "index": 0,
            "text": "a word",
            "token_ids": [8, 9],
            "prompt_token_ids": TOKENS,
            "logprobs": {"token_logprobs": [-0.5, -1.5], "tokens": ["token_id:8", "token_id:9"]},
            "prompt_logprobs": [
                None,
                {"6": {"logprob": -1.0, "rank": 1}, "9": {"logprob": -2.0, "rank": 2}},
                {"7": {"logprob": -0.5, "rank": 1}, "3": {"logprob": -3.0, "rank": 2}},
            ],
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 3},
}
SAID = {"choices": [{"message": {"role": "assistant", "content": "Ada lives in Oslo."}}]}
Answer = Callable[[str], bytes]  # from the path to all bytes of the answer


def fuzz_servers(size: Size) -> str:
    """Return how many answers were taken or refused."""
    ends: Counter[str] = Counter()
    with server() as (url, answers):
        answers["now"] = lambda path: plain(MODELS if path.endswith("models") else WRITTEN)
        engine = ServerEngine([url], EngineSettings(timeout_seconds=SECONDS))
        writer = EndpointWriter(f"{url}/v1", "m", timeout=SECONDS, tries=1, pause=lambda _: None)
        params = SamplingParams(4)
        asked: dict[str, Callable[[], object]] = {
            "completion": lambda: engine.sample([TOKENS], params, [1]),
            "score": lambda: engine.score([TOKENS], [1], 2),
            "model list": lambda: ServerEngine([url], EngineSettings(timeout_seconds=SECONDS)),
            "chat": lambda: "".join(text.said for _, text in writer.write(["Where?"])).encode(),
        }
        for number in size.rounds(QUICK):
            chance = size.random("servers", number)
            name = chance.choice(list(asked))
            body = {"completion": WRITTEN, "score": WRITTEN, "model list": MODELS, "chat": SAID}[name]
            answer = changed(chance, body)
            answers["now"] = always(answer)
            ends[ended(asked[name], name, number)] += 1
    require_some(ends, "taken")
    return f"{ends.total():,} answers ({ends['taken']:,} taken, {ends['refused']:,} refused in one line)"


def always(answer: bytes) -> Answer:
    return lambda path: answer


def ended(ask: Callable[[], object], name: str, number: int) -> str:
    begun = time.monotonic()
    try:
        ask()
    except RecoverError as error:
        if not str(error).isprintable():
            raise NotHeld(f"{name} {number}: {str(error)[:300]!r}") from error
        return "refused"
    except Exception as error:
        raise NotHeld(f"{name} {number}: {type(error).__name__}: {str(error)[:200]}") from error
    finally:
        if time.monotonic() - begun > 40 * SECONDS:  # on a busy machine
            raise NotHeld(f"{name} {number} took {time.monotonic() - begun:.0f} s")
    return "taken"


def changed(chance: Random, body: Any) -> bytes:
    """Change the JSON of an answer, its bytes, its headers, or when it ends."""
    match chance.randrange(4):
        case 0:
            return mutated(chance, plain(body))
        case 1:
            return plain(body, status=chance.choice((100, 204, 301, 307, 400, 401, 404, 429, 500, 503, 999)))
        case 2:
            return plain(body, extra=b"X: " + mutated(chance, b"some header") + b"\r\n")
        case _:
            return plain(mutated_value(chance, body))


def plain(body: Any, status: int = 200, extra: bytes = b"") -> bytes:
    data = json.dumps(body).encode()
    head = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n"
    return head % (status, extra, len(data)) + data


@contextmanager
def server() -> Iterator[tuple[str, dict[str, Answer]]]:
    """A server on the loopback interface that sends the bytes of `answers["now"]`, then closes."""
    answers: dict[str, Answer] = {}
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    threading.Thread(target=reply, args=(connection, answers), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", answers


def reply(connection: socket.socket, answers: dict[str, Answer]) -> None:
    with connection, suppress(OSError):
        asked = connection.recv(2**20)
        connection.sendall(answers["now"](asked.split(b" ")[1].decode()))
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(SECONDS)
        while connection.recv(2**16):
            pass
