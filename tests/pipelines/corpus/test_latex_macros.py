"""LaTeX's macros: of the text itself, with arguments, and of other files of the folder."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.corpus import latex_macros
from pipelines.corpus.as_markdown.latex.document import as_markdown
from pipelines.corpus.as_markdown.latex.macros import Macro, macros_of
from pipelines.corpus.documents import read_corpus

pytestmark = pytest.mark.usefixtures("kept_parsers")
SAID = " It is said of all the towns."  # else a text may be too short to be one


@pytest.mark.parametrize(
    ("definition", "use", "said"),
    [
        (
            r"\newcommand{\algo}[1]{\emph{#1} algorithm}",
            r"The \algo{nearest} works.",
            "The *nearest* algorithm works.",
        ),
        (r"\newcommand\algo[1]{the #1}", r"By \algo {rule}, so.", "By the rule, so."),
        (r"\newcommand{\fig}[2][Figure]{#1~\ref{#2}}", r"See \fig{a} here.", "See the figure here."),
        (r"\newcommand{\fig}[2][Figure]{#1~\ref{#2}}", r"See \fig[Table]{a} here.", "See the table here."),
        (r"\def\pair#1#2{#2 before #1}", r"So \pair{Oslo}{Bergen} it is.", "So Bergen before Oslo it is."),
        (r"\newcommand{\note}[1]{}", r"All is well\note{check this}.", "All is well."),
        (
            r"\newcommand{\both}[1]{\one{#1} and \one{#1}}\newcommand{\one}[1]{a #1}",
            r"It is \both{b}.",
            "It is a b and a b.",
        ),
        (
            "\\newcommand{\\long}{%\n two lines\n of it}",
            r"There are \long{} here.",
            "There are two lines of it here.",
        ),
        (r"\newcommand{\be}{\begin{quote}}\newcommand{\ee}{\end{quote}}", r"\be So it is. \ee", "So it is."),
        ("% \\newcommand{\\sys}{Ada}\n", r"We say \sys, as you see.", "We say \\sys, as you see."),
        (r"\newcommand{\section}[1]{not #1}", r"\section{Towns}", "## Towns"),
        (r"\renewcommand{\P}{Ada}", r"So says \P.", "So says Ada."),
        (r"\newcommand{\x}[1]{\ifx#1\relax a\else b\fi}", r"It is \x{so}.", "It is so."),
        (r"\newcommand{\loop}{\loop}", r"It goes on, \loop, as it was.", "It goes on, \\loop, as it was."),
        (r"\newcommand{\kw}[1]{{\em#1}}", r"The \kw{town} of it.", "The *town* of it."),
        (r"\newcommand{\abs}[1]{\lvert#1\rvert}", r"So $\abs{x}$ it is.", r"So $\lvert x\rvert$ it is."),
        (r"\newcommand{\op}[1]{#1\circ}", r"So $\op{f}g$ it is.", "So f∘g it is."),
        (r"\newcommand{\al}{\alpha\xspace}", r"So $\al x_{ij}$ it is.", r"So $\alpha x_{ij}$ it is."),
        ("\\newcommand{\\t}{a\n\nb}\\newcommand{\\sys}{Ada}", r"So says \sys.", "So says Ada."),
        (r"\newcommand{\mail}{info@x.org}", r"Write to \mail, please.", "Write to info@x.org, please."),
        (r"\newcommand{\sys}{Ada}\providecommand{\sys}{Bob}", r"So says \sys.", "So says Ada."),
        (r"\newcommand{\degrees}{\ensuremath{^\circ}}", r"At 5\degrees C it is.", "At 5°C it is."),
        (r"\newcommand{\id}[3][]{#2 is #3 (#1)}", r"So \id[{a]}]{b}{c}, yes.", "So b is c (a]), yes."),
        (r"\let\old\vec\renewcommand{\vec}[1]{\old{#1}}", r"So $\vec{x}$ it is.", r"So $\vec{x}$ it is."),
        (r"\newcommand{\kw}[1]{\texttt{\textcolor{blue}{#1}}}", r"Use \kw{for} here.", "Use `for` here."),
        (r"\newcommand{\dat}[1]{\texttt{\href{x.org/#1}{#1}}}", r"See \dat{pop} here.", "See `pop` here."),
        ("\\newcommand{\\hide}[1]{}", "It is.\\hide{Not\n\nthis.}", "It is."),
        (r"\def\dot{\futurelet\x\y}\def\eg{\emph{e.g}\dot}", r"Cars, \eg red ones.", "Cars, e.g. red ones."),
        (r"\newcommand{\step}[1]{\tikz{\node (a) {#1};}}", r"At \step{1} it is.", "At 1 it is."),
        (
            r"\newcommand{\um}{\ensuremath{\mu\mathrm{m}}}",
            r"It has \SI{5}{\um} at most.",
            "It has 5 µm at most.",
        ),
        (r"\newcommand{\yes}{\ding{51}}", r"It says \yes{} there.", "It says ✓ there."),
        (r"\newcommand{\two}[2]{#1 and #2}", r"One \two{argument} only.", "One argument only."),
        (
            r"\newcommand{\R}[1]{\ensuremath{\mathbb{R}^{#1}}\xspace}",
            r"In $\R{n}$ and \R{2}.",
            r"In ${\mathbb{R}^{n}}$ and $\mathbb{R}^{2}$.",
        ),
    ],
)
def test_a_macro_gives_way_to_what_it_stands_for(definition: str, use: str, said: str) -> None:
    assert as_markdown(f"{definition}\n{use}\n\n{SAID}") == f"{said}\n\n{SAID.strip()}"


def test_a_bodys_parameters_are_those_that_it_takes() -> None:
    text = r"\newcommand{\a}[2][x]{#1#2} \newcommand{\b}[1]{#2} \gdef\c#1{[#1]} \newcommand{\d}{\e}"
    assert macros_of(text) == {
        "a": Macro("#1#2", 2, "x"),
        "c": Macro("[#1]", 1),
        "d": Macro(r"\e"),
    }


def chapters(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """Write a folder and return what is read of each file."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    corpus = read_corpus(folder)
    read = [report.path for report in corpus.manifest if report.status == "read"]
    return dict(zip(read, corpus.texts, strict=True))


