"""The table of methods: complete, validated, torch-free, and clear about what it refuses."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.errors import InputError
from recovery.methods import method as dials
from recovery.methods import table
from recovery.methods.method import Method
from recovery.methods.sources import KEEPS
from recovery.methods.table import METHODS, by_name, get, with_dials

NAMES = [
    "sft",
    "rft",
    "seqkd",
    "asft",
    "dft",
    "rl",
    "opd",
    "opd-near",
    "opd-sampled",
    "opd-topk",
    "gkd",
    "minillm",
    "opd-continue",
    "opd-reward",
    "opd-multi",
    "sdft",
    "sdft-reverse",
    "opcd",
    "deliberate",
    "opsd",
    "pid",
    "passage",
]


def test_the_table_has_every_row() -> None:
    assert list(METHODS) == NAMES
    assert all(row.name == name and row.source and row.summary and row.keeps for name, row in METHODS.items())


@pytest.mark.parametrize(
    ("name", "states", "signal", "teacher", "context", "rails"),
    [
        ("sft", "data", "label", "none", "none", "none"),
        ("rft", "student-kept", "label", "none", "none", "none"),
        ("seqkd", "teacher", "label", "base", "none", "none"),
        ("asft", "data", "label_dft", "base", "none", "anchor 0.1"),
        ("rl", "student", "reward", "none", "none", "ratio clip"),
        ("opd", "student", "reverse_kl", "base", "none", "none"),
        ("opd-near", "student", "reverse_kl", "base", "none", "KL budget 0.1"),
        ("opd-sampled", "student", "sampled_reverse_kl", "base", "none", "ratio clip"),
        ("gkd", "mix:0.5", "jsd", "base", "none", "none"),
        ("minillm", "teacher-mix:0.2", "reverse_kl", "base", "none", "importance clip"),
        ("opd-multi", "student", "reverse_kl", "routed", "none", "none"),
        ("deliberate", "teacher", "label", "self", "rules", "none"),
        ("sdft", "student", "forward_kl", "self-ema", "demonstrations", "none"),
        ("sdft-reverse", "student", "reverse_kl", "self-ema", "demonstrations", "none"),
        ("opsd", "student", "jsd", "self", "answer", "per-entry clip"),
        ("pid", "student", "reverse_kl", "self", "hints", "per-entry clip"),
        ("passage", "teacher", "forward_kl", "base", "passage", "none"),
    ],
)
def test_rows_are_what_the_sources_say(
    name: str, states: str, signal: str, teacher: str, context: str, rails: str
) -> None:
    row = get(name).row()
    assert list(row.values())[1:5] == [states, signal, teacher, context]
    assert row["rails"].startswith(rails)


def test_dials_of_the_rows_are_what_the_sources_say() -> None:
    assert (get("opsd").beta, get("opsd").temperature) == (0.5, 1.1)
    assert (get("asft").anchor_beta, get("asft").anchor_kl) == (0.1, "forward")
    assert set(KEEPS) == set(METHODS)
    assert all(text.startswith("keeps ") and "\n" not in text for text in KEEPS.values())


def test_a_row_without_a_word_about_its_source_is_a_method_too() -> None:
    """Its name was looked up as the table was imported: every command ended with a KeyError."""
    mine = Method("mine", "student", "forward_kl", "base")
    assert by_name([mine, get("sft")]) == {"mine": mine, "sft": get("sft")}


def test_the_file_fits_a_screen_or_so() -> None:
    lines = Path(table.__file__).read_text(encoding="utf-8").splitlines()
    assert len(lines) < 100
    assert max(map(len, lines)) <= 110


def test_no_torch_is_imported() -> None:
    code = "import sys, recovery.methods.table; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0


# ---- dials set by hand


def test_dials_are_parsed_from_text() -> None:
    method = with_dials("opd", {"signal": "jsd", "beta": "0.3", "states": "mix:0.25", "epochs": "2"})
    assert (method.signal, method.beta, method.states, method.epochs) == ("jsd", 0.3, "mix:0.25", 2)
    assert (method.state_kind, method.share) == ("mix", 0.25)
    assert with_dials(get("opsd"), {"entry_clip": "off"}).entry_clip is None
    assert with_dials(get("opsd"), {"entry_clip": False}).entry_clip is None  # `off`, as YAML reads it
    with pytest.raises(InputError, match="temperature"):
        with_dials(get("opsd"), {"temperature": False})
    assert with_dials("rl", {"ratio_clip": "none"}).ratio_clip is None
    assert with_dials("opd", {}) == get("opd")


def test_every_dial_is_documented_and_keeps_its_default() -> None:
    assert set(dials.dials()) == {f.name for f in fields(Method)} - {"name", "source", "summary", "keeps"}
    assert all(dial.metadata["doc"] for dial in dials.dials().values())
    for name in dials.dials():
        value = getattr(get("opd"), name)
        assert with_dials("opd", {name: "none" if value is None else str(value)}) == get("opd")


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("opd", {"signal": "k1"}, "expected gradient of zero"),
        ("opd", {"signal": "k3"}, "forward KL"),
        ("opd", {"signal": "topk_unnormalised"}, "out of the k entries"),
        ("opd-topk", {"tail": "none"}, "out of the k entries"),
        ("opd", {"signal": "topk_advantage"}, "expected gradient is zero"),
        ("opd-topk", {"tail": "renormalise", "k": 1}, "its KL is 0"),
        ("opd-sampled", {"teacher_baseline": "z-score"}, "removes it"),
        ("rl", {"reward_baseline": "z-score"}, "removes it"),
    ],
)
def test_known_bad_forms_are_refused_with_the_reason(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_dials(name, values)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("opd", {"betta": "1"}, "did you mean 'beta'"),
        ("opd", {"name": "x"}, "no dial"),
        ("opd", {"signal": "reverse-kl"}, "did you mean 'reverse_kl'"),
        ("opd", {"states": "nowhere"}, "states=nowhere"),
        ("gkd", {"states": {"mix": 0.5}}, r"states=\{'mix': 0.5\} is no text such as student or mix:0.5"),
        ("gkd", {"states": None}, "states=None is no text"),
        ("gkd", {"states": "mix"}, "share"),
        ("gkd", {"states": "mix:1.5"}, "between 0 and 1"),
        ("gkd", {"states": "mix:half"}, "between 0 and 1"),
        ("opd", {"states": "student:0.5"}, "share"),
        ("gkd", {"beta": "1.5"}, "at most 1"),
        ("gkd", {"beta": "nan"}, "at least 0"),
        ("gkd", {"beta": "high"}, "not a number"),
        ("opd", {"epochs": "2.5"}, "not a whole number"),
        ("opd", {"epochs": 0}, "at least 1"),
        ("opd", {"epochs": True}, "not a whole number"),
        ("opsd", {"entry_clip": "0"}, "above 0"),
        ("opsd", {"entry_clip": "inf"}, "above 0"),
        ("rl", {"group_size": "1"}, "own baseline"),
        ("opd", {"teacher": "none"}, "needs a teacher"),
        ("sft", {"states": "teacher"}, "written by a teacher"),
        ("opcd", {"context": "none"}, "agrees with itself"),
        ("gkd", {"signal": "sampled_reverse_kl"}, "unbiased only"),
        ("minillm", {"signal": "sampled_reverse_kl", "importance_clip": "off"}, "importance"),
        ("sft", {"states": "student"}, "expected gradient of zero"),
        ("opd", {"temperature": 0}, "no distribution"),
        ("opd-topk", {"temperature": "0.7"}, "another temperature"),
        (
            "rft",
            {"temperature": "0.7", "importance_clip": "2"},
            "compare the sampler.s probabilities with those at temperature 1",
        ),
        ("opd", {"lam": "0.5"}, "own baseline"),
    ],
)
def test_wrong_dials_are_refused(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_dials(name, values)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("opd", {"ratio_clip": 0.2}),
        ("opd", {"beta": 0.3}),
        ("opd-topk", {"kl_budget": 0.1}),
        ("opd", {"kl_budget_final": 0.1}),
        ("opd", {"kl_budget_of": "step"}),
        ("opd", {"k": 8}),
        ("sft", {"lam": 0.5}),
        ("sft", {"context": "rules"}),
        ("opd-sampled", {"entry_clip": 0.1}),
        ("seqkd", {"importance_clip": 2.0}),
        ("opd", {"continuation": 8}),
        ("opd", {"ema": 0.5}),
        ("opd", {"teacher_baseline": "closed-form"}),
        ("opd", {"reward_baseline": "none"}),
        ("opd", {"anchor_kl": "forward"}),
        ("pid", {"signal": "topk_reverse_kl"}),
        ("sft", {"temperature": "0.5"}),
        ("asft", {"temperature": "0"}),
        ("dft", {"temperature": "2", "anchor_beta": "0.1"}),
    ],
)
def test_a_dial_without_effect_is_refused(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="has no effect"):
        with_dials(name, values)


@pytest.mark.parametrize("name", ["rft", "seqkd", "deliberate", "opd-continue", "opd"])
def test_a_temperature_is_taken_where_something_is_sampled(name: str) -> None:
    assert with_dials(name, {"temperature": "0.5"}).temperature == 0.5
    assert with_dials("opd", {"states": "data", "temperature": "0.5"}).temperature == 0.5


def test_a_budget_falls_in_equal_ratios() -> None:
    """From 0.4 to 0.1 in three steps: half as much each time."""
    falling = with_dials("opd-near", {"kl_budget": "0.4", "kl_budget_final": "0.1"})
    assert [falling.budget_at(step, 3) for step in (1, 2, 3)] == pytest.approx([0.4, 0.2, 0.1])
    assert falling.budget_at(1, 1) == 0.4
    assert falling.budget_at(9, 3) == pytest.approx(0.1)  # further steps keep the last budget
    assert falling.rails == "KL budget 0.4, final KL budget 0.1"
    assert get("opd-near").budget_at(7, 9) == 0.1
    assert get("opd").budget_at(7, 9) is None


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(InputError, match="did you mean 'opd'"):
        get("odp")


def test_a_row_is_all_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "mine", Method("mine", "data", "forward_kl", "base"))
    assert get("mine").row()["signal"] == "forward_kl"


@pytest.mark.parametrize(
    ("name", "scores", "rewards", "behaviour"),
    [
        ("sft", "none", False, False),
        ("rft", "none", True, False),
        ("rl", "none", True, True),
        ("opd", "dense", False, False),
        ("opd-sampled", "sampled", False, True),
        ("opd-topk", "topk", False, False),
        ("minillm", "dense", False, True),
        ("opd-reward", "dense", True, False),
    ],
)
def test_what_a_row_needs(name: str, scores: str, rewards: bool, behaviour: bool) -> None:
    row = get(name)
    assert (row.scores, row.needs_rewards, row.needs_behaviour) == (scores, rewards, behaviour)


def test_which_rows_weigh_tokens_by_the_sampler() -> None:
    assert {name for name in NAMES if get(name).weighs_by_sampler} == {
        "rl",
        "opd-sampled",
        "opd-reward",
        "minillm",
    }
    assert with_dials("opd", {"importance_clip": 2.0}).weighs_by_sampler


VALUES = st.one_of(st.text("abk1.:-_ ", max_size=8), st.integers(-3, 9).map(str), st.just("mix:0.5"))


@given(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(sorted(dials.dials())), VALUES, max_size=4))
def test_any_dials_either_work_or_are_refused_in_one_line(name: str, values: dict[str, str]) -> None:
    try:
        message = ""
        with_dials(name, values)
    except InputError as error:
        message = str(error)
    assert "\n" not in message
