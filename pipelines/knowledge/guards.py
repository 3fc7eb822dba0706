"""What a distillation does for new knowledge: asks nothing that would wipe it, and watches that it stays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.corpus import documents, kept_texts
from pipelines.distillation.engine_places import INPROCESS
from pipelines.distillation.inputs import Data
from pipelines.knowledge.overlap import newness, overlap
from pipelines.knowledge.tripwire import COUNT, Tripwire, new_gaps
from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob
    from pipelines.distillation.inputs import Teachers
    from pipelines.runs.stage_runner import Stage
    from pipelines.runs.workspace import Workspace
    from recovery.methods.method import Method
    from recovery.models.chat_model import ChatModel
    from recovery.teachers.likelihood import Scorer


@dataclass(frozen=True)
class Taught:
    """The documents that the student learned, and a teacher who may not know them."""

    texts: list[str]
    student: ChatModel
    teacher: Scorer | None  # None where it is elsewhere: then all that is mentioned counts as new


def taught(
    ws: Workspace, job: DistillJob, method: Method, student: ChatModel, teachers: Teachers, stage: Stage
) -> Taught | None:
    """None where nothing was taught, or where nobody but the student itself corrects the student."""
    settings = job.settings
    if method.teacher != "base" or (settings.overlap == "keep" and not settings.tripwire_every):
        return None
    texts = texts_of(ws, job, stage, "overlap")
    if not texts:
        return None
    if settings.teacher_engine != INPROCESS:  # a second copy in this process may not fit
        return Taught(texts, student, None)
    teacher = teachers.frozen(job.teacher, "sampled")
    if teacher.chat_model.tokenizer.get_vocab() != student.tokenizer.get_vocab():
        return None  # the preflight says so
    return Taught(texts, student, teacher.score)


def texts_of(ws: Workspace, job: DistillJob, stage: Stage, wanted_by: str) -> list[str]:
    """What the job names, else what midtraining kept; where that is gone, nothing, and it is said."""
    if job.docs:
        return list(documents.read_corpus(Path(job.docs)).texts)
    try:
        return kept_texts.learned(ws, job.student)
    except InputError as error:
        stage.say(f"  {wanted_by:<12} off: {error}")
        return []


def guard(job: DistillJob, data: Data, known: Taught | None, stage: Stage) -> tuple[Data, dict[str, Any]]:
    """The rows that leave the new documents alone, and the others if they only count less; what was found."""
    settings = job.settings
    if known is None or settings.overlap == "keep":
        return data, {}
    weight = settings.overlap_weight if settings.overlap == "weight" else 0.0
    kept, told = {}, {}
    for name, rows in (("prompts", data.prompts), ("pairs", data.pairs)):
        judge = newness(known.student, known.teacher) if known.teacher else None
        found = overlap(rows, known.texts, judge) if rows else None
        kept[name] = rows
        if found is None:
            continue
        kept[name] = found.weighted(rows, weight) if weight else found.kept
        told[name] = found.summary() | {"weight": weight}
        stage.say(_in_words(name, told[name]))
        if not found.kept:
            raise InputError(
                f"every one of the {name} is about the new documents: give other --{name}, or --overlap keep"
            )
    return Data(**kept), {"overlap": told}


def _in_words(name: str, told: dict[str, Any]) -> str:
    line = f"  overlap      {told['touch_new']} of {told['prompts']:,} {name} touch what the documents taught"
    old = told["touch"] - told["touch_new"]
    done = f"weighed {told['weight']:g}" if told["weight"] else "left out"
    line += f": {done}" if told["touch_new"] else ""
    line += f"; {old} touch what the teacher knows too: kept" if old else ""
    example = f", such as {told['examples'][0]['prompt'][:80]!r}" if told["examples"] else ""
    return line + example


def tripwire(job: DistillJob, known: Taught | None, stage: Stage) -> list[Tripwire]:
    """A watch over gaps in the documents; none where the student learned too little to see it go."""
    settings = job.settings
    if known is None or known.teacher is None or not settings.tripwire_every:
        return []
    found = new_gaps(known.student, known.teacher, known.texts, job.seed)
    if found is None:
        stage.say("  tripwire     off: too few gaps in the documents that only the student fills")
        return []
    gaps, look = found
    wire = Tripwire(
        look, every=settings.tripwire_every, share=settings.tripwire_share, report=stage.live.metrics
    )
    stops = f", stops below {settings.tripwire_share:.0%} of that" if settings.tripwire_share else ""
    stage.say(
        f"  tripwire     {len(gaps)} gaps in the documents (of at most {COUNT}): "
        f"mean probability of the answer {wire.start:.2f}{stops}"
    )
    return [wire]
