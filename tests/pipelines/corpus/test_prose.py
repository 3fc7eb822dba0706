"""Sentences as they read: without markup, whole where lines were wrapped."""

from __future__ import annotations

import time

import pytest

from pipelines.corpus.prose import prose_sentences
from pipelines.corpus.reading.site_markup import cleaned

LONG_CELL = "Follows established patterns within the existing code bases with ease"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# A title\nAda lives in Oslo. She sings.", ["Ada lives in Oslo.", "She sings."]),
        ('See [the *guide*](https://a.b/c "t") of [Oslo][1].', ["See the guide of Oslo."]),
        (
            "Coverage starts on January 1. Both plans end in May.",
            ["Coverage starts on January 1.", "Both plans end in May."],
        ),
        ("- one **bold** item\n* `code` item\n12. last", ["one bold item", "code item", "last"]),
        (
            r"Am 3\. Mai 2024 gilt a\_b, nicht `c\_d` und kein x\.y.",
            [r"Am 3. Mai 2024 gilt a_b, nicht c\_d und kein x\.y."],
        ),
        ("snake_case_name stays, _this_ goes", ["snake_case_name stays, this goes"]),
        ("| a | b |\n|---|---|\n| 1 | 2 |\nAfter it.", ["After it."]),
        (
            "Before it\n| Level | What it *asks* for |\n|:--|---|\n"
            f"| Two | {LONG_CELL} | Leads the team \\| the house. Ends it. |\nAfter it.",
            [
                "Before it",
                "What it asks for",
                LONG_CELL,
                "Leads the team | the house.",
                "Ends it.",
                "After it.",
            ],
        ),
        ("Before.\n```python\nx = 1\n```\nAfter.", ["Before.", "After."]),
        ("Before.\n```\nnever closed", ["Before."]),
        ("Read https://a.b/c now. Then go.", ["Then go."]),
        ("![logo](a.png)\n<div>x</div>\nText.", ["x", "Text."]),
        ("---\ntitle: Ada\ntags:\n  - x\n---\nText.", ["Text."]),
        ("---\nNo front matter, but a rule above.", ["No front matter, but a rule above."]),
        (
            "Text.\n<!-- of\nnobody's -->\nMore <code>--here</code> and `<b>`.",
            ["Text.", "More --here and <b>."],
        ),
        ("A heading\n=========\nText.\nIts end.\n---\nMore.", ["Text.", "Its end.", "More."]),
        ("Name: Ada\nCity: Oslo", ["Name: Ada", "City: Oslo"]),
        ("", []),
    ],
)
def test_markup_is_taken_off(text: str, said: list[str]) -> None:
    assert prose_sentences(cleaned(text, "md")) == said


def test_notes_are_read_without_their_links_and_boxes() -> None:
    note = (
        "> [!FAQ]- Can it fold?\n> It can, see [[Boxes#Fold|boxes]], [[Folds]], [[Übersicht]] and [[東京]]."
        "\n\n![[fold.png|100]]\n\n"
    )
    typed = "In a shell `[[ $a | $b ]]` asks, [[ $c | $d ]] too."
    said = [
        "Can it fold?",
        "It can, see boxes, Folds, Übersicht and 東京.",
        "In a shell [[ $a | $b ]] asks, [[ $c | $d ]] too.",
    ]
    assert prose_sentences(note + typed) == said


def test_a_quotation_is_read_as_other_paragraphs_are() -> None:
    text = (
        "Ada wrote that down when she came to live in the city of Oslo\n"
        "> It rains a great deal in the city that I live in now, and nobody\n> seems to mind.\n>\n"
        "> > It may snow, too,\n> > as he says.\nEven in May.\n"
    )
    assert prose_sentences(text) == [
        "Ada wrote that down when she came to live in the city of Oslo",
        "It rains a great deal in the city that I live in now, and nobody seems to mind.",
        "It may snow, too, as he says.",
        "Even in May.",
    ]


def test_a_number_behind_a_sign_is_no_quotation() -> None:
    said = "The values that were measured in the last month at both of the stations are"
    assert prose_sentences(f"{said}\n>10 for the pump.") == [f"{said} >10 for the pump."]


def test_a_quotation_needs_no_space_behind_its_mark() -> None:
    assert prose_sentences("Ada wrote:\n>It rains *there*.\n\n>**Note**: it snows.") == [
        "Ada wrote:",
        "It rains there.",
        "Note: it snows.",
    ]


