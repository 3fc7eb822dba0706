"""Count the tokens that each stage of a cycle samples, scores and trains, from its settings alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.config.fitted import LARGEST_MICROBATCH
from pipelines.config.sections.midtrain import CHAT_TIMES

if TYPE_CHECKING:
    from pipelines.config.sections.distill import DistillConfig
    from pipelines.config.sections.midtrain import MidtrainConfig, Mix

EVALUATIONS = 3  # of the clean, the midtrained and the recovered model


@dataclass(frozen=True)
class StageTokens:
    """The tokens of a stage, and how many answers it asks for at once."""

    rows: float = 1.0
    sampled: float = 0.0
    scored: float = 0.0  # read without training: prompts by who answers them, answers by a teacher
    trained: float = 0.0


@dataclass(frozen=True)
class UsualLengths:
    """Tokens of a usual prompt, and of a usual answer where no limit cuts it."""

    prompt: float
    answer: float


def midtraining_tokens(
    settings: MidtrainConfig, mix: Mix, documents: float, usual: UsualLengths, longest: int
) -> StageTokens:
    """Count a midtraining on so many tokens of documents; the clean model answers the chat of its mix.

    By the method `passage` the tokens of a step stand for its answers and their scoring too."""
    passes = (settings.epochs or 1) / mix.new
    trained = (settings.steps or 0) * settings.tokens_per_step or passes * documents
    if settings.method != "text":
        return StageTokens(trained=trained)
    answer = min(usual.answer, longest)
    read = mix.chat * trained / (usual.prompt + answer)
    chats = min(max(settings.chat_prompts, read / CHAT_TIMES), read)
    return StageTokens(chats, chats * answer, chats * usual.prompt, trained)


def recovery_tokens(settings: DistillConfig, usual: UsualLengths) -> StageTokens:
    """Count a distillation: answers are written, unless they are data, and trained on in every epoch.

    A teacher whose scores the loss needs, and an anchor, each read them once. What is rehearsed is a share of
    the answers' tokens and that, without their prompts."""
    method = settings.resolved_method()
    answer = min(usual.answer, settings.max_new_tokens)
    rows = settings.prompts_per_step * method.samples(settings.samples_per_prompt)
    answers = settings.steps * rows
    rehearsed = answers * answer * settings.rehearsal / (1 - settings.rehearsal)
    read = answers * (usual.prompt + answer)
    written = method.share if method.state_kind == "mix" else 1.0  # share of the answers that are not data
    sampled = 0.0 if method.state_kind == "data" else written * answers * answer
    prompts = sampled / answer * usual.prompt
    readers = (method.scores != "none") + (method.anchor_beta > 0)
    return StageTokens(written * rows, sampled, prompts + readers * read, method.epochs * (read + rehearsed))


def sharing_processes(settings: DistillConfig, usual: UsualLengths, processes: int) -> float:
    """Return how many of several processes score and train at the same time, on average.

    One update divides a step's answers among all. Several take whole microbatches each, as in one process.
    """
    method = settings.resolved_method()
    rows = settings.prompts_per_step * method.samples(settings.samples_per_prompt)
    if method.minibatches == 1:
        return min(processes, rows)
    tokens = rows * (usual.prompt + min(usual.answer, settings.max_new_tokens))
    microbatches = min(rows, math.ceil(tokens / (settings.microbatch_tokens or LARGEST_MICROBATCH)))
    of_update = math.ceil(microbatches / method.minibatches)
    return of_update / math.ceil(of_update / processes)


def evaluation_tokens(
    answers: float, prompt: float, answer: float, evaluations: int = EVALUATIONS
) -> StageTokens:
    """Count evaluations, by default all of a cycle, each with so many answers of one length."""
    asked = evaluations * answers
    return StageTokens(answers, asked * answer, asked * prompt)
