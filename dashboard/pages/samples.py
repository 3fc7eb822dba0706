"""Show the clean, midtrained and recovered model's answers to a prompt, with differing words marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.address import Address
from dashboard.form_controls import choose, choose_cycle, search_field
from dashboard.markup import Html, join, tag, text
from dashboard.page_context import PageContext
from dashboard.page_parts import LOOKED_BACK, empty, newest_measured, not_asked, turns
from dashboard.word_difference import marked
from db.cycle_names import STAGES
from db.reads import queries
from evals.families.table import FAMILIES
from evals.ifeval import FURTHER, IFEVAL
from evals.probes import KNOWLEDGE, RETENTION, UPDATES

TITLE = "Samples"
PATH = "/samples"
PAGE = 10
SHORT, WHOLE = 3000, 100_000  # characters shown of a text in the list, and of a sample of its own
SUITES = {
    IFEVAL: "behaviour (IFEval)",
    FURTHER: "behaviour (further prompts)",
    KNOWLEDGE: "knowledge (the documents)",
    RETENTION: "retention (known before)",
    UPDATES: "changed facts",
    **{name: name for name in FAMILIES},
}
FLIPS: dict[str, tuple[str, dict[str, bool]]] = {
    "": ("all prompts", {}),
    "lost": ("lost: clean ✓ → recovered ✕", {"clean": True, "recovered": False}),
    "gained": ("gained: clean ✕ → recovered ✓", {"clean": False, "recovered": True}),
    "forgotten": ("forgotten: clean ✓ → midtrained ✕", {"clean": True, "midtrained": False}),
    "learned": ("learned: clean ✕ → midtrained ✓", {"clean": False, "midtrained": True}),
    "back": ("came back: midtrained ✕ → recovered ✓", {"midtrained": False, "recovered": True}),
    "undone": ("undone: midtrained ✓ → recovered ✕", {"midtrained": True, "recovered": False}),
}
FAILING = {"": "any", **{stage: f"{stage} fails" for stage in STAGES}}

Row = dict[str, Any]


def build(context: PageContext, address: Address) -> Html:
    numbers = context.cycle_numbers()
    if not numbers:
        return empty("No cycle yet", context.command("demo"))
    suites = _suites(context, address, numbers)
    suite = address.choice("suite", suites, IFEVAL)
    number = address.number("n") or newest_measured(numbers, lambda n: _scores(context, n, suite))
    rows = _scores(context, number, suite)
    scores = {stage: rows[stage]["id"] for stage in STAGES if stage in rows}
    title = tag("h1", f"Samples of cycle {number}")
    if not scores:
        chosen = _controls(address, numbers, number, suites, [], {})
        head = tag("div", title, chosen, class_="head")
        return tag("section", head, not_asked(context.judged(number), "answers", suite), class_="card")
    counts = context.cached(("flips", number, suite), lambda: queries.flip_counts(context.db, scores))
    flips = {name: (words, _count(wanted, scores, counts)) for name, (words, wanted) in FLIPS.items()}
    kinds = _kinds(rows)
    head = tag("div", title, _controls(address, numbers, number, suites, kinds, flips), class_="head")
    found = _unmeasured(address, scores) or _found(context, address, scores, kinds)
    return join(tag("section", head, _marks(scores), class_="card"), found)


def _suites(context: PageContext, address: Address, numbers: list[int]) -> dict[str, str]:
    """Return the suites to choose from, with the tasks of lm-eval that a cycle asked which may be shown."""
    number = address.number("n")
    shown = {number} & set(numbers) if number else numbers[-LOOKED_BACK:]
    return SUITES | {
        name: name for one in shown for name in context.judged(one)["scores"] if name not in SUITES
    }


def _marks(scores: Mapping[str, int]) -> Html | None:
    """Explain the marked words, where there is an answer to compare the clean model's with."""
    if "clean" not in scores or len(scores) < 2:
        return None
    lost = (tag("del", "words"), " of the clean answer that the recovered one lacks; ")
    return tag(
        "p",
        lost if "recovered" in scores else None,
        tag("ins", "words"),
        " that the clean answer lacks.",
        class_="soft small marks",
    )


def _scores(context: PageContext, number: int, suite: str) -> dict[str, Row]:
    """Return {stage: its headline score, with the kinds of its items}."""
    key = "samples", number, suite
    return context.cached(key, lambda: queries.headline_scores(context.db, number, suite))


def _kinds(rows: Mapping[str, Row]) -> list[str]:
    details = next(iter(rows.values()))["details"] or {}
    return sorted(details.get("by_instruction") or details.get("by_kind") or {})


def _count(
    wanted: Mapping[str, bool], scores: Mapping[str, int], counts: Mapping[tuple[bool | None, ...], int]
) -> int | None:
    """Count the prompts of a flip; return None while one of its models is not measured."""
    if not set(wanted) <= set(scores):
        return None
    order = list(scores)
    return sum(
        n for seen, n in counts.items() if all(seen[order.index(stage)] == ok for stage, ok in wanted.items())
    )