def test_a_link_whose_target_a_template_writes_is_read_by_its_text() -> None:
    for target in ('{{< ref "a.md" >}}', "{{ site.url }}{% link b.md %}", '/c/{{ d }} "Title"'):
        assert prose_sentences(f"Read [the guide]({target}) first.") == ["Read the guide first."]
    assert prose_sentences("Read {{ guide }} first. It is (so {{ x }}).") == []
    torn = "Get [the written approval of\n\nofficials]({% page '/who-they-are' %}) first. It is short."
    assert prose_sentences(torn) == ["Get [the written approval of", "It is short."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Add H~2~O to the ==large== pot, 2^10^ times.", "Add H₂O to the large pot, 2¹⁰ times."),
        ("If a == b it is ~here and x~y.", "If a == b it is ~here and x~y."),
        ("It holds if (a ==b) or (c== d).", "It holds if (a ==b) or (c== d)."),
        ("Add (==the large==) **==pot==**, ==*now*==.", "Add (the large) pot, now."),
        ("![a pot](my pot.png) It boils. ![a](b c.svg)", "It boils."),
    ],
)
def test_marks_of_extensions_and_pictures_with_spaces_in_their_names(text: str, said: str) -> None:
    assert prose_sentences(text) == [said]


def test_a_line_without_a_letter_is_no_sentence() -> None:
    assert prose_sentences("1.2. . . . 14\n\n2024.\n\nИюль 2024.\n\n第3章。") == ["Июль 2024.", "第3章。"]


def test_an_import_is_no_sentence() -> None:
    assert prose_sentences("import Button from './Button.js';\n\nIt is imported.") == ["It is imported."]


def test_lines_are_joined_behind_an_abbreviation_or_a_day() -> None:
    for end, following in (("(BGBl.", "I S. 62) and so on."), ("31\\.", "Mai 2024."), ("e.g.", "Oslo.")):
        line = f"A line that someone wrapped at some width holds {end}"
        assert prose_sentences(f"{line}\n{following}") == [f"{line} {following}".replace("\\", "")]
    line = "A line that someone wrapped at some width, and that ends."
    assert prose_sentences(f"{line}\nso does this.\ne.g.\nNo.") == [line, "so does this.", "e.g.", "No."]


@pytest.mark.parametrize("end", ["`println!`", "(GNU, MSVC, etc.)", "“Who are you?”", "the `?`"])
def test_a_line_goes_on_behind_a_stop_that_ends_no_sentence(end: str) -> None:
    line = f"A line that an editor wrapped at some width holds {end}"
    shown = line.replace("`", "")
    assert prose_sentences(f"{line}\nas another word.") == [f"{shown} as another word."]
    assert prose_sentences(f"{line}\nThis is another.") == [shown, "This is another."]
    assert prose_sentences(f"{line}\n- one\n- two") == [shown, "one", "two"]


def test_wrapped_lines_are_joined_and_lists_are_not() -> None:
    line = "A line that someone wrapped at about seventy characters, as editors"
    assert prose_sentences(f"{line}\ndo. Another one.\n\nNew.") == [f"{line} do.", "Another one.", "New."]
    assert prose_sentences(f"- {line}\n- do.") == [line, "do."]
    assert prose_sentences(f"{line}\n\nnext") == [line, "next"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(label)=\nSee {ref}`the guide <label>` and {class}`Name`.", ["See the guide and Name."]),
        (":::{note}\nSaid inside.\n:::", ["Note", "Said inside."]),
        ("```{note}\nSaid inside.\n```\nMore.", ["Said inside.", "More."]),
        (
            "````{admonition} Take care\n:class: tip\nIt snows.\n\n```python\nx = 1\n```\n````\n"
            "```{code-block} python\ny = 2\n```\n~~~md\n```{tip}\nIt shows this.\n```\n~~~\nMore.",
            ["Take care", "It snows.", "More."],
        ),
        ("`````{tip}\n````{warning}\nSaid inside.\n````\n`````\nMore.", ["Said inside.", "More."]),
        (
            "See :ref:`the guide <x>`, :class:`~a.Name` and `it <https://a.b>`_.",
            ["See the guide, a.Name and it."],
        ),
        ("As here::\n\n    x = 1\n\n    y = 2\n\nAfter.", ["As here:", "After."]),
        (".. code-block:: python\n   :linenos:\n\n   x = 1\n\nAfter.", ["After."]),
        ("!!! note\n    Said inside.", ["Said inside."]),
        (
            "= Title\n\nSee https://a.b/c[the guide] or xref:x.adoc[this].\n\n"
            "[source,sh]\n----\nls\n----\nMore.",
            ["See the guide or this.", "More."],
        ),
        ("#+title: T\nSee [[https://a.b][it]].\n#+begin_src sh\nls\n#+end_src\nMore.", ["See it.", "More."]),
        (
            'import Tabs from "@theme/Tabs";\n\n<Tabs>\n\nThe import of goods.\n\n</Tabs>',
            ["The import of goods."],
        ),
        (".. Normally, this is\n  a comment.\n\n  More of it.\n\nText.", ["Text."]),
        ("..\n  A comment.\n\nText.\n\n..\n\nMore.", ["Text.", "More."]),
        (".. |x| image:: a.png\n   :width: 400px\n\nText.", ["Text."]),
        (".. admonition:: Said\n   :class: tip\n\n   Said inside.", ["Said", "Said inside."]),
        (
            ".. note::\n\n   Said inside.\n\n   As here::\n\n     x y\n\nMore.",
            ["Said inside.", "As here:", "More."],
        ),
        (
            ".. tip::\n\n   .. glossary::\n\n      Box\n         Said inside.\n\nMore.",
            ["Box", "Said inside.", "More."],
        ),
        (".. prompt::\n\n   ls it all\n\nMore.", ["More."]),
        (".. [#] A note about\n   nothing.", ["A note about", "nothing."]),
        ("+++\ntitle = 'x'\n\n[params]\n+++\nText.", ["Text."]),
        ("---\ndescription: >\n  Many words.\n---\nText.", ["Many words.", "Text."]),
        ("Text. {/* a\nremark */}\nMore&nbsp;text.\n{: .no_toc }", ["Text.", "More text."]),
        (".. note:: Said inside.\n.. _label:\n>>> x\n$ ls\nAt 10:30:`x`.", ["Said inside.", "At 10:30:x."]),
    ],
)
def test_markup_of_technical_documentation_is_taken_off(text: str, said: list[str]) -> None:
    suffix = "rst" if ".. " in text or "..\n" in text else "md"
    assert prose_sentences(cleaned(text, suffix)) == said


