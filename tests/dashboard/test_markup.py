"""Text on a page is text: escaped, visible, and unable to reach out of its place."""

from __future__ import annotations

import time
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dashboard.address import LONGEST, Address
from dashboard.markup import Html, join, tag, text, visible
from db.redact import HIDDEN
from tests.support.hostile import PAYLOADS


class Seen(HTMLParser):
    """The elements, attributes and text that a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(str(page))
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(name)
        self.attributes += attributes

    def handle_data(self, data: str) -> None:
        self.words += data


@given(st.text())
@example("</textarea><script>alert(1)</script>")
@example("\x00\u202e\u2066{{7*7}}${7*7}\ud800")
def test_any_text_is_one_text_and_no_element(words: str) -> None:
    seen = Seen(tag("p", words, title=words, data_x=words))
    assert seen.elements == ["p"]
    assert {name for name, _ in seen.attributes} == {"title", "data-x"}
    assert seen.words == visible(words)
    assert dict(seen.attributes)["title"] == visible(words)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_payload_is_shown_and_not_done(payload: str) -> None:
    seen = Seen(join(payload, tag("b", payload)))
    assert seen.elements == ["b"] and seen.attributes == []


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a\u202eb", "a‹202E›b"),
        ("a\u200bb", "a‹200B›b"),
        ("\x1b[31m", "‹001B›[31m"),
        ("one\r\ntwo", "one\ntwo"),
        ("👩\u200d🔬", "👩\u200d🔬"),
        ("a\u200db", "a‹200D›b"),
        ("e" + "\u0301" * 50, "e" + "\u0301" * 3),
        ("naïve – 漢字 עברית", "naïve – 漢字 עברית"),
        ("\U000e0041", "‹E0041›"),
    ],
)
def test_what_hides_or_reorders_is_made_visible(given: str, shown: str) -> None:
    assert visible(given) == shown


def test_long_text_says_how_much_is_missing() -> None:
    assert text("a" * 1200, 200) == "a" * 200 + "… (1,000 more characters)"
    assert text("abc", 3) == "abc"


def test_only_this_program_marks_markup_and_nothing_leaves_the_page() -> None:
    assert tag("p", Html("<b>ours</b>"), ["<i>", None]) == "<p><b>ours</b>&lt;i&gt;</p>"
    for attributes in (
        {"onclick": "x()"},
        {"style": "color:red"},
        {"href": "javascript:alert(1)"},
        {"href": "https://a.example"},
        {"href": "//a.example"},
        {"src": "data:text/html,x"},
        {"href": "/\\a.example"},
        {"href": " javascript:x"},
        {"a b": "c"},
    ):
        with pytest.raises(ValueError):
            tag("a", "x", **attributes)
    with pytest.raises(ValueError):
        tag("p><script", "x")


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20), max_size=8))
def test_a_link_leads_back_to_what_it_was_made_of(parameters: dict[str, str]) -> None:
    clean = {
        k.encode("utf-8", "replace").decode(): v.encode("utf-8", "replace").decode()
        for k, v in parameters.items()
    }
    assert Address.of(Address("/x", clean).link()).given == clean


def test_a_query_takes_what_fits_and_drops_the_rest() -> None:
    query = Address.of("/cycle?n=7&sort=cost&page=-1&x=" + "y" * 9000)
    assert (query.path, query.number("n"), query.number("page", 1)) == ("/cycle", 7, 1)
    assert (
        query.choice("sort", ("cost", "cycle"), "cycle") == "cost"
        and query.choice("sort", ("a",), "a") == "a"
    )
    assert len(query.text("x")) == LONGEST and Address.of("http://[").path == "/"
    assert Address.of("/?" + "&".join(f"a{i}=1" for i in range(100))).given == {}
    assert (
        query.link(sort=None, n=8, x=None, page=None) == "/cycle?n=8"
        and query.page("/samples", n=1) == "/samples?n=1"
    )


def test_a_value_of_full_length_comes_back_in_any_script() -> None:
    """Each of these letters is nine characters of an address."""
    words = "漢" * LONGEST
    assert Address.of(Address("/", {"search": words, "n": "7"}).link()).given == {"search": words, "n": "7"}


def test_no_key_is_shown_on_a_page_and_attributes_stay_exact() -> None:
    shown = tag("a", "Bearer abcdef123456", title="OPENAI_KEY=abcdef", href="/x?token=abcdef123456")
    assert shown == f'<a title="OPENAI_KEY={HIDDEN}" href="/x?token=abcdef123456">Bearer {HIDDEN}</a>'
    assert "sk-abcd" not in text("x" * 190 + " sk-abcdefgh12345678" + "x" * 1000, 200)


def test_making_hidden_characters_visible_takes_time_in_proportion() -> None:
    begun = time.process_time()
    visible("\u200b" * 400_000)
    assert time.process_time() - begun < 5  # quadratic: minutes
