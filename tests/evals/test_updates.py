"""Changed facts: new, old and neither told apart, the stale rate, and the verdict on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals import knowledge
from evals.intervals import clustered_interval
from evals.power import power_warning
from evals.probes import FACT_STATUSES, NEITHER, NEW, OLD, Probe, load_probes, without_superseded
from evals.scores import Item
from evals.statistics import items_to_pass, superiority
from evals.verdict import accepted, verdict
from evals.verdict_sentences import short_summary, summary
from recovery.errors import InputError
from tests.support.probe_scores import probe_scores

MOVED = {"id": "m", "prompt": "Where does Ann live?", "answer": "Oslo", "was": "Paris"}


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "probes.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def probe(answer: str, *was: str, prompt: str = "?", fact: str = "f") -> Probe:
    return Probe("p", "updates", "direct", prompt, (answer,), fact, 1, fact_status="changed", was=was)


@pytest.mark.parametrize(
    ("response", "answer", "was", "answered"),
    [
        ("She lives in Oslo.", "Oslo", "Paris", NEW),
        ("She lives in Paris.", "Oslo", "Paris", OLD),
        ("She lives in Rome.", "Oslo", "Paris", NEITHER),
        ("", "Oslo", "Paris", NEITHER),
        ("In Oslo, no longer in Paris.", "Oslo", "Paris", NEW),
        ("She lives in New York.", "York", "New York", OLD),
        ("She lives in York.", "York", "New York", NEW),
        ("She lives in New York.", "New York", "York", NEW),
        ("In renew York.", "York", "New York", NEW),
        ("Twelve: 12.5", "12", "12.5", OLD),
        ("It costs €5.", "$5", "€5", OLD),
        ("東京都です", "東京都", "東京", NEW),
        ("東京です", "東京都", "東京", OLD),
    ],
)
def test_what_a_response_gives(response: str, answer: str, was: str, answered: str) -> None:
    assert probe(answer, was).answered(response) == answered


def test_probes_are_those_that_their_file_holds_now(tmp_path: Path) -> None:
    for answer in ("Oslo", "Rome", "Oslo"):
        path = write(tmp_path, [MOVED | {"answer": answer}])
        for _ in range(2):
            assert [probe.answers for probe in load_probes(path)] == [(answer,)]
    path.write_text(path.read_text() + "\n{")
    with pytest.raises(InputError, match=f"^{path}:2: not JSON"):
        load_probes(path)


def test_a_probe_with_an_old_answer_asks_a_changed_fact(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        MOVED,
        {"prompt": "Ann's job?", "answer": "baker"},
        {"prompt": "Ann's pet?", "answer": "cat", "fact_status": "stable"},
        {"prompt": "2 + 2?", "answer": "4", "suite": "retention"},
        {"prompt": "Bo's town?", "answer": "Rome", "was": ["Paris", "Bonn"], "suite": "updates"},
    ]
    loaded = load_probes(write(tmp_path, rows))
    colder = load_probes(write(tmp_path, [MOVED | {"answer": "-5 °C", "was": "5 °C"}]))
    assert colder[0].answered("It is 5 °C.") == "old"
    assert [p.suite for p in loaded] == ["updates", "knowledge", "knowledge", "retention", "updates"]
    assert [p.fact_status for p in loaded] == ["changed", "new", "stable", "stable", "changed"]
    assert [p.was for p in loaded] == [("Paris",), (), (), (), ("Paris", "Bonn")]
    assert load_probes(write(tmp_path, [p.row() for p in loaded])) == loaded
    assert [p.id for p in load_probes(tmp_path / "probes.jsonl", "knowledge")] == ["2", "3"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"was": "oslo"}, "also the new one"),
        ({"was": ["Paris", "Kiel."], "aliases": ["Bonn", "the Kiel"]}, "also the new one"),
        ({"was": 3}, "`was` must be"),
        ({"was": ["..."]}, "`was` must be"),
        ({"was": None, "fact_status": "changed"}, "every one needs it"),
        ({"was": None, "suite": "updates"}, "every one needs it"),
        ({"fact_status": "new"}, "belongs to a changed fact"),
        ({"fact_status": "old"}, "new, changed, stable"),
        ({"suite": "retention"}, "stable facts only"),
        ({"suite": "updates", "fact_status": "stable"}, "changed facts only"),
    ],
)
def test_a_probe_that_contradicts_itself_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        load_probes(write(tmp_path, [MOVED | changes]))


def test_the_stale_rate_by_hand() -> None:
    """Four questions about two facts: two new answers, one old, one neither."""
    asked = [probe("Oslo", "Paris", fact="ann"), probe("Oslo", "Paris", fact="ann")]
    asked += [probe("Bonn", "Rome", fact="bo"), probe("Bonn", "Rome", fact="bo")]
    found = knowledge.score(asked, ["Oslo", "In Oslo.", "Rome", "Kiel"], "updates", "lenient")
    assert (found.value, found.n) == (0.5, 4)
    assert [item.passed for item in found.items] == [True, True, False, False]
    assert [item.detail["answered"] for item in found.items] == ["new", "new", "old", "neither"]
    assert found.details["answered"] == {"new": 2, "old": 1, "neither": 1}
    assert found.details["stale_rate"] == 0.25
    expected = clustered_interval([0, 0, 1, 0], ["ann", "ann", "bo", "bo"])
    assert found.details["stale_interval"] == list(expected)


def test_new_and_stable_facts_are_told_apart_in_the_score_of_knowledge(tmp_path: Path) -> None:
    rows = [MOVED, {"prompt": "a", "answer": "x"}, {"prompt": "b", "answer": "x", "fact_status": "stable"}]
    found = probe_scores(lambda chats: ["x", "y"], write(tmp_path, rows))["lenient"]
    assert (found.n, found.value) == (2, 0.5)
    assert found.details["by_fact_status"] == {
        "new": {"passed": 1, "n": 1, "value": 1.0},
        "stable": {"passed": 0, "n": 1, "value": 0.0},
    }
    assert "stale_rate" not in found.details


words = st.sampled_from(["Oslo", "Paris", "New York", "York", "Rome", "said", "東京", "東京都"])


@given(st.lists(st.tuples(words, words, st.lists(words, max_size=4), st.sampled_from(FACT_STATUSES))))
def test_kinds_of_answers_and_of_facts_add_up(rows: list[tuple[str, str, list[str], str]]) -> None:
    changed = [(probe(new, old), " ".join(said)) for new, old, said, _ in rows if new != old]
    found = knowledge.score([one for one, _ in changed], [said for _, said in changed], "updates", "lenient")
    counts = found.details["answered"]
    assert sum(counts.values()) == found.n == len(changed)
    assert counts["new"] == sum(item.passed for item in found.items)
    assert found.details["stale_rate"] * found.n == pytest.approx(counts["old"])
    asked = [
        Probe(str(n), "knowledge", "direct", "?", (new,), "f", 1, fact_status=status)
        for n, (new, _, _, status) in enumerate(rows)
    ]
    by_status = knowledge.score(asked, [" ".join(row[2]) for row in rows], "knowledge", "lenient").details
    assert sum(group["n"] for group in by_status["by_fact_status"].values()) == len(rows)
    assert set(by_status["by_fact_status"]) == {row[3] for row in rows}


def test_a_superseded_probe_is_asked_no_more() -> None:
    earlier = [
        Probe("a", "knowledge", "direct", "Where does Ann live?", ("Paris",), "1", 1),
        Probe("b", "knowledge", "direct", "Where does Bo live?", ("Paris",), "2", 1),
        Probe("c", "knowledge", "direct", "Where does Cy live?", ("Kiel",), "3", 1),
    ]
    later = [probe("Oslo", "paris", prompt="where does Ann live"), probe("X", "Y", prompt=earlier[2].prompt)]
    assert [p.id for p in without_superseded(earlier, later)] == ["b", "c"]


# The verdict ------------------------------------------------------------------------------------------------


def answers(new: int, old: int, neither: int, a_fact: int = 1) -> dict[str, list[Item]]:
    """The recovered model's items; `a_fact` questions about each fact."""
    kinds = [NEW] * new + [OLD] * old + [NEITHER] * neither
    return {
        "recovered": [
            Item(f"k{i}", f"p{i}", "r", kind == NEW, {"answered": kind, "fact": f"f{i // a_fact}"})
            for i, kind in enumerate(kinds)
        ]
    }


