"""Write a cycle as one self-contained HTML file with the dashboard's figures (`recover report cycle:N`).

The file has no script and loads nothing; it is light or dark by the reader's system setting. Model text is
escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dashboard import cycles_table, metric_names, page_parts, run_names, verdict_parts
from dashboard.figures import metric_curves, scores_over_cycles, token_divergence
from dashboard.figures.markers import stage_legend, styled
from dashboard.figures.metric_curves import Curve
from dashboard.figures.plane import MARKS, cycles_plane
from dashboard.figures.score_heatmap import Cell, heatmap, with_interval
from dashboard.markup import Html, document, join, tag, text
from dashboard.number_format import bounds, count, duration, moment, number, percent, share
from dashboard.page_parts import failure, number_headers, table, tokens_of
from dashboard.stage_progress import state
from dashboard.status_chips import chip
from db.cycle_names import STAGES
from db.reads import curves as stored
from db.reads import queries, traces
from db.redact import redact
from db.session import Database
from evals.families.table import FAMILIES
from evals.ifeval import IFEVAL
from evals.verdict_sentences import status_in_words
from recovery.counted import counted

STYLE = Path(__file__).parent / "static" / "style.css"
SHOWN = (("midtrain", "loss"), ("distill", "reverse_kl"), ("distill", "loss"))
HALF = 560  # width of a figure in a pair
FEW = 4  # most cycles shown as a table instead of lines
MOST_FLIPS = 10  # per direction
MOST_TEXT = 3000  # characters per answer
MOST_DOCUMENTS = 200
MOST_CONFIG = 20_000  # characters

Row = dict[str, Any]


def report(database: Database, number: int) -> str:
    """Return the complete HTML document."""
    cycle = queries.cycle(database, number)
    parts = queries.runs(database, parent=cycle["run"])
    runs = _trainings(database, parts)
    samples = page_parts.samples_by_suite(database, number)
    sections = [
        _head(cycle),
        _verdicts(cycle, samples),
        _scores(cycle, samples),
        _card("Knowledge against behaviour", cycles_plane([cycle], {number}), stage_legend(*MARKS)),
        _families(cycle),
        _earlier(cycle),
        _curves(database, runs),
        _flips(database, cycle),
        _trace(database, runs),
        _documents(database, runs),
        _settings(database, cycle),
    ]
    return page(f"cycle {number}", join(sections))


def _trainings(database: Database, parts: Sequence[Row]) -> list[Row]:
    """Return the runs that trained: those of a choice of recovery, newest first, then the cycle's own."""
    choices = [run["id"] for run in parts if run["key"] == "choose"]
    tried = queries.runs(database, parents=choices) if choices else []
    return [run for run in (*tried, *parts) if run["kind"] in ("midtrain", "distill")]


def page(title: str, body: Html) -> str:
    """Return a self-contained document; its content policy allows only the inlined style sheet."""
    css = style()
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return document("report.html", title=title, policy=policy, css=Html(css), body=body)


def style() -> str:
    """Return the dashboard's style sheet, with the colour theme selected by a media address."""
    css = STYLE.read_text(encoding="utf-8")
    dark = re.compile(r':root\[data-theme="dark"\] (\{[^}]*\})')
    return dark.sub(r"@media (prefers-color-scheme: dark) { :root \1 }", css)


def _card(title: str, *children: Any) -> Html:
    return tag("section", tag("h2", title), *children, class_="card")


def _head(cycle: Row) -> Html:
    review, cost, fraction = cycle["review"], cycle["cost"], cycle["recovered_fraction"]
    unlost = fraction is None and cycles_table.delta(cycle) is not None
    reviewed: list[Any] = ["not reviewed yet"]
    if review:
        note = [": ", tag("q", review["note"], class_="said inline")] if review["note"] else None
        reviewed = [chip(review["decision"]), f" by {review['reviewer']}, {moment(review['at'])}", note]
    return tag(
        "section",
        tag("h1", f"Cycle {cycle['cycle']} ", chip(status_in_words(cycle | {"status": state(cycle)}))),
        tag(
            "p",
            f"{moment(cycle['started_at'])} to {moment(cycle['ended_at'])} · "
            f"{duration(cost['seconds'])} of work · {count(tokens_of(cost))} tokens",
            class_="soft",
        ),
        failure(cycle),
        tag("p", "Review: ", reviewed),
        tag(
            "p",
            "Recovered of the lost behaviour: ",
            tag("b", "no loss shown" if unlost else percent(fraction, 0)),
            " · knows after recovery, of what midtraining taught: ",
            tag("b", percent(cycle["knowledge_kept"], 0)),
        ),
        class_="card",
    )


