"""The job of each stage: recorded with its run, and enough to do it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from evals.ifeval import IFEVAL
from pipelines.config.sections.base import Section
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.eval import EvalConfig
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.config.settings import Config
from pipelines.corpus.reading.superseded_list import beside

Kind = Literal["linear", "slerp", "residual", "embeddings"]  # of merging
AUGMENTED = "augmented.jsonl"
IFEVAL_INPUT = "IFEval prompts"  # among a job's sources: the file, or the name of a data set
DOCUMENTS_INPUT = "documents"  # among a job's sources: a folder of documents
SUPERSEDED_INPUT = "superseded"  # among a job's sources: a file that may be missing
AUGMENTED_INPUT = "augmented"  # among a job's sources: the file of retold documents, or its folder
ALONE = "eval"  # label of an evaluation that is a command of its own


class Job(Section):
    """The complete description of a run: recorded with it, and enough to repeat it."""

    inputs: dict[str, str] = Field(default_factory=dict)  # SHA-256 of each source when the run began

    def sources(self) -> dict[str, str]:
        """Return the files and folders that the run reads, by what they are."""
        return {}


class RealDemo(Section):
    """A demo on a real model: which model, which IFEval prompts, and how many steps and questions."""

    model: str | None = None  # GGUF file, directory or hub id; None: SmolLM2, installed or from the hub
    ifeval: str | None = None  # file in IFEval's format; None: the hub's prompts, else generated ones
    full: bool = False  # sizes of a measurement


class DemoJob(Section):
    """A demo: how many cycles, within which time, on the microworld or a real model."""

    cycles: int = 2
    seed: int = 0
    minutes_budget: float | None = None
    real: RealDemo | None = None


class CycleJob(Job):
    """One cycle, with every setting resolved when it began."""

    docs: str
    student: str
    clean: str
    settings: Config
    prompts: str
    suites: tuple[str, ...]
    required: tuple[str, ...] = ()  # axes without which the cycle is not accepted
    earlier: dict[int, str] = Field(default_factory=dict)  # probes of earlier cycles
    outdated: dict[int, tuple[str, ...]] = Field(default_factory=dict)  # of these, ids that are not asked
    recover_with: str | None = None  # auto or merge; None: by distill.method
    unmergeable: str | None = None  # why auto tries no mixture of weights
    augment: str | None = None  # the documents retold
    seed: int = 0

    @property
    def two_looks(self) -> bool:
        """Whether further prompts are asked where behaviour is underpowered on IFEval's own."""
        return IFEVAL in self.suites and self.settings.eval.further_file is not None

    @property
    def answered_by_clean(self) -> bool:
        """Whether the clean model answers prompts: of the ways that auto tries, one reads them whatever the
        configured one does."""
        return bool(self.settings.midtrain.mix.chat) or self.recover_with == "auto"

    @property
    def reads_prompts(self) -> bool:
        """Whether midtraining or recovery reads the prompts."""
        return self.answered_by_clean or (self.recover_with is None and self.settings.distill.reads_prompts)

    def sources(self) -> dict[str, str]:
        return {
            **_taught(self.docs),
            **_read(self.prompts, self.reads_prompts),
            **_named(**_augmented(self.augment)),
            **_distillation(self.settings.distill),
            **_evaluation(self.settings.eval, self.earlier),
        }


class MidtrainJob(Job):
    """A midtraining."""

    docs: str
    student: str
    settings: MidtrainConfig
    prompts: str | None = None  # answered by the clean model, for the chat share
    evaluation: EvalConfig | None = None  # whose prompts must not be among them
    earlier: dict[int, str] = Field(default_factory=dict)  # probes of earlier cycles, never trained on
    augment: str | None = None  # folder of augmented.jsonl
    answer_tokens: int = 2048  # longest answer of the clean model, for the chat share
    asked: str | None = None  # file of questions whose answers' probability is followed
    chat: str | None = None  # file that keeps the chat share's answers; default: one of the run's own
    seed: int = 0

    def sources(self) -> dict[str, str]:
        files = _read(self.prompts, bool(self.settings.mix.chat)) | _named(**_augmented(self.augment))
        followed = _named(**{"followed questions": self.asked})
        return _taught(self.docs) | files | followed | questions_of(self.evaluation, self.earlier)


