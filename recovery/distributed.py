"""Coordinate several training processes: ranks, object collectives, and sharded weights (FSDP2).

Data parallel training keeps the whole model in every process. With sharding, each process holds its rows of
every weight, gradient and optimizer state, and a layer is all-gathered while it is used. Every forward and
backward pass of a sharded model is therefore a collective: all processes must take part, or they deadlock.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from recovery.errors import InputError
from recovery.forward.context_length import context_length
from recovery.forward.decoder_choice import decoding_way
from recovery.forward.hidden_states import hidden_states, logits_of, require_layers, row_sharing, unwrap
from recovery.launch_env import RENDEZVOUS, launch_rank, launched
from recovery.objective.objective import Loss

T = TypeVar("T")
GATHERED = "_recover_gathered"  # an attribute of a sharded model inside `gathered`
PATIENCE = timedelta(days=14)  # other ranks wait while rank 0 evaluates or writes a report


def rank() -> int:
    """Return this process's rank; 0 without a process group."""
    return dist.get_rank() if _started() else 0


def world() -> int:
    """Return the number of processes; 1 without a process group."""
    return dist.get_world_size() if _started() else 1


def _started() -> bool:
    return dist.is_available() and dist.is_initialized()


def start() -> None:
    """Join the process group if several processes were launched."""
    if launched() > 1 and not _started():
        from accelerate import PartialState

        _init_from_file()
        PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)


def _init_from_file() -> None:
    """Initialise the process group through a rendezvous file, if one is set, instead of a TCP port."""
    if place := os.environ.get(RENDEZVOUS):
        dist.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo",
            init_method=f"file://{place}",
            rank=launch_rank(),
            world_size=launched(),
            timeout=PATIENCE,
        )


def stop() -> None:
    """Leave the process group, so that its threads end before the interpreter does.

    A gloo thread that is still alive at the interpreter's end aborts the process after its work is done.
    """
    if _started():
        dist.destroy_process_group()
        _gloo_group.cache_clear()


@cache
def _gloo_group() -> Any:
    """Return the gloo group that carries Python objects, whatever backend carries tensors."""
    return dist.new_group(backend="gloo", timeout=PATIENCE)


def broadcast(value: T) -> T:
    """Broadcast rank 0's value to all processes."""
    if world() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=_gloo_group())
    return box[0]


def gather(value: T) -> list[T]:
    """Return the values of all processes in rank order, in every process."""
    if world() == 1:
        return [value]
    found: list[Any] = [None] * world()
    dist.all_gather_object(found, value, group=_gloo_group())
    return found


def once(work: Callable[[], T]) -> T:
    """Run the work on rank 0 only and broadcast its result, so that one process reads and writes files."""
    return broadcast(work() if rank() == 0 else None)  # type: ignore[return-value]


def in_turn(work: Callable[[], T]) -> T:
    """Run the work on rank 0 first, then on the others, which can read the files that it has written."""
    if rank():
        broadcast(None)
        return work()
    found = work()
    broadcast(None)
    return found


