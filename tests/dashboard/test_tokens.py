"""The Tokens page: each token's distance as a shade with words, both sides' likeliest on a click."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from dashboard.figures import token_divergence
from dashboard.page_context import PageContext
from dashboard.pages import tokens
from db.writes.tracker import Tracker
from tests.support import databases, views


def test_a_rollout_has_a_shade_a_token_and_the_farthest_is_explained(
    home: tuple[PageContext, dict[str, str]],
) -> None:
    context, runs = home
    page = views.look(context, f"/tokens?run={runs['opd']}&step=10&rollout=1")
    shades = [given["class"] for given in page.all("a", "tok") if "at=" in given["href"]]
    assert shades == ["tok d0", "tok d6 chosen", "tok d3"]
    assert "Token 2" in page.text and "2.500 nats" in page.text
    assert "A rollout is shown by its mean divergence, in nats a token" in page.text
    assert "The student gave" in page.text and "14 %" in page.text and "the teacher 99 %" in page.text
    assert page.text.count("written") == 2  # it is among the likeliest of both


def test_a_click_leads_to_another_token_and_stays_with_the_rollout(
    home: tuple[PageContext, dict[str, str]],
) -> None:
    context, runs = home
    first = views.look(context, f"/tokens?run={runs['opd']}&step=1&rollout=0")
    link = next(given["href"] for given in first.all("a", "tok") if given["href"].endswith("at=0"))
    page = views.look(context, link)
    assert "Token 1" in page.text and "at step 1" in page.text
    assert any("chosen" in given["class"] for given in page.all("a", "tok d0"))


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("opd-sampled", "It sent no distribution of this token."),
        ("sft", "No teacher scored these tokens"),
    ],
)
def test_a_method_that_knows_less_says_so(
    home: tuple[PageContext, dict[str, str]], method: str, said: str
) -> None:
    context, runs = home
    assert said in views.look(context, f"/tokens?run={runs[method]}").text


def test_the_signal_of_each_method_is_drawn(home: tuple[PageContext, dict[str, str]]) -> None:
    page = views.look(home[0], "/tokens")
    for word in ("density", "bias", "concentration", "opd-sampled", "sft"):
        assert word in page.text


def test_the_signal_of_a_recovery_counts_once_it_has_ended(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        run = tracker.start_run("distill", config={"settings": {"method": "opd"}}).id
        with tracker.live(run) as live:
            live.traces(1, [views.trace("opd", 0)])
        context = views.context(tracker)
        for step, density in enumerate((0.2, 0.8)):
            databases.record_metrics(tracker, run, step, {"signal_density": density})
            assert "No recovery that has ended" in views.look(context, "/tokens").text
        tracker.finish_run(run)
        assert "0.50" in views.look(context, "/tokens").text.split("The signal of each method")[1]


@pytest.mark.parametrize(
    "url", ["/tokens?run=nobody&step=x&at=99", "/tokens?step=7&rollout=9&at=-1", "/tokens?at=2"]
)
def test_an_address_that_fits_nothing_shows_something_that_is_there(
    home: tuple[PageContext, dict[str, str]], url: str
) -> None:
    assert "Token" in views.look(home[0], url).text


def test_an_older_run_than_those_listed_is_shown_and_another_is_not_passed_off_as_it(
    home: tuple[PageContext, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, runs = home
    monkeypatch.setattr(tokens, "RUNS", 1)
    page = views.look(context, f"/tokens?run={runs['opd']}")
    assert {given["value"] for given in page.all("option")} == {runs["opd"], runs["sft"]}
    assert "the teacher 99 %" in page.text and "nothing to show" not in page.text
    assert "Run nobody has nothing to show here" in views.look(context, "/tokens?run=nobody").text


def test_without_traces_the_page_says_what_to_type(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        assert "recover distill" in views.look(views.context(tracker), "/tokens").text


def test_shades_grow_with_the_distance() -> None:
    values = [0.0, 0.02, 0.1, 0.3, 0.7, 1.5, 9.0]
    assert [token_divergence.level(value) for value in values] == list(range(len(token_divergence.WORDS)))
    assert token_divergence.level(-3.0) == 6


def test_numbers_that_broke_are_drawn_as_the_farthest(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        run = tracker.start_run("distill", config={"settings": {"method": "opd"}}).id
        with tracker.live(run) as live:
            live.traces(1, [views.broken_trace()])
        page = views.look(views.context(tracker), "/tokens")
        shades = [given["class"] for given in page.all("a", "tok") if "at=" in given["href"]]
        assert shades == ["tok d2", "tok d6 chosen", "tok d6"]
        assert "The student gave “b” 0 %, the teacher no number." in page.text
        first = views.look(views.context(tracker), "/tokens?at=0").text
        assert "The student gave “nan” no number, the teacher 90 %." in first


def test_a_mean_that_an_older_version_stored_by_name_is_drawn(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        run = tracker.start_run("distill", config={"settings": {"method": "opd"}}).id
        with tracker.live(run) as live:
            live.traces(1, [views.broken_trace()])
        tracker.db.write(lambda session: session.execute(sa.text("UPDATE traces SET mean = 'nan'")))
        assert "nan nats a token on average" in views.look(views.context(tracker), "/tokens").text