class DistillJob(Job):
    """A distillation."""

    student: str
    teacher: str
    prompts: str
    settings: DistillConfig
    evaluation: EvalConfig  # whose prompts must not be trained on
    earlier: dict[int, str] = Field(default_factory=dict)  # probes of earlier cycles, never trained on
    docs: str | None = None  # what the student was taught; default: what its midtraining read
    seed: int = 0

    @classmethod
    def of(cls, job: CycleJob | ChooseJob, student: str, settings: DistillConfig) -> DistillJob:
        """Return the job of a distillation from the clean model, as a part of another job."""
        return cls(
            student=student,
            teacher=job.clean,
            prompts=job.prompts,
            settings=settings,
            evaluation=job.settings.eval,
            earlier=job.earlier,
            seed=job.seed,
        )

    def sources(self) -> dict[str, str]:
        prompts = _read(self.prompts, self.settings.reads_prompts)
        files = _documents(self.docs) | prompts | _distillation(self.settings)
        return files | questions_of(self.evaluation, self.earlier)


class ChooseJob(Job):
    """A choice among ways to recover a checkpoint, judged against recorded scores."""

    how: str  # auto or merge
    student: str
    clean: str
    prompts: str
    settings: Config
    suites: tuple[str, ...]
    required: tuple[str, ...] = ()  # axes without which nothing passes
    scores: dict[str, dict[str, int]]  # stage -> suite -> recorded score, of the clean and midtrained model
    unmergeable: str | None = None  # why no mixture of weights is tried
    earlier: dict[int, str] = Field(default_factory=dict)  # probes of earlier cycles, never trained on
    outdated: dict[int, tuple[str, ...]] = Field(default_factory=dict)  # of these, ids that are not asked
    seed: int = 0

    def sources(self) -> dict[str, str]:
        files = _read(self.prompts, self.how == "auto") | _distillation(self.settings.distill)
        return files | _evaluation(self.settings.eval, self.earlier)


class Mixture(Section):
    """Two checkpoints to merge, and how."""

    student: str
    other: str
    kind: Kind = "linear"
    origin: str | None = None  # residual: what `other` was tuned from
    keep: float = Field(default=1.0, allow_inf_nan=True)  # residual: share of a tensor's entries, the largest
    elect_signs: bool = False  # residual: drop entries that the student's own change outvotes


class MergeJob(Mixture):
    """A merge of two checkpoints."""

    weight: float = Field(allow_inf_nan=True)  # so that require_share() can say what is wrong with it


class SweepJob(Job, Mixture):
    """A merge of two checkpoints in several shares, each evaluated."""

    weights: tuple[float, ...] = Field(min_length=1)
    suites: tuple[str, ...]
    settings: EvalConfig
    seed: int = 0  # of sampled answers

    def sources(self) -> dict[str, str]:
        return _evaluation(self.settings, {})


class EvalJob(Job):
    """An evaluation of one checkpoint."""

    checkpoint: str
    suites: tuple[str, ...]
    settings: EvalConfig
    earlier: dict[int, str] = Field(default_factory=dict)  # cycle -> probes of what it taught
    outdated: dict[int, tuple[str, ...]] = Field(default_factory=dict)  # of these, ids that are not asked
    passages: str | None = None  # file of retrieved passages, to ask the questions with them in front too
    output: str | None = None  # folder for lm-eval's own JSON and samples
    reuse: bool = False  # take a suite's recorded scores where all that decides them is the same
    seed: int = 0  # of sampled answers
    label: str = ALONE

    def sources(self) -> dict[str, str]:
        return _evaluation(self.settings, self.earlier) | _named(passages=self.passages)


