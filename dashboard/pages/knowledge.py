"""Show knowledge by cycle and kind of question, and retention of earlier cycles' documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.address import Address
from dashboard.figures import knowledge_grid, scores_over_cycles
from dashboard.figures.markers import styled
from dashboard.form_controls import choose
from dashboard.markup import Html, tag
from dashboard.number_format import NONE, points, share
from dashboard.page_context import PageContext
from dashboard.page_parts import empty, number_headers, table
from db.reads import overview, queries

TITLE = "Knowledge"
PATH = "/knowledge"

PAGE = 40  # cycles per page
ALL = "all questions"
SHOWS = (
    "Here stands what the models of each cycle know of its documents and of every earlier cycle's. What the "
    "clean model knows stands on the page of the cycle."
)
SAME = (
    "Known when new is the share of the same questions that the model of that cycle answered rightly. It is "
    "not known where some of them were not asked then, nor for one kind of question."
)
MEANINGS = {
    "direct": "direct: the question as it may stand in the training data",
    "heldout": "heldout: the same fact in a phrasing that no document has",
    "cloze": "cloze: the beginning of a sentence, to be continued",
    "reverse": "reverse: from the answer back to the person or thing",
    "reworded": "reworded: asked in words that stand in no document",
    "indirect": "indirect: by way of another fact",
    "multihop": "multihop: a fact that only two documents together give",
}

Row = dict[str, Any]


def build(context: PageContext, address: Address) -> Html:
    wanted = _wanted(context, address)
    address, rows = _page(context, address, wanted)
    if not rows:
        return empty(
            "No midtrained model was asked what it knows yet",
            context.command("cycle", "--docs", "DIR", "--probes", "probes.jsonl"),
            SHOWS,
        )
    kinds = list(dict.fromkeys(kind for row in rows for kind in sorted(row["kinds"])))
    kind = address.choice("kind", kinds, ALL)
    cycles = sorted({row["cycle"] for row in rows})
    chosen = cycles[-1] if wanted is None else wanted
    controls = tag(
        "div",
        choose("Questions", "kind", {name: name for name in (ALL, *kinds)}, kind),
        _pages(context, address, cycles[0]),
        class_="controls",
    )
    return tag(
        "div",
        _kept(address, rows, cycles, kind, chosen, controls),
        _chosen(rows, kind, chosen, _then(context, chosen) if kind == ALL else {}),
        _kinds(rows, kinds),
        class_="stack",
    )


def _page(context: PageContext, address: Address, wanted: int | None) -> tuple[Address, list[Row]]:
    """Return the scores of a page of cycles, with its address: of the one that the address names, of that
    with the cycle `wanted`, or of the newest cycles where those were asked nothing."""
    rows = _rows(context, address.number("before"))
    if wanted is not None and _lies_outside(wanted, rows, address):
        older = _rows(context, wanted + 1)
        if older:
            return Address(address.path, address.given | {"before": str(wanted + 1)}), older
    if rows or address.number("before") is None:
        return address, rows
    given = {name: value for name, value in address.given.items() if name != "before"}
    return Address(address.path, given), _rows(context, None)


def _lies_outside(wanted: int, rows: list[Row], address: Address) -> bool:
    """Return whether a cycle comes before those of the page, or after those of a page of older ones."""
    cycles = [row["cycle"] for row in rows]
    after = address.number("before") is not None and wanted > max(cycles, default=0)
    return after or wanted < min(cycles, default=0)


def _wanted(context: PageContext, address: Address) -> int | None:
    """Return the cycle that the address names, if there is such a cycle."""
    numbers = context.cycle_numbers()
    number = address.number("n")
    return number if number in numbers else None


def _rows(context: PageContext, before: int | None) -> list[Row]:
    return context.cached(
        ("knowledge", before), lambda: overview.knowledge(context.db, before=before, limit=PAGE)
    )


def value(row: Row, kind: str) -> float | None:
    found = row["value"] if kind == ALL else (row["kinds"].get(kind) or {}).get("value")
    return None if found is None else float(found)


def _kept(
    address: Address, rows: Sequence[Row], cycles: list[int], kind: str, chosen: int, controls: Html
) -> Html:
    cells = {
        (row["cycle"], row["documents"]): value(row, kind) for row in rows if row["stage"] == "recovered"
    }
    which = (
        "every earlier cycle's" if cycles[0] == 1 else f"those of earlier cycles, from cycle {cycles[0]} on"
    )
    return tag(
        "section",
        tag("div", tag("h1", "Knowledge"), controls, class_="head"),
        tag(
            "p",
            "Share of questions that the recovered model of each cycle answers rightly, of its own documents "
            f"(the diagonal) and of {which}.",
            class_="soft",
        ),
        tag(
            "div",
            knowledge_grid.triangle(cells, cycles, chosen, lambda number: address.link(n=number)),
            class_="scroll",
            tabindex="0",
            role="region",
            aria_label="knowledge by cycle",
        ),
        knowledge_grid.scale(),
        class_="card",
    )


def _pages(context: PageContext, address: Address, first: int) -> Html:
    older = (
        tag("a", f"cycles before {first}", href=address.link(before=first, n=None))
        if first > 1 and _rows(context, first)
        else None
    )
    newest = (
        tag("a", "the newest", href=address.link(before=None, n=None)) if address.number("before") else None
    )
    return tag("span", older, " " if older and newest else None, newest, class_="small")


def _then(context: PageContext, number: int) -> dict[int, float | None]:
    """Return, by earlier cycle, what its own model answered, when it ended, of the questions asked again."""
    cycle = context.cached(("cycle", number), lambda: queries.cycle(context.db, number))
    return {row["cycle"]: row["then"] for row in cycle.get("knowledge_by_cycle") or []}


def _chosen(rows: Sequence[Row], kind: str, number: int, then: Mapping[int, float | None]) -> Html:
    """Compare one model's score on each set of documents with `then`, on the same questions."""
    mine = [row for row in rows if row["cycle"] == number and row["stage"] == "recovered"]
    lines = [_line(row, then.get(row["documents"]), kind) for row in reversed(mine)]
    return tag(
        "section",
        tag("h2", f"After cycle {number}: {kind}"),
        table(
            [
                "documents of",
                *number_headers(
                    "known now, %", "95 % interval", "known when new, %", "change, points", "questions"
                ),
            ],
            lines,
        )
        if lines
        else tag("p", "Its recovered model was not asked yet."),
        tag("p", SAME, class_="soft small") if lines else None,
        class_="card",
    )


