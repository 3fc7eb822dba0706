"""Documents read again beside the answers: their share, order and loss, and that a kill changes nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from db.reads import curves, queries
from pipelines.config.jobs import DistillJob, MidtrainJob
from pipelines.config.overrides import override
from pipelines.corpus import mixed_tokens, text_file
from pipelines.corpus.token_file import Dialogue, Tokens
from pipelines.distill import distill
from pipelines.knowledge.rehearsal import METRIC, NEWEST_SHARE, Rehearsal, Taught, tokens_per_step
from pipelines.machine.init_home import initialise
from pipelines.midtrain import midtrain
from pipelines.resume import resume
from pipelines.runs import kept_texts, training_run
from pipelines.runs.training_run import any_of
from pipelines.runs.workspace import Workspace
from pipelines.writing import gap_questions
from recovery import distributed
from recovery.batches.rollouts import Rollouts
from recovery.errors import InputError
from recovery.forward.isolation import Sharing
from recovery.methods.table import get, with_dials
from recovery.models.chat_model import ChatModel
from recovery.objective.objective import Loss, Objective
from recovery.training.token_loss import TokenLoss
from recovery.training.updater import Microbatch, RunningSums
from tests.support import stages, tiny
from tests.support.stages import PRESET
from tests.support.token_sequences import sequences

DOCUMENTS = 60
SETTINGS = override(
    PRESET.distill,
    {
        "prompts_per_step": 4,
        "max_new_tokens": 20,
        "microbatch_tokens": 64,
        "rehearsal": 0.25,
    },
)
TWICE = with_dials("opd", {"epochs": 2})


def documents(length: int) -> Tokens:
    """Each repeats a number of its own."""
    ids = np.repeat(np.arange(DOCUMENTS, dtype=np.uint32), length)
    return Tokens(ids, np.arange(1, DOCUMENTS + 1, dtype=np.int64) * length)


def learned(name: str, share: float, length: int, first: int = 0, asked: Sequence[Dialogue] = ()) -> Taught:
    read = documents(length)
    return Taught(name, share, Tokens(read.ids + np.uint32(first), read.ends), asked)


def rehearsal(length: int = 5, seed: int = 3) -> Rehearsal:
    return Rehearsal(
        [learned("newest", 1.0, length)],
        SETTINGS,
        tiny.chat_model(),
        tokens_per_step(SETTINGS, TWICE),
        seed=seed,
    )


def answers(counts: list[int]) -> list[Microbatch]:
    rows = [([1] * (count + 1), [False] + [True] * count) for count in counts]
    return [Microbatch(Rollouts.from_dialogues([row], pad_id=258)) for row in rows]


def read(microbatches: list[Microbatch]) -> list[int]:
    """The documents' numbers."""
    rows = [part.rollouts for part in microbatches]
    return [int(number) for part in rows for number in part.tokens_BT[part.attention_BT].unique()]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=8), min_size=1, max_size=6))
def test_documents_are_their_share_of_the_tokens_to_within_one(updates: list[list[int]]) -> None:
    found = rehearsal(length=5)
    found.begin(2)
    parts = [found.beside(answers(update)) for update in updates]
    tokens = sum(int(part.rollouts.attention_BT.sum()) for update in parts for part in update)
    assert abs(tokens - sum(map(sum, updates)) / 3) <= 5
    seen = [number for update in parts for number in read(update)]
    assert len(set(seen)) == len(seen)  # none again before all were read


def test_beside_continuations_a_step_reads_as_much_as_they_teach() -> None:
    """Of opd-continue the teacher's continuation is learned, however long the student's answer was."""
    asked = override(SETTINGS, {"samples_per_prompt": 1})
    lengths = {n: with_dials("opd-continue", {"continuation": str(n)}) for n in (asked.max_new_tokens, 256)}
    least, most = (tokens_per_step(asked, method) for method in lengths.values())
    assert most == pytest.approx(least * 256 / asked.max_new_tokens, abs=256 / asked.max_new_tokens)


def test_beside_long_answers_of_pairs_no_step_reads_the_documents_of_the_one_before() -> None:
    """No limit of new tokens cuts them: a step read 66 tokens, and the next one began 27 behind its start."""
    asked = override(SETTINGS, {"samples_per_prompt": 1})
    sft = get("sft")
    assert (tokens_per_step(asked, sft), tokens_per_step(asked, sft, [9, 50, 50, 50, 50])) == (27, 67)
    taught = [learned("newest", 1.0, 5)]
    found = Rehearsal(taught, asked, tiny.chat_model(), tokens_per_step(asked, sft, [50] * 8), seed=3)
    seen = []
    for step in (1, 2):
        found.begin(step)
        seen += read(found.beside(answers([50] * 4)))
    assert len(seen) == len(set(seen)) == 27