@pytest.mark.parametrize("target", ["https://fuse-t.org/", "install", "/usage/mount.html"])
def test_a_link_that_is_wrapped_before_its_target_stays_in_its_sentence(target: str) -> None:
    line = "On Linux, the module needs to be loaded. On macOS, you need `FUSE-T"
    said = ["On Linux, the module needs to be loaded.", "On macOS, you need FUSE-T or another one."]
    assert prose_sentences(f"{line}\n<{target}>`__ or another one.") == said
    assert prose_sentences(f"See `the\ndoor <{target}>`_ there.") == ["See the door there."]


def test_a_line_goes_on_with_a_link_that_it_has_no_room_for_and_within_one() -> None:
    """Pages wrapped at 80 columns leave a line short before a long link, and within a link's text."""
    form = "[form](https://a.b/a-form-with-a-name-that-is-long-enough-for-a-line-of-its-own)"
    assert prose_sentences(f"You apply by completing the\n{form}\nand send it.") == [
        "You apply by completing the form and send it."
    ]
    assert prose_sentences("Any trip of more is a **[Voucher From\nAuthorization](a.md)**.") == [
        "Any trip of more is a Voucher From Authorization."
    ]
    short = "[form](a.md)"
    assert prose_sentences(f"These are all forms\n{short}") == ["These are all forms", "form"]
    assert prose_sentences(f"See also\n{form}") == ["See also", "form"]  # a menu


@pytest.mark.parametrize(
    "target",
    [
        "https://a.b/a-page-with-a-name-that-is-long-enough-for-a-line-of-its-own",
        '{% page "/a-page-with-a-name-that-is-long-enough-for-a-line-of-its-own" %}',
    ],
)
def test_a_few_words_before_a_link_begin_the_sentence_that_goes_on_behind_it(target: str) -> None:
    for rest in (",\nit has teams.", "\nit has teams.", " of it has teams."):
        said = f"As per the chart{rest}".replace("\n", " ")
        assert prose_sentences(f"As per the\n[chart]({target}){rest}") == [said]
    line = "All of this is said at full length in"
    assert prose_sentences(f"{line}\n[the guide]({target}).") == [f"{line} the guide."]
    assert prose_sentences(f"See also\n[Form]({target}) - it asks") == ["See also", "Form - it asks"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("The names `{slug}` and `{id}` are replaced.", "The names {slug} and {id} are replaced."),
        ("Ask ``{user}`` and `/items/{id}` of {ref}`it <x>`.", "Ask {user} and /items/{id} of it."),
        ("The type `map[string](int)` is of [Go](a.md).", "The type map[string](int) is of Go."),
        ("Write `[text](url)`, `a[b][c]` and `:a:`.", "Write [text](url), a[b][c] and :a:."),
        ("See [`f(x)`](a.md) and [the `[x](y)` of it](b.md).", "See f(x) and the [x](y) of it."),
        ("It is ``{x}`` in :doc:`this` of `that <a.md>`_ here.", "It is {x} in this of that here."),
    ],
)
def test_code_that_looks_like_a_role_or_a_link_stays_as_it_stands(written: str, said: str) -> None:
    assert prose_sentences(written) == [said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<%= partial 'a' %>\nText.\n<% if x\n > 1 %>  <% end %>\n{{< note >}}\nMore.", ["Text.", "More."]),
        ("Ask <%= name %> about it. Say `{{ x }}`. {# a remark #}\nText.", ["Text."]),
        ("See {{% ref\n  b %}} here. Text.", ["Text."]),
        ("{% highlight sh %}\nls -a\n{% endhighlight %}\nText.", ["Text."]),
        ('{{< code-toggle file="a" >}}\na = 1\n{{< /code-toggle >}}\nText.', ["Text."]),
        ("{{< code-toggle config=x />}}\nText.\n{{< code-toggle config=y />}}\nMore.", ["Text.", "More."]),
    ],
)
def test_a_template_s_tags_are_no_prose(text: str, said: list[str]) -> None:
    assert prose_sentences(cleaned(text, "md")) == said


