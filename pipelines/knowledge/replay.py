"""What midtraining repeats lest it be forgotten: earlier cycles' documents, and the model's own chat."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.distillation.leaks import drop_leaks, evaluation_prompts
from pipelines.distillation.prompts import Prompt, read_prompts
from pipelines.knowledge.overlap import overlap
from pipelines.runs.cost import Flops
from recovery.errors import InputError
from recovery.storage.atomic_dirs import storage_errors

if TYPE_CHECKING:
    from pipelines.config.jobs import MidtrainJob
    from pipelines.corpus.token_file import Tokens
    from pipelines.runs.stage_runner import Stage
    from pipelines.runs.workspace import Workspace
    from recovery.batches.rollouts import Dialogue

KEPT_CHAT = "chat.jsonl"


def reservoir(cycles: Sequence[Tokens], most: int, seed: int) -> list[Dialogue]:
    """Earlier documents of about `most` tokens, the same from every cycle as far as it has them, so that a
    small old cycle is not drowned by a large one. Their opening tokens are left to the caller."""
    waiting = [
        iter(random.Random(f"replay:{seed}:{number}").sample(range(len(tokens)), len(tokens)))
        for number, tokens in enumerate(cycles)
    ]
    spent = dict.fromkeys(range(len(cycles)), 0)
    kept: list[Dialogue] = []
    total = 0
    while spent and total < most:
        number = min(spent, key=lambda cycle: (spent[cycle], cycle))
        document = next(waiting[number], None)
        if document is None:
            del spent[number]
            continue
        kept.append(replace(cycles[number], opening=()).sequence(document))
        spent[number] += len(kept[-1][0])
        total += len(kept[-1][0])
    return kept


def self_answered(ws: Workspace, job: MidtrainJob, stage: Stage, texts: Sequence[str]) -> list[Dialogue]:
    """Chat prompts answered by the clean model itself: replay that needs no data of anyone else. Written
    once: a resumed run trains on the same answers."""
    kept = stage.directory / KEPT_CHAT
    if not kept.exists():
        dialogues = _answers(ws, job, stage, _prompts(job, stage, texts))
        if not dialogues:
            raise InputError(
                "mix.chat: the clean model ended none of its answers within distill.max_new_tokens: raise it"
            )
        _save(kept, dialogues)
    return [(ids, [False] * start + [True] * (len(ids) - start)) for ids, start in _load(kept)]


def _prompts(job: MidtrainJob, stage: Stage, texts: Sequence[str]) -> list[Prompt]:
    """Some of the prompts: none that the evaluation asks, none about what the clean model does not know."""
    if job.prompts is None:
        raise InputError("mix.chat is above 0, but there are no prompts: give --prompts or distill.prompts")
    prompts = read_prompts(job.prompts, job.seed)
    asked = evaluation_prompts(job.evaluation, stage) if job.evaluation else []
    clear, leaked = drop_leaks(prompts, asked)
    found = overlap(clear, texts)
    if leaked or found.dropped:
        stage.say(
            f"  chat         of {len(prompts):,} prompts left out: {leaked} that the evaluation asks, "
            f"{len(found.dropped)} that mention what the documents are about"
        )
    if not found.kept:
        raise InputError("mix.chat: no prompt is left to answer: give other --prompts")
    return random.Random(job.seed).sample(found.kept, min(job.settings.chat_prompts, len(found.kept)))


def _answers(
    ws: Workspace, job: MidtrainJob, stage: Stage, prompts: Sequence[Prompt]
) -> list[tuple[list[int], int]]:
    """(prompt and answer, where the answer begins) of every answer that ended by itself."""
    from recovery.sampling.in_process import InProcessSampler
    from recovery.sampling.protocol import SamplingParams

    clean = ws.load(ws.clean())
    ids = [clean.prompt_ids(prompt.messages) for prompt in prompts]
    params = SamplingParams(ws.config.distill.max_new_tokens, seed=job.seed)
    rollouts = InProcessSampler(clean).sample(ids, params)
    read, written = sum(map(len, ids)), rollouts.n_tokens
    flops = Flops.of(clean.model).forward(read + written, (read + written / 2) / len(ids))
    stage.spend(tokens_sampled=written, flops=flops)
    whole = zip(ids, rollouts.responses(), rollouts.finished_B.tolist(), strict=True)
    return [([*prompt, *answer], len(prompt)) for prompt, answer, finished in whole if finished]


def _save(path: Path, dialogues: Sequence[tuple[list[int], int]]) -> None:
    partial = path.with_suffix(".partial")
    with storage_errors(path.parent), partial.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in dialogues)
    partial.rename(path)


def _load(path: Path) -> list[tuple[list[int], int]]:
    with path.open(encoding="utf-8") as file:
        return [tuple(json.loads(line)) for line in file]
