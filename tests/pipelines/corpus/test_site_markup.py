"""What text files of a site's sources are read as: what the site's readers see, code as it stands."""

from __future__ import annotations

import time
import timeit
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.corpus import documents
from pipelines.corpus.prose import asked_sentences, prose_sentences
from pipelines.corpus.reading import site_markup
from pipelines.corpus.reading.site_markup import cleaned
from tests.support import papers

PIECES = (
    "---\n",
    "+++\n",
    "title: A\n",
    "x = 1\n",
    "# H\n",
    "word",
    " ",
    "\n",
    "\n\n",
    "    ",
    "\t",
    "- ",
    "> ",
    "|",
    "`",
    "```\n",
    "~~~",
    "$$",
    "<",
    ">",
    "/",
    "<!--",
    "-->",
    "{/*",
    "*/}",
    "<b>",
    "</b>",
    "<p>",
    "<li>",
    "<td>",
    "<tr>",
    "</tr>",
    "<table>",
    "</table>",
    "<dt>",
    "<dd>",
    "</dd>",
    "<br>",
    "<pre>",
    "</pre>",
    "<code>",
    "</code>",
    "<script>",
    "</script>",
    '<a href="x">',
    "<Tab/>",
    "<Tab>",
    "</Tab>",
    "{{< x >}}",
    "{{< /x >}}",
    '{{% tab "T" %}}',
    "{{",
    "}}",
    "{% raw %}",
    "{% endraw %}",
    "{% highlight sh %}",
    "{% endhighlight %}",
    "{% comment %}",
    "{% endcomment %}",
    "{# a #}",
    "<%= x %>",
    "<% x %>",
    "import A from 'a'\n",
    "> [!NOTE]\n",
    ":::note T\n",
    ":::\n",
    "{: .x}",
    "(a)=\n",
    ".. a\n",
    ".. _a:\n",
    ".. note::\n",
    ".. code-block:: c\n",
    "   :x: 1\n",
    "..\n",
    "::\n",
    "&lt;",
    "\\",
    "{#a}",
    "import",
    "export const a = (\n",
    ")\n",
    '[¶](#a "b")',
    "[[source]](a.html)",
    ":material-a:",
    "{ .a }",
    "{a.b}",
    "++a++",
    "--8<-- a\n",
    "/// tip | A\n",
    "///\n",
)
SUFFIXES = ("md", "mdx", "rst", "txt")
texts = st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text(max_size=60)


@given(texts, st.sampled_from(SUFFIXES))
@example("<<b></b>b>x</b></b>", "md")
@example("---\ntitle: A\n---\n---\ntitle: B\n---\n", "md")
@settings(deadline=None)
def test_cleaning_twice_is_cleaning_once(text: str, suffix: str) -> None:
    once = cleaned(text, suffix)
    assert cleaned(once, suffix) == once


@given(texts.filter(lambda text: "```" not in text), texts, st.sampled_from(("md", "mdx")))
@settings(deadline=None)
def test_fenced_code_stays_as_it_stands(code: str, before: str, suffix: str) -> None:
    block = f"```go\n{code}\n```"
    assert block in cleaned(f"A <b>word</b>.\n\n{block}\n\n<!-- x -->\n", suffix)
    assert block in cleaned(f"{{{{< note >}}}}\n{block}\n{{{{< /note >}}}}\n", suffix)


@given(st.text("ab{}<>%/!- ", min_size=1, max_size=30))
def test_inline_code_stays_as_it_stands(code: str) -> None:
    assert cleaned(f"Say `{code}` <b>now</b>.", "md") == f"Say `{code}` now."