def test_restructured_text_is_asked_without_its_marks_for_code_and_included_files() -> None:
    directives = ".. include:: ../global.rst\n\n.. autoclass:: a.B\n   :members:"
    text = f"Do it like this::\n\n    code\n\n{directives}\n\nOr so: ::\n\n    more\n\n::\n\n    x\n"
    assert prose_sentences(text) == ["Do it like this:", "Or so:"]
    assert prose_sentences("Ask std::map:: it is `a::b`.") == ["Ask std::map:: it is a::b."]


def test_a_term_behind_a_definition_begins_anew() -> None:
    said = ["files", "Number of regular files in it", "size_in_bytes", "Size of the whole archive"]
    assert prose_sentences("files\n    {}\nsize_in_bytes\n    {}\n".format(*said[1::2])) == said
    assert prose_sentences("- The size of all\n  whole archives") == ["The size of all whole archives"]


def test_links_by_label_lose_their_brackets_and_targets() -> None:
    targets = "[GOV.UK PaaS]: /paas#it\n[guide]: <b.md> 'The guide'\n"
    text = f"Read [guide] and [GOV.UK\nPaaS][] of [GOV.UK PaaS] [x].[^1]\n\n{targets}\n[^1]: A note: of it."
    assert prose_sentences(text) == ["Read guide and GOV.UK", "PaaS of GOV.UK PaaS [x].", "A note: of it."]


def test_a_table_without_outer_bars_is_read_by_its_cells() -> None:
    rows = "Name | What it does\n:-- | --:\na|Leads the team of the house.\nb|Follows all of that now."
    assert prose_sentences(f"{rows}\n\nAfter it.") == [
        "Leads the team of the house.",
        "Follows all of that now.",
        "After it.",
    ]


def test_rows_of_tables_from_other_formats_are_not_glued() -> None:
    rows = "timeout | integer | Seconds to wait for it\nretries | integer | How often to ask again"
    assert prose_sentences(rows) == ["Seconds to wait for it", "How often to ask again"]
    assert prose_sentences("Use `ps aux | grep it` to find what is running.") == [
        "Use ps aux | grep it to find what is running."
    ]


def test_records_of_labelled_fields_are_not_glued() -> None:
    rows = [
        "Name: Ada Horn; City: Oslo; Salary: 50000; Department: Research and the like",
        "Name: Bo Adler; City: Rome; Salary: 40000; Department: Sales and all the like",
        "summary: the house was closed for two weeks because of water",
        "owner: Ada Horn",
    ]
    assert prose_sentences("\n".join(rows)) == rows
    wrapped = [
        "Note: this is a line that is as long as others are, which is",
        "why it goes on in the next: so.",
    ]
    assert prose_sentences("\n".join(wrapped)) == [" ".join(wrapped)]


@pytest.mark.parametrize("following", ["is: one host for all of it.", "of: one host for all of it."])
def test_a_line_goes_on_before_a_word_with_a_colon_that_is_no_column_s_name(following: str) -> None:
    line = "Ada wrote down of each of the parts of all that she has tested what this"
    assert prose_sentences(f"{line}\n{following}") == [f"{line} {following}"]


def test_a_row_is_not_glued_to_the_names_of_its_columns() -> None:
    names = "name of the host, the port that it listens on, what it is there for, owner"
    for row in ("name of the host: Ada; owner: Bo", "owner: Bo"):
        assert prose_sentences(f"{names}\n{row}") == [names, row]


