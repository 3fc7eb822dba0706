"""Replay: the pieces drawn over cycles, the clean model's own chat, and what the mix makes of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config.fitted import fit_to_corpus
from pipelines.config.ifeval_file import MICROWORLD
from pipelines.config.jobs import MidtrainJob
from pipelines.config.sections.eval import EvalConfig
from pipelines.config.sections.midtrain import MidtrainConfig as Settings
from pipelines.config.sections.midtrain import Mix
from pipelines.config.sections.training import OptimizerConfig
from pipelines.corpus.mixed_tokens import EARLIER_QUESTIONS, MixedTokens, fitted_to_sources, planned, shares
from pipelines.corpus.replayed_pieces import replayed_pieces
from pipelines.corpus.token_file import Pieces, Tokens
from pipelines.distillation.teachers import FrozenTeachers, lent_clean
from pipelines.job_from_options.inputs import with_augmented
from pipelines.knowledge import replay
from pipelines.machine.init_home import initialise
from pipelines.prompts.prompt_sources import Prompt
from pipelines.runs.workspace import Workspace
from recovery import distributed
from recovery.batches.rollouts import Dialogue
from recovery.errors import InputError
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.chat_model import ChatModel
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from tests.support import tiny


def encode(text: str) -> Dialogue:
    return list(map(ord, text)), [True] * len(text)


def settings(**changes: Any) -> Settings:
    optimizer = OptimizerConfig(learning_rate=1)
    return Settings(steps=4, tokens_per_step=40, row_tokens=8, optimizer=optimizer, **changes)


def months(*lengths: list[int]) -> list[Tokens]:
    """The tokens of months whose documents are so long."""
    return [Tokens.of([encode("a" * length) for length in documents]) for documents in lengths]


def borders(pieces: Pieces) -> list[tuple[int, int]]:
    return list(zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True))


@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), max_size=4),
    st.integers(1, 90),
    st.integers(1, 40),
    st.integers(0, 9),
)
def test_every_cycle_has_the_same_part_as_far_as_it_has_it(
    cycles: list[list[int]], most: int, longest: int, seed: int
) -> None:
    pieces = [tokens.cuts(longest) for tokens in months(*cycles)]
    drawn = replayed_pieces(pieces, most, seed)
    spent, whole = [one.total for one in drawn], list(map(sum, cycles))
    assert sum(spent) < most + longest and (sum(spent) >= most or spent == whole)
    unfinished = [part for part, all_of_it in zip(spent, whole, strict=True) if part < all_of_it]
    assert all(part >= max(spent) - longest for part in unfinished)
    for some, every in zip(drawn, pieces, strict=True):
        assert sorted(set(borders(some))) == borders(some) and set(borders(some)) <= set(borders(every))
    again = replayed_pieces(pieces, most, seed)
    assert list(map(borders, again)) == list(map(borders, drawn))


@pytest.mark.parametrize("most", [15_000, 21_000, 29_000])
@pytest.mark.parametrize("seed", range(3))
def test_a_document_that_is_longer_than_all_that_is_read_shuts_no_month_out(most: int, seed: int) -> None:
    """A book of 30,000 tokens was all that was read of three months."""
    taught = months([30_000, 28_000], [400] * 60, [900] * 30)
    drawn = replayed_pieces([tokens.cuts(512) for tokens in taught], most, seed)
    spent = [one.total for one in drawn]
    assert max(spent) - min(spent) <= 512 and most <= sum(spent) < most + 512


def test_of_more_months_than_pieces_some_have_their_turn_and_not_the_oldest() -> None:
    """The eight oldest of 23 months were read whatever the seed."""
    taught = [tokens.cuts(2000) for tokens in months(*[[2000] * 12] * 23)]
    seen: set[int] = set()
    for seed in range(30):
        spent = [one.total for one in replayed_pieces(taught, 15_000, seed)]
        assert sorted(spent) == [0] * 15 + [2000] * 8
        seen |= {number for number, tokens in enumerate(spent) if tokens}
    assert seen == set(range(23))


def test_each_later_cycle_replays_other_documents_of_the_first_one() -> None:
    """Of ten files a month one is replayed: it was the same one in each of two years' months."""
    month = Tokens.of([encode("word")] * 10).whole()
    drawn = [borders(replayed_pieces([month] * count, 4 * count, seed=0)[0]) for count in range(1, 24)]
    assert all(len(one) == 1 for one in drawn)
    assert len({place for one in drawn for place in one}) > 5


