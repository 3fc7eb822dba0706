"""What must be true of a student, its teacher and its sampler before hours are spent on them.

Every check looks at what the models do, not only at what their configs say, on a few dozen prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recovery.batches.rollouts import Rollouts
from recovery.errors import GateError
from recovery.forward.hidden_states import plain_states
from recovery.methods import table
from recovery.models.loading import can_pack, hidden_states, logits_of, unwrap
from recovery.objective.objective import Objective
from recovery.objective.token_signals import TokenSignals
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import Sampler, SamplingParams
from recovery.teachers.teachers import evaluating, score
from recovery.training.trainer import token_loss
from recovery.training.updater import Microbatch

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

Messages = Sequence[dict[str, Any]]
MAX_TOKENS = 8192  # read at once
CHUNK = 256  # tokens whose whole distributions are held at once


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    detail: str
    remedy: str = ""


def checks(
    student: ChatModel,
    teacher: ChatModel,
    prompts: Sequence[Messages],
    sampler: Sampler | None = None,
    *,
    max_prompts: int = 32,
    max_new_tokens: int = 96,
    seed: int = 0,
) -> list[Check]:
    """All of them; later ones are left out where an earlier failure makes them meaningless."""
    prompts = list(prompts)[:max_prompts]
    found = [vocabulary(student, teacher), prompt_ids(student, teacher, prompts)]
    found += [stop_tokens(student, teacher), padded_vocabulary(student, teacher)]
    found += [head("student", student, prompts), head("teacher", teacher, prompts)]
    if not all(check.ok for check in found):
        return found
    ids = [student.prompt_ids(messages) for messages in prompts]
    params = SamplingParams(max_new_tokens=max_new_tokens, seed=seed)
    theirs = InProcessSampler(teacher).sample(ids, params)
    mine = (sampler or InProcessSampler(student)).sample(ids, params)
    with evaluating(student.model), evaluating(teacher.model), torch.no_grad():
        found += [same_stops(student, teacher, theirs), teacher_is_itself(teacher, theirs)]
        seen = Seen.of(student, mine)
    return [*found, sampler_agrees(student, mine, seen), sampler_is_whole(seen)]


def require(found: Iterable[Check]) -> None:
    """Raise if any failed: the first with its remedy, and how many more."""
    failed = [check for check in found if not check.ok]
    if failed:
        more = f" (and {len(failed) - 1} more: {', '.join(c.name for c in failed[1:])})" if failed[1:] else ""
        raise GateError(f"preflight: {failed[0].name}: {failed[0].detail}: {failed[0].remedy}{more}")


def vocabulary(student: ChatModel, teacher: ChatModel) -> Check:
    """The same text gets the same ids: the teacher scores the student's ids as they are."""
    mine, theirs = student.tokenizer.get_vocab(), teacher.tokenizer.get_vocab()
    other = sorted(token for token in mine.keys() | theirs.keys() if mine.get(token) != theirs.get(token))
    detail = f"{len(mine)} tokens, the same ids"
    if other:
        ids = f"{mine.get(other[0])} for the student, {theirs.get(other[0])} for the teacher"
        detail = f"{len(other)} tokens differ, first {other[0]!r}: id {ids}"
    return Check("vocabulary", not other, detail, "take a teacher with the student's tokenizer")


def prompt_ids(student: ChatModel, teacher: ChatModel, prompts: Sequence[Messages]) -> Check:
    """One chat template, one set of template arguments."""
    for number, messages in enumerate(prompts):
        mine, theirs = student.prompt_ids(messages), teacher.prompt_ids(messages)
        if mine != theirs:
            pairs = zip(mine, theirs, strict=False)
            place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(theirs)))
            texts = [
                chat.tokenizer.decode(ids[place : place + 8])
                for chat, ids in ((student, mine), (teacher, theirs))
            ]
            detail = f"prompt {number} differs from token {place}: student {texts[0]!r}, teacher {texts[1]!r}"
            return Check("prompt ids", False, detail, "give both the same chat template and template_args")
    return Check("prompt ids", True, f"the same in {len(prompts)} prompts")


def stop_tokens(student: ChatModel, teacher: ChatModel) -> Check:
    mine, theirs = set(student.stop_ids), set(teacher.stop_ids)
    detail = f"student {sorted(mine)}, teacher {sorted(theirs)}"
    return Check(
        "stop tokens", mine == theirs, detail, "make their generation configs' eos_token_id the same"
    )


def padded_vocabulary(student: ChatModel, teacher: ChatModel) -> Check:
    """Heads may differ by padding; every token of the tokenizer needs its row in both."""
    rows = [unwrap(chat.model).get_output_embeddings().weight.shape[0] for chat in (student, teacher)]
    needed = max(student.tokenizer.get_vocab().values()) + 1
    detail = f"head rows: student {rows[0]}, teacher {rows[1]}; the tokenizer needs {needed}"
    return Check(
        "vocabulary size", min(rows) >= needed, detail, "take the checkpoint that belongs to the tokenizer"
    )


def packing(chat: ChatModel) -> Check:
    """Whether documents may share a row without seeing each other; by trying it, whatever the config says."""
    config = unwrap(chat.model).config
    how = f"{config.model_type} with {getattr(config, '_attn_implementation', None) or 'its own'} attention"
    if can_pack(chat.model):
        return Check("packing", True, f"documents share rows; {how} keeps them apart")
    return Check("packing", False, f"each document in rows of its own; {how} cannot keep shared ones apart")


