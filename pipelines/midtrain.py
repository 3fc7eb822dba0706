"""Midtraining: next-token training on documents, with replay of earlier ones and of the model's own chat."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines import documents, training
from pipelines.config import MidtrainConfig, Section
from pipelines.documents import FileReport
from pipelines.progress import reading_progress
from pipelines.prompts import read_prompts
from pipelines.stages import Result, Stage, run_stage
from pipelines.tokens import Tokens, TokenStream, write_tokens
from pipelines.workspace import Workspace
from recovery import files
from recovery.errors import InputError
from recovery.methods import get
from recovery.rollouts import Dialogue, Rollouts
from recovery.trainer import Microbatch

if TYPE_CHECKING:
    from recovery.models import ChatModel

KEPT_TEXTS = "documents.jsonl"
TOKENS = "tokens"  # the same as ids, while the run lasts


class MidtrainJob(Section):
    """What a midtraining run was asked to do: enough to do it again."""

    docs: str
    student: str
    settings: MidtrainConfig
    prompts: str | None = None  # asked of the clean model for the chat share
    seed: int = 0


def midtrain(ws: Workspace, job: MidtrainJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Trains the student on the documents; returns {"checkpoint": id, ...}."""
    return run_stage(
        ws, "midtrain", lambda stage: _work(ws, job, stage),
        config=job.model_dump(), parent=parent, key=key, seed=job.seed, label="midtrain",
    )  # fmt: skip


def _work(ws: Workspace, job: MidtrainJob, stage: Stage) -> Result:
    student = ws.checkpoint(job.student)
    manifest = _documents(job, stage)
    chat_model = training.student(ws, student, job.settings)
    new = _new_tokens(ws, job, stage, chat_model, manifest)
    sources: dict[str, Tokens | list[Dialogue]] = {
        "new": new,
        "earlier": _earlier(ws, job, stage, chat_model) if job.settings.mix.earlier else [],
        "chat": _self_answered(ws, job, stage) if job.settings.mix.chat else [],
    }
    batches = MixedTokens(sources, job.settings, chat_model.pad_id, job.seed)
    stage.say(batches.summary())
    report = training.run_training(
        stage, chat_model, batches, get("sft"), settings=job.settings, steps=batches.steps, seed=job.seed
    )
    checkpoint = ws.publish(
        chat_model, parent=student, run_id=stage.id, config={"stage": "midtrain", **job.model_dump()}
    )
    shutil.rmtree(stage.directory / TOKENS, ignore_errors=True)  # made again from the kept texts when needed
    return {
        "checkpoint": checkpoint.id, "documents": len(new), "tokens": report.tokens, "mix": batches.shares
    }  # fmt: skip


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
    if manifest:
        counts = tokens.per_group([report.documents for report in manifest])
        manifest = [replace(row, tokens=count) for row, count in zip(manifest, counts, strict=True)]
        ws.tracker.record_documents(stage.id, documents.manifest_rows(manifest))
        stage.say(documents.summary(manifest))
    return tokens


def _earlier(ws: Workspace, job: MidtrainJob, stage: Stage, chat_model: ChatModel) -> Tokens | list[Dialogue]:
    """The documents of every midtraining in the student's past."""
    runs = [ws.run_directory(run["id"]) for run in ws.midtraining_runs(job.student)]
    return _tokenised(stage, chat_model, "earlier", runs, key=job.student) if runs else []


def _tokenised(stage: Stage, chat_model: ChatModel, name: str, runs: list[Path], *, key: str) -> Tokens:
    """The texts that some runs kept; made once under `stage`, found again when it is resumed."""
    pieces = chain.from_iterable(documents.load_pieces(run / KEPT_TEXTS) for run in runs)
    sources = [documents.kept_digest(run / KEPT_TEXTS) for run in runs]
    return write_tokens(
        stage.directory / TOKENS / name, pieces, chat_model.text_ids, document_end(chat_model),
        key=files.digest([key, *sources]),
    )  # fmt: skip


def document_end(chat_model: ChatModel) -> int:
    """The stop token that ends texts rather than chat turns, where the model has one."""
    turn_end = chat_model.tokenizer.eos_token_id
    return next((stop for stop in chat_model.stop_ids if stop != turn_end), chat_model.stop_ids[0])


def _self_answered(ws: Workspace, job: MidtrainJob, stage: Stage) -> list[Dialogue]:
    """Chat prompts answered by the clean model itself: replay that needs no data of anyone else."""
    from recovery.sampling import InProcessSampler, SamplingParams

    if job.prompts is None:
        raise InputError("mix.chat is above 0, but there are no prompts: give --prompts or distill.prompts")
    clean = ws.load(ws.clean())
    prompts = read_prompts(job.prompts, job.seed)
    chosen = random.Random(job.seed).sample(prompts, min(job.settings.chat_prompts, len(prompts)))
    ids = [clean.prompt_ids(prompt.messages) for prompt in chosen]
    limit = ws.config.distill.max_new_tokens
    rollouts = InProcessSampler(clean).sample(ids, SamplingParams(limit, seed=job.seed))
    stage.spend(tokens_sampled=rollouts.n_tokens)
    whole = zip(ids, rollouts.responses(), rollouts.finished_B.tolist(), strict=True)
    return [
        ([*prompt, *answer], [False] * len(prompt) + [True] * len(answer))
        for prompt, answer, finished in whole if finished
    ]


class MixedTokens:
    """Each source in its share of every step's tokens; a step's data depend on (seed, step) alone."""

    def __init__(
        self, sources: Mapping[str, Tokens | list[Dialogue]], settings: MidtrainConfig, pad_id: int, seed: int
    ) -> None:
        wanted = settings.mix.model_dump()
        present = {name: share for name, share in wanted.items() if share and sources.get(name)}
        self.shares = {name: share / sum(present.values()) for name, share in present.items()}
        self.streams = {
            name: TokenStream(sources[name], settings.row_tokens, f"{seed}:{name}") for name in self.shares
        }
        self.settings, self.pad_id = settings, pad_id
        new_tokens_per_step = self.shares["new"] * settings.tokens_per_step
        passes = settings.epochs or 0.0
        self.steps = settings.steps or max(1, round(passes * self.streams["new"].total / new_tokens_per_step))

    def summary(self) -> str:
        totals = {name: stream.total for name, stream in self.streams.items()}
        parts = [f"{name} {self.shares[name]:.0%} ({total:,} tokens)" for name, total in totals.items()]
        length = f"{self.steps} steps of {self.settings.tokens_per_step:,} tokens"
        return f"  mix          {', '.join(parts)}; {length}"

    def updates(self, step: int) -> Iterator[list[Microbatch]]:
        """One optimizer update: this step's part of every source, packed into rows."""
        sequences = []
        for name, stream in self.streams.items():
            per_step = self.shares[name] * self.settings.tokens_per_step
            sequences += stream.between(round(per_step * (step - 1)), round(per_step * step))
        rows = Rollouts.packed(sequences, self.pad_id, self.settings.row_tokens)
        yield [Microbatch(part) for part in rows.split(self.settings.microbatch_tokens)]
