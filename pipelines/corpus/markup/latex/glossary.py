"""Abbreviations that a glossary defines, \\newacronym{cpu}{CPU}{…}, and what prints them, \\gls{cpu}.

An abbreviation is two macros, its short and its long form, under names that no command can have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelines.corpus.markup.latex.braces import Braces
from pipelines.corpus.markup.parts import names

LONGEST = 4000  # characters of an argument
_OPTIONS = r"(?:\[[^\[\]\n]{0,200}\])?"
_KEY = r"\{([^{}\\\n]{1,80})\}"
_DEFINED = re.compile(
    r"((?<!\\)%[^\n]*+)"
    r"|\\(newacronym|newabbreviation|acrodef|acro|newglossaryentry|DeclareAcronym)[ \t]*+"
    rf"{_OPTIONS}{_KEY}\s*+"
    r"(?:\[([^\[\]\n]{0,80})\])?(?=\{)"
)
_FIELD = re.compile(r"(?<![\w-])(short|name|text|long)[ \t]*=\s*+(?:\{|([^{},\n]{1,80}))")
_FIRST = names("gls Gls GLS cgls glspl Glspl GLSpl ac Ac acp Acp")
_SHORT = names(
    "acs Acs acsp acrshort Acrshort acrshortpl glsentryshort glsxtrshort glsentrytext glsentryname"
)
_LONG = names("acl Acl aclp acrlong Acrlong acrlongpl glsentrylong glsxtrlong")
_FULL = names("acf Acf acfp acfi acrfull Acrfull acrfullpl glsxtrfull")
COMMANDS = _FIRST | _SHORT | _LONG | _FULL
_COMMAND = "|".join(sorted(COMMANDS, key=len, reverse=True))
USED = re.compile(rf"\\(?:{_COMMAND})\*?[ \t]*{_OPTIONS}{_KEY}")
_ARGUMENT = re.compile(rf"\*?[ \t]*+{_OPTIONS}{_KEY}")


def short_of(key: str) -> str:
    """Return the name of the macro that holds an abbreviation's short form."""
    return f"{key.strip()}/short"


def long_of(key: str) -> str:
    return f"{key.strip()}/long"


def forms(text: str, braces: Braces) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of what a glossary defines."""
    for found in _DEFINED.finditer(text):
        comment, command, key, option = found.groups()
        if comment is not None:
            continue
        arguments = _arguments(text, found.end(), braces)
        if command in ("newglossaryentry", "DeclareAcronym"):
            fields = dict(_fields("".join(arguments[:1])))
            short = fields.get("short") or fields.get("text") or fields.get("name")
            yield from _named(key, short, fields.get("long"))
        elif len(arguments) == 2:
            yield from _named(key, *arguments)
        elif arguments:  # \acro{key}[short]{long}
            yield from _named(key, option or key, arguments[0])


def _arguments(text: str, at: int, braces: Braces) -> list[str]:
    """Return up to two arguments, unless they are long."""
    found: list[str] = []
    while len(found) < 2 and at < (end := braces.end(at)) < at + LONGEST:
        found.append(text[at + 1 : end - 1])
        at = end + (text[end : end + 2] == "\n{")
    return found


def _named(key: str, short: str | None, long: str | None) -> Iterator[tuple[str, str]]:
    if short:
        yield short_of(key), short
        yield long_of(key), long or ""


def _fields(text: str) -> Iterator[tuple[str, str]]:
    braces = Braces(text)
    for found in _FIELD.finditer(text):
        end = braces.end(found.end() - 1)
        yield found[1], (found[2] or text[found.end() : end - 1] if found[2] or end else "").strip()


def argument_at(text: str, at: int) -> tuple[str, int] | None:
    """Return the key behind a command's name, and where it ends."""
    found = _ARGUMENT.match(text, at)
    return (found[1], found.end()) if found else None


def printed(command: str, short: str, long: str, *, is_first: bool) -> str:
    """Return what a command prints of an abbreviation: in full where it is named first."""
    plural = "s" if command.endswith(("p", "pl")) else ""
    if command in _FULL or (command in _FIRST and is_first and long):
        said = f"{long}{plural} ({short}{plural})"
    else:
        said = (long if command in _LONG and long else short) + plural
    return said[:1].upper() + said[1:] if command[0].isupper() else said