@pytest.mark.parametrize(
    "text",
    [
        "Text.\n\n---\n\nMore.\n",
        "---\n\nA rule above this.\n\n---\n\nMore.\n",
        "Use <your-name>, <FILE> and a <T>, with 3 < 4 and x<y>z.",
        "Write to <ada@b.org> or <https://b.org/?a=b>.",
        "The <b> tag alone, and if a <b and c> d.",
        "E = 10<sup>6</sup> of H<sub>2</sub>O, <del>not</del> so.",
        "Version {{ version }} of {% link x.md %} and [it]({{< ref y >}}).",
        "Escaped \\<b>it\\</b> and {:a => 1}.",
        "The imports from 'x' are exported.\nimport duties from China\n",
        "```jsx\nimport A from 'a';\n```\n\nYou can also\nexport the {kind} of table.\n\nA word.\n",
        "You may\nexport default values (or others)\nof it.\n",
        "    <b>indented</b> {{ code }}\n\n    {% more %}\n",
        "- one\n\n      <b>code</b> of the item\n",
        "$$\n{{a}}\n$$\n",
        "{% raw %}\n{{ x }}\n{% endraw %}\n",
        "# A\n\n```\n{{< x >}}\n<!-- kept -->\n",
        "An [x][y] with\n\n[y]: https://b.org 'T'\n",
        "Note: a list\n: of <no-tags>\n",
        "<!-- never closed",
        "{{< never closed",
    ],
)
def test_text_that_only_looks_like_markup_stays(text: str) -> None:
    assert cleaned(text, "md") == text


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("---\ntitle: Ada\n---\n\n# Ada\n\nText.\n", "# Ada\n\nText.\n"),
        ("---\ntitle: Ada\nrun: all\n...\n\nText.\n", "# Ada\n\nText.\n"),
        ("---\na: b\n... \nText.\n\n---\n\nMore.\n", "Text.\n\n---\n\nMore.\n"),
        ("+++\na = 1\n...\n+++\nText.\n", "Text.\n"),
        ('---\ntitle: "An \\"API\\"" \ntags: [a]\n---\nText.\n', '# An "API"\n\nText.\n'),
        ("---\ntitle: It's # a remark\n---\n## Part\n\nText.\n", "# It's\n\n## Part\n\nText.\n"),
        ("---\n title: Ada\n kind: x\n---\nText.\n", "# Ada\n\nText.\n"),
        (
            "---\ntitle: Ada\n---\nText.\n\n## Part\n\n# Summary\n",
            "# Ada\n\nText.\n\n## Part\n\n# Summary\n",
        ),
        ("---\ntitle: Ada\n---\nText.\n\n# Part\n", "# Ada\n\nText.\n\n# Part\n"),
        ("---\ntitle: Ada\n---\nText.\n\nPart\n---\n\n# B\n", "# Ada\n\nText.\n\nPart\n---\n\n# B\n"),
        ("---\ntitle: Ada\n---\nText.\n\n# *Ada*\n", "Text.\n\n# *Ada*\n"),
        ("---\ntitle: Ada\n---\n<!--\n# NOTE\n-->\nText.\n", "# Ada\n\nText.\n"),
        ("---\ntitle: Ada\n---\n![x](y.png)\n\n# Ada Horn\n", "![x](y.png)\n\n# Ada Horn\n"),
        ("---\ntitle: Setup\n---\n## Setup\n\nText.\n", "## Setup\n\nText.\n"),
        ("---\ntitle: Ada\n---\n```\n# no heading\n```\n", "# Ada\n\n```\n# no heading\n```\n"),
        ("---\ndescription: >\n  Says\n  it.\nlayout: x\n---\nText.\n", "Says it.\n\nText.\n"),
        (
            "---\ndescription: Says it.\n---\n# A\n\nIt *says* it. Says it.\n",
            "# A\n\nIt *says* it. Says it.\n",
        ),
        ("+++\ntitle = 'Ada'\n[menu]\n+++\nText.\n", "# Ada\n\nText.\n"),
        ("A <!-- remark\n\nover lines --> word.\n", "A  word.\n"),
        ("A.\n\n<!-- gone -->\n\nB.\n", "A.\n\nB.\n"),
        ('A.\n\n<aside class="tip">\n\tSaid.\n</aside>\n\nB.\n', "A.\n\n\tSaid.\n\nB.\n"),
        ('<p align="center"><b>One</b> two</p>\n', "One two\n"),
        ("<ul><li>a</li><li>b</li></ul>\n", "- a\n- b\n"),
        ("<table><tr><td>a</td><td>b</td></tr></table>\n", "| a | b |\n"),
        ("| a<br>b | <p>c</p> |\n|---|---|\n", "| a b | c |\n|---|---|\n"),
        ('<h2 id="x">Part</h2>\n', "## Part\n"),
        ('See [it <img src="x.svg" class="y">](a.md).\n', "See [it](a.md).\n"),
        ("<script>\nx < 1\n</script>\nText.\n", "Text.\n"),
        ("<pre><code>a &lt; <b>b</b></code></pre>\n", "```\na < b\n```\n"),
        ("Say <code>{{ x }}</code> or <code>a &amp; b</code>.\n", "Say `{{ x }}` or `a & b`.\n"),
        ("{{< hint info >}}\nSaid.\n{{< /hint >}}\n\n{{< youtube x >}}\n", "Said.\n\n"),
        ("{% if x %}It is so.{% endif %}\n{% else %}\nText.\n", "It is so.\nText.\n"),
        ("Run {{< term text=\"pods\" id='pod' >}} here.\n", "Run pods here.\n"),
        ('{{% tab "Linux" %}}\nls\n{{% /tab %}}\n', "**Linux**\nls\n"),
        ("{% highlight sh %}\n{{ x }}\n{% endhighlight %}\n", "```sh\n{{ x }}\n```\n"),
        ("{{< code-toggle >}}\na = '```'\n{{< /code-toggle >}}\n", "````\na = '```'\n````\n"),
        ("{% comment %}\nx\n{% endcomment %}\n{# y #}\nText.\n", "Text.\n"),
        ("{% raw %}\n```\n{{ x }}\n```\n{% endraw %}\n", "```\n{{ x }}\n```\n"),
        ("<% if x %>\nText of <%= name %>.\n<% end %>\n", "Text of <%= name %>.\n"),
        (
            "import Tabs from '@theme/Tabs';\nimport {\n  A,\n} from \"b\";\n\n<Tabs>\n"
            '<TabItem value="a" label="On Linux">\n\nText.\n\n</TabItem>\n</Tabs>\n<A />\n',
            "**On Linux**\n\nText.\n\n",
        ),
        ("{/* a remark */}\nexport const x = {a: 1};\nText.\n", "Text.\n"),
        ("> [!WARNING]\n> Said.\n", "> **Warning**\n> Said.\n"),
        (":::tip[Faster]\nSaid.\n:::\n::: {.columns}\n", "**Tip: Faster**\nSaid.\n"),
        ("(label)=\n# Part {#part}\n{: .no_toc }\nText.\n", "# Part\nText.\n"),
        ('# Part[¶](#part "Permalink to this heading")\n\n## B [#](#b)\n', "# Part\n\n## B\n"),
        ('## C[](https://a.org/b.html#c "Link to this heading")\n', "## C\n"),
        ("`get`(*url*)[[source]](../a.html#get)[¶](#get)\n", "`get`(*url*)\n"),
        ("# Part :material-check:{ .green }\n", "# Part\n"),
        ("[a][b]{target=_blank} and [c](d_(e).html){target=_blank}.\n", "[a][b] and [c](d_(e).html).\n"),
        ("[It :octicons-link-16:](a.md){ .md-button target=_blank } is here.\n", "[It](a.md) is here.\n"),
        ("Set `x`{.y} and ++ctrl+c++.\n", "Set `x` and ctrl+c.\n"),
        ("<b>x</b> {a=1} as <b>y</b>{.b}.\n", "x {a=1} as y{.b}.\n"),
        (
            '[`a`](b "c"){target=_blank} ![](d.png){width=50%} **e**{a=b .f}\n',
            '[`a`](b "c") ![](d.png) **e**\n',
        ),
        ("--8<--\na.md\n--8<--\n--8<-- [start:b]\nSaid.\n", "a.md\nSaid.\n"),
        ('A.\n\n--8<-- "b.md"\n\n{* ../c.py hl[3] *}\n\nD.\n', "A.\n\nD.\n"),
        ("/// tip | Faster\n\nSaid.\n\n///\n", "**Tip: Faster**\n\nSaid.\n\n"),
        ("/// details | More\n    type: info\n\nSaid.\n///\n", "**Details: More**\n\nSaid.\n"),
        (":::info Faster {#a}\nSaid.\n:::\n", "**Info: Faster**\nSaid.\n"),
        ('<div style={{color: "red"}}>\n\nSaid.\n\n</div>\n', "Said.\n\n"),
        ('<Tab label="On Linux" icon={a > 1}>Said.</Tab>\n', "**On Linux**\n\nSaid.\n"),
        ('## {{% heading "requirements" %}}\n\n{{< a >}} {{< b >}}\n\nSaid.\n', "## requirements\n\nSaid.\n"),
    ],
)
def test_what_a_site_s_tools_read_is_left_out_of_markdown(text: str, read: str) -> None:
    assert cleaned(text, "md") == read


