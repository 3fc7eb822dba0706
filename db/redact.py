"""Redact secrets before values are stored or shown: settings by name, text by pattern.

The dashboard, the command line and every error of the tracker use it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, wraps
from itertools import accumulate
from typing import Any, TypeVar
from urllib.parse import quote, unquote

T = TypeVar("T")

HIDDEN = "(hidden)"
LONGEST_REMEMBERED = 100  # characters
SHORTEST_SECRET = 6  # shortest environment value treated as a secret, in characters

# Names ----------------------------------------------------------------------------------------------------

SECRET_NAME = re.compile(
    r"(^|[_.\s-])(api_?key|access_?key|private_?key|secret|(ssl)?password|passwd|pwd|passphrase|credentials?"
    r"|authorization|bearer|cookie|auth|token|signature|sig)s?($|[_.\s-])|[a-z0-9][_-]key$",
    re.IGNORECASE,
)
# Names that are not secret: token counts, vocabulary tokens, row keys.
PLAIN_NAME = re.compile(
    r"(^|_)tokens?_(per|sampled|scored|trained|are)|(^|_)tokens$|(bos|eos|pad|unk|stop|end|mask|special)_token$"
    r"|(primary|foreign|item|run|sort)_key$",
    re.IGNORECASE,
)
FOLDERS = ("PWD", "OLDPWD")  # variables that name where the shell is and was
COUNTED = re.compile(r"tokens?($|[_.-])", re.IGNORECASE)
NUMBER = re.compile(r"\d{1,12}(\.\d+)?")
CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
FLAG = re.compile(r"--?[A-Za-z][\w-]*")

# Text -----------------------------------------------------------------------------------------------------

KNOWN_SHAPES = re.compile(
    r"\b(hf_[A-Za-z0-9]{8,}|sk[-_][A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}"
    r"|A[KS]IA[A-Z0-9]{12,}|xox[abeprs]-[A-Za-z0-9-]{8,}|glpat-[\w-]{8,}|AIza[\w-]{20,}|gsk_\w{8,}"
    r"|xai-\w{8,}|nvapi-[\w-]{8,}|npm_\w{16,}|pypi-[\w-]{16,}|eyJ[\w-]{8,4000}\.[\w-]{8,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*)"
)
# Match up to the last @ before the path; a password may contain a slash, but then no port precedes it.
# Lengths are bounded to avoid quadratic time on text with many partial matches.
IN_URL = re.compile(
    r"(?<=://)(?:[^/?#\s]{0,300}@|[^/?#\s:@]{0,100}:(?!\d{1,5}[/?#])\S{0,300}@)"
    r"|(?<=:/)[^/?#\s:@]{1,100}:[^/\s]{1,300}@"
)
# A password may hold a few single spaces, which a host behind it tells from prose; digits and a slash at its
# beginning are no port in the URL of a database, where no @ follows one.
SPACED_IN_URL = re.compile(
    r"(?<=://)[^/?#\s:@]{1,100}:(?=[^\s/])(?!\d{1,5}(?:[^\w@]|$))"
    r"(?:(?:(?!://)[^\s\"'<>]){1,60} ){1,5}(?:(?!://)[^\s\"'<>]){0,60}@(?=[\w.-]{1,100}(?::\d{1,5})?/)"
)
IN_DATABASE_URL = re.compile(
    r"(?i)(?<![a-z])((?:postgres(?:ql)?|mysql|mariadb|mongodb|rediss?|amqps?)(?:\+\w{1,30})?://)"
    r"[^/?#\s:@]{0,100}:\d{1,5}/[^\s?#]{0,300}@"
)
IN_ENCODED_URL = re.compile(r"(?i)(?<=%3a%2f%2f)[^\s&]{0,300}?%40")
PARAMETER = re.compile(r"(?<=[?&;])([^=&;?\s]{1,60})=([^&;\s\"']+)")
ASSIGNED = re.compile(r"(?<![\w?&-])-{0,2}([A-Za-z][\w.-]{1,60})[\"']?\s*(=|:(?=[\s\"']))[^\S\n]*")
# A backslash goes before a quote or a space that belongs to the value.
ASSIGNED_VALUE = re.compile(
    r"\(hidden\)|\"(?:\\[\s\S]|[^\"\\])*\"?|'(?:\\[\s\S]|[^'\\])*'?|(?:\\[^\n]|[^\s,;&\"'\\])+"
)
ALSO_A_WORD = {
    "auth",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "secret",
    "secrets",
    "signature",
    "signatures",
    "token",
}
BEARER = re.compile(r"(\bBearer\s+)(?=\S{6})(?:\S+(?:\r?\n\S+)?)|(\b(?i:bearer)\s+)(?=\S*\d|\S{16})\S+")
BASIC = re.compile(r"(?i)(\bauthorization[\"']?\s*[:=]\s*[\"']?(?:\w+\s+)?)[^\s\"']+")


def _remembered(function: Callable[[str], T]) -> Callable[[str], T]:
    """Remember what a function says of short texts: an export asks of its columns' names in every row."""
    remembered = lru_cache(maxsize=4096)(function)

    @wraps(function)
    def of(text: str) -> T:
        return remembered(text) if len(text) <= LONGEST_REMEMBERED else function(text)

    return of


