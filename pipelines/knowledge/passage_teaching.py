"""Teach documents by questions that only the clean model answers with the passage in view.

The questions are made of the documents' own sentences. The clean model answers each with the passage in front
of it, the student reads the question alone and learns the clean model's distribution of every token: the row
`passage` of the table of methods. Prompts of the chat share have no passage, so there the clean model's own
answers hold the student where it was.

`tokens_per_step` is a step's cost, so that equal settings cost about as much as training on the text: a token
that the teacher reads, without a backward pass, counts a third. No answer is longer than the longest of those
sentences: a model that rambles on would cost several times as much, and says nothing of the documents there.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config import fitted
from pipelines.corpus.mixed_tokens import of_present
from pipelines.corpus.passages import passages
from pipelines.prompts.lengths import Limit, of_reader
from pipelines.prompts.prompt_sources import Prompt
from pipelines.writing import gap_questions
from recovery.counted import counted
from recovery.errors import InputError
from recovery.methods.choices import READ_STATES
from recovery.methods.table import with_dials
from recovery.training import preflight

if TYPE_CHECKING:
    from pipelines.config.jobs import MidtrainJob
    from pipelines.config.sections.midtrain import MidtrainConfig
    from pipelines.distillation.teachers import FrozenTeachers
    from pipelines.runs.stage_runner import Stage
    from pipelines.writing.filters import ProbeLeaks
    from recovery.batches.rollouts import Dialogue
    from recovery.methods.method import Method
    from recovery.models.chat_encoding import ChatEncoder
    from recovery.models.chat_model import ChatModel
    from recovery.training.step_data import Episodes

ROW = "passage"
UNUSABLE = "midtrain.method: passage:"  # begins what is said of documents that it cannot teach
CHARACTERS = 50_000_000  # of documents read for questions, evenly taken
MOST_QUESTIONS = 200_000  # held in memory
MEASURED = 256  # questions whose length is measured
FORWARD = 1 / 3  # cost of a token without a backward pass


@dataclass(frozen=True)
class PassageTeaching:
    """The rows of every step, and the settings with every number set."""

    method: Method
    settings: MidtrainConfig
    shares: dict[str, float]
    questions_per_step: int
    rows: list[Prompt]
    read: list[Dialogue]  # a sample of what the student reads and writes

    @property
    def longest_answer(self) -> int:
        """Return the tokens of the longest sentence that answers a question."""
        return max(sum(trained) for _, trained in self.read)

    @property
    def steps(self) -> int:
        assert self.settings.steps is not None
        return self.settings.steps


def method_of(settings: MidtrainConfig) -> Method:
    """Return the row with its dials; refuse dials under which no clean model sees the passage."""
    method = with_dials(ROW, settings.dials)
    if method.context != ROW or method.teacher != "base":
        raise InputError(
            "midtrain.dials: with method passage the clean model teaches and sees the passage: leave "
            "teacher and context as they are"
        )
    if method.needs_rewards or method.anchor_beta:
        raise InputError("midtrain.dials: midtraining has neither a reward nor an anchor: leave them out")
    return method


def check(settings: MidtrainConfig, augment: str | Path | None) -> None:
    """Refuse what this method would ignore or cannot have; `augment` is a folder of augmented texts."""
    if settings.method != ROW:
        if settings.dials:
            raise InputError("midtrain.dials belongs to midtrain.method: passage; text has none")
        return
    method = method_of(settings)
    if augment or settings.mix.augmented:
        raise InputError(
            "midtrain.method: passage makes its questions of the documents themselves: leave out --augment "
            "and mix.augmented"
        )
    if settings.mix.chat and method.state_kind in READ_STATES:
        raise InputError(
            f"mix.chat has no answers to read, which states={method.states} needs: set mix.chat to 0, or let "
            "a model write (states=teacher or student)"
        )


def shares(settings: MidtrainConfig, parts: Mapping[str, Sequence[Prompt]]) -> dict[str, float]:
    """Return each part's share of the rows; documents and questions about them are one, as all is asked."""
    mix = settings.mix
    earlier = mix.earlier_questions if parts.get("earlier") else 0.0
    wanted = {"new": mix.new + mix.questions - earlier, "earlier": mix.earlier + earlier, "chat": mix.chat}
    return of_present(wanted, parts)


def questions(texts: Sequence[str], seed: int) -> list[Prompt]:
    """Return questions about the texts in a seeded order, each with its passage and the sentence that answers
    it."""
    rng = random.Random(f"passages:{seed}")
    read = [passage.text for passage in passages(texts)]
    rng.shuffle(read)
    asked = islice(gap_questions.rows(read), MOST_QUESTIONS)
    found = [_asked(row, read[int(row["source"])]) for row in asked]
    rng.shuffle(found)
    return found


def _asked(row: Mapping[str, str], passage: str) -> Prompt:
    fields = {"passage": passage, "response": row["response"]}
    return Prompt([{"role": "user", "content": row["prompt"]}], fields)


def room_of(encoder: ChatEncoder, limit: float) -> Limit:
    """Return how long a question with its passage may be, for a model that reads so many tokens."""
    from recovery.teachers.contexts import Context

    return of_reader(encoder, limit, Context(ROW))


def with_room(rows: Sequence[Prompt], room: Limit, stage: Stage) -> list[Prompt]:
    """Return the questions that leave room for an answer behind their passage; say how many do not."""
    kept = [row for row in rows if room.admits(row)]
    if left_out := len(rows) - len(kept):
        count = f"{left_out:,} of {len(rows):,}"
        stage.say(f"  questions    {count} are left out, as with their passage they {room.why}")
    return kept


