"""Inputs that nobody would write: bytes, JSON values and archives, changed a little at random."""

from __future__ import annotations

import copy
import io
import zipfile
from random import Random
from typing import Any

PIECES = (
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\x1b]0;title\x07",
    b"-1",
    b"0",
    b"99999999999999999999",
    b"1e999",
    b"NaN",
    b"[" * 3000,
    b"{" * 3000,
    b"<a>" * 3000,
    b'"',
    b"\n" * 50,
    b"\r",
    b"A" * 70_000,
    b"%s%n",
    b"../../../etc/passwd",
    b"\\ud800",
    "\u202e\u2028\ufeff".encode(),
    b"&#x110000;",
    b"<!ENTITY x SYSTEM 'file:///etc/passwd'>",
)
DEEP: Any = []
for _ in range(150):
    DEEP = [DEEP]
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    -(10**9),
    2**31,
    2**63,
    10**30,
    1e308,
    float("inf"),
    float("nan"),
    0.5,
    "",
    "x",
    "\ud800",
    "\x1b]0;title\x07",
    "\x00",
    "../../etc/passwd",
    "A" * 20_000,
    [],
    {},
    [None],
    [[]],
    {"x": None},
    DEEP,
)


def mutated(chance: Random, data: bytes) -> bytes:
    """Change some places of a file: bits, spans, or a piece put in."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        at = chance.randrange(len(made) + 1)
        end = min(len(made), at + chance.choice((1, 4, 16, 256, 4096)))
        match chance.randrange(7):
            case 0 if at < len(made):
                made[at] ^= 1 << chance.randrange(8)
            case 1:
                del made[at:end]
            case 2:
                made[at:at] = made[at:end] * chance.choice((1, 2, 50))
            case 3:
                made[at:at] = chance.choice(PIECES)
            case 4:
                made[at:end] = chance.choice(PIECES)
            case 5:
                made[at:end] = chance.randbytes(end - at)
            case 6 if chance.random() < 0.3:
                del made[at:]
    return bytes(made)


def mutated_archive(chance: Random, data: bytes) -> bytes:
    """Change what is inside a zip archive, which stays one; now and then the archive itself."""
    if chance.random() < 0.3:
        return mutated(chance, data)
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        names = old.namelist()
        changed = chance.choice(names)
        for name in names:
            content = old.read(name)
            content = mutated(chance, content) if name == changed else content
            new.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)  # of no date
    return made.getvalue()


def mutated_value(chance: Random, value: Any) -> Any:
    """Replace, remove or add entries of a JSON value, at any depth."""
    made = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 2, 4))):
        made = _changed(chance, made)
    return made


def _changed(chance: Random, value: Any) -> Any:
    if not isinstance(value, list | dict) or not value or chance.random() < 0.15:
        return copy.deepcopy(chance.choice(VALUES))
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = chance.choice(keys)
    match chance.randrange(8):
        case 0:
            del value[key]
        case 1 if isinstance(value, dict):
            value[chance.choice(("", "x", "\x1b[2J", *map(str, keys)))] = value[key]
        case 2 if isinstance(value, list):
            value.extend(value[:100])
        case _:
            value[key] = _changed(chance, value[key])
    return value
