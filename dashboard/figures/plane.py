"""Draw cycles, and methods, on the plane of document knowledge against instruction following."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from dashboard.figures.axes import frame, interval, label, nothing, percent_tick, rule, scores_and_bounds, svg
from dashboard.figures.markers import STAGE_STYLES, Style, marker, markers, series
from dashboard.figures.scales import Scale, spread
from dashboard.markup import Html, join, tag
from dashboard.number_format import share
from db.cycle_names import STAGES
from evals.ifeval import IFEVAL
from evals.probes import KNOWLEDGE
from recovery.counted import counted

Row = Mapping[str, Any]
Link = Callable[[int], str]
Box = tuple[float, float, float, float]  # left, top, right, bottom

WIDTH, HEIGHT = 640, 460
LEFT, TOP, RIGHT, BOTTOM = 62.0, 14.0, 548.0, 404.0
MARKS = "bars: 95 % intervals", "grey: within the margin of the clean score (dashed)"  # the key of cycles
MARGIN = 0.03  # of cycles of earlier versions, which recorded none
METHODS_LEFT = LEFT + 16  # room for ticks such as 22.5 in a phone's larger letters
MOST_BARS = 30  # most recoveries drawn with intervals; more would hide each other


def _frame(x: Scale, y: Scale) -> Html:
    across, up = "knowledge of the new documents, %", "instruction following (IFEval), %"
    return frame(x, y, across, up, x_text=percent_tick, y_text=percent_tick, upright=True)


# Cycles -----------------------------------------------------------------------------------------------------


def cycles_plane(cycles: Sequence[Row], chosen: Collection[int] = (), link: Link | None = None) -> Html:
    """Draw all cycles as faint marks and the chosen ones as paths clean -> midtrained -> recovered.

    Error bars are 95 % intervals. The dashed line is the clean score of the last chosen cycle, the band the
    non-inferiority margin below it."""
    measured = [row for row in cycles if is_measured(row)]
    paths = [row for row in measured if row["cycle"] in chosen]
    if not measured:
        return nothing("No cycle has scores on both axes yet.")
    x = _shared(measured, KNOWLEDGE, LEFT, RIGHT)
    y = _shared(measured, IFEVAL, BOTTOM, TOP)
    newest = next((row for row in paths[::-1] if len(_points(row)) == len(STAGES)), None)
    drawn = (
        _frame(x, y),
        _clean(paths[-1] if paths else measured[-1], y),
        _faint([row for row in measured if row["cycle"] not in chosen], x, y),
        [_linked(row, link, _path(row, x, y, last=row is newest)) for row in paths],
        _names(paths, link, x, y),
    )
    words = f"Knowledge against instruction following, {counted(len(measured), 'cycle')}"
    linked = link is not None
    return svg(drawn, label=words, width=WIDTH, height=HEIGHT, class_="plane", grouped=linked)


def _shared(rows: Sequence[Row], suite: str, start: float, end: float) -> Scale:
    """Return an axis that holds a suite's scores of all cycles."""
    held = [one for row in rows for one in scores_and_bounds(row["scores"][suite])]
    return Scale.from_zero(held, start, end)


def is_measured(row: Row) -> bool:
    """Return whether a stage of a cycle has scores on both axes, so that the plane shows it."""
    return bool(_points(row))


def _points(row: Row) -> list[tuple[str, float, float]]:
    """Return (stage, knowledge, behaviour) of the stages where both are measured."""
    scores = row.get("scores", {})
    known, behaved = scores.get(KNOWLEDGE, {}), scores.get(IFEVAL, {})
    both = [(stage, known.get(stage), behaved.get(stage)) for stage in STAGES]
    return [(stage, x, y) for stage, x, y in both if x is not None and y is not None]


def _clean(row: Row, y: Scale) -> Html | None:
    value = row["scores"][IFEVAL].get("clean")
    if value is None:
        return None
    margin = (row.get("verdict") or {}).get("margin") or row.get("margin") or MARGIN
    height = round(y.clamped(value - margin) - y(value), 1)
    allowed = tag("rect", x=LEFT, y=y(value), width=RIGHT - LEFT, height=height, class_="band")
    return join(allowed, rule(LEFT, y(value), RIGHT, y(value), "rule"))