ROWS = "<tr><td>apple</td><td>the web server</td></tr>\n<tr><td>fig</td><td>the database</td></tr>\n"


@pytest.mark.parametrize(
    ("table", "read"),
    [
        (
            f"<tr><th>Name</th><th>What it is</th></tr>\n{ROWS}",
            "| Name | What it is |\n|---|---|\n| apple | the web server |\n| fig | the database |\n",
        ),
        (ROWS, "| apple | the web server |\n| fig | the database |\n"),
        (
            "\n  <thead>\n  <tr>\n    <th>Name</th>\n    <th>It is</th>\n  </tr>\n  </thead>\n  <tr>\n"
            "  <td>\n\n`a|b`\n\n  </td>\n  <td><p>of *us*</p><p>all \\| more</p></td>\n  </tr>\n"
            "<tr><td>b</td><td><ul><li>one</li><li>two</li></ul></td></tr>\n",
            "| Name | It is |\n|---|---|\n| `a\\|b` | of *us* all \\| more |\n| b | - one - two |\n",
        ),
        (
            "<caption>Hosts</caption><tr><th>a<th>b<tr><td rowspan=2>c<td>d<tr><td>e",
            "Hosts\n\n| a | b |\n|---|---|\n| c | d |\n| c | e |\n",
        ),
    ],
    ids=["titles", "no titles", "blocks", "spans"],
)
def test_a_row_of_a_table_in_html_is_a_line_of_markdown(table: str, read: str) -> None:
    text = f"Before.\n\n<table>{table}</table>\n\nAfter.\n"
    assert cleaned(text, "md") == f"Before.\n\n{read}\nAfter.\n"


