"""Recognise the clauses of a law or a contract, by the marks that they begin with and by how they end."""

from __future__ import annotations

import re

_MARK = re.compile(  # but no reference: paragraph (a) of this section
    r"\s*(?:(?P<number>\(\d{1,3}\))|(?P<letter>\((?:[a-z]{1,2}|[ivxl]{1,5})\))|(?P<half>[a-z]\))"
    r"|(?P<section>\d{1,3}(?:\.\d{1,3})+\.?))\s+"
    r"(?!(?:of|and|or|to|above|below|oder|und|bis)\b)(?P<first>\w)"
)
_ENDS = re.compile(r"[,;](?:\s(?:and|or|und|oder))?$")
_ENDS_FULLY = re.compile(r";(?:\s(?:and|or|und|oder))?$")
_LONGEST_END = 8  # characters: a line that was joined from many is searched at its end only


def is_clause(said: str) -> bool:
    """Return whether a line is a whole clause: "(b) the rent is due; and"."""
    return bool(_kind(said) and _ENDS.search(said[-_LONGEST_END:]))


def begins_clause(line: str, before: str) -> bool:
    """Return whether a line is the next clause behind another, and no part of wrapped prose that begins with
    a number."""
    kind = _kind(line)
    if kind is None:
        return False
    previous = _kind(before)
    follows = previous is not None and kind in (previous, "section")
    return follows or bool(_ENDS_FULLY.search(before[-_LONGEST_END:]))


def _kind(line: str) -> str | None:
    """Return which mark a clause begins with; behind a section's number, unlike a measure's, is a capital."""
    found = _MARK.match(line)
    if found is None or (found["section"] and not _begins_name(found["first"])):
        return None
    return next(kind for kind in ("number", "letter", "half", "section") if found[kind])


def _begins_name(character: str) -> bool:
    return character.isalpha() and not character.islower()
