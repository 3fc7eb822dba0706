"""Read characters of the font Symbol, which Word inserts by their places in it."""

from __future__ import annotations

from pipelines.corpus.markup.office_files.xml_names import Attributes, value

_RUNS = {
    0x41: "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ",
    0x61: "αβχδεφγηιϕκλμνοπθρστυϖωξψζ",
    0xA2: "′≤",
    0xAB: "↔←↑→↓°±″≥×∝∂•÷≠≡≈…",
    0xC7: "∩∪",
    0xD6: "√⋅",
    0x2D: "−",
    0xA5: "∞",
    0xCE: "∈",
    0xE5: "∑",
    0xF2: "∫",
}
_SIGNS = {first + at: sign for first, run in _RUNS.items() for at, sign in enumerate(run)}


def symbol(attributes: Attributes) -> str:
    """Return the character that a code stands for; nothing in other fonts, whose signs are pictures."""
    try:
        code = int(value(attributes, "char"), 16) & 0xFF  # Word adds 0xF000
    except ValueError:
        return ""
    return _SIGNS.get(code, "") if value(attributes, "font") == "Symbol" else ""
