"""Find files made elsewhere of which the text is known, each with that text."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

Reference = tuple[Path, str]  # a file, and the text that it holds


def encoded(folder: Path) -> list[Reference]:
    found = []
    for path in sorted(folder.rglob("*-utf8.txt")):
        legacy = path.with_name(path.name.replace("-utf8", ""))
        if legacy.exists():
            found.append((legacy, path.read_text(encoding="utf-8")))
    for test in sorted(folder.rglob("test_full_detection.py")):
        for name, codec in re.findall(r'\("(sample-[\w.-]+)", "(\w+)", "\w+"\)', test.read_text()):
            path = test.parent.parent / "data" / name
            if path.exists():
                found.append((path, path.read_bytes().decode(codec, "replace")))
    return found


def pages(folder: Path) -> list[Reference]:
    found = []
    for source in sorted(folder.rglob("_sources/**/*.rst.txt")):
        root = next(parent for parent in source.parents if parent.name == "_sources")
        page = root.parent / source.relative_to(root).with_name(
            source.name.removesuffix(".rst.txt") + ".html"
        )
        if page.exists():
            found.append((page, source.read_text(encoding="utf-8")))
    return found


def office(folder: Path, suffix: str, parts: str) -> list[Reference]:
    """Return Office files with the text nodes of their parts."""
    from lxml import etree

    found = []
    for path in sorted(folder.rglob(f"*.{suffix}")):
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if re.fullmatch(parts, name)]
                trees = [etree.fromstring(archive.read(name)) for name in names]
        except (zipfile.BadZipFile, etree.XMLSyntaxError):
            continue
        paragraphs = [
            "".join(node.text or "" for node in paragraph.iter("{*}t"))
            for tree in trees
            for paragraph in tree.iter("{*}p")
        ]
        text = "\n".join(paragraphs)
        if text.strip():
            found.append((path, text))
    return found
