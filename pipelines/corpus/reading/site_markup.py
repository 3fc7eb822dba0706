"""Read the sources of a site as the site's readers see them, by what a file's suffix says it is written in.

Cleaning a text twice gives what cleaning it once gives, but for pages in AsciiDoc, in Org or of a wiki, which
become Markdown, and for subtitles. A text that is still not clean after some rounds stays as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pipelines.corpus.as_markdown import dokuwiki, mediawiki, subtitles
from pipelines.corpus.as_markdown.asciidoc import page as asciidoc
from pipelines.corpus.as_markdown.org import page as org
from pipelines.corpus.markup import fences
from pipelines.corpus.markup.front_matter import FrontMatter, front_matter
from pipelines.corpus.reading.site_sources.markdown import read_markdown, without_data
from pipelines.corpus.reading.site_sources.quarto import without_values
from pipelines.corpus.reading.site_sources.restructured import read_restructured

LONGEST = 4 * 2**20  # characters: a longer text is no page, and stays as it stands
ROUNDS = 4  # what is left out may join what stood around it to something that is left out too
_TRIGGER = re.compile(
    r"\A(?:---|\+\+\+)|<[A-Za-z/!%]|\{[{%#/:.*]|\{ ?[#.\w]|^(?:im|ex)port\b|:::|\[!|^\([\w.-]+\)="
    r"|\[[¶🔗⚓#§]?\]\(|\[source|:(?:material|octicons|fontawesome|simple)-|8<-|^[ \t]*///|\+\+[a-z]",
    re.M,
)
_MARKS = (  # faster than the pattern, which says for sure
    *("---", "+++", "<", "{", "port", ":::", "[!", ")=", "](", "[source", ":material-", ":octicons-"),
    *(":fontawesome-", ":simple-", "8<-", "///", "++"),
)
_RST_TRIGGER = re.compile(r"\A---|^[ \t]*(?:\.\.(?:\s|$)|\+-|=+ +=)|\|\w[^|\n]*\|", re.M)
_DIRECTIVE = re.compile(r"^\.\. [\w-]+::", re.M)  # no plain text has one
_HEADING = re.compile(
    r"^(?P<marks>#{1,6})[ \t]+(?P<said>[^\n]+)"
    r"|^(?=[^\n]*\S)(?P<underlined>[^\n]*+)\n(?P<line>=+|-+)[ \t]*$"
    r"|<h(?P<level>[1-6])\b",
    re.M,
)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_PROSE = re.compile(r"^(?!(?:im|ex)port\b)\w", re.M)  # not of pictures, tags or a module
_MARKDOWN = frozenset(("md", "markdown", "mdx", "qmd", "rmd"))
_BUILT = frozenset(("qmd", "rmd"))  # code in them is run


def read_markup(parts: Iterable[str], suffix: str) -> Iterator[str]:
    """Yield the text of a file of this suffix, cleaned as a whole unless it is very long."""
    held: list[str] = []
    size = 0
    given = without_data(parts) if suffix in _MARKDOWN else iter(parts)
    for part in given:
        held.append(part)
        size += len(part)
        if size > LONGEST:
            yield from held
            yield from given
            return
    yield cleaned("".join(held), suffix)


def cleaned(text: str, suffix: str) -> str:
    """Return a text without front matter, and without what else only a site's tools read."""
    if write := _AS_MARKDOWN.get(suffix):
        return write(text)
    if suffix == "txt" and dokuwiki.is_page(text):  # as a wiki keeps its pages
        return dokuwiki.as_markdown(text)
    text = "".join(without_data([text])) if suffix in _MARKDOWN else text
    now = text = without_values(text) if suffix in _BUILT else text
    for _ in range(ROUNDS):
        before, now = now, _cleaned_once(now, suffix)
        if now == before:
            return now
    return text


def _of_wiki(text: str) -> str:
    """Return a page of a wiki in Markdown; tags of HTML may stand in it."""
    return cleaned(mediawiki.as_markdown(text), "md")


def _of_org(text: str) -> str:
    found = front_matter(text)
    return _below(found, org.as_markdown(text[found.end :], titled=bool(found.title)), "md")


def _of_asciidoc(text: str) -> str:
    found = front_matter(text)
    return _below(found, asciidoc.as_markdown(text[found.end :]), "md")


_AS_MARKDOWN = {
    "adoc": _of_asciidoc,
    "asciidoc": _of_asciidoc,
    "mediawiki": _of_wiki,
    "srt": subtitles.as_text,
    "vtt": subtitles.as_text,
    "org": _of_org,
    "wiki": _of_wiki,
}


def _cleaned_once(text: str, suffix: str) -> str:
    if suffix in ("txt", "text"):
        return read_restructured(text) if _DIRECTIVE.search(text) else text
    if suffix not in _MARKDOWN and not _RST_TRIGGER.search(text):
        return text
    if suffix in _MARKDOWN and not (any(mark in text for mark in _MARKS) and _TRIGGER.search(text)):
        return text
    found = front_matter(text)
    text = _below(found, text[found.end :], suffix)
    if suffix in _MARKDOWN:
        return read_markdown(text, mdx=suffix == "mdx")
    return read_restructured(text) if suffix == "rst" else text


def _below(found: FrontMatter, body: str, suffix: str) -> str:
    """Return a page below its title and what it is about, where only the front matter says so."""
    if not found.end:
        return body
    body = body.lstrip("\n")
    said = []
    if found.title and not _is_titled(body, found.title):
        underlined = f"{found.title}\n{'=' * len(found.title)}"
        said.append(underlined if suffix == "rst" else f"# {found.title}")
    if found.description and _same(found.description) not in _same(body):
        said.append(found.description)
    return "\n\n".join([*said, body])


def _is_titled(body: str, title: str) -> bool:
    """Return whether a page's first heading says its title, or is one of the first level above all prose."""
    own = _COMMENT.sub("", fences.without(body))
    first = _HEADING.search(own)
    if not first:
        return False
    if _same(first["said"] or first["underlined"] or "") == _same(title):
        return True
    is_highest = first["marks"] == "#" or (first["line"] or "").startswith("=") or first["level"] == "1"
    return is_highest and not _PROSE.search(own, 0, first.start())


def _same(text: str) -> str:
    return " ".join(re.sub(r"[*_`]", "", text).split()).casefold()
