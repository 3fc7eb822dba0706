"""Rehearsal: train on the documents again during distillation.

A clean teacher does not know what the student was taught, and its corrections spread to neighbours of the
prompts: one person's name is written for another's. So a share of every update's tokens are documents, or
questions made of their sentences, learned as in midtraining. Which ones depends on (seed, step) alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from pipelines.corpus import mixed_tokens
from pipelines.corpus.sentence_splits import SentenceSplits
from pipelines.corpus.token_file import Dialogue, Tokens, TokenStream
from pipelines.knowledge import guards
from pipelines.runs import kept_texts
from pipelines.runs.kept_texts import EARLIER_TOKENS, read_evenly
from pipelines.writing import gap_questions
from pipelines.writing.filters import ProbeLeaks
from recovery.distributed import in_turn, longest_row
from recovery.methods.choices import READ_STATES
from recovery.methods.table import get
from recovery.objective.objective import Loss, Objective
from recovery.training import preflight
from recovery.training.updater import Microbatch

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob
    from pipelines.config.sections.distill import DistillConfig
    from pipelines.prompts.prompt_sources import Prompt
    from pipelines.runs.stage_runner import Stage
    from pipelines.runs.workspace import Workspace
    from recovery.methods.method import Method
    from recovery.models.chat_model import ChatModel

METRIC = "rehearsal_loss"
# Of what is rehearsed. A clean teacher contradicts what was taught last; the rest was rehearsed before.
NEWEST_SHARE = 0.6


@dataclass(frozen=True)
class Taught:
    """Documents that the student was taught, questions made of them, and their share of what is rehearsed."""

    name: str
    share: float
    documents: Tokens
    questions: Sequence[Dialogue] = ()


class Rehearsal:
    """The documents, and questions made of them, that are trained on beside the answers of each update."""

    def __init__(
        self,
        taught: Sequence[Taught],
        settings: DistillConfig,
        student: ChatModel,
        per_step: int,
        seed: int,
        sharded: bool = False,
    ) -> None:
        self.ratio = settings.rehearsal / (1 - settings.rehearsal)
        self.per_step = per_step  # tokens at most: the next step's begin behind them
        self.longest = _longest_document(settings, student, sharded=sharded)
        splits = SentenceSplits.of(student, settings.split_documents)
        self.streams: list[tuple[float, TokenStream]] = []
        for part in taught:
            asked = settings.rehearsal_questions if part.questions else 0.0
            seeded = f"{seed}:{part.name}"
            read = TokenStream(part.documents, self.longest, f"{seeded}:rehearsal", splits)
            self.streams.append((part.share * (1 - asked), read))
            if asked:
                longest = max(len(ids) for ids, _ in part.questions)  # cut, its end would lack the question
                questions = TokenStream(part.questions, longest, f"{seeded}:questions")
                self.streams.append((part.share * asked, questions))
        self.packs = preflight.packing(student).ok
        self.pad_id = student.pad_id
        self.microbatch_tokens = settings.microbatch_tokens
        self.objective = Objective(get("sft"), student.stop_ids)
        self.at = 0.0

    def begin(self, step: int) -> None:
        self.at = float((step - 1) * self.per_step)

    def beside(self, answers: Sequence[Microbatch]) -> list[Microbatch]:
        """Return documents and questions in their share of an update that has these answers.

        All their tokens count; of the answers, which are read behind their prompts, those that are learned.
        """
        wanted = self.ratio * sum(part.rollouts.n_tokens for part in answers)
        end = self.at + wanted
        sequences: list[Dialogue] = []
        for share, stream in self.streams:
            sequences += stream.between(round(share * self.at), round(share * end))
        self.at = end
        if not sequences:
            return []
        longest = max(self.longest, *(len(ids) for ids, _ in sequences))
        rows = mixed_tokens.in_rows(sequences, self.pad_id, longest, self.packs)
        parts = mixed_tokens.over_processes(rows, self.microbatch_tokens)
        return [Microbatch(part, objective=self._loss) for part in parts]

    def _loss(self, *states: Any) -> Loss:
        """Return the cross-entropy, reported apart from the method's loss and no part of its signal."""
        found = self.objective(*states)
        metrics = {METRIC: float(found.value.detach())}
        return replace(found, metrics=metrics, maxima={}, signal_N=None, apart=True)


def rehearsal(
    ws: Workspace,
    job: DistillJob,
    pairs: Sequence[Prompt],
    student: ChatModel,
    method: Method,
    stage: Stage,
) -> Rehearsal | None:
    """Return the rehearsal of a job; None where it is off or the student learned no documents."""
    if not job.settings.rehearsal:
        return None
    learned = pairs if method.state_kind in READ_STATES else ()
    lengths = [len(student.text_ids(str(row.fields["response"]))) + 1 for row in learned]  # with the stop
    per_step = tokens_per_step(job.settings, method, lengths)
    found = in_turn(lambda: _taught(ws, job, student, stage, job.settings.most_steps * per_step))
    if not found:
        stage.say("  rehearsal    off: the student was taught no documents")
        return None
    stage.say(_in_words(found, job.settings))
    return Rehearsal(found, job.settings, student, per_step, job.seed, ws.config.model.shard)


