"""Find the macros that a LaTeX file takes from others of its folder, as chapters do from a book's main file.

All LaTeX files are looked through once, when the first of them is read; only their definitions are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from pipelines.corpus.as_markdown.latex.macros import Macro, macros_of, names_defined, names_used
from pipelines.corpus.as_markdown.latex.words import COMMANDS
from pipelines.corpus.reading.formats import MIB, STYLES, Limits, Unreadable, format_of
from pipelines.corpus.reading.plain import FileFacts, Source, characters
from pipelines.corpus.reading.tree import Entry, Tree

LARGEST = 2 * MIB  # of a file that is looked through, unpacked
MOST = 32 * MIB  # of all of them
MOST_MACROS = 100_000  # one counts for each folder that it is looked for from
FOLDERS = 16  # around a file, in which macros are looked for
LARGEST_ANSWER = MIB // 4  # characters
_BEGIN = re.compile(r"^[^%\n]*\\begin\{document\}", re.M)
_PART = re.compile(r"\\documentclass[ \t]*+(?:\[[^\]\n]{0,200}\][ \t]*+)?\{(?:subfiles|standalone)\}")

Known = dict[str, Macro | None]  # by name; None: files differ


class FolderMacros:
    """What the LaTeX files of a folder define.

    Of a name that several files define the nearest in the tree of folders counts; where these differ, none. A
    whole document is a project of its own with its folder: it takes nothing from another one, and neither it
    nor its parts take anything from outside, unless it names what lies there (../).
    """

    def __init__(self, directory: Path, limits: Limits) -> None:
        self._limits = limits
        self._all: dict[str, Known] = {}  # by folder: of all files below it
        self._parts: dict[str, Known] = {}  # the same without whole documents
        self._projects: set[str] = set()  # folders
        self._size = self._count = 0
        with Tree(directory, limits.leave_out) as tree:
            for entry in tree.entries():
                try:
                    if _is_latex(entry):
                        self._add(entry.path, self._text(entry))
                finally:
                    entry.close()

    def _add(self, path: str, text: str) -> None:
        folders = list(_around(path))
        begin = _main_part(path, text)
        if begin >= 0 and "../" not in text[:begin]:
            self._projects.add(folders[0])
        self._size += len(text)
        if self._size > MOST or self._count > MOST_MACROS:
            return
        own = macros_of(text)
        found = {name: own.get(name) for name in own.keys() | names_defined(text) if name not in COMMANDS}
        self._count += len(found) * len(folders)
        for by_folder in [self._all] if begin >= 0 else [self._all, self._parts]:
            for folder in folders if found else []:
                known = by_folder.setdefault(folder, {})
                for name, macro in found.items():
                    if known.setdefault(name, macro) != macro:
                        known[name] = None

    def _text(self, entry: Entry) -> str:
        """Return a file's text; one that is damaged or long when unpacked defines nothing here."""
        source = Source(entry.handle, format_of(entry.name)[1], self._limits)
        text = ""
        try:
            for block in characters(source, FileFacts()):
                text += block
                if len(text) > LARGEST:
                    return ""
        except (Unreadable, OSError):
            return ""
        return text

    def context(self, entry: Entry) -> str:
        """Return the macros of other files that a file uses, for its parser."""
        if not self._all or entry.size > LARGEST:
            return ""
        text = self._text(entry)
        known = self._known(entry.path, self._parts if _main_part(entry.path, text) >= 0 else self._all)
        found: dict[str, Macro] = {}
        size = 0
        waiting = names_used(text)
        while waiting and size < LARGEST_ANSWER:
            name = waiting.pop()
            macro = next((macros[name] for macros in known if name in macros), None)
            if macro is not None:
                found[name] = macro
                size += len(name) + len(macro.body)
                waiting |= names_used(macro.body) - found.keys()
        return json.dumps(found) if found and size < LARGEST_ANSWER else ""

    def _known(self, path: str, by_folder: Mapping[str, Known]) -> list[Known]:
        """Return what the folders around a file know, from the nearest on to that of its project."""
        around = []
        for folder in _around(path):
            around.append(by_folder.get(folder, {}))
            if folder in self._projects:
                break
        return around


def _is_latex(entry: Entry) -> bool:
    if entry.reason is not None or entry.size > LARGEST:
        return False
    format, _ = format_of(entry.name)
    return entry.name.lower().endswith(STYLES) or (format is not None and format.name == "latex")


def _main_part(path: str, text: str) -> int:
    """Return where the body of a whole document begins, -1 in a style or a part of another document."""
    begin = None if path.lower().endswith(STYLES) or _PART.search(text) else _BEGIN.search(text)
    return begin.end() if begin else -1


def _around(path: str) -> Iterator[str]:
    """Yield the folders that a file lies in, from the nearest on."""
    parts = path.split("/")
    return ("/".join(parts[:-depth]) for depth in islice(range(1, len(parts) + 1), FOLDERS))