def _faint(rows: Sequence[Row], x: Scale, y: Scale) -> Html:
    """Draw all cycles with one SVG element per stage, however many cycles there are."""
    points: dict[str, list[tuple[float, float]]] = {stage: [] for stage in STAGES}
    for row in rows:
        for stage, known, behaved in _points(row):
            points[stage].append((x(known), y(behaved)))
    drawn = [markers(STAGE_STYLES[stage], found, 3) for stage, found in points.items() if found]
    return tag("g", drawn, opacity=0.35)


def _linked(row: Row, link: Link | None, drawn: Html) -> Html:
    return drawn if link is None else tag("a", drawn, href=link(row["cycle"]))


def _path(row: Row, x: Scale, y: Scale, *, last: bool) -> Html:
    points = _points(row)
    places = [(x(known), y(behaved)) for _, known, behaved in points]
    steps = [_arrow(*start, *end) for start, end in pairwise(places)]
    signs = [_stage(row, stage, x, y, 6 if last else 5) for stage, _, _ in points]
    values = [
        f"{stage} knows {share(known)} %, follows {share(behaved)} %" for stage, known, behaved in points
    ]
    words = tag("title", f"cycle {row['cycle']}: " + ", ".join(values))
    return tag("g", words, steps, signs, class_="path last" if last else "path")


def _stage(row: Row, stage: str, x: Scale, y: Scale, size: float) -> Html:
    style = STAGE_STYLES[stage]
    known, behaved = row["scores"][KNOWLEDGE], row["scores"][IFEVAL]
    left, top = x(known[stage]), y(behaved[stage])
    return join(
        interval((known.get("intervals") or {}).get(stage), top, x, style, upright=False),
        interval((behaved.get("intervals") or {}).get(stage), left, y, style, upright=True),
        marker(style, left, top, size),
    )


def _arrow(x0: float, y0: float, x1: float, y1: float) -> Html:
    """Draw a line with an arrowhead in its middle."""
    length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
    line = rule(x0, y0, x1, y1, "way")
    if length < 16:
        return line
    dx, dy = (x1 - x0) / length, (y1 - y0) / length
    mx, my = (x0 + x1) / 2, (y0 + y1) / 2
    tips = f"M{mx - 5 * dx - 4 * dy:.1f} {my - 5 * dy + 4 * dx:.1f}L{mx + 3 * dx:.1f} {my + 3 * dy:.1f}"
    head = f"{tips}L{mx - 5 * dx + 4 * dy:.1f} {my - 5 * dy - 4 * dx:.1f}"
    return join(line, tag("path", d=head, class_="way"))


def _names(rows: Sequence[Row], link: Link | None, x: Scale, y: Scale) -> Html:
    """List the cycle names at the right, each with a thin line to the end of its path, without overlaps."""
    ends = [_points(row)[-1][1:] for row in rows]
    places = spread([y(behaved) for _, behaved in ends], 22, TOP + 6, BOTTOM)
    drawn = []
    for row, (known, behaved), place in zip(rows, ends, places, strict=True):
        way = f"M{x(known) + 8:.1f} {y(behaved)}L{RIGHT + 6} {place}L{RIGHT + 12} {place}"
        name = label(RIGHT + 16, place + 4, f"cycle {row['cycle']}", class_="strong")
        drawn += [tag("path", d=way, class_="leader"), _linked(row, link, name)]
    return join(drawn)


# Methods ----------------------------------------------------------------------------------------------------


def score(row: Row, suite: str) -> float | None:
    found = (row.get("scores") or {}).get(suite)
    return None if found is None else found["value"]


def methods_plane(rows: Sequence[Row], methods: Sequence[str], references: Mapping[str, Row]) -> Html:
    """Draw one sign per recovery; `references` are the scores of the clean model and of their beginning."""
    shown = [row for row in rows if drawn(row)]
    if not shown:
        return nothing("No recovery has scores on both axes yet.")
    named = {stage: row for stage, row in references.items() if drawn(row)}
    barred = len(shown) <= MOST_BARS
    x = Scale.around_shares(_held(shown, named, KNOWLEDGE, barred=barred), METHODS_LEFT, WIDTH - 16)
    y = Scale.around_shares(_held(shown, named, IFEVAL, barred=barred), BOTTOM, TOP)
    parts = (
        _frame(x, y),
        [_ring(stage, row, x, y) for stage, row in named.items()],
        # The newest is drawn last, on top.
        [
            _recovery(row, series(methods.index(row["method"])), x, y, barred=barred)
            for row in reversed(shown)
        ],
        _ring_names(named, _covered([*shown, *named.values()], x, y, barred=barred), x, y),
    )
    words = "methods: knowledge against instruction following"
    return svg(parts, label=words, width=WIDTH, height=HEIGHT, class_="plane")


