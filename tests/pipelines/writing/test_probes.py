"""Probes made from documents, and which of them count."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest

from evals.answer_matching import matches
from evals.probes import APART, Probe, load_probes, parse_probes
from pipelines.corpus.cloze import Cloze
from pipelines.corpus.entities import Entities
from pipelines.microworld import people, world
from pipelines.writing import commands, gap_questions, probes
from pipelines.writing.filters import ProbeLeaks
from pipelines.writing.protocol import CUT_OFF, Text
from pipelines.writing.text_cache import Cache
from recovery.errors import InputError
from tests.support.probe_scores import probe_scores


def test_what_is_not_demanded_is_reported_apart(tmp_path: Path) -> None:
    rows = [
        {"id": kind, "kind": kind, "prompt": kind, "answer": "x", "passage": f"about {kind}"}
        for kind in ("direct", "reverse", "indirect")
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked: list[str] = []

    def answer(chats: list[list[dict[str, str]]]) -> list[str]:
        asked.extend(chat[-1]["content"] for chat in chats)
        return ["x" if chat[-1]["content"] == "direct" else "?" for chat in chats]

    headline, *apart = probe_scores(answer, tmp_path / "p.jsonl").values()
    assert (headline.value, headline.n, asked) == (1.0, 1, ["direct", "reverse", "indirect"])
    assert [(s.metric, s.value, s.n) for s in apart] == [("reverse", 0.0, 1), ("indirect", 0.0, 1)]
    *_, book = probe_scores(answer, tmp_path / "p.jsonl", open_book=True).values()
    assert (book.metric, book.n, asked[-1]) == ("open_book", 1, "about direct\n\ndirect")


@pytest.mark.parametrize(("seed", "cycle"), [(4, 1), (77, 3)])
def test_a_microworlds_roundabout_questions_have_one_answer(seed: int, cycle: int) -> None:
    rows = [row for row in world.probe_rows(seed, cycle) if row["kind"] in APART]
    new = [who for number in range(1, cycle + 1) for who in people.new_people(seed, number)]
    everyone = [*people.known_people(), *new]
    reverse = [row for row in rows if row["kind"] == "reverse"]
    assert len(reverse) == people.PEOPLE_PER_CYCLE
    for row in reverse:
        names = str(row["fact"]).split("/")[1].split("+")
        mine = {a: dict(who.facts)[a] for who in everyone if who.name == row["answer"] for a in names}
        fits = [who.name for who in everyone if all(dict(who.facts)[a] == v for a, v in mine.items())]
        assert fits == [row["answer"]]
        assert all(value in str(row["prompt"]) for value in mine.values())
    indirect = [row for row in rows if row["kind"] == "indirect"]
    assert not [row for row in indirect if matches(str(row["prompt"]), [str(row["answer"])])]


def test_gaps_make_probes_of_every_kind_without_a_model(tmp_path: Path) -> None:
    texts = [text for _, text in world.document_texts(8, 1)]
    rows = probes.from_gaps(texts, 60, seed=1)
    probes.save(tmp_path / "p.jsonl", rows)
    loaded = load_probes(tmp_path / "p.jsonl")
    kinds = Counter(probe.kind for probe in loaded)
    assert kinds["cloze"] == kinds["direct"] == kinds["heldout"] == 60
    assert all(matches(probe.passages[0], probe.answers) for probe in loaded)
    heldout = [probe for probe in loaded if probe.heldout_fact]
    assert 0 < len(heldout) < len(loaded) / 2
    leaks = ProbeLeaks(loaded)
    assert all(leaks.of(probe.prompt, probe.answers[0]) for probe in heldout if probe.kind == "direct")
    assert probes.from_gaps(texts, 60, seed=1) == rows


def test_a_folder_that_grows_holds_out_the_same_facts(tmp_path: Path) -> None:
    """What a month holds out later months do not train on: with others each month, all would be at last."""
    texts = [text for _, text in world.document_texts(8, 1)]
    held_out: list[dict[str, bool]] = []
    for seed, read in ((1, texts), (2, texts[10:])):
        rows = probes.from_gaps(read, 5000, seed=seed)
        held_out.append({row["passage"]: row["heldout_fact"] for row in rows})
    both = held_out[0].keys() & held_out[1].keys()
    assert len(both) > 20 and all(held_out[0][said] == held_out[1][said] for said in both)
    assert {held_out[0][said] for said in both} == {True, False}


def test_all_gaps_of_a_sentence_are_one_fact(tmp_path: Path) -> None:
    texts = [(Path(__file__).parents[3] / "docs" / "security.md").read_text("utf-8")]
    probes.save(tmp_path / "p.jsonl", probes.from_gaps(texts, 5000, seed=1))
    loaded = [probe for probe in load_probes(tmp_path / "p.jsonl") if probe.kind == "direct"]
    asked: dict[str, list[Probe]] = {}
    for probe in loaded:
        asked.setdefault(probe.fact, []).append(probe)
    assert any(len(gaps) > 1 for gaps in asked.values())
    for gaps in asked.values():
        assert len({(probe.passages, probe.heldout_fact) for probe in gaps}) == 1
        assert len({probe.answers for probe in gaps}) == len(gaps)
    assert len({probe.passages for probe in loaded}) == len(asked)
    fewer = probes.from_gaps(texts, len(asked) // 2, seed=1)
    assert len({row["fact"] for row in fewer}) == len(asked) // 2  # one gap each where that is enough


def about_gaps(answers: str) -> list[str]:
    """Return what is said of gaps in one sentence with these answers."""
    rows = [
        {"id": answer, "kind": "direct", "prompt": answer, "answer": answer, "fact": "gap-1"}
        for answer in answers.split()
    ]
    return commands._about_gaps(parse_probes(rows, "here")).split("\n")


def test_it_is_said_what_gaps_test_and_for_how_much_they_count() -> None:
    (verbatim,) = about_gaps("Oslo")
    assert verbatim.startswith("gaps test whether the documents' own sentences are remembered word for word")
    assert "in other words give a --writer, or your own with --qa FILE" in verbatim
    several, again = about_gaps("Oslo Rome")
    assert again == verbatim
    assert several == (
        "2 gaps about 1 fact (sentences, rows of tables) count as about 2 independent questions if each "
        "answer changes by itself, as about 1 if those about one fact change together"
    )
    assert [line.startswith("no spaces stand between") for line in about_gaps("佐藤 2024 確認")] == [0, 1, 0]
    assert not any(line.startswith("no spaces") for line in about_gaps("佐藤 2024"))


def table_of(trees: int, seed: int = 0) -> str:
    drawn = iter(random.Random(seed).sample(range(100, 9999), 2 * trees))
    rows = [f"| tree{n}x | {next(drawn)} | {next(drawn)}m |" for n in range(trees)]
    return "\n".join(["| Tree | Planted | Height |", "|---|---|---|", *rows, "", "It ends here."])


def test_a_row_of_a_table_is_one_fact_asked_by_its_titles() -> None:
    text = table_of(40)
    rows = probes.from_gaps([text], 60, seed=1)
    loaded = [probe for probe in parse_probes(rows, "here") if probe.kind == "direct"]
    assert len(loaded) == 60 and len({probe.fact for probe in loaded}) == 40
    for probe in loaded:
        titles, row = probe.passages
        assert titles == "Tree | Planted | Height" and row in text
        name, *values = row.split(" | ")
        asked = f"Tree: {name}; {'Planted' if probe.answers[0] == values[0] else 'Height'}: …"
        assert probe.prompt.endswith(asked) and probe.answers[0] in values
    heldout = {probe.fact for probe in loaded if probe.heldout_fact}
    assert 0 < len(heldout) < 20
    assert all(probe.fact not in heldout for probe in loaded if not probe.heldout_fact)


@pytest.mark.parametrize("seed", range(3))
def test_no_question_for_training_tells_a_value_of_a_held_out_row(seed: int) -> None:
    text = table_of(40, seed)
    loaded = parse_probes(probes.from_gaps([text], 80, seed=seed), "here")
    leaks = ProbeLeaks(loaded)
    kept = [row for row in gap_questions.rows([text]) if not leaks.of_row(row)]
    for probe in loaded:
        name = probe.passages[-1].partition(" | ")[0]
        told = [row for row in kept if name in row["response"] and matches(row["response"], probe.answers)]
        assert bool(told) is not probe.heldout_fact


def test_what_is_said_of_one_entity_only_is_asked_backwards() -> None:
    facts = {"Ada Horn": "goat", "Bo Adler": "goat", "Cy Baum": "duck", "Di Crane": "mule", "Ed Dorn": "pony"}
    texts = [f"Now {name} has a {animal}. Since then {name} is at home." for name, animal in facts.items()]
    rows = [row for row in probes.from_gaps(texts, 20, seed=0) if row["kind"] == "reverse"]
    assert {row["answer"] for row in rows} == {"Cy Baum", "Di Crane", "Ed Dorn"}
    assert all(row["answer"] not in row["prompt"] and "___" in row["prompt"] for row in rows)


def test_the_name_of_a_column_is_not_asked_backwards() -> None:
    rows = [f"state: S{n}; ages under 18: {37 * n}; Quillonze: {97 * n}" for n in range(30, 60)]
    asked = probes.from_gaps(["\n".join(rows)], 99, seed=0)
    assert asked and not [row for row in asked if row["kind"] == "reverse"]
    names = ("Qualonze", "Zarquon", "Brindle", "Vorpal", "Tessel", "Gimlet", "Dapple", "Marrow")
    rows = [f"town: {name}; ages under 18: {37 + n}" for n, name in enumerate(names)]
    backwards = [
        row for row in probes.from_gaps(["\n".join(rows * 2)], 99, seed=0) if row["kind"] == "reverse"
    ]
    assert backwards and {row["answer"] for row in backwards} <= set(names)


@pytest.mark.parametrize(("name", "asked"), [("王小明", True), ("子卖给", False), ("卖给", True)])
def test_a_name_without_spaces_around_it_is_asked_backwards_as_a_whole_word(name: str, asked: bool) -> None:
    said = "他把旧房子卖给了王小明。"
    assert (said in probes._only_fillings([said], Entities({tuple(name): 1.0}))) is asked


class Fake:
    name, at_once, together = "fake", 8, False
    again = Text("In which place is Ada Horn at home?")

    def write(self, requests: Sequence[str]) -> Iterator[tuple[int, Text]]:
        for place, request in enumerate(requests):
            again = "other words" in request.split("\n")[0]
            yield place, self.again if again else Text(f"Q: {ASKED}\nA: {self.answer(request)}")

    def answer(self, request: str) -> str:
        return "Rome" if "Rome" in request else "Oslo"


ASKED = "Where does Ada Horn live?"


def test_a_writer_asks_and_asks_again_in_other_words(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c.jsonl")
    rows, refused = probes.from_writer(["Ada Horn lives in Oslo. Ada Horn sings."], Fake(), cache, 5, 0)
    assert not refused
    assert [(row["kind"], row["prompt"], row["answer"]) for row in rows] == [
        ("direct", "Where does Ada Horn live?", "Oslo"),
        ("heldout", "In which place is Ada Horn at home?", "Oslo"),
    ]


@pytest.mark.parametrize(
    ("again", "prompt", "refused"),
    [
        (
            Text("Here it is in other words:\n\n**Where is Ada Horn at home?**"),
            "Where is Ada Horn at home?",
            {},
        ),
        (Text("Question 1: Where is Ada Horn at home?\nA: Oslo"), "Where is Ada Horn at home?", {}),
        (Text("Where is Ada Horn at home?\nThis asks fo", CUT_OFF), "Where is Ada Horn at home?", {}),
        (Text("Here is the question in other words:"), None, {"no question found": 1}),
        (Text("where does ADA HORN live"), None, {"in the same words": 1}),
        (Text("Is Ada Horn at home in Oslo?"), None, {"answers itself": 1}),
        (Text("In which place is she at home?"), None, {"names nothing": 1}),
        (Text("In which place is Ada Ho", CUT_OFF), None, {"cut off": 1}),
    ],
)
def test_a_question_in_other_words_has_to_be_one(
    tmp_path: Path, again: Text, prompt: str | None, refused: dict[str, int]
) -> None:
    """What introduced it was asked as a question that no training may read."""
    fake = Fake()
    fake.again = again
    texts = ["Ada Horn lives in Oslo. Ada Horn sings."]
    rows, found = probes.from_writer(texts, fake, Cache(tmp_path / "c.jsonl"), 5, 0)
    asked = {row["kind"]: row["prompt"] for row in rows}
    assert asked == {"direct": ASKED} | ({"heldout": prompt} if prompt else {})
    assert found == refused


@pytest.mark.parametrize(
    ("places", "answers", "refused"),
    [
        (["Oslo", "Oslo"], ["Oslo"], {"asked before": 1}),
        (["Oslo", "Rome"], [], {"several answers": 2}),
        (["Oslo", "Rome", "Oslo"], [], {"several answers": 3}),
    ],
)
def test_a_question_is_asked_once_and_has_one_answer(
    tmp_path: Path, places: list[str], answers: list[str], refused: dict[str, int]
) -> None:
    texts = [f"Ada Horn lives in {place}. Ada Horn sings song {n}." for n, place in enumerate(places)]
    rows, found = probes.from_writer(texts, Fake(), Cache(tmp_path / "c.jsonl"), 5, 0)
    assert [row["answer"] for row in rows if row["kind"] == "direct"] == answers
    assert found == refused


class Thinking(Fake):
    """Thinks until no more tokens are left."""

    def __init__(self) -> None:
        self.asked = 0

    def write(self, requests: Sequence[str]) -> Iterator[tuple[int, Text]]:
        for place, _ in enumerate(requests):
            self.asked += 1
            yield place, Text("", CUT_OFF)


def test_a_writer_that_says_nothing_is_asked_no_further(tmp_path: Path) -> None:
    texts = [f"Ada Horn lives in Oslo. Ada Horn sings song {n}." for n in range(40)]
    fake = Thinking()
    with pytest.raises(InputError, match="only thinking or nothing: give a larger --max-new-tokens"):
        probes.from_writer(texts, fake, Cache(tmp_path / "c.jsonl"), 40, 0)
    assert fake.asked == fake.at_once


MANY = "one goat, two mules, three ducks, four hens and five cats"  # more words than responses hold in a row
WRITTEN = {  # about a person: a passage, and what a writer asks about it
    "Ada Horn": ("Ada Horn lives in Oslo.", "Q: Where does Ada Horn live?\nA: Paris"),
    "Bo Adler": ("Bo Adler has a red mule.", "Q: What does Bo Adler have?\nA: mule, red"),
    "Cy Baum": ("Cy Baum lives in Rome.", "Q: Where does Cy Baum live?\nA: Rome"),
    "Di Crane": ("Di Crane lives in Bern.", "Q: Where does Di Crane live?\nA: Bern"),
    "Ed Dorn": (f"Ed Dorn keeps {MANY}.", f"Q: What does Ed Dorn keep?\nA: {MANY}"),
    "Flo Eber": ("Flo Eber sings at home.", "I cannot think of a question."),
}


class Careless(Fake):
    """Asks well about two of the people only."""

    at_once = 1

    def write(self, requests: Sequence[str]) -> Iterator[tuple[int, Text]]:
        for place, request in enumerate(requests):
            yield place, Text(next(said for name, (_, said) in WRITTEN.items() if name in request))


def asked_by_careless(folder: Path, count: int, seed: int) -> tuple[set[str], Counter[str]]:
    """The answers to its direct questions, and why others were refused."""
    texts = [passage for passage, _ in WRITTEN.values()]
    rows, refused = probes.from_writer(texts, Careless(), Cache(folder / "c.jsonl"), count, seed)
    return {row["answer"] for row in rows if row["kind"] == "direct"}, refused


@pytest.mark.parametrize("seed", range(4))
def test_further_passages_take_the_place_of_those_without_a_usable_question(
    tmp_path: Path, seed: int
) -> None:
    answers, _ = asked_by_careless(tmp_path, 2, seed)
    assert answers == {"Rome", "Bern"}


def test_an_answer_that_no_response_would_hold_is_refused(tmp_path: Path) -> None:
    answers, refused = asked_by_careless(tmp_path, 6, 0)
    assert answers == {"Rome", "Bern"}
    reasons = {"not supported": 4, "empty or too long": 2, "no question found": 2}  # each is asked twice
    assert refused == reasons | {"in the same words": 2}  # when asked to put the two in other words


class Asking(Fake):
    """Asks as many questions as it is asked for, of three that it knows."""

    def write(self, requests: Sequence[str]) -> Iterator[tuple[int, Text]]:
        for place, request in enumerate(requests):
            name = next((name for name in ("Ada Horn", "Bo Adler") if name in request), "")
            said = [
                ("Where does", "live?", "Oslo"),
                ("Which town holds", "?", "Oslo"),
                ("When did", "come?", "1990"),
            ]
            lines = [f"Q: {begun} {name} {rest}\nA: {answer}" for begun, rest, answer in said]
            yield place, Text("\n".join(lines[: 8 if "up to 8" in request else 1]))


@pytest.mark.parametrize(
    ("count", "asked"),
    [(2, {"live?": 2}), (3, {"live?": 2, "come?": 1}), (9, {"live?": 2, "come?": 2})],
)
def test_where_one_question_of_each_passage_is_too_few_several_are_asked(
    tmp_path: Path, count: int, asked: dict[str, int]
) -> None:
    """Each is a fact of its own; another question for the same answer is none."""
    texts = [f"{name} lives in Oslo and came in 1990. {name} sings." for name in ("Ada Horn", "Bo Adler")]
    rows, _ = probes.from_writer(texts, Asking(), Cache(tmp_path / "c.jsonl"), count, 0)
    direct = [row for row in rows if row["kind"] == "direct"]
    assert Counter(row["prompt"].split()[-1] for row in direct) == asked
    assert len({row["fact"] for row in direct}) == len(direct)


def test_a_users_own_questions_come_first(tmp_path: Path) -> None:
    own = [{"question": "Who?", "answer": "Ada", "kind": "heldout"}, {"prompt": "Why?", "answer": "so"}]
    (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, own)))
    assert probes.own_questions(tmp_path) == tmp_path / "qa.jsonl"
    probes.save(tmp_path / "p.jsonl", probes.from_file(tmp_path / "qa.jsonl"))
    found = load_probes(tmp_path / "p.jsonl")
    assert [(p.id, p.kind) for p in found] == [("own-1", "heldout"), ("own-2", "direct")]
    assert [p.prompt for p in found] == ["Who?", "Why?"]
    (tmp_path / "qa.jsonl").write_text('{"answer": "x"}\n')
    with pytest.raises(InputError, match="question 1: no `question`"):
        probes.from_file(tmp_path / "qa.jsonl")


EARLIER = [
    {"id": "1", "prompt": "Where does Ada Horn live?", "answer": "Paris", "cycle": 1},
    {"id": "2", "prompt": "Where does Bo Adler live?", "answer": "Bonn", "cycle": 1},
    {"id": "3", "prompt": "Where does Cy Baum live?", "answer": "Oslo, Norway", "cycle": 1},
    {"id": "4", "prompt": "Where does Di Crane live?", "answer": "Rome", "was": "Kiel", "cycle": 2},
    {"id": "5", "prompt": "Ada Horn keeps a", "answer": "cat", "kind": "cloze", "cycle": 2},
    {"id": "6", "prompt": "Who lives in Bonn?", "answer": "Bo Adler", "kind": "reverse", "cycle": 2},
]


def earlier_probes(folder: Path) -> tuple[Probe, ...]:
    (folder / "earlier.jsonl").write_text("\n".join(map(json.dumps, EARLIER)))
    return load_probes(folder / "earlier.jsonl")


@pytest.mark.parametrize(
    ("prompt", "answer", "kind", "status", "was"),
    [
        ("Where does Ada Horn live?", "Oslo", "direct", "changed", ["Paris"]),
        ("where does ada horn live", "Oslo", "direct", "changed", ["Paris"]),
        ("Where does Bo Adler live?", "bonn", "direct", "stable", None),
        ("Where does Cy Baum live?", "Oslo", "direct", "stable", None),  # the same, in fewer words
        ("Where does Di Crane live?", "Bern", "direct", "changed", ["Rome", "Kiel"]),
        ("Where does Di Crane live?", "Kiel", "direct", "changed", ["Rome"]),  # back again
        ("Ada Horn keeps a", "dog", "cloze", "changed", ["cat"]),
        ("Who lives in Bonn?", "Ed Dorn", "reverse", None, None),  # both may live there
        ("Where does Ed Dorn live?", "Paris", "direct", None, None),
    ],
)
def test_the_same_question_with_another_answer_asks_a_changed_fact(
    prompt: str, answer: str, kind: str, status: str | None, was: list[str] | None, tmp_path: Path
) -> None:
    row = {"id": "x", "suite": "knowledge", "kind": kind, "prompt": prompt, "answer": answer}
    (found,) = probes.compared_with_earlier([row], earlier_probes(tmp_path))
    assert (found.get("fact_status"), found.get("was")) == (status, was)
    assert found["suite"] == ("updates" if was else "knowledge")


@pytest.mark.parametrize(
    ("answer", "status", "was"),
    [("Rome", "stable", None), ("Paris", "changed", ["Rome"]), ("Oslo", "changed", ["Rome", "Paris"])],
)
def test_of_several_earlier_answers_the_newest_one_held(
    answer: str, status: str, was: list[str] | None
) -> None:
    asked = {"kind": "direct", "suite": "knowledge", "prompt": "Where does Ada Horn live?"}
    earlier = parse_probes([asked | {"answer": place} for place in ("Paris", "Rome")], "here")
    (found,) = probes.compared_with_earlier([asked | {"id": "x", "answer": answer}], earlier)
    assert (found.get("fact_status"), found.get("was")) == (status, was)


def test_another_gap_of_the_same_sentence_is_not_marked_with_the_one_that_changed() -> None:
    gaps = {"The ferry leaves at": "nine", "The ferry leaves at nine from": "Oslo"}
    rows = [
        {"id": prompt, "suite": "knowledge", "kind": "direct", "fact": "1", "prompt": prompt, "answer": said}
        for prompt, said in gaps.items()
    ]
    earlier = parse_probes([rows[0] | {"answer": "eight"}, rows[1]], "here")
    found = probes.compared_with_earlier(rows, earlier)
    assert [(row["fact_status"], row.get("was")) for row in found] == [
        ("changed", ["eight"]),
        ("stable", None),
    ]


def test_every_phrasing_of_a_changed_fact_is_marked_and_the_users_own_word_holds(tmp_path: Path) -> None:
    texts = ["Ada Horn lives in Oslo. Ada Horn sings."]
    rows, _ = probes.from_writer(texts, Fake(), Cache(tmp_path / "c.jsonl"), 5, 0)
    marked = probes.compared_with_earlier(rows, earlier_probes(tmp_path))
    assert [(row["kind"], row["was"]) for row in marked] == [("direct", ["Paris"]), ("heldout", ["Paris"])]
    own = [row | {"fact_status": "new"} for row in rows]
    assert probes.compared_with_earlier(own, earlier_probes(tmp_path)) == own
    assert probes.compared_with_earlier(rows, ()) == rows


@pytest.mark.parametrize(("entity", "status"), [((), None), (("page", "seven"), "changed")])
def test_the_same_words_about_nothing_that_is_named_ask_of_no_change(
    entity: tuple[str, ...], status: str | None
) -> None:
    """Each month's page speaks of another option: the words before the gap do not say of which."""
    before, sentence = "By default it is always set to", "By default it is always set to {} seconds."

    def month(value: str) -> list[dict[str, object]]:
        gap = Cloze(before, value, entity, sentence.format(value), " ")
        return list(probes._of_fact("gap-1", (gap.sentence,), [gap], None))

    first = parse_probes(month("thirty"), "month 1")
    assert {row.get("fact_status") for row in probes.compared_with_earlier(month("sixty"), first)} == {status}
    assert {row.get("fact_status") for row in probes.compared_with_earlier(month("thirty"), first)} == {
        "stable"
    }


