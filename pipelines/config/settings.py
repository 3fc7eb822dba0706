"""Read recover.yaml and the presets; the sections are declared in pipelines/config/sections/. No torch.

The shipped presets (pipelines/config/presets/*.yaml) are complete files that a user can read and copy.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, model_validator

from pipelines.config.sections.base import Section, validated
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.engine import EngineConfig
from pipelines.config.sections.eval import EvalConfig
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.config.sections.model import ModelConfig
from recovery.errors import InputError
from recovery.seeds import MOST_SEED

CONFIG_NAME = "recover.yaml"
TrainingSettings = MidtrainConfig | DistillConfig  # of a stage that trains


class Config(Section):
    """recover.yaml as a whole."""

    model: ModelConfig = Field(description="the clean model")
    midtrain: MidtrainConfig = Field(description="teaching documents")
    distill: DistillConfig = Field(description="bringing behaviour back")
    eval: EvalConfig = Field(description="measuring both")
    engine: EngineConfig = Field(default=EngineConfig(), description="vLLM")
    seed: int = Field(
        default=0, ge=0, le=MOST_SEED, description="of everything that is drawn, unless --seed says otherwise"
    )

    def training(self, stage: str) -> TrainingSettings:
        """Return the settings of a stage that trains: `midtrain` or `distill`."""
        return self.midtrain if stage == "midtrain" else self.distill

    @model_validator(mode="after")
    def _sampled_as_trained(self) -> Config:
        for section, sampler in (("distill", self.distill.sampler), ("eval", self.eval.sampler)):
            if self.model.quantize and sampler != "inprocess":
                raise ValueError(
                    f"model.quantize and {section}.sampler exclude each other: the engine would sample from "
                    "the base in 16 bits, not from the 4-bit one that is trained: keep sampler: inprocess"
                )
        return self


def presets() -> list[str]:
    return sorted(p.name.removesuffix(".yaml") for p in _preset_dir().iterdir() if p.name.endswith(".yaml"))


def _preset_dir() -> Any:
    return resources.files("pipelines.config") / "presets"


def preset_text(name: str) -> str:
    if name not in presets():
        raise InputError(f"no preset {name!r}: choose one of {', '.join(presets())}")
    return str((_preset_dir() / f"{name}.yaml").read_text(encoding="utf-8"))


class _EachOnce(yaml.SafeLoader):
    """Refuse a key that stands twice in a section, of which YAML's own loader keeps the last alone."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                twice = f"`{key.value}` stands there a second time: put its lines into the first one"
                raise yaml.constructor.ConstructorError(problem=twice, problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def parse(text: str, source: str) -> Config:
    try:
        raw = yaml.load(text, Loader=_EachOnce)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date like 2026-99-99
        raise InputError(f"{source} is not YAML: {_problem(error)}") from error
    return validated(Config, raw, source)


def _problem(error: Exception) -> str:
    """Return what is wrong, and in which line, without the parser's drawing of the place."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark and problem:
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    return " ".join(str(error).split())


def read(path: Path) -> Config:
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing: run `recover init` first") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}: make it a file that you may read") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: save it as such") from error