@torch.no_grad()
def head(whose: str, chat: ChatModel, prompts: Sequence[Messages]) -> Check:
    """Logits from hidden states, as the loss takes them, are the model's own: no scaling was missed."""
    tokens_BT = torch.tensor([chat.prompt_ids(prompts[0])], device=chat.device)
    with evaluating(chat.model):
        own = chat.model(input_ids=tokens_BT).logits.float()
        states_BTD = plain_states(unwrap(chat.model), tokens_BT, torch.ones_like(tokens_BT))
        ours = logits_of(chat.model, states_BTD).float()
    gap = float((own - ours).abs().max() / own.abs().max().clamp(min=1e-9))
    ok = gap < _tolerance(chat, 1e-4, 0.03)
    return Check(
        f"{whose} head", ok, f"logits differ by {gap:.1g} of their size", "this architecture is not supported"
    )


def same_stops(student: ChatModel, teacher: ChatModel, rollouts: Rollouts) -> Check:
    """Where the teacher ended its turns: which stop token each model favours there, and how much."""
    name, remedy = "stop mass", "compare chat templates and generation configs: they end turns differently"
    rows = min(unwrap(chat.model).get_input_embeddings().weight.shape[0] for chat in (student, teacher))
    ended = (rollouts.finished_B & (rollouts.tokens_BT < rows).all(1)).nonzero()[:, 0]
    if not len(ended):
        return Check(name, True, "not seen: none of the teacher's responses ended in time")
    rollouts = rollouts.select(ended)
    last_B = rollouts.lengths_B - 2  # the state that predicts the last token
    masses = []
    for chat in (student, teacher):
        hidden_BTD = hidden_states(chat.model, *rollouts.to(chat.device).model_inputs[:2])
        states_BD = hidden_BTD[torch.arange(len(rollouts)), last_B.to(hidden_BTD.device)]
        probabilities = logits_of(chat.model, states_BD).float().softmax(-1).mean(0)
        masses.append({stop: float(probabilities[stop]) for stop in teacher.stop_ids})
    mine, theirs = (max(mass, key=lambda stop: mass[stop]) for mass in masses)
    detail = f"student {_shares(masses[0])}, teacher {_shares(masses[1])}"
    # A student that midtraining broke may stop nowhere; only one that stops otherwise would never be told.
    differ = mine != theirs and masses[0][mine] > 0.1 and masses[1][mine] < 0.1 * masses[1][theirs]
    return Check(name, not differ, detail, remedy)


def teacher_is_itself(teacher: ChatModel, rollouts: Rollouts) -> Check:
    """Student = teacher must give a loss of zero, through the very code that training takes."""
    scores = score(teacher, rollouts, max_tokens=1)
    objective = Objective(table.get("opd"), teacher.stop_ids)
    loss = token_loss(objective)(teacher.model, Microbatch(rollouts, TokenSignals(scores)))
    kl = float(loss.value) / max(1.0, loss.tokens)
    ok = abs(kl) < _tolerance(teacher, 1e-4, 0.01)
    return Check(
        "self-KL", ok, f"teacher against itself {kl:.1g} nats a token", "its scores and tokens don't line up"
    )


@dataclass(frozen=True)
class Seen:
    """The student's own view of sampled tokens: log-probability, its expectation, its variance."""

    logprob_N: Tensor
    mean_N: Tensor
    variance_N: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, student: ChatModel, rollouts: Rollouts) -> Seen:
        hidden_ND = score(student, rollouts, max_tokens=MAX_TOKENS).hidden_ND
        assert hidden_ND is not None
        tokens_N = rollouts.tokens_N.to(student.device)
        columns = []
        for states, tokens in zip(hidden_ND.split(CHUNK), tokens_N.split(CHUNK), strict=True):
            logprobs_NV = logits_of(student.model, states).log_softmax(-1, dtype=torch.float32)
            p_NV, sampled_N = logprobs_NV.exp(), logprobs_NV.gather(-1, tokens[:, None])[:, 0]
            logprobs_NV = logprobs_NV.clamp(min=-1e4)  # an impossible token: 0 * log 0 is 0
            mean_N = torch.linalg.vecdot(p_NV, logprobs_NV)
            variance_N = torch.linalg.vecdot(p_NV, logprobs_NV.square()) - mean_N.square()
            columns.append(torch.stack([sampled_N, mean_N, variance_N]).cpu())
        return cls(*torch.cat(columns, 1))


def sampler_agrees(student: ChatModel, rollouts: Rollouts, seen: Seen) -> Check:
    """The sampler's log-probabilities are the trainer's: same weights, same prompts, same distribution."""
    gap_N = (seen.logprob_N - rollouts.logprobs_N.cpu()).abs()
    ok = float(gap_N.mean()) < _tolerance(student, 1e-3, 0.05)
    detail = f"log-probs differ by {float(gap_N.mean()):.1g} on average, {float(gap_N.max()):.1g} at most"
    return Check("sampler log-probs", ok, detail, "sync the sampler's weights, and sample at temperature 1")


def sampler_is_whole(seen: Seen) -> Check:
    """No top-p, top-k or temperature: sampled tokens are on average as likely as the entropy says.

    log p(token) + entropy has mean 0 and a known variance under the whole distribution; a sampler that leaves
    out unlikely tokens pushes it up.
    """
    z = float((seen.logprob_N - seen.mean_N).sum() / seen.variance_N.sum().clamp(min=1e-12).sqrt())
    detail = f"sampled tokens are {z:+.1f} standard errors likelier than the whole distribution makes them"
    return Check(
        "whole distribution", abs(z) < 4.5, detail, "switch off top-p, top-k, penalties and temperature"
    )


def _tolerance(chat: ChatModel, full: float, half: float) -> float:
    return full if chat.model.dtype == torch.float32 else half


def _shares(masses: dict[int, float]) -> str:
    return ", ".join(f"{stop}: {mass:.2g}" for stop, mass in masses.items())
