"""Compare what is read of AsciiDoc and Org with what the languages' own programs print.

    python -m benchmarks.speed.markup_fidelity FOLDER [--most N] [--write-docs]

FOLDER holds anything; N files of each language in it, drawn by their hash, are read. The references are the
words of the pages that Asciidoctor and Pandoc make (`apt install asciidoctor pandoc`), without what other
files hold. Recall is the share of the reference's words that are read, precision the share of read words that
are in the reference, both as means over the files. `as it stands` is the file itself. Times are of one run in
one process.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.common import Row
from benchmarks.ledger import markdown, put
from benchmarks.speed.fidelity.references import Reference
from benchmarks.speed.reading_fidelity import PAGE, compare
from pipelines.corpus.reading.site_markup import cleaned

_LANGUAGES = {
    "adoc": ("asciidoctor", "-S", "secure", "-a", "showtitle", "-s", "-o", "-"),
    "org": ("pandoc", "--sandbox", "--from", "org", "--to", "html", "--wrap", "none"),
}
_INCLUDED = re.compile(r"<a [^>]*class=\"bare include[^>]*>[^<]*</a>")  # in place of another file
_BLOCK = re.compile(r"</?(?:div|p|li|td|th|tr|h\d|dt|dd|pre|br|table|section|blockquote)\b[^>]*>")
_TAG = re.compile(r"<[^>]+>")


def references(folder: Path, suffix: str, most: int) -> list[Reference]:
    """Return files of a language, each with the text of the page that the language's program makes of it."""
    files = sorted(
        folder.rglob(f"*.{suffix}"),
        key=lambda path: hashlib.sha256(str(path.relative_to(folder)).encode()).hexdigest(),
    )
    found = []
    for path in files[:most]:
        made = subprocess.run([*_LANGUAGES[suffix], str(path)], capture_output=True, check=False)
        text = _shown(made.stdout.decode("utf-8", "replace"))
        if text.strip():
            found.append((path, text))
    return found


def _shown(page: str) -> str:
    return html.unescape(_TAG.sub("", _BLOCK.sub(" ", _INCLUDED.sub("", page))))


def ours(path: Path, suffix: str) -> str:
    return cleaned(as_it_stands(path), suffix)


def as_it_stands(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def measure(folder: Path, most: int) -> list[Row]:
    rows = []
    for suffix in _LANGUAGES:
        files = references(folder, suffix, most)
        rows += [
            compare(suffix, "as it stands", as_it_stands, files),
            compare(suffix, "as Markdown", partial(ours, suffix=suffix), files),
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description="What is read of AsciiDoc and Org, beside what is printed of them."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=100, help="files of each language")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/documents.md")
    options = parser.parse_args()
    names = ("what", "reader", "files", "not read", "recall", "precision", "s")
    found = markdown(
        [{name: row.get(name, "") for name in names} for row in measure(options.folder, options.most)]
    )
    print(found)
    sys.stdout.flush()
    if options.write_docs:
        put(PAGE, "markup fidelity", found)


if __name__ == "__main__":
    main()
