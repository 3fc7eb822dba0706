"""Tell the links by which a page names a place of its own, as Sphinx's ¶, from those that say something."""

from __future__ import annotations

import re

_NAMES = re.compile(  # of their classes and titles
    r"perma(?:nent )?link|link to th(?:is|ese)\b|direct link to|anchor|\bbookmark\b"
    r"|(?:head\w*|hash|self)-?link",
    re.I,
)
_SIGNS = r"[\s¶🔗⚓\u200b\u2060\ufe0e\ufe0f\ufeff\ue000-\uf8ff]"  # the last of fonts of pictures
_SIGN = re.compile(f"{_SIGNS}+")
_NAMED_SIGN = re.compile(
    rf"{_SIGNS}*(?:[#§∞]|perma(?:nent )?link(?: to .*)?|anchor|link(?: to th(?:is|ese) .*)?"
    rf"|direct link(?: to .*)?)?{_SIGNS}*",
    re.I | re.S,
)


def permalink_sign(attributes: dict[str, str], *, in_heading: bool) -> re.Pattern[str] | None:
    """Return how a link looks if it leads to the place where it stands; None where it leads elsewhere."""
    names = (attributes.get(name) or "" for name in ("class", "title", "aria-label", "rel"))
    if _NAMES.search(" ".join(names)):
        return _NAMED_SIGN
    if not (attributes.get("href") or "").startswith("#"):
        return None
    return _NAMED_SIGN if in_heading else _SIGN
