"""Cut LaTeX into tokens, and say which brace, formula and environment ends where.

Comments and what stands between \\iffalse and \\fi are left out. Everything takes linear time: a second token
that is never closed is not searched for again.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

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
_DEFINED = re.compile(
    r"\\(?:(?:re|provide)?newcommand|providecommand|renewcommand|DeclareRobustCommand|def|gdef)\*?[ \t]*"
    r"(?:\{[ \t]*\\([A-Za-z]+)[ \t]*\}|\\([A-Za-z]+))[ \t]*"
    r"\{((?:[^{}\\#\n]|\\[^\n]|\{(?:[^{}\\#\n]|\\[^\n]){0,80}\}){0,100})\}"
)
DEFINING = frozenset(
    "newcommand renewcommand providecommand DeclareRobustCommand DeclareMathOperator DeclarePairedDelimiter"
    " def gdef edef xdef let newif newenvironment renewenvironment newtheorem newlength newcounter".split()
)
_NO_CONDITION = frozenset("iff ifthenelse ifoot ifblank ifstrequal ifstrempty ifnumcomp ifbool iftoggle".split())
_BLOWN_UP = 2  # times the text's length that expanded macros may have


class Token(NamedTuple):
    """A kind (a key of `pairs`), what it says, and what stands in the source."""

    kind: str  # text word verbatim code begin end space paragraph, or one of {}[]&~ $ $$
    said: str
    source: str


_SINGLE = {mark: Token(mark, mark, mark) for mark in ("{", "}", "[", "]", "&", "~", "$", "$$")}


def tokens_of(text: str) -> list[Token]:
    """Return the tokens; macros without arguments that the text defines are expanded once."""
    macros = {name: _scanned(body, {}) for name, body in definitions(text).items()}
    return _without_other_branches(_scanned(text, macros))


def definitions(text: str) -> dict[str, str]:
    """Return what short macros without arguments stand for."""
    found = {}
    for definition in _DEFINED.finditer(text):
        name = definition[1] or definition[2]
        found[name] = definition[3]
    return found


def _scanned(text: str, macros: dict[str, list[Token]]) -> list[Token]:
    found: list[Token] = []
    unclosed: set[str] = set()
    at = spent = 0
    while match := _TOKEN.match(text, at):
        at = match.end()
        kind = match.lastgroup
        if match["verbatim"]:
            name = match["verbatim"]
            end = -1 if name in unclosed else text.find(f"\\end{{{name}}}", at)
            if end < 0:
                unclosed.add(name)
                continue
            found.append(Token("verbatim", name, text[at:end]))
            at = end + len(f"\\end{{{name}}}")
        elif match["mark"] is not None:
            found.append(Token("code", match["code"], match[0]))
        elif match["edge"]:
            found.append(Token(match["edge"], match["environment"].strip(), match[0]))
        elif kind == "word":
            body = macros.get(match["word"])
            if body is None or _is_defined(found) or spent > _BLOWN_UP * len(text):
                found.append(Token("word", match["word"], match[0]))
                continue
            found += body
            spent += sum(len(token.source) for token in body)
            if match[0][-1].isspace():
                found.append(Token("text", " ", " "))
        elif kind == "sign":
            found.append(Token("word", match["sign"], match[0]))
        elif kind in ("one", "dollars"):
            found.append(_SINGLE[match[0]])
        elif kind == "space":
            _add_space(found, match[0])
        elif kind == "text":
            found.append(Token("text", match[0], match[0]))
    return found


def _is_defined(before: list[Token]) -> bool:
    """Return whether the next macro is the one that is just defined."""
    last = before[-2:] if before and before[-1].kind == "{" else before[-1:]
    return bool(last) and last[0].kind == "word" and last[0].said.rstrip("*") in DEFINING


def _add_space(found: list[Token], source: str) -> None:
    """Add a line end; two that only comments stand between end a paragraph."""
    if found and found[-1].kind in ("space", "paragraph"):
        source = found.pop().source + source
    ends = source.count("\n") > 1
    found.append(Token("paragraph" if ends else "space", "\n\n" if ends else " ", source))


def _without_other_branches(tokens: list[Token]) -> list[Token]:
    """Leave out what \\iffalse hides, and of other conditions the second branch."""
    gone: list[tuple[int, int]] = []
    opened: list[tuple[int, bool, int]] = []  # where it begins, whether it is \iffalse, where its \else is
    for at, token in enumerate(tokens):
        if token.kind != "word" or not token.said.startswith(("if", "else", "fi")):
            continue
        if token.said == "fi" and opened:
            begun, untrue, other = opened.pop()
            gone.append((begun, (other if other > 0 else at) if untrue else begun))
            gone.append((at, at) if untrue or other < 0 else (other, at))
        elif token.said == "else" and opened:
            opened[-1] = (opened[-1][0], opened[-1][1], at)
        elif token.said.startswith("if") and token.said not in _NO_CONDITION and not _is_defined(tokens[max(0, at - 2) : at]):
            opened.append((at, token.said == "iffalse", -1))
    kept: list[Token] = []
    end = 0
    for first, last in sorted(gone):
        if first >= end:
            kept += tokens[end:first]
        end = max(end, last + 1)
    return kept + tokens[end:]


def pairs(tokens: list[Token]) -> dict[int, int]:
    """Return for the index of each token that opens something the index of the one that closes it."""
    ends: dict[int, int] = {}
    opened: list[int] = []  # braces and brackets
    formulas = [-1]  # the open one at each depth of braces
    environments: list[int] = []
    names: Counter[str] = Counter()
    for at, (kind, said, _) in enumerate(tokens):
        if kind in ("text", "space"):
            continue
        if kind == "{":
            opened.append(at)
            formulas.append(-1)
        elif kind == "[":
            opened.append(at)
        elif kind == "]" and opened and tokens[opened[-1]].kind == "[":
            ends[opened.pop()] = at
        elif kind in ("}", "paragraph"):
            while opened and tokens[opened[-1]].kind == "[":
                opened.pop()
            formulas[-1] = -1
            if kind == "}" and opened:
                ends[opened.pop()] = at
                formulas.pop()
        elif kind in ("$", "$$") or (kind == "word" and said in ("(", ")", "[", "]")):
            formulas[-1] = _formula(tokens, at, formulas[-1], ends)
        elif kind == "begin":
            environments.append(at)
            names[said] += 1
        elif kind == "end" and names[said]:
            while environments:
                begun = environments.pop()
                names[tokens[begun].said] -= 1
                if tokens[begun].said == said:
                    ends[begun] = at
                    break
    return ends


def _formula(tokens: list[Token], at: int, begun: int, ends: dict[int, int]) -> int:
    """Close the open formula, or open one; return where the one begins that is open now."""
    mark = tokens[at].said
    if begun < 0:
        return -1 if mark in (")", "]") else at
    opening = tokens[begun].said
    if mark == {"(": ")", "[": "]"}.get(opening, opening):
        ends[begun] = at
        return -1
    if opening == "$" and mark == "$$":  # $a$$b$
        ends[begun] = at
        return at
    return begun