def test_cells_of_a_table_in_html_are_asked_with_their_titles() -> None:
    titles = "<tr><th>Name</th><th>What it is</th></tr>"
    text = cleaned(f"It runs:\n<table>\n{titles}\n{ROWS}</table>\nIt ends.\n", "md")
    assert [one.sentence for one in asked_sentences(text)] == [
        *("It runs:", "It ends."),
        "Name: apple; What it is: the web server",
        "Name: fig; What it is: the database",
    ]


@pytest.mark.parametrize(
    ("table", "read"),
    [
        ("<tr><td>One</td></tr><tr><td>Two</td></tr>", "One\nTwo\n"),
        (
            "<tr><td>\n\n### One\n\nSaid.\n\n</td><td>\n\n```\nls\n```\n\n</td></tr>",
            "### One\n\nSaid.\n\n```\nls\n```\n\n",
        ),
        ('<tr><td><img src="a.png"></td><td><img src="b.png"></td></tr>', ""),
        (f"<tr><td>One {'word ' * 400}</td><td>two</td></tr>", f"One {'word ' * 400}two\n"),
    ],
    ids=["one column", "blocks of Markdown", "pictures", "long"],
)
def test_a_table_that_lays_a_page_out_is_none(table: str, read: str) -> None:
    assert cleaned(f"<table>{table}</table>\n", "md") == read


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (
            "Text.\n<dl>\n  <dt>node</dt>\n  <dd>\n    a <b>machine</b> that\n    runs\n  </dd>\n"
            "  <dt><code>pod</code></dt>\n  <dd><p>the unit</p></dd><dd>or more</dd>\n</dl>\n",
            "Text.\n\nnode\n: a machine that\n    runs\n\n`pod`\n: the unit\n: or more\n",
        ),
        (
            "<dl><dt>ab</dt><dd><ul><li>one</li><li>two</li></ul></dd><dt>cd</dt><dd>\n\n```\nx\n```\n"
            "</dd><dt>ef</dt><dd></dd></dl>\nSaid.\n",
            "ab\n- one\n- two\n\ncd\n\n```\nx\n```\n\nef\nSaid.\n",
        ),
    ],
    ids=["terms", "blocks"],
)
def test_a_definition_in_html_is_one_of_markdown(text: str, read: str) -> None:
    assert cleaned(text, "md") == read


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (
            "export const A = ({b}) => (\n  <i>\n\n    {b}\n  </i>\n);\n\n# Part\n\nText.\n",
            "# Part\n\nText.\n",
        ),
        ("See [a](https://b.org?c=[[{d.e}]]).\n", "See [a](https://b.org?c=[[{d.e}]]).\n"),
        ("Version {props.version} of{' '}\n{'it'}.\n", "Version […] of \nit.\n"),
        ("Now $x^{n}$ is $\\frac{a}{b}$ of {props.c}.\n", "Now $x^{n}$ is $\\frac{a}{b}$ of […].\n"),
        ("You can also\nexport the table.\n\nA word (so)\nis.\n",) * 2,
        ("export const a = `\nconst b = 1\n`;\n\nSaid.\n", "Said.\n"),
        ("export const a = 'b ' +\n  'c';\n\nSaid.\n", "Said.\n"),
        ("# Part\nexport const a = 1;\n\nSaid.\n", "# Part\n\nSaid.\n"),
        ("export const a = (b) => <C\n  d={1}\n/>;\n\nSaid.\n", "Said.\n"),
        ("export * from 'a'\nexport default A\n\nSaid\n(so).\n", "Said\n(so).\n"),
        ("export const a = [\n  1,\n]\nexport { b } from 'b'\n\nSaid.\n", "Said.\n"),
        ("{props.children}\n\nText with `{code}` and \\{braces}.\n", "Text with `{code}` and \\{braces}.\n"),
    ],
)
def test_what_mdx_runs_is_left_out(text: str, read: str) -> None:
    assert cleaned(text, "mdx") == read


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Call {name} of {word}.\n", "Call {name} of {word}.\n"),
        ("```\n<A />\n```\nCall {name}.\n", "```\n<A />\n```\nCall {name}.\n"),
        ("<A />\nCall {name}.\n", "Call […].\n"),
        ("Call {A.b} of {name}.\n", "Call […] of […].\n"),
        ("export const c = (\n  1\n);\n\nCall {name}.\n", "Call […].\n"),
        ("<div style={{a: 1}}>Call {name}.</div>\n", "Call […].\n"),
    ],
)
def test_braces_of_a_plain_page_are_expressions_where_it_uses_jsx(text: str, read: str) -> None:
    """An import alone, as one that a page is about, tells nothing of its braces."""
    assert cleaned(f"import A, {{ B }} from 'a';\n\n{text}", "md").lstrip("\n") == read


