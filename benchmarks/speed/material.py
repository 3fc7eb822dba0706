"""Give a speed benchmark its model, prompts and documents: the shipped ones, or those of `--model`."""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.config.settings import parse, preset_text
from pipelines.corpus.mixed_tokens import MixedTokens
from pipelines.handbook import corpus
from pipelines.microworld import people
from pipelines.microworld.shipped_model import shipped_model
from pipelines.prompts.prompt_sources import Prompt, read_prompts
from recovery.models import gguf, loading
from recovery.models.chat_model import ChatModel
from recovery.models.device import Dtype
from recovery.models.hub import locate
from recovery.models.loading import ModelSpec

SHIPPED = shipped_model()
SEED = 0
ROW_TOKENS = 512  # longest piece of a real document
CONVERTED = re.compile(r"-[0-9a-f]{12}$")  # what the folder of a converted GGUF file ends with


@dataclass(frozen=True)
class Material:
    """A checkpoint, with prompts and documents that fit it."""

    directory: Path = SHIPPED

    @property
    def is_shipped(self) -> bool:
        return self.directory == SHIPPED

    def load(self, dtype: Dtype = "float32", attention: str = "auto") -> ChatModel:
        return loading.load(ModelSpec(str(self.directory), dtype=dtype, attention=attention))

    def describe(self, chat: ChatModel) -> str:
        name = "The shipped model" if self.is_shipped else CONVERTED.sub("", self.directory.name)
        return f"{name} ({size(chat)})"

    def prompts(self, count: int) -> list[Prompt]:
        """Return the microworld's prompts, or generated ones in IFEval's format; at most `count`."""
        if self.is_shipped:
            return read_prompts("microworld", SEED)[:count]
        from pipelines.writing import instruction_prompts

        found = instruction_prompts.generate(count, SEED)
        return [Prompt([{"role": "user", "content": prompt.text}]) for prompt in found]

    def texts(self) -> list[str]:
        """Return the microworld's documents, or the pages of this repository's handbook."""
        if self.is_shipped:
            return [text for _, text in people.documents(people.new_people(SEED, 1), random.Random(SEED))]
        pages = [page for cycle in corpus.PAGES for page in cycle]
        return [(corpus.ROOT / page).read_text(encoding="utf-8") for page in pages]

    def documents(self, chat: ChatModel) -> list[list[int]]:
        """Return the token ids of the documents."""
        return [[*chat.text_ids(text), chat.document_end] for text in self.texts()]

    def midtraining(self, tokens: int) -> MidtrainConfig:
        """Return the demo's settings for the shipped model, else the preset's for `tokens` a step."""
        if self.is_shipped:
            return parse(preset_text("microworld"), "preset").midtrain
        sizes = {
            "tokens_per_step": tokens,
            "microbatch_tokens": tokens,
            "row_tokens": min(tokens, ROW_TOKENS),
        }
        return parse(preset_text("real"), "preset").midtrain.model_copy(update={**sizes, "steps": 1})


def token_batches(
    documents: list[list[int]], settings: MidtrainConfig, chat: ChatModel, *, packs: bool = True
) -> MixedTokens:
    """Return the batches of a midtraining on these documents alone."""
    sequences = [(ids, [True] * len(ids)) for ids in documents]
    return MixedTokens({"new": sequences}, settings, chat.pad_id, SEED, packs)


def size(chat: ChatModel) -> str:
    weights = sum(parameter.numel() for parameter in chat.model.parameters())
    return f"{weights / 1e6:.1f} M parameters, V {chat.model.config.vocab_size:,}"


def options(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add the options of a benchmark that runs on the shipped model or on a real one."""
    named = "a checkpoint, GGUF file or hub name"
    shipped = "" if required else " (default: the shipped model)"
    parser.add_argument("--model", required=required, metavar="MODEL", help=f"{named}{shipped}")
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each side")


@contextmanager
def checkpoint(model: str | None) -> Iterator[Path]:
    """Yield a model's directory; a GGUF file is converted for the length of the context."""
    if model is None:
        yield SHIPPED
        return
    source = gguf.find(model)
    if source is None:
        yield locate(model)[0].absolute()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield gguf.convert(source, Path(folder)).directory
