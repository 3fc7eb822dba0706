"""Cut LaTeX into tokens, and say which brace, formula and environment ends where.

Comments and what stands between \\iffalse and \\fi are left out. Everything takes linear time: a second token
that is never closed is not searched for again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pipelines.corpus.as_markdown.latex import glossary
from pipelines.corpus.as_markdown.latex.braces import Braces
from pipelines.corpus.as_markdown.latex.macros import Macro, arguments_at, macros_of, names_defined
from pipelines.corpus.markup.parts import names
from recovery.unspaced_scripts import between_lines

_VERBATIM = (
    r"[BL]?[Vv]erbatim|verbatimtab|alltt|lstlisting|minted|listing|code|comment|filecontents"
    r"|pycode|pyconsole|tcblisting|spverbatim|asy|sagesilent|luacode|CCSXML|rawhtml|htmlonly"
)
_TOKEN = re.compile(
    rf"""
      \\begin[ \t]*\{{(?P<verbatim>(?:{_VERBATIM})\*?)\}}
    | \\(?:verb\*?|(?:lst|mint)inline(?:\[[^\]\n]{{0,200}}\])?(?:\{{[\w+-]{{1,40}}\}})?)
      (?P<mark>[^\sA-Za-z*{{\[])(?P<code>[^\n]{{0,400}}?)(?P=mark)
    | \\(?P<edge>begin|end)[ \t]*\{{(?P<environment>[^{{}}\n\\]{{1,60}})\}}
    | \\(?P<word>[A-Za-z]+(?:@[A-Za-z@]+)*\*?|@[A-Za-z@]+)[ \t]*+(?:\n[ \t]*+(?!\n))?
    | \\(?P<sign>[\s\S]|\Z)
    | (?P<comment>%[^\n]*+(?:\n[ \t]*+(?!\n))?)
    | (?P<space>[ \t]*+\n[ \t\n]*+)
    | (?P<dollars>\$\$?)
    | (?P<one>[{{}}\[\]&~])
    | (?P<text>[^\\{{}}$%&~\n\[\]]+)
    """,
    re.X,
)
DEFINING = names(
    "newcommand renewcommand providecommand DeclareRobustCommand DeclareMathOperator DeclarePairedDelimiter"
    " def gdef edef xdef let newif newenvironment renewenvironment newtheorem newlength newcounter"
)
_NO_CONDITION = names("iff ifthenelse ifoot ifblank ifstrequal ifstrempty ifnumcomp ifbool iftoggle")
_BLOWN_UP = 2  # times the text that macros may put in, and as much as this at least:
_ROOM = 100_000  # characters
_DEEPEST = 6  # macros within one another


class Token(NamedTuple):
    """A kind (a key of `pairs`), what it says, and what stands in the source."""

    kind: str  # text word verbatim code begin end space paragraph, or one of {}[]&~ $ $$
    said: str
    source: str


_SINGLE = {mark: Token(mark, mark, mark) for mark in ("{", "}", "[", "]", "&", "~", "$", "$$")}


def tokens_of(text: str, others: Mapping[str, Macro] | None = None) -> list[Token]:
    """Return the tokens, with what the text's own macros and those of `others` stand for."""
    own = macros_of(text)
    named = names_defined(text) if others else set()
    by_name = {name: macro for name, macro in (others or {}).items() if name not in named} | own
    return _without_other_branches(_Scan(text, _Macros(by_name, _BLOWN_UP * len(text) + _ROOM)).tokens)


class _Macros:
    """Macros, and what has been put in place of them."""

    def __init__(self, by_name: Mapping[str, Macro], room: int) -> None:
        self._by_name = by_name
        self._room = room  # characters and tokens that may still be put in
        self._tokens: dict[str, list[Token]] = {}  # of macros without arguments
        self._abbreviated: set[str] = set()  # keys of abbreviations that were named already

    def called(self, name: str, braces: Braces, at: int, depth: int) -> tuple[list[Token], int] | None:
        """Return what a macro whose name ends at a place stands for, and where its arguments end."""
        if self._room <= 0 or depth >= _DEEPEST:
            return None
        macro = self._by_name.get(name)
        if macro is None:
            return self._abbreviation(name, braces.text, at, depth) if name in glossary.COMMANDS else None
        call = arguments_at(braces.text, at, macro, braces)
        if call is None:
            return None
        arguments, end = call
        if macro.length(arguments) > self._room:
            return None
        if macro.arguments:
            return self._scanned(macro.filled(arguments), depth), end
        if name in self._tokens:
            self._room -= sum(1 + len(token.source) for token in self._tokens[name])
            return self._tokens[name], end
        known = len(self._abbreviated)
        tokens = self._scanned(macro.body, depth)
        if len(self._abbreviated) == known:  # else it prints something shorter the next time
            self._tokens[name] = tokens
        return tokens, end

    def begin_document(self) -> None:
        """Forget what definitions have named already."""
        self._abbreviated.clear()

    def _abbreviation(self, command: str, text: str, at: int, depth: int) -> tuple[list[Token], int] | None:
        """Return what a command prints of the abbreviation that it names, and where its argument ends."""
        key, inserted, end = glossary.argument_at(text, at) or ("", "", at)
        found = {form: self._by_name.get(glossary.name_of(key, form)) for form in glossary.FORMS}
        said = {form: macro.body for form, macro in found.items() if macro is not None}
        if "short" not in said:
            return None
        shown = glossary.printed(command, said, is_first=key not in self._abbreviated)
        if command in glossary.NAMING:
            self._abbreviated.add(key)
        return self._scanned(shown + inserted, depth), end

    def _scanned(self, text: str, depth: int) -> list[Token]:
        self._room -= 1 + len(text)
        return _Scan(text, self, depth + 1).tokens


class _Scan:
    """A text from its beginning to its end, as tokens."""

    def __init__(self, text: str, macros: _Macros, depth: int = 0) -> None:
        self.tokens: list[Token] = []
        self._text = text
        self._braces = Braces(text)
        self._macros = macros
        self._depth = depth
        self._unclosed: set[str] = set()  # names of verbatim environments that nothing ends
        at = 0
        while match := _TOKEN.match(text, at):
            at = self._add(match)

    def _add(self, match: re.Match[str]) -> int:
        """Add what matches; return where to go on."""
        if match["verbatim"]:
            return self._verbatim(match["verbatim"], match.end())
        if match["word"]:
            return self._word(match)
        if match["edge"] == "begin" and match["environment"] == "document":
            self._macros.begin_document()
        if match["space"]:
            self._space(match[0], match.end())
        elif match["comment"] is None:
            self.tokens.append(_token(match))
        return match.end()

    def _verbatim(self, name: str, at: int) -> int:
        ending = f"\\end{{{name}}}"
        end = -1 if name in self._unclosed else self._text.find(ending, at)
        if end < 0:
            self._unclosed.add(name)
            return at
        self.tokens.append(Token("verbatim", name, self._text[at:end]))
        return end + len(ending)

    def _word(self, match: re.Match[str]) -> int:
        """Add a command, or what it stands for; return where to go on."""
        name, source = match["word"], match[0]
        call = None
        if not _is_defined(self.tokens):
            call = self._macros.called(name, self._braces, match.end("word"), self._depth)
        if call is None:
            self.tokens.append(Token("word", name, source))
            return match.end()
        tokens, end = call
        self.tokens += tokens
        if end > match.end("word"):
            return end
        if source[-1].isspace() and _ends_word(tokens):
            self.tokens.append(Token("text", " ", " "))
        return match.end()

    def _space(self, source: str, end: int) -> None:
        """Add a line end; two that only comments stand between end a paragraph."""
        if self.tokens and self.tokens[-1].kind in ("space", "paragraph"):
            source = self.tokens.pop().source + source
        if source.count("\n") > 1:
            self.tokens.append(Token("paragraph", "\n\n", source))
            return
        before = self.tokens[-1].said if self.tokens and self.tokens[-1].kind == "text" else ""
        following = self._text[end : end + 1]
        said = between_lines(before, following) if before and following else " "
        self.tokens.append(Token("space", said, source))


def _token(match: re.Match[str]) -> Token:
    if match["mark"] is not None:
        return Token("code", match["code"], match[0])
    if match["edge"]:
        return Token(match["edge"], match["environment"].strip(), match[0])
    if match["sign"] is not None:
        return Token("word", match["sign"], match[0])
    return _SINGLE.get(match[0]) or Token("text", match[0], match[0])


def _ends_word(tokens: list[Token]) -> bool:
    """Return whether a macro gives a word, so that a space behind its name stays; TeX drops them all."""
    for kind, said, _ in reversed(tokens):
        if kind != "}":
            return said == "xspace" or (kind == "text" and said[-1:].isalnum())
    return False


def _is_defined(before: list[Token]) -> bool:
    """Return whether the next macro is the one that is just defined."""
    last = before[-2:] if before and before[-1].kind == "{" else before[-1:]
    return bool(last) and last[0].kind == "word" and last[0].said.rstrip("*") in DEFINING


@dataclass
class _Condition:
    """A condition that is open."""

    begins: int
    is_false: bool  # \iffalse
    other: int | None = None  # where its \else is

    def gone(self, end: int) -> list[tuple[int, int]]:
        """Return the first and the last token of what goes: the commands, and the branch between two of them
        that is not shown."""
        other = self.other or end
        if self.is_false:
            return [(self.begins, other), (end, end)]
        return [(self.begins, self.begins), (other, end)]


def _without_other_branches(tokens: list[Token]) -> list[Token]:
    """Leave out what \\iffalse hides, and of other conditions the second branch."""
    gone: list[tuple[int, int]] = []
    opened: list[_Condition] = []
    for at, token in enumerate(tokens):
        if token.kind != "word" or not token.said.startswith(("if", "else", "fi")):
            continue
        is_condition = token.said.startswith("if") and token.said not in _NO_CONDITION
        if token.said == "fi" and opened:
            gone += opened.pop().gone(at)
        elif token.said == "else" and opened:
            opened[-1].other = at
        elif is_condition and not _is_defined(tokens[max(0, at - 2) : at]):
            opened.append(_Condition(at, token.said == "iffalse"))
    kept: list[Token] = []
    end = 0
    for first, last in sorted(gone):
        if first >= end:
            kept += tokens[end:first]
        end = max(end, last + 1)
    return kept + tokens[end:]


def pairs(tokens: list[Token]) -> tuple[dict[int, int], set[int]]:
    """Return for the index of each token that opens something the index of the one that closes it, and the
    indices of those $$ that close a formula and open another one: $a$$b$."""
    found = _Pairs(tokens)
    for at, (kind, said, _) in enumerate(tokens):
        if kind in ("{", "}", "[", "]", "paragraph"):
            found.bracket(at, kind)
        elif kind in ("$", "$$") or (kind == "word" and said in ("(", ")", "[", "]")):
            found.formulas[-1] = found.formula(at, found.formulas[-1])
        elif kind in ("begin", "end"):
            found.environment(at, kind, said)
    return found.ends, found.halved


class _Pairs:
    """What is open at a token, and what was closed before it."""

    def __init__(self, tokens: list[Token]) -> None:
        self.ends: dict[int, int] = {}
        self.formulas = [-1]  # the open one at each depth of braces
        self._tokens = tokens
        self.halved: set[int] = set()
        self._brackets: list[int] = []  # and braces
        self._environments: list[int] = []
        self._names: Counter[str] = Counter()  # of open environments

    def bracket(self, at: int, kind: str) -> None:
        """Open or close braces or brackets; the end of a paragraph closes brackets and formulas."""
        if kind in ("{", "["):
            self._brackets.append(at)
            if kind == "{":
                self.formulas.append(-1)
        elif kind == "]":
            if self._in_brackets():
                self.ends[self._brackets.pop()] = at
        else:
            while self._in_brackets():
                self._brackets.pop()
            self.formulas[-1] = -1
            if kind == "}" and self._brackets:
                self.ends[self._brackets.pop()] = at
                self.formulas.pop()

    def _in_brackets(self) -> bool:
        return bool(self._brackets) and self._tokens[self._brackets[-1]].kind == "["

    def formula(self, at: int, begun: int) -> int:
        """Close the open formula, or open one; return where the one begins that is open now."""
        mark = self._tokens[at].said
        if begun < 0:
            return -1 if mark in (")", "]") else at
        opening = "$" if begun in self.halved else self._tokens[begun].said
        if mark == {"(": ")", "[": "]"}.get(opening, opening):
            self.ends[begun] = at
            return -1
        if opening == "$" and mark == "$$":
            self.ends[begun] = at
            self.halved.add(at)
            return at
        return begun

    def environment(self, at: int, kind: str, name: str) -> None:
        """Open an environment, or close the last one of its name and what is open within it."""
        if kind == "begin":
            self._environments.append(at)
            self._names[name] += 1
            return
        while self._names[name]:
            begun = self._environments.pop()
            self._names[self._tokens[begun].said] -= 1
            if self._tokens[begun].said == name:
                self.ends[begun] = at
                return
