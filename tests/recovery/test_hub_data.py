"""What counts as an answer of the hub, and what as a hub out of reach."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi, errors

from recovery import hub_data
from recovery.errors import InputError
from recovery.hub_data import asked_once, one_try


def says(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """Let the hub answer every question with this status, in its client's own response class."""
    kind: Any = getattr(errors, "Response")  # noqa: B009 - imported there under whichever library is used
    web = sys.modules[kind.__module__.partition(".")[0]]
    response = kind(status, request=web.Request("GET", "https://example.org"))

    def answer(*_: Any, **__: Any) -> None:
        raise errors.HfHubHTTPError(f"status {status}", response=response)

    monkeypatch.setattr(HfApi, "repo_info", answer)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_an_overloaded_or_broken_hub_is_out_of_reach(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, status)
    assert asked_once("owner/name", "model") is None
    with one_try("owner/name") as revision:
        assert revision is None


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_the_hub_says_of_a_repository_is_raised(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, status)
    with pytest.raises(errors.HfHubHTTPError, match=f"status {status}"):
        asked_once("owner/name", "model")


@pytest.mark.parametrize("name", ["owner/na me", "a/b/c", "owner--name"])
def test_a_name_that_no_hub_can_have_is_bad_input(name: str) -> None:
    with pytest.raises(InputError, match=f"'{name}' can't be a data set on the hub"), one_try(name):
        pytest.fail("the hub counted as out of reach")


def test_the_commit_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HfApi, "repo_info", lambda *_, **__: SimpleNamespace(sha="0123abc"))
    assert asked_once("owner/name", "dataset") == "0123abc"


def test_a_hub_that_did_not_answer_is_not_asked_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    clock = 1000.0

    def silent(_: HfApi, name: str, **__: Any) -> None:
        asked.append(name)
        raise OSError("no route to host")

    monkeypatch.setattr(HfApi, "repo_info", silent)
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    for name in ("owner/one", "owner/two"):
        assert asked_once(name, "dataset") is None
    assert asked == ["owner/one"]
    with pytest.raises(InputError, match="can't be a data set on the hub"), one_try("owner/na me"):
        pytest.fail("a name that no hub can have counted as out of reach")
    clock += hub_data.SILENT_SECONDS
    assert asked_once("owner/two", "dataset") is None and asked == ["owner/one", "owner/two"]


def test_an_overloaded_hub_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, 503)
    assert asked_once("owner/name", "dataset") is None
    monkeypatch.setattr(HfApi, "repo_info", lambda *_, **__: SimpleNamespace(sha="0123abc"))
    assert asked_once("owner/name", "dataset") == "0123abc"
