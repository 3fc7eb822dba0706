"""The one-file report: opens from disk, needs nothing else, runs nothing, whatever the model wrote."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dashboard import report
from db.errors import NotFound
from db.reads import queries
from db.writes.tracker import Tracker
from pipelines.cli.commands import cli
from pipelines.cli.cycle_text import axis_line
from tests.support import databases, views

LOOP = "[\n\n" * 500
SECRET = "hf_abcdefghijklmnopqrstuvwxyz0123"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cycle in which every text that somebody else wrote is hostile, with curves, flips and a trace."""
    folder = tmp_path_factory.mktemp("home")
    with Tracker(folder / "recover.db") as tracker:
        databases.record_cycle(tracker, views.SCORES)
        number = databases.record_cycle(tracker, views.SCORES | {"knowledge:1": {"recovered": 0.5}})
        parent = queries.cycle(tracker.db, number)["run"]
        for kind in ("midtrain", "distill"):
            work = tracker.start_run(kind, parent=parent, key=kind, config={"hub": {"token": SECRET}})
            for step in range(1, 40):
                databases.record_metrics(tracker, work.id, step, {"loss": 1 / step, "reverse_kl": 2 / step})
            skipped = {"path": views.HOSTILE, "status": "skipped", "reason": views.HOSTILE}
            tracker.record_documents(work.id, [skipped])
            with tracker.live(work.id) as live:
                live.traces(1, [views.trace("opd", 0)])
            tracker.finish_run(work.id)
        asked = tracker.start_run("eval", parent=parent, key="again")
        for checkpoint, passed in (("clean0", (True, True)), (f"rec{number}", (True, False))):
            items = [
                item | {"prompt": f"{views.HOSTILE} {item['key']}", "response": views.HOSTILE + LOOP}
                for item in databases.items(*passed)
            ]
            databases.record_score(
                tracker, asked.id, checkpoint, databases.score("ifeval", 0.9) | {"items": items}
            )
        axis = {"outcome": "recovered", "difference": -0.01, "margin": 0.03}
        learned = {"words": "learned", "difference": 0.5, "interval": [0.25, 0.75]}
        tracker.record_verdicts(number, {"behaviour": axis, "knowledge": axis | {"learned": learned}})
        tracker.add_review(number, "needs-work", views.HOSTILE, views.HOSTILE)
    return folder


@pytest.fixture(scope="module")
def page(home: Path) -> str:
    with Tracker(home / "recover.db") as tracker:
        return report.report(tracker.db, 2)


def test_nothing_runs_and_nothing_is_fetched(page: str) -> None:
    assert len(page.encode()) < 2_000_000
    head, _, body = page.partition("<body>")
    found = views.scan(body)
    assert (
        not found.all("script") and not found.all("link") and not found.all("img") and not found.all("form")
    )
    assert views.HOSTILE not in page and "alert(1)" in found.text  # shown, as text
    assert "http://" not in head and "https://" not in head and "@import" not in head and "url(" not in head