def test_chapters_take_the_macros_of_the_main_file_and_of_styles(tmp_path: Path) -> None:
    said = chapters(
        tmp_path,
        {
            "main.tex": r"\newcommand{\sys}{Ada}\begin{document}\input{one/a}\end{document}",
            "style/book.sty": r"\newcommand{\town}[1]{the town of \sys and #1}\newcommand{\emph}[1]{no}",
            "one/a.tex": rf"By \sys{{}} comes \town{{Oslo}}, \emph{{too}}.{SAID}",
            "b.tex.gz": rf"By \sys{{}} it is.{SAID}",
        },
    )
    assert said == {
        "one/a.tex": f"By Ada comes the town of Ada and Oslo, *too*.{SAID}",
        "b.tex.gz": f"By Ada it is.{SAID}",
    }


def test_the_nearest_definition_counts_and_none_where_the_nearest_differ(tmp_path: Path) -> None:
    part = rf"By \sys{{}} it is.{SAID}"
    said = chapters(
        tmp_path,
        {
            "a/main.tex": rf"\newcommand{{\sys}}{{Ada}}\begin{{document}}{part}\end{{document}}",
            "a/text/part.tex": part,
            "b/main.tex": rf"\newcommand{{\sys}}{{Bob}}\begin{{document}}{part}\end{{document}}",
            "b/own.tex": rf"\newcommand{{\sys}}{{Eve}}{part}",
            "c/part.tex": part,
        },
    )
    assert said == {
        "a/main.tex": f"By Ada it is.{SAID}",
        "a/text/part.tex": f"By Ada it is.{SAID}",
        "b/main.tex": f"By Bob it is.{SAID}",
        "b/own.tex": f"By Eve it is.{SAID}",
        "c/part.tex": f"By \\sys it is.{SAID}",
    }


def test_a_paper_takes_no_macros_of_another_paper(tmp_path: Path) -> None:
    body = rf"\begin{{document}}By \sys{{}} it is.{SAID}\end{{document}}"
    said = chapters(tmp_path, {"a.tex": rf"\newcommand{{\sys}}{{Ada}}{body}", "b.tex": body})
    assert said == {"a.tex": f"By Ada it is.{SAID}", "b.tex": f"By \\sys it is.{SAID}"}