def test_each_of_several_processes_rehearses_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside 360 tokens of answers 120 are read, in two microbatches by one process."""
    monkeypatch.setattr(mixed_tokens, "world", lambda: 4)
    found = rehearsal(length=5)
    found.begin(1)
    parts = found.beside(answers([20] * 18))
    assert len(parts) >= 4
    assert sum(int(part.rollouts.attention_BT.sum()) for part in parts) == 120


def test_in_shards_documents_end_at_the_boundary_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "row_sharing", lambda model: Sharing(boundary=8))
    taught = [learned("newest", 1.0, 16)]
    lengths = []
    for sharded in (False, True):
        found = Rehearsal(
            taught, SETTINGS, tiny.chat_model(), tokens_per_step(SETTINGS, TWICE), seed=3, sharded=sharded
        )
        found.begin(1)
        lengths.append(max(part.rollouts.tokens_BT.shape[1] for part in found.beside(answers([20] * 18))))
    assert lengths[0] > lengths[1] == 8


ASKED = 100  # the lowest id of a question


def questions(length: int) -> list[Dialogue]:
    """Each repeats a number of its own, the answer being its second half."""
    half = length // 2
    return [([ASKED + number] * length, [False] * half + [True] * (length - half)) for number in range(40)]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=8), min_size=1, max_size=5))
def test_questions_are_their_share_of_what_is_rehearsed(updates: list[list[int]]) -> None:
    asked = override(SETTINGS, {"rehearsal_questions": 0.5})
    both = learned("newest", 1.0, 5, asked=questions(6))
    found = Rehearsal([both], asked, tiny.chat_model(), tokens_per_step(asked, TWICE), seed=3)
    found.begin(1)
    counts = {"documents": 0, "questions": 0}
    for update in updates:
        for part in found.beside(answers(update)):
            ids = part.rollouts.tokens_BT[part.rollouts.attention_BT]
            counts["questions"] += int((ids >= ASKED).sum())
            counts["documents"] += int((ids < ASKED).sum())
    half = sum(map(sum, updates)) / 3 / 2
    assert abs(counts["documents"] - half) <= 6 and abs(counts["questions"] - half) <= 7
    alone = Rehearsal(
        [learned("newest", 1.0, 5)], asked, tiny.chat_model(), tokens_per_step(asked, TWICE), seed=3
    )
    alone.begin(1)
    assert sum(len(read([part])) for part in alone.beside(answers([20, 16]))) > 0
    assert len(alone.streams) == 1


def test_a_question_longer_than_an_answer_is_rehearsed_whole() -> None:
    """As of a ten-word sentence in a script of which the tokenizer makes a token of each letter."""
    both = learned("newest", 1.0, 5, asked=questions(30))
    asked = override(SETTINGS, {"rehearsal_questions": 0.5})
    found = Rehearsal([both], asked, tiny.chat_model(), tokens_per_step(asked, TWICE), seed=3)
    found.begin(1)
    rows = [part.rollouts for part in found.beside(answers([20] * 16))]
    trained = Counter(number for part in rows for number in part.tokens_N.tolist() if number >= ASKED)
    assert trained and set(trained.values()) == {15}  # its second half, behind the first


EARLIER = 60  # the lowest id of an earlier document


@settings(max_examples=10, deadline=None)
@given(st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=8), min_size=1, max_size=5))
def test_the_newest_documents_have_their_share_however_many_are_earlier(updates: list[list[int]]) -> None:
    parts = [learned("newest", 0.75, 5), learned("earlier", 0.25, 5, first=EARLIER)]
    found = Rehearsal(parts, SETTINGS, tiny.chat_model(), tokens_per_step(SETTINGS, TWICE), seed=3)
    found.begin(1)
    newest = earlier = 0
    for update in updates:
        for rows in found.beside(answers(update)):
            ids = rows.rollouts.tokens_BT[rows.rollouts.attention_BT]
            newest += int((ids < EARLIER).sum())
            earlier += int((ids >= EARLIER).sum())
    whole = sum(map(sum, updates)) / 3
    assert abs(newest - 0.75 * whole) <= 6 and abs(earlier - 0.25 * whole) <= 6


def test_what_is_read_depends_on_seed_and_step_alone() -> None:
    one, other = rehearsal(), rehearsal()
    one.begin(1)
    one.beside(answers([20, 20]))
    for found in (one, other):
        found.begin(4)
    assert read(one.beside(answers([20, 16]))) == read(other.beside(answers([20, 16])))
    another = rehearsal(seed=4)
    another.begin(4)
    other.begin(4)
    assert read(another.beside(answers([20, 16]))) != read(other.beside(answers([20, 16])))


@pytest.mark.parametrize("name", ["opd", "opd-reward", "rft", "rl"])
def test_the_next_step_reads_on_where_this_one_ended(name: str) -> None:
    method = get(name)
    small = override(SETTINGS, {"prompts_per_step": 1, "samples_per_prompt": 1, "max_new_tokens": 12})
    found = Rehearsal(
        [learned("newest", 1.0, 4)], small, tiny.chat_model(), tokens_per_step(small, method), seed=3
    )
    seen: list[int] = []
    for step in (1, 2):
        found.begin(step)
        for _ in range(method.epochs):
            seen += read(found.beside(answers([12] * method.group_size)))
    assert len(seen) == len(set(seen)) == 2 * method.epochs * method.group_size


def test_an_update_weighs_answers_and_documents_alike_by_token() -> None:
    student, method = tiny.chat_model(), get("sft")
    found = rehearsal()
    found.begin(1)
    mixed = [*answers([9, 6]), *found.beside(answers([9, 6]))]
    loss_of = TokenLoss(Objective(method, student.stop_ids))
    parts = [loss_of(student.model, part) for part in mixed]
    by_hand, count = 0.0, 0
    for part in mixed:
        for row, mask in zip(part.rollouts.tokens_BT, part.rollouts.mask_BT, strict=True):
            pieces = _pieces(row, mask, part.rollouts)
            for piece in pieces:
                with torch.no_grad():
                    logits = student.model(piece[None]).logits[0, :-1]
                by_hand += float(torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum"))
                count += len(piece) - 1
    assert sum(part.tokens for part in parts) == count
    assert sum(float(part.value.detach()) for part in parts) == pytest.approx(by_hand, rel=1e-4)
    assert set(parts[-1].metrics) == {METRIC} and parts[-1].signal_N is None
    assert [part.apart for part in parts] == [part.objective is not None for part in mixed]


def _pieces(row: torch.Tensor, mask: torch.Tensor, rollouts: Rollouts) -> list[torch.Tensor]:
    """The sequences of a row: documents are told apart by their numbers, an answer is one."""
    if rollouts.positions_BT is None:
        return [row]
    return [row[row == number] for number in row[mask].unique()]


def test_a_metric_is_the_mean_over_the_tokens_that_have_it() -> None:
    both = [Loss(torch.tensor(6.0), 3.0, {"reverse_kl": 6.0}), Loss(torch.tensor(8.0), 1.0, {METRIC: 8.0})]
    sums = RunningSums(updates=1)
    for loss in both:
        sums = sums.plus(RunningSums.of(loss))
    means = sums.means()
    assert means["reverse_kl"] == 2.0 and means[METRIC] == 8.0
    assert means["loss"] == 3.5 and means["tokens"] == 4.0


def test_what_is_rehearsed_is_no_part_of_the_reported_loss() -> None:
    answers, rehearsed = Loss(torch.tensor(6.0), 3.0), Loss(torch.tensor(8.0), 1.0, {METRIC: 8.0}, apart=True)
    sums = RunningSums.of(answers).plus(RunningSums.of(rehearsed))
    assert sums.loss == 14.0  # what is optimised, and has to be finite
    means = sums.means()
    assert (means["loss"], means[METRIC], means["tokens"]) == (2.0, 8.0, 4.0)
    assert RunningSums.of(rehearsed).means()["loss"] == 0.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Workspace]:
    stages.write_documents(tmp_path, 30)
    stages.write_prompts(tmp_path, 20)
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")))
        yield ws


def taught(home: Workspace, folder: Path, student: str = "base") -> str:
    settings = override(PRESET.midtrain, {"steps": 2, "tokens_per_step": 64, "row_tokens": 64})
    job = MidtrainJob(docs=str(folder / "docs"), student=student, settings=settings)
    return str(midtrain(home, job)["checkpoint"])


def job(folder: Path, student: str, **changes: Any) -> DistillJob:
    chosen = override(SETTINGS, {"steps": 4, "save_every": 2, "preflight": False, **changes})
    return stages.distillation(folder, student, chosen)


@pytest.mark.slow
@pytest.mark.parametrize("questions", [0.0, 0.5])
def test_a_kill_changes_nothing(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, questions: float
) -> None:
    asked = job(tmp_path, taught(home, tmp_path), rehearsal_questions=questions, max_new_tokens=160)
    whole = distill(home, asked, key="whole")
    run = queries.runs(home.tracker.db, kind="distill")[0]["id"]
    assert len(curves.metric_series(home.tracker.db, run, METRIC)) == 4
    killed: list[int] = []

    def kill_once(*checks: Any) -> Any:
        def ask(step: int, metrics: dict[str, float]) -> str | None:
            if step == 3 and not killed:
                killed.append(step)
                raise KeyboardInterrupt
            return any_of(*checks)(step, metrics)

        return ask

    monkeypatch.setattr(training_run, "any_of", kill_once)
    with pytest.raises(KeyboardInterrupt):
        distill(home, asked, key="killed")
    assert distill(home, asked, key="killed")["checkpoint"] == whole["checkpoint"]
    for other in ({"rehearsal": 0.0}, {"rehearsal_questions": 0.25}):
        changed = job(tmp_path, asked.student, **{"max_new_tokens": 160, **other})
        assert distill(home, changed)["checkpoint"] != whole["checkpoint"]


def test_rehearsed_questions_are_made_of_what_was_taught_and_fit_into_a_row(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = taught(home, tmp_path)
    made: list[list[Dialogue]] = []
    chats = gap_questions.chats

    def seen(texts: list[str], *given: Any, **named: Any) -> list[Dialogue]:
        assert set(texts) == {path.read_text() for path in (tmp_path / "docs").iterdir()}
        made.append(list(chats(texts, *given, **named)))
        return made[-1]

    monkeypatch.setattr(gap_questions, "chats", seen)
    said: list[str] = []
    monkeypatch.setattr(home.progress, "say", said.append)
    asked = job(tmp_path, student, steps=1, rehearsal_questions=0.5, max_new_tokens=160)
    distill(home, asked)
    assert any(line.endswith("50% of them asked in chat") for line in said)
    (chosen,) = made
    kept = Rehearsal(
        [learned("newest", 1.0, 5, asked=chosen)],
        asked.settings,
        tiny.chat_model(),
        tokens_per_step(asked.settings, TWICE),
        0,
    )
    assert len(kept.streams) == 2 and chosen
    said.clear()
    distill(home, job(tmp_path, student, steps=1, rehearsal_questions=0.5))  # none fits into 20 tokens
    assert any(line.endswith("50% of them asked in chat") for line in said)
    assert not any("left out, as they are longer" in line for line in said)
    said.clear()
    distill(home, job(tmp_path, student, steps=1, rehearsal_questions=0.5, longest_row=75))
    assert not any("asked in chat" in line for line in said)
    why = "are left out, as they are longer than what is read, 75 tokens"
    assert any(re.fullmatch(rf"  rehearsal    (\d+) of \1 questions {why}", line) for line in said)


def test_no_cycle_tokenises_the_documents_of_an_earlier_one(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Midtraining tokenises its new documents; distillation and later cycles read the ids."""
    encoded: list[str] = []
    text_ids = ChatModel.text_ids

    def counted(chat: ChatModel, text: str) -> list[int]:
        encoded.append(text)
        return text_ids(chat, text)

    monkeypatch.setattr(ChatModel, "text_ids", counted)
    said: list[str] = []
    monkeypatch.setattr(home.progress, "say", said.append)
    first = taught(home, tmp_path)
    old = {path.read_text() for path in (tmp_path / "docs").iterdir()}
    assert old <= set(encoded)
    for path in (tmp_path / "docs").iterdir():
        path.unlink()
    (tmp_path / "docs" / "new.md").write_text("A lighthouse stands on the northern cape.\n", encoding="utf-8")
    encoded.clear()
    second = taught(home, tmp_path, first)
    assert any("lighthouse" in text for text in encoded) and not old & set(encoded)
    encoded.clear()
    distill(home, job(tmp_path, second, steps=1, overlap="keep", tripwire_every=0))
    assert not old & set(encoded) and not any("lighthouse" in text for text in encoded)
    rehearsed = next(line for line in said if "read again" in line)
    tokens = [kept_texts.tokenised(run, home.load(home.clean())).total for run in runs_of(home, second)]
    drawn = int(re.findall(r"of (\d+) tokens", rehearsed)[-1])
    assert len(tokens) == 2 and min(tokens) < drawn < sum(tokens)  # of both, and no more than is read


