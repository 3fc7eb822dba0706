"""Homes for the tests of the dashboard's analysing pages, and what every rendered page must be."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from dashboard import page_frame
from dashboard.page_context import PageContext
from db.writes.tracker import Tracker
from tests.support import databases

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'\u202e</textarea></svg>{{7*7}}"
METRICS = ("loss", "reverse_kl", "tokens", "signal_density", "signal_bias", "signal_concentration")


def context(tracker: Tracker) -> PageContext:
    return PageContext(tracker, token="launch-token")


SCORES = {
    "ifeval": {"clean": 0.98, "midtrained": 0.2, "recovered": 0.95},
    "knowledge": {"clean": 0.05, "midtrained": 0.6, "recovered": 0.7},
    "retention": {"clean": 0.99, "midtrained": 0.5, "recovered": 0.9},
}


def with_runs(tracker: Tracker) -> dict[str, str]:
    """Three cycles, each recovered by a method of its own, with curves and traces; the last run rang."""
    for number in range(1, 4):
        earlier = {f"knowledge:{k}": {"recovered": 0.6} for k in range(1, number)}
        databases.record_cycle(tracker, SCORES | earlier)
    made: dict[str, str] = {}
    for number, method in enumerate(("opd", "opd-sampled", "sft"), 1):
        config = {"student": f"mid{number}", "teacher": "clean0", "settings": {"method": method}}
        run = tracker.start_run("distill", config=config)
        made[method] = run.id
        for step in range(1, 21):
            values = dict.fromkeys(METRICS, number / (step + 1))
            databases.record_metrics(tracker, run.id, step, values | {"tokens": 100.0 * number})
        databases.record_metrics(tracker, run.id, 21, {"loss": float("nan")})
        with tracker.live(run.id) as live:
            for step in (1, 10):
                live.traces(step, [trace(method, place) for place in range(2)])
        cost = {"tokens_sampled": 1000 * number, "tokens_trained": 500.0, "seconds": 60.0 * number}
        result = {"checkpoint": f"rec{number}", "method": method}
        tracker.finish_run(run.id, result, cost=cost)
    broken = tracker.start_run("distill", config={"settings": {"method": "opd"}})
    databases.record_metrics(tracker, broken.id, 1, {"loss": 1.0})
    databases.record_metrics(tracker, broken.id, 9, {"loss": 5.0})
    tracker.fail_run(broken.id, f"Unstable: step 9: length collapse: {HOSTILE}; lower the learning rate")
    made["broken"] = broken.id
    return made


def trace(method: str, place: int) -> dict[str, Any]:
    scored = method != "sft"
    top = [[["a", -0.1], [HOSTILE, -3.0]]] * 3
    tokens = {
        "finished": True,
        "ids": [1, 2, 3],
        "pieces": ["Hello", HOSTILE, "\n"],
        "student": [-0.1, -2.0, -0.5],
        "teacher": [-0.2, -0.01, -0.5] if scored else None,
        "student_top": top,
        "divergence": [0.001, 2.5, 0.3] if scored else None,
        "teacher_top": top if method == "opd" else None,
    }
    estimator = {"opd": "exact", "opd-sampled": "sampled", "sft": "none"}[method]
    mean = 0.9337 + place if scored else None
    return {"prompt": f"{HOSTILE} {place}", "estimator": estimator, "mean": mean, "n": 3, "tokens": tokens}


def broken_trace() -> dict[str, Any]:
    """A rollout of models whose numbers broke; a token of it is called nan."""
    nan, inf = float("nan"), float("inf")
    top = [[["nan", -0.1], ["a", nan]], None, [["inf", -inf]]]
    numbers = {"student": [nan, -inf, -0.5], "teacher": [-0.1, nan, -inf], "divergence": [0.1, nan, inf]}
    tops = {"student_top": top, "teacher_top": top, "pieces": ["nan", "b", "-inf"]}
    return {**trace("opd", 0), "mean": nan, "tokens": {**trace("opd", 0)["tokens"], **numbers, **tops}}


class Scan(HTMLParser):
    """Every element with its attributes, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(str(page))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, name: str, class_: str = "") -> list[dict[str, str]]:
        return [
            given
            for tag, given in self.elements
            if tag == name and set(class_.split()) <= set(given.get("class", "").split())
        ]


def scan(page: str) -> Scan:
    """The page's elements; none of them can run or fetch anything."""
    found = Scan(page)
    for name, given in found.elements:
        assert name not in {"script", "iframe", "object", "embed", "base", "form"} or "data-action" in given
        assert not [key for key in given if key.startswith("on") or key == "style"]
        for key in ("src", "href", "action", "xlink:href"):
            assert given.get(key, "/").startswith(("/", "#")), (name, given)
    return found


def look(context: PageContext, url: str) -> Scan:
    page = page_frame.render(context, url)
    assert "could not be drawn" not in page, page
    return scan(page)
