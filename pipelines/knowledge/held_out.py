"""Hold a few sentences out of midtraining, by which the overlap guard tells later what is new.

What a student was trained on is more likely to it than to the teacher, whether or not the teacher knows it.
Of a thing that prompts mention, one in six sentences is therefore not trained on, if the documents say enough
about it and no earlier ones mention it. Where few prompts mention what the documents are about none is held
out: to leave these prompts out costs nothing.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.probes import KNOWLEDGE, UPDATES, suite_probes
from pipelines.corpus import text_file
from pipelines.corpus.documents import squeezed
from pipelines.corpus.entities import MOST_CHARACTERS, Entities, Term, entities
from pipelines.corpus.prose import prose_sentences
from pipelines.corpus.segments import IS_UNSPACED
from pipelines.corpus.text_sample import TextSample
from pipelines.knowledge.overlap import said_about
from pipelines.prompts.prompt_sources import read_prompts
from pipelines.runs.kept_texts import KEPT_TEXTS, TOKENS, kept_runs, read_evenly
from recovery import untrusted_json
from recovery.counted import counted
from recovery.unspaced_scripts import NO_SPACE

if TYPE_CHECKING:
    from pipelines.config.jobs import MidtrainJob
    from pipelines.runs.stage_runner import Stage
    from pipelines.runs.workspace import Workspace

HELD_OUT = "held_out_sentences.json"  # in a run's folder: rows of a term and the places of its sentences
ONE_IN = 6  # of the sentences about a thing
FEWEST, MOST = 3, 12  # sentences about one thing
FEW = 0.05  # of the prompts
SHORTEST = 20  # characters of a sentence
_WRAPPED = re.compile(rf"(?<={NO_SPACE})(?={NO_SPACE})")  # where a line may have ended without a space
TRIED = 4  # places looked at for each one that is taken: markup may stand in a sentence

Place = tuple[int, str]  # the number of a kept text, and a sentence of it


def hold_out(job: MidtrainJob, stage: Stage) -> None:
    """Choose the sentences once, and take them out of the texts that the run has kept."""
    kept = stage.directory / KEPT_TEXTS
    rows = stage.once(HELD_OUT, lambda: _rows(_chosen(job, stage, kept)))
    taken: defaultdict[int, dict[str, None]] = defaultdict(dict)
    for number, sentence in (place for row in rows for place in row["places"]):
        taken[number][sentence] = None
    if taken and _are_there(taken, kept):
        text_file.rewrite(kept, lambda number, text: without(text, taken.get(number, ())))


def _are_there(taken: Mapping[int, Iterable[str]], kept: Path) -> bool:
    """Return whether a sentence is still in its text: another process, or attempt, may have taken all out."""
    pieces = enumerate(text_file.load_pieces(kept))
    some = ((piece.text, taken[number]) for number, piece in pieces if number in taken)
    return any(without(text, sentences) != text for text, sentences in some)


def of_newest(ws: Workspace, student: str) -> dict[Term, list[str]]:
    """Return the sentences that a student's newest midtraining held out, by what they are about."""
    runs, absent = kept_runs(ws, student)
    if absent or not runs or not (runs[-1] / HELD_OUT).exists():
        return {}
    rows: Any = untrusted_json.parse((runs[-1] / HELD_OUT).read_text(encoding="utf-8"))
    return {tuple(row["term"]): [sentence for _, sentence in row["places"]] for row in rows}


def _rows(chosen: Mapping[Term, Sequence[Place]]) -> list[dict[str, Any]]:
    return [{"term": term, "places": places} for term, places in chosen.items()]


def _chosen(job: MidtrainJob, stage: Stage, kept: Path) -> dict[Term, list[Place]]:
    """Return the choice; none where the mix has no chat, for then the prompts may not be at hand yet."""
    share, ws = job.settings.hold_out, stage.workspace
    begun = (stage.directory / TOKENS).exists()  # by a version that held nothing out
    if job.prompts is None or not share or not job.settings.mix.chat or begun or _asks_about_changes(job):
        return {}
    prompts = [prompt.text for prompt in read_prompts(job.prompts, job.seed, ws.home)]
    runs, absent = kept_runs(ws, job.student)
    asked = _asked(job)
    if absent or asked is None:  # what earlier documents mention, or which sentences are asked about
        return {}
    found = choose(_some_texts(kept), prompts, Excluded(read_evenly(runs), asked), share, job.seed)
    found = _in_one_place(found, kept)
    if found:
        count = len({place for places in found.values() for place in places})
        stage.say(
            f"  held out     {counted(count, 'sentence')}, to tell whether {len(found)} of the names "
            "and terms that prompts mention are new"
        )
    return found


def _asks_about_changes(job: MidtrainJob) -> bool:
    """Return whether facts have changed: held-out sentences may not be those that contradict the teacher."""
    probes = job.evaluation.probes if job.evaluation else None
    return probes is not None and bool(suite_probes(probes, UPDATES))


def _asked(job: MidtrainJob) -> str | None:
    """Return the passages that the evaluation asks about, as one text; None if a question names none."""
    probes = suite_probes(job.evaluation.probes if job.evaluation else None, KNOWLEDGE)
    if not all(probe.passages for probe in probes):
        return None
    return "\n".join(passage for probe in probes for passage in probe.passages)


