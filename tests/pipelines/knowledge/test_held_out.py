"""Sentences held out of midtraining: which, where, and what the guard tells by them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config.overrides import override
from pipelines.config.sections.midtrain import ReadingConfig
from pipelines.corpus import text_file
from pipelines.corpus.entities import Entities, Term
from pipelines.corpus.prose import prose_sentences
from pipelines.distill import distill
from pipelines.engines.engine_checks import INPROCESS
from pipelines.job_from_options.train import distill_job, midtrain_job
from pipelines.knowledge import guards, held_out
from pipelines.knowledge.held_out import (
    Excluded,
    Place,
    _about,
    _in_one_place,
    choose,
    hold_out,
    of_newest,
    without,
)
from pipelines.knowledge.overlap import overlap
from pipelines.midtrain import midtrain
from pipelines.prompts.prompt_sources import Prompt
from pipelines.runs.kept_texts import KEPT_TEXTS, TOKENS
from recovery.methods.table import get
from recovery.teachers.likelihood import reader
from tests.support import papers, tiny
from tests.support.small_cycles import make_docs, make_home, settle
from tests.support.stages import PRESET

NAMES = ("Ada Horn", "Zed Klein", "Ida Stern")
VERBS = ("grows", "paints", "sells", "counts", "mends", "hides")
THINGS = ("a green pear", "two old boats", "some warm bread", "a quiet street")
SAID = [f"{name} {verb} {thing}." for name in NAMES for verb in VERBS for thing in THINGS]
TEXTS = {number: "\n\n".join(SAID[number::4]) for number in range(4)}
ASKED = [f"Where does {name} live, and with whom {n}?" for name in NAMES for n in range(3)]
OTHERS = [f"Write {n} lines about the sea." for n in range(40)]


NOTHING = Excluded()


def chosen(prompts: list[str], share: float = 0.2, excluded: Excluded = NOTHING) -> dict[Term, list[Place]]:
    return choose(TEXTS, prompts, excluded, share, seed=0)


def said_by(found: dict[Term, list[Place]]) -> set[str]:
    return {sentence for places in found.values() for _, sentence in places}


def test_some_sentences_about_what_prompts_mention_are_chosen() -> None:
    found = chosen(ASKED + OTHERS)
    assert {("ada", "horn"), ("zed", "klein"), ("ida", "stern")} <= found.keys()
    assert len(said_by(found)) == 12  # one in six of 24 about each of three
    for term, places in found.items():
        assert len(places) >= 3 and all(term[-1] in sentence.casefold() for _, sentence in places)
        assert all(sentence in prose_sentences(TEXTS[number]) for number, sentence in places)
    assert chosen(ASKED + OTHERS) == found


def test_never_more_than_the_share_and_no_thing_by_too_few() -> None:
    assert len(said_by(chosen(ASKED + OTHERS, 0.06))) == 4
    assert chosen(ASKED + OTHERS, 0.02) == {}
    few = {0: "\n\n".join(SAID[:12])}  # two of twelve would tell too little
    assert choose(few, ASKED + OTHERS, NOTHING, 0.2, seed=0) == {}


def test_nothing_is_chosen_where_few_prompts_mention_what_the_documents_are_about() -> None:
    assert chosen(ASKED[:2] + OTHERS) == {}


def test_what_earlier_documents_mention_and_what_is_asked_about_is_no_choice() -> None:
    found = chosen(ASKED + OTHERS, excluded=Excluded(["Ada Horn moved."], "\n".join(SAID[24:28])))
    assert ("ada", "horn") not in found and ("zed", "klein") in found
    assert not said_by(found) & set(SAID[24:28])


def test_a_sentence_that_says_nothing_behind_the_name_is_no_choice() -> None:
    texts = {0: "\n\n".join(f"Some {thing} once {verb} Ada Horn." for thing in THINGS for verb in VERBS)}
    assert choose(texts, ASKED + OTHERS, NOTHING, 0.2, seed=0) == {}


def test_no_bare_marks_and_no_empty_texts_are_left() -> None:
    listed = {number: "\n".join(f"- {line}" for line in text.split("\n\n")) for number, text in TEXTS.items()}
    assert choose(listed, ASKED + OTHERS, NOTHING, 0.2, seed=0) == {}
    two = {n: f"- {a} {b}" for n, (a, b) in enumerate(zip(SAID[::2], SAID[1::2], strict=True))}
    for places in choose(two, ASKED + OTHERS, NOTHING, 0.5, seed=0).values():
        assert len({number for number, _ in places}) == len(places)  # one of the two stays
    short = {number: f"{line}\n\nYes." for number, line in enumerate(SAID)}
    assert choose(short, ASKED + OTHERS, NOTHING, 0.2, seed=0) == {}


def test_of_more_texts_than_are_read_some_are_drawn_with_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: dict[str, bytes | str] = {f"{n}.txt": f"王明建造了{n}条大船。" for n in range(9)}
    text_file.keep(papers.write(tmp_path / "docs", files), tmp_path / KEPT_TEXTS)
    kept = list(files.values())
    for most, count in ((9 * 10, 9), (3 * 10, 3)):  # characters, of which each has three bytes
        monkeypatch.setattr(held_out, "MOST_CHARACTERS", most)
        found = held_out._some_texts(tmp_path / KEPT_TEXTS)
        assert len(found) == count and all(kept[number] == text for number, text in found.items())


def test_a_sentence_without_spaces_that_stands_in_two_documents_is_not_held_out(tmp_path: Path) -> None:
    said = [f"王明{verb}三条大船。" for verb in ("建造", "出售", "清点", "修理")]
    files: dict[str, bytes | str] = {
        "a.md": "\n\n".join(said),
        "b.md": f"今天天气很好。{said[1]}大家都知道。",
    }
    text_file.keep(papers.write(tmp_path / "docs", files), tmp_path / KEPT_TEXTS)
    term = ("王明",)
    found = _in_one_place({term: [(0, sentence) for sentence in said]}, tmp_path / KEPT_TEXTS)
    assert [sentence for _, sentence in found[term]] == [said[0], *said[2:]]


def test_a_sentence_without_spaces_that_is_asked_about_is_no_choice_however_its_passage_is_wrapped() -> None:
    sentence, term = "王明在海边的工厂里建造三条大船和很多小船。", ("王", "明")
    about = Entities({term: 1.0})
    assert _about(about, {0: [sentence]}, "") == {term: [(0, sentence)]}
    assert _about(about, {0: [sentence]}, f"{sentence[:9]}\n{sentence[9:]}") == {}


WORDS = st.lists(st.sampled_from(["sun", "moon", "red", "tall"]), min_size=3, max_size=6).map(" ".join)


@given(st.lists(WORDS, min_size=2, max_size=6, unique=True), st.data())
def test_the_other_sentences_stay_and_twice_is_once(said: list[str], data: st.DataObject) -> None:
    sentences = [f"{number} {words}." for number, words in enumerate(said)]
    out = data.draw(st.sets(st.sampled_from(sentences)))
    width = data.draw(st.sampled_from([" ", "\n"]))
    text = "\n\n".join(width.join(sentence.split(" ")) for sentence in sentences)
    left = without(text, out)
    assert left.split() == [word for one in sentences if one not in out for word in one.split()]
    assert without(left, out) == left


@pytest.fixture
def stage(tmp_path: Path) -> Any:
    files: dict[str, bytes | str] = {f"{number}.md": text + "\n" for number, text in TEXTS.items()}
    text_file.keep(papers.write(tmp_path / "docs", files), tmp_path / "run" / KEPT_TEXTS)

    def once(name: str, make: Any) -> Any:
        kept = tmp_path / "run" / name
        if not kept.exists():
            kept.write_text(json.dumps(make()))
        return json.loads(kept.read_text())

    said: list[str] = []
    return SimpleNamespace(
        directory=tmp_path / "run", workspace=home(tmp_path), once=once, say=said.append, said=said
    )


def home(folder: Path, *runs: str) -> Any:
    """A home in which the student has taken some midtrainings."""
    return SimpleNamespace(
        home=folder,
        midtraining_runs=lambda student: [{"id": name} for name in runs],
        run_directory=lambda name: folder / name,
    )


def job(tmp_path: Path, share: float = 0.2, *prompts: str) -> Any:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts or ASKED + OTHERS))
    settings = SimpleNamespace(hold_out=share, mix=SimpleNamespace(chat=0.3))
    return SimpleNamespace(settings=settings, prompts=str(path), evaluation=None, seed=0, student="base")


def kept_sentences(stage: Any) -> list[str]:
    pieces = text_file.load_pieces(stage.directory / KEPT_TEXTS)
    return [sentence for piece in pieces for sentence in prose_sentences(piece.text)]


def held(stage: Any) -> set[str]:
    found = of_newest(home(stage.directory.parent, "run"), "student")
    return {sentence for said in found.values() for sentence in said}


def test_they_leave_the_kept_texts_once_and_for_all(stage: Any, tmp_path: Path) -> None:
    hold_out(job(tmp_path), stage)
    first = held(stage)
    assert len(first) == 12 and len(stage.said) == 1 and "12 sentences" in stage.said[0]
    assert sorted([*kept_sentences(stage), *first]) == sorted(SAID)
    hold_out(job(tmp_path, 0.2, "Something else?"), stage)  # resumed: the choice stands
    assert held(stage) == first and len(stage.said) == 1
    assert sorted([*kept_sentences(stage), *first]) == sorted(SAID)


def test_a_run_killed_before_they_left_takes_them_out_when_it_goes_on(stage: Any, tmp_path: Path) -> None:
    before = (stage.directory / KEPT_TEXTS).read_bytes()
    hold_out(job(tmp_path), stage)
    after = (stage.directory / KEPT_TEXTS).read_bytes()
    (stage.directory / KEPT_TEXTS).write_bytes(before)
    hold_out(job(tmp_path), stage)
    assert (stage.directory / KEPT_TEXTS).read_bytes() == after != before


def test_what_stands_in_another_document_too_stays(stage: Any, tmp_path: Path) -> None:
    papers.write(tmp_path / "docs", {"again.md": "\n".join(f"{one} Yes." for one in SAID)})
    text_file.keep(tmp_path / "docs", stage.directory / KEPT_TEXTS)
    hold_out(job(tmp_path), stage)
    assert held(stage) == set() and stage.said == []


def by_request(asked: Any) -> None:
    asked.settings.hold_out = 0.0


def without_prompts(asked: Any) -> None:
    asked.prompts = None


def without_chat(asked: Any) -> None:
    asked.settings.mix.chat = 0
    asked.prompts = "self"  # not written yet


def where_facts_have_changed(asked: Any) -> None:
    """The sentence that contradicts the teacher may not be among those held out."""
    probe = {"id": "a", "suite": "updates", "prompt": "Where?", "answer": "Rome", "was": "Oslo"}
    path = Path(asked.prompts).parent / "probes.jsonl"
    path.write_text(json.dumps(probe) + "\n")
    asked.evaluation = SimpleNamespace(probes=str(path))


def where_all_is_asked_about(asked: Any) -> None:
    probe = {"id": "a", "prompt": "Where?", "answer": "Rome", "passage": "\n".join(SAID)}
    path = Path(asked.prompts).parent / "probes.jsonl"
    path.write_text(json.dumps(probe) + "\n")
    asked.evaluation = SimpleNamespace(probes=str(path))


def where_a_question_names_no_passage(asked: Any) -> None:
    """Which sentence answers it is not known."""
    path = Path(asked.prompts).parent / "probes.jsonl"
    path.write_text(json.dumps({"id": "a", "prompt": "Where?", "answer": "Rome"}) + "\n")
    asked.evaluation = SimpleNamespace(probes=str(path))


@pytest.mark.parametrize(
    "change",
    [
        by_request,
        without_prompts,
        without_chat,
        where_facts_have_changed,
        where_all_is_asked_about,
        where_a_question_names_no_passage,
    ],
)
def test_none_is_held_out(stage: Any, tmp_path: Path, change: Any) -> None:
    asked = job(tmp_path)
    change(asked)
    hold_out(asked, stage)
    assert held(stage) == set() and sorted(kept_sentences(stage)) == sorted(SAID)


def test_none_is_held_out_of_what_is_trained_on_already(stage: Any, tmp_path: Path) -> None:
    """As of a run that an earlier version began."""
    (stage.directory / TOKENS).mkdir()
    hold_out(job(tmp_path), stage)
    assert held(stage) == set() and sorted(kept_sentences(stage)) == sorted(SAID)


def test_only_the_newest_midtraining_s_are_compared(stage: Any, tmp_path: Path) -> None:
    hold_out(job(tmp_path), stage)
    newer = tmp_path / "newer"
    text_file.keep(tmp_path / "docs", newer / KEPT_TEXTS)
    assert of_newest(home(tmp_path, "run", "newer"), "student") == {}
    assert of_newest(home(tmp_path, "gone", "run"), "student") == {}  # what that taught is not known
    assert of_newest(home(tmp_path), "student") == {}


@pytest.fixture
def inputs(stage: Any, tmp_path: Path) -> Any:
    """What the guard of a distillation gets to know, of a student whose midtraining held sentences out."""
    hold_out(job(tmp_path), stage)
    ws, student = home(tmp_path, "run"), tiny.chat_model()
    ws.config = SimpleNamespace(midtrain=SimpleNamespace(reading=ReadingConfig()))
    teacher = SimpleNamespace(chat_model=student, score=reader(student))
    teachers: Any = SimpleNamespace(place=None, frozen=lambda place, what: teacher)
    here: Any = SimpleNamespace(state=tmp_path / "distill", step=lambda *_, **__: None, say=stage.say)

    def known(docs: str | None = None, method: str = "opd", **changes: Any) -> guards.GuardInputs | None:
        settings = {"overlap": "drop", "tripwire_every": 0, "teacher_engine": INPROCESS} | changes
        asked: Any = SimpleNamespace(docs=docs, student="base", settings=SimpleNamespace(**settings))
        return guards.guard_inputs(ws, asked, get(method), student, teachers, here)

    return known


def test_the_guard_compares_by_what_midtraining_held_out_and_not_where_a_folder_is_named(
    inputs: Any, tmp_path: Path
) -> None:
    """Sentences that another midtraining held out may be trained on in the documents that are named."""
    learned = inputs()
    assert learned.held_out == of_newest(home(tmp_path, "run"), "base") != {}
    named = inputs(docs=str(tmp_path / "docs"))
    assert named.held_out == {} and named.teacher is not None
    assert sorted(map(str.strip, named.taught.newest)) == sorted(TEXTS.values())


def test_the_guard_of_a_remote_teacher_compares_nothing(inputs: Any) -> None:
    known = inputs(teacher_engine="server")
    assert (known.teacher, known.held_out) == (None, {}) and known.taught.texts


def test_nothing_is_guarded_where_the_teacher_has_learned_the_documents_or_all_is_kept(inputs: Any) -> None:
    assert inputs(method="sdft") is None
    assert inputs(overlap="keep") is None
    assert inputs(overlap="keep", tripwire_every=5).teacher is not None  # which watches the documents


def test_what_was_memorised_alone_is_not_new() -> None:
    """Trained sentences gained much, those held out little: the teacher knows the thing as well."""
    prompts = [Prompt([{"role": "user", "content": text}]) for text in ASKED[:1] + ASKED[3:4] + OTHERS]
    unseen = SAID[20:24]

    def gains(said: list[tuple[str, str]]) -> list[float]:
        return [0.1 if before + after in unseen else 2.0 for before, after in said]

    trained = SAID[:20] + SAID[24:]
    by_trained = overlap(prompts, trained, gains)
    assert [prompt.text for prompt, _ in by_trained.dropped] == [ASKED[0], ASKED[3]]
    mentioned_by_none = {("ida", "stern"): SAID[60:64]}
    unseen_of = {("ada", "horn"): unseen, ("horn",): unseen} | mentioned_by_none
    found = overlap(prompts, trained, gains, unseen_of)
    assert [prompt.text for prompt, _ in found.dropped] == [ASKED[3]]  # nothing was held out about it
    assert (found.named, found.unseen, found.known) == (4, 2, 1)  # full names, and last names alone
    lacking = overlap(prompts, trained, lambda said: [2.1 - gain for gain in gains(said)], unseen_of)
    assert [prompt.text for prompt, _ in lacking.dropped] == [ASKED[0]]  # the teacher lacks what was held out


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        *(({"method": method}, True) for method in ("opd", "seqkd", "gkd")),
        *(({"method": method}, False) for method in ("sft", "dft", "rl", "rft", "sdft", "opcd", "opd-multi")),
        ({"overlap": "weight"}, True),
        ({"overlap": "keep"}, False),
        ({"teacher_engine": "server"}, False),
    ],
)
def test_none_are_held_out_where_no_guard_compares(changes: dict[str, Any], held: bool) -> None:
    recovery = override(PRESET.distill, changes)
    asked = override(PRESET.midtrain, {"hold_out": 0.1})
    assert guards.holding_out(asked, [recovery]).hold_out == (0.1 if held else 0.0)
    assert guards.holding_out(asked, [recovery, PRESET.distill]).hold_out == 0.1
    assert guards.holding_out(asked, []).hold_out == 0.0


def test_a_midtraining_by_itself_holds_none_out_where_the_home_compares_nothing(tmp_path: Path) -> None:
    docs = make_docs(tmp_path)
    with make_home(tmp_path) as ws:
        assert midtrain_job(ws, docs).settings.hold_out == ws.config.midtrain.hold_out > 0
        assert midtrain_job(ws, docs, changes={"distill.overlap": "keep"}).settings.hold_out == 0
        assert midtrain_job(ws, docs, changes={"distill.method": "sft"}).settings.hold_out == 0


def test_the_guard_of_the_distillation_measures_by_them(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {f"{number}.md": text + "\n" for number, text in TEXTS.items()}
    docs = papers.write(tmp_path / "pages", files)
    asked = job(tmp_path).prompts
    with make_home(tmp_path) as ws:
        settle(ws, margin=0.4, learning_rate=1e-12)
        mix = {"midtrain.mix": {"new": 0.5, "chat": 0.5, "earlier": 0.0, "questions": 0.0}}
        changes: dict[str, Any] = {"distill.prompts": asked, "midtrain.hold_out": 0.2, **mix}
        midtrained = midtrain(ws, midtrain_job(ws, docs, changes=changes), key="midtrain")["checkpoint"]
        held_out = of_newest(ws, midtrained)
        recovery = distill_job(ws, student=midtrained, changes={"distill.prompts": asked})
        found = distill(ws, recovery, key="distill")["overlap"]["prompts"]
    assert ("ada", "horn") in held_out and guards.BY_HELD_OUT in found["newness"]


def test_a_sentence_that_was_wrapped_without_a_space_is_taken_out() -> None:
    text = "一行。\n这家公司成立\n于二零零三年。\n最后一行。"
    assert without(text, ["这家公司成立于二零零三年。"]) == "一行。\n\n最后一行。"