def mine(count: int, updates: int) -> list[int]:
    """Return the indices of the microbatches that this process trains on, out of `count` over `updates`.

    Must match the order of `training.step_data.minibatches` and `Updater`.
    """
    updates = min(updates, count)
    return [i for i in range(count) if (i // updates) % world() == rank()]


def shard(model: Any, *, device: str) -> dict[str, Tensor]:
    """Shard the model with FSDP2: one unit for each layer, and one for the weights around the layers.

    A shard holds one dtype: return, by name, the fp32 weights of an adapter that this rounds.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    core, layers = unwrap(model), require_layers(model, "model.shard")
    if row_sharing(core).equal_lengths:  # processes would wait for each other's passes for ever
        raise InputError(
            "model.shard: sequences of this model that differ in length can't share a pass: set it to false"
        )
    decoding_way(core)  # its trial takes gradients, which a sharded model has only in a collective
    rounded = _in_one_dtype(model)
    how: dict[str, Any] = {
        "mesh": init_device_mesh(device, (world(),)),
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32),
    }
    for layer in layers:
        fully_shard(layer, **how)
    fully_shard(core, **how)
    # Set the backward prefetch order explicitly. FSDP infers it from earlier forward passes, which differ
    # between processes when only one of them has run an extra pass, and then the processes deadlock.
    for unit, ahead in zip([*layers, core], [core, *layers], strict=True):
        unit.set_modules_to_backward_prefetch([ahead])
    # Make the core the root now: else the first forward pass below it, such as a sampler's, makes a layer so.
    core._get_fsdp_state()._lazy_init()
    return rounded


def _in_one_dtype(model: Any) -> dict[str, Tensor]:
    """Convert all weights to the dtype of the frozen ones; return the trained fp32 ones as they were."""
    frozen = next((p.dtype for p in model.parameters() if not p.requires_grad), None)
    rounded: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters() if frozen is not None else ():
        if parameter.requires_grad and parameter.dtype == torch.float32 != frozen:
            rounded[name] = parameter.detach()
        parameter.data = parameter.data.to(frozen)
    return rounded


def is_sharded(model: Any) -> bool:
    from torch.distributed.fsdp import FSDPModule

    return isinstance(unwrap(model), FSDPModule)


def boundary(model: Any) -> float:
    """Return the length beyond which a row needs a pass of its own, if a model in shards has one (LongRoPE).

    There a microbatch is one pass: the other processes would not join a second one.
    """
    return row_sharing(model).boundary if is_sharded(model) else math.inf


def longest_row(model: Any, *, sharded: bool) -> int | None:
    """Return the most tokens of a row of documents: the model's context, or the boundary of one in shards.

    It follows from the settings alone: a run is resumed in any number of processes.
    """
    bounds = (context_length(model.config), row_sharing(model).boundary if sharded else None)
    return min((int(bound) for bound in bounds if bound is not None and bound < math.inf), default=None)


def through(model: Any, work: Callable[[], Loss]) -> Loss:
    """Run `work` as the model's forward pass, because only there FSDP's hooks all-gather the weights."""
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
    """Return a zero loss that depends on every weight, for a process without a microbatch of its own.

    The pass keeps the collectives of all processes aligned.
    """
    states = hidden_states(model, tokens_BT[:1, :2].to(next(model.parameters()).device))
    return Loss(logits_of(model, states).float().sum() * 0.0, 0.0)


@contextmanager
def gathered(model: Any) -> Iterator[None]:
    """Unshard the model inside the block, so that each process can sample or score independently.

    A block inside another changes nothing: the outer one shards the model again.
    """
    if not is_sharded(model) or getattr(unwrap(model), GATHERED, False):
        yield
        return
    from torch.distributed.fsdp import FSDPModule

    setattr(unwrap(model), GATHERED, True)
    units = [module for module in unwrap(model).modules() if isinstance(module, FSDPModule)]
    for unit in units:
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        setattr(unwrap(model), GATHERED, False)
        for unit in units:
            unit.reshard()
            unit.set_reshard_after_forward(unit is not units[0], recurse=False)


def whole_weights(model: Any) -> dict[str, Tensor] | None:
    """Gather a sharded model's full weights on rank 0's CPU; return None on other ranks."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    how = StateDictOptions(full_state_dict=True, cpu_offload=True)
    found: Any = get_model_state_dict(model, options=how)
    again = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    again -= {name for name, _ in model.named_parameters()}  # keep the first name of tied weights
    return {name: tensor for name, tensor in found.items() if name not in again} if rank() == 0 else None


def whole_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor on the CPU of every process."""
    sharded: Any = tensor
    return sharded.full_tensor().cpu()


def local(tensor: Tensor) -> Tensor:
    """Return this process's rows of a sharded tensor; any other tensor unchanged."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def rows(tensor: Tensor) -> tuple[int, int]:
    """Return the start and end of this process's rows in a sharded tensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded: Any = tensor
    where = (sharded.shape, sharded.device_mesh, sharded.placements)
    shape, offset = compute_local_shape_and_global_offset(*where)
    return offset[0], offset[0] + shape[0]


def like(whole: Tensor, sharded: Tensor) -> Tensor:
    """Shard a whole tensor the way `sharded` is; return it unchanged if that one is not sharded."""
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
