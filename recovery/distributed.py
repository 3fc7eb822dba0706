"""Several processes that train one model: who one is, what all hear, and weights in shards (FSDP2).

Data parallel keeps the whole model in every process. In shards each process holds its rows of every weight,
gradient and optimizer state, and layers are put together while they are used. Every forward and backward
pass of a sharded model is then everybody's work: all processes take part in each of them, or all wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from recovery.errors import InputError
from recovery.forward.hidden_states import hidden_states, logits_of, unwrap
from recovery.objective.objective import Loss

if TYPE_CHECKING:
    pass

T = TypeVar("T")
PATIENCE = timedelta(days=14)  # others wait as long as the first one evaluates, or writes a report


def rank() -> int:
    return dist.get_rank() if _started() else 0


def world() -> int:
    return dist.get_world_size() if _started() else 1


def _started() -> bool:
    return dist.is_available() and dist.is_initialized()


def launched() -> int:
    """How many processes were launched, by torchrun or by --processes; 1 where nobody did."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def start() -> None:
    """Find the other processes; nothing to do where there are none."""
    if launched() > 1 and not _started():
        from accelerate import PartialState

        _meet_in_file()
        PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)


def _meet_in_file() -> None:
    """Where the processes of one machine were given a file to meet in, open no port for that."""
    if place := os.environ.get("RECOVER_RENDEZVOUS"):
        dist.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo",
            init_method=f"file://{place}",
            rank=int(os.environ["RANK"]),
            world_size=launched(),
            timeout=PATIENCE,
        )


@cache
def _talk() -> Any:
    """Python values travel over gloo, whatever tensors travel over."""
    return dist.new_group(backend="gloo", timeout=PATIENCE)


def share(value: T) -> T:
    """The first process's value, in all of them."""
    if world() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=_talk())
    return box[0]


def gather(value: T) -> list[T]:
    """Everybody's value, in the order of ranks, in all of them."""
    if world() == 1:
        return [value]
    found: list[Any] = [None] * world()
    dist.all_gather_object(found, value, group=_talk())
    return found


def once(work: Callable[[], T]) -> T:
    """What the first process finds out, in all of them: files are read and written by one."""
    return share(work() if rank() == 0 else None)  # type: ignore[return-value]


def in_turn(work: Callable[[], T]) -> T:
    """The first process does it, and then the others, who find on the disk what it has made."""
    if rank():
        share(None)
        return work()
    found = work()
    share(None)
    return found


def mine(count: int, updates: int) -> list[int]:
    """Which of `count` microbatches, dealt out to `updates`, this process takes: the updater's own order."""
    updates = min(updates, count)
    return [i for i in range(count) if (i // updates) % world() == rank()]


def shard(model: Any, *, device: str) -> None:
    """Give every process its rows of the weights: layer by layer, and what is around the layers."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    core, layers = unwrap(model), _layers(model)
    frozen = next((p.dtype for p in core.parameters() if not p.requires_grad), None)
    for parameter in core.parameters() if frozen is not None else ():
        parameter.data = parameter.data.to(frozen)  # a shard holds one dtype; the optimizer keeps fp32 copies
    how: dict[str, Any] = {
        "mesh": init_device_mesh(device, (world(),)),
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32),
    }
    for layer in layers:
        fully_shard(layer, **how)
    fully_shard(core, **how)
    # Which layer a backward pass fetches ahead is said here. FSDP would take it from the passes that went
    # before, and where only one process had read something on its own, they would wait for each other.
    for unit, ahead in zip([*layers, core], [core, *layers], strict=True):
        unit.set_modules_to_backward_prefetch([ahead])


def _layers(model: Any) -> Any:
    """The decoder's layers: its longest list of modules."""
    lists = [m for m in unwrap(model).get_decoder().modules() if isinstance(m, torch.nn.ModuleList)]
    if not lists:
        name = type(unwrap(model)).__name__
        raise InputError(f"shard: {name} has no list of layers: train it data parallel (model.shard: false)")
    return max(lists, key=len)


def is_sharded(model: Any) -> bool:
    from torch.distributed.fsdp import FSDPModule

    return isinstance(unwrap(model), FSDPModule)


def through(model: Any, work: Callable[[], Loss]) -> Loss:
    """Run `work` as the model's own forward pass: only there do FSDP's hooks put its weights together."""
    core = unwrap(model)
    own = core.forward

    def forward() -> tuple[Tensor, Loss]:
        core.forward = own
        loss = work()
        return loss.value, loss

    core.forward = forward
    try:
        return core()[1]
    finally:
        core.forward = own


def nothing(model: Any, tokens_BT: Tensor) -> Loss:
    """A loss of zero that every weight takes part in: for whoever has no microbatch while others have."""
    states = hidden_states(model, tokens_BT[:1, :2].to(next(model.parameters()).device))
    return Loss(logits_of(model, states).float().sum() * 0.0, 0.0)


@contextmanager
def gathered(model: Any) -> Iterator[None]:
    """Inside, every process holds the whole model and may use it on its own: to sample, to score."""
    if not is_sharded(model):
        yield
        return
    from torch.distributed.fsdp import FSDPModule

    units = [module for module in unwrap(model).modules() if isinstance(module, FSDPModule)]
    for unit in units:
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()
            unit.set_reshard_after_forward(unit is not units[0], recurse=False)


def whole_weights(model: Any) -> dict[str, Tensor] | None:
    """A sharded model's weights put together on the first process's CPU; None in the others."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    how = StateDictOptions(full_state_dict=True, cpu_offload=True)
    found: Any = get_model_state_dict(model, options=how)
    again = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    again -= {name for name, _ in model.named_parameters()}  # tied weights go by their first name
    return {name: tensor for name, tensor in found.items() if name not in again} if rank() == 0 else None


def local(tensor: Tensor) -> Tensor:
    """This process's rows of a sharded tensor; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def rows(tensor: Tensor) -> tuple[int, int]:
    """Where this process's rows begin and end."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded: Any = tensor
    where = (sharded.shape, sharded.device_mesh, sharded.placements)
    shape, offset = compute_local_shape_and_global_offset(*where)
    return offset[0], offset[0] + shape[0]


def like(whole: Tensor, sharded: Tensor) -> Tensor:
    """A whole tensor cut as another one is."""
    if not hasattr(sharded, "to_local"):
        return whole
    from torch.distributed.tensor import DTensor

    first, last = rows(sharded)
    part = whole[first:last].to(sharded.device)
    example: Any = sharded
    return DTensor.from_local(
        part,
        example.device_mesh,
        example.placements,
        run_check=False,
        shape=example.shape,
        stride=example.stride(),
    )
