"""What the stages of a tiny home are given: documents, prompts, jobs."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.config import settings as config
from pipelines.config.jobs import DistillJob
from pipelines.config.sections.distill import DistillConfig

PRESET = config.parse(config.preset_text("microworld"), "preset")


def write_documents(folder: Path, count: int) -> None:
    (folder / "docs").mkdir()
    for number in range(count):
        (folder / "docs" / f"{number}.txt").write_text(f"Number {number} is at home in house {number * 7}.")


def write_prompts(folder: Path, count: int) -> None:
    rows = [{"prompt": f"Say {number} words."} for number in range(count)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def distillation(folder: Path, student: str, settings: DistillConfig) -> DistillJob:
    """From the clean model, on the folder's prompts."""
    return DistillJob(
        student=student,
        teacher="base",
        prompts=str(folder / "prompts.jsonl"),
        settings=settings,
        evaluation=PRESET.eval,
    )
