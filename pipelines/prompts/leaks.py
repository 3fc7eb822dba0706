"""Keep the evaluation's prompts out of training."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from evals import dialogues, ifeval
from evals.families import suite as families
from evals.families.table import FAMILIES
from evals.probes import PROBE_SUITES, suite_probes
from evals.scores import chat
from evals.tasks import suite as tasks
from pipelines.config.ifeval_file import MICROWORLD, ifeval_path
from pipelines.config.jobs import questions_of
from pipelines.config.sections.eval import EvalConfig
from pipelines.corpus.segments import compared_words
from pipelines.prompts.near_copies import RUN, NearCopies, is_published, runs
from pipelines.prompts.prompt_sources import Prompt
from pipelines.runs.pinned_inputs import require_there
from recovery.counted import counted
from recovery.errors import RecoverError
from recovery.unspaced_scripts import UNSPACED

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob, MidtrainJob
    from pipelines.runs.stage_runner import Stage

KEPT_PROMPTS = "evaluation_prompts.json"  # in a run's folder
# In scripts without spaces every character is compared: where words begin depends on what is around them.
_COMPARED = re.compile(rf"(?=\w)[{UNSPACED}]|[^\W{UNSPACED}]+")


def evaluation_prompts(
    settings: EvalConfig, earlier: Mapping[int, str], say: Callable[[str], None]
) -> list[str]:
    """Return the evaluation's prompts and the probes of earlier cycles, to exclude them from training; log
    which cannot be read."""
    sources = {"IFEval": partial(_of_ifeval, settings), "probes": partial(_of_probes, settings.probes)}
    if settings.further_file:
        sources["further prompts"] = partial(_of_prompts, settings.further_file)
    sources |= {name: partial(_of_family, name, settings) for name in settings.behaviours}
    folder, in_chat = settings.tasks, settings.tasks_in_chat
    sources |= {name: partial(_of_task, name, folder, in_chat) for name in settings.task_points}
    sources |= {f"probes of cycle {cycle}": partial(_of_probes, path) for cycle, path in earlier.items()}
    found: list[str] = []
    for name, read in sources.items():
        try:
            found += read()
        except RecoverError as error:
            say(f"  leaks        {name} not checked: {error}")
    return list(dict.fromkeys(found))  # cycles without general questions of their own ask the shipped ones


def _of_ifeval(settings: EvalConfig) -> list[str]:
    return [] if settings.ifeval == MICROWORLD else _of_prompts(ifeval_path(settings))


def _of_prompts(path: str | Path | None) -> list[str]:
    """Return what a local file or the hub's set asks, in IFEval's format."""
    dialogues_asked = (row.get("messages") or chat(row["prompt"]) for row in ifeval.rows(path))
    return [text for turns in dialogues_asked for text in dialogues.asked_texts(turns)]


def _of_probes(path: str | None) -> list[str]:
    asked = [probe for suite in PROBE_SUITES for probe in suite_probes(path, suite)]
    return [text for probe in asked for text in dialogues.asked_texts(probe.chat)]


def _of_family(name: str, settings: EvalConfig) -> list[str]:
    asked = families.suite(FAMILIES[name], settings.behaviours_items, settings.probes)
    return [question.text for question in asked]


@cache
def _of_task(name: str, folder: str | None, in_chat: bool) -> list[str]:
    """Return what a task asks; a group of many is slow to load."""
    return tasks.prompts(tasks.prepare(name, folder, in_chat=in_chat))


def kept_evaluation_prompts(job: MidtrainJob | DistillJob, stage: Stage) -> list[str]:
    """Return the prompts that were found when the run began: those of the hub may be out of reach later."""
    settings = job.evaluation
    if settings is None:
        return []

    def found() -> list[str]:
        require_there(job, questions_of(settings, job.earlier))
        return evaluation_prompts(settings, job.earlier, stage.say)

    return list(stage.once(KEPT_PROMPTS, found))


def asked_prompts(settings: EvalConfig, earlier: Mapping[int, str]) -> AskedPrompts:
    """Return the evaluation's prompts, to look for them; a run itself says which cannot be read."""
    return AskedPrompts(evaluation_prompts(settings, earlier, lambda line: None))


def say_contained(settings: EvalConfig | None, texts: Iterable[str], say: Callable[[str], None]) -> None:
    """Say how many prompts of the evaluation, probes aside, documents contain word for word."""
    if settings is None:
        return
    asked = asked_prompts(settings.model_copy(update={"probes": None}), {})
    found = {prompt for text in texts for prompt in asked.contained_in(text)}
    if found:
        say(
            f"  leaks        the documents contain {counted(len(found), 'evaluation prompt')}, such as "
            f"{min(found)[:60]!r}, on which a score will say little: leave their files out "
            "(midtrain.reading.leave_out)"
        )


def normalised(text: str) -> str:
    return " ".join(_COMPARED.findall(text.lower()))


class AskedPrompts:
    """Prompts that training rows may not give away: equal to a row or to a user's turn of it; of at least
    eight words, contained; of IFEval's published ones, nearly copied."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._whole = set(map(normalised, texts))
        self._by_opening: dict[str, list[str]] = {}
        for text in texts:
            if len(compared_words(text, normalised)) >= RUN:
                whole = normalised(text)
                self._by_opening.setdefault(" ".join(whole.split()[:RUN]), []).append(whole)
        self._copies = NearCopies(normalised(text).split() for text in texts if is_published(text))

    def given_away_by(self, row: Prompt) -> bool:
        """Return whether a row gives away one of the prompts."""
        text = normalised(row.text)
        turns = (turn["content"] for turn in row.messages if turn["role"] == "user" and len(row.messages) > 1)
        if text in self._whole or any(normalised(turn) in self._whole for turn in turns):
            return True
        return any(self._contained(text)) or self._copies.of(runs(text.split()))

    def contained_in(self, text: str) -> set[str]:
        """Return the prompts of at least eight words that a text contains, in their normal form."""
        return set(self._contained(normalised(text)))

    def _contained(self, text: str) -> Iterator[str]:
        found = (whole for run in runs(text.split()) for whole in self._by_opening.get(run, ()))
        return (whole for whole in found if whole in text)

    def kept_out_of(self, rows: Sequence[Prompt]) -> list[Prompt]:
        """Return the rows that give away none of the prompts."""
        return [row for row in rows if not self.given_away_by(row)]