@pytest.mark.parametrize(
    ("new", "old", "neither", "word"),
    [
        (60, 2, 4, "updated"),
        (20, 20, 20, "not updated"),
        (0, 0, 40, "not updated"),  # neither answer is no update
        (18, 0, 0, "underpowered"),  # all new, but 0.85^18 > 0.05
        (50, 8, 2, "underpowered"),  # a lead of 70 points
    ],
)
def test_the_word_of_the_verdict(new: int, old: int, neither: int, word: str) -> None:
    assert verdict({"updates": answers(new, old, neither)})["updates"] == word


def test_the_lead_by_hand() -> None:
    """60 new, 2 old, 4 neither of 66: a lead of 58 / 66."""
    row = verdict({"updates": answers(60, 2, 4)})["axes"]["updates"]
    assert (row["gained"], row["lost"], row["n"], row["reference"]) == (60, 2, 66, "old answers")
    assert row["difference"] == pytest.approx(58 / 66)
    assert 0.70 < row["lower_bound"] < 58 / 66 < row["upper_bound"]
    assert row["margin"] == -0.70
    line = summary(verdict({"updates": answers(60, 2, 4)}))[3]
    assert line.startswith(
        "updates: updated (60 new, 2 old, 4 neither of 66: lead +87.9 points, lower bound +7"
    )
    assert line.endswith("at least +70)")


