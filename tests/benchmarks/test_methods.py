"""The bench of the methods: every row is there with dials that hold, results survive a kill, sums add up."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ledger import Ledger, markdown, put
from benchmarks.outcomes import forgetting, methods
from benchmarks.outcomes.lab import Lab
from benchmarks.outcomes.method_rows import ROWS, Outcome, Row
from evals import ifeval
from pipelines.distillation.inputs import refuse_ignored
from recovery.methods.table import METHODS, with_dials

BY_LABEL = {row.label: row for row in ROWS}


def outcome(after: dict[str, float], **metrics: list[float]) -> Outcome:
    clean = {"behaviour": 0.9, "others": 0.9, "retention": 1.0} | {"capitals": 0.0}
    clean["commas"] = 0.4
    return Outcome(clean, clean | {"behaviour": 0.1}, clean | after, metrics)


def test_every_method_is_put_to_the_test() -> None:
    assert {row.method for row in ROWS} == set(METHODS)
    assert len(BY_LABEL) == len(ROWS)
    seen: set[str] = {"clean", "midtrained"}
    for row in ROWS:
        assert {row.student, *row.needs, *row.routes.values()} <= seen, row.label
        seen.add(row.label)


@pytest.mark.parametrize("row", [*ROWS, *forgetting.ARMS], ids=lambda row: getattr(row, "label", row))
def test_settings_are_read_by_their_methods(row: Any) -> None:
    method = with_dials(row.method, row.settings.get("dials", {}))
    routes = getattr(row, "routes", {})
    refuse_ignored(
        method, context=row.settings.get("context"), reward=row.settings.get("reward"), route=routes
    )
    assert bool(row.settings.get("reward")) == method.needs_rewards


@pytest.mark.parametrize(
    ("label", "good", "bad"),
    [
        ("opd", {"behaviour": 0.85}, {"behaviour": 0.84}),
        ("opcd", {"capitals": 0.5}, {"capitals": 0.4}),
        ("deliberate", {"commas": 0.75}, {"commas": 0.6}),
        ("sft", {"capitals": 0.8}, {"capitals": 0.7}),
        ("sdft", {"capitals": 0.9}, {"capitals": 0.9, "retention": 0.7}),
        ("asft", {"capitals": 0.9}, {"capitals": 0.5}),
        ("opd-multi", {"capitals": 0.6}, {"capitals": 0.6, "behaviour": 0.5}),
    ],
)
def test_claims_by_hand(label: str, good: dict[str, float], bad: dict[str, float]) -> None:
    results = {"sft": outcome({"others": 0.7, "retention": 0.9})}
    assert results["sft"].forgotten == pytest.approx(0.15)
    assert BY_LABEL[label].holds(outcome(good), results)
    assert not BY_LABEL[label].holds(outcome(bad), results)


def test_claims_about_curves_by_hand() -> None:
    free = BY_LABEL["opsd, no clip"]
    results = {"opsd": outcome({}, signal_concentration=[0.1, 0.2])}
    assert free.holds(outcome({}, signal_concentration=[0.3, 0.2]), results)
    assert not free.holds(outcome({}, signal_concentration=[0.15, 0.17]), results)
    assert BY_LABEL["rl"].holds(outcome({}, reward=[0.2, 0.3]), {})
    assert not BY_LABEL["rl"].holds(outcome({}, reward=[0.2, 0.2]), {})


def test_results_survive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lines.jsonl"
    ledger = Ledger(path, ("seed", "row"))
    ledger.add({"seed": 1, "row": "a", "held": True})
    with path.open("a") as file:
        file.write('{"seed": 1, "row": "b", "he')
    again = Ledger(path, ("seed", "row"))
    assert again.get(seed=1, row="a") == {"seed": 1, "row": "a", "held": True}
    assert again.get(seed=1, row="b") is None
    again.add({"seed": 1, "row": "b"})
    assert len(Ledger(path, ("seed", "row")).lines) == 2


def test_a_row_comes_with_what_it_refers_to_and_is_named_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [row.label for row in methods._with_needed(["sdft", "opd-multi"])]
    assert found == ["opcd", "sft", "sdft", "opd-multi"]
    before = methods._digest(BY_LABEL["sdft"], 300)
    assert before == methods._digest(BY_LABEL["sdft"], 300) != methods._digest(BY_LABEL["sdft"], 200)
    changed = Row(**{**vars(BY_LABEL["sft"]), "learning_rate": 1e-3})
    monkeypatch.setitem(methods.BY_LABEL, "sft", changed)
    assert methods._digest(BY_LABEL["sdft"], 300) != before


def line(seed: int, held: bool, after: float) -> dict[str, Any]:
    return {
        "seed": seed,
        "row": "rl",
        "held": held,
        "before": {"behaviour": 0.1},
        "after": {"behaviour": after},
        "metrics": {"reward": [0.2, 0.6], "signal_bias": [0.0, 0.2]},
        "cost": {"tokens_sampled": 500.0, "tokens_trained": 1000.0},
    }


def test_tables_by_hand(tmp_path: Path) -> None:
    (row,) = methods.table([line(1, True, 0.8), line(2, False, 0.4)])
    assert (row["row"], row["held"]) == ("`rl`", "1 of 2")
    assert (row["tokens sampled"], row["tokens trained"]) == ("500", "1,000")
    assert row["moved"] == "behaviour 0.10 → 0.60; reward 0.20 → 0.60"
    (shape,) = methods.geometry([line(1, True, 0.8)])
    assert shape["signal bias"] == pytest.approx(0.1) and shape["gradient bias"] is None
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- moved -->\nold\n<!-- end moved -->\nb\n")
    put(page, "moved", markdown([row]))
    put(page, "moved", markdown([{"x": 0.25}]))
    assert page.read_text() == "a\n<!-- moved -->\n| x |\n| --- |\n| 0.25 |\n<!-- end moved -->\nb\n"
    with pytest.raises(SystemExit, match="are missing"):
        put(page, "other", "")


def test_forgetting_by_hand() -> None:
    clean = {"triples": 0.5, "behaviour": 1.0, "retention": 0.8}
    worse = {"triples": 0.4, "behaviour": 0.5, "retention": 0.6}
    student = {"triples": 0.6, "behaviour": 0.9, "retention": 0.6}
    teacher, learner = ({"seed": 1, "clean": clean, "after": after} for after in (worse, student))
    assert forgetting.forgetting(teacher) == pytest.approx((0.5 + 0.2) / 2)
    assert forgetting.ratio(teacher) == pytest.approx((0.5 + 0.75) / 2)
    rows = forgetting.table({"stress SFT": [teacher], "opd from stress": [learner]})
    assert [row["beats its teacher"] for row in rows] == ["", "triples 1/1, behaviour 1/1, retention 0/1"]


def test_the_target_is_three_instructions_that_its_answers_follow() -> None:
    drawn = forgetting.triples(random.Random(7), {"recovery": 6, "evaluation": 3})
    assert {part: len(tasks) for part, tasks in drawn.items()} == {"recovery": 6, "evaluation": 3}
    for task in [task for tasks in drawn.values() for task in tasks]:
        assert len(task.instruction_ids) == 3
        assert ifeval.followed(task.answer, task.prompt, task.instruction_ids, task.kwargs) == 1.0


@pytest.mark.slow
def test_a_row_is_trained_measured_and_not_repeated(tmp_path: Path) -> None:
    small = Row(
        "opcd",
        "opcd",
        "clean",
        "plain.jsonl",
        ("capitals",),
        "",
        lambda o, results: True,
        {"steps": 1, "prompts_per_step": 2, "max_new_tokens": 8, "context": "Write in capital letters only."},
    )
    lab = Lab(tmp_path, 5, 10, quiet=True)
    first = methods._run(lab, small, {}, 10)
    assert set(first["after"]) == {"capitals"} and "signal_density" in first["metrics"]
    runs = len(lab._runs("distill")), len(lab._runs("eval"))
    assert methods._run(lab, small, {}, 10)["checkpoint"] == first["checkpoint"]
    assert runs == (len(lab._runs("distill")), len(lab._runs("eval"))) == (1, 2)
    lab.ws.close()
