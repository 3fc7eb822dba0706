"""Papers and books in LaTeX as Markdown."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.corpus.as_markdown.latex.document import as_markdown
from pipelines.corpus.documents import read_corpus
from pipelines.corpus.prose import prose_sentences

PIECES = (
    *(
        "{",
        "}",
        "[",
        "]",
        "$",
        "$$",
        "\\(",
        "\\)",
        "\\[",
        "\\]",
        "\\",
        "\\\\",
        "&",
        "%",
        "~",
        "\n",
        "\n\n",
        " ",
        "a",
    ),
    *(
        "``",
        "''",
        "--",
        "\\'",
        '\\"o',
        "\\emph{",
        "{\\bf ",
        "\\section{",
        "\\footnote{",
        "\\item ",
        "\\item[",
        "\\ref{a}",
    ),
    *(
        "\\cite{b}",
        "\\label{c}",
        "\\caption{",
        "\\verb|x|",
        "\\newcommand{\\x}{y}",
        "\\x",
        "\\def\\z#1{",
        "\\iffalse ",
    ),
    *(
        "\\else ",
        "\\fi ",
        "\\let\\a",
        "\\begin{document}",
        "\\end{document}",
        "\\begin{tabular}{l}",
        "\\end{tabular}",
    ),
    *(
        "\\begin{itemize}",
        "\\end{itemize}",
        "\\begin{align}",
        "\\end{align}",
        "\\begin{verbatim}",
        "\\end{verbatim}",
    ),
    *(
        "\\begin{algorithm}",
        "\\end{algorithm}",
        "\\begin{frame}",
        "\\end{frame}",
        "\\SI{1}{",
        "\\url{",
        "\\title{",
    ),
    *(
        "(",
        ")",
        "section ",
        "\\textcolor{",
        "\\begin{figure}",
        "\\end{figure}",
        "\\begin{x}",
        "\\end{x}",
        "\ufdd0",
    ),
)
BARE = st.text("abcxyzäß0189.,;:!?()", min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("latex", "markdown"),
    [
        (
            "\\chapter{Oslo}\\label{o}\n\\section*{Its \\emph{sea}}\nIt is deep.",
            "# Oslo\n\n## Its *sea*\n\nIt is deep.",
        ),
        (
            "One line\nand the next. % a remark\n\nAnother paragraph.",
            "One line and the next.\n\nAnother paragraph.",
        ),
        ("It costs 5\\,\\% of \\$3 \\& more\\_so.", "It costs 5 % of $3 & more_so."),
        ("``Ada'' -- she --- wrote~it\\ldots{} in 1843--1844.", "“Ada” – she — wrote it… in 1843–1844."),
        (
            'G\\"odel, caf\\\'e, na{\\"\\i}ve, Stra\\ss e, \\c{C}a, \\v Skoda.',
            "Gödel, café, naïve, Straße, Ça, Škoda.",
        ),
        ('\\usepackage[ngerman]{babel}\nGr"o"se und f"ur "`Wort"\' gilt.', "Größe und für „Wort“ gilt."),
        ('Er sagt "`so ist es"\' und geht.', "Er sagt „so ist es“ und geht."),
        (
            "\\documentclass[12pt,ngerman]{book}\n\\usepackage{babel}\n\\begin{document}\n"
            'Die Gr"o"se gilt f"ur sie alle.\n\\end{document}',
            "Die Größe gilt für sie alle.",
        ),
        (
            "\\documentclass[ngerman,english]{book}\n\\usepackage{babel}\n\\begin{document}\n"
            'She says "and" to all of them.\n\\end{document}',
            'She says "and" to all of them.',
        ),
        (
            "\\textbf{Ada} and {\\it Bob} use \\texttt{a\\_b--c}, un\\emph{like}ly.",
            "**Ada** and *Bob* use `a_b--c`, unlikely.",
        ),
        (
            "See \\href{https://a.b/c}{the map} or \\url{https://a.b/~c_d}.",
            "See the map or https://a.b/~c_d.",
        ),
        (
            "The text\\index{text}, as~\\cite{a,b} show \\label{x}, is long.",
            "The text, as […] show, is long.",
        ),
        (
            "It was proved before~\\cite{a}. \\citet{b} found it (see \\cite{c}).",
            "It was proved before. […] found it.",
        ),
        ("As Figure~\\ref{f} shows (see Section~\\ref{s}), it grows.", "As the figure shows, it grows."),
        (
            "Figs.~\\ref{f} and~\\ref{g} say so on page~\\pageref{f} of the text.",
            "The figures say so of the text.",
        ),
        (
            "Wie der Text in Abschnitt~\\ref{s} der Arbeit zeigt, gilt es.",
            "Wie der Text in Abschnitt […] der Arbeit zeigt, gilt es.",
        ),
        (
            "D'après le théorème~\\ref{t} les points sont alignés.",
            "D'après le théorème les points sont alignés.",
        ),
        ("If $x_1 + 2 \\leq y$ and $\\alpha\\in A$ hold.", "If x_1 + 2 ≤ y and α ∈ A hold."),
        ("So $\\frac{a}{b}$ is \\(\\sqrt{2}\\) of many.", "So $\\frac{a}{b}$ is $\\sqrt{2}$ of many."),
        (
            "It took 3$\\times$ longer, 100{,}000 or $100{,}000$ steps at 90$^\\circ$.",
            "It took 3× longer, 100,000 or 100,000 steps at 90°.",
        ),
        (
            "We have so far\n\\begin{align}\\label{e}\n  a &= b % c\n\\end{align}\nand \\[ x^{2} \\] too.",
            "We have so far\n\n$$\n\\begin{align}\na &= b\n\\end{align}\n$$\n\nand\n\n$$\nx^{2}\n$$\n\ntoo.",
        ),
        (
            "We buy what we need:\n\\begin{itemize}\n\\item bread\n\\begin{enumerate}[a]\\item rye\\item oat"
            "\\end{enumerate}\n\\item milk\\end{itemize}",
            "We buy what we need:\n\n- bread\n\n  1. rye\n  2. oat\n- milk",
        ),
        (
            "\\begin{description}\\item[Oslo:] a city by the sea\\item[Bergen] another\\end{description}",
            "- **Oslo**: a city by the sea\n- **Bergen**: another",
        ),
        (
            "\\begin{table}[ht]\\centering\\caption{Cities of it.}\n\\begin{tabular}{l|r}\\hline\n"
            "City & People \\\\\n\\hline"
            "\nOslo & 700\\,000 \\\\[2pt]\n\\multicolumn{2}{c}{a|b}\\\\\n\\end{tabular}\\end{table}",
            "Cities of it.\n\n| City | People |\n|---|---|\n| Oslo | 700 000 |\n| a\\|b |",
        ),
        (
            "\\begin{figure}\n\\includegraphics[width=\\textwidth]{a.png}\n"
            "\\caption[Short]{The long way home.}\\label{f}\n\\end{figure}",
            "The long way home.",
        ),
        (
            "It snows here.\\footnote{In the winter.} It rains.\n\\section{Next}\nNo.",
            "It snows here.[^1] It rains.\n\n[^1]: In the winter.\n\n## Next\n\nNo.",
        ),
        (
            "Type it in as this:\n\\begin{lstlisting}[language=C]\nx = 1; % kept\n\n\ty{\n"
            "\\end{lstlisting}\nor \\verb|a%b|.",
            "Type it in as this:\n\n```\nx = 1; % kept\n\n\ty{\n```\n\nor `a%b`.",
        ),
        (
            "One thing \\iffalse not \\ifx a b\\fi this \\fi is. "
            "\\begin{comment}\nNo.\n\\end{comment} So be it.",
            "One thing is.\n\nSo be it.",
        ),
        (
            "\\newcommand{\\sys}{\\textsc{Ada}\\xspace}\nWe call it \\sys and run \\sys.",
            "We call it Ada and run Ada.",
        ),
        (
            "We call it \\sys{} and run \\sys, as others do.\\pagebreak",
            "We call it \\sys and run \\sys, as others do.",
        ),
        (
            "\\newtheorem{x}{X}\\begin{theorem}[Ada]\nAll of it is so.\n\\end{theorem}",
            "**Theorem (Ada).** All of it is so.",
        ),
        (
            "It weighs \\SI{5}{\\kilo\\gram} and is \\num{3} old \\& 10\\textsuperscript{6} wide.",
            "It weighs 5 kg and is 3 old & 10⁶ wide.",
        ),
        ("\\paragraph{Setup.} We ran it on\\\\two machines.", "**Setup.** We ran it on\ntwo machines."),
        (
            "A \\mybox{word of it} stays, \\myfig{a_b.png} too.\n\\mykey{sec:a_b}\n",
            "A word of it stays, a_b.png too.",
        ),
    ],
)
def test_a_document_is_written_as_markdown(latex: str, markdown: str) -> None:
    assert as_markdown(latex) == markdown


def test_a_formula_in_a_fence_does_not_end_it() -> None:
    said = r"\text{$x$ ```b}"
    assert as_markdown(f"It is so: \\[{said}\\]") == f"It is so:\n\n````latex\n{said}\n````"


def test_only_the_body_is_read_below_its_title() -> None:
    text = (
        "\\documentclass{article}\n\\usepackage{x}\n\\title{On \\emph{Oslo}}\n\\newcommand{\\a}[1]{not #1}\n"
        "\\begin{document}\n\\maketitle\n"
        "\\begin{abstract}\nIt is a city.\n\\end{abstract}\n\\end{document}\nNot this."
    )
    assert as_markdown(text) == "# On *Oslo*\n\n## Abstract\n\nIt is a city."


def test_files_without_text_are_skipped_by_their_reason(tmp_path: Path) -> None:
    (tmp_path / "a.tex").write_text('\\section{Where}\n\\textbf{Ada} lives in Oslo, says G\\"odel.')
    (tmp_path / "b.tex").write_bytes(
        "\\usepackage[latin1]{inputenc}\nEr wohnt in K\xf6ln, f\xfcr immer.".encode("latin1")
    )
    (tmp_path / "macros.tex").write_text(
        "\\newcommand{\\R}{\\mathbb{R}}\n\\def\\a#1{all of #1 is so}\n\\setlength{\\x}{2pt}"
    )
    (tmp_path / "picture.tex").write_text(
        "\\begin{tikzpicture}\n\\node at (0,0) {It is a city by the sea.};\n\\end{tikzpicture}"
    )
    (tmp_path / "main.tex").write_text(
        "\\documentclass{book}\n\\begin{document}\n\\input{a}\n\\include{b}\n\\end{document}"
    )
    (tmp_path / "x.sty").write_text("\\ProvidesPackage{x}")
    (tmp_path / "x.bib").write_text("@book{a, title={It}}")
    corpus = read_corpus(tmp_path)
    reasons = {row.path: row.reason for row in corpus.manifest if row.status == "skipped"}
    assert [row.path for row in corpus.manifest if row.status == "read"] == ["a.tex", "b.tex"]
    assert {path: reason and reason.partition(":")[0] for path, reason in reasons.items()} == {
        "macros.tex": "LaTeX without text of its own",
        "main.tex": "LaTeX without text of its own",
        "picture.tex": "LaTeX without text of its own",
        "x.bib": "kind .bib is not read",
        "x.sty": "kind .sty is not read",
    }
    found = [sentence for text in corpus.texts for sentence in prose_sentences(text)]
    assert found == ["Ada lives in Oslo, says Gödel.", "Er wohnt in Köln, für immer."]


def test_sentences_keep_their_formulas_and_those_with_parts_left_out_are_not_asked() -> None:
    text = as_markdown(
        "Let $\\mu_{\\rm a}'[0] = \\mu_{\\rm b}$ be so. By \\ref{e} it holds.\n\\[ \\sum_i x \\]\nIt ends."
    )
    assert prose_sentences(text) == ["Let $\\mu_{\\rm a}'[0] = \\mu_{\\rm b}$ be so.", "It ends."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("用于处理\n文档和数据。\n  我们在此说明。", "用于处理文档和数据。我们在此说明。"),
        ("用于处理\n\n文档和数据。", "用于处理\n\n文档和数据。"),
        ("東京都は\nTokyo\nです。", "東京都は Tokyo です。"),
        ("It is\nso.", "It is so."),
    ],
)
def test_a_wrapped_line_is_no_space_in_a_script_without_spaces(text: str, said: str) -> None:
    assert as_markdown(text) == said


@given(st.lists(st.lists(BARE, min_size=1, max_size=8).map(" ".join), min_size=1, max_size=4))
def test_text_without_markup_stays_as_it_is(paragraphs: list[str]) -> None:
    text = "\n\n".join(paragraphs)
    assert as_markdown(text) == text


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | st.text(max_size=80))
@settings(deadline=None)
def test_any_text_is_read(text: str) -> None:
    said = as_markdown(text)
    assert not any("\ufdd0" <= mark <= "\ufdd4" for mark in said)
    assert said == said.strip()


@pytest.mark.parametrize(
    "piece", [*PIECES, "\\foo{", "\\begin{itemize}\\item ", "\\ifx ", "(\\ref{a}", "- ", "\t"]
)
def test_no_text_takes_long(piece: str) -> None:
    begun = time.process_time()
    as_markdown(piece * (100_000 // len(piece)))
    assert time.process_time() - begun < 3


@pytest.mark.parametrize(
    ("rows", "titled"),
    [
        (r"\toprule A & B \\ \midrule a & 1 \\ b & 2 \\ \bottomrule", True),
        (r"A & B \\ \hline a & 1 \\ b & 2 \\ \hline c & 3", True),
        (r"\hline A & B \\ \hline\hline a & 1 \\ \hline b & 2 \\ \hline", True),
        (r"\hline \textbf{A} & \textbf{B} \\ \hline a & 1 \\ \hline b & 2 \\ \hline", True),
        (r"A & B \\ \endhead a & 1 \\ b & 2", True),
        (r"a & 1 \\ b & 2 \\ c & 3", False),
        (r"\toprule a & 1 \\ b & 2 \\ \midrule c & 3 \\ \bottomrule", False),
        (r"\hline a & 1 \\ \hline b & 2 \\ \hline c & 3 \\ \hline", False),
        (r"\textbf{a} & \textbf{1} \\ b & 2 \\ c & 3", False),
        (r"\toprule a & 1 \\ \cmidrule{1-2} b & 2 \\ \bottomrule", False),
    ],
)
def test_the_first_row_of_a_table_holds_titles_where_rules_say_so(rows: str, titled: bool) -> None:
    read = as_markdown(f"\\begin{{tabular}}{{ll}}\n{rows}\n\\end{{tabular}} It is the table of them all.")
    first, second = read.strip().splitlines()[:2]
    assert re.fullmatch(r"\| \W*[aA]\W* \| \W*[B1]\W* \|", first)
    assert (second == "|---|---|") == titled
