"""Recovery prompts without data: the clean model writes user turns itself, mixed with generated instructions.

Given its chat template up to the beginning of the user's turn, an instruct model continues with a question as
its users ask them; every second time the first words of a question or a task are given as well. Turns that
are unfinished, too short or long, repetitive, in another language or duplicates are dropped; what is about
the documents is left to the guard. The rest goes into a file in the home, once per clean checkpoint and seed.
Each batch of turns is kept in the home as it is there: no run may be recorded yet that could be resumed.
They also take the place of recover.yaml's data set where no hub can be reached.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from evals import jsonl
from evals.families.family import fingerprint
from pipelines.corpus.general_words import detected_language
from pipelines.prompts.prompt_sources import HUB, HubAway, kept_sample, read_prompts
from pipelines.writing import instruction_prompts
from pipelines.writing.protocol import Text
from pipelines.writing.text_cache import Cache, key_of
from recovery.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from pipelines.runs.workspace import Workspace
    from recovery.models.chat_model import ChatModel
    from recovery.storage.checkpoints import Checkpoint

SELF = "self"
COUNT = 512  # generated instructions at most, and twice as many self-written turns
FEWEST = 32  # instructions, however few prompts a run asks for
BATCH = 128  # turns sampled at once
MOST_BATCHES = 16  # stop sampling here however few turns are usable
# Of the wanted turns: with fewer, instructions would be two thirds of the prompts, not one. Three turns in
# four of SmolLM2-135M are usable, nine in ten of the shipped model: both write all that are wanted.
LEAST_SHARE = 0.25
JUDGED_BATCHES = 2  # sampled before the rest is judged: one batch may be unlucky
MAX_NEW_TOKENS = 96
OPENINGS = (  # left to itself a model asks for plans, stories and advice, and hardly ever for a fact
    *("What is", "Who", "Where", "When", "Which", "How many", "How do", "Why", "Is", "Can"),
    *("Name", "List", "Define", "Explain", "Translate", "Complete"),
    *("Rewrite", "Summarize", "Compare", "Write"),
)
FEWEST_WORDS, MOST_WORDS = 3, 150
MOST_REPEATED = 0.3  # of word triples that occurred before in the same turn
LEAST_LETTERS = 0.6  # of characters that are letters or spaces
LANGUAGE = "en"  # ISO 639-1 code: that of the openings
SEED_OFFSET = 1_000_003  # other instructions than `recover prompts ifeval` writes with the same seed
GOES_ON = "the same command goes on with the turns that the clean model has written"


@dataclass
class Filtered:
    """The usable turns in order, and how many were dropped for each reason."""

    kept: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


def usable(turns: Iterable[str], kept: Sequence[str] = ()) -> Filtered:
    """Filter turns; `kept` are turns that count as seen before."""
    found = Filtered()
    seen = {fingerprint(turn) for turn in kept}
    for turn in turns:
        text = turn.strip()
        reason = flaw(text)
        if reason is None and fingerprint(text) in seen:
            reason = "duplicate"
        if reason is not None:
            found.dropped[reason] += 1
            continue
        seen.add(fingerprint(text))
        found.kept.append(text)
    return found


def flaw(text: str) -> str | None:
    """Return why a turn is not usable, or None."""
    words = re.findall(r"\w+", text.casefold())
    if not FEWEST_WORDS <= len(words) <= MOST_WORDS:
        return "length"
    if _repeated(words) > MOST_REPEATED:
        return "repetition"
    if sum(char.isalpha() or char == " " for char in text) < LEAST_LETTERS * len(text):
        return "few letters"
    if detected_language(text.lower() if text.isupper() else text) != LANGUAGE:
        return "language"
    return None


def _repeated(words: Sequence[str]) -> float:
    """Return the share of word triples that occurred before."""
    triples = list(zip(words, words[1:], words[2:], strict=False))
    return 1 - len(set(triples)) / len(triples) if triples else 0.0


# --- sampling --------------------------------------------------------------------------------------------


def user_turn(chat_model: ChatModel) -> tuple[list[int], list[int]]:
    """Return the template's token ids before and after the content of a first user turn."""
    contents = ("What is it?", "7 of 9", '"Yes," she said!')
    rendered = [chat_model.prompt_ids([{"role": "user", "content": content}]) for content in contents]
    before = _common_start(rendered)
    after = _common_start([ids[len(before) :][::-1] for ids in rendered])[::-1]
    if not before:
        raise InputError("the chat template writes nothing before a user's turn: give --prompts FILE")
    return before, after


