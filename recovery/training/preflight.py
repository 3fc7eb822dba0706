"""Check a student, its teacher and its sampler before training.

Every prompt is rendered. On a few dozen prompts, the checks compare what the models compute and sample, not
what their configs claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recovery.batches.rollouts import Rollouts
from recovery.counted import counted
from recovery.errors import GateError, InputError
from recovery.forward.eval_mode import evaluating
from recovery.forward.hidden_states import (
    can_pack,
    hidden_states,
    is_adapter,
    logits_of,
    plain_states,
    unwrap,
)
from recovery.methods import table
from recovery.models.adapters import adapter_off
from recovery.objective.objective import Objective
from recovery.objective.token_signals import TokenSignals
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import Sampler, SamplingParams
from recovery.teachers.teachers import score
from recovery.training.token_loss import TokenLoss
from recovery.training.updater import Microbatch

if TYPE_CHECKING:
    from recovery.models.chat_encoding import ChatEncoder
    from recovery.models.chat_model import ChatModel

Messages = Sequence[dict[str, Any]]
MAX_TOKENS = 8192  # per forward pass
MOST_PROMPTS = 32  # that are answered
NEW_TOKENS = 96  # of an answer, at most
MIN_STOP_MASS = 0.1  # probability above which a model counts as stopping
CHUNK = 256  # tokens whose full distributions are in memory at once


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
    on_tokens: Callable[[int, int], None] | None = None,
) -> list[Check]:
    """Run all checks; skip those that an earlier failure makes meaningless.

    Report `on_tokens(tokens sampled, tokens at most)` where the model is in this process.
    If the teacher is the student's model with an adapter, the teacher is the base model without it.
    """
    found = [vocabulary(student, teacher), prompt_ids(student, teacher, prompts)]
    found += [stop_tokens(student, teacher), turn_end(student, teacher), padded_vocabulary(student, teacher)]
    if not all(check.ok for check in found):
        return found
    ids = [student.prompt_ids(messages) for messages in prompts[:MOST_PROMPTS]]
    shortest = min(ids, key=len)
    found.append(head("student", student, shortest))
    with _teaching(student, teacher):
        found.append(head("teacher", teacher, shortest))
    if not all(check.ok for check in found):
        return found
    most = len(ids) * NEW_TOKENS

    def params(before: int) -> SamplingParams:
        seen = (lambda tokens: on_tokens(before + tokens, 2 * most)) if on_tokens else None
        return SamplingParams(max_new_tokens=NEW_TOKENS, on_tokens=seen)

    with _teaching(student, teacher):
        theirs = InProcessSampler(teacher).sample(ids, params(0))
    mine = (sampler or InProcessSampler(student)).sample(ids, params(most))
    return found + _of_answers(student, teacher, mine, theirs)


@torch.no_grad()
def _of_answers(student: ChatModel, teacher: ChatModel, mine: Rollouts, theirs: Rollouts) -> list[Check]:
    """Check how both models stop and score, on the student's answers and the teacher's."""
    with evaluating(student.model), evaluating(teacher.model):
        stops = [
            same_stops("stop mass", student, teacher, theirs),
            same_stops("student's stops", student, teacher, mine),
        ]
        with _teaching(student, teacher):
            itself = teacher_is_itself(teacher, theirs)
        seen = TokenMoments.of(student, mine)
    return [*stops, itself, sampler_agrees(student, mine, seen), sampler_is_whole(seen)]


def _teaching(student: ChatModel, teacher: ChatModel) -> Any:
    """Disable the student's adapter inside the block, if the teacher shares the student's model."""
    shared = teacher.model is student.model and is_adapter(student.model)
    return adapter_off(student) if shared else nullcontext()


def require(found: Iterable[Check]) -> None:
    """Raise GateError with the first failed check and its remedy, if any check failed."""
    failed = [check for check in found if not check.ok]
    if failed:
        more = f" (and {len(failed) - 1} more: {', '.join(c.name for c in failed[1:])})" if failed[1:] else ""
        raise GateError(f"preflight: {failed[0].name}: {failed[0].detail}: {failed[0].remedy}{more}")


def vocabulary(student: ChatModel | ChatEncoder, teacher: ChatModel | ChatEncoder) -> Check:
    """Check that both vocabularies are equal: the teacher scores the student's token ids."""
    mine, theirs = student.tokenizer.get_vocab(), teacher.tokenizer.get_vocab()
    other = sorted(token for token in mine.keys() | theirs.keys() if mine.get(token) != theirs.get(token))
    detail = f"{len(mine)} tokens, the same ids"
    if other:
        ids = f"{mine.get(other[0])} for the student, {theirs.get(other[0])} for the teacher"
        detail = f"{counted(len(other), 'different token')}, first {other[0]!r}: id {ids}"
    return Check("vocabulary", not other, detail, "take a teacher with the student's tokenizer")


