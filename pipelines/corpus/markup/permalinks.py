"""Tell the links by which a page names a place of its own, as Sphinx's ¶, and the marks of notes, from those
that say something."""

from __future__ import annotations

import re

_NAMES = re.compile(  # of their classes and titles
    r"perma(?:nent )?link|link to th(?:is|ese)\b|direct link to|anchor|\bbookmark\b"
    r"|(?:head\w*|hash|self)-?link",
    re.I,
)
_SIGNS = r"[\s¶🔗⚓↩\u200b\u2060\ufe0e\ufe0f\ufeff\ue000-\uf8ff]"  # the last of fonts of pictures
_SIGN = re.compile(f"{_SIGNS}+")
_RAISED = re.compile(r"\s*[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,4}\s*")  # a link that shows no more than this leads to a note
_SIGN_OR_RAISED = re.compile(f"{_SIGN.pattern}|{_RAISED.pattern}")
# Of books: the mark of a note, and what leads back from it.
_MARK = re.compile(r"\s*(?!\S*[^\W\d_]{3})\S{1,8}\s*|\W*(?:[ivxl]{3,8}|note\W*\d*)\W*", re.I)  # no word
_NOTES = {"noteref": _MARK, "backlink": re.compile(r".*", re.S)}
_NAMED_SIGN = re.compile(
    rf"{_SIGNS}*(?:[#§∞]|perma(?:nent )?link(?: to .*)?|anchor|link(?: to th(?:is|ese) .*)?"
    rf"|direct link(?: to .*)?)?{_SIGNS}*",
    re.I | re.S,
)


def kinds(attributes: dict[str, str]) -> list[str]:
    """Return what a part of a book is; `role` says it behind doc-."""
    said = f"{attributes.get('epub:type')} {attributes.get('role')}"
    return [kind.removeprefix("doc-") for kind in said.split()]


def permalink_sign(attributes: dict[str, str], *, in_heading: bool) -> re.Pattern[str] | None:
    """Return how a link looks if it leads to the place where it stands, or to or from a note; None where it
    leads elsewhere."""
    names = (attributes.get(name) or "" for name in ("class", "title", "aria-label", "rel"))
    if _NAMES.search(" ".join(names)):
        return _NAMED_SIGN
    for kind in kinds(attributes):
        if found := _NOTES.get(kind):
            return _MARK if in_heading else found
    address = attributes.get("href") or ""
    if not address.startswith("#"):
        return _RAISED if "#" in address else None
    return _NAMED_SIGN if in_heading else _SIGN_OR_RAISED
