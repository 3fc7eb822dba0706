"""Pages in AsciiDoc as Markdown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.corpus.documents import read_corpus
from pipelines.corpus.prose import prose_sentences
from pipelines.corpus.reading.site_markup import cleaned


def markdown(text: str) -> str:
    return cleaned(text, "adoc").strip("\n")


@pytest.mark.parametrize(
    ("asciidoc", "said"),
    [
        ("= Ada\nAda King <ada@b.org>; Bob Hill\nv1.2, 2024-05-01\n:toc:\n\nText.", "# Ada\n\nText."),
        (
            "= Ada\nShe lives here.\n\n== Oslo ==\n\n===== Deep",
            "# Ada\n\nShe lives here.\n\n## Oslo\n\n##### Deep",
        ),
        ("Ada\n===\n\nOslo\n----\n\n`ls`\n~~~~\nText.", "# Ada\n\n## Oslo\n\n### `ls`\n\nText."),
        ("[#one.two]\n[[three]]\n== Ada [[four]]", "## Ada"),
        (".Of Ada\nText.", "**Of Ada**\n\nText."),
        ("// not\nText.\n\n////\nnor this\n////\n'''\n<<<\nMore.", "Text.\n\nMore."),
        ("Line +\nbroken.", "Line\nbroken."),
        ("image::a.png[A map]\n\ntoc::[]\n\ninclude::b.adoc[]\nText.", "Text."),
    ],
)
def test_titles_and_what_prints_nothing(asciidoc: str, said: str) -> None:
    assert markdown(asciidoc) == said


@pytest.mark.parametrize(
    ("asciidoc", "said"),
    [
        (
            "*Ada* is _here_, #truly#, *not* 2*3*4 nor a_b_c.",
            "**Ada** is *here*, truly, **not** 2*3*4 nor a_b_c.",
        ),
        ("**A**da, __O__slo, [.path]_a.adoc_ and [.x]#y#.", "**A**da, *O*slo, *a.adoc* and y."),
        ("Call `ls -l`, `+{a}+` or ``x`` now.", "Call `ls -l`, `{a}` or `x` now."),
        ("H~2~O and 2^10^.", "H<sub>2</sub>O and 2<sup>10</sup>."),
        (
            "\"`Yes`\", '`no`' and ``so'' on -- it is (C) &#8212; &lt;x&gt;.",
            "“Yes”, ‘no’ and “so” on — it is © — <x>.",
        ),
        (r"Not \*so* nor \{a} nor \https://a.b.", "Not *so* nor {a} nor https://a.b."),
        (
            "See https://a.b/c[the map^], link:d.html[it, window=_blank] and https://a.b.",
            "See the map, it and https://a.b.",
        ),
        ("See link:d.html[window=_blank], https://a.b[role=x,id=y].", "See d.html, https://a.b."),
        ("Write to mailto:a@b.org[Ada]. See linkgit:git-add[1].", "Write to Ada. See git-add(1)."),
        ("xref:a.adoc#b[The `x`\nway] and xref::c:d.adoc[e].", "The `x`\nway and e."),
        ("Press kbd:[Ctrl+C], btn:[OK], menu:File[Save > As].", "Press Ctrl+C, OK, File > Save > As."),
        ("A ((city))(((city,big))) of indexterm:[x]image:a.png[]Norway[[here]].", "A city of Norway."),
        ("It is so.footnote:[As *Ada* said.]", "It is so.[^1]\n\n[^1]: As **Ada** said."),
        (
            "As stem:[x_1 \\leq 2] and +a*b*c+ and +++<u>d</u>+++ and pass:[e_f_].",
            "As $x_1 \\leq 2$ and a*b*c and d and e_f_.",
        ),
        (
            "Of C++ and D++ and [a, b] and x::y and {unknown}.",
            "Of C++ and D++ and [a, b] and x::y and {unknown}.",
        ),
    ],
)
def test_a_line_reads_as_it_is_shown(asciidoc: str, said: str) -> None:
    assert markdown(asciidoc) == said


@pytest.mark.parametrize(
    ("asciidoc", "said"),
    [
        ("* one\n  more\n** two\n\n*** three\n* [x] four", "- one more\n  - two\n\n    - three\n- four"),
        (
            ". one\n.. two\n. three\n\n1. four\n<1> five",
            "1. one\n  1. two\n1. three\n\n  1. four\n    1. five",
        ),
        (
            "Ada:: lives in Oslo\nBob::\n  too,\n  he says\nCy::\nDi::\n\n\tboth",
            "**Ada**: lives in Oslo\n**Bob**: too, he says\n**Cy**\n**Di**: both",
        ),
        (
            "* one\n+\nmore of it\n+\n----\nx = 1\n----\n* two",
            "- one\n\n  more of it\n\n  ```\n  x = 1\n  ```\n\n- two",
        ),
        ("`-a`::\n*--all*:: All.\n+\nReally.", "**`-a`**\n**--all**: All.\n\nReally."),
    ],
)
def test_lists(asciidoc: str, said: str) -> None:
    assert markdown(asciidoc) == said


@pytest.mark.parametrize(
    ("asciidoc", "said"),
    [
        ("[source,java]\n----\nint *a* = {b}; // <1>\n----", "```java\nint *a* = {b}; // <1>\n```"),
        ("....\n== no title\n----\n....", "```\n== no title\n----\n```"),
        ("```ruby\nputs 1\n```", "```ruby\nputs 1\n```"),
        ("----\n```\nx\n```\n----", "````\n```\nx\n```\n````"),
        ("[,sh]\nls\ncd ..\n\nText.", "```sh\nls\ncd ..\n```\n\nText."),
        ("Type:\n\n  ls *a*\n   -l\n\nText.", "Type:\n\n```\nls *a*\n -l\n```\n\nText."),
        ("Type:\n\n  ls\n\tcd\n\nText.", "Type:\n\n```\n  ls\n\tcd\n```\n\nText."),
        (
            "NOTE: Be *here*.\n\n[TIP]\n====\nTwo.\n\nThree.\n====",
            "**Note**: Be **here**.\n\n**Tip**\n\nTwo.\n\nThree.",
        ),
        (
            "[quote, Ada, Letters]\n____\nSo _it_ is.\n\nYes.\n____\nText.",
            "> So *it* is.\n> \n> Yes.\n> — Ada, Letters\n\nText.",
        ),
        ("****\nAside.\n****\n\n--\nOpen.\n--", "Aside.\n\nOpen."),
        ("++++\n<b>x</b>\n++++\n[stem]\n++++\nx^2\n++++", "x\n\n$$\nx^2\n$$"),
        ("[plantuml]\n----\na -> b\n----\nText.", "Text."),
        ("====\nOne.\n\n----\nTwo.", "One.\n\nTwo."),
    ],
)
def test_blocks(asciidoc: str, said: str) -> None:
    assert markdown(asciidoc) == said


@pytest.mark.parametrize(
    ("asciidoc", "said"),
    [
        (
            "|===\n|City |People\n\n|Oslo\n|700000\n|Bergen |290000\n|===",
            "| City | People |\n|---|---|\n| Oslo | 700000 |\n| Bergen | 290000 |",
        ),
        (
            '[cols="1,a"]\n|===\n|A\n|* one\n* two\n// not\n3+^.>s|B \\| C\n|===',
            "| A | - one - two |\n| B \\| C |  |",
        ),
        ("[cols=2*]\n|===\n.2+|A |b\n|c\n2*|d\n|===", "| A | b |\n| A | c |\n| d | d |"),
        (',===\nA,"b, c"\n,===', "| A | b, c |"),
    ],
)
def test_tables(asciidoc: str, said: str) -> None:
    assert markdown(asciidoc) == said


@pytest.mark.parametrize(
    ("attributes", "between", "titled"),
    [
        ("", "", False),
        ("", "\n", True),
        ("[%header]\n", "", True),
        ("[%header%footer,cols=2*]\n", "", True),
        ('[cols=2*,options="footer,header"]\n', "", True),
        ("[opts=header]\n", "", True),
        ("[%noheader]\n", "\n", False),
        ('[cols="2*",%autowidth]\n', "", False),
    ],
)
def test_only_titles_name_what_cells_say(attributes: str, between: str, titled: bool) -> None:
    """Without them a row of data would pass for titles: "Oslo: Bergen; 700: 290"."""
    rows = (
        "|City |People\n" + between + "".join(f"|{name} |{n}\n" for name, n in (("Oslo", 71), ("Bergen", 29)))
    )
    said = markdown(f"{attributes}|===\n{rows}|===")
    assert ("|---|---|" in said) == titled and "| Oslo | 71 |" in said


@pytest.mark.parametrize(
    ("asciidoc", "said"),
    [
        (":url: https://a.b\n:x: the {url}[map]\n\nSee {x}.{nbsp}It is {cpp}.", "See the map. It is C++."),
        (":a: one \\\n  two\n\nSay {a}, not `{b}`.", "Say one two, not `{b}`."),
        (":a:\n\nifdef::a[]\nyes\nendif::[]\nifndef::a[]\nno\nendif::[]", "yes"),
        (
            "ifdef::env-github[no]\nifdef::b[maybe]\nifdef::a+env-github[no]\nifndef::a,c[maybe so]",
            "maybe\nmaybe so",
        ),
        (":!a:\n\nifdef::a[]\nifdef::b[]\nno\nendif::[]\nno\nendif::[]\nyes", "yes"),
        (
            "See <<deep,it>>, <<deep>>, <<Of Ada>>, <<_of_ada>> and <<x>>.\n\n[#deep]\n== Deep `x`\n\n"
            "=== Of Ada",
            "See it, Deep `x`, Of Ada, Of Ada and […].\n\n## Deep `x`\n\n### Of Ada",
        ),
        ("As <<k>> says.\n\n* [[[k,1]]] Ada.", "As [1] says.\n\n- [1] Ada."),
    ],
)
def test_attributes_conditions_and_references(asciidoc: str, said: str) -> None:
    assert markdown(asciidoc) == said


@pytest.mark.parametrize(
    "text",
    [
        "std::sort is a function that sorts things [1].",
        "array::new[size] and array[[0]] of names:string[] or map:key[0].",
        "The tag <div> and </div>, {{#if x}} and {% include y %}.",
        r"Of C:\dir\*.txt and path\_to.",
        "Text one\n/// more.",
        "# Learn C#",
    ],
)
def test_what_is_no_markup_stays(text: str) -> None:
    assert markdown(text) == text


@pytest.mark.parametrize(
    ("asciidoc", "said"),
    [
        ("= T\nRun git add <file> here.", "# T\n\nRun git add <file> here."),
        ("= T\nOslo City\nBergen Town", "# T\n\nBergen Town"),
        ("= A\n:x: y\nAda King <ada@b.org>\n:z: w\n\nText.", "# A\n\nText."),
        ("====\nSure.\n====", "Sure."),
        ("* a\n+\nRun:\n----\nls *x* y\n----", "- a\n\n  Run:\n\n```\nls *x* y\n```"),
        ('[subs="quotes,attributes"]\nThis is *prose*.', "This is **prose**."),
        ("[source,c]\nint x;\n// another\nint y;", "```c\nint x;\n// another\nint y;\n```"),
        ("====\nTerm::\n====\n\nText outside.", "**Term**\n\nText outside."),
        ("Term::\n\n[NOTE]\nBe here.", "**Term**\n\n**Note**: Be here."),
        (
            "a wordfootnote:x[*One*.] footnote:x[]footnote:[Two]",
            "a word[^1][^1][^2]\n\n[^1]: **One**.\n[^2]: Two",
        ),
        ("xref:other.adoc#here[] and <<here>>.\n\n== Here", "[…] and Here.\n\n## Here"),
        ("See xref:this.adoc#x[].\n\n* xref:b.adoc[]\n\n[#x]\n== Here", "See Here.\n\n## Here"),
        (":d: pass:q[An _a_.]\n\n{d}", "An *a*."),
        ("----\n# install\n----\n\n<<install>>", "```\n# install\n```\n\n[…]"),
        ("[[x]]\n== Of \ufdd09\ufdd1\n\nSee <<x>>.", "## Of 9\n\nSee Of 9."),
        ("[separator=¦]\n|===\n¦a ¦b\n|===", "| a | b |"),
        (
            ':p: Prod\n\n[cols="1a"]\n|===\n|\nIt is {p}.footnote:[n]\n\n----\na b\nc\n----\n|===',
            "| It is Prod.[^1] `a b c` |\n\n[^1]: n",
        ),
    ],
)
def test_what_asciidoctor_prints_is_read(asciidoc: str, said: str) -> None:
    assert markdown(asciidoc) == said


def test_no_page_grows_without_end() -> None:
    titles = f"[[a]]\n== {'long ' * 2000}\n\n" + "<<a>> " * 1000
    cells = ":a: " + "b" * 900 + "\n\n[cols=1a]\n|===\n" + "20*|\n{a}{a}{a}\n" * 200 + "|===\n"
    nested = "|===\na|x\n" + "".join(f"{chr(92) * n}|===\na{chr(92) * n}|x\n" for n in range(1, 200))
    for text in (titles, cells, nested + "|===\n"):
        assert len(markdown(text)) < 6_000_000


def test_front_matter_may_stand_before_a_page() -> None:
    assert markdown("---\ntitle: Ada\n---\n\n== Oslo\n\n*Text*.") == "# Ada\n\n## Oslo\n\n**Text**."


def test_pages_are_read_and_asked_about(tmp_path: Path) -> None:
    for suffix in ("adoc", "asciidoc"):
        (tmp_path / f"page.{suffix}").write_text(
            f"= Of {suffix}\n\n[horizontal]\nAda:: She lives in xref:oslo.adoc[Oslo].\n"
            "\nSee xref:x.adoc[] of it.\n"
        )
    found = [prose_sentences(str(text)) for text in read_corpus(tmp_path).texts]
    assert found == [["Ada: She lives in Oslo."]] * 2


@given(st.text("abc *_#`+", max_size=60))
@settings(deadline=None)
def test_code_stays_as_it_stands(code: str) -> None:
    assert f"```\nx{code}y\n```" in markdown(f"Text.\n\n----\nx{code}y\n----\n\n*More*.")


PIECES = (
    "= A\n",
    "a\n",
    "\n",
    "----\n",
    "====\n",
    "|===\n",
    "|a ",
    "____\n",
    "* a\n",
    "a::\n",
    "+\n",
    "[NOTE]\n",
    "--\n",
    "  x\n",
    "*a*",
    "`b`",
    "<<a>>",
    "xref:a[b]",
    "{a}",
    ":a: {a}\n",
    "ifdef::a[]\n",
    "endif::[]\n",
    "footnote:[a]",
    "[[a]]\n",
    "\ufdd00\ufdd1",
    "////\n",
)


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text(max_size=60))
@settings(deadline=None)
def test_any_text_is_read(text: str) -> None:
    said = markdown(text)
    assert "\ufdd0" not in said or "\ufdd0" in text
    assert "word" in markdown(f"{text}\n\n== word") or any(
        rule in text for rule in ("----", "////", "|===", "ifdef")
    )


@pytest.mark.parametrize(
    "piece",
    [
        "*a ",
        "_a ",
        "`a ",
        "+a ",
        "a:a[",
        "xref:",
        "<<a,",
        "[[a",
        "((a",
        "{a}",
        "stem:[",
        "pass:[",
        "footnote:[a",
        "----\n",
        "====\n",
        "____\n",
        "|===\n|",
        "|===\n99*|a\n",
        "* a\n",
        "a::\n",
        "ifdef::a[]\n",
        ":a: {a}{a}\n",
        "aaaa\n----\n",
        "[a]\n",
        ".a\n",
        "^a",
        " a\n\n",
    ],
)
def test_no_page_takes_long(piece: str) -> None:
    begun = time.process_time()
    said = cleaned(piece * (30_000 // len(piece)), "adoc")
    assert time.process_time() - begun < 3
    assert len(said) < 2_000_000
