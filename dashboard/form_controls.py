"""Build form controls whose value is a parameter of the page's address; static/page.js makes them act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dashboard.markup import Html, tag

NEARBY = 25  # cycles before and after the shown one that are offered


def choose(
    label: str, parameter: str, choices: Mapping[str, str], value: str, *, reset: str = "page after"
) -> Html:
    """Return a labelled select of {value: words}; a change drops the parameters in `reset`."""
    entries = [tag("option", words, value=name, selected=name == value) for name, words in choices.items()]
    return tag("label", label, tag("select", entries, data_param=parameter, data_reset=reset))


def choose_cycle(numbers: Sequence[int], shown: int) -> Html:
    """Return a select of the cycles around the shown one, and the newest."""
    near = {number for number in numbers if abs(number - shown) <= NEARBY}
    offered = sorted({*near, shown, numbers[-1]}, reverse=True)
    return choose("Cycle", "n", {str(number): f"cycle {number}" for number in offered}, str(shown))


def checkbox(label: str, parameter: str, on: bool) -> Html:
    box = tag("input", type="checkbox", data_param=parameter, checked=on)
    return tag("label", label, box, class_="check")


def search_field(placeholder: str) -> Html:
    """Return the page's search field; the page's script copies its value from the address."""
    field = tag("input", type="search", data_param="search", data_reset="page after", placeholder=placeholder)
    return tag("label", "Search", field)


def text_field(label: str, parameter: str, placeholder: str) -> Html:
    """Return a labelled text input; the page's script copies its value from the address."""
    field = tag(
        "input",
        type="text",
        data_param=parameter,
        data_reset="page after",
        placeholder=placeholder,
        spellcheck="false",
        autocomplete="off",
    )
    return tag("label", label, field)
