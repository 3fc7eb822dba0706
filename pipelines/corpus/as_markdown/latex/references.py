"""Let a sentence read well without the numbers of its references and citations, which only LaTeX knows.

References stand as marks in a paragraph. "Figure 3 shows" becomes "The figure shows" in English, "la figure
3" becomes "la figure"; what else a sentence cannot do without is shown as left out, […], and brackets that
hold nothing but references go.
"""

from __future__ import annotations

import re

from pipelines.corpus.as_markdown.latex.words import LABELS
from pipelines.corpus.markup.parts import LEFT_OUT, names

REFERENCE, CITATION, GAP = "\ufdd2", "\ufdd3", "\ufdd4"  # GAP: a command that prints nothing
_MARKS = re.compile("[\ufdd0-\ufdd4]")
_NOUNS = names(
    "section subsection chapter appendix part figure table equation theorem lemma proposition corollary"
    " definition algorithm example exercise remark listing problem property assumption condition claim"
    " conjecture step line rule fact observation notation question construction situation diagram panel"
    " experiment eq fig sec tab thm alg chap app def prop cor lem ex"
)
_FULL = LABELS | {"ex": "example"}
_PLURALS = {"appendice": "appendices", "propertie": "properties", "corollarie": "corollaries"}
_DETERMINERS = names(
    "the this that these those each le la les du des au aux ce cette ces un une l der die das dem den des"
    " diese dieser diesem dieses im am vom zum zur el los las del della il lo o os as"
)
_BEFORE_CITATIONS = names(
    "by in see of from with to and or like following e.g. cf. as than on both per von in siehe nach bei aus"
    " mit und vgl. de par dans voir et chez selon après à que dem der"
)
_ONE = rf"{REFERENCE}(?:[a-h]\b|\([a-h]\))?"  # and which part of a figure
_MANY = rf"{_ONE}(?:(?:,|,? (?:and|or|to|through|und|et|ou|bis|à|y|e)|[–-])? ?{_ONE})*"
_BRACKETS = re.compile(r" ?[(\[]([^()\[\]\n]{1,200})[)\]]")
_IN_BRACKETS = re.compile(rf"[(\[] ?({REFERENCE}) ?[)\]]")
_PAGE = re.compile(rf"(?:,? (?:on|auf|à la))? (?:pages?|pp?\.|Seiten?|S\.) ?{_MANY}")
_NOUN = re.compile(
    rf"(?<![\w-])(the |this |these )?({'|'.join([*sorted(_NOUNS), *_PLURALS])})(s?)\.? ?{_MANY}",
    re.I,
)
_DETERMINED = re.compile(rf"(?<!\w)((?:{'|'.join(sorted(_DETERMINERS))})[ '’]\w+) ?{_MANY}", re.I)
_BARE = re.compile(_MANY)
_CITED = re.compile(rf"(?<!\S)([^\s{CITATION}]*) ?{CITATION}(?:[,;]? ?{CITATION})*")
_EMPTY = re.compile(rf" ?[(\[]([ ,;:{GAP}]+)[)\]]")
_GAPS = re.compile(rf"( ?){GAP}([ {GAP}]*)([.,;:!?)\]]?)")


def without_marks(text: str) -> str:
    """Remove the placeholder characters used while a page is built."""
    return _MARKS.sub("", text)


def without_references(text: str, english: bool) -> str:
    """Return a paragraph without marks."""
    if REFERENCE in text or CITATION in text:
        text = _IN_BRACKETS.sub(r"\1", text)
        text = _BRACKETS.sub(_bracket, text)
        text = _PAGE.sub("", text)
        if english:
            text = _NOUN.sub(_the_noun, text)
        text = _CITED.sub(_citation, _DETERMINED.sub(r"\1", text))
        text = _BARE.sub(LEFT_OUT, text)
    if GAP in text:
        text = _EMPTY.sub(lambda found: "" if GAP in found[1] else found[0], text)
        text = _GAPS.sub(_closed, text)
    return text


def _bracket(found: re.Match[str]) -> str:
    """Leave out brackets that hold hardly more than references."""
    inside = found[1]
    if REFERENCE not in inside and CITATION not in inside:
        return found[0]
    words = re.findall(r"[^\W\d_]{2,}", inside)
    said = [word for word in words if word.lower().rstrip("s") not in _NOUNS]
    return found[0] if len(said) > 2 else GAP


def _the_noun(found: re.Match[str]) -> str:
    """Return the noun behind an article, capitalised where a sentence begins."""
    determiner, noun, plural = found[1], found[2].lower(), found[3].lower()
    many = found[0].count(REFERENCE) > 1 or bool(plural)
    noun = _FULL.get(noun, noun)
    if many:
        noun = _PLURALS.get(noun, "appendices" if noun == "appendix" else f"{noun}s")
    said = f"{(determiner or 'the ').lower()}{noun}"
    before = found.string[max(0, found.start() - 3) : found.start()].rstrip(" ")
    return said[0].upper() + said[1:] if not before or before[-1] in ".!?*\n" else said


def _citation(found: re.Match[str]) -> str:
    """Leave a citation out, unless it is a word of its sentence."""
    before = found[1]
    if before.lower().lstrip("(") in _BEFORE_CITATIONS:
        return f"{before} {LEFT_OUT}"
    begins = not before or before[-1] in ".!?"
    goes_on = found.string[found.end() : found.end() + 2].strip()[:1].islower()
    return f"{before} {LEFT_OUT}".lstrip(" ") if begins and goes_on else before


def _closed(found: re.Match[str]) -> str:
    """Close a gap, before a punctuation mark without a space."""
    before, after, mark = found.groups()
    spaced = before or " " in after
    if mark:
        return f" {mark}" if before and after.endswith(" ") and mark in ";:!?" else mark
    return " " if spaced else ""
