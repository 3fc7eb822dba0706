"""The dashboard as a person meets it: in a real browser, live, and with hostile text everywhere."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.dashboard import pictures
from dashboard import cycles_table, page_frame
from dashboard.pages import samples
from db.reads import changes, queries
from db.writes.tracker import Tracker
from tests.support.browser import Page, chromium, require, serving, until
from tests.support.dashboards import fill
from tests.support.databases import record_score
from tests.support.hostile import AWAY, PAYLOADS

pytestmark = pytest.mark.slow  # a browser takes its time on a busy machine

ROOT = Path(__file__).parents[2]
HARM = AWAY.split("/")[2]


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracker]:
    require()
    with Tracker(tmp_path_factory.mktemp("home") / "recover.db") as tracker:
        fill(tracker)
        yield tracker


@pytest.fixture(scope="module")
def page(tracker: Tracker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with serving(tracker) as base, chromium(base, tmp_path_factory.mktemp("profile")) as page:
        yield page.open("/")


@pytest.fixture(autouse=True)
def forgetting(page: Page) -> Iterator[None]:
    """Drafts of one test are none of the next one's."""
    yield
    page.js("sessionStorage.clear()")


def test_links_controls_and_the_back_button(page: Page) -> None:
    page.open("/")
    assert "All cycles 3" in page.text()
    page.js("window.__same = 1")
    page.one("main a[href='/cycle?n=3']").click()
    until(lambda: "Stage by stage" in page.text() and page.driver.title == "Cycle 3 · recover")
    page.driver.back()
    until(lambda: "All cycles 3" in page.text())
    page.one("body").send_keys("/")
    search = page.driver.switch_to.active_element
    search.send_keys("recovered2")
    until(lambda: "All cycles 1 of 3" in page.text())
    assert "search=recovered2" in page.driver.current_url and search.get_attribute("value") == "recovered2"
    page.driver.refresh()  # the address is the state
    until(lambda: page.js("return document.documentElement.dataset.ready") and "1 of 3" in page.text())
    assert page.one("input[type=search]").get_attribute("value") == "recovered2"
    page.go("/samples?n=1&flip=lost")
    assert page.js("return document.querySelector('[data-param=flip]').value") == "lost"
    page.js(
        "const s = document.querySelector('[data-param=suite]'); s.value = 'knowledge';"
        "s.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    until(lambda: "suite=knowledge" in page.driver.current_url and "flip" not in page.driver.current_url)


def test_a_search_typed_just_before_leaving_is_not_made_on_the_next_page(page: Page) -> None:
    page.open("/").one("input[type=search]").send_keys("abc")
    page.go("/samples?n=1")
    time.sleep(0.6)  # longer than typing is waited for
    assert page.js("return location.pathname + location.search") == "/samples?n=1"


def test_a_list_goes_on_at_its_beginning_and_the_back_button_to_where_one_was(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycles_table, "LINES", 2)  # the last page follows: no link goes on
    monkeypatch.setattr(samples, "PAGE", 2)
    page.open("/").window(1280, 400)
    try:
        turned(page, "/", "page=2")
        turned(page, "/samples?n=1", "after=p1")
        page.js("scrollTo(0, 150)")
        page.go("/export")
        assert page.js("return scrollY") == 0
        page.driver.back()
        until(lambda: page.driver.title.startswith("Samples") and page.js("return scrollY") == 150)
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def turned(page: Page, url: str, further: str) -> None:
    """Go on in a list, and back."""
    last = page.go(url).one("main .pager:last-child a:last-child")
    page.js("arguments[0].scrollIntoView()", last)
    down = page.js("return scrollY")
    last.click()
    until(lambda: page.js("return location.search").endswith(further))
    until(lambda: page.js("return document.activeElement.tagName") == "SECTION")
    assert 0 <= below_the_header(page, "section:focus") < 200
    page.driver.back()
    until(lambda: not page.js("return location.search").endswith(further))
    page.arrived()  # the browser itself has scrolled before that, and the arriving page scrolls once more
    until(lambda: page.js("return scrollY") == down)


def test_what_an_input_method_has_composed_is_searched_for(page: Page) -> None:
    page.open("/")
    page.js(
        "const s = document.querySelector('input[type=search]'); s.value = 'recovered2';"
        "s.dispatchEvent(new InputEvent('input', {bubbles: true, isComposing: true}));"
        "s.dispatchEvent(new CompositionEvent('compositionend', {bubbles: true}))"
    )
    until(lambda: "search=recovered2" in page.driver.current_url)


def test_the_keyboard_reaches_everything_and_focus_is_seen(page: Page) -> None:
    page.open("/cycle?n=1")
    names = []
    for _ in range(40):
        page.driver.switch_to.active_element.send_keys("\ue004")  # Tab
        names.append(
            page.js(
                "const e = document.activeElement; return (e.name || e.textContent || '').trim().slice(0, 30)"
            )
        )
    assert names[0] == "Skip to content"
    for wanted in ("recover", "Behaviour", "decision", "note", "reviewer", "Record the review"):
        assert wanted in names


def test_skipping_to_the_content_keeps_the_page_and_what_was_typed(page: Page) -> None:
    """Within the page's base address #main alone is another page: the list of cycles."""
    page.open("/cycle?n=3").one("textarea[name=note]").send_keys("half a thought")
    page.js("document.querySelector('a.skip').focus()")  # as Tab does; until then it is out of sight
    page.driver.switch_to.active_element.send_keys("\ue007")  # Enter
    assert page.js("return [document.activeElement.id, location.search]") == ["main", "?n=3"]
    assert page.one("textarea[name=note]").get_attribute("value") == "half a thought"


def test_the_link_to_the_review_form_stays_on_the_page_and_shows_it(page: Page) -> None:
    page.open("/").go("/cycle?n=1").window(1280, 500)
    try:
        link = page.one(".next a:last-child")
        assert link.get_property("href") == f"{page.base}/cycle?n=1#review"  # without a script too
        link.click()
        until(lambda: page.js("return document.activeElement.id") == "review")
        assert page.js("return location.pathname + location.search") == "/cycle?n=1"
        assert 0 <= below_the_header(page, "#review h2") < 200
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def below_the_header(page: Page, selector: str) -> float:
    """By how many pixels an element begins below the header, which stays at the top of the window."""
    top = "return document.querySelector(arguments[0]).getBoundingClientRect()"
    return float(page.js(f"{top}.top", selector) - page.js(f"{top}.bottom", ".top"))


def test_a_half_written_review_is_there_when_its_reader_comes_back(page: Page) -> None:
    page.open("/cycle?n=2").one("textarea[name=note]").send_keys("half a thought")
    page.js("document.querySelector('form.review input[value=reject]').click()")
    page.go("/samples?n=2").go("/cycle?n=3")
    assert page.js(WRITTEN) == ["", False]  # of another cycle
    page.go("/cycle?n=2")
    assert page.js(WRITTEN) == ["half a thought", True]
    page.driver.refresh()
    until(lambda: page.js("return document.documentElement.dataset.ready"))
    assert page.js(WRITTEN) == ["half a thought", True]


WRITTEN = """
const form = document.querySelector("form.review");
return [form.note.value, form.querySelector("input[value=reject]").checked];
"""
SAID = "return document.getElementById('said').innerText"


def test_a_review_that_could_not_be_sent_is_kept_and_said(page: Page, tracker: Tracker) -> None:
    def written(note: str) -> None:
        page.one("textarea[name=note]").send_keys(note)
        page.js("document.querySelector('form.review input[value=needs-work]').click()")
        page.one("input[name=reviewer]").clear()
        page.one("input[name=reviewer]").send_keys("ann")
        page.one("form.review button").click()

    page.do("Network.enable")
    try:
        page.do("Network.setBlockedURLs", urls=["*/page.js"])
        page.driver.get(f"{page.base}/cycle?n=3")
        written("no script")
        assert page.driver.current_url == f"{page.base}/cycle?n=3"
        assert page.one("textarea[name=note]").get_attribute("value") == "no script"
        page.do("Network.setBlockedURLs", urls=["*/assets/*"])
        page.driver.get(f"{page.base}/cycle?n=3")
        written("too early")
        assert "was not sent" in page.js(SAID)
    finally:
        page.do("Network.setBlockedURLs", urls=[])
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.open("/cycle?n=3").do("Network.emulateNetworkConditions", offline=True, **offline)
    try:
        written(", then to the void")  # the form is as it was left
        until(lambda: "does not answer" in page.one("#offline").text)
        page.js("window.__cut = 1")
        until(lambda: page.js("return document.querySelector('.toast-wrap')"))  # Gradio's, over the header
        assert not page.one(".toast-wrap").is_displayed()
        assert "send the review again" in page.js(SAID)
    finally:
        page.do("Network.emulateNetworkConditions", offline=False, **offline)
    until(lambda: page.js("return document.documentElement.dataset.ready && !window.__cut"))  # loaded anew
    assert "send it again" in page.js(SAID)
    page.one("form.review button").click()
    until(lambda: "Recorded: cycle 3" in page.js(SAID))
    assert [row["note"] for row in queries.reviews(tracker.db, cycle=3)] == ["too early, then to the void"]


def test_what_a_review_answered_stays_while_the_page_is_redrawn(page: Page, tracker: Tracker) -> None:
    page.open("/cycle?n=3").one("input[value=needs-work]").click()
    page.one("input[name=reviewer]").clear()
    page.one("input[name=reviewer]").send_keys("ann")
    page.one("form.review button").click()
    said = "return document.getElementById('said').innerText"
    until(lambda: "Recorded: cycle 3" in page.js(said))
    tracker.add_review(3, "needs-work", "from a terminal", "bob")
    until(lambda: "from a terminal" in page.text())
    assert "Recorded: cycle 3" in page.js(said)
    page.one("nav a").click()
    until(lambda: page.js("return location.pathname") == "/" and not page.js(said))


def test_light_dark_and_a_phone(page: Page) -> None:
    page.open("/")
    light = page.js("return getComputedStyle(document.getElementById('root')).backgroundColor")
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    until(
        lambda: page.js("return getComputedStyle(document.getElementById('root')).backgroundColor") != light
    )
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    phone = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        for url in ("/", "/cycle?n=2", "/behaviour?n=2", "/samples?n=2"):
            assert page.go(url).overflow() <= 0, url
            assert page.js(
                "const nav = document.querySelector('nav'); return nav.scrollWidth <= nav.clientWidth"
            )
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_dark_page_is_printed_on_light_paper(page: Page) -> None:
    page.open("/behaviour?theme=dark")
    colours = (
        "const style = getComputedStyle(document.getElementById('root'));"
        "return [style.color, style.backgroundColor, style.getPropertyValue('--h5')]"
    )
    assert page.js(colours) == ["rgb(233, 231, 226)", "rgb(20, 22, 26)", "#3b3230"]
    page.do("Emulation.setEmulatedMedia", media="print")
    try:
        assert page.js(colours) == ["rgb(28, 30, 33)", "rgb(247, 246, 243)", "#f6dcc9"]
    finally:
        page.do("Emulation.setEmulatedMedia", media="")


def test_the_theme_is_chosen_where_the_browser_keeps_nothing(page: Page) -> None:
    blocked = (
        "for (const name of ['localStorage', 'sessionStorage'])"
        "Object.defineProperty(window, name, {get() { throw new DOMException('blocked'); }})"
    )
    script = page.do("Page.addScriptToEvaluateOnNewDocument", source=blocked)
    try:
        page.open("/")
        for theme in ("light", "dark"):
            page.one("#theme").click()
            page.go("/cycle?n=1")
            assert page.js("return document.documentElement.dataset.theme") == theme
    finally:
        page.do("Page.removeScriptToEvaluateOnNewDocument", **script)
        page.open("/")


def test_the_verdict_of_every_cycle_is_in_sight_in_a_narrow_window(page: Page) -> None:
    page.open("/")
    ends = (
        "const chips = [...document.querySelectorAll('table.cycles td:nth-child(8) .chip')];"
        "return chips.map(chip => chip.getBoundingClientRect().right)"
    )
    try:
        for width in (1240, 1000, 870, 600, 390):
            page.window(width, 900)
            assert 0 < max(page.js(ends)) <= width, width
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_review_in_the_browser_and_one_from_elsewhere(page: Page, tracker: Tracker) -> None:
    page.open("/cycle?n=3").one("p.pager a").click()  # the form follows to the cycle that is shown
    until(lambda: "Cycle 2" in page.js("return document.querySelector('h1').innerText"))
    page.one("textarea[name=note]").send_keys("half a thought")
    tracker.add_review(2, "needs-work", "from a terminal", "bob")
    until(lambda: "from a terminal" in page.text())  # without a reload
    assert page.one("textarea[name=note]").get_attribute("value") == "half a thought"
    page.one("input[value=approve]").click()
    page.one("input[name=reviewer]").clear()
    page.one("input[name=reviewer]").send_keys("ann")
    page.one("form.review button").click()
    until(lambda: "Recorded: cycle 2 approved" in page.js("return document.getElementById('said').innerText"))
    assert [(row["reviewer"], row["decision"]) for row in queries.reviews(tracker.db, cycle=2)] == [
        ("ann", "approve"),
        ("bob", "needs-work"),
    ]
    assert queries.resolve(tracker.db, "current") == "recovered2"
    assert page.one("textarea[name=note]").get_attribute("value") == ""


def test_a_click_whose_answer_was_lost_is_one_review_after_a_redraw(
    page: Page, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.open("/cycle?n=1")
    page.one("textarea[name=note]").send_keys("one decision")
    page.one("input[value=needs-work]").click()
    page.one("input[name=reviewer]").send_keys("ann")
    submit = page_frame.submit_form

    def lost(*request: Any) -> Any:
        submit(*request)
        raise ConnectionError("the answer is lost")

    def decisions() -> list[str]:
        return [row["note"] for row in queries.reviews(tracker.db, cycle=1)]

    monkeypatch.setattr(page_frame, "submit_form", lost)
    page.js("document.querySelector('form.review button').click()")
    until(lambda: decisions() == ["one decision"])
    monkeypatch.undo()
    until(lambda: "one decision" in page.text())  # the page is drawn again
    assert page.one("textarea[name=note]").get_attribute("value") == "one decision"
    page.js("document.querySelector('form.review button').click()")
    until(lambda: "Recorded" in page.js("return document.getElementById('said').innerText"))
    assert decisions() == ["one decision"]


def test_a_list_shows_what_the_page_was_drawn_with(page: Page) -> None:
    """An address may name what is not offered; the back button leads to one that names nothing."""
    value = "return document.querySelector('[data-param=suite]').value"
    page.open("/samples?n=1&suite=unknown")
    assert page.js(value) == "ifeval"
    page.js(
        "const s = document.querySelector('[data-param=suite]'); s.value = 'knowledge';"
        "s.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    until(lambda: "suite=knowledge" in page.driver.current_url)
    page.driver.back()
    until(lambda: "suite=unknown" in page.driver.current_url and page.js(value) == "ifeval")


RUN = """
import sys, time
from db.writes.tracker import Tracker
with Tracker(sys.argv[1]) as tracker:
    run = tracker.start_run("cycle", key="elsewhere")
    number = tracker.record_cycle(run.id)
    stage = tracker.start_run("midtrain", parent=run.id, key="midtrain")
    with tracker.live(stage.id) as live:
        for step in range(1, 100_000):
            live.progress(step, 100_000, eta_seconds=1e5 - step, message=f"loss {1 / step:.4f}")
            time.sleep(0.2)
"""


def test_a_run_elsewhere_shows_up_moves_and_stalls_when_it_is_killed(
    page: Page, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.open("/")
    page.js("window.__same = 1")
    command = [sys.executable, "-c", RUN, str(tracker.db.path)]
    run = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        until(lambda: "Cycle 4" in page.text())
        page.one("main h1 a").click()
        first = until(lambda: step_of(page))
        until(lambda: (step_of(page) or 0) > first)
        assert "left" in page.text()
        page.driver.refresh()  # it survives a reload
        until(
            lambda: page.js("return document.documentElement.dataset.ready") and (step_of(page) or 0) > first
        )
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    monkeypatch.setattr(changes, "STALLED_SECONDS", 3.0)  # a minute, shortened
    until(lambda: "No sign of life" in page.text() and "recover resume" in page.text())


def step_of(page: Page) -> int | None:
    words = page.text().split("step ")
    return int(words[1].split(" of")[0].replace(",", "")) if len(words) > 1 else None


def test_the_page_that_came_with_the_document_is_taken_over_as_it_is(page: Page) -> None:
    """Nothing is fetched or drawn a second time when Gradio has started."""
    page.requests()
    page.open("/cycle?n=2")
    assert not [url for url in page.requests() if "/predict" in url]
    assert page.driver.title == "Cycle 2 · recover"  # Gradio would call every page by one name
    assert page.js("return document.querySelectorAll('#root').length") == 1
    page.one("textarea[name=note]").send_keys("kept")
    page.go("/cycle?n=2&documents=all")
    assert page.one("textarea[name=note]").get_attribute("value") == "kept"


REFRESH = """
const [times, done] = arguments; let left = times;
const drawn = (serial) => window.recover.serial > serial && !document.documentElement.dataset.busy;
const step = (serial) => drawn(serial) ? next() : setTimeout(step, 1, serial);
const next = () => {
  if (!left--) return done();
  const serial = window.recover.serial;
  document.getElementById("root").dataset.version = "";  // as if a row had changed
  document.dispatchEvent(new Event("visibilitychange"));  // what a live page asks every two seconds
  step(serial);
};
next();
"""


def test_a_half_written_review_stays_with_its_cycle_when_a_newer_one_begins(
    page: Page, tracker: Tracker
) -> None:
    number = "return document.querySelector('form.review input[name=cycle]').value"
    page.open("/cycle")  # as the navigation leads there: the newest
    shown = page.js(number)
    page.one("textarea[name=note]").send_keys("of that cycle")
    page.js("document.querySelector('form.review input[value=reject]').click()")
    refresh(page, 25)
    run = tracker.start_run("cycle", key="begun meanwhile")
    newer = tracker.record_cycle(run.id)
    until(lambda: f"Cycle {newer} →" in page.text())
    assert page.js(number) == shown and page.js(WRITTEN) == ["of that cycle", True]
    page.go("/cycle")
    assert page.js(number) == str(newer) and page.js(WRITTEN) == ["", False]
    tracker.stop_run(run.id, "interrupted")


def test_an_hour_of_live_refresh_leaves_memory_as_it_was(page: Page, tracker: Tracker) -> None:
    """Shortened: of an hour's 1,800 looks at a changing page 400, each asked, fetched, drawn and merged. What
    one leaves behind would be kept 400 times: the browser may keep 1 kB of each, the server 10."""
    page.open("/cycle?n=3")
    refresh(page, 50)
    nodes = page.nodes()
    alive = page.alive()
    heap = page.heap()
    rss = resident()
    refresh(page, 400)
    assert page.nodes() == nodes and page.alive() - alive < 100
    assert page.heap() - heap < 400_000
    assert resident() - rss < 4_000_000


def refresh(page: Page, times: int) -> None:
    for _ in range(times // 25):
        page.driver.execute_async_script(REFRESH, 25)


def resident() -> int:
    """Bytes of memory that this process, and the server in it, holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_readmes_pictures_are_made_of_a_home(tracker: Tracker, tmp_path: Path) -> None:
    assert tracker.db.path
    for path in pictures.pictures(tracker.db.path.parent, tmp_path):
        with Image.open(path) as image:
            colours = image.convert("L").histogram()
            assert image.width >= 800 and image.height >= 600
            assert sum(colours[230:]) > 0.8 * sum(colours) and sum(colours[:100]) > 1000  # ink on light paper


# Hostile text -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Every payload as prompt, answers, document, reason, setting, version, note, reviewer, error."""
    require()
    with Tracker(tmp_path_factory.mktemp("hostile") / "recover.db") as tracker:
        besiege(tracker)
        with serving(tracker) as base, chromium(base, tmp_path_factory.mktemp("profile2")) as page:
            yield page


def besiege(tracker: Tracker) -> None:
    fill(tracker, 1)
    everything = dict(enumerate(PAYLOADS))
    config = {f"setting {i}": words for i, words in everything.items()} | {
        words[:40]: i for i, words in everything.items()
    }
    run = tracker.start_run(
        "cycle", key=PAYLOADS[0], config={"docs": PAYLOADS[1], **config}, versions={"x": PAYLOADS[2]}
    )
    tracker.record_cycle(run.id)
    stage = tracker.start_run("midtrain", parent=run.id, key="midtrain")
    tracker.record_documents(
        stage.id,
        [
            {"path": f"{i:03} {words}", "status": "skipped", "reason": words}
            for i, words in everything.items()
        ],
    )
    with tracker.live(stage.id) as live:
        live.progress(1, 2, message=PAYLOADS[3] + PAYLOADS[-1])
        live.flush()
    tracker.fail_run(stage.id, " ".join(PAYLOADS))
    for name in ("clean", "midtrained", "recovered"):
        tracker.record_checkpoint(f"{name}h", path=PAYLOADS[4], kind="full", sha256=name)
        column: dict[str, Any] = {f"{name}_id": f"{name}h"}
        tracker.record_cycle(run.id, **column)
        asked = tracker.start_run("eval", parent=run.id, key=f"eval:{name}")
        items = [
            {
                "key": f"{i:03}{words[:60]}",
                "prompt": words,
                "response": words if name != "clean" else words[::-1],
                "passed": name == "clean",
                "detail": {"instructions": [words[:50]], "strict": [False]},
            }
            for i, words in everything.items()
        ]
        details = {"by_instruction": {words[:50]: {"passed": 0, "n": 1} for words in PAYLOADS}}
        score = {
            "suite": "ifeval",
            "metric": "prompt_strict",
            "value": 0.5,
            "n": 9,
            "interval": [0.4, 0.6],
            "items": items,
        }
        record_score(tracker, asked.id, f"{name}h", score | {"details": details})
    for words in PAYLOADS:
        tracker.add_review(2, "needs-work", words, words)


def visited(page: Page) -> list[str]:
    samples = [f"/samples?n=2&after={i:03}" for i in range(0, len(PAYLOADS), 10)]
    documents = ["/cycle?n=2&documents=all", "/cycle?n=2&documents=skipped"]
    return [
        *samples,
        *documents,
        "/",
        "/?search=" + "x" * 200,
        "/behaviour?n=2",
        "/behaviour?n=2&view=cycles&order=worst",
    ]


def test_hostile_text_runs_nothing_asks_for_nothing_and_stays_in_its_place(besieged: Page) -> None:
    besieged.open("/")
    besieged.requests()
    for url in visited(besieged):
        for load in (besieged.open, besieged.go) if url == "/" else (besieged.go,):
            load(url)
            assert besieged.js("return window.__harmed") is None, url
            assert besieged.overflow() <= 0, url
            assert "could not be drawn" not in besieged.text()
            inside = "#root :is(script, iframe, object, embed, img, link, meta, base, style, video, audio)"
            assert besieged.js(f"return document.querySelectorAll(`{inside}`).length") == 0, url
            assert besieged.js("return document.querySelectorAll('#root').length") == 1
    time.sleep(1)
    asked = besieged.requests()
    assert asked and all(url.startswith((besieged.base, "data:")) for url in asked), [
        u for u in asked if HARM in u
    ]


def test_the_document_itself_holds_them_as_text(besieged: Page) -> None:
    """Before any script has run: the page as it comes from the server."""
    besieged.open("/samples?n=2")
    assert besieged.js("return window.__harmed") is None and besieged.overflow() <= 0


def test_markup_that_slipped_in_could_not_run(besieged: Page) -> None:
    """The last line: what a mistake in a page would let in, the content policy stops."""
    besieged.open("/")
    besieged.requests()
    besieged.js(
        "document.getElementById('main').innerHTML = \"<img src=x onerror='window.__harmed=1'>"
        f"<img src='https:{AWAY}'><iframe src='https:{AWAY}'></iframe><form action='https:{AWAY}'></form>\";"
        f"fetch('https:{AWAY}').catch(() => 0);"
        "const s = document.createElement('script'); s.textContent = 'window.__harmed=2';"
        "document.body.append(s)"
    )
    time.sleep(1)
    assert besieged.js("return window.__harmed") is None
    blocked: list[Any] = [
        entry for entry in besieged.driver.get_log("browser") if "Content Security Policy" in entry["message"]
    ]
    assert len(blocked) >= 4
