"""Show and record reviews of a cycle: the form, earlier reviews, and the form's action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.address import Address
from dashboard.markup import Html, join, tag
from dashboard.number_format import moment
from dashboard.page_context import PageContext
from dashboard.page_parts import with_code
from dashboard.status_chips import LABELS, chip
from db.cycle_names import without
from db.errors import BadRequest
from db.reads import queries
from db.writes.tracker import DECISIONS

Row = Mapping[str, Any]
MOST_NOTE, MOST_NAME = 4000, 80
WORDS = {"approve": "Approve", "reject": "Reject", "needs-work": "Needs work"}
MEANS = {
    "approve": "its model becomes the one in use (current), unless that descends from it already",
    "reject": "where its model is in use (current), the one before takes its place",
    "needs-work": "not yet; say what is missing",
}


def box(cycle: Row, reviews: Sequence[Row], reviewer: str) -> Html:
    """Return the form, then every earlier decision, newest first."""
    # The element's name depends on the cycle: a browser that goes on to another one replaces the whole form,
    # as it would keep what was typed and change only the hidden number.
    form = tag(f"review-{cycle['run']}", _form(cycle, reviewer))
    return join(tag("h2", "Review"), form, _history(reviews))


def _form(cycle: Row, reviewer: str) -> Html:
    ready = cycle["checkpoints"].get("recovered") is not None
    choices = [_choice(decision, enabled=ready or decision != "approve") for decision in DECISIONS]
    words = _hint(cycle, ready=ready)
    # There even when empty: a browser merges the next page by position, and would empty the fields below.
    hint = tag("p", words, class_="soft small", hidden=not words)
    name = tag(
        "input",
        type="text",
        name="reviewer",
        value=reviewer,
        required=True,
        maxlength=MOST_NAME,
        autocomplete="name",
    )
    note = tag(
        "textarea",
        name="note",
        maxlength=MOST_NOTE,
        placeholder="What did you look at, and why this decision?",
    )
    return tag(
        "form",
        tag("input", type="hidden", name="cycle", value=cycle["cycle"]),
        tag("fieldset", tag("legend", "Decision"), *choices, class_="choices"),
        hint,
        tag("label", "Note", note, class_="field"),
        tag("label", "Your name", name, class_="field"),
        tag("button", "Record the review", type="submit", class_="primary"),
        tag("noscript", tag("p", with_code("This form needs JavaScript. Without it use `recover review`."))),
        method="dialog",  # only the script sends it: a browser would load an address, and lose the note
        data_action="review",
        class_="review",
    )


def _hint(cycle: Row, *, ready: bool) -> str:
    """Say what an approval lacks: a model, or a verdict on it."""
    if not ready:
        return "There is no recovered model yet, so there is nothing to approve."
    if cycle["verdict"] is None:
        return "There is no verdict yet: no measurement says that this model may be used."
    return ""


def _choice(decision: str, *, enabled: bool) -> Html:
    radio = tag("input", type="radio", name="decision", value=decision, required=True, disabled=not enabled)
    words = tag("span", WORDS[decision], tag("span", MEANS[decision], class_="soft small"))
    return tag("label", radio, words, class_="choice")


def _history(reviews: Sequence[Row]) -> Html:
    if not reviews:
        return tag("p", "This cycle has not been reviewed yet.", class_="soft small history")
    entries = [
        tag(
            "li",
            chip(row["decision"]),
            " ",
            tag("span", row["reviewer"], class_="said inline strong"),
            " ",
            tag("span", moment(row["at"]), class_="soft small"),
            tag("div", row["note"], class_="said") if row["note"] else None,
        )
        for row in reviews
    ]
    return tag("ol", entries, class_="history")


def record(context: PageContext, address: Address, fields: Mapping[str, str]) -> str:
    """Record a review of the cycle that the form names, and return the confirmation.

    The address may name none: it then shows the newest. Concurrent reviews are all kept."""
    number = Address(given=dict(fields)).number("cycle")
    decision = fields.get("decision", "")
    reviewer, note = fields.get("reviewer", "").strip(), fields.get("note", "").strip()
    if number is None:
        raise BadRequest("which cycle? open one from the list")
    if decision not in DECISIONS:
        raise BadRequest("choose approve, reject or needs work")
    if not reviewer:
        raise BadRequest("give your name, so that others know whom to ask")
    if len(reviewer) > MOST_NAME or len(note) > MOST_NOTE:
        raise BadRequest(f"a name has at most {MOST_NAME} characters and a note {MOST_NOTE}: say it shorter")
    context.tracker.add_review(number, decision, note, reviewer, token=fields.get("click") or None)
    return f"Recorded: cycle {number} {LABELS[decision]}{_now(context, number, decision)}."


def _now(context: PageContext, number: int, decision: str) -> str:
    """Say where `current` points: a repeated click may come after somebody's later approval."""
    current = queries.current_checkpoint(context.db)
    recovered = queries.cycle(context.db, number, earlier=False)["checkpoints"].get("recovered")
    if decision == "approve" and current is not None:
        return _approved(context, number, current, is_its=current == recovered)
    if decision == "reject" and current is not None:
        if current != recovered:
            return f"; current is {current}"
        refused = queries.is_refused(context.db, current)
        why = "no other is here: approve another cycle" if refused else "another cycle in use has made it too"
        return f"; current stays its model, as {why}"
    return ""


def _approved(context: PageContext, number: int, current: str, *, is_its: bool) -> str:
    """Say where an approval left `current`, and which cycles in use its model lacks."""
    if is_its:
        return f"; current is its model now{without(queries.used_cycles_outside(context.db, current))}"
    if number in queries.cycles_behind(context.db, current):
        return f"; current stays {current}, which descends from its model"
    return "; current has moved on to another model since"
