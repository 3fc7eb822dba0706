"""Stop a distillation once behaviour has recovered, measured on a held-out probe set.

The probe's prompts are held out of training and differ from the evaluation's, which exposes a lucky stop.
A check passes when the exact paired test shows the student at most `margin` worse than the clean model; two
consecutive passes stop the run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from db.reads import curves
from evals import dialogues
from evals.exact import MOST_PAIRS, exact_p
from pipelines.config.sections.distill import StopConfig
from pipelines.prompts.instruction_checks import followed, require_checkers
from pipelines.prompts.leaks import AskedPrompts
from pipelines.prompts.prompt_sources import Prompt, read_prompts
from recovery.counted import counted
from recovery.distributed import once
from recovery.errors import InputError
from recovery.sampling.prefix_writers import writes
from recovery.sampling.protocol import SamplingParams
from recovery.storage import atomic_dirs

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob
    from pipelines.distillation.inputs import PromptData
    from pipelines.runs.stage_runner import Stage
    from recovery.batches.rollouts import Rollouts
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import Sampler
    from recovery.teachers.teachers import Teacher

ALPHA = 0.05  # of each check
PASSED = "probe_passed"
CLEAN_ANSWERS = "stop_probe.json"  # in a run's folder
RECOVERY_PROMPTS = "the recovery prompts"


def hold_out(
    job: DistillJob, data: PromptData, asked: AskedPrompts, home: Path | None = None
) -> tuple[PromptData, list[Prompt]]:
    """Split the rows into training rows and the probe, taken from a file or from the recovery prompts.

    `asked` are the evaluation's prompts, which the probe leaves out; the home keeps a sample from the hub."""
    settings = job.settings.stop
    if settings is None:
        return data, []
    source = settings.probe or RECOVERY_PROMPTS
    rows = read_prompts(settings.probe, job.seed, home) if settings.probe else data.rows
    named = [row for row in rows if row.fields.get("instruction_id_list")]
    checkable = _unlike(asked.kept_out_of(named))
    if not checkable:
        raise InputError(
            f"{source}: no row has an 'instruction_id_list' to check "
            "answers by: give distill.stop.probe a file in IFEval's format, other than the evaluation's"
        )
    require_checkers(source, checkable, "distill.stop")
    probe = random.Random(f"probe:{job.seed}").sample(checkable, min(settings.prompts, len(checkable)))
    probed = AskedPrompts([text for row in probe for text in dialogues.asked_texts(row.messages)])
    prompts, pairs = probed.kept_out_of(data.prompts), probed.kept_out_of(data.pairs)
    if (data.prompts and not prompts) or (data.pairs and not pairs):
        raise InputError(f"a probe of {len(probe)} leaves nothing to train on: lower distill.stop.prompts")
    return replace(data, prompts=prompts, pairs=pairs), probe


def _unlike(rows: Sequence[Prompt]) -> list[Prompt]:
    """Return the first row of each text: a prompt asked twice would count as two in the exact test."""
    first: dict[str, Prompt] = {}
    for row in rows:
        first.setdefault(row.text, row)
    return list(first.values())


def require_enough(settings: StopConfig | None, probe: Sequence[Prompt]) -> None:
    """Refuse so few prompts that a look does not pass even where every answer is as good as the clean one."""
    if settings is None or _can_pass(len(probe), settings.margin):
        return
    where = f" in {settings.probe or RECOVERY_PROMPTS}" if len(probe) < settings.prompts else ""
    show = "shows" if len(probe) == 1 else "show"
    raise InputError(
        f"distill.stop: {counted(len(probe), 'prompt')}{where} never {show} that behaviour is back "
        f"within a margin of {settings.margin:g}, which takes {_fewest(settings.margin)}: raise "
        "distill.stop.prompts, name a distill.stop.probe with as many, or raise distill.stop.margin"
    )


def _can_pass(count: int, margin: float) -> bool:
    """Return whether a look at so many prompts passes where no answer differs."""
    return exact_p(0, 0, count, -margin) <= ALPHA


def _fewest(margin: float) -> str:
    """Return the smallest number of prompts with which a look can pass, in words."""
    low, high = 0, 1
    while not _can_pass(high, margin):
        low, high = high, 2 * high
        if high > MOST_PAIRS:
            return f"more than {low:,}"
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _can_pass(middle, margin) else (middle, high)
    return f"{high:,}"


class BehaviourBack:
    """A `should_stop` of the trainer: run the probe every few steps, paired with the clean model.

    `lend` lends that model; it is asked once a run."""

    def __init__(
        self,
        settings: StopConfig,
        probe: Sequence[Prompt],
        student: ChatModel,
        sampler: Sampler,
        lend: Callable[[], AbstractContextManager[Teacher]],
        stage: Stage,
        max_new_tokens: int,
    ) -> None:
        self.settings = settings
        self.probe = probe
        self.student = student
        self.sampler = sampler
        self.stage = stage
        self.params = SamplingParams(max_new_tokens, temperature=0.0)
        self.prompts = [student.prompt_ids(row.messages) for row in probe]
        self.clean = self._clean(lend)
        self.passed: dict[int, bool] = {}

    def __call__(self, step: int, metrics: dict[str, float]) -> str | None:
        every = self.settings.every
        if step % every:
            return None
        self.passed[step] = self._look(step)
        if not (self.passed[step] and self._passed(step - every)):
            return None
        return f"after {step} steps behaviour is back on {len(self.probe)} probe prompts, twice in a row"

    def _clean(self, lend: Callable[[], AbstractContextManager[Teacher]]) -> list[bool]:
        """Return which prompts the clean model follows; a resumed run finds it in its folder.

        What was kept is shared first: several processes answer together, or none does."""
        asked = [row.text for row in self.probe]
        kept = self.stage.directory / CLEAN_ANSWERS
        found = once(lambda: _read(kept))
        if found.get("prompts") != asked:
            with lend() as clean:
                answers = writes(clean, self.prompts, self.params)
            found = {"prompts": asked, "followed": self._followed(answers)}
            if self.stage.first:
                atomic_dirs.write_text(kept, json.dumps(found))
        return list(found["followed"])

    def _look(self, step: int) -> bool:
        """Test whether the student is at most `margin` worse than the clean model."""
        now = self._followed(self.sampler.sample(self.prompts, self.params))
        gained = sum(a and not b for a, b in zip(now, self.clean, strict=True))
        lost = sum(b and not a for a, b in zip(now, self.clean, strict=True))
        passed = exact_p(gained, lost, len(now), -self.settings.margin) <= ALPHA
        found = {"probe_behaviour": sum(now) / len(now), PASSED: float(passed)}
        self.stage.live.metrics(step, found)
        return passed

    def _passed(self, step: int) -> bool:
        """Return the outcome of an earlier check, from the run's metrics if it preceded an interruption."""
        if step not in self.passed:
            database = self.stage.workspace.tracker.db
            found = curves.metrics_by_step(database, self.stage.id, [PASSED])
            self.passed[step] = bool(found.get(step, {}).get(PASSED))
        return self.passed[step]

    def _followed(self, rollouts: Rollouts) -> list[bool]:
        """Return which answers follow every instruction of their prompt."""
        self.stage.spend(tokens_sampled=rollouts.n_tokens)
        texts = self.student.answers(rollouts)
        rows = zip(texts, self.probe, strict=True)
        return [followed(text, {**row.fields, "prompt": row.text}) == 1.0 for text, row in rows]


def _read(kept: Path) -> dict[str, Any]:
    return dict(json.loads(kept.read_text(encoding="utf-8"))) if kept.exists() else {}