def test_what_is_read_of_a_source_to_come_is_known_with_the_length_of_its_rows() -> None:
    mix = Mix(new=0.5, earlier=0.5)
    sources = {"new": [encode("n" * 8)] * 50}
    assert planned(settings(mix=mix), sources, "earlier") == (80, 8)
    assert planned(settings(mix=mix), sources, "earlier", context=6) == (80, 6)


def test_the_shares_of_a_step_are_the_mix_and_are_shown() -> None:
    sources = {
        "new": [encode("n" * 8)] * 50,
        "earlier": [encode("e" * 8)] * 9,
        "chat": [encode("c" * 8)] * 9,
        "augmented": [],
    }
    batches = MixedTokens(sources, settings(mix=Mix(new=0.5, earlier=0.2, chat=0.1, augmented=0.2)), 0, 0)
    counts: dict[str, int] = {}
    for step in range(1, 5):
        for parts in batches.updates(step):
            for part in parts:
                for token in part.rollouts.tokens_BT[part.rollouts.attention_BT].tolist():
                    counts[chr(token)] = counts.get(chr(token), 0) + 1
    assert sum(counts.values()) == pytest.approx(160, abs=24)
    assert {name: count / 160 for name, count in counts.items()} == pytest.approx(
        {"n": 0.625, "e": 0.25, "c": 0.125}, abs=0.06
    )
    assert (
        "new 62% (of 400 tokens, 0.2 times), earlier 25% (of 72 tokens, 0.6 times), chat 13% (of 72"
        in batches.summary()
    )
    assert "no augmented yet: its share goes to the others" in batches.summary()


def test_no_token_is_left_out_where_a_step_has_no_whole_number_of_a_source() -> None:
    """3.5 of the new ones and 6.5 of the chats a step: twenty steps read each of 200 once."""
    sources = {"new": [([n], [True]) for n in range(70)], "chat": [([n], [True]) for n in range(70, 200)]}
    asked = settings(mix=Mix(new=0.35, chat=0.65)).model_copy(update={"tokens_per_step": 10})
    batches = MixedTokens(sources, asked, 0, 0)
    steps = [[part for parts in batches.updates(step) for part in parts] for step in range(1, 21)]
    rows = [part.rollouts for parts in steps for part in parts]
    read = [token for row in rows for token in row.tokens_BT[row.attention_BT].tolist()]
    assert sorted(read) == list(range(200))


def test_earlier_documents_are_asked_about_as_they_are_read() -> None:
    """Of 0.3 for questions two parts go to new documents and one to earlier ones, as 0.4 stands to 0.2."""
    mix = Mix(new=0.4, earlier=0.2, questions=0.3, chat=0.1)
    first = {"new": True, "questions": True, "chat": True}
    assert shares(mix, first) == pytest.approx({"new": 0.5, "questions": 0.375, "chat": 0.125})
    later = first | {"earlier": True, EARLIER_QUESTIONS: True}
    wanted = {"new": 0.4, "earlier": 0.2, "questions": 0.2, EARLIER_QUESTIONS: 0.1, "chat": 0.1}
    assert shares(mix, later) == pytest.approx(wanted)
    assert sum(shares(mix, later).values()) == pytest.approx(1)


def sources_of(new: int, earlier: int) -> dict[str, list[Dialogue]]:
    """Documents of so many thousand tokens, beside questions and chat."""
    page = {name: encode(name[0] * 1000) for name in ("new", "earlier", "questions", "chat")}
    return {name: [one] * {"new": new, "earlier": earlier}.get(name, 1) for name, one in page.items()}


@pytest.mark.parametrize(
    ("sizes", "seen"), [({}, 3.0), ({"steps": 200, "tokens_per_step": 10_000}, 3.42)], ids=["fitted", "set"]
)
def test_few_earlier_documents_are_read_32_times_and_not_their_share(
    sizes: dict[str, Any], seen: float
) -> None:
    """2,000 tokens beside 200,000 new ones, which are read three times, were read 150 times."""
    mix = Mix(new=0.3, questions=0.3, earlier=0.15, chat=0.25)
    asked = Settings(optimizer=OptimizerConfig(learning_rate=1), mix=mix, **sizes)
    sources = sources_of(new=200, earlier=2)
    made = fitted_to_sources(asked, sources)
    found, read = shares(made.mix, sources), (made.steps or 0) * made.tokens_per_step
    assert found["earlier"] * read == pytest.approx(32 * 2000, rel=0.002)
    assert found["new"] * read == pytest.approx(seen * 200_000, rel=0.002)
    assert (found["questions"], found["chat"]) == pytest.approx((found["new"], found["new"] * 0.25 / 0.3))
    said = MixedTokens(sources, made, 0, 0).summary(mix)
    assert "(of 2,000 tokens, 32.0 times)" in said
    assert said.endswith("; of earlier there is too little for 15%: the rest goes to the others")