def test_its_policy_allows_its_own_style_sheet_only(page: str) -> None:
    (css,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert unescape(policy).startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    assert "@media (prefers-color-scheme: dark)" in css and "data-theme" not in css


def test_it_has_what_a_reader_decides_by(page: str) -> None:
    text = views.Scan(page).text
    for words in (
        "Cycle 2",
        "recovered",
        "needs work",
        "midtrain: loss",
        "distill: reverse KL from the teacher, nats a token",
        "bars: 95 % intervals",
        "must exceed",
        "The documents: learned (+50.0 points against clean, +25.0 to +75.0).",
        "pass → fail",
        "token by token",
        "known when new",
        "How it was made",
        "95 %",
    ):
        assert words in text, words
    assert SECRET not in page
    cards = re.findall(r"<h2>([^<]*)</h2>", page)
    assert cards[:3] == ["Verdict", "Scores, % with 95 % intervals", "Knowledge against behaviour"]


@pytest.mark.parametrize(("midtrained", "said"), [(0.5, "100 %"), (1.0, "no loss shown"), (None, "–")])
def test_how_much_came_back_is_said_where_nothing_was_lost_too(
    midtrained: float | None, said: str, tmp_path: Path
) -> None:
    measured = {"clean": 1.0, "recovered": 1.0} if midtrained else {"clean": 1.0}
    scores = {"ifeval": measured | ({"midtrained": midtrained} if midtrained else {})}
    with Tracker(tmp_path / "recover.db") as tracker:
        text = views.Scan(report.report(tracker.db, databases.record_cycle(tracker, scores))).text
    assert f"Recovered of the lost behaviour: {said} · knows" in text


def test_the_command_writes_it_whole_or_not_at_all(home: Path, tmp_path: Path) -> None:
    def recover(*words: str) -> Any:
        return CliRunner().invoke(cli, ["--home", str(home), "--json", "report", *words])

    target = tmp_path / "r.html"
    answer = recover("cycle:2", "--out", str(target))
    assert answer.exit_code == 0 and json.loads(answer.stdout) == {"report": str(target)}
    assert target.read_text().startswith("<!doctype html>")
    assert recover("cycle:99", "--out", str(tmp_path / "no.html")).exit_code != 0
    assert recover("cycle:x").exit_code != 0
    assert list(tmp_path.iterdir()) == [target]


def test_a_cycle_that_has_just_begun_has_a_report_too(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        number = tracker.record_cycle(tracker.start_run("cycle").id)
        assert "There is none yet." in report.report(tracker.db, number)
        with pytest.raises(NotFound):
            report.report(tracker.db, 2)


def test_axes_without_a_claim_say_why(tmp_path: Path) -> None:
    scores = {"ifeval": {"clean": 1.0, "midtrained": 0.5, "recovered": 1.0}, "knowledge": {"recovered": 0.7}}
    bounds = {"difference": -0.01, "lower_bound": -0.05, "margin": 0.03, "needed_n": 1200}
    with Tracker(tmp_path / "recover.db") as tracker:
        number = databases.record_cycle(tracker, scores)
        tracker.record_verdicts(number, {"behaviour": bounds | {"outcome": "underpowered"}})
        text = views.Scan(report.report(tracker.db, number)).text
        endless = bounds | {"outcome": "underpowered", "needed_n": None}
        other = databases.record_cycle(tracker, scores)
        tracker.record_verdicts(other, {"behaviour": endless})
        undecided = views.Scan(report.report(tracker.db, other)).text
    assert "behaviour: No number of prompts decides a difference so near the margin." in undecided
    assert "behaviour: It would take 1,200 prompts to tell." in text
    assert "knowledge: There is no knowledge score of: clean, midtrained." in text
    assert "retentionnot measured–" in text and "retention: No retention question was asked." in text
    assert "No updates question" not in text  # no changed fact was asked about


def test_a_refuted_claim_has_the_bound_that_refutes_it(tmp_path: Path) -> None:
    axis = {"outcome": "not recovered", "difference": -0.11, "lower_bound": -0.13, "upper_bound": -0.0304}
    with Tracker(tmp_path / "recover.db") as tracker:
        number = databases.record_cycle(tracker, views.SCORES)
        tracker.record_verdicts(number, {"behaviour": axis | {"margin": 0.03}})
        text = views.Scan(report.report(tracker.db, number)).text
        said = axis_line("behaviour", queries.cycle(tracker.db, number)["verdict"])
    assert "−13.0 to −3.04−3.0" in text and "upper bound -3.04 points" in said


def test_a_rejected_cycle_without_any_axis_says_why(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        run = tracker.start_run("cycle").id
        number = tracker.record_cycle(run)
        tracker.record_cycle(run, status="rejected")
        assert "No axis could be judged" in report.report(tracker.db, number)


def test_the_flips_are_of_what_the_cycle_measured_itself(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        number = databases.record_cycle(tracker, {"ifeval": {"clean": 1.0, "recovered": 1.0}})
        later = tracker.start_run("eval")
        for checkpoint, passed in (("clean0", (True, True)), (f"rec{number}", (False, False))):
            databases.record_score(tracker, later.id, checkpoint, databases.score("ifeval", 0.5, *passed))
        found = views.Scan(report.report(tracker.db, number))
    assert "pass → fail 0" in found.text and not found.all("article", "flip")


def test_a_review_without_a_note_quotes_none(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        number = databases.record_cycle(tracker, views.SCORES)
        tracker.add_review(number, "approve", "", "ann")
        without = views.Scan(report.report(tracker.db, number))
        tracker.add_review(number, "reject", "slow", "bob")
        found = views.Scan(report.report(tracker.db, number))
    assert "by ann, " in without.text and not without.all("q") and "no seed" in without.text
    assert "by bob, " in found.text and found.all("q", "said inline")


def test_a_failed_cycle_says_why(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        run = tracker.start_run("cycle").id
        number = tracker.record_cycle(run)
        tracker.fail_run(run, f"Unstable: {views.HOSTILE}")
        tracker.record_cycle(run, status="failed")
        page = report.report(tracker.db, number)
    assert "Unstable: " in views.Scan(page).text and views.HOSTILE not in page


def test_a_trace_of_broken_numbers_has_a_report(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        run = tracker.start_run("cycle").id
        number = tracker.record_cycle(run)
        distilled = tracker.start_run("distill", parent=run, key="recover").id
        with tracker.live(distilled) as live:
            live.traces(1, [views.broken_trace()])
        page = report.report(tracker.db, number)
    assert [given["class"] for given in views.Scan(page).all("span", "tok") if "title" in given] == [
        "tok d2",
        "tok d6",
        "tok d6",
    ]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium to open the file with")
def test_a_browser_opens_it_from_disk_in_both_themes(page: str, tmp_path: Path) -> None:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    file = tmp_path / "report.html"
    file.write_text(page)
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-sync",
        "disable-background-networking",
        "disable-component-update",
        f"user-data-dir={tmp_path / 'profile'}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.get(file.as_uri())
        papers = []
        for theme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": theme}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            papers.append(driver.find_element("id", "root").value_of_css_property("background-color"))
        assert papers[0] != papers[1]
        assert driver.get_log("browser") == []  # no refused script, style or request
        assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
        assert driver.find_element("css selector", "svg.plane").size["height"] > 100
        wide = driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert wide
        flip = driver.find_element("css selector", ".flip")
        assert flip.size["height"] < 1_500  # of two answers of a thousand lines, one above the other
    finally:
        driver.quit()