@pytest.mark.parametrize(
    "text",
    [
        "The set {a, b} of f(x) {y} and C++ or i++.\n",
        'Send the pair: {key=value} with `up` {job="api"} (of it) {env=prod}, `up`{a=b} and f(x){a=b}.\n',
        "--8<-- means cut here\n",
        "See [](#part) and [the text](#part), issue [#](https://a.org/b), a:material-b.\n",
        "/// a comment of code\n\nexport const a = (\n",
        "A word ///\n",
    ],
)
def test_what_only_looks_like_an_extension_stays(text: str) -> None:
    assert cleaned(text, "md") == text


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (
            "..\n  A comment.\n\n  More of it.\n\nText.\n\n.. TODO: say more\n\nMore.\n",
            "Text.\n\nMore.\n",
        ),
        (
            ".. note::\n   :class: tip\n   :name: x\n      y\n\n   Said: so.\n   :kept: as it is\n",
            ".. note::\n\n   Said: so.\n   :kept: as it is\n",
        ),
        (
            ".. figure:: a.png\n   :alt: A graph\n   :width: 1\n\n   Said.\n",
            ".. figure:: a.png\n   :alt: A graph\n\n   Said.\n",
        ),
        (
            ".. code-block:: sh\n   :linenos:\n\n   .. not a comment\n   ls\n\nText.\n",
            ".. code-block:: sh\n\n   .. not a comment\n   ls\n\nText.\n",
        ),
        (
            ".. _label:\n\nPart\n====\n\nAs here::\n\n  .. kept\n\n",
            "Part\n====\n\nAs here::\n\n  .. kept\n\n",
        ),
        (".. index:: a, b\n   single: c\n\nText.\n\n..\n\n  A quote.\n", "Text.\n\n  A quote.\n"),
        ("Part\n====\n\n.. currentmodule:: a.b\n.. include:: ../c.rst\n\nText.\n", "Part\n====\n\nText.\n"),
        (
            "---\ntitle: Ada\n---\nText ...\n.. goes on.\n",
            "Ada\n===\n\nText ...\n.. goes on.\n",
        ),
        (
            ".. _a: https://b.org\n.. |x| replace:: y\n.. [1] A note.\n.. _b:\n   https://c.org\n",
            ".. _a: https://b.org\n.. |x| replace:: y\n.. [1] A note.\n.. _b:\n   https://c.org\n",
        ),
    ],
)
def test_what_sphinx_alone_reads_is_left_out_of_restructured_text(text: str, read: str) -> None:
    assert cleaned(text, "rst") == read
    assert cleaned(text, "txt") == (
        read if ".. note::" in text or "code-block" in text else cleaned(text, "txt")
    )


