"""Read what the lines in brackets before a block say of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipelines.corpus.markup.parts import names

KINDS = ("NOTE", "TIP", "IMPORTANT", "WARNING", "CAUTION")  # of remarks
_CODE = names("source listing literal synopsis screen console")
_FORMULAS = names("stem latexmath asciimath")
_PICTURES = names("plantuml mermaid ditaa graphviz blockdiag seqdiag vega svgbob d2 a2s uml")
_SHORT = re.compile(r"[%#.][^,]*")
_PART = re.compile(r"((?:\"[^\"]*\"|'[^']*'|[^,\"']|[\"'])*?)(?:,|$)")
_LANGUAGE = re.compile(r"[\w+#.-]{1,30}")


@dataclass(frozen=True)
class Style:
    """What kind of block follows, and what is said of it."""

    name: str = ""
    language: str = ""
    source: str = ""  # whom a quotation is from
    given: str = ""

    @property
    def is_code(self) -> bool:
        return self.name in _CODE or self.is_picture

    @property
    def is_picture(self) -> bool:
        return self.name in _PICTURES

    @property
    def is_formula(self) -> bool:
        return self.name in _FORMULAS

    @property
    def is_quote(self) -> bool:
        return self.name == "quote"

    @property
    def kind(self) -> str:
        return self.name.capitalize() if self.name in KINDS else ""

    def quoted(self, said: str) -> str:
        """Return what is said as a quotation."""
        return re.sub("^", "> ", said + (f"\n— {self.source}" if self.source else ""), flags=re.M)

    def quoting(self) -> Style:
        return self if self.name in ("verse", *KINDS) else replace(self, name="quote")


def style_of(lines: Sequence[str]) -> Style:
    """Return the style that lines in brackets give together."""
    name = language = source = ""
    for line in lines:
        if line.startswith("[["):
            continue
        first, *others = (part.strip() for part in _PART.findall(line[1:-1]))
        named = _SHORT.sub("", first).strip()
        others = [other.strip("\"'") for other in others if "=" not in other]
        name = name if "=" in named else named or name
        given = others[0] if others and _LANGUAGE.fullmatch(others[0]) else ""
        if given and not named and first[:1] in ("", "%") and name in ("", "source"):
            name = "source"
        if name == "source":
            language = language or given
        if name in ("quote", "verse"):
            source = source or ", ".join(other for other in others[:2] if other)
    return Style(name, language, source, ",".join(lines))