def _common_start(sequences: Sequence[Sequence[int]]) -> list[int]:
    """Return the longest common prefix."""
    columns = zip(*sequences, strict=False)
    return [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]


def sampled_turns(
    chat_model: ChatModel,
    count: int,
    seed: int,
    first: int = 0,
    on_tokens: Callable[[int], None] | None = None,
) -> list[str]:
    """Sample user turns, every second one after an opening; unfinished ones come back as empty texts."""
    from recovery.sampling.in_process import InProcessSampler
    from recovery.sampling.protocol import SamplingParams

    before, after = user_turn(chat_model)
    openings = [chat_model.text_ids(opening(number)) for number in range(first, first + count)]
    params = SamplingParams(MAX_NEW_TOKENS, temperature=1.0, seed=seed, first=first, on_tokens=on_tokens)
    prompts = [[*before, *opened] for opened in openings]
    rollouts = InProcessSampler(chat_model, BATCH).sample(prompts, params)
    turns = []
    sampled = zip(openings, rollouts.responses(), rollouts.finished_B.tolist(), strict=True)
    for opened, ids, finished in sampled:
        content = _content(list(ids), after, chat_model)
        ended = finished or len(content) < len(ids)
        turns.append(chat_model.text([*opened, *content]) if ended else "")
    return turns


