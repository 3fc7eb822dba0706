"""Tokens, Curves, Compare, Race, Knowledge and Export as a person meets them: in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from db.writes.tracker import Tracker
from tests.support import databases, views
from tests.support.browser import Page, chromium, require, serving, until

pytestmark = pytest.mark.slow  # a browser takes its time on a busy machine

PATHS = ("/tokens", "/curves", "/compare", "/methods", "/knowledge", "/export")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    require()
    with Tracker(tmp_path_factory.mktemp("home") / "recover.db") as tracker:
        views.with_runs(tracker)
        run = tracker.start_run("eval")
        for name, passed in (("clean0", (True, True, True)), ("rec3", (True, False, False))):
            items = [item | {"response": views.HOSTILE} for item in databases.items(*passed)]
            databases.record_score(tracker, run.id, name, databases.score("ifeval", 0.9) | {"items": items})
        tracker.set_alias("base", "clean0")
        with serving(tracker) as base, chromium(base, tmp_path_factory.mktemp("profile")) as opened:
            yield opened


def choose(page: Page, name: str, value: str) -> None:
    """What a person does with a list: the address follows."""
    page.js(
        "const s = document.querySelector(`[data-param=${arguments[0]}]`); s.value = arguments[1];"
        "s.dispatchEvent(new Event('input', {bubbles: true}))",
        name,
        value,
    )
    until(lambda: f"{name}=" in page.driver.current_url)


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_itself_at_every_width_and_runs_nothing_of_the_models(page: Page, path: str) -> None:
    page.driver.get_log("browser")
    page.open(path)
    for width in (1280, 390):
        page.driver.set_window_size(width, 900)
        assert page.overflow() <= 0, width
    page.driver.set_window_size(1280, 900)
    said = [entry["message"] for entry in page.driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [message for message in said if "Content Security Policy" in message], said
    assert not [url for url in page.requests() if not url.startswith((page.base, "data:", "chrome"))]
    assert page.js("return document.querySelectorAll('#main script, #main img, #main iframe').length") == 0


def test_a_token_is_explained_on_a_click_and_the_back_button_takes_it_back(page: Page) -> None:
    page.open("/tokens")
    first = page.one(".tokens a.tok")
    page.js("arguments[0].click()", first)
    until(lambda: "at=0" in page.driver.current_url and "Token 1" in page.text())
    page.driver.back()
    until(lambda: "at=0" not in page.driver.current_url and "Token 2" in page.text())


def test_metric_axis_and_scale_of_a_curve_are_chosen(page: Page) -> None:
    page.open("/curves")
    choose(page, "metric", "loss")
    choose(page, "axis", "time")
    until(lambda: "loss over time" in (page.one("svg.figure").get_attribute("aria-label") or ""))
    page.js("document.querySelector('[data-param=log]').click()")
    until(lambda: "log=1" in page.driver.current_url)
    page.driver.refresh()
    until(lambda: page.js("return document.documentElement.dataset.ready"))
    assert page.js("return document.querySelector('[data-param=log]').checked")
    page.js("document.querySelector('.picks a').click()")
    until(lambda: "%2C" in page.driver.current_url)
    until(lambda: page.js("return document.querySelectorAll('.legend a').length") == 2)
    page.js("document.querySelector('.thumb').click()")
    until(lambda: "metric=" in page.driver.current_url)


def test_two_models_are_chosen_by_name(page: Page) -> None:
    page.open("/compare")
    assert "base against cycle:3" in page.text()
    shown = "return document.querySelector('[data-param=b]').value"
    assert page.js(shown) == "cycle:3:recovered"
    field = page.one("input[data-param=b]")
    field.send_keys("cycle:2:midtrained")
    until(lambda: "b=cycle" in page.driver.current_url and "base against cycle:2:midtrained" in page.text())
    assert page.js(shown) == "cycle:2:midtrained"
    choose(page, "b", "cycle:1:recovered")
    until(lambda: "base against cycle:1:recovered" in page.text())
    assert page.js("return document.querySelector('input[data-param=b]').value") == "cycle:1:recovered"
    page.go("/compare?a=base&b=cycle:3")
    choose(page, "flips", "gained")
    until(lambda: "None." in page.text())


def test_what_a_person_opens_or_closes_stays_so_when_the_page_is_drawn_again(page: Page) -> None:
    is_open = "return document.querySelector('#main details').open"
    for url, begins in (("/compare?a=base&b=cycle:3", False), ("/tokens", True)):
        page.open(url)
        assert page.js(is_open) is begins
        page.one("#main details summary").click()
        page.go(url)
        assert page.js(is_open) is not begins, url
        page.one("#main details summary").click()
        page.go(url)
        assert page.js(is_open) is begins, url


def test_methods_and_cycles_are_chosen(page: Page) -> None:
    page.open("/methods")
    choose(page, "student", "all")
    until(lambda: "opd-sampled" in page.text() and "sft" in page.text())
    page.go("/knowledge")
    page.js(
        "const a = [...document.querySelectorAll('.grid-figure a')][1];"
        "a.dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))"
    )
    until(lambda: "n=2" in page.driver.current_url and "After cycle 2" in page.text())


def test_a_download_is_offered_to_this_page_only(page: Page) -> None:
    page.open("/export")
    href = page.js("return document.querySelector('a[download=\"scores.csv\"]').getAttribute('href')")
    script = "return fetch(arguments[0]).then(a => a.text().then(t => [a.status, t.slice(0, 20)]))"
    status, text = page.js(script, href)
    assert status == 200 and text.startswith('"id","run_id"')
    assert page.js(script, href.replace("token=", "token=x"))[0] == 403