@pytest.mark.parametrize("begins", ["{}; Produkt: ", "#: {}; Produkt: ", "Nummer (neu): {}; Produkt: "])
def test_rows_of_a_table_are_not_glued_whatever_its_first_column_is_called(begins: str) -> None:
    rows = [f"{begins.format(n)}Schraube aus Stahl, verzinkt; Hersteller: Nordwerk" for n in range(3)]
    assert prose_sentences("\n".join(rows)) == rows


def test_of_a_record_that_is_long_or_shows_an_address_the_first_fields_are_read() -> None:
    begins = "name: Ada Horn; city: Oslo; born: 1950"
    for rest in ("; page: https://a.b/c; shoe size: 38", f"; remarks: {'as said ' * 60}"):
        assert prose_sentences(f"{begins}{rest}") == [begins]
    assert prose_sentences("city: Oslo; page: https://a.b/c") == []


def test_a_definition_names_what_it_defines() -> None:
    text = "`minify`\n: (bool) Whether to save room.\n\nOther\n\n: Said first.\n: Said again."
    said = ["minify: (bool) Whether to save room.", "Other: Said first.", "Said again."]
    assert prose_sentences(text) == said


def test_wrapped_lines_of_a_script_without_spaces_are_joined_without_one() -> None:
    line = "这家公司成立" * 12
    assert prose_sentences(f"{line}\n于二零零三年。") == [f"{line}于二零零三年。"]


@pytest.mark.parametrize(
    "said",
    [
        "这家公司成立于二零零三年总部设在海边的一座小城，主要建造用于运送粮食的大型船只，每年交付十二艘。",
        "この会社は二〇〇三年に海辺の小さな町で設立され、穀物を運ぶための大きな船を毎年十二隻ほど建造している。",
        "이회사는이천삼년에바닷가의작은도시에서설립되었고곡물을나르는큰배를해마다열두척쯤만들어서판다.",
    ],
)
@pytest.mark.parametrize("width", [20, 24, 34, 40])
def test_a_page_of_wide_characters_is_joined_at_its_width(said: str, width: int) -> None:
    """A column of a page has 20 or so, a whole page 40; each takes the room of two letters."""
    wrapped = "\n".join(said[at : at + width] for at in range(0, len(said), width))
    found = prose_sentences(f"第一章\n{wrapped}\n第二章")
    assert [sentence.replace(" ", "") for sentence in found] == ["第一章", said, "第二章"]


def test_a_wrapped_column_of_a_script_without_small_letters_is_joined() -> None:
    lines = [
        "تأسست هذه الشركة في عام ألفين وثلاثة في",
        "مدينة صغيرة على شاطئ البحر وهي تبني سفنا",
        "كبيرة لنقل الحبوب.",
    ]
    assert prose_sentences("\n".join(lines)) == [" ".join(lines)]
    titles = ["تأسست هذه الشركة في مدينة صغيرة على البحر", "وصف", "تقرير"]
    assert prose_sentences("\n\n".join(titles)) == titles


def test_items_behind_the_bullets_and_numbers_of_other_scripts_are_apart() -> None:
    item = "a system for the planning of voyages that cross more than one ocean"
    assert prose_sentences(f"• {item}\n• {item} or two\n\uf0b7 {item}") == [item, f"{item} or two", item]
    chinese = "船厂每年交付十二艘用于运送粮食的大型船只并负责维修"
    for first, second in (("（一）", "（二）"), ("一、", "二、"), ("①", "②"), ("1、", "2、"), ("●", "●")):
        assert prose_sentences(f"{first}{chinese}\n{second}{chinese}") == [chinese, chinese]
    assert prose_sentences("３．５吨。") == ["３．５吨。"]


def test_a_day_at_the_beginning_of_a_wrapped_line_is_no_item() -> None:
    line = "Die Werft in dem kleinen Ort an der Küste wurde von ihm am"
    assert prose_sentences(f"{line} ersten\n3. Mai 1999 gekauft.") == [f"{line} ersten 3. Mai 1999 gekauft."]
    assert prose_sentences("3. Mai und Juni\n4. Juli") == ["Mai und Juni", "Juli"]