def _held(shown: Sequence[Row], named: Mapping[str, Row], suite: str, *, barred: bool) -> list[float | None]:
    """Return the scores that an axis must hold, with the bounds of the intervals that are drawn."""
    held = [score(row, suite) for row in (*shown, *named.values())]
    if barred:
        held += [row["scores"][suite].get(bound) for row in shown for bound in ("low", "high")]
    return held


def drawn(row: Row) -> bool:
    """Return whether a recovery or a reference has a score on both axes."""
    return score(row, KNOWLEDGE) is not None and score(row, IFEVAL) is not None


def _recovery(row: Row, style: Style, x: Scale, y: Scale, *, barred: bool) -> Html:
    left, top = _place(row, x, y)
    words = tag("title", f"{row['method']}, {row.get('label') or row['checkpoint']}")
    known, behaved = row["scores"][KNOWLEDGE], row["scores"][IFEVAL]
    bars = [
        interval((known.get("low"), known.get("high")), top, x, style, upright=False),
        interval((behaved.get("low"), behaved.get("high")), left, y, style, upright=True),
    ]
    return tag("g", words, bars if barred else None, marker(style, left, top, 7, stroke="var(--card)"))


def _place(row: Row, x: Scale, y: Scale) -> tuple[float, float]:
    return x(score(row, KNOWLEDGE) or 0.0), y(score(row, IFEVAL) or 0.0)


def _ring(stage: str, row: Row, x: Scale, y: Scale) -> Html:
    left, top = _place(row, x, y)
    colour = f"{STAGE_STYLES[stage].colour} " if stage in STAGE_STYLES else ""
    return tag("circle", cx=left, cy=top, r=9, class_=f"{colour}stroke thick")


def _covered(rows: Sequence[Row], x: Scale, y: Scale, *, barred: bool) -> list[Box]:
    """Return the boxes of all signs and interval bars: a name on one of them would be struck through."""
    boxes = []
    for row in rows:
        left, top = _place(row, x, y)
        boxes.append((left - 9, top - 9, left + 9, top + 9))
        known, behaved = row["scores"][KNOWLEDGE], row["scores"][IFEVAL]
        if barred and "method" in row and None not in (known["low"], behaved["low"]):
            boxes.append((x.clamped(known["low"]), top, x.clamped(known["high"]), top))
            boxes.append((left, y.clamped(behaved["high"]), left, y.clamped(behaved["low"])))
    return boxes


def _ring_names(named: Mapping[str, Row], taken: list[Box], x: Scale, y: Scale) -> Html:
    """Write each stage beside its ring, where the fewest signs and bars are."""
    parts = []
    for stage, row in named.items():
        ring = _place(row, x, y)
        middle, top, box = _free(stage, *ring, taken)
        taken = [*taken, box]
        anchor, left = _anchor(ring[0], middle, box)
        parts.append(label(left, top, stage, anchor, "strong over"))
    return join(parts)


def _anchor(ring: float, middle: float, box: Box) -> tuple[str, float]:
    """Return a name's anchor and place: beside a ring it begins there, as a phone's larger letters need more
    room."""
    left, _, right, _ = box
    if left > ring + 9:
        return "start", left + 3
    return ("end", right - 3) if right < ring - 9 else ("middle", middle)


def _free(words: str, left: float, top: float, taken: Sequence[Box]) -> tuple[float, float, Box]:
    """Return where a name stands freest around a ring: its middle, its base line and its box."""
    half = 4.0 * len(words) + 3
    around = [
        (half + 12, 4),
        (-half - 12, 4),
        (0, -15),
        (0, 24),
        (half, -15),
        (half, 24),
        (-half, -15),
        (-half, 24),
    ]
    found = []
    for number, (across, down) in enumerate(around):
        middle = min(WIDTH - half, max(METHODS_LEFT + half, left + across))
        base = min(BOTTOM - 6, max(TOP + 10, top + down))
        box = (middle - half, base - 11, middle + half, base + 3)
        found.append((sum(_meet(box, other) for other in taken), number, middle, base, box))
    _, _, middle, base, box = min(found)
    return middle, base, box


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
