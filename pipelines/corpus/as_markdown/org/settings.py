"""Read what the keywords of a page set: its title, states of tasks, macros; and what headings say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from pipelines.corpus.as_markdown.org.spans import HEADING, Span

KEYWORD = re.compile(r"[ \t]*#\+([^\s:\[\]]+)(?:\[[^\[\]]*\])?:(.*)")
_STATES = frozenset(("todo", "seq_todo", "typ_todo"))
_SHOWN = ("title", "subtitle", "author", "date", "email", "description")  # as macros too
_FIRST_WORD = re.compile(r"(\S+)(?:[ \t]+|$)")
_PRIORITY = re.compile(r"\[#\w{1,2}\][ \t]*")
_PROGRESS = re.compile(r"(?<![ \t])[ \t]*\[(?:\d*/\d*|\d*%)\]")
_TAGS = re.compile(r":[\w@#%:]+:")
_IDENTITY = re.compile(r"[ \t]*:(CUSTOM_ID|ID):[ \t]+(\S+)[ \t]*$", re.I)


@dataclass(frozen=True, slots=True)
class Heading:
    level: int
    title: str
    left_out: bool  # with all below it


@dataclass(frozen=True)
class Settings:
    """What holds for a whole page."""

    said: Mapping[str, str]  # by keyword
    states: frozenset[str]
    unseen_tags: frozenset[str]
    macros: Mapping[str, str]
    links: Mapping[str, str]  # what stands for an abbreviation
    blocks: frozenset[str] = frozenset()  # the names of those that a line may call
    titles: Mapping[str, str] = field(default_factory=dict)  # of headings, by what links say


def settings_of(lines: list[str], spans: Mapping[int, Span]) -> Settings:
    """Return what a page sets."""
    said: dict[str, str] = {}
    states, tags = {"TODO", "DONE"}, {"noexport"}
    macros: dict[str, str] = {}
    links: dict[str, str] = {}
    blocks: set[str] = set()
    for name, value in _keywords(lines, spans):
        if name in _SHOWN:
            said[name] = f"{said.get(name, '')} {value}".strip()
        elif name in _STATES:
            states |= {word.partition("(")[0] for word in value.split() if word != "|"}
        elif name == "name":
            blocks.add(value)
        elif name == "exclude_tags":
            tags |= set(value.split())
        elif name in ("macro", "link") and (first := _FIRST_WORD.match(value)):
            known, called = (macros, first[1].lower()) if name == "macro" else (links, first[1])
            known[called] = value[first.end() :]
    found = Settings(said, frozenset(states), frozenset(tags), said | macros, links, frozenset(blocks))
    return replace(found, titles=dict(_titles(lines, spans, found)))


def heading(line: str, settings: Settings) -> Heading:
    """Return what a heading says, without its state, priority, progress and tags."""
    level = len(line) - len(line.lstrip("*"))
    said = line[level:].strip()
    last = said.rsplit(None, 1)[-1] if said else ""
    tags = set(last.split(":")) if _TAGS.fullmatch(last) else set()
    if tags:
        said = said[: -len(last)].rstrip()
    if (state := _FIRST_WORD.match(said)) and state[1] in settings.states:
        said = said[state.end() :]
    said = _PRIORITY.sub("", said, count=1) if said.startswith("[#") else said
    first = _FIRST_WORD.match(said)
    is_comment = bool(first and first[1] == "COMMENT")
    return Heading(level, _PROGRESS.sub("", said).strip(), is_comment or bool(tags & settings.unseen_tags))


def _keywords(lines: list[str], spans: Mapping[int, Span]) -> Iterator[tuple[str, str]]:
    for _, line in _outside(lines, spans):
        if "#+" in line and (found := KEYWORD.match(line)):
            yield found[1].lower(), found[2].strip()


def _titles(lines: list[str], spans: Mapping[int, Span], settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield what links call headings, and what these say."""
    title = settings.said.get("title", "")
    for number, line in _outside(lines, spans):
        if HEADING.match(line):
            title = heading(line, settings).title
        elif (span := spans.get(number)) and span.kind == "properties":
            for inner in lines[number + 1 : span.end]:
                if title and (found := _IDENTITY.match(inner)):
                    yield ("#" if found[1].lower() == "custom_id" else "id:") + found[2], title


def _outside(lines: list[str], spans: Mapping[int, Span]) -> Iterator[tuple[int, str]]:
    """Yield the lines that are no code and the like, and the first line of what is."""
    at = 0
    while at < len(lines):
        yield at, lines[at]
        span = spans.get(at)
        at = span.end + 1 if span and span.whole else at + 1