def opening(number: int) -> str:
    """Return the words that a sampled turn begins with; the even ones begin as the model likes."""
    return OPENINGS[number // 2 % len(OPENINGS)] if number % 2 else ""


def _content(ids: list[int], after: Sequence[int], chat_model: ChatModel) -> list[int]:
    """Cut a sampled turn where a control token or the template's text after a user turn begins."""
    tail = list(after)
    for place, token in enumerate(ids):
        if token in chat_model.encoder.control_ids or (tail and ids[place : place + len(tail)] == tail):
            return ids[:place]
    return ids


def write(
    chat_model: ChatModel,
    count: int,
    seed: int,
    kept: Cache,
    on_progress: Callable[[int, int, int], None] | None = None,
) -> Filtered:
    """Sample turns until `count` are usable, MOST_BATCHES batches have been sampled, or the rest is hopeless;
    those that are kept from an interrupted attempt count.

    Report the usable turns, the wanted ones and the tokens of the current batch as it is sampled.
    """
    found = Filtered()

    def report(tokens: int) -> None:
        if on_progress:
            on_progress(min(len(found.kept), count), count, tokens)

    for batch in range(MOST_BATCHES):
        if len(found.kept) >= count or _is_hopeless(found, batch, count):
            break
        turns = _batch(chat_model, seed, batch * BATCH, kept, report)
        new = usable(turns, kept=found.kept)
        found.kept += new.kept
        found.dropped += new.dropped
        report(0)
    del found.kept[count:]
    return found


def _is_hopeless(found: Filtered, batches: int, count: int) -> bool:
    """Return whether the batches that are left would give too few, were twice as many of them usable."""
    if batches < JUDGED_BATCHES:
        return False
    most = len(found.kept) * (1 + 2 * (MOST_BATCHES - batches) / batches)
    return most < LEAST_SHARE * count


def _batch(
    chat_model: ChatModel, seed: int, first: int, kept: Cache, on_tokens: Callable[[int], None]
) -> list[str]:
    """Return a batch of turns as it is kept; else sample all of it, as turns that are sampled together may
    depend on each other."""
    keys = [_key(seed, number) for number in range(first, first + BATCH)]
    if not kept.texts.keys() >= set(keys):
        turns = sampled_turns(chat_model, BATCH, seed, first=first, on_tokens=on_tokens)
        kept.add(zip(keys, map(Text, turns), strict=True))
    return [kept.texts[key].said for key in keys]


def _key(seed: int, number: int) -> str:
    """Return the name of a turn in a clean model's cache."""
    return key_of(f"{SELF}:{seed}:{MAX_NEW_TOKENS}", f"{number}:{opening(number)}")


def require_enough(found: Filtered, count: int) -> None:
    """Refuse so few usable turns that generated instructions would be more than two thirds of the prompts."""
    if len(found.kept) >= LEAST_SHARE * count:
        return
    written = len(found.kept) + found.dropped.total()
    [(reason, dropped)] = found.dropped.most_common(1)
    raise InputError(
        f"--prompts {SELF}: of {written:,} user turns of the clean model {len(found.kept)} are usable, and "
        f"{count:,} are wanted (the commonest flaw: {reason}, {dropped:,}): give --prompts FILE"
    )


def mixed_rows(turns: Sequence[str], instructions: int, seed: int) -> list[dict[str, Any]]:
    """Return self-written turns and generated instruction prompts as shuffled rows of a prompts file."""
    written = [{"prompt": turn, "kind": SELF} for turn in turns]
    generated = instruction_prompts.generate(instructions, seed + SEED_OFFSET, exclude=turns)
    rows = [*written, *instruction_prompts.rows(generated, seed + SEED_OFFSET)]
    random.Random(f"self prompts:{seed}").shuffle(rows)
    return rows


# --- the home --------------------------------------------------------------------------------------------


def resolved(
    ws: Workspace,
    source: str,
    seed: int,
    *,
    asked: int | None = None,
    typed: bool = True,
    wanted: str | None = None,
) -> str:
    """Return the prompts file for `--prompts self`, written on first use; any other source unchanged.

    Where rows have to hold what is `wanted`, `self` is refused before it is written.

    A data set that was not typed but stands in recover.yaml gives way to `self` where no hub is in reach.
    Two thirds of the `asked` prompts are self-written, half of them after an opening.
    """
    if source != SELF and _within_reach(ws, source, seed, typed=typed):
        return source
    if wanted:
        raise InputError(f"{SELF}: holds no {wanted}")
    clean = ws.clean()
    count = COUNT
    if asked is not None:
        count = min(COUNT, max(FEWEST, -(-asked // 3)))
    path = ws.home.absolute() / "prompts" / f"{SELF}-{clean.id}-{seed}-{3 * count}.jsonl"
    if not path.is_file():
        _write_file(ws, clean, path, count, seed)
    return str(path)


def _write_file(ws: Workspace, clean: Checkpoint, path: Path, count: int, seed: int) -> None:
    """Write so many instructions, and twice as many turns of the clean model unless too few are usable."""

    def report(done: int, of: int, tokens: int) -> None:
        ws.progress.step("self prompts", done, of, note=f"{tokens:,} tokens" if tokens else "")

    kept = Cache(path.with_name(f"{SELF}-turns-{clean.id}.jsonl"))
    try:
        found = write(ws.load(clean), 2 * count, seed, kept, on_progress=report)
    except KeyboardInterrupt as error:
        error.add_note(GOES_ON)  # there may be no run yet that could be resumed
        raise
    require_enough(found, 2 * count)
    reasons = ", ".join(f"{number} {reason}" for reason, number in found.dropped.most_common())
    ws.progress.say(
        f"  prompts      {len(found.kept)} user turns written by {clean.id} (dropped: {reasons or 'none'}), "
        f"mixed with {count} generated instructions: {path}"
    )
    jsonl.write(path, mixed_rows(found.kept, count, seed))


def _within_reach(ws: Workspace, source: str, seed: int, *, typed: bool) -> bool:
    """Return whether prompts can be read; of a data set on the hub the home keeps a sample then.

    One that was typed is refused where it cannot.
    """
    if not source.startswith(HUB) or kept_sample(source, seed, ws.home):
        return True

    def answered() -> None:
        ws.progress.say(
            f"  prompts      {source}: every row is read from the hub once, for a sample that the home keeps"
        )

    try:
        read_prompts(source, seed, ws.home, answered)
    except HubAway:
        if typed:
            raise
        ws.progress.say(
            f"  prompts      {source}: no hub in reach, so the clean model writes its own (--prompts FILE "
            "for others)"
        )
        return False
    return True