class LocateJob(Job):
    """A search for the weights of a checkpoint that lost what the clean one could do."""

    checkpoint: str
    clean: str
    suites: tuple[str, ...]
    required: tuple[str, ...] = ()  # axes without which no mixture is enough
    settings: EvalConfig
    groups: int = Field(default=4, ge=1)  # of layers
    seed: int = 0  # of sampled answers

    def sources(self) -> dict[str, str]:
        return _evaluation(self.settings, {})


class RetrievalJob(Job):
    """A comparison of training with looking the answers up."""

    clean: str
    trained: str | None = None  # None: the clean model is measured alone
    settings: EvalConfig
    docs: str | None = None  # default: all that the trained checkpoint was taught
    passages: int = Field(default=3, ge=1)  # in front of a question

    def sources(self) -> dict[str, str]:
        return _documents(self.docs) | _evaluation(self.settings, {})


class PilotJob(Job):
    """Two narrow midtrainings on a share of the documents, and a proposal for the whole of them."""

    docs: str
    student: str
    student_name: str = "current"  # as it was named, for the proposed command
    clean: str
    settings: Config
    prompts: str
    rates: tuple[float, float]
    share: float = Field(gt=0, le=1)  # of the documents
    budget: float = Field(gt=0, le=100)  # points of behaviour that midtraining may cost
    changes: dict[str, Any] = Field(default_factory=dict)  # options that were typed, for the command
    earlier: dict[int, str] = Field(default_factory=dict)  # probes of earlier cycles, never trained on
    seed: int = 0

    def sources(self) -> dict[str, str]:
        files = _taught(self.docs) | _named(prompts=self.prompts)
        return files | _evaluation(self.settings.eval, self.earlier)


class DriftJob(Job):
    """A measurement of how far two checkpoints are apart."""

    a: str  # the standard, mostly the clean one
    b: str
    prompts: str
    count: int = Field(default=64, ge=2)  # prompts, and documents
    max_new_tokens: int = Field(default=96, ge=1)
    seed: int = 0

    def sources(self) -> dict[str, str]:
        return _named(prompts=self.prompts)


def _distillation(settings: DistillConfig) -> dict[str, str]:
    probe = settings.stop.probe if settings.stop else None
    files = _named(pairs=settings.pairs, context=settings.context, reward=_code(settings.reward))
    return files | _named(**{"early-stop probe": probe})


def _code(reward: str | None) -> str | None:
    """Return the file of a reward that is named as FILE.py:function; None of any other."""
    place, _, _ = (reward or "").rpartition(":")
    return place if place.endswith(".py") else None


def questions_of(settings: EvalConfig | None, earlier: dict[int, str]) -> dict[str, str]:
    """Return the files of questions that nothing may be trained on."""
    named: dict[str, str | None] = {}
    if settings:
        named = {
            IFEVAL_INPUT: settings.ifeval,
            "further prompts": settings.further_file,
            "probes": settings.probes,
            "tasks": settings.tasks if settings.task_points else None,
        }
    return _named(**named, **{f"probes of cycle {cycle}": path for cycle, path in earlier.items()})


def _evaluation(settings: EvalConfig, earlier: dict[int, str]) -> dict[str, str]:
    return questions_of(settings, earlier) | _named(tasks=settings.tasks)


def _taught(docs: str) -> dict[str, str]:
    """Return the folder of documents, and the place beside it of a list of those that they supersede."""
    return _documents(docs) | {SUPERSEDED_INPUT: str(beside(Path(docs)))}


def _augmented(place: str | None) -> dict[str, str | None]:
    """Return the file of augmented texts, which may be named by its folder."""
    inside = str(Path(place) / AUGMENTED) if place else ""
    return {AUGMENTED_INPUT: inside if inside and Path(inside).is_file() else place}


def _documents(docs: str | None) -> dict[str, str]:
    return _named(**{DOCUMENTS_INPUT: docs})


def _read(prompts: str | None, reads: bool) -> dict[str, str]:
    """Return the prompts, if the run reads them: others may change."""
    return _named(prompts=prompts) if reads else {}


def _named(**sources: str | None) -> dict[str, str]:
    return {name: source for name, source in sources.items() if source}
