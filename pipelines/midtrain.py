"""Midtraining: next-token training on documents, with replay of earlier ones and of the model's own chat."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines import documents, training
from pipelines.config import MidtrainConfig, Section
from pipelines.prompts import read_prompts
from pipelines.stages import Result, Stage, run_stage
from pipelines.workspace import Workspace
from recovery.errors import InputError
from recovery.methods import get
from recovery.rollouts import Dialogue, Rollouts
from recovery.trainer import Microbatch

if TYPE_CHECKING:
    from recovery.models import ChatModel

KEPT_TEXTS = "documents.jsonl"


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
    texts = _documents(ws, job, stage)
    chat_model = training.student(ws, student, job.settings)
    sources = {
        "new": [_document(chat_model, text) for text in texts],
        "earlier": [_document(chat_model, text) for text in _earlier(ws, student.id)],
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
    return {
        "checkpoint": checkpoint.id, "documents": len(texts), "tokens": report.tokens, "mix": batches.shares
    }  # fmt: skip


def _documents(ws: Workspace, job: MidtrainJob, stage: Stage) -> list[str]:
    """Reads the folder once; a resumed run trains on what the first attempt read."""
    kept = stage.directory / KEPT_TEXTS
    if kept.exists():
        return documents.load_texts(kept)
    corpus = documents.read_corpus(Path(job.docs))
    ws.tracker.record_documents(stage.id, documents.manifest_rows(corpus))
    documents.save_texts(kept, corpus.texts)
    skipped = len(corpus.manifest) - len(corpus.texts)
    stage.say(f"  documents    {len(corpus.texts)} read, {skipped} skipped, {corpus.characters:,} characters")
    return list(corpus.texts)


def _earlier(ws: Workspace, student: str) -> list[str]:
    """The documents of every midtraining in the student's past."""
    runs = ws.midtraining_runs(student)
    return [text for run in runs for text in documents.load_texts(ws.run_directory(run["id"]) / KEPT_TEXTS)]


def _document(chat_model: ChatModel, text: str) -> Dialogue:
    """A document as ids that end with the tokenizer's end of text; every token but the first is a target."""
    ids = [*chat_model.text_ids(text), document_end(chat_model)]
    return ids, [True] * len(ids)


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
        self, sources: dict[str, list[Dialogue]], settings: MidtrainConfig, pad_id: int, seed: int
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


class TokenStream:
    """Sequences without end: every pass over them in an order of its own, the same for the same seed."""

    def __init__(self, sequences: list[Dialogue], longest: int, seed: str) -> None:
        self.pieces = [piece for ids, mask in sequences for piece in _pieces(ids, mask, longest)]
        self.total = sum(len(ids) for ids, _ in self.pieces)
        self.seed = seed

    def between(self, start: int, end: int) -> list[Dialogue]:
        """The sequences that begin at the tokens from `start` up to `end`."""
        found: list[Dialogue] = []
        for epoch in range(start // self.total, -(-end // self.total)):
            order, begins = self._pass(epoch)
            first = bisect_left(begins, start - epoch * self.total)
            last = bisect_left(begins, end - epoch * self.total)
            found += [self.pieces[i] for i in order[first:last]]
        return found

    @lru_cache(maxsize=2)  # noqa: B019 - a stream lives as long as its training
    def _pass(self, epoch: int) -> tuple[list[int], list[int]]:
        """The order of one pass, and the token at which each of its sequences begins."""
        order = random.Random(f"{self.seed}:{epoch}").sample(range(len(self.pieces)), len(self.pieces))
        lengths = [len(self.pieces[i][0]) for i in order]
        return order, [0, *accumulate(lengths)][:-1]


def _pieces(ids: Sequence[int], mask: Sequence[bool], longest: int) -> Iterator[Dialogue]:
    for start in range(0, len(ids), longest):
        yield ids[start : start + longest], mask[start : start + longest]
