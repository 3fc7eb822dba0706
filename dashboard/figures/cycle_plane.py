"""Draw cycles as paths on the plane of document knowledge against instruction following."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from dashboard.figures.axes import STAGES, label, line, linear, mark, marks, percent_axes, spread
from dashboard.markup import Html, join, tag
from dashboard.number_format import share

Row = Mapping[str, Any]
WIDTH, HEIGHT = 640, 460
BOX = (62.0, 14.0, 548.0, 404.0)  # left, top, right, bottom
X, Y = linear(0, 1, BOX[0], BOX[2]), linear(0, 1, BOX[3], BOX[1])


def plane(cycles: Sequence[Row], chosen: Collection[int] = (), margin: float = 0.03) -> Html:
    """Draw all cycles as faint marks and the chosen ones as paths clean -> midtrained -> recovered.

    Error bars are 95 % intervals. The dashed line is the clean score of the last chosen cycle, the band the
    non-inferiority margin below it."""
    measured = [row for row in cycles if _points(row)]
    paths = [row for row in measured if row["cycle"] in chosen]
    if not measured:
        return tag("p", "No cycle has scores on both axes yet.", class_="soft")
    newest = next((row for row in paths[::-1] if len(_points(row)) == len(STAGES)), None)
    drawn = (
        _frame(),
        _clean(paths[-1] if paths else measured[-1], margin),
        _faint([row for row in measured if row["cycle"] not in chosen]),
        [_path(row, last=row is newest) for row in paths],
        _names(paths),
    )
    words = f"Knowledge against instruction following, {len(measured)} cycles"
    return tag(
        "svg", tag("title", words), *drawn, viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="figure plane", role="img"
    )


def _points(row: Row) -> list[tuple[str, float, float]]:
    """Return (stage, knowledge, behaviour) of the stages where both are measured."""
    scores = row.get("scores", {})
    known, behaved = scores.get("knowledge", {}), scores.get("ifeval", {})
    both = [(stage, known.get(stage), behaved.get(stage)) for stage in STAGES]
    return [(stage, x, y) for stage, x, y in both if x is not None and y is not None]


def _frame() -> Html:
    left, top, right, bottom = BOX
    across = label((left + right) / 2, bottom + 42, "knowledge of the new documents, %", "middle", "ink")
    up = tag(
        "text",
        "instruction following (IFEval), %",
        x=0,
        y=0,
        text_anchor="middle",
        class_="ink",
        transform=f"translate(14 {(top + bottom) / 2}) rotate(-90)",
    )
    return join(percent_axes(X, Y, BOX), across, up)


def _clean(row: Row, margin: float) -> Html | None:
    value = row["scores"]["ifeval"].get("clean")
    if value is None:
        return None
    margin = (row.get("verdict") or {}).get("margin") or margin
    left, _, right, _ = BOX
    band = tag(
        "rect",
        x=left,
        y=Y(value),
        width=right - left,
        height=round(Y(value - margin) - Y(value), 1),
        class_="band",
    )
    return join(band, line(left, Y(value), right, Y(value), "rule"))


def _faint(rows: Sequence[Row]) -> Html:
    """Draw all cycles with one SVG element per stage, however many cycles there are."""
    points: dict[str, list[tuple[float, float]]] = {stage: [] for stage in STAGES}
    for row in rows:
        for stage, x, y in _points(row):
            points[stage].append((X(x), Y(y)))
    return tag("g", [marks(stage, found) for stage, found in points.items() if found], opacity=0.35)


def _path(row: Row, *, last: bool) -> Html:
    points = _points(row)
    steps = [_arrow(X(x0), Y(y0), X(x1), Y(y1)) for (_, x0, y0), (_, x1, y1) in pairwise(points)]
    bars = [_bars(row, stage, x, y) for stage, x, y in points]
    dots = [mark(stage, X(x), Y(y), 6 if last else 5) for stage, x, y in points]
    says = f"cycle {row['cycle']}: " + ", ".join(
        f"{s} knows {share(x)}, follows {share(y)}" for s, x, y in points
    )
    return tag(
        "a",
        tag("title", says),
        steps,
        bars,
        dots,
        href=f"/cycle?n={row['cycle']}",
        class_="path last" if last else "path",
    )


def _arrow(x0: float, y0: float, x1: float, y1: float) -> Html:
    """Draw a line that ends before the marker, with an arrowhead in its middle."""
    length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
    if length < 16:
        return line(x0, y0, x1, y1, "way")
    dx, dy = (x1 - x0) / length, (y1 - y0) / length
    mx, my = (x0 + x1) / 2, (y0 + y1) / 2
    tips = f"M{mx - 5 * dx - 4 * dy:.1f} {my - 5 * dy + 4 * dx:.1f}L{mx + 3 * dx:.1f} {my + 3 * dy:.1f}"
    head = f"{tips}L{mx - 5 * dx + 4 * dy:.1f} {my - 5 * dy - 4 * dx:.1f}"
    return join(line(x0, y0, x1, y1, "way"), tag("path", d=head, class_="way"))


def _bars(row: Row, stage: str, x: float, y: float) -> Html:
    """Draw 95 % intervals on both axes."""
    across = (row["scores"]["knowledge"].get("intervals") or {}).get(stage) or [None, None]
    up = (row["scores"]["ifeval"].get("intervals") or {}).get(stage) or [None, None]
    drawn = []
    if None not in across:
        drawn.append(line(X(across[0]), Y(y), X(across[1]), Y(y), f"bar c-{stage} stroke"))
    if None not in up:
        drawn.append(line(X(x), Y(up[0]), X(x), Y(up[1]), f"bar c-{stage} stroke"))
    return join(*drawn)


def _names(rows: Sequence[Row]) -> Html:
    """List the cycle names at the right, each with a thin line to the end of its path, without overlaps."""
    ends = [(row["cycle"], *_points(row)[-1][1:]) for row in rows]
    places = spread([Y(y) for _, _, y in ends], 19, BOX[1] + 6, BOX[3])
    drawn = []
    for (number, x, y), place in zip(ends, places, strict=True):
        leader = tag(
            "path", d=f"M{X(x) + 8} {Y(y)}L{BOX[2] + 6} {place}L{BOX[2] + 12} {place}", class_="leader"
        )
        name = tag(
            "a", label(BOX[2] + 16, place + 4, f"cycle {number}", class_="strong"), href=f"/cycle?n={number}"
        )
        drawn.append(join(leader, name))
    return join(*drawn)