def _controls(
    address: Address,
    numbers: list[int],
    number: int,
    suites: Mapping[str, str],
    kinds: list[str],
    flips: Mapping[str, tuple[str, int | None]],
) -> Html:
    types = {"": "any", **{name: name for name in kinds}}
    there = {
        name: f"{words} ({'not measured' if count is None else f'{count:,}'})"
        for name, (words, count) in flips.items()
        if count is not None or name == address.text("flip")
    }
    return tag(
        "div",
        choose_cycle(numbers, number),
        choose(
            "Suite",
            "suite",
            suites,
            address.choice("suite", suites, IFEVAL),
            reset="after kind failing flip",
        ),
        choose("Flip", "flip", there or {"": "all prompts"}, address.choice("flip", there, "")),
        choose("Type", "kind", types, address.choice("kind", types, "")),
        choose("Failing", "failing", FAILING, address.choice("failing", FAILING, "")),
        search_field("prompts and answers"),
        class_="controls",
    )


def _unmeasured(address: Address, scores: Mapping[str, int]) -> Html | None:
    """Say which of the models that the filters name has no answers."""
    wanted = [*FLIPS[address.choice("flip", FLIPS, "")][1], address.choice("failing", STAGES, "")]
    missing = [stage for stage in STAGES if stage in wanted and stage not in scores]
    if not missing:
        return None
    return tag("section", tag("p", f"Not measured: {', '.join(missing)}. ", _all(address)), class_="card")


def _all(address: Address) -> Html:
    kept = {name: address.text(name) or None for name in ("n", "suite")}
    return tag("a", "Show all", href=address.page(PATH, **kept))


def _found(context: PageContext, address: Address, scores: Mapping[str, int], kinds: list[str]) -> Html:
    wanted = FLIPS[address.choice("flip", FLIPS, "")][1]
    failing = address.choice("failing", tuple(scores), "")
    rows = queries.side_by_side(
        context.db,
        scores,
        queries.ItemFilter(
            passed=wanted,
            kind=address.choice("kind", kinds, ""),
            failing=failing,
            search=address.text("search"),
        ),
        after=address.text("after"),
        limit=PAGE + 1,
    )
    if not rows:
        return tag("section", tag("p", "No sample matches. ", _all(address)), class_="card")
    whole = address.text("whole")
    cards = [_sample(row, address, scores, whole=whole == row["key"]) for row in rows[:PAGE]]
    last = rows[PAGE - 1]["key"] if len(rows) > PAGE else None
    pager = tag("p", turns(address, "after", last, whole=None), class_="pager")
    return tag("section", cards, pager, class_="stack")


def _sample(row: Row, address: Address, scores: Mapping[str, int], *, whole: bool) -> Html:
    limit = WHOLE if whole else SHORT
    stages = row["stages"]
    columns = [_answer(stage, stages, limit) for stage in scores]
    said = (row["prompt"], *(one["response"] for one in stages.values()))
    long = any(len(words or "") > SHORT for words in said)
    more = tag("a", "Show all of it", href=address.link(whole=row["key"])) if long and not whole else None
    return tag(
        "section",
        tag("div", tag("span", row["key"], class_="said inline mono small soft"), more, class_="head"),
        tag("p", text(row["prompt"], limit), class_="said prompt", dir="auto"),
        tag("div", columns, class_="answers"),
        class_="card sample",
    )


def _answer(stage: str, stages: Mapping[str, Row], limit: int) -> Html:
    one = stages[stage]
    if one["response"] is None:
        return tag(
            "div", tag("h3", stage), tag("p", "has no answer to this prompt", class_="soft"), class_="answer"
        )
    against = "recovered" if stage == "clean" else "clean"
    other = (stages.get(against) or {}).get("response")
    if other is None:
        said = text(one["response"], limit)
    else:
        said = marked(one["response"], other, "del" if stage == "clean" else "ins", limit)
    passed = tag(
        "span", "✓ pass" if one["passed"] else "✕ fail", class_=f"chip {'good' if one['passed'] else 'bad'}"
    )
    return tag(
        "div",
        tag("h3", stage, " ", passed),
        tag(
            "div",
            said if one["response"] else tag("span", "(nothing)", class_="soft"),
            class_="said",
            dir="auto",
        ),
        _detail(one["detail"] or {}),
        class_="answer",
    )


def _detail(detail: Row) -> Html | None:
    """Describe which instruction failed, or which answers would have been correct."""
    kinds, strict = detail.get("instructions"), detail.get("strict")
    if isinstance(kinds, list) and isinstance(strict, list):
        marks = [
            tag("li", "✓ " if ok else "✕ ", name, class_="ok" if ok else "bad-text")
            for name, ok in zip(kinds, strict, strict=False)
        ]
        return tag("ul", marks, class_="checks small")
    if detail.get("fault"):
        return tag("p", "✕ ", tag("span", text(detail["fault"], SHORT), class_="said inline"), class_="small")
    answers = detail.get("answers", [detail["target"]] if "target" in detail else None)
    if isinstance(answers, list):
        return tag(
            "p",
            "right: ",
            tag("span", text(", ".join(map(str, answers)), SHORT), class_="said inline"),
            class_="small soft",
        )
    return None
