"""Write formulas: simple ones as text, others as they were typed, without labels and comments."""

from __future__ import annotations

import re

from pipelines.corpus.as_markdown.latex.words import FORMULA_SIGNS
from pipelines.corpus.as_markdown.parts import fenced

LONGEST = 4000  # characters of a formula between $$, which is how far those who read Markdown look
LONGEST_TEXT = 60  # characters of a formula that may be text
_UNSEEN = re.compile(
    r"\\(?:label|tag\*?|hypertarget|linkdest)[ \t]*\{[^{}]*\}"
    r"|\\(?:nonumber|notag|ensuremath|xspace)(?![A-Za-z])|[_^]\{\}"
)
_FONT = re.compile(
    r"\\(?:mathrm|mathit|mathsf|mathtt|textnormal|textrm|textit|text|mbox|operatorname)\*?[ ]?\{([\w ,.-]*)\}"
)
_COMMAND = re.compile(r"(?P<before> ?)\\(?:([A-Za-z]+)( ?)|([,;:!% ]))")
_DEGREE = re.compile(r"\^[ ]?\{?\\circ[ ]?\}?")
_SIMPLE = re.compile(r"[\w +\-*/=<>().,:;!?'^%…×·÷±∓≤≥≠≈~≃≡≪≫→←↦↔⇒⇐⇔↑↓∈∉⊂⊆⊃⊇∪∩∖∅∞∘•⋆∧∨¬∀∃∂∇⊕⊗∝≅⊥⊤✓†′°⟨⟩]+")
_ORDER = re.compile(r" ?([<>≤≥≠≈≃≡≪≫→←↦↔⇒⇐⇔∈∉⊂⊆⊃⊇∪∩∖∧∨∝≅⊥]) ?")


def as_text(source: str) -> str | None:
    """Return a formula of letters, figures and signs as text; None for any other."""
    if len(source) > 2 * LONGEST_TEXT:
        return None
    text = _DEGREE.sub("°", source.replace("{,}", ",").replace("{}", "").replace("\\%", "%"))
    text = _COMMAND.sub(_sign, _FONT.sub(r"\1", text))
    text = " ".join(text.split())
    if len(text) > LONGEST_TEXT or not _SIMPLE.fullmatch(text):
        return None
    return _ORDER.sub(r" \1 ", text).replace("⟨ ", "⟨").replace(" ⟩", "⟩").strip()


def _sign(found: re.Match[str]) -> str:
    before, name, after, mark = found.groups()
    if mark:
        return before + {"!": "", "%": "%"}.get(mark, " ")
    if name not in FORMULA_SIGNS:
        return found[0]
    sign = f"{before}{FORMULA_SIGNS[name]}{after if before else ''}"
    is_word = len(FORMULA_SIGNS[name]) > 1
    touches_next = not sign.endswith(" ") and found.string[found.end() : found.end() + 1].isalnum()
    return f"{sign} " if is_word and touches_next else sign


def in_line(source: str) -> str:
    """Return a formula of a sentence."""
    source = " ".join(_UNSEEN.sub("", source).split())
    text = as_text(source)
    return text if text is not None else f"${source}$"


def shown(source: str) -> str:
    """Return a formula that stands on lines of its own, in a fence where Markdown's marks cannot hold it."""
    lines = (line.strip() for line in _UNSEEN.sub("", source).split("\n"))
    said = "\n".join(line for line in lines if line)
    if not said:
        return ""
    if "$" in said or len(said) > LONGEST:
        return fenced(said, "latex")
    return f"$$\n{said}\n$$"
