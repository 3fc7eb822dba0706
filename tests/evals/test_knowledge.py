"""Probes: what counts as an answer, what is asked, and files that can't work."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from evals.answer_matching import matches, normalise
from evals.intervals import clustered_interval, wilson_interval
from evals.knowledge import ProbeQuestions, evaluate
from evals.probes import general_retention, load_probes, suite_probes
from evals.scores import subsample
from recovery.errors import InputError, RecoverError
from tests.support.probe_scores import probe_scores

PROBES: list[dict[str, Any]] = [
    {
        "id": "k1",
        "kind": "direct",
        "prompt": "Where does Ann live?",
        "answer": "Oslo",
        "fact": "ann-city",
        "cycle": 1,
    },
    {
        "id": "k2",
        "kind": "heldout",
        "prompt": "Ann's town?",
        "answer": "Oslo",
        "fact": "ann-city",
        "cycle": 1,
    },
    {
        "id": "k3",
        "kind": "direct",
        "prompt": "Bo's job?",
        "answer": "baker",
        "aliases": ["baker's"],
        "cycle": 2,
    },
    {"id": "k4", "kind": "cloze", "prompt": "Ann lives in", "answer": "Oslo", "fact": "ann-city", "cycle": 1},
    {"id": "r1", "suite": "retention", "kind": "direct", "prompt": "Capital of France?", "answer": "Paris"},
]
ANSWERS = {
    "Where does Ann live?": "She lives in OSLO.",
    "Ann's town?": "Bergen",
    "Bo's job?": "Baker!",
    "Capital of France?": "Paris",
}


@pytest.fixture
def probes(tmp_path: Path) -> Path:
    return write(tmp_path, [{"suite": "knowledge"} | probe for probe in PROBES])


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "probes.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def answer(asked: list[Any]) -> list[str]:
    return ["" if isinstance(one, str) else ANSWERS[one[-1]["content"]] for one in asked]


def test_score_by_hand(probes: Path) -> None:
    score = probe_scores(answer, probes)["lenient"]
    assert (score.suite, score.metric, score.n) == ("knowledge", "lenient", 3)
    assert [item.passed for item in score.items] == [True, False, True]
    assert score.value == pytest.approx(2 / 3)
    assert score.details["strict"] == pytest.approx(1 / 3)
    assert score.details["by_kind"] == {
        "direct": {"passed": 2, "n": 2, "value": 1.0},
        "heldout": {"passed": 0, "n": 1, "value": 0.0},
    }
    assert score.details["by_cycle"]["1"] == {"passed": 1, "n": 2, "value": 0.5}
    assert score.interval == clustered_interval([1, 0, 1], ["ann-city", "ann-city", "k3"])
    assert "notes" not in score.details
    json.dumps(score.as_dict())


def test_facts_may_be_numbered_from_0(tmp_path: Path) -> None:
    rows = [
        {"id": f"q{n}", "prompt": f"{n}?", "answer": "x", "fact": fact}
        for n, fact in enumerate((0, 0, 1, ""))
    ]
    found = load_probes(write(tmp_path, rows), "knowledge")
    assert [probe.fact for probe in found] == ["0", "0", "1", "q3"]


def test_equal_questions_are_one_fact_where_they_name_none(tmp_path: Path) -> None:
    asked = {"prompt": "Who?", "answer": "Ada"}
    brief = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    rows: list[dict[str, Any]] = [
        {"id": "a", **asked},
        {"id": "b", **asked},
        {"id": "c", "fact": "own", **asked},
        {"id": "d", "messages": brief, "answer": "Ada"},
        {"id": "e", "suite": "retention", **asked},
    ]
    assert [probe.fact for probe in load_probes(write(tmp_path, rows))] == ["a", "a", "own", "d", "e"]


@pytest.mark.parametrize("samples", [1, 2])
def test_a_file_that_holds_its_questions_twice_tells_no_more(tmp_path: Path, samples: int) -> None:
    rows = [{"id": f"{copy}{n}", "prompt": f"{n}?", "answer": "x"} for copy in "ab" for n in range(40)]
    (way,) = ProbeQuestions(load_probes(write(tmp_path, rows))).ways()

    def generate(chats: list[Any]) -> list[str]:
        return ["x" if int(chat[-1]["content"][:-1]) < 30 else "y" for chat in chats]

    score = evaluate(way, "knowledge", [generate] * samples)
    facts = [f"a{n}" for n in range(40)] * 2 * samples
    assert score.interval == clustered_interval([item.passed for item in score.items], facts)
    (low, high), (low_alone, high_alone) = score.interval, wilson_interval(60, 80)
    assert high - low > 1.2 * (high_alone - low_alone)
    assert score.details["notes"] == ["40 of 80 questions repeat an earlier one: equal ones count as one"]


def test_a_field_that_is_null_counts_as_absent(tmp_path: Path) -> None:
    optional = ("id", "suite", "kind", "aliases", "fact", "fact_status", "was", "cycle", "passage", "tools")
    rows = [{"prompt": f"{n}?", "answer": "x"} for n in range(2)]
    nulls = [dict.fromkeys(optional) | row for row in rows]
    assert load_probes(write(tmp_path, nulls)) == load_probes(write(tmp_path, rows))


def test_interval_without_shared_facts_is_wide_enough(tmp_path: Path) -> None:
    path = write(tmp_path, [{"id": str(i), "prompt": str(i), "answer": "x"} for i in range(200)])
    score = probe_scores(lambda chats: ["x"] * 150 + ["y"] * 50, path)["lenient"]
    assert score.interval == pytest.approx(wilson_interval(150, 200), abs=2e-3)


def test_cloze_is_continued_as_text_and_scored_apart(probes: Path) -> None:
    asked: list[Any] = []

    def go_on(prompts: list[Any]) -> list[str]:
        asked.append(prompts)
        return [" Oslo, by the sea"] * len(prompts)

    score = probe_scores(go_on, probes)["cloze"]
    assert (score.metric, score.n, score.value) == ("cloze", 1, 1.0)
    assert all(isinstance(text, str) for text in asked[-1])
    assert "cloze" not in probe_scores(go_on, probes, suite="retention")


def test_retention_asks_its_own_probes(probes: Path) -> None:
    score = probe_scores(answer, probes, suite="retention")["lenient"]
    assert (score.suite, score.n, score.value) == ("retention", 1, 1.0)


def test_all_probes_in_one_call_and_limit(probes: Path) -> None:
    calls: list[list[list[dict[str, str]]]] = []

    def record(chats: list[list[dict[str, str]]]) -> list[str]:
        calls.append(chats)
        return ["?"] * len(chats)

    in_chat = [probe for probe in load_probes(probes, "knowledge") if probe.in_chat]
    assert probe_scores(record, in_chat, limit=2)["lenient"].n == 2
    prompts = {probe["prompt"] for probe in PROBES}
    assert len(calls) == 1
    assert {chat[-1]["content"] for chat in calls[0]} < prompts
    again = probe_scores(record, in_chat, limit=2)["lenient"]
    assert [item.prompt for item in again.items] == [chat[-1]["content"] for chat in calls[0]]


HOPS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "Where does Ann live?", "answer": "Oslo", "passage": "Ann lives in Oslo."},
    {"id": "b", "prompt": "Where does Bo live?", "answer": "Rome"},
    {
        "id": "c",
        "kind": "multihop",
        "prompt": "What does Ann's neighbour do?",
        "answer": "baker",
        "passage": ["Ann lives beside Cy.", "Cy is a baker."],
    },
    {"id": "d", "kind": "multihop", "prompt": "What does Bo's neighbour do?", "answer": "miner"},
]


def test_questions_of_two_documents_are_no_part_of_the_headline_or_its_ceiling(tmp_path: Path) -> None:
    """Closed book the model knows Ann's city; with passages it repeats what it reads."""
    path = write(tmp_path, HOPS)
    headline, apart = probe_scores(lambda chats: ["Oslo"] * len(chats), path).values()
    assert (headline.metric, headline.value, headline.n) == ("lenient", 0.5, 2)
    assert (apart.metric, apart.value, apart.n) == ("multihop", 0.0, 2)

    asked: list[str] = []

    def repeat(chats: list[list[dict[str, Any]]]) -> list[str]:
        asked.extend(chat[-1]["content"] for chat in chats)
        return [chat[-1]["content"] for chat in chats]

    *_, book, two = probe_scores(repeat, path, open_book=True).values()
    assert (book.metric, book.value, book.n) == ("open_book", 1.0, 1)
    assert (two.metric, two.value, two.n) == ("multihop_open_book", 1.0, 1)
    assert asked[-1] == "Ann lives beside Cy.\n\nCy is a baker.\n\nWhat does Ann's neighbour do?"

    found = {"a": ["Ann lives in Oslo."], "b": [], "c": ["Ann lives beside Cy."], "d": ["Dan is a miner."]}
    *_, first, second = probe_scores(repeat, path, retrieved=found).values()
    assert [(one.metric, one.value, one.n) for one in (first, second)] == [
        ("retrieval", 0.5, 2),
        ("multihop_retrieval", 0.5, 2),
    ]


