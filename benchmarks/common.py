"""Share the tools of all benchmarks: alternating rounds, medians, machine limits, one JSON report.

Times depend on the machine and the moment: only ratios within one run are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.ledger import Clock
from recovery.forward.fast_path import fast_path

Row = dict[str, Any]
# Name of a peer's process with its default settings, and of one with this project's settings.
PLAIN = {"RECOVER_CPU": "off", "THP_MEM_ALLOC_ENABLE": "0"}
OURS = "our CPU settings"
SPREAD = "the middle half of them (of three or fewer: all)"  # what `spread` formats
VLLM_PYTHON = Path(__file__).parent.parent / ".venv-vllm" / "bin" / "python"  # optional


@dataclass(frozen=True)
class Contender:
    """One of the compared implementations, with its environment variables."""

    work: Callable[..., Any]
    environment: dict[str, str] = field(default_factory=dict)

    def apart(self, name: str, *words: str) -> None:
        """Run the `--child` of a speed benchmark in a process with this contender's environment."""
        command = [sys.executable, "-m", f"benchmarks.speed.{name}", "--child", *words]
        subprocess.run(command, check=True, env={**os.environ, **self.environment}, stdout=sys.stderr)


@dataclass(frozen=True)
class Target:
    """A benchmark's target: `value` against `limit`."""

    what: str
    value: float | None  # None: not measured, because the peer is not installed
    sense: str  # "at least" or "at most"
    limit: float

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.limit if self.sense == "at least" else self.value <= self.limit


@dataclass
class Report:
    """A benchmark's result: the question, tables of rows, targets, and notes for the reader."""

    name: str
    question: str
    tables: dict[str, list[Row]] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def target(self, what: str, value: float | None, sense: str, limit: float) -> None:
        self.targets.append(Target(what, value, sense, limit))

    def as_json(self) -> str:
        targets = [{**asdict(target), "met": target.met} for target in self.targets]
        return json.dumps({**asdict(self), "targets": targets}, indent=1, default=float)

    @classmethod
    def from_json(cls, text: str) -> Report:
        document = json.loads(text)
        targets = [Target(**{k: v for k, v in row.items() if k != "met"}) for row in document.pop("targets")]
        return cls(**document, targets=targets)

    def as_markdown(self) -> str:
        parts = [f"## {self.name}", self.question]
        for title, rows in self.tables.items():
            parts.append((f"**{title}**\n\n" if title else "") + markdown_table(rows))
        for target in self.targets:
            value = "not measured" if target.value is None else f"{number(target.value)}"
            verdict = {True: "met", False: "**missed**", None: "the peer is not installed"}[target.met]
            parts.append(f"Target: {target.what} {target.sense} {target.limit:g}: {value}, {verdict}.")
        return "\n\n".join([*parts, *self.notes])


def markdown_table(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(number(row.get(name, "")) for name in columns) + " |" for row in rows]
    return "\n".join(lines)


def number(value: Any) -> str:
    """Format with three significant digits, without inventing digits before the decimal point."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def alternate(
    arms: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1, title: str = ""
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return each arm's times in seconds per round, and its last result; print the progress.

    The order is reversed every round, so that neither machine drift nor position favours an arm."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    results: dict[str, Any] = {}
    names = list(arms)
    clock = Clock((warm_up + rounds) * len(names))
    for turn in range(warm_up + rounds):
        for name in names if turn % 2 == 0 else names[::-1]:
            clock.say(f"{title}: {name}" if title else name)
            begun = time.perf_counter()
            results[name] = arms[name]()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - begun)
            clock.done += 1
    return seconds, results


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """Return the interquartile range."""
    if len(values) < 4:
        return f"{number(min(values))}-{number(max(values))}"
    low, _, high = statistics.quantiles(values, n=4)
    return f"{number(low)}-{number(high)}"


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as a peer, round by round: what slows the machine for a while slows both."""

    median: float
    spread: str

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """Divide the speeds of each round."""
        found = [mine / peer for mine, peer in zip(ours, theirs, strict=True)]
        return cls(median(found), spread(found))

    def __str__(self) -> str:
        return f"{number(self.median)} ({self.spread})"


@dataclass(frozen=True)
class Machine:
    """This machine's peak rates, measured beside the benchmark as an upper bound."""

    flops: float  # FLOP/s of a large matrix product
    plain: float  # the same with PyTorch's library alone (recovery/cpu/matrix_products.py)
    bytes: float  # bytes/s read and written by a large copy
    device: str
    dtype: str

    @classmethod
    def measure(cls, dtype: torch.dtype = torch.float32, size: int = 1024, tries: int = 7) -> Machine:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        left, right = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
        out = torch.empty_like(left)
        product = min(_timed(lambda: torch.mm(left, right)) for _ in range(tries))
        plain = min(_timed(lambda: torch.mm(left, right, out=out)) for _ in range(tries))
        source = torch.randn(2**25, device=device)  # 128 MiB: larger than any cache
        target = torch.empty_like(source)
        copy = min(_timed(lambda: target.copy_(source)) for _ in range(tries))
        name = torch.cuda.get_device_name() if device == "cuda" else _processor()
        flops = 2 * size**3
        kind = str(dtype).removeprefix("torch.")
        return cls(flops / product, flops / plain, 2 * source.nbytes / copy, name, kind)

    def row(self) -> Row:
        return {
            "device": self.device,
            "threads": torch.get_num_threads(),
            "dtype": self.dtype,
            "matmul GFLOP/s": self.flops / 1e9,
            "PyTorch's own GFLOP/s": self.plain / 1e9,
            "copy GB/s": self.bytes / 1e9,
        }


def _timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def installed(package: str) -> str | None:
    """Return a package's version; None if it is not installed (`make bench` installs the extra)."""
    if find_spec(package.replace("-", "_").removesuffix("_skinny")) is None:
        return None
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "?"


def run(
    name: str,
    question: str,
    fill: Callable[[Report, argparse.Namespace], None],
    options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Run a benchmark's command line: parse, measure, print, and write the report to --out."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--quick", action="store_true", help="a few turns, to see that it works")
    if options:
        options(parser)
    asked = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    fast_path().configure()  # measure the machine's limit with its faster library
    torch.set_flush_denormal(True)  # for peers too: denormals make them several times slower on a CPU
    report = Report(name, question)
    begun = time.perf_counter()
    fill(report, asked)
    report.seconds = time.perf_counter() - begun
    if asked.out:
        asked.out.write_text(report.as_json(), encoding="utf-8")
    sys.stdout.write(report.as_markdown() + f"\n\n({report.seconds:.0f} s)\n")


def in_own_process(name: str, *words: str, python: str = sys.executable) -> Report | None:
    """Run a speed benchmark in a fresh process, which inherits no loaded modules; None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [python, "-m", f"benchmarks.speed.{name}", "--out", str(out), *words]
        print(f"== {name}", flush=True)
        if subprocess.run(command).returncode or not out.is_file():
            print(f"== {name} failed", flush=True)
            return None
        return Report.from_json(out.read_text(encoding="utf-8"))
