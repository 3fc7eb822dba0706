"""Score with a teacher whose weights an engine holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

from recovery.batches.rollouts import Rollouts
from recovery.batches.teacher_scores import TeacherScores
from recovery.engines.canary import rollouts_of, token_scores
from recovery.engines.together import on_every_rank, with_restart_together
from recovery.errors import InputError

if TYPE_CHECKING:
    from recovery.engines.protocol import Engine, SampledAnswer
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import SamplingParams
    from recovery.teachers.teachers import Contexts

T = TypeVar("T")


class EngineTeacher:
    """A teacher that an engine runs: scores of the sampled tokens, or also of the top k entries."""

    def __init__(
        self,
        engine: Engine,
        student: ChatModel,
        kind: str,
        k: int = 16,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`check` is called before each use: others may have sent weights to a running server."""
        if kind not in ("sampled", "topk"):
            raise InputError(
                f"{engine.name}: sends log-probs of tokens, not whole distributions: take a method such as "
                "opd-topk or opd-sampled, or a teacher in this process"
            )
        self.engine = engine
        self.student = student
        self.kind = kind
        self.k = k
        self.check = check

    def score(self, rollouts: Rollouts, contexts: Contexts | None = None) -> TeacherScores:
        """Score the counted tokens; a lost engine is an EngineLost, which `together` answers."""
        if contexts is not None:
            rollouts = rollouts.with_prompts(contexts, self.student.pad_id)
        top_k = self.k if self.kind == "topk" else 0
        self.check()
        scores = token_scores(self.engine, rollouts, top_k)
        logprobs_N = torch.tensor([token.logprob for token in scores])
        if self.kind == "sampled":
            return TeacherScores(sampled_logprobs_N=logprobs_N)
        return TeacherScores(
            sampled_logprobs_N=logprobs_N,
            ids_NK=torch.tensor([token.ids for token in scores]),
            logprobs_NK=torch.tensor([token.logprobs for token in scores]),
        )

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Rollouts:
        """Sample one answer per prompt from the teacher; all processes call together."""

        def sample() -> list[SampledAnswer]:
            self.check()
            return self.engine.sample(prompts, params, self.student.stop_ids)

        return rollouts_of(self.student, prompts, self.together(sample))

    def together(self, use: Callable[[], T]) -> T:
        """Return what a use of this teacher returns; where a process loses its engine, all repeat it.

        All processes call together, also those that have nothing to ask: only the first one can restart the
        engine.
        """
        found: list[T] = []

        def attempt() -> str | None:
            found.clear()
            return on_every_rank(lambda: found.append(use()))

        with_restart_together(self.engine, attempt)
        return found[0]