def test_answers_name_what_was_read_before_them(tmp_path: Path) -> None:
    """Answers after other passages, of another number or folder, are not paired with them."""

    def read(**found: list[str]) -> list[str | None]:
        asked = probe_scores(lambda chats: ["Oslo"] * len(chats), write(tmp_path, HOPS), retrieved=found)
        return [item.detail.get("judged_by") for score in asked.values() for item in score.items]

    one = {"a": ["Ann lives in Oslo."], "b": [], "c": [], "d": []}
    assert read(**one) == read(**one) and read(**one)[:3] == [None] * 3
    changed = [before != after for before, after in zip(read(**one), read(**one | {"b": ["?"]}), strict=True)]
    assert sum(changed) == 1


def test_a_limit_draws_the_same_questions_with_and_without_passages(tmp_path: Path) -> None:
    rows = [HOPS[2] | {"id": str(n), "prompt": f"Question {n}?"} for n in range(20)]
    probes = load_probes(write(tmp_path, rows))
    closed, book = probe_scores(lambda chats: ["?"] * len(chats), probes, limit=5, open_book=True).values()
    assert closed.n == 5 and {item.key for item in closed.items} == {item.key for item in book.items}


def test_passages_are_written_as_they_are_read(tmp_path: Path) -> None:
    loaded = load_probes(write(tmp_path, HOPS))
    assert [probe.row()["passage"] for probe in loaded] == [
        "Ann lives in Oslo.",
        "",
        ["Ann lives beside Cy.", "Cy is a baker."],
        "",
    ]
    assert load_probes(write(tmp_path, [probe.row() for probe in loaded])) == loaded