def _scores(cycle: Row, samples: dict[str, int]) -> Html:
    lines = []
    for suite, found in cycle["scores"].items():
        asked = tag("td", page_parts.prompts(found["n"], samples.get(suite, 1)), class_="n")
        lines.append([suite, *(_score(found, stage) for stage in STAGES), asked])
    return _card(
        "Scores, % with 95 % intervals",
        table(["suite", *number_headers(*STAGES, "prompts")], lines),
        page_parts.notes(cycle["scores"]),
    )


def _score(found: Row, stage: str) -> Html:
    known = bounds(found["intervals"][stage])
    around = tag("span", f"  {known}", class_="soft small") if known else None
    return tag("td", share(found[stage]), around, class_="n")


def _verdicts(cycle: Row, samples: dict[str, int]) -> Html:
    axes = verdict_parts.axes_of(cycle)
    lines = [verdict_parts.line(name, axis, samples) for name, axis in axes.items()]
    headers = [
        "axis",
        "verdict",
        *number_headers("difference, points", "bounds", "must exceed", "gained", "lost", "prompts"),
    ]
    return _card(
        "Verdict",
        table(headers, lines) if lines else tag("p", verdict_parts.unjudged(cycle, "There is none yet.")),
        [verdict_parts.remarks(name, axis, cycle) for name, axis in axes.items()],
        page_parts.halves(cycle),
        tag(
            "p",
            "A claim is shown when the lower of the one-sided 95 % bounds of the paired difference exceeds "
            "the value beside them, and its opposite when the upper one lies below it; each of two looks has "
            "97.5 % bounds. Updates shows how far new answers to changed facts lead over old ones. The "
            "bounds of families hold for all of them at once.",
            class_="soft small",
        ),
    )


def _families(cycle: Row) -> Html | None:
    """Draw the families and tasks that the cycle was asked for, at its three stages."""
    tasks = verdict_parts.tasks_of(cycle)
    scores = {name: cycle["scores"][name] for name in (*FAMILIES, *tasks) if name in cycle["scores"]}
    if not scores:
        return None
    rows = [(name, [_stage_cell(name, found, stage) for stage in STAGES]) for name, found in scores.items()]
    title = "Families of behaviour" + (", and tasks of lm-eval" if tasks else "")
    return _card(title, heatmap(list(STAGES), rows, "family"))


def _stage_cell(name: str, found: Row, stage: str) -> Cell:
    value = found[stage]
    if value is None:
        return Cell(None, 0, words=f"{name}, {stage}: not measured")
    low, high = found["intervals"][stage]
    score = {"value": value, "n": found["n"], "low": low, "high": high}
    return Cell(value, found["n"], title=f"{name}, {stage}: {with_interval(score)}")


def _earlier(cycle: Row) -> Html | None:
    known = cycle.get("knowledge_by_cycle") or []
    if not known:
        return None
    if len(known) < FEW:
        lines = [
            [
                f"cycle {row['cycle']}",
                *(tag("td", share(row[name]), class_="n") for name in ("score", "then")),
            ]
            for row in known
        ]
        listed = table(["documents of", *number_headers("known now, %", "known when new, %")], lines)
        return _card("What is still known of earlier cycles' documents", listed)
    now = [(float(row["cycle"]), row["score"]) for row in known]
    then = [(float(row["cycle"]), row["then"]) for row in known]
    series = {"known now": now, "known when it was new": then}
    styles = styled({"known now": "recovered"}, ["known when it was new"])
    return _card(
        "What is still known of earlier cycles' documents",
        scores_over_cycles.lines(series, styles),
        scores_over_cycles.lines_legend(styles),
    )


def _curves(database: Database, runs: Sequence[Row]) -> Html:
    drawn = []
    for kind, metric in SHOWN:
        for run in (run for run in runs if run["kind"] == kind):
            rows = stored.metric_series(database, run["id"], metric, points=400)
            places = [float(row["last_step"]) for row in rows]
            if rows:
                title = tag("h3", f"{run['key'] or kind}: {metric_names.words(metric)}")
                drawn.append(
                    tag(
                        "div",
                        title,
                        metric_curves.figure(
                            [Curve(kind, rows, places)], metric_names.words(metric), "steps", width=HALF
                        ),
                        class_="half",
                    )
                )
    alarms = [
        tag("p", chip("stalled", "alarm"), f" {run['key'] or run['kind']}, step {step}: {said}")
        for run in runs
        for step, said in run_names.alarms(run)
    ]
    endings = [
        tag("p", f"{run['key'] or run['kind']} {said}", class_="small")
        for run in runs
        if (said := run_names.ending(run))
    ]
    curves = tag("div", drawn, class_="grid") if drawn else tag("p", "No curve is stored.")
    return _card("Training", alarms, curves, endings)


