"""Measure the stages of a cycle on this machine's GPU, beside what `recover plan` says of it.

    python -m benchmarks.speed.gpu --gpu H100 [--only "Qwen3 8B"] [--write-docs]

Random weights in the shapes of published models, in 16 bits, each shape in a process of its own. TMPDIR needs
room for the largest model.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.common import Report, Row, markdown_table, run
from benchmarks.ledger import put
from benchmarks.speed import plan_memory
from benchmarks.speed.plan_memory import Batches, Sizes, loaded, random_rows, train_on
from pipelines.machine.gpus import Gpu, parse_gpus
from pipelines.machine.model_sizes import SIZES, read_size
from pipelines.machine.stage_estimates import READING_SHARE, SCORING_SHARE, TRAINING_SHARE
from pipelines.runs.cost import Flops
from recovery.memory import GIB
from tests.support import tiny

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.models.size import Size

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
WARM_UP = 1  # steps before those that are timed
WRITTEN, SCORED, TRAINED = "written", "scored", "trained"  # what is done with tokens
PLANNED = {WRITTEN: READING_SHARE, SCORED: SCORING_SHARE, TRAINED: TRAINING_SHARE}  # shares of a GPU's peak


@dataclass(frozen=True)
class Shape:
    """A published model's shape, and the sizes of its steps."""

    name: str
    settings: dict[str, Any]
    sizes: Sizes


SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
POSITIONS = {"max_position_embeddings": 40960}
ALL = Sizes(16384, 128, 128, 256, checkpointing=True)
ADAPTER = Sizes(16384, 128, 128, 256, rank=128, checkpointing=True)
SHAPES = (
    Shape("SmolLM2 135M", SMOLLM2, ALL),
    Shape("Qwen3 1.7B", {**SIZES["1.7B"], **POSITIONS}, ALL),
    Shape("Qwen3 8B, adapter of rank 128", {**SIZES["8B"], **POSITIONS}, ADAPTER),
)


