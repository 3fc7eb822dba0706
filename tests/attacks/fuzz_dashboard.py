"""Send the dashboard addresses, bodies and headers that were changed at random."""

from __future__ import annotations

import json
import logging
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

from starlette.testclient import TestClient

from dashboard import app, page_frame
from dashboard.access.request_guard import EVENT
from db.writes.tracker import Tracker
from tests.attacks.attack import NotHeld, Size, require_some
from tests.attacks.mutation import VALUES, mutated, mutated_value
from tests.support.dashboards import fill
from tests.support.hostile import PAYLOADS

BASE = "http://127.0.0.1:7860"
OWN = {"origin": BASE, "sec-fetch-site": "same-origin"}
NAMES = re.compile(r"[?&;]([a-z_]+)=")
SLOW = 10.0  # seconds of processor time of one answer; waiting for a busy machine is none
QUICK = 700  # requests
REFUSED = "could not be drawn"


def fuzz_dashboard(size: Size) -> str:
    """Return how many requests were answered, and how."""
    logging.disable(logging.ERROR)
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, Tracker(Path(folder, "recover.db")) as tracker:
        fill(tracker, 2)
        client = TestClient(app.make(tracker), base_url=BASE)
        pages = {path: client.get(path).text for path in page_frame.BY_PATH}
        names = sorted({name for text in pages.values() for name in NAMES.findall(text)} | {"n", "page"})
        token = re.findall(r'data-token="([^"]+)"', client.get("/cycle?n=1").text)[0]
        for number in size.rounds(QUICK):
            chance = size.random("dashboard", number)
            ask = event if chance.random() < 0.4 else address
            ends[str(ask(client, chance, names, token))] += 1
        tracker.db.close()
    require_some(ends, "200")
    said = ", ".join(f"{count:,} with {status}" for status, count in sorted(ends.items()))
    return f"{ends.total():,} requests to {len(pages)} pages and the event: {said}"


def address(client: TestClient, chance: Random, names: list[str], _: str) -> int:
    """Ask for a page, the version of one, or a download, with parameters of any value."""
    path = chance.choice([*page_frame.BY_PATH, "/live", "/export/file", "/nowhere"])
    values = [*PAYLOADS, "-1", "0", "1", "99999999999", "1.2", "cycle:1", "cycle:9", "clean0", "ifeval", ""]
    pairs = [f"{chance.choice(names)}={quote(chance.choice(values))}" for _ in range(chance.randrange(1, 5))]
    url = f"{path}?{'&'.join(pairs)}"
    if chance.random() < 0.3:
        url = path + "?" + quote(mutated(chance, url.encode())[:4000], safe="=&;%+/?")
    return check(client, "GET", url, None, OWN)


def event(client: TestClient, chance: Random, names: list[str], token: str) -> int:
    """Send an event that draws a page or records a review, of which anything may be changed."""
    fields = {"cycle": "2", "decision": "reject", "note": "", "reviewer": "cy", "click": "one"}
    given = {"url": "/cycle?n=2", "action": "review", "token": token, "fields": fields}
    body: dict[str, Any] = {
        "data": [],
        "fn_index": chance.randrange(2),
        "event_data": given,
        "session_hash": "a",
    }
    part = chance.choice(("event_data", "fields", "all"))
    if part == "fields":
        given["fields"] = mutated_value(chance, fields)
    elif part == "event_data":
        body["event_data"] = mutated_value(chance, given)
    else:
        body = mutated_value(chance, body)
    data = json.dumps(body).encode()
    if chance.random() < 0.2:
        data = mutated(chance, data)
    headers = OWN | {"content-type": "application/json"}
    if chance.random() < 0.1:
        headers[chance.choice(list(headers))] = quote(
            str(chance.choice(VALUES))[:200], safe=" ", errors="replace"
        )
    return check(client, "POST", EVENT, data, headers)


def check(client: TestClient, method: str, url: str, data: bytes | None, headers: dict[str, str]) -> int:
    """Return the status; a server error, a page that could not be drawn or a long wait is a hole."""
    shown = f"{method} {url[:300]} {(data or b'')[:600]!r}"
    begun = time.process_time()
    try:
        answer = client.request(method, url, content=data, headers=headers)
    except Exception as error:
        raise NotHeld(f"{shown}: {type(error).__name__}: {str(error)[:200]}") from error
    if time.process_time() - begun > SLOW:
        raise NotHeld(f"{shown} took {time.process_time() - begun:.0f} s")
    if answer.status_code >= 500 or REFUSED in answer.text or "Traceback" in answer.text:
        raise NotHeld(f"{shown}: {answer.status_code} {answer.text[:200]!r}")
    return answer.status_code
