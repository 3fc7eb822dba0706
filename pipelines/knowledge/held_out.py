"""Hold a few sentences out of midtraining, by which the overlap guard tells later what is new.

What a student was trained on is more likely to it than to the teacher, whether or not the teacher knows it.
Of a thing that prompts mention, one in six sentences is therefore not trained on, if the documents say enough
about it. Where few prompts touch the documents none is held out: to leave these prompts out costs nothing.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from evals.probes import UPDATES, suite_probes
from pipelines.corpus import text_file
from pipelines.corpus.entities import MOST_CHARACTERS, Entities, Term, entities
from pipelines.corpus.kept_texts import KEPT_TEXTS
from pipelines.corpus.prose import prose_sentences
from pipelines.distillation.prompts import read_prompts
from pipelines.knowledge.overlap import FEWEST

if TYPE_CHECKING:
    from pipelines.config.jobs import MidtrainJob
    from pipelines.runs.stage_runner import Stage

HELD_OUT = "held_out.json"  # in a run's folder
ONE_IN = 6  # of the sentences about a thing
MOST_ABOUT = 12  # sentences about one thing
FEW = 0.05  # of the prompts
SHORTEST = 20  # characters of a sentence

Places = dict[str, list[str]]  # sentences by the number of the text that they are taken from
Place = tuple[int, str]  # the number of a text, and a sentence of it


def hold_out(job: MidtrainJob, stage: Stage) -> None:
    """Choose the sentences once, and take them out of the texts that the run has kept."""
    kept = stage.directory / KEPT_TEXTS
    chosen: Places = stage.once(HELD_OUT, lambda: _chosen(job, stage, kept))
    if chosen:
        text_file.rewrite(kept, lambda number, text: without(text, chosen.get(str(number), ())))


def sentences_of(runs: Iterable[Path]) -> list[str]:
    """Return the sentences that midtraining runs have held out."""
    files = [run / HELD_OUT for run in runs]
    kept: list[Places] = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    return [sentence for places in kept for sentences in places.values() for sentence in sentences]


def _chosen(job: MidtrainJob, stage: Stage, kept: Path) -> Places:
    """Return the choice; none where the mix has no chat, for then the prompts may not be at hand yet."""
    share = job.settings.hold_out
    if job.prompts is None or not share or not job.settings.mix.chat or _asks_about_changes(job):
        return {}
    prompts = [prompt.text for prompt in read_prompts(job.prompts, job.seed, stage.workspace.home)]
    found = choose(_some_texts(kept), prompts, share, job.seed)
    if found.places:
        stage.say(
            f"  held out     {found.count} of {found.sentences:,} sentences, to tell whether {found.things} "
            "of the names and terms that prompts mention are new"
        )
    return found.places


def _asks_about_changes(job: MidtrainJob) -> bool:
    """Return whether facts have changed: held-out sentences may not be those that contradict the teacher."""
    probes = job.evaluation.probes if job.evaluation else None
    return probes is not None and bool(suite_probes(probes, UPDATES))


def _some_texts(kept: Path) -> dict[int, str]:
    """Return every n-th of the kept texts by its number, with n so that not too much is read."""
    step = max(1, -(-kept.stat().st_size // MOST_CHARACTERS))
    pieces = enumerate(text_file.load_pieces(kept))
    return {number: piece.text for number, piece in pieces if number % step == 0}


@dataclass(frozen=True)
class Choice:
    """Sentences to hold out, about how many things, of how many sentences."""

    places: Places
    things: int = 0
    sentences: int = 0

    @property
    def count(self) -> int:
        return sum(map(len, self.places.values()))


def choose(texts: Mapping[int, str], prompts: Sequence[str], share: float, seed: int) -> Choice:
    """Choose sentences about what the prompts mention, the most mentioned first: at most a share of all."""
    known = entities(list(texts.values()), prompts)
    touched = [known.within(prompt) for prompt in prompts]
    if sum(map(bool, touched)) <= FEW * len(prompts):
        return Choice({})
    mentioned = Counter(term for terms in touched for term in terms)
    read = {number: prose_sentences(text) for number, text in texts.items()}
    total = sum(map(len, read.values()))
    draw = _Draw(texts, round(share * total), random.Random(seed))
    about = _about(Entities({term: known.weights[term] for term in mentioned}), read)
    things = sum(draw.add(about[term]) for term in sorted(about, key=lambda term: (-mentioned[term], term)))
    return Choice(draw.places(), things, total)


def _about(wanted: Entities, read: Mapping[int, Sequence[str]]) -> dict[Term, list[Place]]:
    """Return the sentences about each thing; one that stands in several places is known from the others."""
    times = Counter(sentence for sentences in read.values() for sentence in sentences)
    found: defaultdict[Term, list[Place]] = defaultdict(list)
    for number, sentences in read.items():
        for sentence in sentences:
            if len(sentence) >= SHORTEST and times[sentence] == 1:
                for term in wanted.within(sentence):
                    found[term].append((number, sentence))
    return found


@dataclass
class _Draw:
    """Sentences drawn at random, thing by thing, until there are too many."""

    texts: Mapping[int, str]
    most: int
    rng: random.Random
    taken: dict[Place, None] = field(default_factory=dict)

    def add(self, about: Sequence[Place]) -> bool:
        """Take some of the sentences about a thing, if there are enough of them and room for them."""
        wanted = min(len(about) // ONE_IN, MOST_ABOUT)
        there = [place for place in about if place in self.taken]
        possible = (one for one in self.rng.sample(about, len(about)) if one not in there and self._fits(one))
        drawn = [*there, *islice(possible, max(0, wanted - len(there)))]
        if min(wanted, len(drawn)) < FEWEST or len({*self.taken, *drawn}) > self.most:
            return False
        self.taken |= dict.fromkeys(drawn)
        return True

    def _fits(self, place: Place) -> bool:
        """Return whether a sentence can be taken out of its text and leaves something there."""
        number, sentence = place
        text = self.texts[number]
        return 2 * len(sentence) < len(text) and len(_pattern(sentence).findall(text)) == 1

    def places(self) -> Places:
        found: Places = {}
        for number, sentence in self.taken:
            found.setdefault(str(number), []).append(sentence)
        return found


def without(text: str, sentences: Iterable[str]) -> str:
    """Return a text without some of its sentences, whichever way their lines are wrapped."""
    for sentence in sentences:
        text = _pattern(sentence).sub("", text, count=1)
    return text


def _pattern(sentence: str) -> re.Pattern[str]:
    return re.compile(r"\s+".join(map(re.escape, sentence.split())) + r"[ \t]*")