def require_questions(asked: Sequence[Prompt], room: Limit, leaks: ProbeLeaks) -> None:
    """Refuse documents of whose questions none can be trained on."""
    require_room(asked, room)
    require_clear([row for row in asked if room.admits(row)], leaks)


def require_room(asked: Sequence[Prompt], room: Limit) -> None:
    """Refuse questions of which none leaves room for an answer behind its passage."""
    if asked and not any(map(room.admits, asked)):
        raise InputError(f"{UNUSABLE} all questions with their passage {room.why}: use text")


def require_clear(new: Sequence[Prompt], leaks: ProbeLeaks) -> None:
    """Refuse documents about which nothing can be asked, or nothing that gives away no probe."""
    if not new:
        raise InputError(f"{UNUSABLE} the documents have no sentence that can be asked about: use text")
    if all(gives_away(row, leaks) for row in new):
        raise InputError(f"{UNUSABLE} every question about the documents gives away a probe: use text")


def plan(
    job: MidtrainJob, student: ChatModel, parts: Mapping[str, Sequence[Prompt]], leaks: ProbeLeaks
) -> PassageTeaching:
    """Choose the rows of all steps; none that gives away a probe. Few questions about earlier documents get
    less than their share, as those documents do in training on text."""
    new = parts["new"]
    require_clear(new, leaks)
    method = method_of(job.settings)
    measured = [_dialogue(student, row) for row in new[:MEASURED]]
    each = _cost(student, new[:MEASURED], measured, method)
    earlier = [row for row in parts.get("earlier", ()) if not gives_away(row, leaks)]
    parts = {**parts, "earlier": earlier}
    settings = fitted.fit_beside_earlier(
        job.settings, round(each * len(new)), each * len(earlier), partial(shares, parts=parts)
    )
    mixed = shares(settings, parts)
    per_step = max(1, round(settings.tokens_per_step / each))
    rows = _rows(parts, mixed, (settings.steps or 0) * per_step, leaks)
    return PassageTeaching(method, settings, mixed, per_step, rows, measured)


def _rows(
    parts: Mapping[str, Sequence[Prompt]], mixed: Mapping[str, float], total: int, leaks: ProbeLeaks
) -> list[Prompt]:
    """Return about so many rows, every part in its share but at least one, repeated where it has too few."""
    rows: list[Prompt] = []
    for name, share in mixed.items():
        clear = (row for row in parts[name] if not gives_away(row, leaks))
        rows += islice(cycle(clear), max(1, round(share * total)))
    return rows


def gives_away(row: Prompt, leaks: ProbeLeaks) -> bool:
    """Return whether a row with its answer gives away a probe."""
    return "response" in row.fields and leaks.of(row.text, row.fields["response"])


def _dialogue(student: ChatModel, row: Prompt) -> Dialogue:
    return gap_questions.dialogue(student, {"prompt": row.text, "response": row.fields["response"]})


def _cost(student: ChatModel, rows: Sequence[Prompt], read: Sequence[Dialogue], method: Method) -> float:
    """Return the mean cost of a question in trained tokens; its answer counts as long as the sentence."""
    passes = 1 if method.state_kind == "data" else 2  # the answer is written before it is scored
    trained = sum(len(ids) for ids, _ in read)
    passage = sum(len(student.text_ids(row.fields["passage"])) for row in rows)
    return (trained + FORWARD * passes * (trained + passage)) / len(rows)


def summary(made: PassageTeaching, parts: Mapping[str, Sequence[Prompt]], asked_for: MidtrainConfig) -> str:
    """Return the plan as lines of the log; `asked_for` are the settings before they were fitted."""
    new = parts["new"]
    asked = made.shares["new"] * made.steps * made.questions_per_step / len(new)
    passages = len({row.fields["passage"] for row in new})
    mix = ", ".join(f"{name} {share:.0%}" for name, share in made.shares.items())
    if made.settings.mix != asked_for.mix:
        wanted = shares(asked_for, parts)["earlier"]
        mix += f"; of earlier there is too little for {wanted:.0%}: the rest goes to the others"
    return (
        f"  questions    {len(new):,} about {counted(passages, 'passage')}, "
        f"which only the clean model sees; {mix}\n"
        f"  plan         {counted(made.steps, 'step')} of {counted(made.questions_per_step, 'question')}; "
        f"each about the new documents is asked {asked:.1f} times"
    )


def episodes(job: MidtrainJob, stage: Stage, frozen: FrozenTeachers, made: PassageTeaching) -> Episodes:
    """Return the batches of every step: questions, answers and the teacher's distributions."""
    from recovery.sampling.in_process import InProcessSampler
    from recovery.teachers.contexts import Context
    from recovery.training.step_data import Episodes, StepConfig, Task

    student = frozen.student
    teacher = frozen.teacher(frozen.ws.clean())
    sampler = InProcessSampler(student)
    if stage.first:
        asked = [row.messages for row in made.rows[:: max(1, len(made.rows) // MEASURED)]]
        checks = preflight.checks(student, teacher.chat_model, asked, sampler)
        preflight.require(checks)
        stage.say(f"  preflight    all {len(checks)} checks passed")
    kind = made.method.state_kind
    task = Task(
        made.method,
        prompts=[] if kind == "data" else made.rows,
        pairs=made.rows if kind in READ_STATES else [],
        teacher=teacher,
        context=Context(ROW),
    )
    config = StepConfig(
        made.questions_per_step,
        max_new_tokens=min(job.answer_tokens, made.longest_answer),
        microbatch_tokens=made.settings.microbatch_tokens,
        seed=job.seed,
        steps=made.steps,
    )
    return Episodes(student, sampler, task, config)
