"""Self-written prompts: what the filter keeps, where a turn begins and ends, the file in the home."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi

from pipelines.job_from_options.train import distill_job
from pipelines.machine.init_home import initialise
from pipelines.prompts import prompt_sources
from pipelines.prompts.prompt_sources import HubAway, Prompt, read_prompts
from pipelines.runs.workspace import Workspace
from pipelines.writing import self_prompts
from pipelines.writing.self_prompts import flaw, usable
from pipelines.writing.text_cache import Cache
from recovery.errors import InputError
from tests.support import tiny
from tests.support.self_written import question, writes_questions

QUESTION = "Can you explain how tides depend on the moon and why there are two each day?"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (QUESTION, None),
        ("", "length"),
        ("Hello there", "length"),
        ("word " * 200, "length"),
        ("tell me a story " * 8, "repetition"),
        ("12 + 47 = 59 ; 8 * (3 - 1) / 2 = 8 ; x", "few letters"),
        ("Können Sie mir bitte erklären, wie Ebbe und Flut entstehen und warum?", "language"),
    ],
)
def test_each_flaw_has_its_reason(text: str, reason: str | None) -> None:
    assert flaw(text) == reason


def test_duplicates_count_whatever_their_case_and_punctuation() -> None:
    other = "What is a good way to learn the guitar at home without a teacher?"
    found = usable([QUESTION, QUESTION.upper(), f"  {QUESTION}\n", other], kept=[other.lower()])
    assert found.kept == [QUESTION]
    assert found.dropped == {"duplicate": 3}


def test_a_turn_lies_between_the_template_s_user_header_and_its_end() -> None:
    chat = tiny.chat_model()
    before, after = self_prompts.user_turn(chat)
    text = "Tell me more."
    assert [*before, *chat.text_ids(text), *after] == chat.prompt_ids([{"role": "user", "content": text}])


def test_a_sampled_turn_ends_at_a_control_token_or_at_the_template_s_text() -> None:
    chat = tiny.chat_model()
    content, (_, after) = chat.text_ids("Why is the sky blue?"), self_prompts.user_turn(chat)
    start = chat.tokenizer.convert_tokens_to_ids(tiny.IM_START)
    assert self_prompts._content([*content, start, 65], after, chat) == content
    marker = chat.text_ids(" [/INST]")
    assert self_prompts._content([*content, *marker, *chat.text_ids(" yes")], marker, chat) == content
    assert self_prompts._content(content, after, chat) == content


def test_every_second_turn_begins_with_the_next_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_prompts, "OPENINGS", ("Who", "How many"))
    assert [self_prompts.opening(number) for number in range(6)] == ["", "Who", "", "How many", "", "Who"]
    chat = tiny.chat_model()
    monkeypatch.setattr(self_prompts, "_content", lambda ids, *_: ids[:-1])  # as if each were finished
    turns = self_prompts.sampled_turns(chat, 4, seed=4)
    assert turns[1].startswith("Who") and turns[3].startswith("How many")
    assert turns[2:] == self_prompts.sampled_turns(chat, 2, seed=4, first=2)


def test_sampling_repeats_with_its_seed_and_goes_on_where_a_batch_ended() -> None:
    chat = tiny.chat_model()
    both = self_prompts.sampled_turns(chat, 6, seed=4)
    assert both == self_prompts.sampled_turns(chat, 6, seed=4)
    assert both[3:] == self_prompts.sampled_turns(chat, 3, seed=4, first=3)
    assert len(set(both)) > 1


def test_writing_stops_at_the_count_or_at_the_most_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []

    def turns(_: object, count: int, seed: int, first: int, on_tokens: object) -> list[str]:
        batches.append(first)
        words = ("river", "bridge", "garden", "market", "winter", "window", "ticket", "village")
        return [f"Please tell me a story about the {words[first // count]} near our old house.", ""]

    monkeypatch.setattr(self_prompts, "sampled_turns", turns)
    monkeypatch.setattr(self_prompts, "MOST_BATCHES", 8)
    monkeypatch.setattr(self_prompts, "BATCH", 2)
    chat = tiny.chat_model()
    assert len(self_prompts.write(chat, 3, 0, Cache(tmp_path / "few.jsonl")).kept) == 3
    assert len(batches) == 3
    found = self_prompts.write(chat, 32, 0, Cache(tmp_path / "many.jsonl"))
    assert (len(found.kept), found.dropped["length"]) == (8, 8)
    batches.clear()
    found = self_prompts.write(chat, 200, 0, Cache(tmp_path / "hopeless.jsonl"))
    assert len(found.kept) == len(batches) == self_prompts.JUDGED_BATCHES


def test_turns_are_mixed_with_instructions_that_have_their_types(tmp_path: Path) -> None:
    rows = self_prompts.mixed_rows([QUESTION], 5, seed=1)
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    prompts = read_prompts(str(path))
    assert len(prompts) == 6
    assert [prompt.text for prompt in prompts if prompt.fields.get("kind") == "self"] == [QUESTION]
    assert sum(bool(prompt.fields.get("instruction_id_list")) for prompt in prompts) == 5


def test_a_distillation_names_the_file_that_the_clean_model_wrote_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes_questions(monkeypatch)
    monkeypatch.setattr(self_prompts, "COUNT", 3)
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")), preset="microworld")
        job = distill_job(ws, "base", "base", changes={"distill.prompts": "self"})
        written = Path(job.prompts).read_bytes()
        assert len(read_prompts(job.prompts)) == 9
        monkeypatch.setattr(self_prompts, "sampled_turns", None)  # a second use samples nothing
        assert distill_job(ws, "base", "base", changes={"distill.prompts": "self"}).prompts == job.prompts
        assert Path(job.prompts).read_bytes() == written
        assert self_prompts.resolved(ws, "other.jsonl", 0) == "other.jsonl"


def test_a_preset_s_data_set_gives_way_where_no_hub_is_in_reach_and_a_typed_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(source: str, *_: object) -> list[Prompt]:
        raise HubAway(f"{source}: away")

    monkeypatch.setattr(self_prompts, "read_prompts", away)
    writes_questions(monkeypatch)
    hub = "hub:someone/chats:train:messages"
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")), preset="microworld")
        found = self_prompts.resolved(ws, hub, 0, asked=10, typed=False)
        assert Path(found).name.startswith("self-") and Path(found).is_file()
        rows = read_prompts(found)
        assert sum(bool(row.fields.get("instruction_id_list")) for row in rows) == self_prompts.FEWEST
        with pytest.raises(HubAway, match="someone/chats"):
            self_prompts.resolved(ws, hub, 0)


def test_a_data_set_in_reach_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_prompts, "read_prompts", lambda *_: [])
    with Workspace.open(tmp_path / "home") as ws:
        assert self_prompts.resolved(ws, "hub:a/b:train:text", 0, typed=False) == "hub:a/b:train:text"


@pytest.mark.parametrize("typed", [True, False])
def test_a_data_set_is_said_to_be_read_once_the_hub_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: bool
) -> None:
    said: list[str] = []
    source = "hub:a/b:train:text"
    monkeypatch.setattr(HfApi, "repo_info", lambda *_, **__: SimpleNamespace(sha="abcdef0123456789"))
    monkeypatch.setattr(
        prompt_sources, "_stream", lambda *_: iter([Prompt([{"role": "user", "content": "Hi"}])])
    )
    with Workspace.open(tmp_path / "home") as ws:
        monkeypatch.setattr(ws.progress, "say", said.append)
        for _ in range(2):
            assert self_prompts.resolved(ws, source, 0, typed=typed) == source
            assert len(said) == 1 and f"{source}: every row is read from the hub" in said[0]
        self_prompts.resolved(ws, source, 1, typed=typed)
        assert len(said) == 2


def test_a_data_set_out_of_reach_is_not_said_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    hub = "hub:a/b:train:text"
    writes_questions(monkeypatch)
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")), preset="microworld")
        monkeypatch.setattr(ws.progress, "say", said.append)
        with pytest.raises(HubAway):
            self_prompts.resolved(ws, hub, 0)
        assert said == []
        self_prompts.resolved(ws, hub, 0, asked=10, typed=False)
        assert f"{hub}: no hub in reach, so the clean model writes its own" in said[0]
        assert said[1].startswith("  prompts      64 user turns written by") and len(said) == 2


# An interruption, and too few usable turns ------------------------------------------------------------------


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[tuple[Workspace, Workspace]]:
    """Two homes of one model."""
    model = str(tiny.save(tmp_path / "model"))
    with Workspace.open(tmp_path / "one") as one, Workspace.open(tmp_path / "other") as other:
        for ws in (one, other):
            initialise(ws, model=model, preset="microworld")
        yield one, other


def kept_after(monkeypatch: pytest.MonkeyPatch, ws: Workspace, batches: int) -> Path:
    """Return the turns that are kept of a writing that is interrupted after so many batches."""
    monkeypatch.setattr(self_prompts, "BATCH", 16)
    writes_questions(monkeypatch, batches=batches)
    with pytest.raises(KeyboardInterrupt) as cut_off:
        self_prompts.resolved(ws, "self", 0, asked=10)
    assert cut_off.value.__notes__ == [self_prompts.GOES_ON]
    [turns] = (ws.home / "prompts").iterdir()
    return turns


def test_an_interrupted_writing_goes_on_with_the_batches_that_are_kept(
    homes: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted, whole = homes
    with kept_after(monkeypatch, interrupted, batches=2).open("ab") as file:
        file.write(b'{"key": "torn by a ki')
    begun = writes_questions(monkeypatch)
    resumed = Path(self_prompts.resolved(interrupted, "self", 0, asked=10))
    assert begun == [32, 48]
    begun.clear()
    assert resumed.read_bytes() == Path(self_prompts.resolved(whole, "self", 0, asked=10)).read_bytes()
    assert begun == [0, 16, 32, 48]
    begun.clear()
    self_prompts.resolved(whole, "self", 0, asked=120)  # more of the same turns
    assert begun == [64]
    self_prompts.resolved(whole, "self", 1, asked=10)
    assert begun == [64, 0, 16, 32, 48]


def test_a_batch_that_is_not_whole_is_sampled_again_as_a_whole(
    homes: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    ws, _ = homes
    turns = kept_after(monkeypatch, ws, batches=1)
    turns.write_bytes(b"".join(turns.read_bytes().splitlines(keepends=True)[:-1]))
    begun = writes_questions(monkeypatch)
    assert len(read_prompts(self_prompts.resolved(ws, "self", 0, asked=10))) == 96
    assert begun == [0, 16, 32, 48]


def test_too_few_usable_turns_are_refused_and_no_file_of_prompts_is_left(
    homes: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    ws, _ = homes
    monkeypatch.setattr(self_prompts, "BATCH", 8)
    monkeypatch.setattr(self_prompts, "MOST_BATCHES", 3)
    writes_questions(monkeypatch)
    languages = dict.fromkeys(map(question, range(15)), "en")
    monkeypatch.setattr(self_prompts, "detected_language", lambda text: languages.get(text, "de"))
    refused = (
        "--prompts self: of 24 user turns of the clean model 15 are usable, and 64 are wanted "
        r"\(the commonest flaw: language, 9\): give --prompts FILE"
    )
    for _ in range(2):
        with pytest.raises(InputError, match=refused):
            self_prompts.resolved(ws, "self", 0, asked=10)
        assert not list((ws.home / "prompts").glob("self-*-96.jsonl"))
    languages[question(15)] = "en"  # a quarter of what is wanted
    assert len(read_prompts(self_prompts.resolved(ws, "self", 0, asked=10))) == 16 + self_prompts.FEWEST


def test_the_shipped_model_writes_usable_turns(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws)
        turns = self_prompts.sampled_turns(ws.load(ws.clean()), 32, seed=0)
    assert len(usable(turns).kept) > 2 * self_prompts.LEAST_SHARE * len(turns)
