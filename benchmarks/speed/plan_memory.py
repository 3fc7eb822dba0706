"""Compare what `recover plan` says about memory with what each stage really allocates.

    python -m benchmarks.speed.plan_memory [--write-docs]

Random models in bfloat16, each stage in a process of its own on a CPU. Counted are the bytes that PyTorch's
allocator hands out at the peak, which is what a GPU must hold; not a process's resident memory, which counts
libraries too, and fragments that this system's allocator keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_letters
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.profiler import ProfilerActivity

from benchmarks.common import Report, Row, markdown_table, run
from benchmarks.ledger import put
from pipelines.config.overrides import changed
from pipelines.config.settings import Config, parse, preset_text
from pipelines.machine import stage_estimates, stage_memory
from pipelines.machine.gpus import Gpu
from pipelines.machine.model_sizes import read_size
from pipelines.prompts.prompt_sources import Prompt
from tests.support import families

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.training.step_data import Episodes
    from recovery.training.updater import Microbatch

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
STAGES = ("midtrain", "distill", "evaluate")
LEARNING_RATE = 1e-4
GPU = Gpu("unlimited", 1024.0)
TOLERANCE = 0.10
MIB = 2**20


@dataclass(frozen=True)
class Sizes:
    """What one step holds at once."""

    microbatch: int = 1024
    rows: int = 16
    prompt: int = 48
    answer: int = 80
    rank: int | None = None
    checkpointing: bool = False
    dtype: Literal["bfloat16", "float32"] = "bfloat16"


@dataclass(frozen=True)
class Case:
    """A model's shape, and the sizes of its steps."""

    name: str
    family: str
    settings: dict[str, Any] = field(default_factory=dict)
    sizes: Sizes = Sizes()


WIDE = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
}
EXPERTS = {"num_experts": 8, "moe_intermediate_size": 128}
LATENT = {
    "num_key_value_heads": 8,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "head_dim": 16,
    "n_routed_experts": 8,
    "moe_intermediate_size": 128,
}
CASES = (
    Case("Llama", "Llama", WIDE),
    Case("Llama, tied", "Llama, tied embeddings", WIDE),
    Case("Llama, recomputing", "Llama", {**WIDE, "num_hidden_layers": 12}, Sizes(checkpointing=True)),
    Case("Llama, adapter", "Llama", WIDE, Sizes(rank=16)),
    Case("Qwen 3, all heads cached", "Qwen 3", {**WIDE, "num_key_value_heads": 8}),
    Case("Gemma 3, large vocabulary", "Gemma 3", {**WIDE, "vocab_size": 32768, "tie_word_embeddings": True}),
    Case("Qwen 3 MoE", "Qwen 3 MoE", {**WIDE, **EXPERTS}),
    Case("Qwen 3 MoE, adapter", "Qwen 3 MoE", {**WIDE, **EXPERTS}, Sizes(rank=16)),
    Case("DeepSeek V3", "DeepSeek V3", {**WIDE, **LATENT}),
    Case("LFM 2 (convolutions)", "LFM 2", {**WIDE, "layer_types": ["conv", "conv", "full_attention"] * 2}),
    Case("Falcon-H1 (Mamba 2)", "Falcon-H1", {**WIDE, "mamba_d_ssm": 256, "mamba_d_head": 64}),
)


def fill(report: Report, asked: argparse.Namespace) -> None:
    rows = []
    for case in CASES[:2] if asked.quick else CASES:
        with tempfile.TemporaryDirectory() as folder:
            save(case, Path(folder))
            rows += compared(case, Path(folder))
    report.tables[""] = rows
    worst = max(abs(row["planned / allocated"] - 1) for row in rows)
    report.target("the plan is off by", worst, "at most", TOLERANCE)
    if asked.write_docs:
        put(PAGE, "plan memory", markdown_table(rows))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write-docs", action="store_true", help=f"put the table into {PAGE.name}")


