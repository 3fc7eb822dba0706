"""Abbreviations that a glossary defines, \\newacronym{cpu}{CPU}{…}, and what prints them, \\gls{cpu}.

The forms of an abbreviation are macros under names that no command can have: cpu/short, cpu/long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pipelines.corpus.as_markdown.latex.braces import Braces
from pipelines.corpus.markup.parts import names

FORMS = ("short", "long", "plural", "longplural")
LONGEST = 4000  # characters of an argument
_OPTIONS = r"(?:\[([^\[\]\n]{0,200})\])?"
_KEY = r"\{([^{}\\\n]{1,80})\}"
_DEFINED = re.compile(
    r"((?<!\\)%[^\n]*+)"
    r"|\\(newacronym|newabbreviation|acrodef|acro|newglossaryentry|DeclareAcronym)[ \t]*+"
    rf"{_OPTIONS}{_KEY}\s*+(?:\[([^\[\]\n]{{0,80}})\])?(?=\{{)"
)
_FIELD = re.compile(r"(?<![\w-])(\w{1,40})[ \t]*=\s*+(?:(?=\{)|((?:[^{},\n]|\{[^{}\n]{0,40}\}){1,80}))")
_FIELD_OF = {"name": "short", "text": "short", "shortplural": "plural"}  # others are named as their form
_FIRST = names("gls Gls GLS cgls glspl Glspl GLSpl ac Ac acp Acp")
_SHORT = names(
    "acs Acs acsp acrshort Acrshort acrshortpl glsentryshort glsxtrshort glsentrytext glsentryname"
)
_LONG = names("acl Acl aclp acrlong Acrlong acrlongpl glsentrylong glsxtrlong")
_FULL = names("acf Acf acfp acfi acrfull Acrfull acrfullpl glsxtrfull")
COMMANDS = _FIRST | _SHORT | _LONG | _FULL
NAMING = _FIRST | _FULL  # behind which an abbreviation is known to the reader
_COMMAND = "|".join(sorted(COMMANDS, key=len, reverse=True))
_USED = re.compile(rf"\\(?:{_COMMAND})\*?[ \t]*{_OPTIONS}{_KEY}")
_ARGUMENT = re.compile(rf"\*?[ \t]*+{_OPTIONS}{_KEY}(?:\[([^\[\]\n]{{0,80}})\])?")
_SPACE = re.compile(r"[ \t]*+(?:\n[ \t]*+)?(?=\{)")


def name_of(key: str, form: str) -> str:
    """Return the name of the macro that holds a form of an abbreviation."""
    return f"{key.strip()}/{form}"


def names_used(text: str) -> Iterator[str]:
    """Yield the names of all forms of the abbreviations that a text prints."""
    for found in _USED.finditer(text):
        yield from (name_of(found[2], form) for form in FORMS)


def forms(text: str, braces: Braces) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of what a glossary defines."""
    at = 0
    while found := _DEFINED.search(text, at):
        at = found.end()
        comment, command, options, key, short = found.groups()
        if comment is not None:
            continue
        arguments, at = _arguments(text, at, braces)
        said = _fields(options or "")
        if command in ("newglossaryentry", "DeclareAcronym"):
            said = _fields("".join(arguments[:1]))
        elif len(arguments) == 2:
            said |= {"short": arguments[0], "long": arguments[1]}
        elif arguments:  # \acro{key}[short]{long}
            said |= {"short": short or key, "long": arguments[0]}
        if "short" in said:
            yield from ((name_of(key, form), said[form]) for form in FORMS if form in said)


def _arguments(text: str, at: int, braces: Braces) -> tuple[list[str], int]:
    """Return up to two arguments, unless they are long, and where to go on."""
    found: list[str] = []
    while len(found) < 2 and at < (end := braces.end(at)) < at + LONGEST:
        found.append(text[at + 1 : end - 1])
        at = space.end() if (space := _SPACE.match(text, end)) else end
    return found, at


def _fields(text: str) -> dict[str, str]:
    """Return the forms that a list of keys and values sets."""
    said: dict[str, str] = {}
    braces = Braces(text)
    at = 0
    while found := _FIELD.search(text, at):
        at = max(found.end(), braces.end(found.end()))
        value = found[2] or text[found.end() + 1 : at - 1]
        said[_FIELD_OF.get(found[1], found[1])] = value.strip()
    return said


def argument_at(text: str, at: int) -> tuple[str, str, int] | None:
    """Return the key behind a command's name, what is inserted behind its form, and where both end."""
    found = _ARGUMENT.match(text, at)
    return (found[2], found[3] or "", found.end()) if found else None


def printed(command: str, said: Mapping[str, str], *, is_first: bool) -> str:
    """Return what a command prints of an abbreviation: in full where it is named first."""
    short, long = said["short"], said.get("long", "")
    if command.endswith(("p", "pl")):
        short, long = said.get("plural", f"{short}s"), said.get("longplural", f"{long}s" if long else "")
    if long and (command in _FULL or (command in _FIRST and is_first)):
        text = f"{long} ({short})"
    else:
        text = long if command in _LONG and long else short
    return text[:1].upper() + text[1:] if command[0].isupper() else text