def fill(report: Report, asked: argparse.Namespace) -> None:
    if asked.only and asked.write_docs:
        raise SystemExit("--only: --write-docs puts the table of all shapes into the page")
    rows: list[Row] = []
    for shape in SHAPES:
        if asked.only and asked.only not in shape.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            save(shape, Path(folder))
            rows += compared(shape, Path(folder), asked.gpu)
    report.tables[f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"] = rows
    if asked.write_docs:
        put(PAGE, "gpu", markdown_table(rows))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", required=True, help="its name in `recover plan`")
    parser.add_argument("--only", metavar="NAME", help="shapes whose names hold this")
    parser.add_argument("--write-docs", action="store_true", help=f"put the table into {PAGE.name}")


def save(shape: Shape, directory: Path) -> None:
    """Write the shape's random model."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.for_model(**shape.settings, eos_token_id=257, pad_token_id=258)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=257, pad_token_id=258)
    model.save_pretrained(directory)
    tiny.tokenizer().save_pretrained(directory)
    del model
    torch.cuda.empty_cache()


def compared(shape: Shape, model: Path, gpu: str) -> list[Row]:
    """Measure a shape's stages in a process of their own, beside the plan."""
    words = [sys.executable, "-m", "benchmarks.speed.gpu", "--child", shape.name, str(model)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    shares = Shares(read_size(str(model)), parse_gpus(gpu)[1], shape.sizes)
    plan = plan_memory.planned(plan_memory.Case(shape.name, "", sizes=shape.sizes), model)
    return [
        {
            "model": shape.name,
            "work": work,
            "tokens a second": one["tokens"] / one["seconds"],
            "of the GPU's peak": shares.reached(one),
            "the plan takes": PLANNED[one["kind"]],
            "GiB at the peak": one["bytes"] / GIB,
            "planned GiB": plan[one["stage"]] / GIB if one.get("stage") else "",
        }
        for work, one in found.items()
    ]


@dataclass(frozen=True)
class Shares:
    """What share of a GPU's peak was reached: of its FLOP/s, or of its bytes/s when tokens are written."""

    size: Size
    gpu: Gpu
    sizes: Sizes

    def reached(self, one: dict[str, Any]) -> float:
        if one["kind"] == WRITTEN:
            seen = self.sizes.prompt + self.sizes.answer / 2
            reading = 2 * (self.size.parameters / self.sizes.rows + seen * self.size.cache_numbers)
            return float(one["tokens"] * reading / one["seconds"] / (self.gpu.bandwidth or 0.0))
        passes = 1 if one["kind"] == SCORED else 3 if self.sizes.rank else 4  # recomputation is one more
        context = (self.sizes.prompt + self.sizes.answer) / 2
        flops = passes * Flops.of_size(self.size).forward(one["tokens"], context)
        return float(flops / one["seconds"] / (self.gpu.flops or 0.0))


# In the child -----------------------------------------------------------------------------------------------


def child(name: str, model: Path) -> None:
    """Print what each kind of work of a shape takes."""
    sizes = next(shape.sizes for shape in SHAPES if shape.name == name)
    found: dict[str, dict[str, float]] = {}
    for stage in (evaluate, midtrain, distill):
        for work, one in stage(model, sizes).items():
            found[work] = one
            print(work, one, file=sys.stderr, flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    sys.stdout.write(json.dumps(found) + "\n")


@dataclass
class Timer:
    """The seconds of each call, the GPU's work included."""

    seconds: list[float] = field(default_factory=list)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        yield
        torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - begun)

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            with self():
                return work(*args, **options)

        return timed

    def line(self, kind: str, tokens: float, stage: str | None = None) -> dict[str, Any]:
        """Return the mean of the timed calls."""
        timed = self.seconds[WARM_UP:]
        found: dict[str, Any] = {
            "kind": kind,
            "tokens": tokens,
            "seconds": sum(timed) / len(timed),
            "bytes": torch.cuda.max_memory_allocated(),
        }
        return {**found, "stage": stage} if stage else found


def evaluate(model: Path, sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Write answers, with steps replayed and with each launched."""
    chat = loaded(model, sizes)
    prompts = random_rows(sizes.rows, sizes.prompt)
    tokens = sizes.rows * sizes.answer
    found = {"clean model: written": answered(chat, prompts, sizes.answer).line(WRITTEN, tokens, "evaluate")}
    with launching_each_step():
        found["clean model: written, each step launched"] = answered(chat, prompts, sizes.answer).line(
            WRITTEN, tokens
        )
    return found


def answered(chat: ChatModel, prompts: list[list[int]], length: int) -> Timer:
    from recovery.sampling.in_process import InProcessSampler
    from recovery.sampling.protocol import SamplingParams

    timer = Timer()
    for _ in range(WARM_UP + 1):
        with timer():
            InProcessSampler(chat).generate(prompts, SamplingParams(length))
    return timer


@contextmanager
def launching_each_step() -> Iterator[None]:
    from recovery.forward import graph_decoder

    before = graph_decoder.PLAIN_STEPS
    graph_decoder.PLAIN_STEPS = sys.maxsize
    try:
        yield
    finally:
        graph_decoder.PLAIN_STEPS = before


def midtrain(model: Path, sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Updates of two microbatches on packed rows."""
    student = loaded(model, sizes, trained=True)
    timer = Timer()
    train_on(student, "sft", TimedSteps(Batches(sizes, student.pad_id), timer), WARM_UP + 2)
    length = sizes.prompt + sizes.answer
    return {
        "midtraining: trained": timer.line(TRAINED, 2 * length * (sizes.microbatch // length), "midtrain")
    }


class TimedSteps:
    """A trainer's batches; times each step from its beginning to the next one's."""

    def __init__(self, batches: Any, timer: Timer) -> None:
        self.batches, self.timer = batches, timer

    def updates(self, step: int) -> Iterator[Any]:
        with self.timer():
            yield from self.batches.updates(step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batches, name)


def distill(model: Path, sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Steps of recovery: sample, score with the clean model, train."""
    student = loaded(model, sizes, trained=True)
    clean = None if sizes.rank else loaded(model, sizes)
    episodes = plan_memory.episodes(student, clean, sizes)
    step, sampling, scoring = Timer(), Timer(), Timer()
    sampler: Any = episodes.sampler
    teacher: Any = episodes.teacher
    sampler.sample = sampling.around(sampler.sample)
    teacher.score = scoring.around(teacher.score)
    train_on(student, "opd", TimedSteps(episodes, step), WARM_UP + 1)
    tokens = sizes.rows * (sizes.prompt + sizes.answer)
    calls = len(scoring.seconds) // (WARM_UP + 1)  # one a microbatch
    scoring.seconds = [sum(scoring.seconds[:calls]), sum(scoring.seconds[calls:])]
    rest = zip(step.seconds, sampling.seconds, scoring.seconds, strict=True)
    training = Timer([all_of_it - one - other for all_of_it, one, other in rest])
    return {
        "recovery: written": sampling.line(WRITTEN, sizes.rows * sizes.answer, "distill"),
        "recovery: scored": scoring.line(SCORED, tokens),
        "recovery: trained": training.line(TRAINED, tokens),
    }


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[2], Path(sys.argv[3]))
    else:
        run("GPU", "What do the stages of a cycle take on this GPU?", fill, options)
