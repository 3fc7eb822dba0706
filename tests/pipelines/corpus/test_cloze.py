"""Gaps in the documents' sentences."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.answer_matching import matches, normalise
from pipelines.corpus.cloze import CONTEXT, clozes
from pipelines.corpus.general_words import general_words
from pipelines.corpus.markup.clauses import is_clause

NOUNS = ("zarquon", "quillon", "brindle", "vorpal", "tessel", "marrow", "gimlet", "sprocket", "dapple")
HANDBOOK = [
    "We are glad that you are here, and this page says how things are done in our house.",
    "Vision insurance in the US is provided through MetLife. Ask the people who know.",
    "Zarquon Insurance has paid since then for everyone's spectacles.",
    "You can spend it on whatever you like. Some of it is paid through Airbase.",
    "All this and more is known by everyone in this house to be told by Made Tech.",
    "Whatever it is that you want to be told, you can ask Made Tech.",
    "None of us is in this house for more than what we do for Made Tech.",
    "Figo pays.",
]


def test_a_gap_needs_an_entity_or_some_words_before_it() -> None:
    found = {gap.answer: gap for gap in clozes(HANDBOOK, limit=50)}
    assert found["spectacles"].entity == ("zarquon", "insurance")
    assert found["MetLife"].before == "Vision insurance in the US is provided through"
    assert found["MetLife"].entity == ()
    assert "Airbase" in found
    assert not {"pays", "like", "here"} & set(found)
    assert all(gap.entity or len(gap.before.split()) >= CONTEXT for gap in found.values())


def test_gaps_about_entities_come_first() -> None:
    named = [bool(gap.entity) for gap in clozes(HANDBOOK, limit=50)]
    assert named == sorted(named, reverse=True)
    assert clozes(HANDBOOK, limit=1)[0].entity


def test_whole_sentences_come_before_items_and_cells() -> None:
    items = ["- Zarquon Insurance, spectacles (reimbursed)\n", "- error in all that there is to know: 0x0d\n"]
    found = clozes([*HANDBOOK, *items], limit=50)
    ended = [gap.sentence.endswith(".") for gap in found]
    assert ended == sorted(ended, reverse=True)
    assert not all(ended)  # they are asked for all the same
    assert all(gap.sentence.endswith(".") for gap in clozes([*HANDBOOK, *items], limit=sum(ended)))


def test_a_remark_in_brackets_begins_no_clause_of_a_contract() -> None:
    assert is_clause("(a) the rent is due, and") and not is_clause("(note) the rent is due,")
    assert is_clause("12.1 The rent is due;") and not is_clause("12.1 percent is due;")


@pytest.mark.parametrize("marks", [("(a)", "(b)", "(c)"), ("12.1", "12.2", "12.3"), ("a)", "b)", "c)")])
def test_a_clause_of_a_contract_is_asked_as_a_sentence_is(marks: tuple[str, ...]) -> None:
    clauses = [
        f"{mark} Zarquon insurance pays for {n}-spectacles{n};" for mark, n in zip(marks, "abc", strict=True)
    ]
    clauses[1] += " and"
    gaps = clozes([*HANDBOOK, "\n".join(clauses), "- Zarquon Insurance, Oslo (reimbursed)"], limit=50)
    asked = [gap.sentence for gap in gaps]
    item = next(at for at, sentence in enumerate(asked) if "Oslo" in sentence)
    assert set(clauses) & set(asked[:item]) and not set(clauses) & set(asked[item:])


def test_where_nothing_ends_as_sentences_do_items_are_asked_for() -> None:
    items = [text.replace(".", "") for text in HANDBOOK]
    assert "spectacles" in {gap.answer for gap in clozes(items, limit=50)}


@pytest.mark.parametrize(
    ("name", "beside", "asked"),
    [
        ("Bill", "None of us has yet paid for any of it.", True),
        ("Bill", "None of us has yet paid the bill for it.", False),
        ("Will", "None of us has yet paid for any of it.", False),
    ],
)
def test_a_capital_makes_no_ordinary_word_a_name(name: str, beside: str, asked: bool) -> None:
    others = [f"There are {word} walls here." for word in ("many", "old", "red", "tall", "wet", "dry")]
    told = f"Of all that we have seen so far the one to ask is {name}."
    answers = {gap.answer for gap in clozes([*HANDBOOK, *others, beside, told], limit=99, each=9)}
    assert (name in answers) is asked and "MetLife" in answers


JAPANESE = """図書室の管理システムは新しく、今年から使われています。
専門書の購入には部長の承認が必要です。
返却が遅れた場合は、総務部の佐藤さんから確認のメールが届きます。
一度に借りられる本は五冊までで、貸出期間は二週間です。
雑誌を外に持ち出すことはできません。
会議室としての利用は木曜日の昼休みに限ります。
飲み物は蓋のある容器に入れれば持ち込めます。
年末の棚卸しの日は終日休室します。
"""


def test_no_ending_and_no_single_character_but_a_number_is_asked_for_in_japanese() -> None:
    found: dict[str, set[str]] = {}
    for gap in clozes([JAPANESE], limit=99, each=3):
        found.setdefault(gap.sentence[:2], set()).add(gap.answer)
    assert found["返却"] == {"総務部", "佐藤", "確認"}  # not さん, which follows every name
    assert "五" in found["一度"]
    answers = set().union(*found.values())
    assert not [answer for answer in answers if "ぁ" <= answer[0] <= "ん"]
    assert not [answer for answer in answers if len(answer) == 1 and not answer.isnumeric()]


def test_an_issue_a_commit_and_an_author_of_a_list_of_changes_are_not_asked_for() -> None:
    changes = [
        "Zarquon Insurance pays for more of what is lost since #1234 (1a2b3c4d) by @quillonze.",
        "Zarquon Insurance pays for Tessel::Gimlet as well (@marrow).",
        "Zarquon Insurance calls @brindle from then on for all that is in #vorpal.",
    ]
    answers = {gap.answer for gap in clozes([*HANDBOOK, *changes], limit=99, each=9)}
    assert {"@brindle", "#vorpal"} <= answers
    assert not {"#1234", "1a2b3c4d", "@quillonze", "@marrow", "Gimlet"} & answers


def test_ordinary_words_of_parts_that_are_not_translated_are_not_asked_for() -> None:
    german = (
        "Das Haus steht am Fluss. Die Leute gehen dort gern spazieren. Alle sehen die Boote am Ufer. "
        "Die Kinder spielen mit dem kleinen Hund. Wir waren schon lange nicht mehr dort. Er kommt morgen. "
        "Niemand weiß, wann es regnet. Sie hat das Buch gelesen. Danach gab es etwas zu essen. Es ist spät. "
    )
    english = "All that we need of this is because the others might ask something of the quillonze."
    ordinary = {"because", "something", "others", "might"}
    answers = {gap.answer for gap in clozes([german, english], limit=99, each=9)}
    assert "quillonze" in answers and not ordinary & answers
    words = general_words([german])
    assert words is not None and words.language == "de" and words.english is None
    hindi = (
        "यह घर नदी के पास है। लोग वहाँ घूमने जाते हैं। बच्चे कुत्ते के साथ खेलते हैं। हम बहुत दिनों से वहाँ नहीं गए। "
        "वह कल आएगा। कोई नहीं जानता कि बारिश कब होगी। उसने किताब पढ़ी। फिर खाना मिला। देर हो गई है। सब ठीक है। "
    )
    answers = {gap.answer for gap in clozes([hindi, english], limit=99, each=9)}
    assert "quillonze" in answers and not ordinary & answers


def test_contractions_and_alternatives_are_as_ordinary_as_their_words() -> None:
    told = [
        "If there is something that all of us have lost by this and/or know of.",
        "If there is something that all of us know of I'm to do the shell's things.",
        "If there is something that all of us are to know of it is TCP/IP.",
        "If there is something that all of us keep then in etc/house/ or in /house/garden for you.",
    ]
    answers = {gap.answer for gap in clozes([*HANDBOOK, *told], limit=99, each=9)}
    assert {"TCP/IP", "etc/house/", "/house/garden"} <= answers
    assert not {"and/or", "I'm", "shell's"} & answers


def test_what_stands_in_brackets_behind_a_name_is_a_part_of_it() -> None:
    told = "Zarquon Insurance is described in quillonze(vorpal) and in what is called tessel (gimlet)."
    answers = {gap.answer for gap in clozes([*HANDBOOK, told], limit=99, each=9)}
    assert "gimlet" in answers and "vorpal" not in answers


def test_what_stands_behind_a_dash_or_a_slash_is_not_asked_for() -> None:
    told = "Zarquon Insurance is described in quillonze - vorpal and in tessel / marrow, not in gimlet."
    answers = {gap.answer for gap in clozes([*HANDBOOK, told], limit=99, each=9)}
    assert "gimlet" in answers and not {"vorpal", "marrow"} & answers


def test_a_part_of_a_word_that_goes_on_in_the_next_line_is_not_asked_for() -> None:
    told = "Zarquon Insurance is described in quillonze, vor- pal, push- and gimlet."
    answers = {gap.answer for gap in clozes([*HANDBOOK, told], limit=99, each=9)}
    assert {"gimlet", "quillonze,"} & answers and not {"vor-", "pal", "push-"} & answers


def test_the_end_of_a_name_is_not_asked_for() -> None:
    assert "Tech" not in {gap.answer for gap in clozes(HANDBOOK, limit=50)}


def test_an_answer_that_repeats_the_question_would_pass_so_it_is_not_asked_for() -> None:
    for said, asked in (("what it shows", True), ("the log level", False)):
        shown = f"If nothing is shown to you by Zarquon Insurance, raise {said} with `--log-level` first."
        found = clozes([*HANDBOOK, shown], limit=99, each=9)
        assert ("--log-level" in {gap.answer for gap in found}) is asked
        assert not any(matches(gap.before, [gap.answer]) for gap in found)


def test_opening_quotation_marks_are_no_part_of_an_answer() -> None:
    said = "Die Zarquon GmbH schrieb im letzten Brief an uns alle: „wir zahlen niemals für ihn.“"
    found = {gap.answer: gap for gap in clozes([*HANDBOOK, said], limit=99, each=9) if gap.sentence == said}
    assert not any(mark in answer for answer in found for mark in "„“»«")
    assert [found[word].between for word in ("wir", "zahlen")] == ["", " "]


def test_a_full_stop_is_no_part_of_an_answer_in_any_script() -> None:
    for stop in ".।։።":
        said = f"All that is known of it in this house is that Zarquon Insurance pays in Երևան{stop}"
        assert "Երևան" in {gap.answer for gap in clozes([*HANDBOOK, said], limit=99, each=9)}


def test_the_line_that_lengthens_arabic_words_is_not_asked_for() -> None:
    said = "نحن نعيش في هذا البيت الكبير منذ سنين مع ــــ الجيران في المدينة القديمة."
    answers = {gap.answer for gap in clozes([*HANDBOOK, said], limit=99, each=9) if gap.sentence == said}
    assert "الجيران" in answers
    assert all(map(normalise, answers))


def test_words_behind_an_elision_are_as_common_as_they_are_without_it() -> None:
    french = (
        "Le contrat de la maison dit que tout ce qu'il y a dans la cour est à ceux qui y vivent depuis "
        "longtemps, et que personne ne peut y entrer sans avoir demandé avant. Nous avons toujours pensé "
        "que c'est bien ainsi, parce que les enfants jouent là chaque jour et que l'on n'a pas peur."
    )
    words = general_words([french])
    assert words is not None and words.language == "fr"
    for elided, plain in (("qu'il", "il"), ("l'entreprise", "entreprise"), ("n'est", "est")):
        assert words.elided_share(elided) >= words.share(plain)
    assert words.elided_share("l'quillonze") == words.share("quillonze")


def test_words_without_a_space_between_their_sentences_are_none() -> None:
    glued = "You will find everything that there is to know in the handbook.If not, ask whoever is around."
    found = clozes([*HANDBOOK, glued], limit=50)
    assert glued in {gap.sentence for gap in found}
    assert all("." not in gap.answer for gap in found)


def test_a_table_of_levels_is_asked_about_and_no_word_that_only_joins_others() -> None:
    told = ("finds the cause of most incidents", "leads the audit of our invoices", "writes down a hearing")
    rows = [f"| **Duty {n}** | The junior one {told[n]} with some help. | L{n} |" for n in range(3)]
    table = "\n".join(["| Category | Junior | Code |", "|---|---|---|", *rows])
    found = clozes([*HANDBOOK, table], limit=50)
    asked = {gap.sentence for gap in found}
    said = {f"Category: Duty {n}; Junior: The junior one {one} with some help." for n, one in enumerate(told)}
    assert said <= asked
    assert not {"of", "with", "the", "in", "our"} & {gap.answer for gap in found}
    assert not any("|" in gap.sentence for gap in found)


@pytest.mark.parametrize(
    "more", ["", "; page: https://a.b/c", f"; note: {'as much of it as there is ' * 20}"]
)
def test_rows_of_a_file_of_values_are_asked_about_up_to_where_they_are_too_long(more: str) -> None:
    makers = ("Nordwerk", "Ostheim", "Westbau")
    rows = [
        f"{n}; part of it: galvanised bolt; price (EUR): 1{n}; made by: {one}" for n, one in enumerate(makers)
    ]
    found = clozes([*HANDBOOK, "\n".join(row + more for row in rows)], limit=99, each=9)
    assert {gap.answer for gap in found if gap.sentence in rows} >= set(makers)


def test_short_rows_of_numbers_are_asked_about_by_what_their_first_column_says() -> None:
    rows = [f"year: {1990 + n}; x: {n}.{n + 1}; y: {37 * n + 41}" for n in range(8)]
    numbers = [(f"{n}.{n + 1}", str(37 * n + 41)) for n in range(8)]
    found = clozes(["\n".join(rows)], limit=99, each=9)
    assert {gap.answer for gap in found} == {*chain(*numbers)}
    assert all(gap.before.startswith(gap.sentence.partition(" x: ")[0] + " x:") for gap in found)
    twice = clozes(["\n".join([*rows[:7], "year: 1990; x: 9.9; y: 999"])], limit=99, each=9)
    assert {gap.answer for gap in twice} == {*chain(*numbers[1:7])}  # of 1990 there are two rows


def test_a_letter_that_stands_for_something_is_not_asked_for() -> None:
    told = "Zarquon Insurance pays for the people of house k"
    assert "k" not in {gap.answer for gap in clozes([*HANDBOOK, told], limit=50)}


def test_no_part_of_a_formula_is_asked_for() -> None:
    told = [
        r"In the house of all that we know there is $\mu_{gamma} \in zeta + qux$ and more of it.",
        "In the house of all that we know there is more than x_1, and b_2 and a=b of it.",
        "In the house of all that we know the price of it was $5 or so, not more.",
    ]
    answers = {gap.answer for gap in clozes([*HANDBOOK, *told], limit=50)}
    assert not {"zeta", "qux", "qux$", "x_1,", "x_1", "b_2", "a=b"} & answers
    assert "$5" in answers


def test_words_joined_by_a_dash_are_no_answer() -> None:
    dashed = "You will find in the house everything that there is about zarquons—spectacles and more of it."
    assert not any("—" in gap.answer for gap in clozes([*HANDBOOK, dashed], limit=50))


def test_further_gaps_of_a_sentence_follow_where_one_each_is_not_enough() -> None:
    one = clozes(HANDBOOK, limit=50)
    more = clozes(HANDBOOK, limit=50, each=3)
    assert more[: len(one)] == one
    assert len(more) > len(one)
    assert max(Counter(gap.sentence for gap in more).values()) <= 3
    assert clozes(HANDBOOK, limit=len(one), each=3) == one
    assert len({(gap.before, gap.answer) for gap in more}) == len(more)


@given(st.lists(st.lists(st.sampled_from(NOUNS), min_size=8, max_size=14), min_size=1, max_size=12))
def test_no_two_gaps_ask_the_same_question(said: list[list[str]]) -> None:
    texts = [f"{' '.join(words).capitalize()}." for words in said]
    gaps = clozes(texts, limit=100, each=3)
    assert len({gap.before.casefold() for gap in gaps}) == len(gaps)
    for gap in gaps:
        assert gap.sentence.startswith(f"{gap.before}{gap.between}{gap.answer}")
        assert gap.answer.casefold() not in gap.before.casefold()


def test_a_single_character_is_asked_for_only_where_nothing_else_is() -> None:
    said = "昂刺鱼豆腐汤是一道口感鲜美的家常汤品。胡萝卜洗净去皮切成滚刀块。小火倒入橄榄油等待香菇变软。"
    more = "加入白胡椒和黑胡椒调味。一份正好够两个人食用。排骨山药玉米汤清甜醇厚。生粉倒入小碗中搅拌均匀。"
    first = clozes([said, more, "盐放在最后的水里再放一点。"], limit=50)
    assert len(first) >= 4
    assert all(len(gap.answer) > 1 for gap in first)


def test_a_long_row_is_asked_for_its_second_field_too() -> None:
    """Of a description in a table's cell the first word is not asked for; later fields describe nothing."""
    names = ("Huldren", "Vesmark", "Tolbrin", "Askeby", "Orvand", "Quillem", "Bexhol", "Drumnar")
    rows = [
        f"name: {name}; code: K{name[:4].upper()}; souls: {917 * n + 411}; area: {37 * n + 41}; seas: {n}"
        for n, name in enumerate(names)
    ]
    asked = {(gap.before, gap.answer) for gap in clozes(["\n".join(rows)], limit=99, each=9)}
    assert {(f"name: {name}; code:", f"K{name[:4].upper()}") for name in names} <= asked


def test_the_title_of_a_column_is_never_asked_for() -> None:
    names = ("Huldren", "Vesmark", "Tolbrin", "Askeby")
    rows = [
        f"name: {name}; souls: {917 * n + 411}; Zorblax: K{name[:4].upper()}" for n, name in enumerate(names)
    ]
    around = [f"There are more ports on page {n} of this book, which all of us read." for n in range(40)]
    found = [gap for gap in clozes(["\n".join(rows), *around], limit=999, each=9) if gap.sentence in rows]
    assert {gap.answer for gap in found} >= {f"K{name[:4].upper()}" for name in names}
    assert not {gap.answer for gap in found} & {"name", "souls", "Zorblax"}