def redact(value: Any, name: str = "") -> Any:
    """Return the same structure without secrets, recognized by a setting's name or a value's pattern."""
    if isinstance(value, Mapping):
        value = _without_split_secrets(value)
        return {redact_text(str(key)): redact(entry, str(key)) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return _redact_list(value, name)
    scalar = isinstance(value, str | int | float) and not isinstance(value, bool)
    if value and scalar and names_a_secret(name) and not _is_count(name, str(value)):
        return HIDDEN
    return redact_text(_without_spelled_secrets(value)) if isinstance(value, str) else value


def _without_spelled_secrets(text: str) -> str:
    """Hide what the tokens of a rollout spell together where they are the text of a JSON document, as SQLite
    returns them."""
    if '"pieces"' in text:
        with suppress(ValueError, RecursionError):
            document = json.loads(text)
            shown = redact(document)
            return text if shown == document else json.dumps(shown, ensure_ascii=False)
    return text


def _without_split_secrets(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Hide a secret that a rollout's tokens spell together: their `pieces` and what goes with each."""
    pieces = value.get("pieces")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        return value
    places = _secret_places(pieces)
    found = dict(value)
    replacements: dict[str, Any] = {"pieces": HIDDEN, "ids": None, "student_top": [], "teacher_top": []}
    for name, hidden in replacements.items():
        entries = found.get(name)
        if isinstance(entries, list):
            found[name] = [hidden if place in places else entry for place, entry in enumerate(entries)]
    return found


def _secret_places(pieces: Sequence[str]) -> set[int]:
    """Return the places of the pieces from the first to the last secret in their text."""
    whole = "".join(pieces)
    shown = redact_text(whole)
    if shown == whole:
        return set()
    begin = _alike(whole, shown)
    end = max(len(whole) - _alike(whole[::-1], shown[::-1]), begin + 1)
    ends = list(accumulate(map(len, pieces)))
    return {
        place for place, piece in enumerate(pieces) if ends[place] > begin and ends[place] - len(piece) < end
    }


def _alike(one: str, other: str) -> int:
    """Return the length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


@_remembered
def redact_text(text: str) -> str:
    """Redact keys, passwords in addresses, and values assigned to secret names."""
    text = KNOWN_SHAPES.sub(HIDDEN, text)
    if ":/" in text:
        text = IN_URL.sub(f"{HIDDEN}@", IN_DATABASE_URL.sub(rf"\1{HIDDEN}@", text))
        text = SPACED_IN_URL.sub(f"{HIDDEN}@", text)
    if "%" in text:
        text = IN_ENCODED_URL.sub(f"{HIDDEN}%40", text)
    if "earer" in text or "EARER" in text:
        text = BEARER.sub(lambda found: f"{found[1] or found[2]}{HIDDEN}", text)
    if "uthorization" in text or "AUTHORIZATION" in text:
        text = BASIC.sub(rf"\1{HIDDEN}", text)
    if "=" in text or ":" in text:
        text = _redact_assignments(PARAMETER.sub(_parameter, text))
    return text


def redact_error(text: str) -> str:
    """Redact as redact_text does, and also the environment's secrets, whole or broken across lines."""
    for name, value in os.environ.items():
        if names_a_secret(name) and name not in FOLDERS:
            for part in {value, *value.split(), repr(value)[1:-1], quote(value, safe="")}:
                text = text.replace(part, HIDDEN) if len(part) >= SHORTEST_SECRET else text
    return redact_text(text)


def _redact_list(values: Sequence[Any], name: str) -> list[Any]:
    """Redact a list; a text after a flag such as --api-key is a secret too.

    A number is none: in a distribution the token `-auth` stands before its log-probability. Nor is a piece of
    a rollout, in which `-token` may go on any word: secrets that pieces spell are hidden already."""
    found: list[Any] = []
    before: Any = None
    for value in values:
        texts = name != "pieces" and isinstance(before, str) and isinstance(value, str)
        after_flag = texts and FLAG.fullmatch(before)
        found.append(redact(value, str(before).lstrip("-") if after_flag else name))
        before = value
    return found


@_remembered
def names_a_secret(name: str) -> bool:
    """Return whether a setting, variable or parameter of this name holds a secret."""
    spelled = CAMEL_HUMP.sub("_", name)
    return SECRET_NAME.search(spelled) is not None and PLAIN_NAME.search(spelled) is None


def _is_count(name: str, value: str) -> bool:
    """Return whether a name and value are a number of tokens; a password may be a number too."""
    return COUNTED.search(name) is not None and NUMBER.fullmatch(value) is not None


def _parameter(found: re.Match[str]) -> str:
    """Redact a query parameter, whose name may be percent-encoded."""
    name = unquote(found[1])
    return f"{found[1]}={HIDDEN}" if name.lower() == "key" or names_a_secret(name) else found[0]


def _redact_assignments(text: str) -> str:
    """Hide the value in NAME=value, "name": "value" and --name=value."""
    parts = []
    end = 0
    for found in ASSIGNED.finditer(text):
        if found.start() < end or not names_a_secret(found[1]):
            continue
        value = ASSIGNED_VALUE.match(text, found.end())
        if value and not _is_prose(found, value[0]) and not _is_count(found[1], value[0]):
            parts += [text[end : found.end()], HIDDEN]
            end = value.end()
    return "".join([*parts, text[end:]])


def _is_prose(name: re.Match[str], value: str) -> bool:
    """Return whether a match is prose: "Token: the smallest unit", "/etc/passwd: no such file"."""
    if name[2] != ":":
        return False
    in_a_path = name.start() > 0 and name.string[name.start() - 1] == "/"
    return in_a_path or (name[1].lower() in ALSO_A_WORD and value.isalpha())


# Differences ----------------------------------------------------------------------------------------------


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by dotted path: ("distill.optimizer.learning_rate", 0.0003)."""
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from flat(entry, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (setting, before, after) of changed settings, secrets redacted; an absent setting is None."""
    old, new = dict(flat(before)), dict(flat(after))
    hidden_old, hidden_new = dict(flat(redact(before))), dict(flat(redact(after)))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [(name, hidden_old.get(name), hidden_new.get(name)) for name in sorted(names)]
