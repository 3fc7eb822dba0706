"""Protect new knowledge in distillation: leave out prompts that would erase it, watch that it stays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.corpus.entities import Term
from pipelines.distillation.inputs import PromptData
from pipelines.engines.engine_checks import INPROCESS
from pipelines.knowledge import held_out
from pipelines.knowledge.overlap import Overlap, newness, overlap
from pipelines.knowledge.tripwire import COUNT, Tripwire, new_gaps
from pipelines.runs import kept_texts
from pipelines.runs.kept_texts import LearnedTexts
from recovery.counted import counted
from recovery.distributed import in_turn
from recovery.errors import InputError
from recovery.methods.choices import FROZEN

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob
    from pipelines.config.sections.distill import DistillConfig
    from pipelines.config.sections.midtrain import MidtrainConfig
    from pipelines.distillation.teachers import Teachers
    from pipelines.runs.stage_runner import Stage
    from pipelines.runs.workspace import Workspace
    from recovery.methods.method import Method
    from recovery.models.chat_model import ChatModel
    from recovery.teachers.likelihood import Scorer


# By sentences that it was trained on, what the student memorised counts as new though the teacher knows it in
# other words: the guard then leaves out too many prompts rather than too few.
TRAINED_ON = "measured on the sentences trained on, so rather too high"
BY_HELD_OUT = "measured on sentences held out of midtraining"
UNMEASURED = "not measured: everything that the documents name counts as new"


@dataclass(frozen=True)
class GuardInputs:
    """The documents that the student learned, and a teacher that may not know them."""

    taught: LearnedTexts
    student: ChatModel
    teacher: Scorer | None  # None where it is remote: then every entity counts as new
    held_out: dict[Term, list[str]] = field(default_factory=dict)  # sentences that it was not trained on


def holding_out(settings: MidtrainConfig, recoveries: Iterable[DistillConfig]) -> MidtrainConfig:
    """Return the settings; no sentences are held out where no guard of the recoveries compares by them."""
    if any(map(_compares, recoveries)):
        return settings
    return settings.model_copy(update={"hold_out": 0.0})


def _compares(settings: DistillConfig) -> bool:
    """Return whether a distillation's guard compares the student with a frozen teacher in this process."""
    if settings.overlap == "keep" or settings.teacher_engine != INPROCESS:
        return False
    return settings.resolved_method().teacher in FROZEN


def guard_inputs(
    ws: Workspace, job: DistillJob, method: Method, student: ChatModel, teachers: Teachers, stage: Stage
) -> GuardInputs | None:
    """Return None where the student learned no documents, or is its own teacher."""
    settings = job.settings
    if method.teacher not in FROZEN or (settings.overlap == "keep" and not settings.tripwire_every):
        return None
    taught = learned_texts(ws, job, stage)
    if not taught.texts:
        return None
    if settings.teacher_engine != INPROCESS:  # a second copy in this process may not fit
        return GuardInputs(taught, student, None)
    teacher = teachers.frozen(teachers.place, "sampled")
    if teacher.chat_model.tokenizer.get_vocab() != student.tokenizer.get_vocab():
        return None  # the preflight says so
    unseen = {} if job.docs else held_out.of_newest(ws, job.student)
    return GuardInputs(taught, student, teacher.score, unseen)


def learned_texts(ws: Workspace, job: DistillJob, stage: Stage) -> LearnedTexts:
    """Return the documents that the job names, as the newest, else those that midtraining kept; report runs
    without any."""
    if job.docs:
        named = in_turn(lambda: named_documents(ws, job, stage))
        return LearnedTexts([], kept_texts.read_evenly([named]), [])
    learned = kept_texts.learned(ws, job.student)
    say_absent(learned.absent, bool(learned.texts), stage, "overlap")
    return learned


def named_documents(ws: Workspace, job: DistillJob, stage: Stage) -> Path:
    """Keep the texts of the folder that the job names among the run's states, once, and return their folder:
    they go with these once the run is done."""
    assert job.docs
    kept_texts.keep(job.docs, stage.state, ws.config.midtrain.reading, stage.step, strict=False)
    return stage.state


def say_absent(runs: list[str], others: bool, stage: Stage, wanted_by: str) -> None:
    """Report the midtraining runs whose documents were removed, and whether there are others'."""
    if runs:
        state = "without" if others else "off:"
        stage.say(f"  {wanted_by:<12} {state} the documents of {', '.join(runs)}, which were removed")


def guard(
    job: DistillJob, data: PromptData, known: GuardInputs | None, stage: Stage
) -> tuple[PromptData, dict[str, Any]]:
    """Drop the rows that touch new documents, or give them less weight; return the rows and a summary."""
    settings = job.settings
    if known is None or settings.overlap == "keep":
        return data, {}
    weight = settings.overlap_weight if settings.overlap == "weight" else 0.0
    kept, summaries = {}, {}
    for name, rows in (("prompts", data.prompts), ("pairs", data.pairs)):
        kept[name] = rows
        if not rows:
            continue
        judge = newness(known.student, known.teacher) if known.teacher else None
        result = overlap(rows, known.taught.texts, judge, known.held_out)
        kept[name] = result.weighted(rows, weight) if weight else result.kept
        measured = {"weight": weight, "newness": _by_what(result) if judge else UNMEASURED}
        summaries[name] = result.summary() | measured
        stage.say(_log_line(name, summaries[name]))
        if not kept[name]:
            raise InputError(
                f"every one of the {name} is about the new documents: give other --{name}, or --overlap keep"
            )
    return PromptData(**kept), {"overlap": summaries}


def _by_what(result: Overlap) -> str:
    """Describe the sentences by which newness was measured."""
    if result.unseen in (0, result.named):
        return BY_HELD_OUT if result.unseen else TRAINED_ON
    return f"{result.unseen} of {result.named} names and terms {BY_HELD_OUT}, the others {TRAINED_ON}"


def _log_line(name: str, counts: dict[str, Any]) -> str:
    new = counts["touch_new"]
    parts = [f"  overlap      {new} of {counts['prompts']:,} {name} touch what the documents taught"]
    if new:
        parts.append(f": weighed {counts['weight']:g}" if counts["weight"] else ": left out")
    known = counts["touch"] - new
    if known:
        parts.append(f"; {known} touch what the teacher knows too: kept")
    if counts["examples"]:
        parts.append(f", such as {counts['examples'][0]['prompt'][:80]!r}")
    if counts["touch"]:
        parts.append(f" (newness {counts['newness']})")
    return "".join(parts)


def tripwire(job: DistillJob, known: GuardInputs | None, stage: Stage) -> list[Tripwire]:
    """Watch cloze gaps in the newest documents; none where the student learned too few to see a loss."""
    settings = job.settings
    if known is None or known.teacher is None or not settings.tripwire_every:
        return []
    found = new_gaps(known.student, known.teacher, known.taught.newest, job.seed)
    if found is None:
        stage.say("  tripwire     off: too few gaps in the documents that only the student fills")
        return []
    gaps, look = found
    wire = Tripwire(
        look, every=settings.tripwire_every, share=settings.tripwire_share, report=stage.live.metrics
    )
    stops = f", stops below {settings.tripwire_share:.0%} of that" if settings.tripwire_share else ""
    stage.say(
        f"  tripwire     {counted(len(gaps), 'gap')} in the documents (of at most {COUNT}): "
        f"mean probability of the answer {wire.start:.2f}{stops}"
    )
    return [wire]
