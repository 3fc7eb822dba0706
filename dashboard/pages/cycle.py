"""Show one cycle: stages, scores, verdicts, changed settings, and its review."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dashboard import page_parts, reviewing, stage_progress, verdict_parts
from dashboard.address import Address
from dashboard.figures.stage_scores import stage_scores
from dashboard.markup import Html, join, tag
from dashboard.number_format import NONE, bound, bounds, count, duration, limit, moment, points, share, size
from dashboard.page_context import PageContext
from dashboard.page_parts import (
    beside_claim,
    empty,
    notes,
    number_headers,
    prompts,
    samples_by_suite,
    samples_of_axis,
    table,
    turns,
)
from dashboard.pages.cycles import onward, outcome
from dashboard.status_chips import chip
from db.reads import queries
from db.redact import differences, redact_text
from evals import verdict_sentences
from evals.probes import UPDATES
from evals.verdict import NOT_MEASURED, is_refuted
from recovery.counted import counted

TITLE = "Cycle"
PATH = "/cycle"
ACTIONS = {"review": reviewing.record}
DOCUMENTS = 200  # files per page of the list
REVIEW = "review"  # id of the card with the form
MOST_EARLIER = 5  # earlier cycles whose documents are listed
HASH = re.compile("[0-9a-f]{64}")
LISTS = {"all": "list them", "skipped": "list what was skipped"}

Row = dict[str, Any]


def build(context: PageContext, address: Address) -> Html:
    number = address.number("n") or _newest(context)
    if number is None:
        return empty("No cycle yet", context.command("cycle", "--docs", "DIR"))
    row = context.cached(("cycle", number), lambda: queries.cycle(context.db, number))
    run = queries.run(context.db, row["run"])
    row = row | {"status": "stalled"} if run["stalled"] else row
    runs = stage_progress.stages(context.db, run["id"])
    samples = context.cached(("samples", number), lambda: samples_by_suite(context.db, number))
    scores = row["scores"]
    left = (
        tag("section", tag("h2", "Scores"), stage_scores(scores, samples), notes(scores), class_="card"),
        tag("section", tag("h2", "Verdict"), _verdict(row, samples), page_parts.halves(row), class_="card"),
        tag(
            "section",
            tag("h2", "Stage by stage"),
            stage_progress.trouble([run, *runs], context.command("resume", run["id"])),
            stage_progress.stage_list(runs),
            class_="card",
        ),
        tag("section", tag("h2", "Documents"), _documents(context, runs, address), class_="card"),
        tag("section", _settings(context, number, run), class_="card"),
    )
    right = (
        tag(
            "section",
            reviewing.box(row, queries.reviews(context.db, cycle=number), context.reviewer),
            class_="card",
            id=REVIEW,
            tabindex="-1",
        ),
        tag("section", tag("h2", "Cost"), _cost(row), class_="card"),
        tag("section", tag("h2", "Models"), _models(context, row), class_="card"),
        tag("section", tag("h2", "Look closer"), _links(number, address), class_="card"),
    )
    return join(
        _head(context, address, row, run),
        tag(
            "div",
            tag("div", left, class_="stack seven"),
            tag("div", right, class_="stack five side"),
            class_="grid",
        ),
    )


def _newest(context: PageContext) -> int | None:
    numbers = context.cycle_numbers()
    return numbers[-1] if numbers else None


# Head -------------------------------------------------------------------------------------------------------


def _head(context: PageContext, address: Address, row: Row, run: Row) -> Html:
    number = row["cycle"]
    ended = f" to {moment(row['ended_at'])}" if row["ended_at"] else ""
    when = f"{moment(row['started_at'])}{ended}"
    newest = _newest(context) or number
    before = tag("a", f"← Cycle {number - 1}", href=address.page(PATH, n=number - 1)) if number > 1 else None
    after = (
        tag("a", f"Cycle {number + 1} →", href=address.page(PATH, n=number + 1)) if number < newest else None
    )
    named = f" · {row['name']}" if row["name"] else ""
    place = redact_text(str(run["config"].get("docs", "")))
    docs = [" · ", tag("span", place, class_="said inline mono small")] if place else None
    return tag(
        "section",
        tag(
            "div",
            tag("h1", f"Cycle {number} ", chip(verdict_sentences.status_in_words(row))),
            tag("p", *outcome(context, row), class_="lead"),
            onward(context, address, row, f"#{REVIEW}"),
            tag("p", f"{when} · run {run['id']}{named}", docs, class_="soft small"),
        ),
        tag("p", before, " ", after, class_="pager"),
        class_="card head",
    )


# Verdict ----------------------------------------------------------------------------------------------------


def _verdict(row: Row, samples: Mapping[str, int]) -> Html:
    axes = verdict_parts.axes_of(row)
    if not axes:
        coming = "The verdict comes when the recovered model has been measured."
        return tag("p", verdict_parts.unjudged(row, coming), class_="soft")
    lines = [_axis(name, axis, row, samples) for name, axis in axes.items()]
    updates = row["scores"].get(UPDATES, {})
    known = _still_known(row.get("knowledge_by_cycle") or [])
    return join(tag("div", lines, class_="axes"), _stale(updates), known)


def _still_known(earlier: Sequence[Row]) -> Html | None:
    """List what is known of the newest earlier cycles' documents; of more, name the one it knows least of."""
    if not earlier:
        return None
    shown = [tag("li", _past(past)) for past in earlier[-MOST_EARLIER:]]
    title = "What it still knows of earlier documents"
    least = None
    if len(earlier) > len(shown):
        title += f", the newest {len(shown)} of {len(earlier)} sets"
        measured = [past for past in earlier if past["score"] is not None]
        worst = min(measured, key=lambda past: past["score"], default=None)
        least = tag("p", f"Least it knows of {_past(worst)}.", class_="small") if worst else None
    return join(tag("h3", title, class_="more"), tag("ul", shown, class_="small"), least)


