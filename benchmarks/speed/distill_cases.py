"""Define the work of the distillation benchmark, alike for all sides: student, teacher, prompts, sizes."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.speed.material import Material, size, token_batches
from evals.dialogues import Messages
from pipelines.prompts.prompt_sources import Prompt
from recovery.methods.table import get
from recovery.models.chat_model import ChatModel
from recovery.models.saving import save
from recovery.objective.objective import Objective
from recovery.training.config import TrainConfig
from recovery.training.step_data import step_rows
from recovery.training.token_loss import TokenLoss
from recovery.training.trainer import train

SEED = 0
MICROBATCH = 2048  # tokens: the preset's
RATE, REAL_RATE = 5e-4, 1e-4
NOISE, REAL_NOISE = 0.2, 0.02  # by which a start differs from its teacher, in standard deviations of a matrix
GOAL, REAL_GOAL = 2.5, 1.5  # times the steps a second of TRL


@dataclass(frozen=True)
class Sizes:
    """How much is sampled and trained."""

    steps: int
    batch: int  # prompts of a step
    new_tokens: int
    held_out: int  # prompts to measure the divergence on
    rate: float = RATE


SHIPPED = Sizes(steps=8, batch=64, new_tokens=96, held_out=128)
WIDE = Sizes(steps=8, batch=64, new_tokens=24, held_out=128)
REAL = Sizes(steps=6, batch=16, new_tokens=64, held_out=16, rate=REAL_RATE)


@dataclass(frozen=True)
class Case:
    """One comparison: student, teacher and prompts."""

    name: str
    start: ChatModel
    teacher: ChatModel
    sizes: Sizes
    dialogues: list[Messages]
    goal: float = GOAL

    @property
    def prompts(self) -> list[Prompt]:
        return [Prompt(messages) for messages in self.dialogues[self.sizes.held_out :]]

    @property
    def held_out(self) -> list[Prompt]:
        return [Prompt(messages) for messages in self.dialogues[: self.sizes.held_out]]

    def save(self, folder: Path) -> None:
        """Save for other processes, so that the start is trained once."""
        for name, model in (("start", self.start), ("teacher", self.teacher)):
            save(model, folder / name)
        rest = {"name": self.name, "sizes": asdict(self.sizes), "dialogues": self.dialogues}
        (folder / "case.json").write_text(json.dumps(rest), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, attention: str) -> Case:
        start, teacher = (Material(folder / name).load(attention=attention) for name in ("start", "teacher"))
        rest = json.loads((folder / "case.json").read_text(encoding="utf-8"))
        return cls(rest["name"], start, teacher, Sizes(**rest["sizes"]), rest["dialogues"])

    def order(self) -> list[int]:
        """Return the prompts of all steps in the order that both sides use."""
        rows, sizes = range(len(self.prompts)), self.sizes
        return [
            row
            for step in range(1, sizes.steps + 1)
            for row in step_rows(rows, sizes.batch, step, f"prompts:{SEED}")
        ]


def shipped(of: Material, sizes: Sizes) -> Case:
    """Distill the shipped model from itself after brief training on documents, as the demo does."""
    teacher, start = of.load(), of.load()
    batches = token_batches(of.documents(start), of.midtraining(MICROBATCH), start)
    train(start, batches, TokenLoss(Objective(get("sft"))), TrainConfig(40, 1e-3, warmup_steps=5, seed=SEED))
    return Case(f"Shipped model ({size(start)})", start, teacher, sizes, dialogues(of, sizes))


def wide(of: Material, sizes: Sizes) -> Case:
    """Use a random model of the same shape with a vocabulary of 32,768, which rarely ends an answer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    narrow = of.load()
    config = Qwen3Config(**{**narrow.model.config.to_dict(), "vocab_size": 32768, "initializer_range": 0.1})
    torch.manual_seed(SEED)
    model = Qwen3ForCausalLM(config).eval()
    model.generation_config = narrow.model.generation_config
    teacher = ChatModel.of(model, narrow.tokenizer)
    start = copy.copy(teacher)
    start.model = copy.deepcopy(model)
    disturb(start, NOISE)
    return Case(f"Vocabulary of 32,768 ({size(start)})", start, teacher, sizes, dialogues(of, sizes))


def real(of: Material, sizes: Sizes) -> Case:
    """Distill a model from itself after slight noise on its weights."""
    teacher, start = of.load(), of.load()
    torch.manual_seed(SEED)
    disturb(start, REAL_NOISE)
    return Case(of.describe(start), start, teacher, sizes, dialogues(of, sizes), REAL_GOAL)


def dialogues(of: Material, sizes: Sizes) -> list[Messages]:
    """Return the held-out prompts, then those of the steps."""
    return [prompt.messages for prompt in of.prompts(sizes.held_out + sizes.steps * sizes.batch)]


@torch.no_grad()
def disturb(chat: ChatModel, noise: float) -> None:
    """Add noise to each matrix, in units of its standard deviation."""
    for weight in chat.model.parameters():
        if weight.ndim > 1:
            weight += noise * weight.std() * torch.randn_like(weight)