def test_earlier_cycles_are_rehearsed_alike_however_large(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much is kept of them as is read of them as text, not as recovery reads of everything."""
    student = taught(home, tmp_path)
    for texts in ([f"Lighthouse {n} stands on the cape." for n in range(4)], ["An owl lives in a mill."]):
        for path in (tmp_path / "docs").iterdir():
            path.unlink()
        for number, text in enumerate(texts):
            (tmp_path / "docs" / f"{number}.txt").write_text(text)
        student = taught(home, tmp_path, student)
    kept: list[Tokens] = []
    read: list[str] = []
    join = kept_texts.KeptTokens.joined

    def seen(self: kept_texts.KeptTokens, target: Path, most: int, seed: int, *, longest: int) -> Tokens:
        assert longest == wide["max_new_tokens"]
        kept.append(join(self, target, most, seed, longest=longest))
        read.extend(self.chat_model.text(list(ids)) for ids, _ in sequences(kept[-1]))
        return kept[-1]

    monkeypatch.setattr(kept_texts.KeptTokens, "joined", seen)
    wide = {"steps": 1, "prompts_per_step": 16, "max_new_tokens": 160, "rehearsal_questions": 0.0}
    asked = job(tmp_path, student, overlap="keep", tripwire_every=0, **wide)
    distill(home, asked)
    wanted = (1 - NEWEST_SHARE) * tokens_per_step(asked.settings, asked.settings.resolved_method())
    (tokens,) = kept
    longest = max(np.diff(tokens.ends, prepend=0))
    assert wanted - 1 <= tokens.total <= wanted + longest
    assert sum("Lighthouse" in text for text in read) == 4 < sum("Number" in text for text in read) < 30


def runs_of(home: Workspace, student: str) -> list[Path]:
    return kept_texts.kept_runs(home, student)[0]


def test_named_documents_are_read_within_the_configured_limits(home: Workspace, tmp_path: Path) -> None:
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "a.html").write_text(f"<p>short</p><!--{'x' * 2**20}-->")
    file = home.home / "recover.yaml"
    configured = yaml.safe_load(file.read_text())
    configured["midtrain"]["reading"] = {"largest_file_mib": 1}
    file.write_text(yaml.safe_dump(configured))
    asked = job(tmp_path, "base", overlap="keep", tripwire_every=0)
    with (
        Workspace.open(home.home) as limited,
        pytest.raises(InputError, match="1 skipped: larger than 1 MiB"),
    ):
        distill(limited, asked.model_copy(update={"docs": str(tmp_path / "named")}))


def test_named_documents_are_read_once_and_rehearsed(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    keep = text_file.keep

    def noted(docs: Path, *rest: Any, **more: Any) -> Any:
        read.append(docs)
        return keep(docs, *rest, **more)

    monkeypatch.setattr(text_file, "keep", noted)
    said: list[str] = []
    monkeypatch.setattr(home.progress, "say", said.append)
    named = job(tmp_path, "base", steps=1).model_copy(update={"docs": str(tmp_path / "docs")})
    distill(home, named)  # the guard reads them too
    assert read == [tmp_path / "docs"]
    (rehearsed,) = (line for line in said if "read again" in line)
    total = kept_texts.tokenised(runs_of(home, taught(home, tmp_path))[0], home.load(home.clean())).total
    assert f"of {total:,} tokens" in rehearsed
    assert "of the tokens read, prompts not counted, are documents read again" in rehearsed
    (run,) = queries.runs(home.tracker.db, kind="distill")
    assert not list(home.run_directory(run["id"]).glob("documents.jsonl"))


def test_named_documents_are_kept_until_the_run_is_done(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill behind the last step, and a folder that is changed before the run goes on."""
    named = job(tmp_path, "base", steps=1).model_copy(update={"docs": str(tmp_path / "docs")})

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(home.tracker, "finish_run", kill)
        with pytest.raises(KeyboardInterrupt):
            distill(home, named, key="killed")
    (tmp_path / "docs" / "0.txt").write_text("Of another month.")
    found = resume(home)
    folder = home.run_directory(found["run"])
    assert not list(folder.rglob("documents.jsonl")) and not list(folder.rglob("*tokens*"))


def test_a_student_that_was_taught_nothing_rehearses_nothing(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(home.progress, "say", said.append)
    distill(home, job(tmp_path, "base", steps=1))
    assert "  rehearsal    off: the student was taught no documents" in said
