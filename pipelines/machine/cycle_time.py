"""Estimate how long a cycle takes here, by the measured speed of a product of the model's shape.

Answers are counted at a typical length, and other work on the machine slows a cycle down. Each stage shows
its own remaining time once it runs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from evals.ifeval import FURTHER
from evals.probes import EARLIER
from pipelines.config import fitted
from pipelines.config.jobs import CycleJob
from pipelines.corpus.preview import CHARACTERS_PER_TOKEN
from pipelines.corpus.reading.formats import format_of
from pipelines.corpus.reading.tree import ASKED, is_read
from pipelines.engines.engine_checks import INPROCESS
from pipelines.evaluation.suites import Suite
from pipelines.machine.fitting import adapter_of, mix_of
from pipelines.machine.gpus import on_gpu
from pipelines.machine.model_sizes import read_size
from pipelines.machine.stage_tokens import (
    EVALUATIONS,
    StageTokens,
    UsualLengths,
    evaluation_tokens,
    midtraining_tokens,
    recovery_tokens,
    sharing_processes,
)
from pipelines.runs.cost import Flops
from pipelines.runs.kept_texts import KEPT_TEXTS, kept_runs
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

if TYPE_CHECKING:
    from evals.scores import Asked
    from pipelines.config.sections.distill import DistillConfig
    from pipelines.config.sections.midtrain import Mix
    from pipelines.machine.product_speed import Speed
    from recovery.models.size import Size

WORTH_SAYING = 600.0  # seconds: a shorter cycle is waited for
PROMPT_TOKENS = 80
TYPICAL = 0.7  # of an answer's longest length
# Of a file's bytes, roughly.
TEXT_SHARES = {
    "pdf": 0.1,
    "docx": 0.2,
    "pptx": 0.05,
    "odt": 0.2,
    "epub": 0.4,
    "html": 0.4,
    "ipynb": 0.3,
}
UNPACKED = 3.0  # times the bytes of a packed text, roughly
DECODED = 64  # rows at once, at most
# Shares of a product's speed that whole passes of SmolLM2-135M reach in fp32 on a processor with AVX2.
READING_SHARE, WRITING_SHARE = 0.8, 0.6


@dataclass(frozen=True)
class CycleTime:
    """Seconds of a cycle's stages; `further`: of a second look at behaviour, if there is one, and
    `more_recovery`: of the further steps that may follow.

    Where a choice tries up to so many `ways`, recovery is what all of them take, each with its evaluation.
    """

    evaluations: float
    midtraining: float
    recovery: float
    further: float = 0.0
    ways: int = 0
    more_recovery: float = 0.0

    @property
    def seconds(self) -> float:
        return self.evaluations + self.midtraining + self.recovery

    def __str__(self) -> str:
        return (
            f"about {self._length()} on this machine, alone on it: "
            f"evaluations {in_words(self.evaluations)}, midtraining {in_words(self.midtraining)}, "
            f"{self._recovering()}" + self._more()
        )

    def _length(self) -> str:
        whole = in_words(self.seconds)
        return f"{in_words(self.evaluations + self.midtraining)} to {whole}" if self.ways else whole

    def _recovering(self) -> str:
        if not self.ways:
            return f"recovery {in_words(self.recovery)}"
        return (
            f"recovery up to {in_words(self.recovery)} (ways are made and evaluated until one passes, "
            f"{self.ways} at most)"
        )

    def _more(self) -> str:
        more = {
            "while recovery still helps": self.more_recovery,
            "if behaviour is underpowered on IFEval's prompts": self.further,
        }
        return "".join(f"; {in_words(seconds)} more {when}" for when, seconds in more.items() if seconds)


def estimate(
    ws: Workspace,
    job: CycleJob,
    suites: Sequence[Suite],
    recorded: Container[str] = (),
    ways: Sequence[DistillConfig | None] = (),
) -> CycleTime | None:
    """Return how long a cycle that asks these suites takes; None where that cannot be told, as of a server
    elsewhere, or where questions that are still to be made decide the length of midtraining. The clean
    model's answers to `recorded` ones are taken again; further prompts may be asked.

    `ways` are what a choice may have to make: the settings of a distillation each, or None for a mixture.
    """
    from pipelines.machine.product_speed import measured, processes_at_once

    settings = job.settings
    places = {settings.eval.sampler}
    if job.recover_with != "merge":  # which distils nothing
        places |= {settings.distill.sampler, settings.distill.teacher_engine}
    if places != {INPROCESS} or not fitted.counted_by_documents(settings.midtrain):
        return None
    try:
        size = read_size(str(ws.checkpoint(job.clean).path))
    except InputError:
        return None
    speed = measured(size.hidden, settings.model.number_bytes(on_gpu()))
    midtrain, distill = _recomputing(ws, job)
    timed = _Timed(size, speed, processes_at_once(), midtrain)
    recovering = replace(timed, recomputes=distill)
    mix = mix_of(ws, job.student, settings.midtrain.mix)
    if not job.augment:
        mix = mix.without("augmented")
    times = {suite.name: timed.suite(suite, recorded=suite.name in recorded) for suite in suites}
    further = times.pop(FURTHER, 0.0)
    midtraining = timed.midtraining(job, mix, _earlier_tokens(ws, job))
    trained = [one for one in ways or [settings.distill] if one is not None]
    seconds = [recovering.recovery(job, one) for one in trained]
    more = sum(sure * (one.most_steps / one.steps - 1) for one, sure in zip(trained, seconds, strict=True))
    found = CycleTime(sum(times.values()), midtraining, sum(seconds), further, more_recovery=more)
    return timed.choice(found, job, suites, len(ways)) if ways else found


def _recomputing(ws: Workspace, job: CycleJob) -> tuple[bool, bool]:
    """Return whether midtraining and recovery read what they train on forward twice.

    Not where an adapter is trained: its backward pass takes as much less.
    """
    settings, student = job.settings, ws.checkpoint(job.student)
    if student.base or not settings.model.checkpoints_gradients(on_gpu()):
        return False, False
    midtrains_all = adapter_of(ws, student, settings.midtrain) is None
    return midtrains_all, midtrains_all and adapter_of(ws, student, settings.distill) is None


def without_kernels() -> str:
    """Return why models are computed without the CPU engine; nothing where it is there, or a GPU."""
    from recovery.forward.fast_path import fast_path

    if on_gpu():
        return ""
    ready, detail = fast_path().status()
    return "" if ready else detail


@dataclass(frozen=True)
class _Timed:
    """The seconds of a stage's parts, for one model on one machine."""

    size: Size
    speed: Speed
    processes: int = 1  # that train at this speed at the same time
    recomputes: bool = False  # the forward pass, for all weights' gradients

    def suite(self, suite: Suite, *, recorded: bool = False) -> float:
        """Return the time of a suite in all evaluations, or in those after the clean model's.

        Of earlier documents the last one alone asks, further prompts the first and the last."""
        if suite.name == FURTHER:
            asked = EVALUATIONS - 1 - recorded
        else:
            asked = 1 if ":" in suite.name else EVALUATIONS - recorded
        return self.once(suite, asked)

    def once(self, suite: Suite, times: int = 1) -> float:
        """Return the time of a suite in one evaluation, or in several."""
        prompt, answer = _usual_prompt(suite.prompts), TYPICAL * suite.longest
        return self.spent(evaluation_tokens(suite.answers, prompt, answer, times))

    def midtraining(self, job: CycleJob, mix: Mix, earlier: int) -> float:
        """Return the time of a midtraining with that mix; there are so many tokens of earlier documents."""
        settings = job.settings.midtrain.model_copy(update={"mix": mix})
        tokens = max(1, _text_bytes(job.docs, settings.reading.leave_out) // CHARACTERS_PER_TOKEN)
        planned = fitted.fit_beside_earlier(settings, tokens, earlier, lambda one: one.mix.model_dump())
        longest = job.settings.distill.max_new_tokens
        return self.spent(midtraining_tokens(planned, planned.mix, tokens, _usual(job), longest))

    def recovery(self, job: CycleJob, settings: DistillConfig) -> float:
        sharing = sharing_processes(settings, _usual(job), self.processes)
        return self.spent(recovery_tokens(settings, _usual(job)), self.processes, sharing)

    def choice(self, found: CycleTime, job: CycleJob, suites: Sequence[Suite], ways: int) -> CycleTime:
        """Return the time of a cycle that tries up to so many ways, from that without their evaluations.

        The scores of the way that is taken are those of the recovered model. Of earlier
        documents the midtrained model is asked as well. Writing mixtures counts nothing.
        """
        earlier = sum(self.once(suite) for suite in suites if suite.name.startswith(EARLIER))
        once = earlier + sum(self.once(suite) for suite in suites if ":" not in suite.name)
        sure = 1 if job.recover_with == "merge" else 0  # evaluated in any case; auto may need no way
        return replace(
            found,
            evaluations=found.evaluations + earlier - (1 - sure) * once,
            recovery=found.recovery + (ways - sure) * once,
            ways=ways,
        )

    def spent(self, tokens: StageTokens, answering: int = 1, sharing: float | None = None) -> float:
        """Return the time of a stage: all processes train, and so many of them write and score answers.

        Where fewer share the scoring and training, so many are named.
        """
        written = self.write(tokens.rows / answering, tokens.sampled / answering)
        scored = self.read(tokens.scored) / (sharing or answering)
        return written + scored + self.train(tokens.trained) / (sharing or self.processes)

    def read(self, tokens: float) -> float:
        return Flops.of_size(self.size).forward(tokens) / (READING_SHARE * self.speed.flops)

    def train(self, tokens: float) -> float:
        flops = Flops.of_size(self.size)
        again = flops.forward(tokens) if self.recomputes else 0.0
        return (flops.trained(tokens) + again) / (self.speed.training_share * self.speed.flops)

    def write(self, rows: float, tokens: float) -> float:
        """Return the time of decoding: each step reads the weights, and computes with them for each row.

        A batch lasts until its longest answer ends, and so do the steps that read."""
        rows = max(1.0, min(rows, DECODED))
        computing = Flops.of_size(self.size).forward(rows) / (WRITING_SHARE * self.speed.flops)
        reading = self._met_by(rows) / self.speed.weights / TYPICAL
        return tokens / rows * max(computing, reading)

    def _met_by(self, rows: float) -> float:
        """Return how many weights a token of each row meets together: nearly all experts, of many rows."""
        met = float(self.size.active)
        for one in self.size.matrices:
            if one.is_routed:
                experts = one.copies * (1 - (1 - one.used / one.copies) ** rows)
                met += (experts - one.used) * one.inputs * one.outputs
        return met


def _earlier_tokens(ws: Workspace, job: CycleJob) -> int:
    """Return about how many tokens of earlier documents a midtraining may read."""
    runs, _ = kept_runs(ws, job.student)
    kept = sum(_bytes(str(run / KEPT_TEXTS)) for run in runs) // CHARACTERS_PER_TOKEN
    return min(kept, job.settings.midtrain.replay_tokens or kept)


def _usual(job: CycleJob) -> UsualLengths:
    return UsualLengths(PROMPT_TOKENS, TYPICAL * job.settings.distill.max_new_tokens)


def _usual_prompt(prompts: Sequence[Asked]) -> float:
    """Return the tokens of a prompt, on average, without what all begin with, as that is read once."""
    if not prompts:
        return PROMPT_TOKENS
    return fmean(map(_own_characters, prompts)) / CHARACTERS_PER_TOKEN


def _own_characters(asked: Asked) -> int:
    if isinstance(asked, str):
        return len(asked)
    return sum(len(str(turn.get("content") or "")) for turn in asked if turn["role"] != "system")


def _text_bytes(folder: str, leave_out: Collection[str] = ()) -> int:
    """Return about how much text a folder's documents hold, by their names and sizes; none is opened."""
    total = 0.0
    for place, folders, names in os.walk(folder):
        inside = f"{place}/".removeprefix(f"{folder}/")
        folders[:] = [name for name in folders if is_read(inside + name, leave_out)]
        asked = ASKED if place == folder else ()
        for name in names:
            format, packed = format_of(name)
            if format and name not in asked and is_read(inside + name, leave_out):
                share = TEXT_SHARES.get(format.name, 1.0) * (UNPACKED if packed else 1.0)
                total += share * _bytes(os.path.join(place, name))  # noqa: PTH118
    return round(total)


def _bytes(file: str) -> int:
    """Return a file's size; 0 for one that has just been removed."""
    try:
        return os.lstat(file).st_size
    except OSError:
        return 0


def in_words(seconds: float) -> str:
    """Return an estimated time in whole minutes."""
    minutes = max(1, round(seconds / 60))
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02d} min" if hours else f"{rest} min"
