"""Make a figure a picture file of its own: SVG with the colours of the light theme in it."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from dashboard.markup import Html, join, tag

STYLE = Path(__file__).parents[1] / "static" / "style.css"


def standalone(figure: Html) -> str:
    """Return the SVG element as a document that needs no style sheet and no script."""
    sheet = Html(f"<style>{_rules()}</style>")
    paper = tag("rect", width="100%", height="100%", fill="white")
    opening, rest = figure.split(">", 1)
    named = Html(f'{opening} id="root" xmlns="http://www.w3.org/2000/svg">')
    return str(join(named, sheet, paper, Html(rest)))


@lru_cache
def _rules() -> str:
    """Return the style sheet's rules for figures, with the light theme's colours put in."""
    css = re.sub(r"/\*.*?\*/", "", STYLE.read_text(encoding="utf-8"), flags=re.DOTALL)
    css = re.sub(r"@media[^{]*\{(?:[^{}]|\{[^{}]*\})*\}", "", css)
    colours: dict[str, str] = {}
    for name, value in re.findall(r"(--[\w-]+):\s*([^;]+);", css.split(":root[data-theme", 1)[0]):
        colours[name] = value
    rules = re.findall(r"((?:\.figure[^{},]*,?\s*)+)\{([^{}]*)\}", css)
    flat = [f"{names.strip()}{{{body.strip()}}}" for names, body in rules]
    return re.sub(r"var\((--[\w-]+)\)", lambda found: colours.get(found[1], "inherit"), "".join(flat))