def _past(past: Row) -> str:
    then = f", {share(past['then'])} % when it ended" if past["then"] is not None else ""
    return f"cycle {past['cycle']}'s documents: {share(past['score'])} %{then}"


def _stale(updates: Mapping[str, Any]) -> Html | None:
    """Show the share of changed facts that each stage answers as before the change, with its interval."""
    known = []
    for stage, rate in updates.get("stale_rate", {}).items():
        around = bounds(updates["stale_intervals"].get(stage))
        if rate is not None:
            known.append(f"{stage} {share(rate)} %" + (f" ({around})" if around else ""))
    return tag("p", f"Old answers to changed facts: {', '.join(known)}.", class_="small") if known else None


def _axis(name: str, axis: Mapping[str, Any] | None, row: Row, samples: Mapping[str, int]) -> Html:
    """Describe one axis of the verdict: the difference, the bound that decides and the margin."""
    why = verdict_parts.why_unmeasured(name, axis, row)
    if axis is None:
        absent = tag("p", why, class_="small")
        return tag("div", tag("h3", name), chip(NOT_MEASURED), absent, class_="axis-card")
    title = tag("h3", verdict_parts.named(name, axis))
    numbers = tag("p", why or _numbers(axis, samples_of_axis(name, axis, samples)), class_="small")
    return tag("div", title, chip(axis["outcome"]), numbers, beside_claim(axis), class_="axis-card")


def _numbers(axis: Mapping[str, Any], samples: int) -> str:
    families = (axis.get("details") or {}).get("families", 1)
    sentences = (
        f"{_difference(axis)}.",
        f"{_flips(axis, samples)}." if axis.get("n") is not None else "",
        f"Bounds hold for {families} families at once." if families > 1 else "",
        verdict_parts.needed(axis),
    )
    return " ".join(filter(None, sentences))


def _difference(axis: Mapping[str, Any]) -> str:
    """State the difference, the bound that decides, and what the margin asks of it."""
    against = (axis.get("details") or {}).get("reference", "the reference")
    margin = axis.get("margin")
    refuted = margin is not None and axis.get("upper_bound") is not None and is_refuted(axis)
    at, end = ("at best", "upper_bound") if refuted else ("at worst", "lower_bound")
    words = f"{points(axis['difference'])} points against {against}; {at} {bound(axis[end], margin)}"
    if margin is None:
        return words
    return f"{words}, where {limit(margin)} {'must be shown' if margin < 0 else 'is allowed'}"


def _flips(axis: Mapping[str, Any], samples: int) -> str:
    """State how many items flipped, of how many, with McNemar's test; of a lead, how many answers count."""
    details = axis.get("details") or {}
    if (axis.get("margin") or 0) < 0:
        words = f"{counted(axis['lost'], 'old answer')}, {counted(axis['gained'], 'new one')}"
    else:
        item = "prompt" if samples == 1 else "answer"
        words = f"{counted(axis['lost'], item)} lost, {axis['gained']} gained"
    words += f" of {prompts(axis['n'], samples)}"
    words += f", all {details['kind']}" if "kind" in details else ""
    mcnemar = details.get("p_mcnemar")
    return f"{words}; McNemar p = {mcnemar:.2g}" if isinstance(mcnemar, float) else words


# Documents, settings, cost, models --------------------------------------------------------------------------


def _documents(context: PageContext, runs: list[Row], address: Address) -> Html:
    """Show how much was read; list the files only on request, because there may be any number."""
    midtrain = next((run for run in runs if run["kind"] == "midtrain"), None)
    totals = _totals(context, midtrain) if midtrain else {}
    if midtrain is None or not totals:
        return tag("p", "No document has been read yet.", class_="soft")
    read = totals.get("read", {"n": 0, "tokens": None})
    skipped = sum(row["n"] for status, row in totals.items() if status != "read")
    tokens = f", {count(read['tokens'])} tokens" if read["tokens"] else ""
    wanted = address.choice("documents", LISTS, "")
    links = [
        tag("a", words, href=address.link(documents=which or None, docafter=None))
        for which, words in {**LISTS, "": "hide the list"}.items()
        if which != wanted and (skipped or which != "skipped")
    ]
    words = tag("p", f"{read['n']:,} read{tokens}; {skipped:,} skipped.")
    return join(words, tag("p", links, class_="pager"), _manifest(context, midtrain, address, wanted))