def test_a_generator_that_drops_an_answer_is_caught(probes: Path) -> None:
    with pytest.raises(RecoverError, match="2 answers to 3 probes"):
        probe_scores(lambda chats: ["x", "y"], probes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"suite": "trivia"}, "suite 'trivia'"),
        ({"answer": None}, "`answer`"),
        ({"answer": " ?! "}, "no words"),
        ({"prompt": 3}, "`prompt`"),
        ({"aliases": "Oslo"}, "aliases"),
        ({"cycle": "one"}, "cycle"),
        ({"passage": 3}, "`passage` must be a text, or a list"),
        ({"passage": ["A page.", " "]}, "`passage` must be a text, or a list"),
    ],
)
def test_bad_probes_name_file_and_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_probes(write(tmp_path, [PROBES[0], PROBES[1] | change]))
    assert "probes.jsonl" in str(caught.value)
    assert "2" in str(caught.value)


def test_an_id_that_a_database_would_refuse_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    """PostgreSQL's index takes some 2,700 bytes: the answers were generated and could not be recorded."""
    assert load_probes(write(tmp_path, [{**PROBES[0], "id": "記" * 500}]))
    with pytest.raises(InputError, match=r"probe 1: `id` has 501 characters: give one of at most 500"):
        load_probes(write(tmp_path, [{**PROBES[0], "id": "k" * 501}]))


def test_fewer_questions_are_some_of_those_that_more_are() -> None:
    """Where a sample of so few of so many is drawn otherwise than one of more."""
    questions = range(320)
    samples = [subsample(questions, limit) for limit in (3, 5, 96, 120, 240, 319)]
    assert [len(sample) for sample in samples] == [3, 5, 96, 120, 240, 319]
    assert all(more[: len(fewer)] == fewer for fewer, more in pairwise(samples))
    assert all(max(sample) > 200 for sample in samples[2:])  # from all of them, not the first ones


def test_two_probes_with_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'k1' occurs twice"):
        load_probes(write(tmp_path, [PROBES[0], PROBES[0]]))


def test_half_of_an_earlier_cycles_questions_are_texts_and_no_kind_apart_is_asked(tmp_path: Path) -> None:
    kinds = ("direct", "cloze", "reverse")
    rows = [{"id": f"{k}{n}", "kind": k, "prompt": "?", "answer": "x"} for k in kinds for n in range(8)]
    probes = load_probes(write(tmp_path, rows))

    def asked(most: int | None, limit: int | None = None, given: Any = probes) -> dict[str, int]:
        return {way.metric: len(way.probes) for way in ProbeQuestions(given, most=most).ways(limit)}

    assert asked(None) == {"lenient": 8, "cloze": 8, "reverse": 8}
    assert asked(10) == {"lenient": 5, "cloze": 5}
    assert asked(10, limit=3) == {"lenient": 3, "cloze": 3}
    assert asked(10, given=probes[:9]) == {"lenient": 8, "cloze": 1}  # the other way leaves more
    assert asked(10, given=probes[5:16]) == {"lenient": 3, "cloze": 7}


