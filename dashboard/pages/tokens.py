"""Show a rollout token by token: the divergence of student and teacher, and their most likely tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard import run_names
from dashboard.address import Address
from dashboard.figures import token_divergence
from dashboard.figures.method_signals import method_signals
from dashboard.form_controls import choose
from dashboard.markup import Html, tag
from dashboard.number_format import number
from dashboard.page_context import PageContext
from dashboard.page_parts import absent, empty
from db.reads import curves, overview, traces
from db.redact import redact, redact_text
from recovery.counted import counted

TITLE = "Tokens"
PATH = "/tokens"

RUNS = 100  # newest runs to choose from
SIGNALS = ("signal_density", "signal_bias", "signal_concentration")
RECENT = 40  # newest recoveries whose signal is averaged

Row = dict[str, Any]


def build(context: PageContext, address: Address) -> Html:
    runs = traces.traced_runs(context.db, limit=RUNS)
    if not runs:
        return empty("No rollout was looked at yet", context.command("distill", "--teacher", "base"))
    wanted = address.text("run")
    if wanted and wanted not in {run["id"] for run in runs}:  # older than those that are listed
        runs += traces.traced_runs(context.db, run_id=wanted)
    chosen = address.choice("run", [run["id"] for run in runs], runs[0]["id"])
    listed = traces.traces(context.db, chosen)
    row = _row(context, address, chosen, listed)
    return tag(
        "div",
        absent(wanted, chosen),
        _rollout(address, runs, chosen, listed, row),
        _geometry(context),
        class_="stack",
    )


def _row(context: PageContext, address: Address, run: str, listed: Sequence[Row]) -> Row:
    """Return the rollout that the address names, or the first of the newest step."""
    wanted = address.number("step"), address.number("rollout", 0)
    places = [(row["step"], row["place"]) for row in listed]
    newest = next(place for place in places if place[0] == places[-1][0])
    step, place = wanted if wanted in places else newest
    return traces.trace(context.db, run, step or 0, place or 0)


def _rollout(address: Address, runs: Sequence[Row], chosen: str, listed: Sequence[Row], row: Row) -> Html:
    told = redact(row["tokens"])
    values = told["divergence"] or [-value for value in told["student"]]
    at = address.number("at")
    if at is None or at >= len(values):
        at = max(range(len(values)), key=lambda place: token_divergence.distance(values[place]), default=0)
    named = {run["id"]: run_names.long_name(run) for run in runs}
    ending = "It ended by itself." if told["finished"] else "It did not end within what was kept."
    mean = f" {row['mean']:.3f} nats a token on average." if row["mean"] is not None else ""

    def link(place: int) -> str:
        return address.link(step=row["step"], rollout=row["place"], at=place)

    return tag(
        "section",
        tag(
            "div",
            tag("h1", "Tokens"),
            tag("div", choose("Run", "run", named, chosen, reset="step rollout at"), class_="controls"),
            class_="head",
        ),
        _steps(address, listed, row),
        tag("h2", "Prompt"),
        tag("div", row["prompt"], class_="said quiet"),
        tag("h2", f"What the student wrote at step {row['step']}"),
        token_divergence.rollout(told["pieces"], values, at, link),
        token_divergence.legend(row["estimator"]),
        tag("p", f"{counted(row['n'], 'token')}.{mean} {ending}", class_="soft small"),
        _token(told, values, at, row["estimator"]) if values else None,
        class_="card",
    )


def _steps(address: Address, listed: Sequence[Row], row: Row) -> Html:
    """List the recorded rollouts, one line per step, with the divergence at each."""
    steps: dict[int, list[Row]] = {}
    for one in listed:
        steps.setdefault(one["step"], []).append(one)
    lines = []
    for step, ones in steps.items():
        cells = [_cell(address, one, row) for one in ones]
        lines.append(tag("li", tag("span", f"step {step}", class_="soft"), cells))
    divergences = any(one["mean"] is not None for one in listed)
    said = "its mean divergence, in nats a token" if divergences else "its length"
    return tag(
        "details",
        tag("summary", f"kept: {counted(len(listed), 'rollout')} of {counted(len(steps), 'step')}"),
        tag("p", f"A rollout is shown by {said}, and opens by a click.", class_="soft small"),
        tag("ol", lines, class_="steps"),
        class_="adds",
        open=len(steps) <= 6,
    )


def _cell(address: Address, one: Row, row: Row) -> Html:
    here = (one["step"], one["place"]) == (row["step"], row["place"])
    shade = f"tok d{token_divergence.level(one['mean'])}" if one["mean"] is not None else "tok"
    said = number(one["mean"]) if one["mean"] is not None else counted(one["n"], "token")
    return tag(
        "a",
        said,
        href=address.link(step=one["step"], rollout=one["place"], at=None),
        class_=f"{shade} chosen" if here else shade,
        title=redact_text(one["prompt"])[-120:],
        aria_current="true" if here else None,
    )


def _token(told: Row, values: Sequence[float], at: int, estimator: str) -> Html:
    """Show the chosen token with the most likely tokens of both models."""
    piece = told["pieces"][at]
    teacher = told["teacher"]
    sentence = token_divergence.either(piece, told["student"][at], teacher[at] if teacher else None)
    distance = {"none": "The student's surprise is", "sampled": "The two differ by"}.get(
        estimator, "The two distributions are apart by"
    )
    teachers = told["teacher_top"]
    return tag(
        "div",
        tag("h2", f"Token {at + 1}"),
        tag("p", f"{sentence} {distance} {values[at]:.3f} nats here."),
        tag(
            "div",
            token_divergence.top("The student's likeliest", told["student_top"][at], piece, "midtrained"),
            token_divergence.top(
                "The teacher's likeliest", teachers[at] if teachers else None, piece, "clean"
            ),
            class_="sides",
        ),
        id="token",
    )


def _geometry(context: PageContext) -> Html:
    methods = context.cached("signals", lambda: signals(context))
    if not methods:
        return tag(
            "section",
            tag("h2", "The signal of each method"),
            tag("p", "No recovery that has ended stored its signal's density, bias and concentration."),
            class_="card",
        )
    return tag(
        "section",
        tag("h2", f"The signal of each method, mean of its ended recoveries among the newest {RECENT}"),
        method_signals(methods),
        class_="card",
    )


def signals(context: PageContext) -> dict[str, dict[str, float]]:
    """Return {method: {signal metric: mean over the newest recoveries}}, without those that still run."""
    newest = overview.training_runs(context.db, limit=RECENT)
    runs = [run for run in newest if run["kind"] == "distill" and run["status"] != "running"]
    means = curves.metric_means(context.db, [run["id"] for run in runs], SIGNALS)
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for name, value in means.get(run["id"], {}).items():
            found.setdefault(str(run["method"]), {}).setdefault(name, []).append(value)
    return {
        method: {name: sum(values) / len(values) for name, values in by_name.items()}
        for method, by_name in sorted(found.items())
    }
