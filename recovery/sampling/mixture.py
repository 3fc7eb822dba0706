"""Sample from a mixture of two models: both read every token, each after its own prompt (MiniLLM).

    share * q(token | the teacher's prompt) + (1 - share) * p(token | the student's prompt)

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recovery.batches.rollouts import Rollouts
from recovery.distributed import gathered
from recovery.forward.decoder import Decoder
from recovery.forward.decoder_choice import decoder_of, decoding
from recovery.sampling.budget import Budget, check_prompts, room_behind
from recovery.sampling.decode_batch import DecodeBatch, Written, written_in_batches
from recovery.sampling.in_process import MOST_ROWS, UniformNumbers
from recovery.sampling.protocol import SamplingParams

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.teachers.teachers import CheckpointTeacher


def sample_mixture(
    student: ChatModel,
    teacher: CheckpointTeacher,
    share: float,
    prompts: Sequence[Sequence[int]],
    contexts: Sequence[Sequence[int]],
    params: SamplingParams,
) -> Rollouts:
    """Return responses with the mixture's log-probs; the teacher reads `contexts` as its prompts."""
    limit, clean = params.max_new_tokens, teacher.chat_model
    numbers_RT = UniformNumbers().of(len(prompts), params)

    def write(rows: list[int]) -> Written:
        chosen = [prompts[row] for row in rows]
        read = [contexts[row] for row in rows]
        ours = decoder_of(model, student.pad_id, limit)
        theirs = decoder_of(other, clean.pad_id, limit)
        mixed = MixedDecoder(ours, theirs, read, teacher.as_teacher, share, params.temperature)
        room = list(map(min, room_behind(chosen, model, limit), room_behind(read, other, limit)))
        return DecodeBatch(mixed, chosen, numbers_RT[rows], params, student.stop_ids, room).run()

    with (
        gathered(student.model),
        gathered(clean.model),
        decoding(student.model) as model,
        decoding(clean.model) as other,
    ):
        budget = Budget.of([model, other], MOST_ROWS, together=params.together)
        check_prompts(prompts, model, limit, budget, params.first)
        check_prompts(contexts, other, limit, budget, params.first)
        lengths = [max(map(len, pair)) + limit for pair in zip(prompts, contexts, strict=True)]
        responses, logprobs = written_in_batches(lengths, budget, write)
    finished = [response[-1] in student.stop_ids for response in responses]
    return Rollouts.from_samples(prompts, responses, logprobs, finished, student.pad_id)


class MixedDecoder(Decoder):
    """Decode the same tokens by both models and mix their distributions."""

    def __init__(
        self,
        student: Decoder,
        teacher: Decoder,
        contexts: Sequence[Sequence[int]],
        as_teacher: Callable[[], AbstractContextManager[None]],
        share: float,
        temperature: float,
    ) -> None:
        self.student = student
        self.teacher = teacher
        self.contexts = contexts
        self.as_teacher = as_teacher
        self.share = share
        self.temperature = temperature
        self.device = student.device
        self.drop_share = max(student.drop_share, teacher.drop_share)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        student_BV = self.student.prefill(prompts)
        with self.as_teacher():
            teacher_BV = self.teacher.prefill(self.contexts)
        return mixed_logits(student_BV, teacher_BV, self.share, self.temperature)

    def step(self, token_B: Tensor) -> Tensor:
        student_BV = self.student.step(token_B)
        with self.as_teacher():
            teacher_BV = self.teacher.step(token_B)
        return mixed_logits(student_BV, teacher_BV, self.share, self.temperature)

    def keep(self, rows_B: Tensor) -> None:
        self.student.keep(rows_B)
        self.teacher.keep(rows_B)


def mixed_logits(student_BV: Tensor, teacher_BV: Tensor, share: float, temperature: float) -> Tensor:
    """Return logits whose softmax at `temperature` is share * q + (1 - share) * p, over shared entries."""
    shared = min(student_BV.shape[-1], teacher_BV.shape[-1])
    p_BV = (student_BV[:, :shared].float() / temperature).log_softmax(-1)
    q_BV = (teacher_BV[:, :shared].float() / temperature).log_softmax(-1)
    return temperature * torch.logaddexp(p_BV + math.log1p(-share), q_BV + math.log(share))
