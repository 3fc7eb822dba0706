"""The program of the attacks itself: its table, its inputs, and what it says of a promise that was broken."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.ledger import read
from tests.attacks import __main__ as program
from tests.attacks import from_tests, results
from tests.attacks.__main__ import here
from tests.attacks.attack import Attack, Size
from tests.attacks.from_tests import ROOT, nodes
from tests.attacks.mutation import mutated, mutated_archive, mutated_value
from tests.attacks.outcome import FEW, NotHeld, require_some
from tests.attacks.table import ATTACKS, LISTED
from tests.support import papers


def test_every_attack_has_a_name_and_something_that_runs() -> None:
    assert len(ATTACKS) == len(LISTED)
    for attack in LISTED:
        assert bool(attack.work) != bool(attack.tests)
        module, _, function = attack.work.rpartition(".")
        if module:
            source = (Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")
            assert f"def {function}(size: Size) -> str:" in source
        assert all((ROOT / node.split("::")[0]).is_file() for node in nodes(attack.tests))


def test_the_page_names_every_attack() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert [name for name in ATTACKS if f"`{name}`" not in page] == []


def test_the_page_shows_what_the_ledger_keeps() -> None:
    lines = read(results.KEPT)
    assert {line["attack"] for line in lines} <= set(ATTACKS) and lines == [*results.merge(lines)]
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    for run in (results.QUICK, results.CAMPAIGN):
        assert f"<!-- {run} -->\n{results.table(lines, run)}\n<!-- end {run} -->" in page


def test_a_newer_result_takes_the_place_of_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, kept, added = (tmp_path / name for name in ("page.md", "kept.jsonl", "added.jsonl"))
    page.write_text("a\n<!-- quick -->\n<!-- end quick -->\n<!-- campaign -->\n<!-- end campaign -->\n")
    monkeypatch.setattr(results, "KEPT", kept)
    monkeypatch.setattr(results, "PAGE", page)
    for said in ("older", "newer"):
        for size in (Size(kills=2000, seed=4), Size(kills=24, quick=True)):
            results.ledger(added).add(results.line(ATTACKS["kills"], size, "held", said))
        results.main([added])
    assert "| `kills` | 2,000 kills | 4 | held: newer |" in page.read_text()
    assert "| `kills` | 24 kills | 0 | held: newer |" in page.read_text() and "older" not in page.read_text()


def test_inputs_depend_on_seed_and_number_alone() -> None:
    data, value = papers.pdf("words"), {"a": [1, {"b": None}], "c": "x"}
    whole = papers.docx(papers.paragraph("words"))
    for change, what in ((mutated, data), (mutated_archive, whole)):
        made = [change(Size(seed=3).random("x", n), what) for n in range(30)]
        assert made == [change(Size(seed=3).random("x", n), what) for n in range(30)]
        assert sum(one != what for one in made) > 20
    values = [mutated_value(Random(n), value) for n in range(200)]
    assert value == {"a": [1, {"b": None}], "c": "x"}
    assert len({json.dumps(one) for one in values}) > 50


def test_a_quick_campaign_tries_the_same_numbers_on_every_machine() -> None:
    assert [*Size(minutes=10, quick=True).rounds(5)] == [0, 1, 2, 3, 4]
    assert [*Size(minutes=0, quick=True).rounds(5)] == [0]  # the minutes are only a cap
    assert len([*Size(minutes=0.002).rounds(5)]) > 5  # otherwise they decide


def test_a_promise_that_was_broken_is_said_and_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    missing = Attack("x", "tests pass", tests=("test_that_is_nowhere",))
    assert here(missing, Size()) == 1
    assert capsys.readouterr().out == "tests pass: there are 0 tests of the name test_that_is_nowhere\n"


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("assert True", 0, "2 tests\n"),
        ("if one: pytest.skip('no compiler: none')", 0, "1 tests, 1 skipped (no compiler: none)\n"),
        ("pytest.skip('no compiler')", program.LEFT_OUT, "2 skipped (no compiler)\n"),
        ("if one: pytest.skip('x')\n    assert False", 1, "tests pass: FAILED"),
    ],
)
def test_tests_that_are_skipped_are_not_taken_for_held(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    body: str,
    code: int,
    said: str,
) -> None:
    path = tmp_path / "test_some.py"
    path.write_text(
        f"import pytest\n\n@pytest.mark.parametrize('one', [0, 1])\ndef test_it(one):\n    {body}\n"
    )
    monkeypatch.setattr(from_tests, "nodes", lambda tests: [str(path)])
    assert here(Attack("x", "tests pass", tests=("x",)), Size()) == code
    assert capsys.readouterr().out.startswith(said)


def test_an_attack_that_is_left_out_does_not_count_as_held(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["attacks", "sql", "keys"])
    ends = {"sql": "held", "keys": "left out"}
    monkeypatch.setattr(program, "apart", lambda attack, size: {"verdict": ends[attack.name]})
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert (ended.value.code, capsys.readouterr().out) == (0, "1 of 2 attacks held (seed 0)\n")


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("current-folder", {"current_folder.stand_in": False}),
        (
            "fuzz-documents",
            {"fuzz_documents.read_batch": Counter(unreadable=48), "fuzz_documents.fuzz_files": 0},
        ),
        (
            "fuzz-checkpoints",
            {"fuzz_checkpoints.make_whole": [], "fuzz_checkpoints.load_batch": Counter(refused=40)},
        ),
        ("fuzz-servers", {"fuzz_servers.ended": "refused"}),
        ("fuzz-dashboard", {"fuzz_dashboard.address": 404, "fuzz_dashboard.event": 404}),
    ],
)
def test_an_attack_of_which_nothing_gets_through_has_not_held(
    monkeypatch: pytest.MonkeyPatch, name: str, refused: dict[str, Any]
) -> None:
    monkeypatch.setattr("logging.disable", lambda *_: None)  # of the whole process
    for place, end in refused.items():
        monkeypatch.setattr(f"tests.attacks.{place}", lambda *_, end=end: end)
    with pytest.raises(NotHeld, match="nothing was attacked"):
        ATTACKS[name].run(Size(minutes=10, quick=True))


def test_of_few_inputs_none_needs_to_get_through() -> None:
    require_some(Counter(refused=FEW - 1), "loaded")
    require_some(Counter(refused=FEW - 1, loaded=1), "loaded")
    with pytest.raises(NotHeld):
        require_some(Counter(refused=FEW), "loaded")
