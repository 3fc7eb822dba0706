"""Draw what the mix teaches and costs: a line a rate over the passes, known above, forgotten below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PANELS = {"knowledge": "the documents", "retention": "general questions"}
Line = Mapping[str, Any]


def draw(clean: Line, rows: Sequence[tuple[float, float, Line]], path: Path) -> None:
    """Draw rows of (rate, passes, scores) with 95 % intervals, beside the clean model as a band."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (suite, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        axes.axhspan(*clean[suite]["interval"], color="tab:gray", alpha=0.2, label="clean")
        axes.axhline(clean[suite]["score"], color="tab:gray", linewidth=0.8)
        for place, rate in enumerate(sorted({rate for rate, _, _ in rows})):
            _curve(axes, [(passes, line[suite]) for one, passes, line in rows if one == rate], rate, place)
        axes.set(title=title, xlabel="passes over the documents")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=110)


def _curve(axes: Any, scores: Sequence[tuple[float, Line]], rate: float, place: int) -> None:
    """Draw one rate, a little beside the others."""
    shown = sorted(scores, key=lambda score: score[0])
    at = [passes * (0.98 + 0.02 * place) for passes, _ in shown]
    values = [score["score"] for _, score in shown]
    spans = [[score["score"] - score["interval"][0] for _, score in shown]]
    spans += [[score["interval"][1] - score["score"] for _, score in shown]]
    axes.errorbar(at, values, spans, fmt="o-", capsize=3, label=f"rate {rate:.0e}".replace("e-0", "e-"))