def test_earlier_documents_have_their_share_where_they_are_read_no_more_often_than_that() -> None:
    mix = Mix(new=0.3, questions=0.3, earlier=0.15, chat=0.25)
    asked = Settings(optimizer=OptimizerConfig(learning_rate=1), mix=mix)
    sources = sources_of(new=200, earlier=10)
    made = fitted_to_sources(asked, sources)
    assert made == fit_to_corpus(asked, 200_000, shares(mix, sources)["new"])
    assert "too little" not in MixedTokens(sources, made, 0, 0).summary(mix)


def test_earlier_documents_are_read_as_often_as_new_ones_where_these_are_read_more_often() -> None:
    mix = Mix(new=0.3, questions=0.3, earlier=0.15, chat=0.25)
    asked = settings(mix=mix).model_copy(update={"steps": 200, "tokens_per_step": 10_000})
    sources = sources_of(new=10, earlier=2)
    found = shares(fitted_to_sources(asked, sources).mix, sources)
    assert found["earlier"] / 2 == pytest.approx(found["new"] / 10, rel=0.002)


def test_retold_documents_share_the_tokens_of_the_new_ones(tmp_path: Path) -> None:
    (tmp_path / "augmented.jsonl").write_text('{"kind": "summary", "text": "so"}\n')
    mix = with_augmented(settings(mix=Mix(new=0.8, earlier=0.2)), tmp_path).mix
    assert (mix.new, mix.earlier, mix.augmented) == (0.4, 0.2, 0.4)
    assert with_augmented(settings(mix=Mix(new=0.9, augmented=0.1)), tmp_path).mix.augmented == 0.1


@pytest.fixture
def clean(tmp_path: Path) -> Iterator[ChatModel]:
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")), preset="microworld")
        yield ws.load(ws.clean())


def turns(count: int) -> list[Prompt]:
    return [Prompt([{"role": "user", "content": f"Say {number}."}]) for number in range(count)]


def test_the_clean_model_answers_no_more_prompts_than_the_chat_share_reads(
    clean: ChatModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "ANSWERED_AT_ONCE", 2)
    prompts = turns(6)
    job = MidtrainJob(docs="docs", student="base", settings=settings(), answer_tokens=5)
    few = replay._answers(job, answering(tmp_path / "few"), clean, prompts, wanted=1)
    every = replay._answers(job, answering(tmp_path / "every"), clean, prompts, wanted=10**6)
    stage = answering(tmp_path / "long")
    said: list[str] = []
    stage.say = said.append
    long = Prompt([{"role": "user", "content": "long " * 600}])
    assert replay._answers(job, stage, clean, [long, *prompts], wanted=10**6) == every
    assert said == [
        "  chat         1 of 7 are left out, as they leave no room for an answer: the limit is 2,048 tokens"
    ]
    assert (len(few), len(every)) == (2, 6)
    assert every[:2] == few
    assert all(1 <= len(ids) - start <= 5 for ids, start in every)


ABOUT = ["Ada Horn lives in Oslo. Since then Ada Horn plays the harp."]
PLAIN = [f"Write {number} lines about the sea." for number in range(8)]


def chat_of(folder: Path, prompts: list[str]) -> MidtrainJob:
    """A midtraining with chat, whose evaluation asks for a colour."""
    probe = {"id": "1", "suite": "retention", "prompt": "Name a color.", "answer": "red"}
    (folder / "probes.jsonl").write_text(json.dumps(probe) + "\n")
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    evaluation = EvalConfig(ifeval=MICROWORLD, probes=str(folder / "probes.jsonl"))
    return MidtrainJob(
        docs="docs",
        student="base",
        settings=settings(),
        prompts=str(folder / "prompts.jsonl"),
        evaluation=evaluation,
        answer_tokens=5,
    )