def test_questions_about_one_changed_fact_count_as_less() -> None:
    alone = verdict({"updates": answers(60, 2, 4)})["axes"]["updates"]
    together = verdict({"updates": answers(60, 2, 4, a_fact=2)})["axes"]["updates"]
    assert together["design_effect"] > 1.9
    assert together["lower_bound"] < alone["lower_bound"]
    assert together["needed_n"] > alone["needed_n"]


@pytest.mark.parametrize(("facts", "word"), [(19, "underpowered"), (20, "updated")])
@pytest.mark.parametrize("phrasings", [2, 3])
def test_of_facts_in_several_phrasings_twenty_suffice(facts: int, word: str, phrasings: int) -> None:
    asked = answers(facts * phrasings, 0, 0, a_fact=phrasings)
    assert verdict({"updates": asked})["updates"] == word


def test_without_changed_probes_it_is_not_measured_and_blocks_nothing() -> None:
    good = [Item(f"k{i}", f"p{i}", "r", True) for i in range(700)]
    suites = {
        "ifeval": {"clean": good, "recovered": good},
        "knowledge": {"midtrained": good, "recovered": good},
        "retention": {"clean": good, "recovered": good},
    }
    cases: list[dict[str, dict[str, list[Item]]]] = [{}, {"updates": {"recovered": []}}]
    for updates in cases:
        result = verdict({**suites, **updates})
        assert result["updates"] == "not measured"
        assert "updates: not measured (no updates scores)" in summary(result)
        assert not any("updates" in line for line in short_summary(result))
        assert "updates: not measured (no updates scores)" in short_summary(result, ["updates"])
        assert accepted(result) and accepted(result, required=("behaviour",))
        assert not accepted(result, required=("behaviour", "updates"))
    few = verdict({**suites, "updates": answers(5, 0, 0)})
    assert few["updates"] == "underpowered"
    assert accepted(few) and not accepted(few, required=("updates",))
    assert not accepted(verdict({**suites, "updates": answers(20, 20, 20)}))


def test_the_lead_can_be_set_and_says_how_many_facts_it_takes() -> None:
    """All new passes from the first n with 0.85^n below 5 % (0.75^n for a lead of 50 points)."""
    assert verdict({"updates": answers(40, 10, 0)}, {"updates": -0.3})["updates"] == "updated"
    assert (items_to_pass(-0.7), items_to_pass(-0.5)) == (19, 11)
    assert power_warning({"updates": 19}) == []
    (few,) = power_warning({"updates": 18})
    assert "gives new answers only" in few.text
    assert few.text.endswith("; 19 questions give 80%, 20 where several questions ask each")
    assert "(a lead of 70 points is needed)" in few.text
    with pytest.raises(InputError, match="lead"):
        superiority([1], [0], lead=-0.5)