def test_a_line_goes_on_where_the_next_word_had_no_room() -> None:
    option = "option `--password-command` or the environment variable"
    name = "`RESTIC_PASSWORD_COMMAND`"
    assert prose_sentences(f"{option}\n{name}") == [
        "option --password-command or the environment variable RESTIC_PASSWORD_COMMAND"
    ]
    assert prose_sentences(f"Name: Ada\n{name * 4}")[0] == "Name: Ada"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Do:\n\n----\nls now\n\nls\n----\n\nMore of it.", ["Do:", "More of it."]),
        ("= T\n\nDo:\n\n----\nls now\n\nls\n\n----\n\nMore.", ["Do:", "More."]),
        ("A.\n\n-----\nOne is kept.\n\n-----\nTwo too.", ["A.", "One is kept.", "Two too."]),
        (".A title\n[source,sh]\n----\nls\n----\n[synopsis]\ngit x\n[-a]\n\nText.", ["Text."]),
        ("= T\n:name: Ada\n\n////\nTo us.\n////\n// And this.\nText.", ["Text."]),
        (
            "= T\n\nSee <<a-b,the\nguide>>, {url-x}/y[it^] and linkgit:git-log[1].",
            ["See the guide, it and git-log(1)."],
        ),
        ("See <<a-b>> of it. See xref:a.adoc[] too. Edit [.path]_a.adoc_ now.", ["Edit a.adoc now."]),
        (
            "`--all`::\n\tShows all of them.\n`x`;;\n** One.\n<1> Two.",
            ["--all: Shows all of them.", "x;;", "One.", "Two."],
        ),
        ("The file is in\n<name>. It has to be there.", ["The file is in", "<name>.", "It has to be there."]),
    ],
)
def test_asciidoc_is_asked_without_listings_references_and_titles(text: str, said: list[str]) -> None:
    assert prose_sentences(text) == said


def test_org_is_asked_without_its_headings_properties_and_marks() -> None:
    text = (
        "#+title: T\n* TODO A heading of it\n:PROPERTIES:\n:ID: 7 of them\n:END:\n: fixed width\n"
        "# A remark.\n"
        'Set ~a-b~ to ="c"= or /not at\nall/[fn:1] (see [[*The\nguide]]).\n- one :: two'
    )
    assert prose_sentences(text) == ['Set a-b to "c" or not at all (see The guide).', "one :: two"]
    assert prose_sentences("It is ~5 or ~6 where a = b and c =d.") == ["It is ~5 or ~6 where a = b and c =d."]


def test_vim_s_help_is_asked_without_its_tags_examples_and_bars() -> None:
    example = ">\n\n\t:set a\n\t:set b\n<"
    text = f"*a.txt*\tFor Vim\n\nSee |b-c| of it, as here: {example}\nA title\t\t*x* *y*\nIt is |d|."
    assert prose_sentences(text) == ["For Vim", "See b-c of it, as here:", "A title", "It is d."]


def test_rows_in_columns_mathematics_and_code_are_not_asked() -> None:
    code = "$$\na_1 + b\n$$\n\nx = f(1)\nf(x);\nif (x) {"
    text = f"Text.\n\na   b   c\n\n{code}\nNext: A, Previous: B, Up: C\n\nMore."
    assert prose_sentences(text) == ["Text.", "More."]
    kept = [
        "It is what he gives (see below);",
        "(In this case it waits.",
        "if you call f(x) twice, it waits",
    ]
    assert prose_sentences("\n\n".join(kept)) == kept


@pytest.mark.parametrize(
    ("code", "behind"),
    [
        ("````\nIt shows this.\n```json\n{}\n```\nIt goes on.\n````", "It ends."),
        ("```md\nIt shows this.\n```json\nIt goes on.\n``` \t", "It ends."),
        ("~~~\nIt shows this.\n```\nIt goes on.\n~~~~", "It ends."),
        ("```\nIt is never closed.\n~~~\nIt goes on.", ""),
    ],
)
def test_code_ends_at_the_fence_that_closes_it(code: str, behind: str) -> None:
    assert prose_sentences(f"It begins.\n\n{code}\n\n{behind}") == ["It begins.", behind][: 1 + bool(behind)]
    assert prose_sentences("```json``` is inline.\nIt is read.") == ["json is inline.", "It is read."]


@pytest.mark.parametrize(
    "code",
    [
        "- ```sh\n  It shows this.\n  ```",
        "1. > ~~~~\n   > It shows this.\n   > ~~~\n   > It goes on.\n   > ~~~~",
        "- - ```\n    It shows this.\n    ```",
        "> ```\n> It is closed by the end of the quotation.\n",
    ],
)
def test_code_in_lists_and_quotations_is_left_out(code: str) -> None:
    assert prose_sentences(f"It begins.\n\n{code}\n\nIt ends.") == ["It begins.", "It ends."]
    assert cleaned(f"{code}\n\n<div>It ends.</div>", "md").endswith("It ends.\n")


@pytest.mark.parametrize("mark", ["~", "`", '"', "="])
def test_the_underline_of_a_title_opens_no_code(mark: str) -> None:
    title, other = f"Installing\n{mark * 10}", f"FAQ\n{mark * 4}"
    text = f"{title}\n\nIt needs an engine.\n\n{other}\n\nIt runs.\n\n{title}\n\nIt ends.\n"
    assert prose_sentences(text) == ["It needs an engine.", "It runs.", "It ends."]
    assert prose_sentences("Run\n```\nls it all\n```\nIt ends.") == ["Run", "It ends."]


