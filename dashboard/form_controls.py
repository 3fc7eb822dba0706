"""Build form controls whose value is a address parameter of the page's address."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.markup import Html, tag


def choose(
    label: str, parameter: str, options: Sequence[tuple[str, str]], value: str, *, reset: str | None = None
) -> Html:
    """Return a labelled select of (value, text) options; a change drops the parameters in `reset`."""
    entries = [tag("option", text, value=name, selected=name == value) for name, text in options]
    return tag("label", label, tag("select", entries, data_param=parameter, data_reset=reset))


def check(label: str, parameter: str, on: bool) -> Html:
    return tag(
        "label", label, tag("input", type="checkbox", data_param=parameter, checked=on), class_="check"
    )


def write(label: str, parameter: str, placeholder: str, options: Sequence[str] = ()) -> Html:
    """Return a labelled text input with suggestions; the page's script copies its value from the address."""
    names = f"{parameter}-options"
    offered = tag("datalist", [tag("option", value=option) for option in options], id=names)
    field = tag(
        "input",
        type="text",
        data_param=parameter,
        placeholder=placeholder,
        list=names,
        spellcheck="false",
        autocomplete="off",
    )
    return tag("label", label, field, offered)