def prompt_ids(student: ChatModel, teacher: ChatModel, prompts: Sequence[Messages]) -> Check:
    """Check that both templates accept every prompt and render it to the same ids."""
    alike = _encodes_alike(student, teacher)
    refused: list[tuple[int, str]] = []
    differing: tuple[int, list[int], list[int]] | None = None
    for number, messages in enumerate(prompts):
        try:
            mine = student.prompt_ids(messages)
            theirs = mine if alike else teacher.prompt_ids(messages)
        except InputError as error:
            refused.append((number, str(error)))
            continue
        differing = differing or (None if mine == theirs else (number, mine, theirs))
    if refused:
        row, reason = refused[0]
        asked = counted(len(prompts), "prompt")
        detail = f"{len(refused)} of {asked} cannot be rendered, first prompt {row}: {reason}"
        return Check("prompt ids", False, detail, "change or leave out these prompts")
    if differing:
        detail = _difference(student, teacher, *differing)
        return Check("prompt ids", False, detail, "give both the same chat template and template_args")
    return Check("prompt ids", True, f"the same in {counted(len(prompts), 'prompt')}")


def _encodes_alike(student: ChatModel, teacher: ChatModel) -> bool:
    """Return whether what encodes the student's prompts encodes the teacher's: none has to be read twice."""
    if teacher is student:
        return True
    ours, theirs = ((c.tokenizer, c.template_args, c.stop_ids) for c in (student, teacher))
    return ours[0] is theirs[0] and ours[1:] == theirs[1:]


def _difference(
    student: ChatModel, teacher: ChatModel, number: int, mine: list[int], theirs: list[int]
) -> str:
    """Return where a prompt's ids begin to differ, and what either model reads there."""
    pairs = zip(mine, theirs, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(theirs)))
    texts = [
        chat.tokenizer.decode(ids[place : place + 8]) for chat, ids in ((student, mine), (teacher, theirs))
    ]
    return f"prompt {number} differs from token {place}: student {texts[0]!r}, teacher {texts[1]!r}"


def stop_tokens(student: ChatModel, teacher: ChatModel) -> Check:
    """Check that student and teacher have the same stop tokens."""
    mine, theirs = set(student.stop_ids), set(teacher.stop_ids)
    detail = f"student {sorted(mine)}, teacher {sorted(theirs)}"
    return Check(
        "stop tokens", mine == theirs, detail, "make their generation configs' eos_token_id the same"
    )


def turn_end(student: ChatModel, teacher: ChatModel) -> Check:
    """Check that the token that the template writes after an answer is a stop token in sampling."""
    for whose, chat in (("student", student), ("teacher", teacher)):
        end = chat.encoder.turn_end_id
        if end is not None and end not in chat.stop_ids:
            detail = (
                f"the {whose}'s template ends a turn with {end}, which is not among {sorted(chat.stop_ids)}"
            )
            return Check("turn end", False, detail, "add it to the generation config's eos_token_id")
    end = student.encoder.turn_end_id
    detail = "the template writes no token after an answer" if end is None else f"{end} ends an answer"
    return Check("turn end", True, detail)


