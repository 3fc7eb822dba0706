"""Map file suffixes to formats, and hold the limits on one file."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class Format:
    """A kind of file and how it is read."""

    name: str
    suffixes: tuple[str, ...]
    limited: bool = True  # parsed by a process with limits; plain text is only decoded, in this process
    streamed: bool = False  # may be as large as largest_text_mib: never held as a whole
    packable: bool = False  # also read with .gz behind the suffix


_MARKDOWN = (".md", ".markdown", ".mdx", ".qmd", ".rmd")
_OTHER_MARKUP = (".rst", ".adoc", ".asciidoc", ".org", ".mediawiki", ".wiki")
_SUBTITLES = (".srt", ".vtt")
FORMATS = (
    Format(
        "text",
        (".txt", ".text", *_MARKDOWN, *_OTHER_MARKUP, *_SUBTITLES),
        limited=False,
        streamed=True,
        packable=True,
    ),
    Format("jsonl", (".jsonl", ".ndjson"), streamed=True, packable=True),
    Format("csv", (".csv", ".tsv"), streamed=True, packable=True),
    Format("html", (".html", ".htm", ".xhtml"), packable=True),
    Format("man", tuple(f".{n}" for n in (*range(1, 10), "1p", "3p", "3pm")), packable=True),
    Format("latex", (".tex", ".ltx", ".latex"), packable=True),
    Format("ipynb", (".ipynb",)),
    Format("pdf", (".pdf",)),
    Format("docx", (".docx",)),
    Format("pptx", (".pptx",)),
    Format("odt", (".odt", ".odp")),
    Format("epub", (".epub",)),
)
BY_SUFFIX = {suffix: format for format in FORMATS for suffix in format.suffixes}
# Behind the suffix of what a template gives, as in page.html.md.erb, or of a part of pages (usage.rst.inc).
TEMPLATES = frozenset(("ejs", "erb", "eex", "gotmpl", "hbs", "heex", "in", "inc", "j2", "jinja", "jinja2"))
TEMPLATES |= {"liquid", "mustache", "njk", "tmpl", "tpl", "twig"}
STYLES = (".sty", ".cls")  # hold macros for LaTeX files, and no text
TEMPLATED = ("text", "html", "man")
# What files of other kinds may be saved as, to be read; .key and .dot also name private keys and graphs.
OTHERWISE = {
    "xlsx xlsm xlsb xls ods numbers": "csv",
    "doc docm dotx rtf pages": "docx",
    "ppt pptm pps ppsx": "pptx",
    "mobi azw3 fb2": "epub",
    "chm mht mhtml docbook dbk dita texi texinfo textile pod": "html",
    "xml": "html or txt",
    "eml msg mbox yaml yml": "txt",
    "mdown mkd mkdn": "md",
    "rest": "rst",
    "ass ssa ttml": "srt",
    "parquet arrow json": "jsonl",
    "ps djvu xps": "pdf",
}
SAVED_AS = {suffix: kind for suffixes, kind in OTHERWISE.items() for suffix in suffixes.split()}
KINDS = "txt, md, tex, html, ipynb, pdf, docx, pptx, odt, epub, jsonl or csv"


@dataclass(frozen=True)
class Limits:
    """Limits on one file, and what of a folder is left out; both are reasons for skipping a file."""

    largest_text_mib: int = 4096  # of text, jsonl and csv, unpacked: they are streamed
    largest_file_mib: int = 256  # of formats that are not streamed, on the disk, and of the text they give
    seconds_per_file: int = 60  # of processor time in a parsing process, for every 64 MiB of text
    memory_mib: int = 1024  # of such a process
    workers: int = 0  # number of such processes; 0: one a core, at most 4
    keep_near_duplicates: bool = True  # near-duplicates are reported in either case
    leave_out: tuple[str, ...] = ()  # patterns of paths that are not read

    def largest_mib(self, format: Format) -> int:
        """Return the size limit of a format's files."""
        return self.largest_text_mib if format.streamed else self.largest_file_mib


class Unreadable(Exception):
    """A file that is skipped; the message is the reason in its manifest row."""


def format_of(name: str) -> tuple[Format | None, bool]:
    """Return the format that a file's name says, and whether it is packed with gzip."""
    suffix, around = suffixes(name)
    packed, template = around == "gz", around in TEMPLATES
    found = BY_SUFFIX.get(f".{suffix}")
    if found and ((packed and not found.packable) or (template and found.name not in TEMPLATED)):
        found = None
    return found, packed


def is_opened(name: str) -> bool:
    """Return whether a file of this name is opened: as a document, or for what it defines for documents."""
    return format_of(name)[0] is not None or name.lower().endswith(STYLES)


def suffixes(name: str) -> tuple[str, str]:
    """Return what a file's name ends with, and the suffix of a packer or a template language behind it."""
    parts = name.lower().rsplit(".", 2)
    around = parts[2] if len(parts) == 3 and parts[2] in {"gz", *TEMPLATES} else ""
    return (parts[1] if around else parts[-1] if len(parts) > 1 else ""), around


def unknown(name: str) -> str:
    """Return the reason for skipping a file of unknown format."""
    stem, dot, suffix = name.rpartition(".")
    if not stem or not dot:
        return "kind without suffix is not read"
    if suffix.lower() in {"gz", *TEMPLATES} and "." in stem:
        suffix = f"{stem.rpartition('.')[2]}.{suffix}"
    advice = f": save it as {SAVED_AS[suffix.lower()]}" if suffix.lower() in SAVED_AS else ""
    return f"kind .{suffix[:40]} is not read{advice}"