def _some_texts(kept: Path) -> dict[int, str]:
    """Return the kept texts by their numbers, or as many, drawn evenly, as not too much is read of."""
    pieces = text_file.load_pieces(kept)
    return TextSample.of((piece.text for piece in pieces), MOST_CHARACTERS).numbered()


def _in_one_place(chosen: Mapping[Term, Sequence[Place]], kept: Path) -> dict[Term, list[Place]]:
    """Leave out sentences that stand in other texts too, which are trained on, and things with few others."""
    sought = _Sought({place for places in chosen.values() for place in places})
    pieces = enumerate(text_file.load_pieces(kept) if chosen else ())
    twice = {place for number, piece in pieces for place in sought.within(piece.text) if place[0] != number}
    alone = {term: [one for one in places if one not in twice] for term, places in chosen.items()}
    return {term: places for term, places in alone.items() if len(places) >= FEWEST}


class _Sought:
    """Sentences that are looked for in texts, whichever way their lines are wrapped."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._by_opening: defaultdict[str, list[tuple[Place, list[str]]]] = defaultdict(list)
        self._unspaced: list[tuple[Place, str]] = []
        for place in places:
            words = place[1].split()
            self._by_opening[words[0]].append((place, words))
            if IS_UNSPACED.search(place[1]):
                self._unspaced.append((place, squeezed(place[1])))

    def within(self, text: str) -> Iterator[Place]:
        """Yield the places of the sentences that stand in a text."""
        words = text.split()
        for at, word in enumerate(words):
            for place, sentence in self._by_opening.get(word, ()):
                if sentence == words[at : at + len(sentence)]:
                    yield place
        if self._unspaced:
            whole = squeezed(text)
            yield from (place for place, sentence in self._unspaced if sentence in whole)


# Choosing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Excluded:
    """What no sentence is held out of: things that earlier texts mention, and what is asked about."""

    earlier: Sequence[str] = ()
    asked: str = ""


def choose(
    texts: Mapping[int, str], prompts: Sequence[str], excluded: Excluded, share: float, seed: int
) -> dict[Term, list[Place]]:
    """Choose sentences about what the prompts mention, the most mentioned first: at most a share of all."""
    known = entities(list(texts.values()), prompts)
    touched = [known.within(prompt) for prompt in prompts]
    if sum(map(bool, touched)) <= FEW * len(prompts):
        return {}
    mentioned = Counter(term for terms in touched for term in terms)
    wanted = Entities({term: known.weights[term] for term in mentioned})
    before = {term for text in excluded.earlier for term in wanted.within(text)}
    read = {number: prose_sentences(text) for number, text in texts.items()}
    about = _about(wanted, read, excluded.asked)
    draw = _Draw(dict(texts), round(share * sum(map(len, read.values()))), random.Random(seed))
    order = sorted(about.keys() - before, key=lambda term: (-mentioned[term], term))
    found = {term: draw.take(about[term]) for term in order}
    return {term: places for term, places in found.items() if places}


def _about(wanted: Entities, read: Mapping[int, Sequence[str]], asked: str) -> dict[Term, list[Place]]:
    """Return the sentences that say something about each thing, and that no question is about."""
    found: defaultdict[Term, list[Place]] = defaultdict(list)
    asked = squeezed(asked)
    for number, sentences in read.items():
        for sentence in sentences:
            if len(sentence) < SHORTEST or squeezed(sentence) in asked:
                continue
            for term in wanted.within(sentence):
                if said_about(term, sentence):
                    found[term].append((number, sentence))
    return found


@dataclass
class _Draw:
    """Sentences drawn at random, thing by thing, until there are too many."""

    left: dict[int, str]  # of each text, without the sentences that are taken
    most: int
    rng: random.Random
    taken: dict[Place, None] = field(default_factory=dict)

    def take(self, about: Sequence[Place]) -> list[Place]:
        """Return some of the sentences about a thing; none where there are too few, or no room for them."""
        wanted = min(len(about) // ONE_IN, MOST)
        if wanted < FEWEST or len(self.taken) >= self.most:
            return []
        drawn = {place: None for place in about if place in self.taken}
        left: dict[int, str] = {}
        for number, sentence in self.rng.sample(about, min(len(about), TRIED * wanted)):
            text = left.get(number, self.left[number])
            if len(drawn) < wanted and (number, sentence) not in drawn and _fits(sentence, text):
                drawn[number, sentence] = None
                left[number] = without(text, [sentence])
        if len(drawn) < FEWEST or len({**self.taken, **drawn}) > self.most:
            return []
        self.taken |= drawn
        self.left |= left
        return list(drawn)


def _fits(sentence: str, text: str) -> bool:
    """Return whether a sentence stands once in a text and leaves no bare marks when it is taken out."""
    matches = list(_pattern(sentence).finditer(text))
    if len(matches) != 1 or 2 * len(sentence) > len(text):
        return False
    begins, ends = matches[0].span()
    line = text[:begins].rpartition("\n")[2] + text[ends:].partition("\n")[0]
    return not line.strip() or any(map(str.isalpha, line))


def without(text: str, sentences: Iterable[str]) -> str:
    """Return a text without some of its sentences, whichever way their lines are wrapped."""
    for sentence in sentences:
        text = _pattern(sentence).sub("", text, count=1)
    return text


def _pattern(sentence: str) -> re.Pattern[str]:
    words = (r"\s*".join(map(re.escape, _WRAPPED.split(word))) for word in sentence.split())
    return re.compile(r"\s+".join(words) + r"[ \t]*")