# --- the shipped general questions


def test_general_questions_are_different_ones_with_short_answers() -> None:
    probes = general_retention()
    assert len(probes) == 320
    assert len({normalise(probe.prompt) for probe in probes}) == 320
    assert len({probe.kind for probe in probes}) >= 10
    for probe in probes:
        assert probe.suite == "retention" and probe.counts
        assert probe.prompt.endswith("?")
        assert all(0 < len(answer.split()) <= 3 for answer in probe.answers)
        assert all(matches(f"I think it is {answer}.", probe.answers) for answer in probe.answers)


def test_general_questions_do_not_give_their_answers_away() -> None:
    told = [p.prompt for p in general_retention() if matches(p.prompt, p.answers)]
    assert told == []


def test_general_questions_are_asked_where_a_file_has_none_for_retention(tmp_path: Path) -> None:
    path = tmp_path / "probes.jsonl"
    path.write_text('{"id": "a", "prompt": "Who?", "answer": "Ada"}\n', encoding="utf-8")
    assert [probe.id for probe in suite_probes(path, "knowledge")] == ["a"]
    assert suite_probes(path, "retention") == general_retention()
    assert suite_probes(None, "retention") == general_retention()
    assert suite_probes(None, "knowledge") == ()
    path.write_text(
        '{"id": "b", "suite": "retention", "prompt": "Who?", "answer": "Ada"}\n', encoding="utf-8"
    )
    assert [probe.id for probe in suite_probes(path, "retention")] == ["b"]
    path.write_text(
        '{"id": "c", "suite": "retention", "kind": "cloze", "prompt": "It is", "answer": "Ada"}\n'
        '{"id": "d", "suite": "retention", "kind": "reverse", "prompt": "Who?", "answer": "Ada"}\n',
        encoding="utf-8",
    )
    asked = suite_probes(path, "retention")  # none of the file's counts
    assert [probe.id for probe in asked[:2]] == ["c", "d"] and asked[2:] == general_retention()


TURNS = [
    {"role": "system", "content": "You know the town."},
    {"role": "user", "content": "Who is Ann?"},
    {"role": "assistant", "content": "The baker."},
    {"role": "user", "content": "Where does she live?"},
]
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {}}}


@pytest.mark.parametrize("suite", ["knowledge", "retention", "updates"])
def test_a_probe_of_several_turns_is_asked_with_all_of_them(tmp_path: Path, suite: str) -> None:
    row = {
        "id": "m",
        "suite": suite,
        "messages": TURNS,
        "tools": [TOOL],
        "answer": "Oslo",
        "passage": "A page.",
    }
    path = write(tmp_path, [row | ({"was": "Rome"} if suite == "updates" else {})])
    asked: list[Any] = []

    def generate(chats: list[Any]) -> list[str]:
        asked.extend(chats)
        return ["In Oslo."] * len(chats)

    score = probe_scores(generate, path, suite)["lenient"]
    assert score.value == 1
    assert asked == [[{**TURNS[0], "tools": [TOOL]}, *TURNS[1:]]]
    shown = score.items[0].prompt
    assert shown.index("look_up") < shown.index("[system]\nYou know") < shown.index("[assistant]\nThe baker.")
    probe_scores(generate, path, suite, open_book=True)
    assert asked[2][:3] == asked[0][:3]
    assert asked[2][3]["content"] == "A page.\n\nWhere does she live?"


def test_a_probe_of_several_turns_is_written_as_it_was_read(tmp_path: Path) -> None:
    (probe,) = load_probes(write(tmp_path, [{"id": "m", "messages": TURNS, "answer": "Oslo"}]))
    assert load_probes(write(tmp_path, [probe.row()])) == (probe,)


def test_one_user_turn_is_the_same_as_a_prompt(tmp_path: Path) -> None:
    one, other = {"id": "m", "answer": "Oslo"}, {"messages": [{"role": "user", "content": "Where?"}]}
    (prompt,) = load_probes(write(tmp_path, [one | {"prompt": "Where?"}]))
    assert load_probes(write(tmp_path, [one | other])) == (prompt,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "user turn"),
        ({"messages": TURNS, "kind": "cloze"}, "cloze"),
        ({"messages": TURNS, "tools": "none"}, "JSON"),
    ],
)
def test_messages_that_ask_nothing(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_probes(write(tmp_path, [{"id": "m", "answer": "Oslo"} | change]))