def tokens_per_step(settings: DistillConfig, method: Method, lengths: Sequence[int] = ()) -> int:
    """Return the most tokens of documents that a step reads: beside answers of full length.

    Answers that are read from pairs, of these `lengths`, may be longer than those that are written."""
    rows = settings.prompts_per_step * method.samples(settings.samples_per_prompt)
    continued = method.state_kind == "student-continued"
    written = method.continuation if continued else settings.max_new_tokens  # of these an answer teaches
    longer = sum(max(0, length - written) for length in nlargest(rows, lengths))
    answers = (rows * written + longer) * method.epochs
    return round(answers * settings.rehearsal / (1 - settings.rehearsal))


def _taught(ws: Workspace, job: DistillJob, student: ChatModel, stage: Stage, most: int) -> list[Taught]:
    """Return the documents that the job names, else those of the student's midtrainings.

    Midtraining has left its documents as token ids: they are tokenised again only for another tokenizer.
    """
    if job.docs:
        named = guards.named_documents(ws, job, stage)
        tokens, texts = kept_texts.tokenised(named, student), partial(read_evenly, [named])
        return _parts([("named", 1.0, tokens, texts)], job, student, stage, most)
    runs, absent = kept_texts.kept_runs(ws, job.student)
    guards.say_absent(absent, bool(runs), stage, "rehearsal")
    if not runs:
        return []
    *earlier, newest = runs
    before = kept_texts.KeptTokens.of(earlier, student, current=newest)
    of_earlier = max(1, round((1 - NEWEST_SHARE) * most))
    longest = _longest_document(job.settings, student, sharded=ws.config.model.shard)
    joined = before.joined(stage.state / EARLIER_TOKENS, of_earlier, job.seed, longest=longest)
    return _parts(
        [
            ("newest", NEWEST_SHARE, kept_texts.tokenised(newest, student), partial(read_evenly, [newest])),
            ("earlier", 1 - NEWEST_SHARE, joined, partial(read_evenly, earlier, current=newest)),
        ],
        job,
        student,
        stage,
        most,
    )


def _parts(
    found: Sequence[tuple[str, float, Tokens, Callable[[], list[str]]]],
    job: DistillJob,
    student: ChatModel,
    stage: Stage,
    most: int,
) -> list[Taught]:
    """Return the parts that have documents, with questions; an empty part's share goes to the other."""
    present = [part for part in found if part[2]]
    total = sum(share for _, share, _, _ in present)
    if not job.settings.rehearsal_questions:
        return [Taught(name, share / total, tokens) for name, share, tokens, _ in present]
    leaks = ProbeLeaks.of_evaluation(job.evaluation, job.earlier)
    asked = partial(_questions, job, student, stage, leaks)
    return [
        Taught(name, share / total, tokens, asked(read(), round(share / total * most)))
        for name, share, tokens, read in present
    ]


def _questions(
    job: DistillJob, student: ChatModel, stage: Stage, leaks: ProbeLeaks, texts: Sequence[str], most: int
) -> list[Dialogue]:
    """Return questions made of the documents' sentences, as long as a row at most.

    A clean teacher corrects chats alone, so what only documents hold is lost in chat first: a fact that
    changed is still stated anew in text when it is answered as before.
    """
    wanted = round(job.settings.rehearsal_questions * most)
    found = list(gap_questions.chats(texts, student, leaks, most=wanted, seed=job.seed))
    longest = _longest_chat(job.settings, student, sharded=stage.workspace.config.model.shard)
    kept = [chat for chat in found if len(chat[0]) <= longest]
    if left_out := len(found) - len(kept):
        stage.say(
            f"  rehearsal    {left_out:,} of {len(found):,} questions are left out, as they are longer than "
            f"what is read, {longest:,} tokens"
        )
    return kept


def _longest_document(settings: DistillConfig, student: ChatModel, *, sharded: bool) -> int:
    """Return the tokens after which a document is cut: those of a full answer."""
    return _within_row(settings.max_new_tokens, student, sharded=sharded)


def _longest_chat(settings: DistillConfig, student: ChatModel, *, sharded: bool) -> int:
    """Return the tokens of the longest row that is trained on: a prompt with its answer.

    Runs that began before rows had a limit rehearse nothing longer than an answer.
    """
    return _within_row(settings.longest_row or settings.max_new_tokens, student, sharded=sharded)


def _within_row(longest: int, student: ChatModel, *, sharded: bool) -> int:
    """Return a number of tokens, or those of the model's longest row if these are fewer."""
    return min(longest, longest_row(student.model, sharded=sharded) or longest)


def _in_words(found: Sequence[Taught], settings: DistillConfig) -> str:
    tokens = sum(part.documents.total for part in found)
    halves = f", {found[0].share:.0%} of them the newest" if len(found) > 1 else ""
    asked = any(part.questions for part in found)
    chat = f", {settings.rehearsal_questions:.0%} of them asked in chat" if asked else ""
    return (
        f"  rehearsal    {settings.rehearsal:.0%} of the tokens read, prompts not counted, are documents "
        f"read again, of {tokens:,} tokens{halves}{chat}"
    )