GLOSSARY = r"""
\newacronym[longplural={units}]{cpu}{CPU}{central processing unit}
\newglossaryentry{town}{name={Oslo}, description={a \emph{city}, name = none}}
\newglossaryentry{matrix}{name=matrix, plural=matrices}
\newcommand{\cpu}{\gls{cpu}}
% \newacronym{no}{NO}{none of it}
\DeclareAcronym{nn}{short = NN, long = {neural \emph{network}}, tag = a}
\begin{acronym}\acro{gpu}[GPU]{graphics unit}\acrodef{ram}{memory}\end{acronym}
"""


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (r"A \gls{cpu} is a \gls{cpu}.", "A central processing unit (CPU) is a CPU."),
        (r"\Glspl{nn} are \acp{nn}.", "Neural networks (NNs) are NNs."),
        (r"In \gls{town} and \Gls{town}.", "In Oslo and Oslo."),
        (
            r"One \ac{gpu}, two \acp{gpu}, \acl{gpu}, \acf{gpu}.",
            "One graphics unit (GPU), two GPUs, graphics unit, graphics unit (GPU).",
        ),
        (r"The \ac{ram} and the \acs{ram}.", "The memory (ram) and the ram."),
        (r"Two \glspl{cpu} and \glspl{matrix}.", "Two units (CPUs) and matrices."),
        (
            r"A \cpu{} is a \cpu{} is a \gls{cpu}['s].",
            "A central processing unit (CPU) is a CPU is a CPU's.",
        ),
        (r"The \acrshort{nn}, a \gls{nn}.", "The NN, a neural *network* (NN)."),
        (r"The \glslink{cpu}{one}\glsadd{cpu} it is.", "The one it is."),
        (r"A \gls{no} it is, \gls{none} too.", "A no it is, none too."),
    ],
)
def test_abbreviations_are_printed_in_full_where_they_are_named_first(
    tmp_path: Path, use: str, said: str
) -> None:
    files = {"glossary.tex": GLOSSARY, "a.tex": f"{use}{SAID}"}
    assert chapters(tmp_path, files)["a.tex"] == f"{said}{SAID}"


def test_a_file_may_use_many_macros_of_others(tmp_path: Path) -> None:
    names = [
        f"m{'abcdefghij'[n // 100]}{'abcdefghij'[n // 10 % 10]}{'abcdefghij'[n % 10]}" for n in range(1000)
    ]
    style = "".join(rf"\newcommand{{\{name}}}{{{name * 20}}}" for name in names)
    said = chapters(tmp_path, {"x.sty": style, "a.tex": "".join(rf"\{name}{{}} " for name in names)})
    assert said["a.tex"].split() == [name * 20 for name in names]


def test_a_file_keeps_to_its_own_definitions_and_to_its_project(tmp_path: Path) -> None:
    body = rf"By \enquote{{it}}.{SAID}"
    chapter = rf"\begin{{document}}By \sys.{SAID}\end{{document}}"
    own = r"\DeclareMathOperator{\E}{E}\newcommand{\pick}[1]{\ifx#1\relax\fi}"
    said = chapters(
        tmp_path,
        {
            "p/main.tex": rf"{own}\begin{{document}}By \pick{{A}} $\E{{x_{{y}}}}$.{SAID}\end{{document}}",
            "p/part.tex": body,
            "p/macros.tex": r"\newcommand{\E}[1]{X#1}\newcommand{\pick}[1]{not #1}",
            "q/macros.tex": r"\newcommand{\enquote}[1]{not #1}",
            "r/main.tex": rf"\input{{../q/macros}}\begin{{document}}{body}\end{{document}}",
            "r/a.tex": rf"\documentclass[main.tex]{{subfiles}}{chapter}",
            "r/b.tex": r"\newcommand{\sys}{Ada}",
        },
    )
    assert said == {
        "p/main.tex": f"By A $\\E{{x_{{y}}}}$.{SAID}",
        "p/part.tex": f"By it.{SAID}",
        "r/a.tex": f"By Ada.{SAID}",
        "r/main.tex": f"By not it.{SAID}",
    }


def test_beyond_the_limits_projects_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latex_macros, "MOST", 100)
    paper = rf"\newcommand{{\sys}}{{Ada}}\begin{{document}}It is.{SAID}\end{{document}}"
    part = rf"By \sys{{}} it is.{SAID}"
    said = chapters(
        tmp_path, {"a/main.tex": paper, "b/main.tex": paper.replace("Ada", "Bob"), "b/part.tex": part}
    )
    assert said["b/part.tex"] == f"By \\sys it is.{SAID}"


