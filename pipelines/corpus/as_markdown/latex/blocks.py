"""Print LaTeX's environments: lists, tables, formulas, code, theorems and frames; pictures print nothing."""

from __future__ import annotations

from collections.abc import Iterator

from pipelines.corpus.as_markdown.latex import words
from pipelines.corpus.as_markdown.latex.commands import Commands
from pipelines.corpus.as_markdown.latex.formulas import shown
from pipelines.corpus.as_markdown.latex.page import OVERLAY
from pipelines.corpus.as_markdown.latex.references import GAP
from pipelines.corpus.as_markdown.latex.tokens import Token
from pipelines.corpus.as_markdown.parts import fenced, table

INDENTED = 4  # lists within one another that are set in further
STRIPPED = "*: ."
_ITEM = ("item", "question", "part", "task")
_ROW = ("\\", "tabularnewline", "cr")
_RULES = ("hline", "midrule", "toprule", "bottomrule", "specialrule", "Xhline", "endhead", "endfirsthead")


class Blocks(Commands):
    """A page on which everything is printed."""

    def environment(self, at: int, end: int, out: list[str]) -> int:
        kind, name, source = self.tokens[at]
        name = name.rstrip("*")
        if kind == "verbatim":
            out.append(self.block("" if name in words.PICTURES else _fenced(source)))
            return at + 1
        last = self.ends.get(at, end)
        if last >= end:
            return at + 1
        self._print(name, at + 1, last, out)
        return last + 1

    def _print(self, name: str, at: int, last: int, out: list[str]) -> None:
        if name in words.PICTURES:
            out.append("\n\n")
        elif name in words.FORMULAS:
            out.append(self._formulas(name, at, last))
        elif name in words.ALGORITHMS and not self._holds_algorithm(name, at, last):
            out.append(self._algorithm(at, last))
        elif name in words.TABLES:
            out.append(self._table(self.past_arguments(words.TABLES[name], at, last), last))
        elif any(True for _ in self._own(at, last, _ITEM)):
            out.append(self._list(name, at, last))
        else:
            self._other(name, at, last, out)

    def _formulas(self, name: str, at: int, last: int) -> str:
        """Return a formula that is shown; one of several lines keeps its environment."""
        single = name in ("equation", "displaymath", "math", "dmath", "empheq")
        source = self.source(at, last)
        return self.block(shown(source if single else f"\\begin{{{name}}}\n{source}\n\\end{{{name}}}"))

    def _holds_algorithm(self, name: str, at: int, last: int) -> bool:
        inner = (token for token in self.tokens[at:last] if token.kind in ("begin", "verbatim"))
        return name == "algorithm" and any(
            token.said.startswith(("algorithmic", "lst", "verb", "alg")) for token in inner
        )

    def _algorithm(self, at: int, last: int) -> str:
        """Return an algorithm as code, below its caption."""
        captions = []
        for where in self._own(at, last, ("caption",)):
            first, end, _ = self.span(where + 1, last)
            captions.append(self.block(self.written(self.render(first, end))))
        lines = [line for line in self.source(self.options(at, last), last).split("\n") if line.strip()]
        kept = [line for line in lines if not line.lstrip().startswith(("\\caption", "\\label"))]
        return "".join([*captions, self.block(_fenced("\n".join(kept), plain=False))])

    def _other(self, name: str, at: int, last: int, out: list[str]) -> None:
        """Print an environment that has no form of its own, behind its name where that says what it is."""
        if name == "frame":
            said, at = self.heading(2, at, last)
            out += [self.footnotes(), said, self.render(at, last), "\n\n"]
            return
        options = self.options(at, last)
        title = self._option(at, options) if name in words.THEOREMS else ""
        at = self.past_arguments(words.SKIPPED.get(name, 0), options, last)
        named = words.THEOREMS.get(name, "")
        if named == "Abstract":
            out.append(self.block("## Abstract"))
        elif named:
            out.append(f"\n\n{self.hold(f'**{named}{title}.**')} ")
        else:
            out.append("\n\n")
        while at < last and self.tokens[at].kind == "{" and self.ends.get(at, last) < last:
            first, end, at = at + 1, self.ends[at], self.options(self.ends[at] + 1, last)
            if not self._is_key(first, end):
                out.append(f"{self.render(first, end)}\n\n")
        out += [self.render(at, last), "\n\n"]

    def _option(self, at: int, end: int) -> str:
        said = self.on_a_line(self.render(at + 1, end - 1)) if end > at else ""
        return f" ({said})" if said else ""

    # Lists

    def _own(self, at: int, last: int, names: tuple[str, ...]) -> Iterator[int]:
        """Yield where commands of these names stand, outside inner environments and braces."""
        while at < last:
            kind, said, _ = self.tokens[at]
            if kind in ("begin", "{") and self.ends.get(at, last) < last:
                at = self.ends[at]
            elif kind == "word" and said.rstrip("*") in names:
                yield at
            at += 1

    def _list(self, name: str, at: int, last: int) -> str:
        items = list(self._own(at, last, _ITEM))
        lines = []
        for number, (first, end) in enumerate(zip(items, [*items[1:], last], strict=True), 1):
            label, body = self._label(first + 1, end)
            said = self.written(self.render(body, end))
            if label and any(map(str.isalnum, label)) and name.startswith("desc"):
                said = f"**{label.strip(STRIPPED)}**: {said}"
            elif label and any(map(str.isalnum, label)):
                said = f"{label} {said}"
            mark = f"{number}." if "enum" in name.lower() or name in ("questions", "parts", "tasks") else "-"
            if said.strip():
                is_block = said.startswith(("$$", "```", "| "))
                lines.append(
                    f"{mark}\n  {self._set_in(said)}" if is_block else f"{mark} {self._set_in(said)}"
                )
        before = self.tidy(self.render(self.past_list_arguments(at, items[0]), items[0])).strip(GAP)
        return (f"\n\n{before}" if any(map(str.isalpha, before)) else "") + self.block("\n".join(lines))

    def past_list_arguments(self, at: int, last: int) -> int:
        at = self.options(at, last)
        while at < last and self.tokens[at].kind == "{":
            at = self.options(self.ends.get(at, at) + 1, last)
        return at

    def _label(self, at: int, end: int) -> tuple[str, int]:
        """Return the label of an item, and where its text begins."""
        while at < end and self.tokens[at].kind == "text" and self.tokens[at].said.isspace():
            at += 1
        if at < end and self.tokens[at].kind == "text":
            said = OVERLAY.sub("", self.tokens[at].said.lstrip(), count=1)
            self.tokens[at] = Token("text", said, said)
        if at < end and self.tokens[at].kind == "[" and self.ends.get(at, end) < end:
            return self.on_a_line(self.render(at + 1, self.ends[at])), self.ends[at] + 1
        return "", at

    def _set_in(self, said: str) -> str:
        """Return an item with its further lines set in."""
        first, *others = said.split("\n")
        indented = [f"  {line}" if line and not line.startswith("  " * INDENTED) else line for line in others]
        return "\n".join([first, *indented])

    # Tables

    def _table(self, at: int, last: int) -> str:
        """Return a table row by row, the first one as its head where rules mark it; one of a single column as
        lines."""
        rows: list[list[str]] = []
        ruled = [0]  # rules above each row
        for cells, rules in self._rows(at, last):
            ruled[-1] += rules
            if any(cells):
                rows.append(cells)
                ruled.append(0)
        if not rows:
            return "\n\n"
        if max(map(len, rows)) < 2:
            return self.block("\n".join(row[0] for row in rows))
        if self._depth > 1 and len(rows) == 1 and len(rows[0]) < 2:
            return " ".join(rows[0])
        return self.block("\n".join(table(rows, titled=_is_titled(rows, ruled[1:-1]))))

    def _rows(self, at: int, last: int) -> Iterator[tuple[list[str], int]]:
        """Yield each row, and how many rules stand above it."""
        cells: list[str] = []
        begun = first = at
        while at < last:
            kind, said, _ = self.tokens[at]
            ends_row = kind == "word" and said.rstrip("*") in _ROW
            if kind in ("begin", "{", "$") and self.ends.get(at, last) < last:
                at = self.ends[at]
            elif kind == "&" or ends_row:
                cells.append(self._cell(begun, at))
                begun = at + 1
            if ends_row:
                yield cells, len([*self._own(first, at, _RULES)])
                cells = []
                at = begun = first = self.options(begun, last)
                continue
            at += 1
        yield [*cells, self._cell(begun, last)], len([*self._own(first, last, _RULES)])

    def _cell(self, at: int, end: int) -> str:
        return self.on_a_line(self.render(at, end)).replace("|---", "").strip()


def _is_titled(rows: list[list[str]], ruled: list[int]) -> bool:
    """Return whether the first row holds titles: more rules are below it than above some other row, or it is
    all in bold above one."""
    bold = all(cell.startswith("**") for cell in rows[0] if cell)
    return ruled[:1] > [0] and (bold or len(ruled) == 1 or min(ruled) < ruled[0])


def _fenced(source: str, *, plain: bool = True) -> str:
    """Return code between fences, without the environment's options."""
    head, line, rest = source.partition("\n")
    if plain and line and (not head.strip() or head.lstrip().startswith(("[", "{"))):
        source = rest
    return fenced(source.rstrip())