@pytest.mark.parametrize(
    ("label", "bars"),
    [("Run", "~~~"), ("Start", "~" * 12), ("## Usage", "`" * 12), ("## Usage\n", "~" * 12)],
)
def test_code_below_a_short_label_is_left_out_and_what_follows_is_read(label: str, bars: str) -> None:
    text = f"{label}\n{bars}\nfoo <b> is code.\n{bars}\n\nIt <b>ends</b> here.\n\nMore is here."
    said = [] if label.startswith("#") else [label]
    assert prose_sentences(cleaned(text, "md")) == [*said, "It ends here.", "More is here."]
    assert "foo <b> is code." in cleaned(text, "md") and "<b>ends" not in cleaned(text, "md")


def test_a_heading_of_markdown_is_no_title_above_a_fence() -> None:
    code = f"{'~' * 12}\n\nfoo is code.\n{'~' * 12}"
    assert prose_sentences(f"## Usage\n{code}\n\nIt ends here.") == ["It ends here."]


def test_a_quoted_fence_closes_no_code_that_is_not_quoted() -> None:
    text = "```text\n> ```\nsome output here.\n```\n\nIt ends here.\n\nMore text."
    assert prose_sentences(text) == ["It ends here.", "More text."]


@pytest.mark.parametrize("behind", ["\n", "\n\n"])
def test_lines_around_three_quotation_marks_are_read(behind: str) -> None:
    text = f'Translate this\n"""\nHello world\n"""{behind}Then it goes on.'
    assert prose_sentences(text) == ["Translate this", "Hello world", "Then it goes on."]
    assert prose_sentences('FAQ\n"""\n\nIt ends.') == ["It ends."]


@pytest.mark.parametrize("part", ["> ~~~ x\n\n", "- ```\n", "A\n~~~~\n", "~~~~ x\n", "- " * 9 + "\n"])
def test_many_fences_take_linear_time(part: str) -> None:
    began = time.process_time()
    prose_sentences(part * (100_000 // len(part)))
    cleaned(part * (100_000 // len(part)) + "<b>x</b>", "md")
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("[API](https://a.b/API_(computing))", "API"),
        ('[guide (v2)](https://a.b/a(b(c))d "A (title)")', "guide (v2)"),
        ("[the [beta] guide](https://a.b/c 'x')", "the [beta] guide"),
        ("[guide](<https://a.b/c d>)", "guide"),
        ("[![guide](https://a.b/c.svg)](https://a.b)", "guide"),
    ],
)
def test_brackets_in_links_end_no_link(link: str, said: str) -> None:
    assert prose_sentences(f"See the {link}, made in 1999.") == [f"See the {said}, made in 1999."]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("![A chart](a.png) The port is 8080.", ["The port is 8080."]),
        ("![](a.png){ align=left } The port\nis 8080.", ["The port is 8080."]),
        ("1. ![a][x] **The** port is 8080.", ["The port is 8080."]),
        ("[![build](b.svg)](c.html) ![d](e.svg) The port is 8080.", ["The port is 8080."]),
        ("One ends. ![a](b.png) Two is here. ![c](d.png)", ["One ends.", "Two is here."]),
        ("![图](a.png)端口是八千零八十。", ["端口是八千零八十。"]),
        ("| ![a](b.png) The port of it is 8080. | c |", ["The port of it is 8080."]),
        ("![Gear](a.png) opens the settings.", ["Gear opens the settings."]),
        ("Press ![gear](a.png) twice.", ["Press gear twice."]),
        ("![A chart of it](a.png)", []),
        ("- ![A chart of it](a.png 'Chart'){width=50%}", []),
        ("[![A chart of it](a.png)](b.html) ![Another one](c.png).", []),
        ("![A chart that is not closed](a.png The port is 8080.", []),
    ],
)
def test_a_sentence_beside_a_picture_is_asked_about(line: str, said: list[str]) -> None:
    assert prose_sentences(f"It begins.\n\n{line}\n\nIt ends.") == ["It begins.", *said, "It ends."]


def test_a_template_s_tag_that_is_not_closed_ends_with_its_paragraph() -> None:
    text = "Write {{ first.\n\nThe port is 8080.\n\nThen {% comes.\n\nThe limit is 40.\n\nIt %} ends }}."
    said = ["Write {{ first.", "The port is 8080.", "Then {% comes.", "The limit is 40.", "It %} ends }}."]
    assert prose_sentences(text) == said


