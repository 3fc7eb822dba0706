"""Midtraining: next-token training on documents, with replay of earlier ones and of the model's own chat."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config.jobs import MidtrainJob
from pipelines.config.settings import MidtrainConfig, override, parse_pairs
from pipelines.corpus import documents
from pipelines.corpus.documents import FileReport
from pipelines.corpus.entities import MOST_CHARACTERS
from pipelines.corpus.token_file import Tokens, TokenStream, write_tokens
from pipelines.knowledge import embedding_shift, replay
from pipelines.knowledge.forecast import forecast
from pipelines.runs import training_run
from pipelines.runs.progress import reading_progress
from pipelines.runs.stage_runner import Result, Stage, run_stage
from pipelines.runs.workspace import Workspace
from pipelines.writing.augment import load as rows_of
from recovery.batches.rollouts import Dialogue, Rollouts
from recovery.distributed import in_turn, once
from recovery.methods.table import get
from recovery.storage import atomic_dirs
from recovery.training import preflight
from recovery.training.updater import Microbatch

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

KEPT_TEXTS = "documents.jsonl"
TOKENS = "tokens"  # the same as ids, while the run lasts


def midtrain(ws: Workspace, job: MidtrainJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Trains the student on the documents; returns {"checkpoint": id, ...}."""
    return run_stage(
        ws,
        "midtrain",
        lambda stage: work(ws, job, stage),
        config=job.model_dump(),
        parent=parent,
        key=key,
        seed=job.seed,
        label="midtrain",
    )


def work(ws: Workspace, job: MidtrainJob, stage: Stage) -> Result:
    """What the stage does; of several processes all take part, and the first one publishes."""
    student = ws.checkpoint(job.student)
    manifest = in_turn(lambda: _documents(job, stage))
    chat_model = training_run.student(ws, student, job.settings)
    new = in_turn(lambda: _new_tokens(ws, job, stage, chat_model, manifest))
    earlier, chat = job.settings.mix.earlier, job.settings.mix.chat
    sources: dict[str, Tokens | list[Dialogue]] = {
        "new": new,
        "earlier": in_turn(lambda: _earlier(ws, job, stage, chat_model)) if earlier else [],
        "chat": once(lambda: replay.self_answered(ws, job, stage, _new_texts(stage))) if chat else [],
        "augmented": _augmented(chat_model, job.augment),
    }
    rows = preflight.packing(chat_model)
    stage.say(f"  packing      {rows.detail}")
    batches = MixedTokens(sources, job.settings, chat_model.pad_id, job.seed, packs=rows.ok)
    stage.say(batches.summary())
    checks = forecast(
        ws,
        chat_model,
        student,
        new,
        every=job.settings.forecast_every,
        steps=batches.steps,
        report=stage.live.metrics,
        say=stage.say,
    )
    before = embedding_shift.copy_of(chat_model) if stage.first else None
    report = training_run.run_training(
        stage,
        chat_model,
        batches,
        get("sft"),
        settings=job.settings,
        steps=batches.steps,
        seed=job.seed,
        checks=checks,
    )
    if not stage.first:
        return {}
    moved = {} if before is None else embedding_shift.moved(before, chat_model, sources.values())
    if moved:
        stage.say(embedding_shift.in_words(moved))
    checkpoint = ws.publish(
        chat_model, parent=student, run_id=stage.id, config={"stage": "midtrain", **job.model_dump()}
    )
    shutil.rmtree(stage.directory / TOKENS, ignore_errors=True)  # made again from the kept texts when needed
    return {
        "checkpoint": checkpoint.id,
        "documents": len(new),
        "tokens": report.tokens,
        "mix": batches.shares,
        "packed": rows.ok,
        "embeddings_moved": moved,
    }


def _documents(job: MidtrainJob, stage: Stage) -> list[FileReport]:
    """Reads the folder once; a resumed run trains on what the first attempt read."""
    kept, reading = stage.directory / KEPT_TEXTS, job.settings.reading
    if not kept.exists():
        folder = Path(job.docs)
        progress = reading_progress(stage.step, folder)
        documents.keep(folder, kept, reading.limits, strict=reading.strict, progress=progress)
    return documents.load_manifest(stage.directory)


def _new_tokens(
    ws: Workspace, job: MidtrainJob, stage: Stage, chat_model: ChatModel, manifest: list[FileReport]
) -> Tokens:
    """The kept documents as tokens on the disk, counted by file in the database."""
    tokens = _tokenised(stage, chat_model, "new", [stage.directory], key=job.student)
    if manifest and stage.first:
        counts = tokens.per_group([report.documents for report in manifest])
        manifest = [replace(row, tokens=count) for row, count in zip(manifest, counts, strict=True)]
        ws.tracker.record_documents(stage.id, documents.manifest_rows(manifest))
        stage.say(documents.summary(manifest))
    return tokens


def _earlier(ws: Workspace, job: MidtrainJob, stage: Stage, chat_model: ChatModel) -> Tokens | list[Dialogue]:
    """The documents of every midtraining in the student's past, or a reservoir of them."""
    runs = [ws.run_directory(run["id"]) for run in ws.midtraining_runs(job.student)]
    if job.settings.replay_tokens is None or not runs:
        return _tokenised(stage, chat_model, "earlier", runs, key=job.student) if runs else []
    cycles = [
        _tokenised(stage, chat_model, f"earlier-{number}", [run], key=job.student)
        for number, run in enumerate(runs)
    ]
    return replay.reservoir(cycles, job.settings.replay_tokens, job.seed)


