"""Sentences held out of midtraining: which, where, and what the guard tells by them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus import text_file
from pipelines.corpus.kept_texts import KEPT_TEXTS
from pipelines.corpus.prose import prose_sentences
from pipelines.distill import distill
from pipelines.distillation.prompts import Prompt
from pipelines.job_from_options.train import distill_job, midtrain_job
from pipelines.knowledge import guards
from pipelines.knowledge.held_out import HELD_OUT, Choice, choose, hold_out, sentences_of, without
from pipelines.knowledge.overlap import overlap
from pipelines.midtrain import midtrain
from tests.support import papers
from tests.support.small_cycles import make_home, settle

NAMES = ("Ada Horn", "Zed Klein", "Ida Stern")
VERBS = ("grows", "paints", "sells", "counts", "mends", "hides")
THINGS = ("a green pear", "two old boats", "some warm bread", "a quiet street")
SAID = [f"{name} {verb} {thing}." for name in NAMES for verb in VERBS for thing in THINGS]
TEXTS = {number: "\n\n".join(SAID[number::4]) for number in range(4)}
ASKED = [f"Where does {name} live, and with whom {n}?" for name in NAMES for n in range(3)]
OTHERS = [f"Write {n} lines about the sea." for n in range(40)]


def held(choice: Choice) -> list[str]:
    return [sentence for sentences in choice.places.values() for sentence in sentences]


def test_some_sentences_about_what_prompts_mention_are_chosen() -> None:
    found = choose(TEXTS, ASKED + OTHERS, 0.2, seed=0)
    assert (found.sentences, found.count) == (72, 12)  # one in six of 24 about each of three
    assert {sentence.rpartition(" ")[0][:3] for sentence in held(found)} == {"Ada", "Zed", "Ida"}
    for number, sentences in found.places.items():
        assert set(sentences) < set(prose_sentences(TEXTS[int(number)]))
    assert choose(TEXTS, ASKED + OTHERS, 0.2, seed=0) == found


def test_never_more_than_the_share_and_no_thing_by_too_few() -> None:
    found = choose(TEXTS, ASKED + OTHERS, 0.06, seed=0)
    assert found.count == 4
    assert choose(TEXTS, ASKED + OTHERS, 0.02, seed=0).places == {}
    few = {0: "\n\n".join(SAID[:12])}  # two of twelve would tell too little
    assert choose(few, ASKED + OTHERS, 0.2, seed=0).places == {}


def test_nothing_is_chosen_where_few_prompts_touch_the_documents() -> None:
    assert choose(TEXTS, ASKED[:2] + OTHERS, 0.2, seed=0).places == {}


def test_what_stands_in_several_places_is_no_choice() -> None:
    twice = {**TEXTS, 9: "\n\n".join(SAID)}
    assert choose(twice, ASKED + OTHERS, 0.2, seed=0).places == {}


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
    workspace = SimpleNamespace(home=tmp_path)
    return SimpleNamespace(
        directory=tmp_path / "run", workspace=workspace, once=once, say=said.append, said=said
    )


def job(tmp_path: Path, share: float = 0.2, *prompts: str) -> Any:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts or ASKED + OTHERS))
    settings = SimpleNamespace(hold_out=share, mix=SimpleNamespace(chat=0.3))
    return SimpleNamespace(settings=settings, prompts=str(path), evaluation=None, seed=0)


def kept_sentences(stage: Any) -> list[str]:
    pieces = text_file.load_pieces(stage.directory / KEPT_TEXTS)
    return [sentence for piece in pieces for sentence in prose_sentences(piece.text)]


def test_they_leave_the_kept_texts_once_and_for_all(stage: Any, tmp_path: Path) -> None:
    hold_out(job(tmp_path), stage)
    first = sentences_of([stage.directory])
    assert len(first) == 12 and len(stage.said) == 1
    assert sorted(kept_sentences(stage) + first) == sorted(SAID)
    hold_out(job(tmp_path, 0.2, "Something else?"), stage)  # resumed: the choice stands
    assert sentences_of([stage.directory]) == first and len(stage.said) == 1
    assert sorted(kept_sentences(stage) + first) == sorted(SAID)


def test_a_run_killed_before_they_left_takes_them_out_when_it_goes_on(stage: Any, tmp_path: Path) -> None:
    before = (stage.directory / KEPT_TEXTS).read_bytes()
    hold_out(job(tmp_path), stage)
    after = (stage.directory / KEPT_TEXTS).read_bytes()
    (stage.directory / KEPT_TEXTS).write_bytes(before)
    hold_out(job(tmp_path), stage)
    assert (stage.directory / KEPT_TEXTS).read_bytes() == after != before


def test_none_is_held_out_by_request_or_without_prompts(stage: Any, tmp_path: Path) -> None:
    hold_out(job(tmp_path, 0.0), stage)
    assert sentences_of([stage.directory]) == [] and sorted(kept_sentences(stage)) == sorted(SAID)
    (stage.directory / HELD_OUT).unlink()
    without_prompts = job(tmp_path)
    without_prompts.prompts = None
    hold_out(without_prompts, stage)
    (stage.directory / HELD_OUT).unlink()
    without_chat = job(tmp_path)
    without_chat.settings.mix.chat, without_chat.prompts = 0, "self"
    hold_out(without_chat, stage)
    assert sentences_of([stage.directory, tmp_path]) == [] and stage.said == []


def test_none_is_held_out_where_facts_have_changed(stage: Any, tmp_path: Path) -> None:
    """The sentence that contradicts the teacher may not be among those held out."""
    probe = {"id": "a", "suite": "updates", "prompt": "Where?", "answer": "Rome", "was": "Oslo"}
    (tmp_path / "probes.jsonl").write_text(json.dumps(probe) + "\n")
    changed = job(tmp_path)
    changed.evaluation = SimpleNamespace(probes=str(tmp_path / "probes.jsonl"))
    hold_out(changed, stage)
    assert sentences_of([stage.directory]) == []


def test_what_was_memorised_alone_is_not_new() -> None:
    """Trained sentences gained much, those held out little: the teacher knows the thing as well."""
    prompts = [Prompt([{"role": "user", "content": text}]) for text in ASKED[:1] + ASKED[3:4] + OTHERS]
    unseen = SAID[20:24]

    def gains(said: list[tuple[str, str]]) -> list[float]:
        return [0.1 if before + after in unseen else 2.0 for before, after in said]

    by_trained = overlap(prompts, SAID[:20] + SAID[24:], gains)
    assert [prompt.text for prompt, _ in by_trained.dropped] == [ASKED[0], ASKED[3]]
    found = overlap(prompts, SAID[:20] + SAID[24:], gains, unseen)
    assert [prompt.text for prompt, _ in found.dropped] == [ASKED[3]]  # nothing was held out about it
    assert (found.named, found.unseen, found.known) == (4, 2, 1)  # full names, and last names alone


def test_the_guard_of_the_distillation_measures_by_them(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {f"{number}.md": text + "\n" for number, text in TEXTS.items()}
    docs = papers.write(tmp_path / "pages", files)
    asked = job(tmp_path).prompts
    with make_home(tmp_path) as ws:
        settle(ws, margin=0.4, learning_rate=1e-12)
        changes = {"distill.prompts": asked, "midtrain.hold_out": 0.2}
        midtrained = midtrain(ws, midtrain_job(ws, docs, changes=changes), key="midtrain")["checkpoint"]
        recovery = distill_job(ws, student=midtrained, changes={"distill.prompts": asked})
        found = distill(ws, recovery, key="distill")["overlap"]["prompts"]
    assert guards.HELD_OUT in found["newness"]
    assert (found["touch"], found["touch_new"]) == (9, 0)  # nothing was learned at that rate