def compared(case: Case, model: Path) -> list[Row]:
    """Measure a case's stages, beside what the plan says."""
    plan = planned(case, model)
    found = measured(case.name, model)
    return [
        {
            "model": case.name,
            "stage": stage,
            "planned MiB": plan[stage] / MIB,
            "allocated MiB": found[stage] / MIB,
            "planned / allocated": plan[stage] / found[stage],
        }
        for stage in STAGES
    ]


def save(case: Case, directory: Path) -> None:
    """Write the case's random model, in the 16-bit form that a plan assumes."""
    family = families.named(case.family)
    wide = families.Family(case.name, family.model_type, {**family.settings, **case.settings})
    families.save(wide, directory, dtype=torch.bfloat16)


def settings(sizes: Sizes) -> Config:
    """The configuration of a case's stages."""
    preset = parse(preset_text("real"), "preset")
    lora = None if sizes.rank is None else {"rank": sizes.rank}
    both = {"microbatch_tokens": sizes.microbatch, "lora": lora}
    stages: dict[str, dict[str, Any]] = {
        "midtrain": {
            **both,
            "steps": 2,
            "epochs": None,
            "row_tokens": sizes.prompt + sizes.answer,
            "tokens_per_step": 2 * sizes.microbatch,
            "mix": {**dict.fromkeys(preset.midtrain.mix.model_dump(), 0.0), "new": 1.0},
        },
        "distill": {
            **both,
            "prompts_per_step": sizes.rows,
            "samples_per_prompt": 1,
            "max_new_tokens": sizes.answer,
        },
        "eval": {"batch_size": sizes.rows, "max_new_tokens": sizes.answer},
        "model": {"gradient_checkpointing": sizes.checkpointing, "dtype": sizes.dtype},
    }
    wanted = {f"{name}.{key}": value for name, values in stages.items() for key, value in values.items()}
    return changed(preset, wanted)


def planned(case: Case, model: Path) -> dict[str, float]:
    """Return the bytes that the plan counts for each stage."""
    sizes = case.sizes
    work = stage_memory.PlannedWork(
        read_size(str(model)),
        settings(sizes),
        prompt_tokens=sizes.prompt,
        answer_tokens=sizes.answer,
        document_tokens=10_000,
    )
    found = stage_estimates.estimates(GPU, work)
    return {row.stage: sum(row.memory.values()) for row in found}


