"""Pages of Emacs Org as Markdown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.corpus.documents import read_corpus
from pipelines.corpus.prose import prose_sentences
from pipelines.corpus.reading.site_markup import cleaned

PAGE = """\
#+TITLE: Where Ada lives
#+AUTHOR: B
* TODO The city :home:
:PROPERTIES:
:ID: x
:END:
*Ada* lives in [[https://a.b][Oslo]]. She has /two/ =cats=
and a dog.
#+begin_src sh
echo *not* prose.
#+end_src
# Nobody reads this.
- They sleep :: They sleep a lot.
"""
WORDS = st.text("ab .,", max_size=12)
PIECES = (
    *(
        "* a\n",
        "#+begin_quote\n",
        "#+end_quote\n",
        "#+begin_src c\n",
        "#+end_src\n",
        "#+begin_note\n",
        ":x:\n",
        ":END:\n",
    ),
    *(
        ": f\n",
        "| a | b |\n",
        "|-\n",
        "- a\n",
        "  - b :: c\n",
        "1) d\n",
        "\n",
        "\n\n",
        "text\n",
        "  in\n",
        "-----\n",
    ),
    *(
        "*",
        "/",
        "=",
        "~",
        "_",
        "+",
        "a",
        " ",
        "[[",
        "][",
        "]]",
        "[fn:1]",
        "[fn::",
        "]",
        "<<",
        ">>",
        "@@x:",
        "@@",
        "$",
    ),
    *(
        "{{{a(",
        ")}}}",
        "\\(",
        "\\)",
        "\\alpha",
        "\\\\\n",
        "src_a{",
        "}",
        "#+macro: a *$1*\n",
        "#+caption: c\n",
    ),
)


@pytest.mark.parametrize(
    ("org", "markdown"),
    [
        ("* One\n** Two\n*** COMMENT Three\nNo.\n** Four", "# One\n## Two\n## Four"),
        ("#+TITLE: T\n#+SUBTITLE: S\n* One\n******* Deep", "# T: S\n\n## One\n###### Deep"),
        ("#+title: A guide\n#+subtitle: to *it*", "# A guide to **it**"),
        ("* TODO [#A] Buy =it= [1/3] [30%]  :a:b_c:", "# Buy `it`"),
        ("#+TODO: WAIT(w) | OK(o@/!)\n* WAIT a\n* OK b\n* DONE c\n* Todo d", "# a\n# b\n# c\n# Todo d"),
        (
            "* A\n* B :x:noexport:\nNo.\n** C\nNo.\n#+begin_src org\n* D\n#+end_src\n* E\nYes.",
            "# A\n# E\nYes.",
        ),
        ("#+EXCLUDE_TAGS: secret\n* A :secret:\nNo.", ""),
        (
            "* A\nSCHEDULED: <2024-05-01 Wed> CLOSED: [2024-05-02 Thu]\n:LOGBOOK:\nCLOCK: [x]\n:END:\nB",
            "# A\nB",
        ),
        ("One\n# Not this\nTwo\n#+LATEX: \\x\n#+foo bar", "One\n\nTwo\n\n#+foo bar"),
        (":RESULTS:\nStays.\n:END:", "Stays."),
        (":never closed:\nStays.\n:END: too", ":never closed:\nStays.\n:END: too"),
    ],
)
def test_an_outline_is_written_as_markdown(org: str, markdown: str) -> None:
    assert cleaned(org, "org").strip("\n") == markdown.strip("\n")


@pytest.mark.parametrize(
    ("org", "markdown"),
    [
        ("*b* /i/ _u_ +s+ =v= ~c~ */bi/*, (*b*)", "**b** *i* _u_ ~~s~~ `v` `c` ***bi***, (**b**)"),
        ("a*b*c 2/3 x_y_z --a-- and/or * a * +1 C++ +", "a*b*c 2/3 x_y_z --a-- and/or * a * +1 C++ +"),
        (
            "In /usr/lib/ of **it** by __init__: x == y, z ==",
            "In /usr/lib/ of **it** by __init__: x == y, z ==",
        ),
        ("*b\nc* and ~M-x\ny~; =a `b`=; ~a = b~", "**b\nc** and `M-x\ny`; `` a `b` ``; `a = b`"),
        ("Call =*f*= in ‘=a/b/c=’\u200b s*\u200b*b*\u200bs", "Call `*f*` in ‘=a/b/c=’\u200b s***b**s"),
        ("Emacs' `name' and `code *a*`", "Emacs' ‘name’ and `code *a*`"),
        (
            "[[https://a.b][It /is/]] [[https://a.b/c]] <https://a.b/_c_> https://a.b/_d_/",
            "It *is* <https://a.b/c> <https://a.b/_c_> https://a.b/_d_/",
        ),
        ("[[file:a.org::*B][b]] [[file:a.org::*B]] [[./c.txt]] [[file:x.png]]", "b a.org ./c.txt"),
        ("[[https://a.b][./x.png]]\n\n[[file:p.pdf][p.png]] [[*The =x= of\ny]].", "p.png The `x` of y."),
        (
            "[[#c]] [[id:u-1]] [[id:u-2]] [[place]]<<place>>\n* The /one/\n:PROPERTIES:\n"
            ":CUSTOM_ID: c\n:ID: u-1\n:END:",
            "The *one* The *one* id:u-2 place\n# The *one*",
        ),
        ("#+LINK: gh https://github.com/%s\n[[gh:a/b]] [[mailto:a@b.c]]", "<https://github.com/a/b> <a@b.c>"),
        (
            "So.[fn:1] And[fn:: a /b/ [c]] too.\n\n[fn:1] Note\nit.",
            "So.[^1] And (a *b* [c]) too.\n\n[^1]: Note\nit.",
        ),
        ("As @@html:<i>@@it@@html:</i>@@ [cite:@a p. 3]. Now [cite/t:@b] is.", "As it. Now […] is."),
        ("#+NAME: f\ncall_f[:x](n=1) so src_sh[:y]{f {a}} is my_src_x{y}", "so `f {a}` is my_src_x{y}"),
        ("Use call_user_func(x) in PHP.", "Use call_user_func(x) in PHP."),
        (
            "\\alpha\\beta \\rarr 10\\deg, x\\nbsp{}y \\vert \\name C:\\sum\\in\\\\\nz",
            "αβ → 10°, x\u00a0y | \\name C:\\sum\\in\nz",
        ),
        (
            "<2024-05-01 Wed> [2024-05-01 10:00 +1w]--[2024-05-02 Thu 9:00-10:30] [2024-05-01 a b]",
            "2024-05-01 2024-05-01 10:00–2024-05-02 9:00-10:30 [2024-05-01 a b]",
        ),
        (
            r"Let \(a_b\) be \[ x*y \] and $p *q* r$; $5 or *6*.",
            "Let $a_b$ be $$x*y$$ and $p *q* r$; $5 or **6**.",
        ),
        ("\\begin{align}\nx &= *y* \\\\\n\\end{align}", "\\begin{align}\nx &= *y* \\\\\n\\end{align}"),
        (
            "#+MACRO: hi Hello *$1*, $2!\n#+TITLE: /T/\n"
            "{{{hi(Ada,b\\, c)}}} {{{kbd(C-c)}}} and {{{n}}}, {{{title}}}.",
            "# *T*\n\nHello **Ada**, b, c! C-c and {{{n}}}, *T*.",
        ),
        (
            "text [1] [fn] [[]] [[x] ]] <<>> @@x@@ a << b >> c {{{ }}}",
            "text [1] [fn] [[]] [[x] ]] <<>> @@x@@ a << b >> c {{{ }}}",
        ),
    ],
)
def test_marks_in_a_line_are_those_of_org(org: str, markdown: str) -> None:
    assert cleaned(org, "org").strip("\n") == markdown


@pytest.mark.parametrize(
    ("org", "markdown"),
    [
        ("- a\n  b\n + c\n   * d\n- [X] e\n1) [@3] f\n", "- a\n  b\n  - c\n    - d\n- e\n1) f"),
        (
            "- term :: meaning\n  more\n- ~x~ ::\n  #+findex: x\n  It is.",
            "- **term**: meaning\n  more\n- **`x`**: It is.",
        ),
        ("1. one\n\n     two\nthree", "1. one\n\n   two\n\nthree"),
        ("- a\n\n\n  b", "- a\n\nb"),
        ("   indented\n   text\n\n        more", "indented\ntext\n\nmore"),
        (
            "- a\n  #+begin_src c\n    x;\n\n      y;\n  #+end_src\n  b",
            "- a\n  ```c\n  x;\n\n    y;\n  ```\n  b",
        ),
        (
            "| a | *b* |\n|---+---|\n| / | < |\n| <l5> |  |\n| x\\vert{}y | =c= |\n#+TBLFM: $1=2\nSo.",
            "| a | **b** |\n|---|---|\n| x\\|y | `c` |\n\nSo.",
        ),
        ("| ! | n |\n| # | 1 |\n|   | 2 |", "| 1 |\n| 2 |"),
        ("| < | > |\n| a | b |", "| < | > |\n| a | b |"),
        ("|---+---|\n| a | b |\n|---+---|\n| c | d |\n|---+---|", "| a | b |\n|---|---|\n| c | d |"),
        ("| a | 1 |\n| b | 2 |\n|---+---|\n| c | 3 |", "| a | 1 |\n| b | 2 |\n| c | 3 |"),
        ("|---+---|\n| a | 1 |\n|---+---|", "| a | 1 |"),
        ("#+CAPTION[x]: A /nice/\n#+CAPTION: one\n#+NAME: t\n| a |", "**A *nice* one**\n\n| a |"),
        ("#+caption: Seen\n[[file:x.png]]\nText", "**Seen**\n\nText"),
        ("a\n-----\nb", "a\n\n---\n\nb"),
    ],
)
def test_lists_and_tables_are_written_as_markdown(org: str, markdown: str) -> None:
    assert cleaned(org, "org").strip("\n") == markdown.strip("\n")


@pytest.mark.parametrize(
    ("org", "markdown"),
    [
        ("#+BEGIN_SRC emacs-lisp -n :exports x\n  *a* ; /b/\n#+END_SRC", "```emacs-lisp\n*a* ; /b/\n```"),
        ("#+begin_example\n,* a\n,,#+b\n, c\n```\n#+end_example", "````\n* a\n,#+b\n, c\n```\n````"),
        ("#+begin_src md\n* a\n#+end_src", "```md\n* a\n```"),
        ("#+begin_src sh\nopen\n* A\n#+begin_src sh\nx\n#+end_src", "open\n# A\n```sh\nx\n```"),
        ("#+RESULTS[a1]: n\n: 42\n:  =43=", "```\n42\n =43=\n```"),
        ("a\n#+begin_quote\nb\n\n- c\n  d\n#+end_quote\ne", "a\n\n> b\n>\n> - c\n>   d\n\ne"),
        (
            "#+begin_quote\na\n#+begin_src c\nx\n\ny\n#+end_src\n#+end_quote",
            "> a\n> ```c\n> x\n>\n> y\n> ```",
        ),
        ("#+begin_warning\nHot.\n#+end_warning", "**Warning**\n\nHot."),
        ("#+begin_verse\n  a\n    b\n#+end_verse\n#+begin_foo :x y\nc\n#+end_foo", "a\nb\n\nc"),
        ("#+begin_export html\n<b>\n#+end_export\n#+begin_comment\nx\n#+end_comment\na", "a"),
        ("#+begin_export md\n*a* [b](c)\n#+end_export", "*a* [b](c)"),
        ("a\n#+begin_quote\nb", "a\n\nb"),
    ],
)
def test_blocks_are_written_as_markdown(org: str, markdown: str) -> None:
    assert cleaned(org, "org").strip("\n") == markdown.strip("\n")


@pytest.mark.parametrize(
    ("org", "markdown"),
    [
        ("---\ntitle: Ada\n---\n\n* One\n** Two\n", "# Ada\n\n## One\n### Two\n"),
        ("---\ntitle: Ada\n---\n* Ada\nText.\n", "## Ada\nText.\n"),
        ("---\ntitle: Ada\n---\n#+TITLE: Own\n* One\n", "# Own\n\n## One\n"),
        ("---\ntags: [a]\ndescription: On it.\n---\n* One\n", "On it.\n\n# One\n"),
        ("-----\na: b\n-----\nText.\n", "a: b\n\n---\n\nText.\n"),
    ],
)
def test_front_matter_may_stand_before_a_page(org: str, markdown: str) -> None:
    assert cleaned(org, "org") == markdown


def test_pages_of_org_are_read(tmp_path: Path) -> None:
    (tmp_path / "page.org").write_text(PAGE)
    [found] = [str(text) for text in read_corpus(tmp_path).texts]
    assert found.startswith("# Where Ada lives\n\n## The city\n**Ada** lives in Oslo.")
    assert prose_sentences(found) == [
        "Ada lives in Oslo.",
        "She has two cats and a dog.",
        "They sleep: They sleep a lot.",
    ]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
@settings(deadline=None)
def test_whatever_is_open_ends_before_a_heading(text: str) -> None:
    assert cleaned(f"{text}\n* The end", "org").endswith("# The end\n")


@given(st.lists(WORDS, min_size=1, max_size=6))
def test_plain_words_stay(words: list[str]) -> None:
    text = "\n".join(words)
    assert cleaned(text, "org").split() == text.split()


@given(st.text("ab*/_+=~[]{}<>@$\\# |:-", min_size=1, max_size=40))
def test_code_stays_as_it_stands(code: str) -> None:
    assert cleaned(f"#+begin_example\n.{code}\n#+end_example\n", "org") == f"```\n.{code}\n```\n"
    assert cleaned(f"Say ~.{code.replace('~', '')}.~ now", "org") == f"Say `.{code.replace('~', '')}.` now\n"


@pytest.mark.parametrize(
    "text",
    [
        "#+macro: a " + "{{{b}}}" * 1000 + "\n#+macro: b " + "{{{a}}}" * 1000 + "\n" + "{{{a}}} " * 20_000,
        "#+macro: a $1$1$1\n{{{a(" + "b" * 100_000 + ")}}}" + " {{{a(c)}}}" * 10_000,
        "* " + "[[#a]]" * 20_000 + "\n:PROPERTIES:\n:CUSTOM_ID: a\n:END:\n" + "[[#a]] " * 20_000,
        "".join(" " * depth + "- a\n" for depth in range(700)),
        "#+begin_quote\n" * 9000 + "a\n\n" * 1000 + "#+end_quote\n" * 9000,
        "#+begin_a\n" * 12_000 + "#+end_b\n" * 12_000,
        "a" + " " * 150_000 + "b\n* a" + " " * 150_000 + "b",
    ],
    ids=["macros", "arguments", "titles", "lists", "quotations", "pairs", "spaces"],
)
def test_no_page_grows_without_end(text: str) -> None:
    begun = time.process_time()
    read = cleaned(text, "org")
    assert len(read) < 1_500_000 and time.process_time() - begun < 5


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "* a\n:PROPERTIES:\n",
            "#+begin_src\n* a\n",
            "#+begin_quote\n",
            "\\begin{a}\n",
            "- a :: b\n",
            "|a",
            ":a:\n",
        ),
        *(
            " *a /b",
            "[[a][",
            "[fn::",
            "[cite:@a] ",
            "<<a>>",
            "@@a:@@",
            "{{{a(",
            "src_a{",
            "-call_",
            "[2024-01-01 ",
        ),
    ],
)
def test_no_page_takes_long(piece: str) -> None:
    begun = time.process_time()
    cleaned(piece * (300_000 // len(piece)), "org")
    assert time.process_time() - begun < 5
