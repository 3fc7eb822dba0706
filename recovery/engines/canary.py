"""Verify after every sync that an engine holds the trainer's weights, by the log-probs of a few answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recovery.batches.rollouts import Rollouts
from recovery.errors import EngineLost
from recovery.forward.eval_mode import evaluating
from recovery.forward.hidden_states import logits_of
from recovery.forward.precision import matmul_precision
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.teachers import score

if TYPE_CHECKING:
    from recovery.engines.protocol import Engine, SampledAnswer, TokenScore
    from recovery.models.chat_model import ChatModel

CANARY_PROMPTS, CANARY_TOKENS = 8, 16
CHUNK = 256  # tokens whose full distributions are in memory at once


class Canary:
    """Compare the log-probabilities of trainer and engine on a few fixed answers after every sync.

    Agreement within a tolerance shows that the engine holds the trainer's weights. A step may be smaller than
    the tolerance; therefore the engine's log-probs must also change when the trainer's do. Of several servers
    each answers every prompt, and each has to agree.
    """

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self.prompts = [list(prompt) for prompt in prompts]
        self.answers: Rollouts | None = None
        self.before: tuple[Tensor, Tensor] | None = None

    @matmul_precision("highest")  # as a server computes: the TF32 of training alone exceeds the limit in fp32
    def check(self, engine: Engine, student: ChatModel, temperature: float = 1.0) -> dict[str, float]:
        """Return the gaps between engine and trainer as metrics; raise EngineLost if they are too large."""
        params = SamplingParams(CANARY_TOKENS, temperature)
        servers = max(1, len(engine.lengths))
        prompts = [prompt for prompt in self.prompts for _ in range(servers)]  # row i is server i % servers'
        rollouts = rollouts_of(student, prompts, engine.sample(prompts, params, student.stop_ids))
        sampled_gap_N = (trainer_logprobs(student, rollouts, temperature) - rollouts.logprobs_N).abs()
        self.answers = rollouts if self.answers is None else self.answers
        scores = token_scores(engine, self.answers, 0)
        engine_N = torch.tensor([token.logprob for token in scores], dtype=torch.float64)
        trainer_N = trainer_logprobs(student, self.answers).double()
        limit = 1e-3 if student.model.dtype == torch.float32 else 0.05  # nats a token
        scored_gap_N = (trainer_N - engine_N).abs()
        scored_by = [self.answers.rows_N % servers == server for server in range(servers)]
        sampled_by = [rollouts.rows_N % servers == server for server in range(servers)]
        gaps = {
            "scored": _largest_mean(scored_gap_N, scored_by),
            "sampled": _largest_mean(sampled_gap_N, sampled_by),
        }
        for how, gap in gaps.items():
            if not gap < limit:
                dtype = str(student.model.dtype).removeprefix("torch.")
                raise EngineLost(
                    f"it does not hold the trainer's weights, or holds them in another dtype than {dtype}: "
                    f"log-probs of what it {how} differ by {gap:.2g} on average, more than {limit:g}"
                )
        moved = max(self._moved(trainer_N, engine_N, its_N, limit / 1000) for its_N in scored_by)
        self.before = trainer_N, engine_N
        largest = max(float(scored_gap_N.max()), float(sampled_gap_N.max()))
        return {"canary_gap": max(gaps.values()), "canary_gap_max": largest, "canary_moved": moved}

    def _moved(self, trainer_N: Tensor, engine_N: Tensor, its_N: Tensor, least: float) -> float:
        """Return the mean change of the trainer's log-probs since the last sync; the engine's must match it.

        `its_N` masks the tokens that one server scored. The noise level is the gap between the two at the
        last sync, at least `least`. Beyond that noise, each token's log-prob must change as the trainer's
        does; and if most tokens changed for the trainer, at least one must have changed for the engine.
        """
        if self.before is None:
            return 0.0
        trainer_before_N, engine_before_N = self.before
        trainer_change_N = (trainer_N - trainer_before_N)[its_N]
        engine_change_N = (engine_N - engine_before_N)[its_N]
        moved = float(trainer_change_N.abs().mean())
        apart = float((engine_change_N - trainer_change_N).abs().mean())
        noise = max(least, float((engine_before_N - trainer_before_N)[its_N].abs().mean()))
        unchanged = not bool(engine_change_N.any()) and float(trainer_change_N.ne(0).double().mean()) > 0.5
        if unchanged or apart > 0.1 * moved + 8 * noise:
            raise EngineLost(
                f"it was not updated: since the last sync the trainer's log-probs moved by {moved:.2g} on "
                f"average, the engine's by {float(engine_change_N.abs().mean()):.2g}, {apart:.2g} apart"
            )
        return moved


def _largest_mean(gap_N: Tensor, by_server: Sequence[Tensor]) -> float:
    """Return the largest of the servers' mean gaps; not a number if one is none."""
    return float(torch.stack([gap_N[its_N].mean() for its_N in by_server]).max())


def token_scores(engine: Engine, rollouts: Rollouts, k: int) -> list[TokenScore]:
    """Return the engine's scores of the N counted tokens, in order."""
    lengths = rollouts.lengths_B.tolist()
    sequences = [row[:length].tolist() for row, length in zip(rollouts.tokens_BT, lengths, strict=True)]
    masks = [row[:length].tolist() for row, length in zip(rollouts.mask_BT, lengths, strict=True)]
    starts = [mask.index(True) if True in mask else len(mask) for mask in masks]
    rows = engine.score(sequences, starts, k)
    return [
        token
        for row, mask, start in zip(rows, masks, starts, strict=True)
        for token, counts in zip(row, mask[start:], strict=True)
        if counts
    ]


@torch.no_grad()
def trainer_logprobs(student: ChatModel, rollouts: Rollouts, temperature: float = 1.0) -> Tensor:
    """Return the trainer's log-prob of each counted token at the sampling temperature (0 counts as 1)."""
    with evaluating(student.model):
        hidden_ND = score(student, rollouts).hidden_ND
        assert hidden_ND is not None
        columns = []
        pairs = zip(hidden_ND.split(CHUNK), rollouts.tokens_N.to(student.device).split(CHUNK), strict=True)
        for states_ND, tokens_N in pairs:
            logits_NV = logits_of(student.model, states_ND).float() / (temperature or 1.0)
            columns.append(logits_NV.log_softmax(-1).gather(-1, tokens_N[:, None])[:, 0].cpu())
    return torch.cat(columns)


def rollouts_of(
    student: ChatModel, prompts: Sequence[Sequence[int]], answers: Sequence[SampledAnswer]
) -> Rollouts:
    """Return an engine's answers as rollouts."""
    stops = set(student.stop_ids)
    return Rollouts.from_samples(
        prompts,
        [answer.tokens for answer in answers],
        [answer.logprobs for answer in answers],
        [answer.tokens[-1] in stops for answer in answers],
        student.pad_id,
    )
