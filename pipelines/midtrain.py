"""Midtraining: teach documents, with replay of earlier ones and of the model's own chat.

By default as text, token after token; with `midtrain.method: passage` by answers of the clean model that sees
them (pipelines/knowledge/passage_teaching.py). Both run the same loop.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config import fitted
from pipelines.config.jobs import MidtrainJob
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.corpus import superseded
from pipelines.corpus.entities import MOST_CHARACTERS
from pipelines.corpus.manifest import FileReport, load_manifest, manifest_rows, summary
from pipelines.corpus.mixed_tokens import EARLIER_QUESTIONS, MixedTokens, Planned, fitted_to_sources, planned
from pipelines.corpus.sentence_splits import SentenceSplits
from pipelines.corpus.text_file import load_pieces
from pipelines.corpus.token_file import Tokens
from pipelines.distillation.teachers import FrozenTeachers, lies_on
from pipelines.knowledge import answer_probability, embedding_shift, held_out, passage_teaching, replay
from pipelines.knowledge.answer_probability import AnswerProbability
from pipelines.knowledge.forecast import forecast
from pipelines.knowledge.guards import say_absent
from pipelines.machine.fitting import fitted_once
from pipelines.prompts.leaks import say_contained
from pipelines.prompts.lengths import answerable, model_limit
from pipelines.runs import kept_texts, training_run
from pipelines.runs.kept_texts import (
    EARLIER_TOKENS,
    KEPT_TEXTS,
    KeptTokens,
    kept_runs,
    read_evenly,
    tokenised,
)
from pipelines.runs.pinned_inputs import pinned
from pipelines.runs.progress import counting
from pipelines.runs.stage_runner import Result, Stage, run_job
from pipelines.runs.workspace import Workspace
from pipelines.writing import gap_questions
from pipelines.writing.augment import load as rows_of
from pipelines.writing.filters import ProbeLeaks
from recovery.batches.rollouts import Dialogue
from recovery.distributed import in_turn, longest_row, once
from recovery.methods.table import get
from recovery.printable import one_line
from recovery.training import preflight

if TYPE_CHECKING:
    from pipelines.prompts.prompt_sources import Prompt
    from recovery.methods.method import Method
    from recovery.models.chat_model import ChatModel
    from recovery.training.trainer import Batches

LONGEST_SAID = 300  # characters of the lines of a list that are named
Source = Tokens | list[Dialogue]
Sources = dict[str, Source]


@dataclass(frozen=True)
class Material:
    """What a midtraining trains on, by which method, and the settings with every number set."""

    method: Method
    batches: Batches
    settings: MidtrainConfig
    steps: int
    read: list[Source]
    shares: dict[str, float]
    packs: bool  # several sequences share a row


def midtrain(ws: Workspace, job: MidtrainJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Train the student on the documents; return {"checkpoint": id, ...}."""
    passage_teaching.check(job.settings, job.augment)
    job = pinned(ws, job, texts_kept=kept_texts.kept_before(ws, parent, key))
    return run_job(ws, "midtrain", work, job, parent=parent, key=key)


def work(ws: Workspace, job: MidtrainJob, stage: Stage) -> Result:
    """Read, tokenise, train and publish; of several processes all train and the first one publishes."""
    job = in_turn(lambda: _fitted_to_machine(ws, job, stage))
    parent = ws.checkpoint(job.student)
    manifest = in_turn(lambda: _documents(ws, job, stage))
    student = training_run.student(ws, parent, job.settings, job.seed)
    new = in_turn(lambda: _new_tokens(ws, stage, student, manifest))
    frozen = FrozenTeachers(ws, student, parent, job.settings.microbatch_tokens)
    if job.settings.method == passage_teaching.ROW:
        made = _by_passages(ws, job, stage, frozen, new)
    else:
        made = _as_text(ws, job, stage, frozen, new)
    every, steps = job.settings.forecast_every, made.steps
    training = training_run.Training(
        student,
        made.batches,
        made.method,
        settings=made.settings,
        steps=steps,
        seed=job.seed,
        checks=[
            *forecast(stage, frozen, new, every=every, steps=steps),
            *_answers(job, stage, student, steps),
        ],
    )
    frozen.models.clear()  # the clean model stays in memory only where it teaches
    before = embedding_shift.copy_of(student) if stage.first else None
    report = training_run.run_training(stage, training)
    if not stage.first:
        return {}
    moved = {} if before is None else embedding_shift.moved(before, student, made.read)
    if moved:
        stage.say(embedding_shift.in_words(moved))
    config = {"stage": "midtrain", **job.model_dump()}
    checkpoint = ws.publish(student, parent=parent, run_id=stage.id, config=config)
    shutil.rmtree(stage.directory / EARLIER_TOKENS, ignore_errors=True)  # joined again when needed
    return {
        "checkpoint": checkpoint.id,
        "documents": len(new),
        "tokens": report.tokens,
        "mix": made.shares,
        "packed": made.packs,
        "embeddings_moved": moved,
    }


