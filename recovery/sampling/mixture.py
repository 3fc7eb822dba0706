"""Two models with one pen: every token is drawn from a mixture of both distributions (MiniLLM's sampling).

    share * q(token | what the teacher reads) + (1 - share) * p(token | what the student reads)

It is the in-process sampler with a second batch that goes along token by token, on a cache of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recovery.batches.rollouts import Rollouts
from recovery.sampling.in_process import _Batch, _decoding
from recovery.sampling.protocol import SamplingParams

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.teachers.teachers import CheckpointTeacher


class MixedSampler:
    """Samples from the student and a teacher in this process, where they stand."""

    def __init__(
        self, student: ChatModel, teacher: CheckpointTeacher, share: float, batch_size: int = 256
    ) -> None:
        self.student, self.teacher, self.share, self.batch_size = student, teacher, share, batch_size

    def sample(
        self, prompts: Sequence[Sequence[int]], contexts: Sequence[Sequence[int]], params: SamplingParams
    ) -> Rollouts:
        """One response a prompt, with the mixture's log-probs; the teacher reads `contexts` instead."""
        numbers = torch.rand(
            len(prompts),
            params.max_new_tokens,
            dtype=torch.float64,
            generator=torch.Generator().manual_seed(params.seed),
        )
        responses: list[list[int]] = []
        logprobs: list[list[float]] = []
        for start in range(0, len(prompts), self.batch_size):
            rows = slice(start, start + self.batch_size)
            tokens, scores = self._batch(prompts[rows], contexts[rows], numbers[rows], params)
            responses, logprobs = responses + tokens, logprobs + scores
        finished = [response[-1] in self.student.stop_ids for response in responses]
        return Rollouts.from_samples(prompts, responses, logprobs, finished, self.student.pad_id)

    def _batch(
        self,
        prompts: Sequence[Sequence[int]],
        contexts: Sequence[Sequence[int]],
        numbers_BT: Tensor,
        params: SamplingParams,
    ) -> tuple[list[list[int]], list[list[float]]]:
        other = self.teacher.chat_model
        with _decoding(self.student.model) as model, _decoding(other.model) as other_model:
            theirs = _Batch(other_model, other, list(contexts), numbers_BT, params)
            return _MixedBatch(self, theirs, model, self.student, list(prompts), numbers_BT, params).run()


class _MixedBatch(_Batch):
    """The student's batch with the teacher's beside it: same rows, same tokens, other prompts."""

    alone = False

    def __init__(self, sampler: MixedSampler, theirs: _Batch, *own: Any) -> None:
        super().__init__(*own)
        self.sampler, self.theirs = sampler, theirs

    def _read_prompts(self) -> Tensor:
        own_BV = super()._read_prompts()
        with self.sampler.teacher._as_teacher():
            return self._mixed(own_BV, self.theirs._read_prompts())

    def _next_logits(self, token_B: Tensor) -> Tensor:
        own_BV = super()._next_logits(token_B)
        with self.sampler.teacher._as_teacher():
            return self._mixed(own_BV, self.theirs._next_logits(token_B))

    def _leave(self, token_B: Tensor) -> Tensor:
        self.theirs.ended_B = self.ended_B
        self.theirs._leave(token_B)
        return super()._leave(token_B)

    def _mixed(self, own_BV: Tensor, theirs_BV: Tensor) -> Tensor:
        return mixed_logits(own_BV, theirs_BV, self.sampler.share, self.params.temperature)


def mixed_logits(student_BV: Tensor, teacher_BV: Tensor, share: float, temperature: float) -> Tensor:
    """Logits whose softmax at `temperature` is share * q + (1 - share) * p, over entries that both have."""
    shared = min(student_BV.shape[-1], teacher_BV.shape[-1])
    p_BV = (student_BV[:, :shared].float() / temperature).log_softmax(-1)
    q_BV = (teacher_BV[:, :shared].float() / temperature).log_softmax(-1)
    return temperature * torch.logaddexp(p_BV + math.log1p(-share), q_BV + math.log(share))