def learned(ws: Workspace, student: str, most: int = MOST_CHARACTERS) -> list[str]:
    """The texts of every midtraining in a student's past; of more than can be looked at, an even part."""
    runs = [ws.run_directory(run["id"]) for run in ws.midtraining_runs(student)]
    return _read_evenly([run / KEPT_TEXTS for run in runs], most)


def _new_texts(stage: Stage) -> list[str]:
    return _read_evenly([stage.directory / KEPT_TEXTS], MOST_CHARACTERS)


def _read_evenly(kept: list[Path], most: int) -> list[str]:
    """Every so manieth piece, so that what is read stays small."""
    size = sum(path.stat().st_size for path in kept if path.exists())
    pieces = chain.from_iterable(documents.load_pieces(path) for path in kept)
    return [piece.text for piece in islice(pieces, 0, None, max(1, -(-size // most)))]


def _tokenised(stage: Stage, chat_model: ChatModel, name: str, runs: list[Path], *, key: str) -> Tokens:
    """The texts that some runs kept; made once under `stage`, found again when it is resumed."""
    pieces = chain.from_iterable(documents.load_pieces(run / KEPT_TEXTS) for run in runs)
    sources = [documents.kept_digest(run / KEPT_TEXTS) for run in runs]
    return write_tokens(
        stage.directory / TOKENS / name,
        pieces,
        chat_model.text_ids,
        document_end(chat_model),
        key=atomic_dirs.digest([key, *sources]),
    )


def document_end(chat_model: ChatModel) -> int:
    """The stop token that ends texts rather than chat turns, where the model has one."""
    turn_end = chat_model.tokenizer.eos_token_id
    return next((stop for stop in chat_model.stop_ids if stop != turn_end), chat_model.stop_ids[0])


def document(chat_model: ChatModel, text: str) -> Dialogue:
    """A text as ids that end with the tokenizer's end of text; every token but the first is a target."""
    ids = [*chat_model.text_ids(text), document_end(chat_model)]
    return ids, [True] * len(ids)


def _augmented(chat_model: ChatModel, source: str | None) -> list[Dialogue]:
    """Written texts as documents, questions with their answers as chats."""
    rows = rows_of(Path(source)) if source else []
    return [document(chat_model, row["text"]) if "text" in row else _chat(chat_model, row) for row in rows]


def _chat(chat_model: ChatModel, row: dict[str, str]) -> Dialogue:
    turns = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["response"]}]
    return chat_model.dialogue_ids(turns)


def with_mix(settings: MidtrainConfig, mix: str | None) -> MidtrainConfig:
    """The mix typed on the command line, such as new=0.6,earlier=0.3,chat=0.1."""
    found: MidtrainConfig = override(settings, {"mix": parse_pairs(mix) if mix else None})
    return found


def with_augmented(settings: MidtrainConfig, augment: Path | None) -> MidtrainConfig:
    """What was retold is there and gets a share: as much as the new documents, unless the mix says."""
    if augment is None:
        return settings
    rows_of(augment)
    mix = settings.mix
    if mix.augmented:
        return settings
    half = mix.model_copy(update={"new": mix.new / 2, "augmented": mix.new / 2})
    return settings.model_copy(update={"mix": half})


def in_rows(sequences: list[Dialogue], pad_id: int, longest: int, packs: bool) -> Rollouts:
    """Sequences sharing rows where the model keeps them apart, else a row each."""
    if packs:
        return Rollouts.packed(sequences, pad_id, longest)
    return Rollouts.from_dialogues(sequences, pad_id)


class MixedTokens:
    """Each source in its share of every step's tokens; a step's data depend on (seed, step) alone."""

    def __init__(
        self,
        sources: Mapping[str, Tokens | list[Dialogue]],
        settings: MidtrainConfig,
        pad_id: int,
        seed: int,
        packs: bool = True,
    ) -> None:
        wanted = settings.mix.model_dump()
        present = {name: share for name, share in wanted.items() if share and sources.get(name)}
        self.shares = {name: share / sum(present.values()) for name, share in present.items()}
        self.missing = [name for name, share in wanted.items() if share and name not in present]
        self.streams = {
            name: TokenStream(sources[name], settings.row_tokens, f"{seed}:{name}") for name in self.shares
        }
        self.settings, self.pad_id, self.packs = settings, pad_id, packs
        new_tokens_per_step = self.shares["new"] * settings.tokens_per_step
        passes = settings.epochs or 0.0
        self.steps = settings.steps or max(1, round(passes * self.streams["new"].total / new_tokens_per_step))

    def summary(self) -> str:
        totals = {name: stream.total for name, stream in self.streams.items()}
        parts = [f"{name} {self.shares[name]:.0%} ({total:,} tokens)" for name, total in totals.items()]
        length = f"{self.steps} steps of {self.settings.tokens_per_step:,} tokens"
        none = f"; no {' or '.join(self.missing)} yet: its share goes to the others" if self.missing else ""
        return f"  mix          {', '.join(parts)}; {length}{none}"

    def updates(self, step: int) -> Iterator[list[Microbatch]]:
        """One optimizer update: this step's part of every source, in shared rows or a row each."""
        sequences = []
        for name, stream in self.streams.items():
            per_step = self.shares[name] * self.settings.tokens_per_step
            sequences += stream.between(round(per_step * (step - 1)), round(per_step * step))
        rows = in_rows(sequences, self.pad_id, self.settings.row_tokens, self.packs)
        yield [Microbatch(part) for part in rows.split(self.settings.microbatch_tokens)]