def _as_text(ws: Workspace, job: MidtrainJob, stage: Stage, frozen: FrozenTeachers, new: Tokens) -> Material:
    """Train on the next token of documents and of what else the mix names."""
    sources = _sources(ws, job, stage, frozen, new)
    batches = _batches(job, stage, frozen.student, sources, new.total)
    return Material(
        get("sft"),
        batches,
        batches.settings,
        batches.steps,
        read=list(sources.values()),
        shares=batches.shares,
        packs=batches.packs,
    )


def _by_passages(
    ws: Workspace, job: MidtrainJob, stage: Stage, frozen: FrozenTeachers, new: Tokens
) -> Material:
    """Train on questions that the clean model answers with the passage in view."""
    student = frozen.student
    parts = _asked(ws, job, stage, student)
    made = passage_teaching.plan(job, student, parts, ProbeLeaks.of_evaluation(job.evaluation, job.earlier))
    stage.say(passage_teaching.summary(made, parts, job.settings))
    return Material(
        made.method,
        passage_teaching.episodes(job, stage, frozen, made),
        made.settings,
        made.steps,
        read=[new, made.read],
        shares=made.shares,
        packs=False,
    )


def _asked(ws: Workspace, job: MidtrainJob, stage: Stage, student: ChatModel) -> dict[str, list[Prompt]]:
    """Return the questions about new and earlier documents, and the prompts of the chat share."""
    most = passage_teaching.CHARACTERS
    texts = _new_texts(stage, most)
    room = passage_teaching.room_of(student.encoder, model_limit(student))
    fitting = partial(passage_teaching.with_room, room=room, stage=stage)
    new = passage_teaching.questions(texts, job.seed)
    passage_teaching.require_room(new, room)
    parts = {"new": fitting(new)}
    if job.settings.mix.earlier:
        earlier = _earlier_texts(ws, job, stage, most)
        parts["earlier"] = fitting(passage_teaching.questions(earlier, job.seed))
    if job.settings.mix.chat:
        taught = [*texts, *_earlier_texts(ws, job, stage, most)]
        asked = in_turn(lambda: replay.chat_prompts(job, stage, taught))[: job.settings.chat_prompts]
        parts["chat"] = answerable(asked, student, stage, name="chat")
    return parts


def _sources(ws: Workspace, job: MidtrainJob, stage: Stage, frozen: FrozenTeachers, new: Tokens) -> Sources:
    """Collect what the mix names: documents, what was made of them, and chat.

    How much of a source is read follows from the shares of those collected before it: their order counts.
    """
    mix = job.settings.mix
    student = frozen.student
    leaks = ProbeLeaks.of_evaluation(job.evaluation, job.earlier)
    sources: Sources = {"new": new, "augmented": _augmented(student, job.augment, leaks, stage)}
    reads = partial(planned, job.settings, sources, context=_longest_row(stage, student))
    if mix.earlier:
        sources["earlier"] = in_turn(lambda: _earlier(ws, job, stage, student, reads("earlier")))
    if mix.questions:
        asked = partial(_questions, job, student, leaks, stage, reads("questions").tokens)
        sources["questions"] = asked(partial(_new_texts, stage))
        if sources.get("earlier"):
            sources[EARLIER_QUESTIONS] = asked(partial(_earlier_texts, ws, job, stage))
    if mix.chat:
        wanted = reads("chat").tokens

        def chat() -> list[Dialogue]:
            taught = [*_new_texts(stage), *_earlier_texts(ws, job, stage)]
            return replay.self_answered(job, stage, frozen, taught, wanted)

        sources["chat"] = once(chat)
    return sources


def _batches(
    job: MidtrainJob, stage: Stage, student: ChatModel, sources: Sources, new_tokens: int
) -> MixedTokens:
    """Mix the sources into the batches of every step; print packing, plan and mix."""
    packing = preflight.packing(student)
    stage.say(f"  packing      {packing.detail}")
    longest = _longest_row(stage, student)
    settings = fitted_to_sources(job.settings, sources, longest)
    splits = SentenceSplits.of(student, settings.split_documents)
    batches = MixedTokens(sources, settings, student.pad_id, job.seed, packing.ok, splits)
    of_new = new_tokens, batches.shares["new"]
    fewer = fitted.fewer_passes_in_words(
        job.settings, *of_new, lambda free: fitted_to_sources(free, sources, longest)
    )
    stage.say(f"  plan         {fitted.midtraining_in_words(settings, *of_new)}{fewer}")
    stage.say(batches.summary(job.settings.mix))
    return batches


def _answers(job: MidtrainJob, stage: Stage, student: ChatModel, steps: int) -> list[AnswerProbability]:
    """Return the check that follows the answers to the job's questions, as often as the forecast looks."""
    if job.asked is None or not job.settings.forecast_every:
        return []
    asked = answer_probability.read(Path(job.asked))
    every = job.settings.forecast_every
    return [AnswerProbability(student, asked, every=every, steps=steps, report=stage.live.metrics)]