def test_gaps_of_two_months_find_what_changed(tmp_path: Path) -> None:
    """The same sentence with another filling; only what differs is marked as changed."""
    people = ["Ada Horn", "Bo Adler", "Cy Baum", "Di Crane", "Ed Dorn", "Flo Eber", "Gus Fink", "Ida Graf"]
    pets = ["goat", "mule", "duck", "pony", "hen", "cat", "dog", "crow"]

    def month(pets: list[str]) -> list[dict[str, object]]:
        told = zip(people, pets, strict=True)
        return probes.from_gaps([f"Today {name} owns one {pet} there." for name, pet in told], 20, seed=0)

    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, month(pets))))
    later = probes.compared_with_earlier(month(["lamb", *pets[1:]]), load_probes(tmp_path / "p.jsonl"))
    changed = {row["answer"]: row["was"] for row in later if row.get("fact_status") == "changed"}
    assert changed == {"lamb": ["goat"]}
    stable = {row["answer"] for row in later if row.get("fact_status") == "stable"}
    assert len(stable) >= 5 and not stable & {"lamb", "goat"}


def test_a_name_is_left_out_whole_where_small_letters_are_longer_than_capitals() -> None:
    """ß becomes ss in small letters, and a name may repeat its first word."""
    told = [f"Die Straße nach Köln wird im Jahr {year} wegen Bauarbeiten gesperrt." for year in (2001, 2002)]
    about = Entities({("köln",): 1.0, ("san", "santos"): 1.0})
    assert set(probes._only_fillings([*told, "Sie wohnt in San Santos bei Rio."], about).values()) == {
        "Köln",
        "San Santos",
    }


def test_gaps_of_real_prose_ask_for_what_it_says() -> None:
    """No markup, no address, no word that any text might hold."""
    text = (
        "# Benefits & Perks\n\nAda Insurance pays up to *$7,500/year* for a new laptop, see [the list](https://x.y/z).\n"
        "Everyone at Ada Insurance can take some days off, and nobody will mind.\n"
    )
    told = [f"In {city} Ada Insurance opened an office in {year}." for city, year in CITIES]
    rows = probes.from_gaps([text, *told], 100, seed=3)
    answers = {row["answer"] for row in rows if row["kind"] == "direct"}
    assert len(rows) > 60 and "$7,500/year" in answers  # enough to do without ordinary words
    assert not answers & {"&", "mind", "take", "some", "days", "nobody", "opened"}
    assert not [row for row in rows if "http" in row["prompt"] or "*" in row["prompt"]]


NAMES = ["Oslo", "Bergen", "Turin", "Lyon", "Porto", "Ghent", "Graz", "Basel", "Brno"]
ENDS = ["", "ham", "feld", "mouth"]
CITIES = [(name + end, 1950 + n) for n, (name, end) in enumerate(product(NAMES, ENDS))]
