"""Find the macros that a LaTeX file takes from others of its folder, as chapters do from a book's main file.

All LaTeX files are looked through once, when the first of them is read; only their definitions are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pipelines.corpus.markup.latex.macros import Macro, macros_of, used_in
from pipelines.corpus.markup.latex.words import COMMANDS
from pipelines.corpus.reading.formats import MIB, Limits, Unreadable, format_of
from pipelines.corpus.reading.plain import FileFacts, Source, characters
from pipelines.corpus.reading.tree import Entry, Tree

STYLES = (".sty", ".cls")  # hold macros and no text
LARGEST = 2 * MIB  # of a file that is looked through
MOST = 64 * MIB  # of all of them
MOST_MACROS = 200_000
FOLDERS = 16  # around a file, in which macros are looked for
LARGEST_ANSWER = MIB // 4  # characters
_WHOLE = "\\begin{document}"


class FolderMacros:
    """What the LaTeX files of a folder define.

    Of a name that several files define the nearest in the tree of folders counts; where these differ, none. A
    whole document takes nothing from another one, which may be another paper.
    """

    def __init__(self, directory: Path, limits: Limits) -> None:
        self._limits = limits
        self._all: dict[str, dict[str, Macro | None]] = {}  # by folder: of the files below; None: they differ
        self._parts: dict[str, dict[str, Macro | None]] = {}  # the same without whole documents
        size = count = 0
        with Tree(directory) as tree:
            for entry in tree.entries():
                try:
                    if _is_latex(entry) and size + entry.size <= MOST and count < MOST_MACROS:
                        size += entry.size
                        count += self._add(entry)
                finally:
                    entry.close()

    def _add(self, entry: Entry) -> int:
        text = self._text(entry)
        found = [(name, macro) for name, macro in macros_of(text).items() if name not in COMMANDS]
        maps = [self._all] if _WHOLE in text else [self._all, self._parts]
        for by_folder in maps:
            for folder in _around(entry.path):
                known = by_folder.setdefault(folder, {})
                for name, macro in found:
                    if known.setdefault(name, macro) != macro:
                        known[name] = None
        return len(found)

    def _text(self, entry: Entry) -> str:
        """Return a file's text; one that is damaged or long when unpacked defines nothing here."""
        source = Source(entry.handle, entry.name.lower().endswith(".gz"), self._limits)
        text = ""
        try:
            for block in characters(source, FileFacts()):
                text += block
                if len(text) > LARGEST:
                    return ""
        except (Unreadable, OSError):
            return ""
        return text

    def used_in(self, entry: Entry) -> str:
        """Return the macros of other files that a file uses, for its parser."""
        if entry.size > LARGEST or not self._all:
            return ""
        text = self._text(entry)
        by_folder = self._parts if _WHOLE in text else self._all
        maps = [by_folder[folder] for folder in _around(entry.path) if folder in by_folder]
        found: dict[str, Macro] = {}
        waiting = used_in(text)
        while waiting:
            name = waiting.pop()
            macro = next((known[name] for known in maps if name in known), None)
            if macro is not None:
                found[name] = macro
                waiting |= used_in(macro.body) - found.keys()
        said = json.dumps(found)
        return said if found and len(said) <= LARGEST_ANSWER else ""


def _is_latex(entry: Entry) -> bool:
    if entry.reason is not None or entry.size > LARGEST:
        return False
    format, _ = format_of(entry.name)
    return entry.name.lower().endswith(STYLES) or (format is not None and format.name == "latex")


def _around(path: str) -> Iterator[str]:
    """Yield the folders that a file lies in, from the nearest on."""
    parts = path.split("/")
    return ("/".join(parts[:-depth]) for depth in islice(range(1, len(parts) + 1), FOLDERS))
