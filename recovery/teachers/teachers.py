"""Score the counted tokens of rollouts with a teacher: a checkpoint, the student itself, or several routed.

A teacher may read another prompt than the student did (`contexts`). The response and the order of its counted
tokens are the same, so the scores line up with the student's tokens.

Shape legend: N counted tokens in row-major order, D hidden size, V vocabulary, K top entries.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from recovery import distributed
from recovery.batches.rollouts import Rollouts
from recovery.batches.teacher_scores import TeacherScores
from recovery.distributed import gathered
from recovery.errors import InputError
from recovery.forward.eval_mode import evaluating
from recovery.forward.hidden_states import logits_of, predicting_states, read_at_once
from recovery.models.adapters import adapter_off, changes_head

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

T = TypeVar("T")
KINDS = ("dense", "sampled", "topk")
HEAD_ENTRIES = 2**26  # logits in memory at once when only a part of the distribution is kept
Contexts = Sequence[Sequence[int]]  # the teacher's prompt of each row, as token ids


class Teacher(Protocol):
    def score(self, rollouts: Rollouts, contexts: Contexts | None = None) -> TeacherScores: ...


@runtime_checkable
class UsedTogether(Protocol):
    """A teacher whose calls are collective: every process takes part, also one without rows to score."""

    def together(self, use: Callable[[], T]) -> T: ...


class CheckpointTeacher:
    """A frozen model. The constructor switches off its gradients and sets eval mode."""

    def __init__(
        self, chat_model: ChatModel, kind: str = "dense", k: int = 16, max_tokens: int | None = None
    ) -> None:
        if kind not in KINDS:
            raise InputError(f"teacher: kind {kind!r} is not one of {', '.join(KINDS)}")
        self.chat_model = chat_model
        self.kind = kind
        self.k = k
        self.max_tokens = max_tokens
        self._freeze()

    def _freeze(self) -> None:
        self.chat_model.model.requires_grad_(False).eval()

    def score(self, rollouts: Rollouts, contexts: Contexts | None = None) -> TeacherScores:
        if contexts is not None:
            rollouts = rollouts.with_prompts(contexts, self.chat_model.pad_id)
        with self.as_teacher():
            return score(self.chat_model, rollouts, self.kind, self.k, self.max_tokens)

    def as_teacher(self) -> Any:
        return nullcontext()


class AdapterOffTeacher(CheckpointTeacher):
    """The student with its adapter disabled: the clean model, if midtraining trained this adapter too."""

    def _freeze(self) -> None:
        if not hasattr(self.chat_model.model, "peft_config"):
            raise InputError(
                f"teacher: {self.chat_model.path} has no adapter to switch off: name a teacher checkpoint"
            )
        if changes_head(self.chat_model.model):
            raise InputError(
                "teacher: the adapter also changes the output head: name a teacher checkpoint instead"
            )

    @contextmanager
    def as_teacher(self) -> Iterator[None]:
        with evaluating(self.chat_model.model), adapter_off(self.chat_model):
            yield


class SelfTeacher(CheckpointTeacher):
    """A frozen copy of the student; with `decay`, a moving average (EMA) that `follow` updates."""

    def __init__(
        self,
        student: ChatModel,
        kind: str = "dense",
        k: int = 16,
        max_tokens: int | None = None,
        decay: float | None = None,
    ) -> None:
        if decay is not None and not 0 <= decay <= 1:
            raise InputError(
                f"teacher: decay {decay}: the share of the average that each step keeps is within 0 to 1"
            )
        self.student = student
        self.decay = decay
        # Share the frozen weights, so that copying a LoRA student costs only its adapter's memory.
        shared = {id(p): p for p in student.model.parameters() if not p.requires_grad}
        names = [name for name, p in student.model.named_parameters() if p.requires_grad]
        copied = copy.copy(student)
        copied.model = copy.deepcopy(student.model, shared)
        super().__init__(copied, kind, k, max_tokens)
        # Keep the average in fp32: in bf16 an update of a few per mille is lost to rounding.
        self._averages: dict[str, Tensor] = {}
        if decay is not None:
            weights = dict(copied.model.named_parameters())
            self._averages = {name: weights[name].detach().float().clone() for name in names}

    @torch.no_grad()
    def follow(self) -> None:
        """Update the average: decay * average + (1 - decay) * student."""
        student = dict(self.student.model.named_parameters())
        own = dict(self.chat_model.model.named_parameters())
        for name, average in self._averages.items():
            average.lerp_(student[name].float(), 1 - (self.decay or 0.0))
            own[name].copy_(average)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the averages, which a resumed training restores."""
        return dict(self._averages)

    @torch.no_grad()
    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        own = dict(self.chat_model.model.named_parameters())
        for name, average in self._averages.items():
            own[name].copy_(average.copy_(tensors[name]))


class RoutedTeacher:
    """Several teachers; `routes[i]` names the teacher of prompt i."""

    def __init__(self, teachers: Mapping[str, Teacher], routes: Sequence[str]) -> None:
        unknown = sorted(set(routes) - set(teachers))
        if unknown:
            raise InputError(
                f"teacher: no teacher for route {unknown[0]!r}: there are {', '.join(sorted(teachers))}"
            )
        self.teachers = dict(teachers)
        self.routes = list(routes)