DEFINED = ".. |pro| replace:: Zorblat\n   |kind|\n.. |kind| replace:: Engine\n.. |logo| image:: a.png\n"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (
            "Since |release| the |pro| is |Kind| of |pro|'s, |x| < |pro|_ and |pro|\\ s.\n",
            "Since […] the Zorblat Engine is Engine of Zorblat Engine's, |x| < Zorblat Engine"
            " and Zorblat Engines.\n",
        ),
        ("Say ``|pro|``, :math:`|pro|`, a|pro| and a || pro |.\n",) * 2,
        ("As here::\n\n   |pro|\n\n.. code-block:: sh\n\n   echo |pro|\n",) * 2,
        (
            ".. note:: |pro| runs.\n\n   So |pro| does.\n",
            ".. note:: Zorblat Engine runs.\n\n   So Zorblat Engine does.\n",
        ),
        ("|logo| |build|\n\nPress |logo| twice.\n", "\n\nPress […] twice.\n"),
        (
            "====  =====\nName  It is\n====  =====\nab    |pro|\ncd    new\n====  =====\n",
            "\n| Name | It is |\n|---|---|\n| ab | Zorblat Engine |\n| cd | new |\n\n",
        ),
        ("+---+-----+\n|a  |b |c||\n|   +-----+\n|a  |pro  |\n+---+-----+\n",) * 2,
    ],
    ids=["words", "code", "blocks of code", "boxes", "pictures", "table", "drawn table"],
)
def test_substitutions_of_restructured_text_are_read_by_what_they_stand_for(text: str, read: str) -> None:
    definitions = DEFINED.replace("|kind|\n", "Engine\n", 1)
    assert cleaned(f"{DEFINED}\n{text}", "rst") == f"{definitions}\n{read}"