def _longest_row(stage: Stage, student: ChatModel) -> int | None:
    return longest_row(student.model, sharded=stage.workspace.config.model.shard)


def _fitted_to_machine(ws: Workspace, job: MidtrainJob, stage: Stage) -> MidtrainJob:
    passages = job.settings.method == passage_teaching.ROW
    on_clean = passages and lies_on(ws.checkpoint(job.student), ws.clean())
    fit = partial(fitted.fit_midtraining, on_teacher=on_clean)
    settings = fitted_once(stage, job.student, job.settings, fit)
    return job.model_copy(update={"settings": settings})


def _documents(ws: Workspace, job: MidtrainJob, stage: Stage) -> list[FileReport]:
    """Read the folder once; a resumed run trains on the texts that its first attempt kept."""
    reading = job.settings.reading
    if not (stage.directory / KEPT_TEXTS).exists():
        superseded.keep(Path(job.docs), stage.directory)
        kept_texts.keep(job.docs, stage.directory, reading, stage.step, strict=reading.strict)
        texts = (piece.text for piece in load_pieces(stage.directory / KEPT_TEXTS))
        say_contained(job.evaluation, texts, stage.say)
    runs, _ = kept_runs(ws, job.student)
    if lines := superseded.unmatched([*runs, stage.directory]) if runs else []:
        stage.say(f"  superseded   no earlier document is named {one_line(', '.join(lines), LONGEST_SAID)}")
    held_out.hold_out(job, stage)
    return load_manifest(stage.directory)


def _new_tokens(ws: Workspace, stage: Stage, chat_model: ChatModel, manifest: list[FileReport]) -> Tokens:
    """Tokenise the kept documents to disk; record the count of each file."""
    show, total = counting(stage.step, "documents tokenised"), sum(report.documents for report in manifest)
    tokens = tokenised(stage.directory, chat_model, progress=lambda done: show(done, total))
    if stage.first:
        counts = tokens.per_group([report.documents for report in manifest])
        manifest = [replace(row, tokens=count) for row, count in zip(manifest, counts, strict=True)]
        ws.tracker.record_documents(stage.id, manifest_rows(manifest))
        stage.say(summary(manifest))
    return tokens


def _earlier(
    ws: Workspace, job: MidtrainJob, stage: Stage, chat_model: ChatModel, reads: Planned
) -> Tokens | list[Dialogue]:
    """Return the tokens of the student's earlier midtrainings, about as many as will be read."""
    runs, absent = kept_runs(ws, job.student)
    say_absent(absent, bool(runs), stage, "replay")
    if not runs:
        return []
    kept = KeptTokens.of(runs, chat_model, current=stage.directory)
    if count := sum(map(len, kept.left_out)):
        files = superseded.in_words(superseded.files(runs, kept.left_out))
        stage.say(f"  superseded   {count} earlier documents are left out of replay: {files}")
    most = min(reads.tokens, job.settings.replay_tokens or reads.tokens)
    return kept.joined(stage.directory / EARLIER_TOKENS, most, job.seed, longest=reads.row)


def _new_texts(stage: Stage, most: int = MOST_CHARACTERS) -> list[str]:
    return read_evenly([stage.directory], most)


def _earlier_texts(ws: Workspace, job: MidtrainJob, stage: Stage, most: int = MOST_CHARACTERS) -> list[str]:
    """Return texts of the student's earlier midtrainings; none that a later one has superseded."""
    runs, _ = kept_runs(ws, job.student)
    return read_evenly(runs, most, current=stage.directory)


def _augmented(chat_model: ChatModel, source: str | None, leaks: ProbeLeaks, stage: Stage) -> list[Dialogue]:
    """Encode retold texts as documents, and questions with answers as chats; none that gives away a probe,
    which may be newer than they are."""
    rows = rows_of(Path(source)) if source else []
    kept = [row for row in rows if not leaks.of_row(row)]
    if given_away := len(rows) - len(kept):
        stage.say(f"  augmented    {given_away} of {len(rows):,} rows give a held-out probe away: left out")
    return [
        chat_model.document(row["text"]) if row.get("text") else gap_questions.dialogue(chat_model, row)
        for row in kept
    ]


def _questions(
    job: MidtrainJob,
    student: ChatModel,
    leaks: ProbeLeaks,
    stage: Stage,
    most: int,
    read: Callable[[int], list[str]],
) -> Tokens:
    """Encode questions made of the documents' own sentences; none that gives away a probe."""
    texts = read(max(MOST_CHARACTERS, gap_questions.characters(most)))
    show = counting(stage.step, "texts asked about")
    found = gap_questions.chats(texts, student, leaks, most=most, seed=job.seed, show=show)
    return Tokens.of(_counted(found, most, stage))


def _counted(found: Iterable[Dialogue], most: int, stage: Stage) -> Iterator[Dialogue]:
    """Yield encoded questions, and show how many tokens they are."""
    show, total = counting(stage.step, "tokens of questions"), 0
    for encoded in found:
        total += len(encoded[0])
        show(min(total, most), most)
        yield encoded
