"""Draw metrics of training runs over steps, tokens or time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from dashboard import metric_names, run_names
from dashboard.address import Address
from dashboard.figures import metric_curves
from dashboard.figures.metric_curves import Curve
from dashboard.form_controls import checkbox, choose
from dashboard.markup import Html, join, tag
from dashboard.number_format import number
from dashboard.page_context import PageContext
from dashboard.page_parts import empty
from dashboard.status_chips import chip
from db.reads import curves as stored
from db.reads import overview

TITLE = "Curves"
PATH = "/curves"

AXES = {"steps": "steps", "tokens": "tokens trained", "time": "time"}
SMOOTHING = {"none": 0.0, "a little": 0.6, "more": 0.9, "a lot": 0.97}
MOST_RUNS = 8
POINTS = 800
SMALL_POINTS = 60
FIRST = ("loss", "reverse_kl", "response_tokens")  # metrics shown first

Row = dict[str, Any]


def build(context: PageContext, address: Address) -> Html:
    known = overview.training_runs(context.db)
    if not known:
        return empty("No training yet", context.command("demo"))
    chosen = _chosen(context, address, known)
    names = {run["id"]: stored.metric_names(context.db, run["id"]) for run in chosen}
    metrics = list(dict.fromkeys(name for found in names.values() for name in found))
    if not metrics:
        return tag(
            "section",
            tag("h1", "Curves"),
            _controls(address, known, chosen, [], ""),
            _missing(address, chosen),
            tag("p", "This run has not stored a point yet."),
            class_="card",
        )
    metric = address.choice("metric", metrics, next((name for name in FIRST if name in metrics), metrics[0]))
    return tag(
        "div",
        _missing(address, chosen),
        _large(context, address, known, chosen, metrics, metric),
        _thumbs(context, address, chosen[0], names),
        class_="stack",
    )


def _chosen(context: PageContext, address: Address, known: Sequence[Row]) -> list[Row]:
    """Return the runs that the address names, or the newest run that has points."""
    wanted = _wanted(address)
    found = {run["id"]: run for run in overview.training_runs(context.db, run_ids=wanted)} if wanted else {}
    named = [found[name] for name in wanted if name in found]
    return named or [next((run for run in known if stored.metric_names(context.db, run["id"])), known[0])]


def _wanted(address: Address) -> list[str]:
    names = dict.fromkeys(address.text("runs").split(","))
    return [name for name in names if name][:MOST_RUNS]


def _missing(address: Address, chosen: Sequence[Row]) -> Html | None:
    """Say which runs that the address names are not recorded, and whether another is shown for them."""
    wanted, shown = _wanted(address), {run["id"] for run in chosen}
    missing = [name for name in wanted if name not in shown]
    if not missing:
        return None
    another = " Another run is shown." if missing == wanted else ""
    return tag("p", f"Not recorded: {', '.join(missing)}.{another}", class_="notice")


def _large(
    context: PageContext,
    address: Address,
    known: Sequence[Row],
    chosen: Sequence[Row],
    metrics: list[str],
    metric: str,
) -> Html:
    axis = address.choice("axis", AXES, "steps")
    keep = SMOOTHING[address.choice("smooth", SMOOTHING, "none")]
    log = address.text("log") == "1"
    drawn = [_curve(context, run, metric, axis) for run in chosen]
    named = metric_names.words(metric)
    there = [curve for curve in drawn if curve.rows]
    picture = (
        metric_curves.figure(there, named, axis, keep=keep, log=log)
        if there
        else tag("p", f"None of these runs has stored this metric: {named}.")
    )
    below = _below_zero(there) if log else None
    return tag(
        "section",
        tag(
            "div",
            tag("h1", named[:1].upper() + named[1:]),
            _controls(address, known, chosen, metrics, metric),
            class_="head",
        ),
        picture,
        metric_curves.curve_legend(drawn, [_without(address, chosen, run) for run in chosen]),
        [
            tag("p", chip("stalled", "alarm"), f" {curve.name}: {said}")
            for curve in drawn
            for _, said in curve.alarms
        ],
        [
            tag("p", f"{run_names.name(run)} {said}", class_="small")
            for run in chosen
            if (said := run_names.ending(run))
        ],
        below,
        class_="card",
    )


def _below_zero(drawn: Sequence[Curve]) -> Html | None:
    values = [row["low"] for curve in drawn for row in curve.rows if row["low"] is not None]
    hidden = sum(value <= 0 for value in values)
    if not hidden:
        return None
    return tag(
        "p",
        f"{hidden} of {len(values)} points are zero or less and have no place on a log axis.",
        class_="soft small",
    )


def _curve(context: PageContext, run: Row, metric: str, axis: str) -> Curve:
    rows = _series(context, run, metric)
    places = _places(context, run, rows, axis)
    alarms = [(_at(rows, places, step), said) for step, said in run_names.alarms(run)] if rows else []
    return Curve(run_names.name(run), rows, places, alarms)


def _series(context: PageContext, run: Row, metric: str) -> list[Row]:
    """Return a metric's rows; cache those of a finished run, which may have a million points."""

    def read() -> list[Row]:
        return stored.metric_series(context.db, run["id"], metric, points=POINTS)

    return context.cached(("curve", run["id"], metric), read) if run["status"] == "done" else read()