def test_a_substitution_that_only_the_settings_define_is_left_out_of_any_page() -> None:
    assert cleaned("It is |release| now.\n", "rst") == "It is […] now.\n"
    many = "".join(f".. |a{n}| replace:: {f'|a{n + 1}| ' * 40}\n" for n in range(9))
    assert len(cleaned(f"{many}\nIt is |a0|.\n", "rst")) < 100_000


PICTURE = f"data:image/png;base64,{'iVBORw0KGgo' * 400}=="


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (f"![A chart]({PICTURE})\n", "![A chart]()\n"),
        (
            f"Before ![][image1] after.\n\n[image1]: <{PICTURE}>\n",
            "Before ![][image1] after.\n\n[image1]: <>\n",
        ),
        (f'See <img alt="it" src="{PICTURE}"/> here.\n', "See  here.\n"),
        (f"```css\na {{ background: url({PICTURE}) }}\n```\n", "```css\na { background: url() }\n```\n"),
        (f"{PICTURE} and {PICTURE}", " and "),
        (f"---\ntitle: A\n---\n![]({PICTURE})\n", "# A\n\n![]()\n"),
    ],
)
def test_a_picture_s_data_are_left_out_of_markdown(text: str, read: str) -> None:
    assert cleaned(text, "md") == read


def test_short_data_and_words_that_begin_alike_stay() -> None:
    said = f"Say `data:image/gif;base64,R0lGODlhAQABAAAAACw=`.\nOur data: {'long ' * 99}\ndata:{'x' * 400}\n"
    assert cleaned(said, "md") == said


@pytest.mark.parametrize("size", [1, 7, 999, 1000, 1001, 5000])
def test_a_picture_s_data_go_from_a_very_long_text_too(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_markup, "LONGEST", 50)
    text = f"Before ![a]({PICTURE}) it, {'word ' * 300}and ![b]({PICTURE}) behind. {PICTURE}"
    parts = (text[at : at + size] for at in range(0, len(text), size))
    read = f"Before ![a]() it, {'word ' * 300}and ![b]() behind. "
    assert "".join(site_markup.read_markup(parts, "md")) == read


def test_a_picture_s_data_count_as_markup(tmp_path: Path) -> None:
    root = papers.write(tmp_path, {"a.md": f"A page with ![a chart]({PICTURE}) of it.\n"})
    found = documents.read_corpus(root)
    assert found.texts == ("A page with ![a chart]() of it.\n",)
    assert [row.markup for row in found.manifest] == [len(PICTURE)]


HARD = (
    *("<", "<a ", "<a '", '<a href="', "<!--", "{{", "{{<", "{%", "`", "`` ", "$$", "[!", ":::\n", " ", "\t"),
    *("<b>a</b>", "<p>a</p>", "<td>a</td>|", "<pre>", "{% raw %}", "{% code-x %}", "import {", "..\n"),
    *("<table>", "<table><tr><td>a</table>", "<dd>a"),
    *(
        "[¶](",
        "[¶](#",
        "[#](#a ",
        "[[source]](",
        ":material-",
        "{ .a ",
        "{.a",
        "++a",
        "///\n",
        "/// a\n a: b\n",
    ),
    *("export const a = (\n", "a]{b=", "<a b={", "{a", "{'", "|\n"),
    *("---\na: b\n", "  - x\n", "# a {#b}\n", "title: x\n y\n", "'", "= \n", "import a from\n", "- x\n\n"),
)