def padded_vocabulary(student: ChatModel, teacher: ChatModel) -> Check:
    """Check that both heads have a row for every token that is read or sampled; they may differ by padding.

    Control tokens that only other models of a family read, as of images, may have none: nothing gives them.
    """
    rows = [unwrap(chat.model).get_output_embeddings().weight.shape[0] for chat in (student, teacher)]
    sampled = min(rows[0], max(student.tokenizer.get_vocab().values()) + 1)
    needed = max(student.largest_id + 1, sampled)
    detail = f"head rows: student {rows[0]}, teacher {rows[1]}; the tokenizer needs {needed}"
    return Check(
        "vocabulary size", min(rows) >= needed, detail, "take the checkpoint that belongs to the tokenizer"
    )


def packing(chat: ChatModel) -> Check:
    """Check by trial whether packed documents (several in one row) are isolated from each other."""
    config = unwrap(chat.model).config
    how = f"{config.model_type} with {getattr(config, '_attn_implementation', None) or 'its own'} attention"
    if can_pack(chat.model):
        return Check("packing", True, f"documents share rows; {how} keeps them apart")
    return Check("packing", False, f"each document in rows of its own; {how} cannot keep shared ones apart")


@torch.no_grad()
def head(whose: str, chat: ChatModel, prompt: Sequence[int]) -> Check:
    """Check that logits computed from hidden states, as in the loss, equal those of the full forward pass.

    The forward pass gives logits of the whole prompt: take a short one.
    """
    tokens_BT = torch.tensor([list(prompt)], device=chat.device)
    with evaluating(chat.model):
        own = chat.model(input_ids=tokens_BT).logits.float()
        states_BTD = plain_states(unwrap(chat.model), tokens_BT, torch.ones_like(tokens_BT))
        ours = logits_of(chat.model, states_BTD).float()
    gap = float((own - ours).abs().max() / own.abs().max().clamp(min=1e-9))
    ok = gap < _tolerance(chat, 1e-4, 0.03)
    return Check(
        f"{whose} head", ok, f"logits differ by {gap:.1g} of their size", "this architecture is not supported"
    )


def same_stops(name: str, student: ChatModel, teacher: ChatModel, rollouts: Rollouts) -> Check:
    """Compare the most likely stop token of each model, and its probability, at the ends of answers.

    A student damaged by midtraining may never stop, or stop as documents do; training repairs both. The check
    fails if the two stop differently and the teacher's token is not the one that both templates write.
    """
    remedy = "compare chat templates and generation configs: they end turns differently"
    rows = min(unwrap(chat.model).get_input_embeddings().weight.shape[0] for chat in (student, teacher))
    ended = (rollouts.finished_B & (rollouts.tokens_BT < rows).all(1)).nonzero()[:, 0]
    if not len(ended):
        return Check(name, True, "not seen: none of the responses ended in time")
    rollouts = rollouts.select(ended)
    student_masses = _stop_masses(student, teacher.stop_ids, rollouts)
    with _teaching(student, teacher):
        teacher_masses = _stop_masses(teacher, teacher.stop_ids, rollouts)
    detail = f"student {_shares(student_masses)}, teacher {_shares(teacher_masses)}"
    mine = max(student_masses, key=lambda stop: student_masses[stop])
    theirs = max(teacher_masses, key=lambda stop: teacher_masses[stop])
    both_stop = student_masses[mine] > MIN_STOP_MASS and teacher_masses[theirs] > MIN_STOP_MASS
    differ = mine != theirs and both_stop and teacher_masses[mine] < 0.1 * teacher_masses[theirs]
    if differ and theirs == teacher.encoder.turn_end_id == student.encoder.turn_end_id:
        return Check(name, True, f"{detail}: training will teach the student to end its turns again")
    return Check(name, not differ, detail, remedy)