def _totals(context: PageContext, midtrain: Row) -> dict[str, Row]:
    def read() -> dict[str, Row]:
        return queries.document_totals(context.db, midtrain["id"])

    return context.cached(("documents", midtrain["id"]), read) if midtrain["status"] == "done" else read()


def _manifest(context: PageContext, midtrain: Row, address: Address, wanted: str) -> Html | None:
    """Show one page of the file list, sorted by path."""
    if not wanted:
        return None
    status = "skipped" if wanted == "skipped" else None
    after = address.text("docafter")
    rows = queries.documents(context.db, midtrain["id"], status=status, after=after, limit=DOCUMENTS + 1)
    heads = ["path", "state", *number_headers("characters", "tokens"), "sha-256"]
    last = rows[DOCUMENTS - 1]["path"] if len(rows) > DOCUMENTS else None
    whole = tag("a", "All as a file", href=address.page("/export")) if after or last else None
    pager = tag("p", turns(address, "docafter", last), whole, class_="pager")
    return join(table(heads, [_document(row) for row in rows[:DOCUMENTS]]), pager)


def _document(row: Row) -> list[Any]:
    state = tag("span", row["reason"] or row["status"], class_="said inline")
    sha = tag("span", (row["sha256"] or NONE)[:12], class_="mono small soft")
    return [
        tag("span", row["path"], class_="said inline mono small"),
        state,
        tag("td", f"{row['characters']:,}" if row["characters"] is not None else NONE, class_="n"),
        tag("td", f"{row['tokens']:,}" if row["tokens"] is not None else NONE, class_="n"),
        sha,
    ]


def _settings(context: PageContext, number: int, run: Row) -> Html:
    """List the settings that differ from the previous cycle's."""
    earlier = queries.cycles(context.db, before=number, limit=1)
    before = queries.run(context.db, earlier[0]["run"]) if earlier else None
    if before is None:
        return join(
            tag("h2", "Settings"),
            tag("p", "There is no cycle before this one to compare with."),
            _versions(run),
        )
    changed = differences(before["config"], run["config"])
    versions = differences(before["versions"], run["versions"])
    rows = [
        [tag("td", name, class_="setting mono small"), _value(old), _value(new)]
        for name, old, new in [*changed, *versions]
    ]
    title = tag("h2", f"Settings against cycle {number - 1}")
    if not rows:
        return join(title, tag("p", "Nothing was set otherwise."), _versions(run))
    return join(title, table(["setting", f"cycle {number - 1}", f"cycle {number}"], rows), _versions(run))


def _value(value: Any) -> Html:
    """Show a setting's value; of a hash, as much as tells two apart."""
    shown = value[:12] if HASH.fullmatch(str(value)) else value
    return tag("span", NONE if value is None else shown, class_="said inline mono small")


def _versions(run: Row) -> Html:
    parts = [f"{name} {version}" for name, version in run["versions"].items()]
    seed = f"seed {run['seed']}" if run["seed"] is not None else "no seed"
    revision = f"revision {run['git_revision']}" if run["git_revision"] else ""
    return tag("p", " · ".join(part for part in (seed, revision, *parts) if part), class_="soft small said")


def _cost(row: Row) -> Html:
    cost = row["cost"]
    parts = [("time", duration(cost.get("seconds")))]
    parts += [
        (name.removeprefix("tokens_") + " tokens", count(value))
        for name, value in cost.items()
        if name.startswith("tokens_")
    ]
    parts += [
        ("memory at most" if name == "peak_bytes" else name.replace("_", " "), size(value))
        for name, value in cost.items()
        if name.startswith("peak_")
    ]
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in parts], class_="facts")


def _models(context: PageContext, row: Row) -> Html:
    aliases: dict[str, list[str]] = {}
    for alias in queries.aliases(context.db):
        aliases.setdefault(alias["checkpoint_id"], []).append(alias["name"])

    def line(stage: str, name: str | None) -> Html:
        also = [chip("plain", alias) for alias in aliases.get(name or "", [])]
        named = tag("span", name or "not yet", class_="mono small")
        return tag("div", tag("dt", stage), tag("dd", named, also))

    return tag("dl", [line(stage, name) for stage, name in row["checkpoints"].items()], class_="facts")


def _links(number: int, address: Address) -> Html:
    links = {
        "What it does by instruction type": address.page("/behaviour", n=number),
        "All families of behaviour": address.page("/families", n=number),
        "What it says, side by side": address.page("/samples", n=number),
        "What it lost: clean passes, recovered fails": address.page("/samples", n=number, flip="lost"),
    }
    return tag("ul", [tag("li", tag("a", words, href=link)) for words, link in links.items()], class_="links")
