"""What a stage costs: tokens, FLOPs, seconds, peak memory; kept on disk as it grows, summed over attempts.

FLOPs are estimated, not counted: 2·N a token read or written, 6·N a token trained (forward, and twice that
backward), N being the weights that a token is multiplied with; and attention's 4·L·H·c a token forward (three
times that trained) for L layers of total head width H at a mean context of c tokens. Recomputation under
gradient checkpointing and padding are left out.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recovery import untrusted_json
from recovery.storage import atomic_dirs

if TYPE_CHECKING:
    from recovery.models.size import Size

COUNTS = ("tokens_sampled", "tokens_scored", "tokens_trained", "flops", "seconds")
PEAK = "peak_bytes"
SAVE_EVERY = 1.0  # seconds: what a kill may lose

Cost = dict[str, float]
log = logging.getLogger(__name__)


@dataclass
class Ledger:
    """One attempt's cost so far, beside those of earlier attempts at the same run."""

    directory: Path
    attempt: int
    timed: bool = True  # whether its seconds are its own, not those of stages below it
    cost: Cost = field(default_factory=lambda: dict.fromkeys(COUNTS, 0.0))
    _begun: float = field(default_factory=time.monotonic)
    _saved: float = 0.0

    def __post_init__(self) -> None:
        reset_peak()

    def spend(self, **counts: float) -> None:
        for name, count in counts.items():
            self.cost[name] += count

    def now(self) -> Cost:
        """Return this attempt's cost so far."""
        if not self.timed:
            return dict(self.cost)
        return self.cost | {"seconds": time.monotonic() - self._begun, PEAK: peak()}

    def save(self, *, at_once: bool = False) -> None:
        """Replace this attempt's file, at most once a second; where it can't be written, warn.

        On a full disk what ended the run must be the error that is reported.
        """
        moment = time.monotonic()
        if not at_once and moment - self._saved < SAVE_EVERY:
            return
        self._saved = moment
        path = self.directory / f"cost-{self.attempt}.json"
        try:
            atomic_dirs.write_text(path, json.dumps(self.now()), durable=False)
        except OSError as error:
            log.warning("%s: the cost was not recorded (%s)", path, error.strerror or error)

    def total(self) -> Cost:
        """Return the cost of all attempts together."""
        self.save(at_once=True)
        return spent(self.directory)


def spent(directory: Path) -> Cost:
    """Return the cost of all of a run's attempts so far: the sum of counts, the maximum of peaks."""
    total: Cost = {}
    for path in sorted(directory.glob("cost-*.json")):
        for name, value in _read(path).items():
            total[name] = (max if name == PEAK else add)(total.get(name, 0.0), value)
    return total


def _read(path: Path) -> Cost:
    """Return an attempt's cost; none where a power cut has left half a file, as no cost is worth a run."""
    try:
        return untrusted_json.parse_object(path.read_bytes())
    except ValueError:
        log.warning("%s is damaged: the cost of that attempt is left out", path)
        return {}


@dataclass(frozen=True)
class Flops:
    """FLOPs a token of one model: forward (read or written) and trained, at a mean context."""

    weights: float  # that one token is multiplied with
    attention_width: float  # total head width, summed over the layers

    @classmethod
    def of(cls, model: Any) -> Flops:
        """Count the FLOPs of a transformers model in memory."""
        from recovery.models.size import size_of

        return cls.of_size(size_of(model))

    @classmethod
    def of_size(cls, size: Size) -> Flops:
        return cls(size.active, size.attention_width)

    def forward(self, tokens: float, context: float = 0.0) -> float:
        return tokens * (2 * self.weights + 4 * self.attention_width * context)

    def answered(self, read: int, written: int, answers: int) -> float:
        """Return the FLOPs of reading prompts and writing answers, so many tokens each in all."""
        return self.forward(read + written, (read + written / 2) / answers)

    def trained(self, tokens: float, context: float = 0.0) -> float:
        return 3 * self.forward(tokens, context)


def reset_peak() -> None:
    """Restart the measurement of peak memory, where the system allows it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # else the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """Return the peak memory in bytes: the GPU's if there is one, else this process's."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return float(line.split()[1]) * 1024
    except (OSError, StopIteration):
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(used) * (1 if sys.platform == "darwin" else 1024)