def measured(case: str, model: Path) -> dict[str, float]:
    """Return the bytes allocated at each stage's peak, without the CPU engine."""
    words = [sys.executable, "-m", "benchmarks.speed.plan_memory", "--child", case, str(model)]
    environment = {**os.environ, "RECOVER_CPU": "off", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, env=environment, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# In the child -----------------------------------------------------------------------------------------------


def child(name: str, model: Path) -> None:
    """Print what each stage of a case allocates."""
    as_on_a_gpu()
    sizes = next(case.sizes for case in CASES if case.name == name)
    sys.stdout.write(json.dumps(allocated(model, sizes)) + "\n")


def allocated(model: Path, sizes: Sizes) -> dict[str, float]:
    """Run the stages; return what each holds at its peak: the loaded weights, and all allocated since."""
    found = {}
    for stage, work in (("midtrain", midtrain), ("distill", distill), ("evaluate", evaluate)):
        clean = loaded(model, sizes)
        student = clean if stage == "evaluate" else loaded(model, sizes, trained=True)
        models = [student, clean] if stage == "distill" and not sizes.rank else [student]
        with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            work(student, clean, sizes)
        found[stage] = float(sum(map(weight_bytes, models)) + peak(seen))
    return found


def weight_bytes(chat: ChatModel) -> int:
    """Return the bytes of all weights and buffers, each counted once."""
    parts = [*chat.model.parameters(), *chat.model.buffers()]
    return sum({part.untyped_storage().data_ptr(): part.nbytes for part in parts}.values())


def as_on_a_gpu() -> None:
    """Take the sizes of chunks and passes that an accelerator takes."""
    from recovery.forward.hidden_states import READ_TOKENS
    from recovery.objective.objective import CHUNK_ENTRIES

    CHUNK_ENTRIES["cpu"] = CHUNK_ENTRIES["accelerator"]
    READ_TOKENS["cpu"] = READ_TOKENS["cpu without padding"] = READ_TOKENS["accelerator"]


def peak(seen: Any) -> int:
    """Return the most bytes that were allocated at once while the profiler ran."""
    events = [one for one in seen.profiler.kineto_results.events() if one.name() == "[memory]"]
    held = highest = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest


def midtrain(student: ChatModel, clean: ChatModel, sizes: Sizes) -> None:
    """Two updates of two microbatches on packed rows."""
    train_on(student, "sft", Batches(sizes, student.pad_id))


class Batches:
    """Two microbatches of random documents for every update."""

    def __init__(self, sizes: Sizes, pad_id: int) -> None:
        from recovery.batches.rollouts import Rollouts
        from recovery.training.updater import Microbatch

        length = sizes.prompt + sizes.answer
        rows = [(row, [True] * length) for row in random_rows(sizes.microbatch // length, length)]
        self.one: Microbatch = Microbatch(Rollouts.packed(rows, pad_id, length))

    def updates(self, step: int) -> Iterator[Sequence[Microbatch]]:
        yield [self.one, self.one]


def distill(student: ChatModel, clean: ChatModel, sizes: Sizes) -> None:
    """Two steps: sample, score with the clean model, train."""
    train_on(student, "opd", episodes(student, None if sizes.rank else clean, sizes))


def episodes(student: ChatModel, clean: ChatModel | None, sizes: Sizes) -> Episodes:
    """Return a recovery's batches; without a clean model the student teaches, its adapter switched off."""
    from recovery.methods.table import get
    from recovery.sampling.in_process import InProcessSampler
    from recovery.teachers.teachers import AdapterOffTeacher, CheckpointTeacher
    from recovery.training.step_data import Episodes, StepConfig, Task

    teacher = AdapterOffTeacher(student) if clean is None else CheckpointTeacher(clean)
    template = len(student.prompt_ids([{"role": "user", "content": ""}]))
    texts = random_texts(sizes.rows, sizes.prompt - template)
    prompts = [Prompt([{"role": "user", "content": text}]) for text in texts]
    task = Task(get("opd"), prompts, teacher=teacher)
    config = StepConfig(sizes.rows, 1, sizes.answer, sizes.microbatch)
    return Episodes(student, InProcessSampler(student), task, config)


def evaluate(student: ChatModel, clean: ChatModel, sizes: Sizes) -> None:
    """Answer a batch of prompts."""
    from recovery.sampling.in_process import InProcessSampler
    from recovery.sampling.protocol import SamplingParams

    prompts = random_rows(sizes.rows, sizes.prompt)
    InProcessSampler(student).generate(prompts, SamplingParams(sizes.answer))


def loaded(model: Path, sizes: Sizes, *, trained: bool = False) -> ChatModel:
    """Load the model as it is, or ready to be trained."""
    from recovery.models.adapters import LoraSpec
    from recovery.models.loading import ModelSpec, load

    lora = LoraSpec(rank=sizes.rank) if trained and sizes.rank else None
    recompute = trained and sizes.checkpointing
    return load(ModelSpec(str(model), dtype=sizes.dtype, lora=lora, gradient_checkpointing=recompute))


def train_on(student: ChatModel, method: str, batches: Any, steps: int = 2) -> None:
    from recovery.methods.table import get
    from recovery.objective.objective import Objective
    from recovery.training.config import TrainConfig
    from recovery.training.token_loss import TokenLoss
    from recovery.training.trainer import train

    train(student, batches, TokenLoss(Objective(get(method))), TrainConfig(steps, LEARNING_RATE))


def random_texts(count: int, length: int) -> list[str]:
    dice = random.Random(0)
    return ["".join(dice.choices(ascii_letters, k=length)) for _ in range(count)]


def random_rows(count: int, length: int) -> list[list[int]]:
    return [list(text.encode()) for text in random_texts(count, length)]


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[2], Path(sys.argv[3]))
    else:
        run(
            "plan memory",
            "Does a stage need as much memory as `recover plan` says?",
            fill,
            options,
        )