def _places(context: PageContext, run: Row, rows: Sequence[Mapping[str, Any]], axis: str) -> list[float]:
    """Return each stretch's x position: middle step, tokens trained until then, or seconds since the
    start."""
    if axis == "time":
        return elapsed([row["at"] for row in rows])
    if axis == "tokens":
        return tokens_until([row["last_step"] for row in rows], _series(context, run, "tokens"))
    return [(row["step"] + row["last_step"]) / 2 for row in rows]


def elapsed(moments: Sequence[float]) -> list[float]:
    """Return the seconds since the first moment; a clock that was set back adds none."""
    steps = (max(0.0, later - earlier) for earlier, later in pairwise(moments))
    return list(accumulate(steps, initial=0.0))[: len(moments)]


def tokens_until(steps: Sequence[int], counted: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the tokens trained until each step; without counts, the steps themselves."""
    if not counted:
        return [float(step) for step in steps]
    found = []
    total = 0.0
    place = 0
    for step in steps:
        while place < len(counted) and counted[place]["last_step"] <= step:
            total += (counted[place]["value"] or 0.0) * counted[place]["n"]
            place += 1
        found.append(total)
    return found


def _at(rows: Sequence[Mapping[str, Any]], places: Sequence[float], step: int) -> float:
    """Return the position of the stretch that contains a step, or of the nearest one."""
    nearest = min(range(len(rows)), key=lambda i: abs(rows[i]["last_step"] - step))
    return places[nearest]


def _controls(
    address: Address, known: Sequence[Row], chosen: Sequence[Row], metrics: list[str], metric: str
) -> Html:
    smoothing = address.choice("smooth", SMOOTHING, "none")
    ids = [run["id"] for run in chosen]
    added = [run for run in known if run["id"] not in ids]
    named = {run["id"]: run_names.long_name(run) for run in _both(known, chosen)}
    return tag(
        "div",
        choose("Run", "runs", named, ids[0]),
        choose("Metric", "metric", {name: metric_names.words(name) for name in metrics}, metric),
        choose("Over", "axis", AXES, address.choice("axis", AXES, "steps")),
        choose("Smoothing", "smooth", {name: name for name in SMOOTHING}, smoothing),
        checkbox("log axis", "log", address.text("log") == "1"),
        _adding(address, ids, added),
        class_="controls",
    )


def _both(known: Sequence[Row], chosen: Sequence[Row]) -> list[Row]:
    there = {run["id"] for run in known}
    return [*known, *(run for run in chosen if run["id"] not in there)]


def _adding(address: Address, ids: list[str], added: Sequence[Row]) -> Html | None:
    """Return links that overlay other runs; the address names all runs."""
    if not added or len(ids) >= MOST_RUNS:
        return None
    links = [
        tag("li", tag("a", run_names.long_name(run), href=address.link(runs=",".join([*ids, run["id"]]))))
        for run in added
    ]
    return tag(
        "details", tag("summary", "compare with another run"), tag("ul", links, class_="picks"), class_="adds"
    )


def _without(address: Address, chosen: Sequence[Row], run: Row) -> Html:
    left = [other["id"] for other in chosen if other["id"] != run["id"]]
    if not left:
        return tag("span")
    return tag("a", "remove", href=address.link(runs=",".join(left)), class_="small")


def _thumbs(context: PageContext, address: Address, run: Row, names: Mapping[str, list[str]]) -> Html:
    """Show every curve of the first run as a thumbnail; a click enlarges it."""

    def draw() -> list[tuple[str, Html]]:
        return _small(context, run["id"], names[run["id"]])

    drawn = context.cached(("thumbs", run["id"]), draw) if run["status"] == "done" else draw()
    entries = [tag("a", picture, href=address.link(metric=name), class_="thumb") for name, picture in drawn]
    return tag(
        "section",
        tag("h2", f"All of {run_names.name(run)}"),
        tag("div", entries, class_="thumbs"),
        class_="card",
    )


def _small(context: PageContext, run_id: str, names: Sequence[str]) -> list[tuple[str, Html]]:
    """Return each curve's name, last value and thumbnail."""
    last = {row["name"]: row for row in stored.latest_metrics(context.db, run_id)}
    found = []
    for name in names:
        newest = last.get(name, {})
        value = newest.get("special") or number(newest.get("value"))
        words = tag("b", metric_names.words(name)), tag("span", value, class_="soft")
        rows = stored.metric_glance(context.db, run_id, name, points=SMALL_POINTS)
        found.append((name, join(tag("span", *words, class_="head"), metric_curves.small(rows, name))))
    return found