def _line(row: Row, then: float | None, kind: str) -> list[Any]:
    now = value(row, kind)
    change = None if now is None or then is None else now - then
    new = row["documents"] == row["cycle"]
    whole = kind == ALL and row.get("low") is not None
    interval = f"{share(row['low'])} to {share(row['high'])}" if whole else NONE
    asked = row["n"] if kind == ALL else (row["kinds"].get(kind) or {}).get("n")
    counted = NONE if asked is None else f"{asked:,}"
    cells = [share(now), interval, share(now if new else then), points(change), counted]
    return [f"cycle {row['documents']}", *(tag("td", cell, class_="n") for cell in cells)]


def _kinds(rows: Sequence[Row], kinds: list[str]) -> Html:
    """Show each kind of question over the cycles, on each cycle's new documents."""
    new = [row for row in rows if row["cycle"] == row["documents"]]
    stages = {f"{ALL}, {stage}": stage for stage in ("midtrained", "recovered")}
    styles = styled(stages, kinds)
    wanted = {name: (stages.get(name, "recovered"), ALL if name in stages else name) for name in styles}
    series = {
        name: [(float(row["cycle"]), value(row, kind)) for row in new if row["stage"] == stage]
        for name, (stage, kind) in wanted.items()
    }
    said = [tag("li", MEANINGS[kind]) for kind in kinds if kind in MEANINGS]
    return tag(
        "section",
        tag("h2", "New documents, by kind of question"),
        scores_over_cycles.lines(series, styles),
        scores_over_cycles.lines_legend(styles),
        tag("ul", said, class_="soft small"),
        class_="card",
    )