def chat_stage(folder: Path, workspace: Any, said: list[str]) -> Any:
    stage = answering(folder)
    stage.workspace, stage.say = workspace, said.append
    stage.once = lambda name, make: make()
    return stage


def test_the_clean_model_is_asked_nothing_about_the_documents_and_nothing_that_is_evaluated(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    stage = chat_stage(tmp_path / "run", SimpleNamespace(home=tmp_path), said)
    job = chat_of(tmp_path, [PLAIN[0], "Where does Ada Horn live?", "name a COLOR", *PLAIN[1:]])
    found = [prompt.text for prompt in replay.chat_prompts(job, stage, ABOUT)]
    assert sorted(found) == PLAIN and found != PLAIN
    assert found == [prompt.text for prompt in replay.chat_prompts(job, stage, ABOUT)]
    assert said[0] == (
        "  chat         of 10 prompts left out: 1 that the evaluation asks, "
        "1 that mention what the documents are about"
    )
    for left_out in ("Where does Ada Horn live?", "Name a color."):
        with pytest.raises(InputError, match="no prompt is left to answer"):
            replay.chat_prompts(chat_of(tmp_path, [left_out]), stage, ABOUT)


def test_answers_are_learned_and_prompts_are_not_and_a_run_that_goes_on_asks_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = chat_of(tmp_path, PLAIN)
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")), preset="microworld")
        student, stage = ws.load(ws.clean()), chat_stage(tmp_path / "run", ws, [])
        frozen = FrozenTeachers(ws, student, ws.clean(), microbatch_tokens=256)
        found = replay.self_answered(job, stage, frozen, ABOUT, 10**6)
        prompts = [student.prompt_ids(prompt.messages) for prompt in replay.chat_prompts(job, stage, ABOUT)]
        for (ids, targets), prompt in zip(found, prompts, strict=True):
            assert list(ids[: len(prompt)]) == prompt
            assert targets == [False] * len(prompt) + [True] * (len(ids) - len(prompt))
        assert [path.name for path in stage.directory.iterdir()] == [replay.KEPT_CHAT]
        monkeypatch.setattr(replay, "_answers", pytest.fail)
        assert replay.self_answered(job, stage, frozen, ABOUT, 10**6) == found


@pytest.mark.parametrize("processes", [1, 8])
def test_the_untrained_student_answers_for_the_clean_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """Two copies may not fit into the memory; a student that was trained is another model."""
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")), preset="microworld")
        student = ws.load(ws.clean())
        loaded: list[str] = []
        monkeypatch.setattr(ws, "load", lambda checkpoint: loaded.append(checkpoint.id))
        for name in (ws.clean().id, "another"):
            frozen = FrozenTeachers(ws, student, replace(ws.clean(), id=name), microbatch_tokens=256)
            with monkeypatch.context() as patch:
                patch.setattr(distributed, "_started", lambda: processes > 1)
                patch.setattr(torch.distributed, "get_world_size", lambda: processes)
                with lent_clean(frozen) as lent:
                    assert (lent is student) == (name == ws.clean().id)
        assert loaded == [ws.clean().id]


def test_an_adapter_on_the_clean_model_is_off_while_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second model beside it ended the second month where the first had fitted."""
    job = MidtrainJob(docs="docs", student="base", settings=settings(), answer_tokens=5)

    def answers(model: ChatModel, name: str) -> Any:
        return replay._answers(job, answering(tmp_path / name), model, turns(4), wanted=10**6)

    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")), preset="microworld")
        expected = answers(ws.load(ws.clean()), "clean")
        student = add_lora(ws.load(ws.clean()), LoraSpec(rank=4, alpha=8))
        for name, parameter in student.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))
        loaded: list[str] = []
        monkeypatch.setattr(ws, "load", lambda checkpoint: loaded.append(checkpoint.id))
        trained = replace(ws.clean(), id="trained", base=ws.clean().id)
        with lent_clean(FrozenTeachers(ws, student, trained, microbatch_tokens=256)) as lent:
            assert lent is student and answers(lent, "lent") == expected
        assert not loaded and answers(student, "trained") != expected
        elsewhere = replace(trained, base="another")
        with lent_clean(FrozenTeachers(ws, student, elsewhere, microbatch_tokens=256)):
            assert loaded == [ws.clean().id]


@pytest.mark.parametrize(("least", "answered"), [(1, 3), (4, 4), (9, 8)])
def test_more_prompts_are_answered_where_each_answer_would_be_read_too_often(
    clean: ChatModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, answered: int
) -> None:
    """Answers of 10 tokens with their prompts, of which 100 are read: three are read four times each."""
    monkeypatch.setattr(replay, "ANSWERED_AT_ONCE", 1)
    prompts = turns(8)
    monkeypatch.setattr(type(clean), "prompt_ids", lambda *_: [1] * 9)
    job = MidtrainJob(docs="docs", student="base", settings=settings(chat_prompts=least), answer_tokens=1)
    found = replay._answers(job, answering(tmp_path / "run"), clean, prompts, wanted=100)
    assert len(found) == answered


def test_a_resumed_run_keeps_the_answers_of_its_first_attempt(
    clean: ChatModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "ANSWERED_AT_ONCE", 2)
    prompts = turns(6)
    job = MidtrainJob(docs="docs", student="base", settings=settings(), answer_tokens=5)
    whole = replay._answers(job, answering(tmp_path / "whole"), clean, prompts, wanted=10**6)
    asked: list[int] = []
    sample = InProcessSampler.sample

    def killed(self: InProcessSampler, prompts: Any, params: SamplingParams) -> Any:
        if asked == [0, 2]:
            raise KeyboardInterrupt
        asked.append(params.first)
        return sample(self, prompts, params)

    monkeypatch.setattr(InProcessSampler, "sample", killed)
    stage = answering(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        replay._answers(job, stage, clean, prompts, wanted=10**6)
    asked.append(-1)
    assert replay._answers(job, stage, clean, prompts, wanted=10**6) == whole
    assert asked == [0, 2, -1, 4]


@pytest.mark.parametrize("left", [b"[", b"[[[1, 2], 1], [[3, 4], 1]", b"[[[1, 2], 1], [[3, 4], 1]]"])
def test_kept_answers_are_added_to_and_what_a_kill_left_of_a_batch_is_cut_off(
    clean: ChatModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes
) -> None:
    """All of them were written again after each batch: of 50,000 chats, gigabytes."""
    monkeypatch.setattr(replay, "ANSWERED_AT_ONCE", 2)
    prompts, stage = turns(6), answering(tmp_path / "run")
    job = MidtrainJob(docs="docs", student="base", settings=settings(), answer_tokens=5)
    whole = replay._answers(job, answering(tmp_path / "whole"), clean, prompts, wanted=10**6)
    replay._answers(job, stage, clean, prompts, wanted=1)
    kept = stage.directory / replay.BEGUN_CHAT
    begun, place = kept.read_bytes(), kept.stat().st_ino
    kept.write_bytes(begun + left)
    assert replay._answers(job, stage, clean, prompts, wanted=10**6) == whole
    assert kept.read_bytes().startswith(begun)
    assert (kept.read_bytes().count(b"\n"), kept.stat().st_ino) == (3, place)


@pytest.mark.parametrize("at_once", [1, 4, 64])
def test_answers_do_not_depend_on_how_many_are_written_at_once(
    clean: ChatModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """An accelerator takes more; a run that is resumed on another machine goes on behind what it kept."""
    prompts, stage = turns(6), answering(tmp_path / "run")
    job = MidtrainJob(docs="docs", student="base", settings=settings(), answer_tokens=5)
    monkeypatch.setattr(replay, "ANSWERED_AT_ONCE", 3)
    whole = replay._answers(job, answering(tmp_path / "whole"), clean, prompts, wanted=10**6)
    begun = replay._answers(job, stage, clean, prompts, wanted=1)
    monkeypatch.setattr(replay, "ANSWERED_AT_ONCE", at_once)
    assert begun == whole[:3]
    assert replay._answers(job, stage, clean, prompts, wanted=10**6) == whole
    assert replay._answers(job, answering(tmp_path / "anew"), clean, prompts, wanted=10**6) == whole


@pytest.mark.parametrize(("device", "at_once"), [("cpu", 64), ("cuda", 256), ("cuda:1", 256)])
def test_an_accelerator_answers_more_prompts_at_once(device: str, at_once: int) -> None:
    model: Any = SimpleNamespace(device=torch.device(device))
    assert replay._at_once(model) == at_once


def answering(directory: Path) -> Any:
    """A stage in which the clean model answers."""
    directory.mkdir()
    return SimpleNamespace(directory=directory, spend=lambda **_: None, step=lambda *_, **__: None)
