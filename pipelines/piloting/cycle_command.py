"""Write the `recover cycle` command that carries out what a pilot proposes."""

from __future__ import annotations

from typing import Any

from pipelines.config.jobs import PilotJob
from pipelines.config.sections.base import AUTO
from recovery.command_line import Command

FLAGS = {  # options of a cycle, by the setting that a typed option of the pilot changed
    "distill.prompts": "--prompts",
    "eval.probes": "--probes",
    "eval.ifeval": "--ifeval",
    "seed": "--seed",
}


def cycle_command(command: Command, job: PilotJob, row: dict[str, Any]) -> str:
    """Return the command of the cycle that carries out a proposal, as `command` writes it."""
    words = ["cycle", "--docs", job.docs]
    if job.student_name != "current":
        words += ["--student", job.student_name]
    words += ["--midtrain-rate", f"{row['rate']:.3g}", "--midtrain-steps", str(row["steps"])]
    if job.settings.midtrain.tokens_per_step == AUTO:
        words += ["--midtrain-tokens", str(row["tokens_per_step"])]
    # In full: the shares have to add up to one.
    words += ["--mix", ",".join(f"{name}={part:.10g}" for name, part in row["mix"].items())]
    words += ["--recover-with", row["recovery"]]
    for setting, flag in FLAGS.items():
        if setting in job.changes:
            words += [flag, str(job.changes[setting])]
    frozen = job.changes.get("midtrain.freeze_embeddings")
    if frozen is not None:
        words.append("--freeze-embeddings" if frozen else "--train-embeddings")
    if job.changes.get("midtrain.reading.strict"):
        words.append("--strict")
    return command(*words)