def test_a_style_or_a_comment_that_names_the_body_is_no_paper(tmp_path: Path) -> None:
    said = chapters(
        tmp_path,
        {
            "main.tex": rf"\newcommand{{\sys}}{{Ada}}\begin{{document}}By \town.{SAID}\end{{document}}",
            "x.sty": "% before \\begin{document}\n\\newcommand{\\town}{Oslo}\\begin{document}",
            "one/a.tex": f"%\\begin{{document}}\nBy \\sys.{SAID}",
            "one/figure.tex": r"\documentclass{standalone}\begin{document}\end{document}",
        },
    )
    assert said == {"main.tex": f"By Oslo.{SAID}", "one/a.tex": f"By Ada.{SAID}"}


def test_marks_in_another_files_macros_break_nothing(tmp_path: Path) -> None:
    files = {
        "x.sty": "\\newcommand{\\town}{\ufdd099\ufdd1Oslo\ufdd2}",
        "a.tex": rf"In \town{{}} it is.{SAID}",
    }
    assert chapters(tmp_path, files) == {"a.tex": f"In 99Oslo it is.{SAID}"}


def test_a_folder_without_latex_is_not_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latex_macros.FolderMacros, "__init__", lambda *_: pytest.fail("looked through"))
    assert chapters(tmp_path, {"a.md": "It is."}) == {"a.md": "It is."}


def test_damaged_and_long_files_define_nothing_and_cost_only_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latex_macros, "LARGEST", 2000)
    (tmp_path / "x.tex.gz").write_bytes(b"\x1f\x8bno gzip")
    said = chapters(
        tmp_path,
        {
            "a.tex": rf"By \sys{{}} it is.{SAID}",
            "long.sty": rf"\newcommand{{\sys}}{{Ada}}{'x' * 2000}",
            "packed.tex.gz": rf"\newcommand{{\sys}}{{Ada}}{'x' * 9000}",
        },
    )
    assert said["a.tex"] == f"By \\sys it is.{SAID}"


CALLS = [r"\a", r"\b", r"\a{", "}", r"\a{x}", "[", "]", "#1", "##", "\n\n", "%", r"\def\a#1{\b{#1}\b{#1}}"]
CALLS += [
    r"\newacronym{a}{\gls{a}}{\a}",
    r"\gls{a}",
    r"\newglossaryentry{a}{name={",
    r"\acro{a}[",
    r"\Acp{a}",
]
CALLS += [r"\newcommand{\b}[2][\a]{\a{#2}#1}", r"\newcommand\a{\b\b}", r"\def\b{", "x ", r"\begin{verbatim}"]


@given(st.lists(st.sampled_from(CALLS), max_size=40).map("".join))
@settings(deadline=None)
def test_any_macros_are_read(text: str) -> None:
    said = as_markdown(text)
    assert said == said.strip()
    assert len(said) < 200_000


@pytest.mark.parametrize(
    "text",
    [
        r"\newcommand{\a}{",
        r"\newcommand{\a}[1]{\a{#1}\a{#1}}\a{x}",
        "".join(
            rf"\def\{one}{{" + rf"\{two}" * 300 + "}" for one, two in zip("abcdef", "bcdefg", strict=True)
        )
        + r"\a ",
        r"\newcommand{\a}[1]{}"
        + "".join(
            rf"\newcommand{{\{one}}}[1]{{" + rf"\{two}{{#1}}" * 40 + "}"
            for one, two in zip("bcdefgh", "abcdefg", strict=True)
        )
        + r"\h{x}",
        r"\newcommand{\a}{\begin{comment}\end{comment}}\newcommand{\b}{" + r"\a" * 80 + r"}\b",
        r"\newcommand{\a}[1]{#1}" + r"\a{" * 400,
        r"\newglossaryentry{a}{" * 130 + "name={x}" * 60 + "}" * 130,
        r"\newcommand{\a}[2]{}" + r"\a{" * 3000 + "}" * 3000,
        r"\newcommand{\a}[1]{" + "#1" * 330 + r"}\a{" + "words " * 2000 + "}",
        r"\newcommand{\a}[1]{#1#1}" + r"\a{" * 300 + "}" * 300,
        r"\def\a#1#2#3{x}\a{b}{c}{",
    ],
)
def test_no_macro_takes_long(text: str) -> None:
    begun = time.process_time()
    said = as_markdown(text * (50_000 // len(text) + 1))
    assert time.process_time() - begun < 10
    assert len(said) < 2_000_000