@pytest.mark.parametrize("suffix", ["qmd", "rmd"])
def test_a_value_that_only_a_build_fills_in_is_left_out_and_asked_about_nowhere(suffix: str) -> None:
    values = "The mean is `r round(mean(x), 2)`. It has `{python} len(a)` rows."
    formula = "As here:\n\n$$\ny = x\n$$ {#eq-line}\n\nIt ends."
    code = "Write `` `r x` `` or `rm x`.\n\n```\n`r x`\n```"
    text = cleaned(f"{values}\n\n{formula}\n\n{code}\n", suffix)
    assert text.startswith("The mean is […]. It has […] rows.\n")
    assert "{#eq" not in text and "`` `r x` ``" in text and "```\n`r x`\n```" in text
    assert prose_sentences(text) == ["As here:", "It ends.", "Write `r x` or rm x."]
    assert cleaned(values, "md") == values


@pytest.mark.parametrize("part", ["`r ", "`", "$$ ", "$$ {#", "`` `r a` "])
def test_time_of_a_page_that_is_built_grows_with_its_length_alone(part: str) -> None:
    def seconds(length: int, repeat: int = 3) -> float:
        return seconds_of(part * (length // len(part)), repeat, "qmd")

    assert seconds(40_000, 1) < 0.3 or seconds(40_000) < 10 * seconds(10_000)


@pytest.mark.parametrize("part", HARD)
def test_time_grows_with_the_length_alone(part: str) -> None:
    def seconds(length: int, repeat: int = 3) -> float:
        return seconds_of("---\n" + part * (length // len(part)), repeat)

    assert seconds(40_000, 1) < 0.3 or seconds(40_000) < 10 * seconds(10_000)


def seconds_of(text: str, repeat: int, suffix: str = "md") -> float:
    """The least of some without garbage collection, which takes a third of a second among many tests."""
    return min(timeit.repeat(lambda: cleaned(text, suffix), timer=time.process_time, repeat=repeat, number=1))


@pytest.mark.parametrize("line", ["x", "= ", " x=", "<!--", "x\n- ", "#"])
def test_time_grows_with_the_length_of_a_line_below_front_matter(line: str) -> None:
    def seconds(length: int, repeat: int = 3) -> float:
        return seconds_of(f"---\ntitle: A\n---\n{line * (length // len(line))}\n", repeat)

    assert seconds(40_000, 1) < 0.3 or seconds(40_000) < 10 * seconds(10_000)


@pytest.mark.parametrize(
    ("part", "end"),
    [
        ("{{ ", "}}"),
        ("a<script>", "</script>"),
        ("<script>\n", "\n```\n</script>"),
        ("{% raw %}", "`{% endraw %}"),
    ],
)
def test_time_grows_with_the_length_up_to_a_tag_that_closes(part: str, end: str) -> None:
    """A copy of the text up to there for each one that opens is quick, thousands of them are not."""

    def seconds(length: int) -> float:
        return seconds_of(part * (length // len(part)) + end, repeat=1)

    assert seconds(800_000) < 1.5 or seconds(800_000) < 8 * seconds(200_000)


def test_the_lines_of_restructured_text_are_read_once() -> None:
    text = ".. a\n\n   b\n\n.. c::\n   :d: e\n\n..\n" * 20_000
    began = time.process_time()
    cleaned(text, "rst")
    assert time.process_time() - began < 20


def test_a_file_is_read_by_its_suffix_and_a_very_long_one_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "---\ntitle: A\n---\nText <b>here</b>.\n"
    root = papers.write(
        tmp_path,
        {"a.md": page, "b.md.erb": page, "c.txt": page, "d.md": b"\xff\xfe" + page.encode("utf-16-le")},
    )
    found = documents.read_corpus(root)
    assert found.texts == ("# A\n\nText here.\n",) * 2 + (page, "# A\n\nText here.\n")
    left_out = len(page) - len(found.texts[0])
    assert [row.markup for row in found.manifest] == [left_out, left_out, 0, left_out]
    monkeypatch.setattr(site_markup, "LONGEST", len(page) - 1)
    assert documents.read_corpus(root).texts == (page,) * 4
