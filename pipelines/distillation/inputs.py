"""Read a distillation's inputs, as configured: data, context, reward, teachers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config.anchored_paths import is_file
from pipelines.prompts.instruction_checks import followed, require_checkers
from pipelines.prompts.prompt_sources import HUB, Prompt, read_prompts
from pipelines.runs.pinned_inputs import require_there
from recovery.errors import InputError
from recovery.methods.choices import FROZEN, READ_STATES
from recovery.printable import one_line

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob
    from pipelines.config.sections.distill import DistillConfig
    from recovery.methods.method import Method
    from recovery.teachers.contexts import Context
    from recovery.teachers.rewards import Reward

# What a context of one line looks like that can only be meant as a file.
LIKE_A_FILE = re.compile(
    r"(/[^/\s]+/|\./|\.\./|~/).*|.*\.(txt|md|rst|jsonl?|ya?ml|toml|csv|prompt)", re.IGNORECASE
)
OPENING = 60  # characters of a context that are shown
JUDGED_BY = {"exact": "answer", "ifeval": "instruction_id_list"}  # the field that the reward needs


@dataclass(frozen=True)
class PromptData:
    prompts: list[Prompt]  # prompts to sample answers for
    pairs: list[Prompt]  # prompts with a `response`

    @property
    def rows(self) -> list[Prompt]:
        """Return all rows, in the order of a step's rows."""
        return [*self.prompts, *self.pairs]


def refuse_ignored(method: Method, **given: object) -> None:
    """Refuse an option that this method would ignore."""
    readers = {
        "pairs": (_reads_pairs(method), "data states or demonstrations"),
        "context": (method.context != "none", "methods with a context"),
        "reward": (method.needs_rewards, "methods with a reward"),
        "route": (method.teacher == "routed", "teacher=routed"),
        "overlap": (method.teacher in FROZEN, "methods with a frozen teacher (base or previous)"),
    }
    for name, (reads, whose) in readers.items():
        if given.get(name) and not reads:
            raise InputError(f"--{name} has no effect with method {method.name!r}: it belongs to {whose}")


def wanted_of_rows(settings: DistillConfig) -> str | None:
    """Return what the rows have to hold beside their prompts, with what may take its place; None: nothing."""
    from recovery.teachers.contexts import Context

    method = settings.resolved_method()
    if not settings.pairs and _reads_pairs(method):
        return "answers to learn from: set distill.pairs (`recover distill --pairs`)"
    if method.context != "none" and settings.context is None and Context(method.context).needs_text:
        return f"{method.context} for the teacher: set distill.context (`recover distill --context`)"
    if method.needs_rewards and JUDGED_BY.get(str(settings.reward)) == "answer":
        return "answers to compare with: give other --prompts, or another --reward"
    return None


def _reads_pairs(method: Method) -> bool:
    return method.state_kind in READ_STATES or method.context == "demonstrations"


def require_named(settings: DistillConfig, method: Method) -> None:
    """Refuse files and functions that are named beside the prompts and are not there."""
    if settings.pairs and _reads_pairs(method) and not settings.pairs.startswith(HUB):
        read_prompts(settings.pairs)
    if method.context != "none":
        _context_file(settings.context)
    if method.needs_rewards:
        _named_reward(settings, method)
    if settings.stop and settings.stop.probe and not settings.stop.probe.startswith(HUB):
        read_prompts(settings.stop.probe)


def read_data(job: DistillJob, method: Method, home: Path | None = None) -> PromptData:
    """Return the method's rows; without --pairs, the pairs are the prompts that have a response."""
    prompts = read_prompts(job.prompts, job.seed, home) if job.settings.reads_prompts else []
    pairs = read_pairs(job, method, home)
    if _reads_pairs(method) and not job.settings.pairs:
        pairs = _to_learn_from(prompts, job.prompts)
    return PromptData([] if method.state_kind == "data" else prompts, pairs)


def read_pairs(job: DistillJob, method: Method, home: Path | None = None) -> list[Prompt]:
    """Return the pairs of --pairs, if the method reads them."""
    source = job.settings.pairs
    if not source or not _reads_pairs(method):
        return []
    return _to_learn_from(read_prompts(source, job.seed, home), source)


def _to_learn_from(rows: list[Prompt], source: str) -> list[Prompt]:
    """Return the rows that have a response; refuse rows of which none has."""
    pairs = _answered(rows)
    if not pairs:
        raise InputError(
            f"{source}: no row has a 'response' to learn from: set distill.pairs (`recover distill --pairs`)"
        )
    return pairs


def _answered(rows: list[Prompt]) -> list[Prompt]:
    """Return the rows that have a response."""
    from recovery.teachers.contexts import response

    return [row for row in rows if response(row)]


def read_context(job: DistillJob, method: Method, pairs: list[Prompt]) -> Context | None:
    """Return the teacher's context: one text, examples from a file or the pairs, or a field of each row."""
    from recovery.teachers.contexts import Context

    if method.context == "none":
        return None
    require_there(job, ["context"])  # a file that is gone may look like a text
    given, settings = job.settings.context, job.settings
    if given is not None and _context_file(given):
        if method.context == "demonstrations" and Path(given).suffix in (".jsonl", ".json"):
            pairs = _answered(read_prompts(given))
            given = None
        else:
            given = _text(Path(given))
    return Context(method.context, given, examples=pairs, shots=settings.context_examples)


def _context_file(given: str | None) -> bool:
    """Return whether the context is a file; refuse what can only be one and is not there."""
    if given is None or is_file(given):
        return given is not None
    if LIKE_A_FILE.fullmatch(given.strip()):
        raise InputError(
            f"--context {given.strip()}: there is no such file: check its name and folder, or write a text "
            "that begins or ends like this into a file"
        )
    return False


def context_in_words(context: Context | None) -> str:
    """Return what the teacher sees: the kind of context, and how a text that is given for all begins."""
    if context is None:
        return ""
    begins = f" ({one_line(context.given, OPENING)})" if context.given else ""
    return f" seeing {context.kind}{begins}"


def _named_reward(settings: DistillConfig, method: Method) -> Reward:
    from recovery.teachers import rewards

    if settings.reward is None:
        raise InputError(
            f"method {method.name!r} needs a reward: set distill.reward (`recover distill --reward`) to "
            "exact, ifeval, module:function or FILE.py:function"
        )
    return rewards.resolve(settings.reward, {"ifeval": followed})


def read_reward(job: DistillJob, method: Method, data: PromptData) -> tuple[Reward | None, PromptData]:
    """Return the reward; for purely reward-based methods, drop the prompts that it cannot judge."""
    from recovery.teachers import rewards
    from recovery.teachers.contexts import has

    if not method.needs_rewards:
        return None, data
    found = _named_reward(job.settings, method)
    name = str(job.settings.reward)
    needed = JUDGED_BY.get(name)
    if needed is None:
        return found, data
    judged = [prompt for prompt in data.prompts if has(prompt.fields, needed)]
    if not judged:
        raise InputError(f"{job.prompts}: no prompt has the field {needed!r}, which the reward {name} needs")
    if name == "ifeval":
        require_checkers(job.prompts, judged, "reward ifeval")
    if method.teacher_weight and method.state_kind != "student-kept":
        judged = data.prompts
    return rewards.where(found, needed), PromptData(judged, data.pairs)


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--context {path}: cannot be read as text: {error}") from error
    if not text:
        raise InputError(f"--context {path}: is empty: write into it what the teacher is to see")
    return text
