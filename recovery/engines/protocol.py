"""What every engine offers, wherever its copy of the weights is: sampling and scoring of token ids.

An engine that dies, hangs or fails its canary is restarted once, synced, and the call retried; after a second
failure the run stops resumably. `vllm_local.py` runs vLLM in this process, `vllm_http.py` uses servers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from recovery.errors import EngineLost, RecoverError

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import SamplingParams

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class EngineSettings:
    """Settings of an engine. `timeout_seconds` is the longest wait for a heartbeat or a response."""

    timeout_seconds: float = 600.0
    start_seconds: float = 1800.0
    gpu_memory: float = 0.45  # share of the device's memory, weights included; the trainer needs the rest
    cpu_cache_gib: float = 1.0  # KV cache on a CPU
    max_length: int | None = None  # tokens of prompt and answer; default: the model's limit
    eager: bool = False  # no compilation: faster start, slower generation
    exchange: str | None = None  # folder shared by trainer and servers; default: the temporary folder
    tensor_parallel: int = 1  # GPUs that share one copy of the weights
    devices: str | None = None  # CUDA_VISIBLE_DEVICES of a server started by this process
    arguments: Mapping[str, bool | str | int | float] = field(default_factory=dict)  # further vLLM options
    trust_remote_code: bool = False  # run code that comes with the model


class SampledAnswer(NamedTuple):
    """A sampled answer with each token's log-probability under the sampling distribution."""

    tokens: list[int]
    logprobs: list[float]


class TokenScore(NamedTuple):
    """An engine's scores of one token: its log-probability, and the top K entries in descending order."""

    logprob: float
    ids: list[int]
    logprobs: list[float]


class Engine(Protocol):
    """Sample from and score token ids with its copy of the weights. Every failure is an EngineLost."""

    name: str

    @property
    def lengths(self) -> Sequence[int | None]:
        """Return how many tokens of prompt and answer each copy of the weights reads, None where unknown."""
        ...

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        stop_ids: Sequence[int],
        on_progress: OnProgress | None = None,
    ) -> list[SampledAnswer]: ...

    def score(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], k: int
    ) -> list[list[TokenScore]]: ...

    def update_weights(self, student: ChatModel) -> None: ...

    def restart(self) -> None: ...

    def close(self) -> None: ...


def with_restart(engine: Engine, call: Callable[[], Answer]) -> Answer:
    """Return the result of `call`; if the engine is lost, restart it and call once more."""
    try:
        return call()
    except EngineLost as error:
        first = error
    log.warning("%s: %s: restarting it and retrying once", engine.name, first)
    try:
        engine.restart()
        return call()
    except EngineLost as second:
        raise RecoverError(
            f"{engine.name}: lost twice ({first}; then {second}): check it, then go on with `recover resume`"
        ) from second
