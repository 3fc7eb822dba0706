"""Build the parts that pages share: tables, sortable headers, problems and empty states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dashboard.address import Address
from dashboard.markup import Html, join, tag
from dashboard.number_format import NONE
from db.cycle_names import may_go_on
from db.reads import queries
from db.session import Database
from evals import learned, looks, verdict_sentences
from evals.ifeval import FURTHER
from evals.scores import halves_counted, notes_by_suite, prompts_in_words, samples_of

LOOKED_BACK = 5  # newest cycles among which a measured one is looked for


def with_code(words: str) -> Html:
    """Return a sentence as HTML, with text in `backticks` as code."""
    parts = words.split("`")
    return join(*[tag("code", part) if index % 2 else part for index, part in enumerate(parts)])


def sentence(said: object) -> str:
    """Return an error, or words, with a capital letter and a full stop."""
    words = str(said)
    return f"{words[:1].upper()}{words[1:]}."


def problem(what: str, hint: str = "") -> Html:
    return tag(
        "section",
        tag("h1", with_code(what), class_="said"),
        tag("p", with_code(hint)) if hint else None,
        class_="card problem",
    )


def failure(row: dict[str, Any]) -> Html | None:
    """Show why a cycle broke off, as it was recorded."""
    why = row.get("error") if row["status"] == "failed" else None
    return tag("span", why, class_="said small bad-text reason") if why else None


def empty(what: str, command: str, shows: str = "") -> Html:
    """Return an empty state: what is missing, what it would show, and the command that creates it."""
    return tag(
        "section",
        tag("h1", what),
        tag("p", shows) if shows else None,
        tag("p", "Type this in a terminal; this page notices by itself:"),
        tag("pre", tag("code", command)),
        class_="card empty",
    )


def not_asked(cycle: Mapping[str, Any], what: str, suite: str, otherwise: str = "") -> Html:
    """Say that a cycle has none of `what` on a suite; `otherwise` goes on where a measurement may bring
    them."""
    without = f"Cycle {cycle['cycle']} has no"
    if suite == FURTHER:
        words = "of further prompts: they are asked only where behaviour is underpowered on IFEval's own."
        return tag("p", f"{without} {what} {words}")
    return tag("p", f"{without} {suite} {what}" + (f" yet.{otherwise}" if may_go_on(cycle) else "."))


def absent(wanted: str, shown: str) -> Html | None:
    """Say that another run is shown than the address names, if so."""
    if wanted in ("", shown):
        return None
    return tag(
        "p", f"Run {wanted} has nothing to show here. This is the newest run that has.", class_="notice"
    )


def beside_claim(axis: Mapping[str, Any]) -> list[Html]:
    """Say what an axis tells beside its claim: what was learned, and where a pass claims nothing."""
    details = axis.get("details") or {}
    nothing = verdict_sentences.nothing_to_lose(details)
    looked = looks.in_words(axis, details)
    said = [
        sentence(looked) if looked else "",
        f"The documents: {learned.sentence(details['learned'])}." if details.get("learned") else "",
        sentence(nothing) if nothing else "",
    ]
    return [tag("p", words, class_="small") for words in said if words]


def notes(scores: Mapping[str, Mapping[str, Any]]) -> list[Html]:
    """Show what was noted as each suite was scored."""
    return [tag("p", with_code(said), class_="soft small") for said in notes_by_suite(scores)]


def halves(cycle: Mapping[str, Any]) -> Html | None:
    """Say which questions each number of a cycle counts, where half of them chose the recovery."""
    words = halves_counted(cycle)
    return tag("p", sentence(words), class_="small") if words else None


def samples_by_suite(database: Database, number: int) -> dict[str, int]:
    """Return, by suite, how many answers each prompt of a cycle got (`eval.samples`)."""
    return {suite: samples_of(items) for suite, items in queries.item_prompts(database, number).items()}


def samples_of_axis(name: str, axis: Mapping[str, Any], samples: Mapping[str, int]) -> int:
    """Return how many answers each prompt behind an axis of a verdict got; `samples` are those by suite."""
    return samples.get((axis.get("details") or {}).get("suite", name), 1)


def prompts(answers: int | None, samples: int) -> str:
    """Say in a column of prompts how many there were, and how many answers where each got several."""
    if answers is None:
        return NONE
    return f"{answers:,}" if samples == 1 else prompts_in_words(answers, samples)


def tokens_of(cost: Mapping[str, float]) -> float:
    """Return all tokens of a cost: sampled, scored by a teacher and trained on."""
    return sum(value for name, value in cost.items() if name.startswith("tokens_"))


def newest_measured(numbers: Sequence[int], measured: Callable[[int], Any]) -> int:
    """Return the newest of the last cycles that has been measured; the newest of all if none has."""
    return next((number for number in reversed(numbers[-LOOKED_BACK:]) if measured(number)), numbers[-1])


def turns(address: Address, parameter: str, last: str | None, **more: None) -> list[Html | None]:
    """Return the links to a list's beginning, and to its next part, which comes after `last` if there is one.

    `parameter` says in the address after what a part begins; the next one drops the parameters in `more`."""
    start = tag("a", "← From the start", href=address.link(**{parameter: None}))
    return [
        start if address.text(parameter) else None,
        tag("a", "More →", href=address.link(**{parameter: last}, **more)) if last else None,
    ]


def number_headers(*names: str) -> list[Any]:
    """Return right-aligned column headers, for columns of numbers."""
    return [tag("th", name, scope="col", class_="n") for name in names]


def table(headers: list[Any], rows: list[list[Any]], class_: str = "") -> Html:
    """Return a table; cells that are not `<th>` or `<td>` yet are wrapped."""
    head = tag("tr", [_cell("th", cell, scope="col") for cell in headers])
    body = [tag("tr", [_cell("td", cell) for cell in row]) for row in rows]
    drawn = tag("table", tag("thead", head), tag("tbody", body), class_=class_ or None)
    return tag("div", drawn, class_="scroll", tabindex="0", role="region", aria_label="table")


def _cell(name: str, cell: Any, **attributes: str) -> Html:
    there = isinstance(cell, Html) and cell.startswith(("<th", "<td"))
    return cell if there else tag(name, cell, **attributes)


def sortable(name: str, words: str, address: Address, default: str, *, numeric: bool = False) -> Html:
    """Return a header that sorts by its column, or reverses the order if it already does."""
    now = address.text("sort", default)
    down = address.text("order", "down") == "down"
    link = address.link(sort=name, order="up" if now == name and down else None, page=None)
    arrow = order = None
    if now == name:
        arrow = tag("span", " ↓" if down else " ↑", aria_hidden="true")
        order = "descending" if down else "ascending"
    return tag(
        "th", tag("a", words, arrow, href=link), scope="col", aria_sort=order, class_="n" if numeric else None
    )
