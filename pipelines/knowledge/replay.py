"""Replay in midtraining: documents of earlier cycles, and chats answered by the clean model."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config.fitted import LARGEST_BATCH
from pipelines.config.sections.midtrain import CHAT_TIMES
from pipelines.distillation.teachers import FrozenTeachers, lent_clean
from pipelines.knowledge.overlap import overlap
from pipelines.prompts.leaks import AskedPrompts, kept_evaluation_prompts
from pipelines.prompts.lengths import answerable
from pipelines.prompts.prompt_sources import Prompt, read_prompts
from pipelines.runs.cost import Flops
from pipelines.runs.progress import counting
from recovery.errors import InputError
from recovery.storage.atomic_dirs import flush_entry, storage_errors, write_text

if TYPE_CHECKING:
    from pipelines.config.jobs import MidtrainJob
    from pipelines.runs.stage_runner import Stage
    from recovery.batches.rollouts import Dialogue
    from recovery.models.chat_model import ChatModel

KEPT_CHAT = "chat.jsonl"
BEGUN_CHAT = "chat_batches.jsonl"  # the batches that are answered, while others are not
ANSWERED_AT_ONCE = 64  # on a CPU: a batch that takes many minutes is lost in a kill

Answered = tuple[list[int], int]
"""Prompt and answer, and where the answer begins."""


def self_answered(
    job: MidtrainJob, stage: Stage, frozen: FrozenTeachers, texts: Sequence[str], wanted: int
) -> list[Dialogue]:
    """Return chats answered by the clean model, of at least `wanted` tokens if the prompts suffice.

    They are written once, so that a resumed run, or the next run of a pilot, trains on the same.
    """
    kept = _kept_chat(job, stage)
    if not kept.exists():
        prompts = chat_prompts(job, stage, texts)
        with lent_clean(frozen) as clean:
            _save(kept, _answers(job, stage, clean, prompts, wanted))
        kept.with_name(BEGUN_CHAT).unlink(missing_ok=True)
    return [(ids, [False] * start + [True] * (len(ids) - start)) for ids, start in _load(kept)]


def _kept_chat(job: MidtrainJob, stage: Stage) -> Path:
    return Path(job.chat) if job.chat else stage.directory / KEPT_CHAT


def chat_prompts(job: MidtrainJob, stage: Stage, texts: Sequence[str]) -> list[Prompt]:
    """Return the prompts in a random order: none that an evaluation asks, none about the texts of documents,
    which the clean model does not know."""
    if job.prompts is None:
        raise InputError("mix.chat is above 0, but there are no prompts: give --prompts or distill.prompts")
    prompts = read_prompts(job.prompts, job.seed, stage.workspace.home)
    clear = AskedPrompts(kept_evaluation_prompts(job, stage)).kept_out_of(prompts)
    leaked, found = len(prompts) - len(clear), overlap(clear, texts)
    if leaked or found.dropped:
        stage.say(
            f"  chat         of {len(prompts):,} prompts left out: {leaked} that the evaluation asks, "
            f"{len(found.dropped)} that mention what the documents are about"
        )
    if not found.kept:
        raise InputError("mix.chat: no prompt is left to answer: give other --prompts")
    return random.Random(job.seed).sample(found.kept, len(found.kept))


def _answers(
    job: MidtrainJob, stage: Stage, clean: ChatModel, prompts: Sequence[Prompt], wanted: int
) -> list[Answered]:
    """Answer prompts until there are `wanted` tokens or no prompt is left; once `chat_prompts` are answered,
    stop as soon as no answer is read more than CHAT_TIMES times. A resumed run asks only what its first
    attempt had not kept.

    An answer that was cut off at the limit counts too: its tokens are what the clean model writes.
    """
    from recovery.sampling.in_process import InProcessSampler
    from recovery.sampling.protocol import SamplingParams

    sampler, flops = InProcessSampler(clean), Flops.of(clean.model)
    prompts = answerable(prompts, clean, stage, name="chat")
    begun = _kept_chat(job, stage).with_name(BEGUN_CHAT)
    found = _begun(begun)
    total = _tokens(found)
    show = counting(stage.step, "tokens of chat, self-answered")
    least = job.settings.chat_prompts
    for first, last in _batches(len(found), len(prompts), least, _at_once(clean)):
        if total >= (wanted if first < least else wanted / CHAT_TIMES):
            break
        asked = [clean.prompt_ids(prompt.messages) for prompt in prompts[first:last]]
        each = total / first if first else sum(map(len, asked)) / len(asked) + job.answer_tokens
        expected = min(wanted, max(wanted // CHAT_TIMES, round(least * each)))
        on_tokens = partial(_show, show, total, expected)
        params = SamplingParams(job.answer_tokens, seed=job.seed, first=first, on_tokens=on_tokens)
        rollouts = sampler.sample(asked, params)
        read, written = sum(map(len, asked)), rollouts.n_tokens
        stage.spend(tokens_sampled=written, flops=flops.answered(read, written, len(asked)))
        answers = zip(asked, rollouts.responses(), strict=True)
        answered = [([*prompt, *answer], len(prompt)) for prompt, answer in answers]
        _append(begun, answered)
        found += answered
        total += _tokens(answered)
    return found


def _show(show: Callable[[int, int], None], before: int, expected: int, tokens: int) -> None:
    """Report how many of the expected tokens there are with those of the open batch."""
    show(min(before + tokens, expected), expected)


def _tokens(chats: Sequence[Answered]) -> int:
    return sum(len(chat) for chat, _ in chats)


def _at_once(clean: ChatModel) -> int:
    """Return how many prompts are answered at once: an accelerator writes more in about the same time."""
    return ANSWERED_AT_ONCE if clean.device.type == "cpu" else LARGEST_BATCH


def _batches(first: int, count: int, least: int, at_once: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of batches of prompts, one of which ends at the `least` number to be answered."""
    while first < count:
        last = min(count, first + at_once, *([least] if first < least else []))
        yield first, last
        first = last


def _begun(path: Path) -> list[Answered]:
    """Return the answers of whole batches; what a kill has left of another one is cut off."""
    data = path.read_bytes() if path.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with storage_errors(path.parent):
            os.truncate(path, len(whole))
    return [(ids, start) for line in whole.splitlines() for ids, start in json.loads(line)]


def _append(path: Path, answered: Sequence[Answered]) -> None:
    """Keep the answers of a batch on a line of their own: a kill leaves all of them or none."""
    with storage_errors(path.parent), path.open("ab") as file:
        file.write(json.dumps(answered).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        flush_entry(path.parent)


def _save(path: Path, dialogues: Sequence[Answered]) -> None:
    with storage_errors(path.parent):
        write_text(path, "".join(json.dumps(row) + "\n" for row in dialogues))


def _load(path: Path) -> list[Answered]:
    with path.open(encoding="utf-8") as file:
        return [tuple(json.loads(line)) for line in file]