def _stop_masses(chat: ChatModel, stop_ids: Sequence[int], rollouts: Rollouts) -> dict[int, float]:
    """Return the mean probability of each stop token at the position where the responses ended."""
    sums = dict.fromkeys(stop_ids, 0.0)
    for part in rollouts.to(chat.device).split(MAX_TOKENS):
        before_last_B = part.lengths_B - 2  # the state that predicts the last token
        hidden_BTD = hidden_states(chat.model, *part.model_inputs[:2])
        states_BD = hidden_BTD[torch.arange(len(part)), before_last_B]
        probabilities_V = logits_of(chat.model, states_BD).float().softmax(-1).sum(0)
        for stop in sums:
            sums[stop] += float(probabilities_V[stop])
    return {stop: mass / len(rollouts) for stop, mass in sums.items()}


def teacher_is_itself(teacher: ChatModel, rollouts: Rollouts) -> Check:
    """Check that the training loss of the teacher against itself is zero."""
    loss_of = TokenLoss(Objective(table.get("opd"), teacher.stop_ids))
    total = 0.0
    for part in rollouts.split(MAX_TOKENS):
        scores = score(teacher, part, max_tokens=1)
        total += float(loss_of(teacher.model, Microbatch(part, TokenSignals(scores))).value)
    kl = total / max(1, rollouts.n_tokens)
    ok = abs(kl) < _tolerance(teacher, 1e-4, 0.01)
    return Check(
        "self-KL", ok, f"teacher against itself {kl:.1g} nats a token", "its scores and tokens don't line up"
    )


@dataclass(frozen=True)
class TokenMoments:
    """The student's log-probability of sampled tokens, with its expectation and variance."""

    logprob_N: Tensor
    mean_N: Tensor
    variance_N: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, student: ChatModel, rollouts: Rollouts) -> TokenMoments:
        hidden_ND = score(student, rollouts, max_tokens=MAX_TOKENS).hidden_ND
        assert hidden_ND is not None
        tokens_N = rollouts.tokens_N.to(student.device)
        columns = []
        for states, tokens in zip(hidden_ND.split(CHUNK), tokens_N.split(CHUNK), strict=True):
            logprobs_NV = logits_of(student.model, states).log_softmax(-1, dtype=torch.float32)
            p_NV = logprobs_NV.exp()
            sampled_N = logprobs_NV.gather(-1, tokens[:, None])[:, 0]
            logprobs_NV = logprobs_NV.clamp(min=-1e4)  # an impossible token: 0 * log 0 is 0
            mean_N = torch.linalg.vecdot(p_NV, logprobs_NV)
            variance_N = torch.linalg.vecdot(p_NV, logprobs_NV.square()) - mean_N.square()
            columns.append(torch.stack([sampled_N, mean_N, variance_N]).cpu())
        return cls(*torch.cat(columns, 1))


def sampler_agrees(student: ChatModel, rollouts: Rollouts, seen: TokenMoments) -> Check:
    """Check that the sampler's log-probabilities equal the trainer's."""
    gap_N = (seen.logprob_N - rollouts.logprobs_N.cpu()).abs()
    ok = float(gap_N.mean()) < _tolerance(student, 1e-3, 0.05)
    detail = f"log-probs differ by {float(gap_N.mean()):.1g} on average, {float(gap_N.max()):.1g} at most"
    return Check("sampler log-probs", ok, detail, "sync the sampler's weights, and sample at temperature 1")


def sampler_is_whole(seen: TokenMoments) -> Check:
    """Check that tokens are sampled from the full distribution: no top-p, top-k or temperature.

    log p(token) + entropy has mean 0 and a known variance under the full distribution; a sampler that drops
    unlikely tokens raises the mean.
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
