"""Read tokens of LaTeX one by one, their arguments, and hold what is written of them already."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipelines.corpus.as_markdown.latex import words
from pipelines.corpus.as_markdown.latex.formulas import in_line, shown
from pipelines.corpus.as_markdown.latex.macros import Macro
from pipelines.corpus.as_markdown.latex.references import without_marks, without_references
from pipelines.corpus.as_markdown.latex.tokens import pairs, tokens_of
from pipelines.corpus.as_markdown.parts import Held, code_in_line

DEEPEST = 40  # commands and environments within one another; of deeper ones only text is read
OVERLAY = re.compile(r"^<[\d+.,|a-z:-]{1,20}>")
_SPACES = re.compile(r"[ \t]{2,}")
_BREAKS = re.compile(r" ?\n[ \n]*")
_QUOTES = (("---", "—"), ("--", "–"), ("``", "“"), ("''", "”"), ("`", "'"))
_SHORTHAND = re.compile(r"\"([aouAOUs`'=|<>-])")
_LANGUAGE = r"\bn?(?:german|austrian|swissgerman)b?\b"
_IN_GERMAN = re.compile(
    rf"{_LANGUAGE}[^\n]{{0,200}}\{{babel\}}|\{{n?german\}}"
    rf"|\\documentclass[ \t]*\[[^\]]{{0,400}}?{_LANGUAGE}(?![^\]]{{0,400}}(?:english|american|british))"
)
_UMLAUT = re.compile(r"[a-z]\"[aou][a-z]")
_QUOTED = re.compile(r"\"`[^\"`\n]{1,200}\"'")
_OTHERS = ("der", "les", "que", "la", "di")


class Page:
    """The tokens of a text, and what is written of it."""

    def __init__(self, text: str, macros: Mapping[str, Macro] | None = None) -> None:
        text = without_marks(text)
        self.tokens = tokens_of(text, macros)
        self.ends, self.halved = pairs(self.tokens)
        self.text = text
        self.english = text.count(" the ") >= max(text.count(f" {word} ") for word in _OTHERS)
        quoted = _IN_GERMAN.search(text) or _QUOTED.search(text)
        self.german = bool(quoted) or len(_UMLAUT.findall(text)) > 2
        self._held = Held()
        self._depth = 0

    # What is written

    def hold(self, text: str) -> str:
        """Put a mark in place of what is written already."""
        return self._held.hold(text)

    def block(self, text: str) -> str:
        """Return a mark in a paragraph of its own."""
        return f"\n\n{self.hold(text)}\n\n" if text.strip() else "\n\n"

    def written(self, text: str) -> str:
        """Return a text as it reads, with what marks stand for."""
        return self._held.restored(self.tidy(text))

    def tidy(self, text: str) -> str:
        """Return a text without the spaces and references that no reader sees."""
        text = without_references(_BREAKS.sub(_break, _SPACES.sub(" ", text)), self.english)
        return _BREAKS.sub(_break, _SPACES.sub(" ", text)).strip()

    def on_a_line(self, text: str) -> str:
        return " ".join(self.written(text).split())

    # What is read

    def render(self, at: int, end: int) -> str:
        """Return what tokens print, with marks in it."""
        if self._depth >= DEEPEST:
            return "".join(token.said for token in self.tokens[at:end] if token.kind in ("text", "space"))
        self._depth += 1
        out: list[str] = []
        while at < end:
            at = self._step(at, end, out)
        self._depth -= 1
        return "".join(out)

    def _step(self, at: int, end: int, out: list[str]) -> int:
        """Print a token, or what begins with it; return where to go on."""
        kind, said, _ = self.tokens[at]
        if kind == "text":
            out.append(self._in_type(said))
        elif kind in ("space", "paragraph"):
            out.append(said)
        elif kind in ("~", "&"):
            out.append(" ")
        elif kind in ("[", "]"):
            out.append(kind)
        elif kind == "word":
            return self.command(at, end, out)
        elif kind == "{":
            return self._group(at, end, out)
        elif kind in ("$", "$$"):
            return self.formula(at, end, out)
        elif kind == "code":
            out.append(self.code(said))
        elif kind in ("begin", "verbatim"):
            return self.environment(at, end, out)
        return at + 1

    def command(self, at: int, end: int, out: list[str]) -> int:
        raise NotImplementedError

    def environment(self, at: int, end: int, out: list[str]) -> int:
        raise NotImplementedError

    def _in_type(self, text: str) -> str:
        """Return a text as it is set: dashes and quotation marks."""
        if self.german and '"' in text:
            text = _SHORTHAND.sub(lambda found: words.GERMAN[found[1]], text)
        if "-" in text or "`" in text or "'" in text:
            for typed, printed in _QUOTES:
                text = text.replace(typed, printed)
        return text

    def _group(self, at: int, end: int, out: list[str]) -> int:
        """Go into braces, in the style that they begin with."""
        last = self.ends.get(at, end)
        if last >= end:
            return at + 1
        style, begun = "", at + 1
        while begun < last and self.tokens[begun].kind in ("word", "space"):
            name = self.tokens[begun].said
            if name in words.DECLARED_STYLES:
                style = name
            elif self.tokens[begun].kind == "word" and words.NOTHING.get(name) != 0:
                break
            begun += 1
        if style in words.CODE:
            out.append(self.code(self.literal(begun, last)))
        elif style:
            out.append(self.styled(words.MARKS[style], self.render(begun, last), out, last + 1))
        return last + 1 if style else at + 1

    def styled(self, mark: str, said: str, out: list[str], following: int) -> str:
        """Return a text in emphasis, unless it is part of a word or of several paragraphs."""
        inner = said.strip()
        after = self.tokens[following] if following < len(self.tokens) else None
        goes_on = after is not None and after.kind == "text" and after.said[0].isalnum()
        glued = goes_on or (bool(out) and out[-1][-1:].isalnum())
        if not inner or glued or "\n" in inner or "*" in inner:
            return said
        begins = len(said) - len(said.lstrip())
        return f"{said[:begins]}{mark}{inner}{mark}{said[begins + len(inner) :]}"

    def formula(self, at: int, end: int, out: list[str]) -> int:
        """Print a formula; a mark without a second one prints nothing."""
        last = self.ends.get(at, end)
        if last >= end:
            return at + 1
        source = self.source(at + 1, last)
        is_shown = self.tokens[at].said == "[" or (self.tokens[at].said == "$$" and at not in self.halved)
        if is_shown:
            out.append(self.block(shown(source)))
        elif source.strip():
            out.append(self.hold(in_line(source)))
        return last if self.tokens[last].said == "$$" and not is_shown else last + 1

    def source(self, at: int, end: int) -> str:
        """Return tokens as they were typed; no command grows together with what a macro gave."""
        parts: list[str] = []
        after_word = False
        for kind, _, source in self.tokens[at:end]:
            if after_word and source[:1].isalpha() and parts[-1][-1:].isalpha():
                parts.append(" ")
            parts.append(source)
            after_word = kind == "word"
        return "".join(parts)

    def code(self, text: str) -> str:
        """Return a text as code in a line."""
        text = " ".join(text.split())
        if not text:
            return ""
        return self.hold(code_in_line(text))

    def literal(self, at: int, end: int) -> str:
        """Return tokens as characters, for code: without dashes and quotation marks."""
        said = []
        while at < end:
            kind, text, _ = self.tokens[at]
            at += 1
            if kind in ("text", "code", "[", "]", "&", "$", "$$"):
                said.append(text)
            elif kind in ("space", "paragraph", "~"):
                said.append(" ")
            elif kind == "word":
                said.append(words.SIGNS.get(text, ""))
                at = self.past_arguments(words.arguments_before_text(text), at, end)
        return "".join(said)

    # Arguments

    def argument(self, at: int, end: int) -> tuple[str, int]:
        """Return what the next argument prints, and where it ends; options before it are passed over."""
        first, last, at = self.span(at, end)
        return self.render(first, last), at

    def span(self, at: int, end: int) -> tuple[int, int, int]:
        """Return where the next argument begins and ends, and where to go on; nothing where there is none."""
        begun = at
        while at < end:
            kind, said, _ = self.tokens[at]
            last = self.ends.get(at, end)
            if kind == "{" and last < end:
                return at + 1, last, last + 1
            if kind == "[" and last < end:
                at = last + 1
            elif kind == "space" or (kind == "text" and (said.isspace() or OVERLAY.fullmatch(said))):
                at += 1
            else:
                break
        return begun, begun, begun

    def options(self, at: int, end: int) -> int:
        """Return where the options end that stand here."""
        while at < end and self.tokens[at].kind == "[" and self.ends.get(at, end) < end:
            at = self.ends[at] + 1
        return at

    def past_arguments(self, count: int, at: int, end: int) -> int:
        for _ in range(count):
            at = self.span(at, end)[2]
        return at


def _break(found: re.Match[str]) -> str:
    return "\n\n" if found[0].count("\n") > 1 else "\n"
