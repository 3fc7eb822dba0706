"""Print LaTeX's commands: headings, styles, accents, footnotes, quantities, and marks for references."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipelines.corpus.as_markdown.latex import words
from pipelines.corpus.as_markdown.latex.formulas import in_line
from pipelines.corpus.as_markdown.latex.macros import Macro
from pipelines.corpus.as_markdown.latex.page import OVERLAY, Page
from pipelines.corpus.as_markdown.latex.references import CITATION, GAP, REFERENCE
from pipelines.corpus.as_markdown.latex.tokens import DEFINING, Token
from pipelines.corpus.markup.parts import names
from pipelines.corpus.markup.raised import raised

_LENGTH = re.compile(r"\[\s*-?[\d.]*\s*\\?[a-z]*\s*\]")
_KEY = re.compile(
    r"-?[\d.]+(?:pt|em|ex|cm|mm|in)?|\S*(?:[_:/=]|[a-z][A-Z]|\.\w|[A-Za-z]\d|\d[A-Za-z])\S*|\W*"
)
_UNIT_OF_LENGTH = r"(?:true ?)?(?:pt|em|ex|cm|mm|in|bp|pc|sp|mu|fil{1,3})"
_DIMENSION = rf"[+-]? ?(?:\d[\d.,]*|\.\d+)?(?:{_UNIT_OF_LENGTH}| {_UNIT_OF_LENGTH}\b)?"
_BEFORE_UNIT = re.compile(r"\[[\d.,]+\]")  # \unit[5]{km}
_FACTOR = re.compile(r" ?=? ?[+-]? ?[\d.]+")
_NUMBER = re.compile(rf" ?=? ?{_DIMENSION}(?: ?plus ?{_DIMENSION})?(?: ?minus ?{_DIMENSION})?")
_HSPACE = re.compile(r"\\hspace\*?\{[^{}]*\}")
_INDEXED = re.compile(r"\w!\w")  # a place in an index
_REFERRING = re.compile(r"[A-Za-z]{0,6}[Rr]efs?(?:range)?")
_CITING = re.compile(r"[A-Za-z]*[cC]ite[A-Za-z]*")
_AS_WORD = re.compile(
    r"[cC]ite(?:t|alt|author|name|A)s?|[tT]extcites?|shortcite[AN]?|onlinecite|newcite|citeasnoun"
)
_ASIDE = ("foot", "paren", "super", "auto", "citep", "nocite", "full")
_NAMING = names("cref Cref autoref Autoref vref Vref")
_LABEL = re.compile(r"([A-Za-z]{1,8})[:_.-]")
_UNSEEN = re.compile(
    r"[A-Za-z]*(?:label|[iI]ndex|idx|skip|graphics?|anchor|target|linkdest|bookmark)[A-Za-z]*|(?:before|after)verb"
)
_BETWEEN = ("space", "paragraph", "begin", "end", "verbatim")  # lines
_ESCAPED = re.compile(r"\\(.)")
_UNIT = re.compile(r"\\([A-Za-z]+)[ ]?|\\[,.]|([^\\{}]+)")


class Commands(Page):
    """A page on which commands are printed; environments are printed by its heirs."""

    def __init__(self, text: str, macros: Mapping[str, Macro] | None = None) -> None:
        super().__init__(text, macros)
        self._notes: list[str] = []
        self._noted = 0

    def footnotes(self) -> str:
        """Return the footnotes since the last heading."""
        notes, self._notes = self._notes, []
        return "".join(map(self.block, notes))

    def heading(self, level: int, at: int, end: int) -> tuple[str, int]:
        """Return the next argument as a heading, and where it ends."""
        said, at = self.argument(at, end)
        title = self.on_a_line(said)
        return (self.block(f"{'#' * level} {title}") if title else "\n\n"), at

    def command(self, at: int, end: int, out: list[str]) -> int:
        token = self.tokens[at]
        name = token.said.rstrip("*") or token.said
        at += 1
        if name in words.ACCENTS:
            return self._accent(name, at, end, out)
        if name in words.SIGNS:
            out.append(words.SIGNS[name])
            ends_word = words.SIGNS[name][-1:].isalnum() or words.SIGNS[name][-1:] in words.SPACED
            if name.isalpha() and name not in words.LETTERS and ends_word and token.source[-1].isspace():
                out.append(" ")
            return at
        if name in ("(", "["):
            return self.formula(at - 1, end, out)
        if name in ("\\", "newline", "tabularnewline", "linebreak"):
            out.append("\n")
            option = self.options(at, end)
            return option if option > at and _LENGTH.fullmatch(self.source(at, option)) else at
        if name in DEFINING:
            return self._definition(name, at, end)
        if name in words.LENGTHS:
            return self._length(name, at, end, out)
        return self._of_arguments(token, name, at, end, out)

    def _accent(self, name: str, at: int, end: int, out: list[str]) -> int:
        """Print the next letter with an accent."""
        if at >= end:
            return at
        kind, said, _ = self.tokens[at]
        if kind == "{":
            first, last, after = self.span(at, end)
            out.append(words.accented(name, self.render(first, last).strip()))
            return max(after, at + 1)
        if kind == "word" and said in words.LETTERS:
            out.append(words.accented(name, words.LETTERS[said]))
            return at + 1
        if kind == "text":
            out.append(words.accented(name, said[:1]))
            self.tokens[at] = Token("text", said[1:] or "\u200b", said[1:])
            if not said[1:]:
                return at + 1
        return at

    def _definition(self, name: str, at: int, end: int) -> int:
        """Pass over a definition."""
        if name in ("def", "gdef", "edef", "xdef"):
            while at < end and self.tokens[at].kind != "{":
                if self.tokens[at].kind == "paragraph":
                    return at
                at += 1
            return self.past_arguments(1, at, end)
        if name == "let":
            while at < end and self.tokens[at].kind == "text" and self.tokens[at].said in ("=", " "):
                at += 1
            return min(at + 2, end)
        if at < end and self.tokens[at].kind == "word":  # \newcommand\name{…}
            return self.past_arguments(words.NOTHING.get(name, 1) - 1, at + 1, end)
        return self.options(self.past_arguments(words.NOTHING.get(name, 1), at, end), end)

    def _of_arguments(self, token: Token, name: str, at: int, end: int, out: list[str]) -> int:
        first, last, after = self.span(at, end)
        if name in words.HEADINGS:
            out.append(self.footnotes())
            said, after = self.heading(words.HEADINGS[name], at, end)
            out.append(said)
        elif name in words.RUN_IN:
            title = self.on_a_line(self.render(first, last)).rstrip(".")
            out.append(f"\n\n{self.hold(f'**{title}.**')} " if title else "\n\n")
        elif name in words.FOOTNOTES:
            self._footnote(name, first, last, out)
        elif name in words.CAPTIONS:
            if name == "captionof":
                first, last, after = self.span(after, end)
            out.append(self.block(self.written(self.render(first, last))))
        elif name in words.MARKS:
            out.append(self.styled(words.MARKS[name], self.render(first, last), out, after))
        elif name in words.PLAIN_ADDRESS:
            out.append(self.hold(_ESCAPED.sub(r"\1", self.source(first, last)).strip()))
        elif name in words.CODE:
            out.append(self.code(self.literal(first, last)))
        else:
            return self._printed(token, name, at, end, out)
        return after

    def _footnote(self, name: str, first: int, last: int, out: list[str]) -> None:
        said = self.written(self.render(first, last))
        if not said:
            return
        self._noted += 1
        self._notes.append(f"[^{self._noted}]: {said}")
        out.append(GAP + self.hold(f"[^{self._noted}]") if name != "footnotetext" else GAP)

    def _printed(self, token: Token, name: str, at: int, end: int, out: list[str]) -> int:
        """Print one of several arguments, a mark for what refers to something, or nothing."""
        if name in words.OVERLAID and at < end and self.tokens[at].kind == "text":
            said = OVERLAY.sub("", self.tokens[at].said, count=1)
            self.tokens[at] = Token("text", said, said)
        if name in words.PRINTED:
            count, chosen = words.PRINTED[name]
            spans = []
            for _ in range(count):
                spans.append(self.span(at, end))
                at = spans[-1][2]
            if chosen >= 0:
                out.append(self.render(*spans[chosen][:2]))
            return at
        if name in ("textsuperscript", "up", "textsubscript"):
            said, at = self.argument(at, end)
            out.append(raised(said, lowered=name == "textsubscript"))
            return at
        if name in ("ding", "ensuremath"):
            first, last, at = self.span(at, end)
            source = self.source(first, last)
            out.append(words.DINGBATS.get(source, "") if name == "ding" else self.hold(in_line(source)))
            return at
        if name in words.QUANTITIES:
            return self._quantity(name, at, end, out)
        if name in words.NOTHING:
            after = self.past_arguments(words.NOTHING[name], at, end)
            blank = " " if token.source[-1].isspace() and after == at else ""
            out.append("\n\n" if name in words.BREAKS else GAP + blank)
            option = self.options(after, end)
            return option if after > at or _LENGTH.fullmatch(self.source(after, option)) else after
        return self._reference(token, name, at, end, out)

    def _quantity(self, name: str, at: int, end: int, out: list[str]) -> int:
        """Print a number and its unit."""
        count, has_unit = words.QUANTITIES[name]
        numbers = []
        option = self.source(at, self.options(at, end)) if name == "unit" else ""
        if _BEFORE_UNIT.fullmatch(option):
            numbers.append(option[1:-1])
        for _ in range(count):
            first, last, at = self.span(at, end)
            numbers.append(self.source(first, last).replace(";", ", "))
        said = "–".join(numbers) + ("°" if name == "ang" else "")
        if has_unit:
            first, last, at = self.span(at, end)
            said = f"{said} {self._unit(first, last)}".strip().replace(" °", "°")
        out.append(said)
        return at

    def _length(self, name: str, at: int, end: int, out: list[str]) -> int:
        """Pass over the number that a length is set to."""
        out.append("\n\n" if name in words.BREAKS else GAP)
        first, last, after = self.span(at, end)
        if after > at and _NUMBER.fullmatch(self.source(first, last).strip()):  # \setlength\parskip{2pt}
            return after
        of_another = name in words.SKIPS
        if at < end and self.tokens[at].kind == "text":
            said = self.tokens[at].said
            number = _NUMBER.match(said)
            rest = said[number.end() :] if number else said
            self.tokens[at] = Token("text", rest or "\u200b", rest)
            if rest:
                return at
            of_another = bool(_FACTOR.fullmatch(said))  # 0.5\baselineskip
            at += 1
        return at + 1 if of_another and at < end and self.tokens[at].said in words.LENGTHS else at

    def _reference(self, token: Token, name: str, at: int, end: int, out: list[str]) -> int:
        """Print a mark for what refers to something."""
        if _REFERRING.fullmatch(name):
            is_named = name in _NAMING and self.english
            label = _LABEL.match(self.source(*self.span(at, end)[:2])) if is_named else None
            noun = words.LABELS.get(label[1].lower(), "") if label else ""
            out.append(f"{noun} {REFERENCE}" if noun else REFERENCE)
            return self.past_arguments(2 if "range" in name else 1, at, end)
        if _CITING.fullmatch(name):
            cited = REFERENCE if _AS_WORD.fullmatch(name) else CITATION
            out.append(GAP if name.startswith(_ASIDE) else cited)
            return self.past_arguments(1, at, end)
        if not _UNSEEN.fullmatch(name):
            return self._unknown(token, name, at, end, out)
        out.append(GAP)
        at = self.options(at, end)
        while at < end and self.tokens[at].kind == "{" and self.ends.get(at, end) < end:
            at = self.ends[at] + 1
        return at

    def _unit(self, first: int, last: int) -> str:
        return "".join(
            words.unit(found[1]) if found[1] else (found[2] or "·")
            for found in _UNIT.finditer(self.source(first, last))
        ).strip("·")

    def _unknown(self, token: Token, name: str, at: int, end: int, out: list[str]) -> int:
        """Print the arguments of an unknown command, those that read as keys only within a sentence; its name
        where it has none and stands for a word."""
        spans, after = self._spans(token, at, end)
        begins = self._begins_line(at - 1)
        if not spans or (len(spans) == 1 and spans[0][0] == spans[0][1]):
            stands_for_word = not begins or self._goes_on(token, after, end)
            is_word = len(name) > 1 and name.isalpha() and stands_for_word
            shows_name = is_word and (spans or token.source[-1] != "\n")
            out.append(self._name(token, name, after, end, in_braces=bool(spans)) if shows_name else GAP)
            return after
        shown = [span for span in spans if not self._is_key(*span)]
        alone = begins and (after >= end or self.tokens[after].kind in _BETWEEN)
        if not shown and not alone and len(spans) == 1:
            shown = spans
        out.append(" ".join(self.render(*span) for span in shown) or GAP)
        return after

    def _spans(self, token: Token, at: int, end: int) -> tuple[list[tuple[int, int]], int]:
        """Return the arguments of an unknown command, and where to go on."""
        spans = []
        after = self.options(at, end)
        is_argument = after < end and self.tokens[after].kind == "{"
        if token.source[-1].isspace() and not (after > at and is_argument):
            after = at
        while after < end and self.tokens[after].kind == "{" and self.ends.get(after, end) < end:
            spans.append((after + 1, self.ends[after]))
            after = self.options(self.ends[after] + 1, end)
        return spans, after

    def _name(self, token: Token, name: str, after: int, end: int, *, in_braces: bool) -> str:
        """Return a command's name as it was typed, ended by its braces where a letter follows."""
        following = self.tokens[after].said[:1] if after < end else ""
        ended = "{}" if in_braces and following.isalnum() else ""
        return self.hold(f"\\{name}{ended}") + (" " if token.source[-1].isspace() else "")

    def _goes_on(self, token: Token, at: int, end: int) -> bool:
        """Return whether a sentence goes on behind a command."""
        following = self.tokens[at].said[:1] if at < end and self.tokens[at].kind == "text" else ""
        is_on_line = following == " " and token.source[-1] != "\n"
        return is_on_line or following.islower() or following in tuple(",.'’")

    def _begins_line(self, at: int) -> bool:
        return at < 1 or self.tokens[at - 1].kind in _BETWEEN

    def _is_key(self, first: int, last: int) -> bool:
        source = _HSPACE.sub("", self.source(first, last)).strip()
        is_command = source.startswith("\\") and " " not in source and "{" not in source
        return is_command or bool(_KEY.fullmatch(source) or _INDEXED.search(source))