Teaching = Teacher | RoutedTeacher
"""What teaches a step: one teacher, or one for each row."""


def taught_places(teacher: Teaching, rows: Sequence[int]) -> list[tuple[Teacher, list[int]]]:
    """Return each teacher with the places of its rows among these; none without rows."""
    if not isinstance(teacher, RoutedTeacher):
        return [(teacher, list(range(len(rows))))]
    places: dict[str, list[int]] = {name: [] for name in teacher.teachers}
    for place, row in enumerate(rows):
        places[teacher.routes[row]].append(place)
    return [(teacher.teachers[name], its_places) for name, its_places in places.items() if its_places]


def scored(
    teacher: Teaching,
    rollouts: Rollouts,
    max_tokens: int,
    contexts: Contexts | None = None,
    *,
    updates: int = 1,
    boundary: float = math.inf,
) -> list[tuple[Rollouts, TeacherScores | None]]:
    """Return microbatches of similar lengths with their scores, each scored by one teacher.

    None holds rows on both sides of the boundary. With several processes, each scores only the microbatches
    that it trains on (see `distributed.mine`); the others have None.
    """
    grouped: list[tuple[Teacher, list[Tensor]]] = []
    for one, places in taught_places(teacher, rollouts.index_B.tolist()):
        groups = rollouts.select(places).groups(max_tokens, boundary)
        grouped.append((one, [torch.tensor(places)[group] for group in groups]))
    mine = set(distributed.mine(sum(len(its_groups) for _, its_groups in grouped), updates))
    found: list[tuple[Rollouts, TeacherScores | None]] = []
    for one, its_groups in grouped:
        wanted = [place in mine for place in range(len(found), len(found) + len(its_groups))]
        score_wanted = partial(_score_groups, one, rollouts, contexts, its_groups, wanted)
        with gathered_teacher(one):
            scores = one.together(score_wanted) if isinstance(one, UsedTogether) else score_wanted()
        found += [(rollouts.select(rows), part) for rows, part in zip(its_groups, scores, strict=True)]
    return found


def _score_groups(
    teacher: Teacher, rollouts: Rollouts, contexts: Contexts | None, groups: list[Tensor], wanted: list[bool]
) -> list[TeacherScores | None]:
    """Score the wanted groups of rows in one call; the others have None."""
    if not any(wanted):
        return [None] * len(groups)
    rows = torch.cat(list(compress(groups, wanted))).sort().values
    chosen = rollouts.select(rows)
    prompts = None if contexts is None else [contexts[row] for row in rows.tolist()]
    scores = teacher.score(chosen, prompts)
    return [
        scores.take(chosen.places_N(torch.searchsorted(rows, group))) if is_wanted else None
        for group, is_wanted in zip(groups, wanted, strict=True)
    ]


def gathered_teacher(teacher: Teaching | None) -> AbstractContextManager[None]:
    """Gather a teacher that is the sharded student without its adapter, in every process.

    Processes score different numbers of microbatches, or none: none may gather for one of its own.
    """
    return gathered(teacher.chat_model.model) if isinstance(teacher, CheckpointTeacher) else nullcontext()


@torch.no_grad()
def score(
    chat_model: ChatModel, rollouts: Rollouts, kind: str = "dense", k: int = 16, max_tokens: int | None = None
) -> TeacherScores:
    """Score the rollouts in microbatches of similar lengths; return the scores in the order of the N tokens.

    The default of `max_tokens` is the fastest microbatch size of the device.
    """
    rollouts = rollouts.to(chat_model.device)
    head = partial(_frozen_head, chat_model.model)
    places: dict[str, Tensor] = {}
    with gathered(chat_model.model):
        for rows in rollouts.groups(max_tokens or read_at_once(chat_model.model)):
            part = rollouts.select(rows)
            states_ND = predicting_states(chat_model.model, part)
            for name, values in _answers(states_ND, part.tokens_N, kind, k, head).items():
                if name not in places:
                    places[name] = values.new_empty(rollouts.n_tokens, *values.shape[1:])
                places[name][rollouts.places_N(rows)] = values
    return TeacherScores(head=head if kind == "dense" else None, **places)


def _answers(
    states_ND: Tensor, tokens_N: Tensor, kind: str, k: int, head: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return the hidden states (dense), or the sampled and top-k log-probs, computed in chunks of rows."""
    if kind == "dense":
        return {"hidden_ND": states_ND}
    found: dict[str, list[Tensor]] = {"sampled_logprobs_N": []}
    size = max(1, HEAD_ENTRIES // max(1, head(states_ND[:1]).shape[-1]))
    for states, tokens in zip(states_ND.split(size), tokens_N.split(size), strict=True):
        logprobs_NV = head(states).log_softmax(-1, dtype=torch.float32)
        found["sampled_logprobs_N"].append(logprobs_NV.gather(-1, tokens[:, None])[:, 0])
        if kind == "topk":
            top = logprobs_NV.topk(min(k, logprobs_NV.shape[-1]), dim=-1)
            found.setdefault("ids_NK", []).append(top.indices)
            found.setdefault("logprobs_NK", []).append(top.values)
    return {name: torch.cat(values) for name, values in found.items()}


@torch.no_grad()
def _frozen_head(model: Any, hidden: Tensor) -> Tensor:
    return logits_of(model, hidden)
