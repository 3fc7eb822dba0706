"""Run one optimizer update over any number of microbatches and processes: gradients, clipping, AdamW.

The loss is a sum over tokens and is divided once, by the token count of the update. Means per microbatch
would weigh the tokens of a short microbatch more than those of a long one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor

from recovery import distributed
from recovery.batches.rollouts import Rollouts
from recovery.errors import InputError
from recovery.forward.hidden_states import row_sharing
from recovery.forward.packed import packed
from recovery.objective.chunked_sum import add_gradient
from recovery.objective.objective import Loss
from recovery.objective.token_signals import NO_SIGNALS, TokenSignals
from recovery.storage.training_state import Unprefixed, load_optimizer_tensors, optimizer_tensors, prefixed

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.training.config import TrainConfig


class Microbatch(NamedTuple):
    """Input of one backward pass: sequences and the signals of their counted tokens.

    `objective` overrides the method's objective, for example for rehearsal.
    """

    rollouts: Rollouts
    signals: TokenSignals = NO_SIGNALS
    objective: Callable[..., Loss] | None = None


LossFunction = Callable[[Any, Microbatch], Loss]


@dataclass(frozen=True)
class RunningSums:
    """Sums of losses and metrics over microbatches, processes and updates.

    `loss` is all that is optimised. `means` divides a metric by the tokens of the microbatches that report
    it; the reported loss is the metric of those whose loss is not apart.
    """

    loss: float = 0.0
    tokens: float = 0.0
    norm: float = 0.0
    updates: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)  # tokens of each metric
    maxima: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, loss: Loss) -> RunningSums:
        value = float(loss.value.detach())
        metrics = loss.metrics if loss.apart else {**loss.metrics, "loss": value}
        counts = dict.fromkeys(metrics, loss.tokens)
        return cls(value, loss.tokens, metrics=metrics, counts=counts, maxima=loss.maxima)

    def plus(self, other: RunningSums) -> RunningSums:
        highest = {k: max(v, self.maxima.get(k, v)) for k, v in other.maxima.items()}
        return RunningSums(
            self.loss + other.loss,
            self.tokens + other.tokens,
            self.norm + other.norm,
            self.updates + other.updates,
            _added(self.metrics, other.metrics),
            _added(self.counts, other.counts),
            self.maxima | highest,
        )

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.norm)

    def means(self) -> dict[str, float]:
        """Return the mean loss and metrics per token, and the mean gradient norm per update."""
        norm = self.norm / (self.updates or 1)
        means = {name: value / (self.counts[name] or 1.0) for name, value in self.metrics.items()}
        return {"loss": 0.0} | means | self.maxima | {"grad_norm": norm, "tokens": self.tokens}


def _added(ones: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """Add two mappings by name; a missing name counts as 0."""
    names = {**ones, **others}
    return {name: ones.get(name, 0.0) + others.get(name, 0.0) for name in names}


class Updater:
    """Weights, gradients and optimizer of a training run, in one process or several.

    Several processes divide every update's microbatches. With data parallelism, gradients are all-reduced
    once per update, so that the processes may have different numbers of microbatches. With sharding
    (`config.shard`) every backward pass reduces them; a process without microbatches left adds zeros.
    """

    def __init__(self, chat_model: ChatModel, config: TrainConfig) -> None:
        self.model = chat_model.model
        self.clip_norm = config.clip_norm or math.inf
        device = torch.device(chat_model.device)
        self.accelerator = Accelerator(cpu=device.type == "cpu")
        _require_plain_launch(self.accelerator)
        self.rank = self.accelerator.process_index
        self.world = self.accelerator.num_processes
        self.sharded = config.shard and self.world > 1
        if self.world > 1:
            _broadcast_trainable(self.model)
        rounded = distributed.shard(self.model, device=device.type) if self.sharded else {}
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        if not named:
            raise InputError(
                f"training: {chat_model.path} has no trainable weights: load it whole or add an adapter"
            )
        self.model.zero_grad()  # an interrupted run may have left gradients
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        # Updates of 1e-5 are lost to rounding in bf16, so the optimizer holds fp32 master weights.
        short = (torch.bfloat16, torch.float16)
        self.weights = [p.detach().float() if p.dtype in short else p for p in self.parameters]
        self._set_weights(rounded)
        self.rounded = frozenset(rounded)  # names of what shards hold less exactly than `weights`
        self.optimizer = _adamw(self.weights, config, fused=device.type in ("cpu", "cuda"))

    def prepare(self, learning_rate: float, seed: int) -> None:
        torch.manual_seed(seed + self.rank)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def backward(self, microbatches: Sequence[Microbatch], loss_fn: LossFunction) -> RunningSums:
        """Compute the clipped gradients of an update, each process those of its share of the microbatches.

        Return the sums of the loss and its metrics over all processes, and the gradient norm."""
        if self.sharded:
            _require_one_pass(self.model, microbatches)
        sums = RunningSums()
        for microbatch in self._own(microbatches):
            loss = self._loss(microbatch, microbatches, loss_fn)
            loss.value.backward()
            self._collect()
            sums = sums.plus(RunningSums.of(loss))
        sums = reduce(RunningSums.plus, distributed.gather(sums))
        return replace(sums, updates=1, norm=self._clip(sums.tokens))

    def _own(self, microbatches: Sequence[Microbatch]) -> list[Microbatch | None]:
        """Return this process's share; with sharding, pad it with None to equal lengths on all processes."""
        own: list[Microbatch | None] = list(microbatches[self.rank :: self.world])
        longest = -(-len(microbatches) // self.world) if self.sharded else len(own)
        return own + [None] * (longest - len(own))

    def _loss(
        self, microbatch: Microbatch | None, microbatches: Sequence[Microbatch], loss_fn: LossFunction
    ) -> Loss:
        """Return a microbatch's loss; with sharding a zero one for None, of a process that has none left."""
        if not self.sharded:
            assert microbatch is not None
            return loss_fn(self.model, microbatch)

        def work() -> Loss:
            if microbatch is not None and microbatch.rollouts.n_tokens:
                return loss_fn(self.model, microbatch)
            return distributed.nothing(self.model, microbatches[0].rollouts.tokens_BT)

        return distributed.through(self.model, work)

    def _clip(self, tokens: float) -> float:
        """Divide gradients by the global token count and clip them; return the norm before clipping.

        Without tokens, drop the gradients and return 0.
        """
        if not tokens:
            self.optimizer.zero_grad()
            return 0.0
        for weight in self.weights:
            if self.world > 1 and not self.sharded:
                gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
                weight.grad = self.accelerator.reduce(gradient, reduction="sum")
            if weight.grad is not None:  # FSDP averages over processes instead of summing
                weight.grad.div_(tokens / self.world if self.sharded else tokens)
        norm: Any = torch.nn.utils.clip_grad_norm_(self.weights, self.clip_norm)
        return float(norm.full_tensor() if self.sharded else norm)

    @torch.no_grad()
    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._write_back()

    @torch.no_grad()
    def _collect(self) -> None:
        """Move gradients of bf16 and fp16 weights to their fp32 master weights and accumulate them there."""
        for parameter, weight in zip(self.parameters, self.weights, strict=True):
            if parameter is not weight and parameter.grad is not None:
                if weight.grad is None:
                    weight.grad = parameter.grad.float()
                else:
                    add_gradient(weight.grad, parameter.grad)
                parameter.grad = None

    def _write_back(self) -> None:
        """Copy the fp32 master weights to the model's weights."""
        for parameter, weight in zip(self.parameters, self.weights, strict=True):
            if parameter is not weight:
                parameter.copy_(weight)

    def finish(self, chat_model: ChatModel) -> None:
        """Gather a sharded model's full weights on rank 0's CPU, so that it can be saved.

        What its shards have rounded (an adapter) is taken from the fp32 master weights.
        """
        if not self.sharded:
            return
        chat_model.weights = distributed.whole_weights(self.model)
        for name, weight in zip(self.names, self.weights, strict=True):
            if name in self.rounded:
                exact = distributed.whole_tensor(weight)  # in all processes
                if chat_model.weights is not None:
                    chat_model.weights[name] = exact

    def state_tensors(self) -> dict[str, Tensor]:
        weights = dict(zip(self.names, self.weights, strict=True))
        return prefixed("weights", weights) | prefixed("optimizer", optimizer_tensors(self.optimizer))

    @torch.no_grad()
    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        saved = Unprefixed("weights", tensors)
        if set(saved) != set(self.names):
            raise InputError("training state: its weights are not those of this model: start a new run")
        self._set_weights(saved)
        self._write_back()
        load_optimizer_tensors(self.optimizer, Unprefixed("optimizer", tensors))

    @torch.no_grad()
    def _set_weights(self, whole: Mapping[str, Tensor]) -> None:
        """Copy whole tensors into the weights of the same names."""
        given = set(whole)
        for name, weight in zip(self.names, self.weights, strict=True):
            if name in given:
                weight.copy_(distributed.like(whole[name], weight))


def _require_one_pass(model: Any, microbatches: Sequence[Microbatch]) -> None:
    """Refuse sequences that shards would read in several passes, which other processes would not join."""
    sharing = row_sharing(model)
    if not sharing.is_limited:
        return
    for microbatch in microbatches:
        lengths = packed(*microbatch.rollouts.model_inputs)[0].lengths.tolist()
        if len(sharing.groups(lengths)) > 1:
            raise InputError(
                f"model.shard: sequences within {sharing.boundary:,} tokens can't share a pass of this model "
                "with longer ones: set it to false, or keep all sequences within that length"
            )


def _require_plain_launch(accelerator: Accelerator) -> None:
    """Refuse DeepSpeed, Megatron and the like, which accelerate's own settings may switch on."""
    kind = accelerator.distributed_type
    if kind != "NO" and not kind.startswith("MULTI"):
        raise InputError(
            f"training: {kind} by accelerate's settings is not supported: "
            "launch with torchrun, and say `shard: true` in recover.yaml for FSDP2"
        )


def _broadcast_trainable(model: torch.nn.Module) -> None:
    """Give all processes rank 0's trainable weights."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            broadcast(parameter.data)


def _adamw(weights: list[Tensor], config: TrainConfig, *, fused: bool) -> torch.optim.AdamW:
    """Build AdamW with weight decay on matrices only, not on norms and biases."""
    groups = [
        {"params": [w for w in weights if w.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=fused)