def _flips(database: Database, cycle: Row) -> Html:
    if not cycle["checkpoints"]["clean"] or not cycle["checkpoints"]["recovered"]:
        return _card("Prompts that flipped", tag("p", "There is no recovered model yet."))
    # What the cycle measured: its models may have been measured again since.
    own = queries.headline_scores(database, cycle["cycle"], IFEVAL)
    sets = {own[stage]["item_set"] if stage in own else None for stage in ("clean", "recovered")}
    if None in sets or len(sets) > 1:
        parts = [tag("p", "The clean and the recovered model were not scored on the same prompts.")]
    else:
        pair = own["clean"]["id"], own["recovered"]["id"]
        parts = [_way(database, pair, "lost", "pass → fail"), _way(database, pair, "gained", "fail → pass")]
    return _card("Instructions that flipped from the clean to the recovered model", parts)


def _way(database: Database, pair: tuple[int, int], direction: str, label: str) -> Html:
    sign = "reject" if direction == "lost" else "approve"
    found = queries.flips_of_scores(database, *pair, direction=direction, limit=MOST_FLIPS + 1)
    more = f"{MOST_FLIPS} and more" if len(found) > MOST_FLIPS else str(len(found))
    shown = [
        tag(
            "article",
            tag("div", text(row["prompt"], MOST_TEXT), class_="said quiet", dir="auto"),
            tag(
                "div",
                _said("clean", row["response_a"]),
                _said("recovered", row["response_b"]),
                class_="sides",
            ),
            class_="flip",
        )
        for row in found[:MOST_FLIPS]
    ]
    return tag("details", tag("summary", chip(sign, label), f" {more}"), shown, open=direction == "lost")


def _said(who: str, response: str) -> Html:
    return tag("div", tag("h3", who), tag("div", text(response, MOST_TEXT), class_="said", dir="auto"))


def _trace(database: Database, runs: Sequence[Row]) -> Html | None:
    """Show the first rollout of the first and of the last traced step."""
    for run in runs:
        listed = traces.traces(database, run["id"])
        if listed:
            firsts = {row["step"]: row for row in reversed(listed)}
            ends = [firsts[step] for step in sorted({min(firsts), max(firsts)})]
            rows = [traces.trace(database, run["id"], row["step"], row["place"]) for row in ends]
            return _card(
                "Where student and teacher parted, token by token",
                [_rollout(row) for row in rows],
                token_divergence.legend(rows[-1]["estimator"]),
            )
    return None


def _rollout(row: Row) -> Html:
    told = redact(row["tokens"])
    values = told["divergence"] or [-value for value in told["student"]]
    mean = f", {number(row['mean'])} nats a token" if row["mean"] is not None else ""
    return tag(
        "div",
        tag("h3", f"Step {row['step']}{mean}"),
        tag("div", row["prompt"], class_="said quiet"),
        token_divergence.rollout(told["pieces"], values, None, None),
    )


def _documents(database: Database, runs: Sequence[Row]) -> Html | None:
    run = next((run for run in runs if run["kind"] == "midtrain"), None)
    rows = queries.documents(database, run["id"], limit=MOST_DOCUMENTS + 1) if run else []
    if not rows:
        return None
    lines = [
        [row["path"], row["status"], row["reason"] or "", tag("td", count(row["tokens"]), class_="n")]
        for row in rows[:MOST_DOCUMENTS]
    ]
    more = f", the first {MOST_DOCUMENTS}" if len(rows) > MOST_DOCUMENTS else ""
    listed = table(["file", "", "", *number_headers("tokens")], lines)
    return _card("Documents", tag("details", tag("summary", f"{counted(len(lines), 'file')}{more}"), listed))


def _settings(database: Database, cycle: Row) -> Html:
    run = queries.run(database, cycle["run"])
    seed = "no seed" if run["seed"] is None else f"seed {run['seed']}"
    parts = {"settings": run["config"], "checkpoints": cycle["checkpoints"], "versions": run["versions"]}
    shown = [
        tag(
            "details",
            tag("summary", name),
            tag(
                "pre", text(json.dumps(redact(value), indent=2, ensure_ascii=False, default=str), MOST_CONFIG)
            ),
        )
        for name, value in parts.items()
    ]
    return _card(
        "How it was made",
        shown,
        tag(
            "p",
            f"Run {run['id']}, {seed}, revision {run['git_revision'] or 'unknown'}.",
            class_="soft small",
        ),
    )