@pytest.mark.parametrize("ends", [",", ", and", ";", "; or", ""])
def test_clauses_of_a_contract_are_apart(ends: str) -> None:
    clauses = [f"({mark}) the seller shall deliver forty tons of wheat to the buyer{ends}" for mark in "abc"]
    assert prose_sentences("\n".join(clauses)) == clauses
    sections = [f"12.{n} The seller shall deliver forty tons of wheat to the buyer{ends}" for n in (1, 2)]
    assert prose_sentences("\n".join(sections)) == sections
    line = "The seller shall deliver all of it as provided for in paragraph"
    assert prose_sentences(f"{line}\n(b) of this section.") == [f"{line} (b) of this section."]


@pytest.mark.parametrize(
    "wrapped",
    [
        "In the year behind that one the company sold more cars,\n1.2 million of them, than it had before.",
        "In the summer the temperatures of the sea are a lot higher,\n12.5 degrees, than they are in May.",
        "Летом температура воды в этом море намного выше,\n12.5 градусов, чем весной.",
        "Die Werft zahlte dafür im Jahr darauf noch einmal deutlich mehr,\n1.2 Millionen Franken, als davor.",
        "With the force that acts on the body,\n(2) follows from it, as was shown above.",
        "With the force that acts on the body,\n(a) follows from it, as was shown above.",
        "(1) With the force that acts on the body,\n(a) follows from it, as was shown above.",
        "12.1 The seller shall pay to the buyer of all of the said goods\n12.5 percent of the price.",
    ],
)
def test_a_number_at_the_beginning_of_a_wrapped_line_begins_no_clause(wrapped: str) -> None:
    assert prose_sentences(wrapped) == [wrapped.replace("\n", " ")]


def test_clauses_of_different_kinds_are_apart() -> None:
    clauses = ["(a) the seller pays the freight;", "(1) the buyer pays the rest, and", "(2) the agent pays"]
    assert prose_sentences("\n".join(clauses)) == clauses
    clauses = ["(b) the seller pays the freight,", "12.2 The buyer pays the rest; and", "a) the agent pays,"]
    assert prose_sentences("\n".join(clauses)) == clauses


def test_emphasis_around_code_and_emphasis_is_taken_off_and_code_stays() -> None:
    assert prose_sentences("**Only _once_ use `__init__` of `a`s.**") == ["Only once use __init__ of as."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"Use \*args and \*\*kwargs to pass all.", "Use *args and **kwargs to pass all."),
        (r"The file \_\_init\_\_.py is read, a\_b too.", "The file __init__.py is read, a_b too."),
        (r"**All of \*args** is `\*args`, _a\_b_ is `\_`.", r"All of *args is \*args, a_b is \_."),
        (r"It has 2 \* 3 \* 4 parts, *a \* b* of x\.y.", r"It has 2 * 3 * 4 parts, a * b of x\.y."),
    ],
)
def test_an_escaped_mark_is_read_and_begins_and_ends_no_emphasis(text: str, said: str) -> None:
    assert prose_sentences(text) == [said]


def test_a_line_goes_on_with_a_small_letter_and_behind_a_comma() -> None:
    assert prose_sentences("For more of that see the\nguide. It is short,\nAda says.") == [
        "For more of that see the guide.",
        "It is short, Ada says.",
    ]
    assert prose_sentences("name: Ada of Oslo now\ncity: Oslo") == ["name: Ada of Oslo now", "city: Oslo"]


def test_no_line_goes_on_for_a_letter_of_a_script_without_capitals() -> None:
    lines = ["თბილისი საქართველოს დედაქალაქია და დიდია", "იგი მდინარე მტკვარზე დგას"]
    assert prose_sentences("\n".join(lines)) == lines


@pytest.mark.parametrize(
    "part",
    [
        "\t\t",
        "if (",
        "**a ",
        "[[*A",
        "[a](((",
        "![a](b",
        ". ![a](b) ",
        "![a](b)",
        ". ![a](b 'c",
        "[![a](b)](c",
        "{{ a",
        "{% ",
        "(a) b\n",
        "<<a,",
        "\n\n----\na\n",
        "=a ",
        "a\tb",
        "a::\n",
        "1, 2, 3,\n",
        "a `\n",
        "a `{b}` ",
        "a.))",
        "a!?\nb",
        "`` `{b}",
        "[`a](b` ",
    ],
)
def test_hostile_lines_take_linear_time(part: str) -> None:
    began = time.process_time()
    prose_sentences(part * (100_000 // len(part)))
    assert time.process_time() - began < 5


@pytest.mark.parametrize("line", ["a| " * 100_000, f"<b> {'a' * 80_000} <"])
def test_a_long_line_takes_linear_time(line: str) -> None:
    began = time.process_time()
    prose_sentences(f"{line}\nAda.\n")
    assert time.process_time() - began < 5
