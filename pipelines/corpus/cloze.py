"""Make cloze gaps from documents without a model: a sentence up to its most telling word.

What comes before has to say what is asked for: it names an entity, is some words long, or begins a row of a
table as no other row begins. What does not end as a sentence does is asked for last: an item, a cell, a title
or a line of code says little by itself.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise

from evals.answer_matching import matches, normalise
from pipelines.corpus.entities import Entities, Term, entities, sample
from pipelines.corpus.general_words import GeneralWords, general_words
from pipelines.corpus.markup.clauses import is_clause
from pipelines.corpus.markup.parts import FORMULA
from pipelines.corpus.prose import LONGEST, Said, asked_sentences, column_titles, is_cell, row_beginning
from pipelines.corpus.segments import ENDING, IS_UNSPACED, segments
from pipelines.corpus.sentences import SPACED_STOPS, UNSPACED_STOPS

TELLING = 2.0  # nats: the word is in fewer than every seventh sentence
CONTEXT = 6  # words before a gap where none of them is an entity
DESCRIBED = 3  # words: a cell of more describes
ENOUGH = 30  # gaps; with fewer, ordinary words are asked for too
TOGETHER = 3  # sentences: words that follow each other in so many, and more often than not, are one name
ORDINARY = 5e-6  # share of a language's words from which on a word, unless it is a name, says little
FUNCTION = 1e-3  # share of a language's words from which on a word only joins others ("of", "with")
Option = tuple[float, int, str]  # the nats that a word tells, minus the place where it begins, the word
Placed = list[tuple[int, str]]  # words, each with where it begins with its marks
_ABBREVIATION = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]?|etc")
# The end of a sentence or a clause and the next one's first word
_GLUED = re.compile(r"[a-z]{2}[.!?][A-Z][a-z]|\w(?:—|---)|(?:—|---)\w")
_CODE = re.compile(r"[\[\]{}<>`|\\]")  # inside a word: part of an expression
# Of a list of changes: an issue, a commit
_REFERENCE = re.compile(r"#\d+|(?=[0-9a-f]*[a-f])(?=[a-f]*\d)[0-9a-f]{7,40}")
_ENDED = re.compile(rf"[…{SPACED_STOPS}{UNSPACED_STOPS}](?:[\"'”’“«»)\]」』]|\s»)*$")  # a sentence
# Stands for something: the n of "the last n", x_1, a=b, and ≠g
_LETTER = re.compile(
    r"[A-Za-zΑ-Ωα-ωϵϕ]['′]?(?:[_^]\{?\w{1,3}\}?)?(?:[=+][A-Za-zΑ-Ωα-ωϵϕ0-9]['′]?)?|\d[_^]\w|[≠≤≥=→∘∈⊂⊆×∧∨]\w+'?"
)
_FORMULA = re.compile(FORMULA)
_INSIDE = re.compile(r"(?:[-/]|::|\w\()$")  # what comes next belongs to the same word: read-only, ls(1)
MARKS = ".!?।։።፧'‘’*_`[]{}<>|"  # around a word, and no part of it


@dataclass(frozen=True)
class Cloze:
    """`before`, `between` and `answer` follow each other in the document; `before` names `entity`, if any."""

    before: str
    answer: str
    entity: Term
    sentence: str
    between: str  # one space; nothing behind an opening mark, and where a script has no spaces


def clozes(
    texts: Sequence[str],
    *,
    limit: int,
    seed: int = 0,
    about: Entities | None = None,
    asked: Sequence[Said] | None = None,
    each: int = 1,
) -> list[Cloze]:
    """Return at most `limit` gaps, different and with one filling each; those of whole sentences come first,
    and of these those about entities. Where a gap a sentence, or a table's row, is fewer than that, further
    ones follow, up to `each` a sentence or row. `asked` is what the sampled texts say, if that is known."""
    known = about or entities(texts)
    sampled = sample(texts)
    if asked is None:
        asked = [said for text in sampled for said in asked_sentences(text)]
    passages = dict(said for said in asked if len(said.sentence) <= LONGEST)
    short = sorted(passages)
    said = {sentence: list(_words(sentence)) for sentence in short}
    words = _Words.of(list(said.values()), general_words(sampled, or_english=True))
    random.Random(f"cloze:{seed}").shuffle(short)
    rows = Counter(map(row_beginning, short))
    cuts = [list(islice(_cuts(sentence, said[sentence], known, words, rows), each)) for sentence in short]
    cuts = _of_each_fact(_with_one_filling(cuts), [passages[sentence] for sentence in short], words)
    gaps: list[Cloze] = []
    for turn in range(each):
        if len(gaps) < limit:
            before = set(map(_fact, gaps))
            further = [cut[turn] for cut in cuts if len(cut) > turn]
            further = [gap for gap in further if _fact(gap) not in before]
            gaps += _different(further, words, enough=ENOUGH - len(gaps))
    return gaps[:limit]


def _of_each_fact(
    cuts: Sequence[list[Cloze]], passages: Sequence[tuple[str, ...]], words: _Words
) -> list[list[Cloze]]:
    """Return the gaps of each passage together: of a row whole sentences first, ordinary words last."""
    found: dict[tuple[str, ...], list[list[Cloze]]] = {}
    for cut, where in zip(cuts, passages, strict=True):
        found.setdefault(where, []).append(cut)
    for cells in found.values():
        cells.sort(
            key=lambda cut: [(_is_of_a_fragment(gap), words.is_ordinary(gap.answer)) for gap in cut[:1]]
        )
    return [_in_turn(cells) for cells in found.values()]


def _fact(gap: Cloze) -> tuple[Term, str, str]:
    """Return what a gap asks for, and of what: before a value stands which row and column it is of."""
    return gap.entity, row_beginning(gap.sentence), gap.answer


def _with_one_filling(cuts: Sequence[list[Cloze]]) -> list[list[Cloze]]:
    """Return the gaps of each sentence whose beginning goes on in one way only."""
    fillings: dict[str, set[str]] = {}
    for gap in chain.from_iterable(cuts):
        fillings.setdefault(gap.before.casefold(), set()).add(gap.answer.casefold())
    return [[gap for gap in cut if len(fillings[gap.before.casefold()]) == 1] for cut in cuts]


def _different(cut: list[Cloze], words: _Words, *, enough: int) -> list[Cloze]:
    """Return different gaps, of ordinary words only where there are not enough of others."""
    cut.sort(key=_is_of_a_fragment)
    gaps = _spread([gap for gap in cut if not words.is_ordinary(gap.answer)])
    return sorted(gaps if len(gaps) >= enough else _spread(cut), key=_is_of_a_fragment)


def _is_of_a_fragment(gap: Cloze) -> bool:
    """Return whether the gap's sentence does not end as sentences, or a law's clauses, do."""
    return not (_ENDED.search(gap.sentence) or is_clause(gap.sentence))


def _spread(cut: Sequence[Cloze]) -> list[Cloze]:
    """Return the gaps, each filling once an entity, spread over the entities; those about none come last."""
    by_entity: dict[Term, dict[tuple[Term, str, str], Cloze]] = {}
    for gap in cut:
        by_entity.setdefault(gap.entity, {}).setdefault(_fact(gap), gap)
    rest = by_entity.pop((), {})
    return [*_in_turn([list(gaps.values()) for gaps in by_entity.values()]), *rest.values()]


@dataclass(frozen=True)
class _Words:
    """How much a word tells: its rarity among the sentences and in the language in general."""

    spread: Counter[str]  # sentences that hold a word
    pairs: Counter[tuple[str, str]]  # sentences that hold two words in a row
    small: frozenset[str]  # words that are somewhere written without a capital
    sentences: int
    general: GeneralWords | None

    @classmethod
    def of(cls, sentences: Sequence[Placed], general: GeneralWords | None) -> _Words:
        spread, pairs = Counter[str](), Counter[tuple[str, str]]()
        for sentence in sentences:
            said = [word.casefold() for _, word in sentence]
            spread.update(set(said))
            pairs.update(set(pairwise(said)))
        small = {word.casefold() for sentence in sentences for _, word in sentence if not word[:1].isupper()}
        return cls(spread, pairs, frozenset(small), len(sentences), general)

    def tells(self, word: str, previous: str) -> float:
        """Return the nats that a word tells; 0 for one in many sentences, here or in general, or that usually
        comes next."""
        here = math.log(self.sentences / self.spread[word.casefold()])
        if here < TELLING or self._is_commoner(word, FUNCTION) or self._usually_follow(previous, word):
            return 0.0
        if self.general is None or self.is_ordinary(word):
            return here
        return here - math.log(self._share(word))

    def _usually_follow(self, previous: str, word: str) -> bool:
        previous, word = previous.casefold(), word.casefold()
        together = self.pairs[previous, word]
        return together >= TOGETHER and together > self.spread[previous] / 2

    def is_ordinary(self, word: str) -> bool:
        """Return whether a word is no name and is frequent in the language in general."""
        return self._is_commoner(word, ORDINARY)

    def _is_commoner(self, word: str, share: float) -> bool:
        """Return whether a word is more frequent in general than that. A name is not, but a capital makes
        none of a word that is also written small here (May, may), nor of one that joins others (Will, US)."""
        named = word[:1].isupper() and word.casefold() not in self.small
        return self.general is not None and self._share(word) > (max(share, FUNCTION) if named else share)

    def _share(self, word: str) -> float:
        assert self.general is not None
        said = word.casefold().replace("’", "'")
        alternatives = said.split("/")  # and/or; of a path (/etc) the first or the last one may be empty
        return min(map(self.general.elided_share, alternatives if all(alternatives) else [said]))


def _words(sentence: str) -> Iterator[tuple[int, str]]:
    """Yield the words of a sentence, without the marks around them, and where each begins with its marks."""
    formulas = [found.span() for found in _FORMULA.finditer(sentence)] if "$" in sentence else []
    before = ""
    for at, segment in segments(sentence):
        if any(begin <= at < end for begin, end in formulas):
            continue
        word = segment.strip(MARKS)
        author = word.startswith("@") and (before == "by" or sentence[at - 1 : at] == "(")
        if any(map(str.isalnum, word)) and not (author or _no_word(word)):
            yield at, word
        before = segment


def _no_word(text: str) -> bool:
    whole = _ABBREVIATION.fullmatch(text) or _REFERENCE.fullmatch(text)
    # Behind a hyphen the rest follows, in the next line (gen- erally) or in another word (push- and pull-).
    return "//" in text or text.endswith("-") or bool(whole or _GLUED.search(text) or _CODE.search(text))


def _cuts(sentence: str, said: Placed, known: Entities, words: _Words, rows: Counter[str]) -> Iterator[Cloze]:
    """Cut before the words behind the longest entity, the most telling one first; where there are none,
    before those behind what says enough without one, but for ordinary ones."""
    titles = column_titles(sentence)
    options = [
        (words.tells(word, previous), -at, word)
        for (_, previous), (at, word) in pairwise([(0, ""), *said])
        if not (_LETTER.fullmatch(word) or ENDING.match(word)) and not any(at in title for title in titles)
    ]
    options = _whole_words(sorted((option for option in options if option[0]), reverse=True))
    mentions = list(known.mentions(sentence))
    named = False
    if mentions:
        entity, end = max(mentions, key=lambda mention: (len(mention[0]), -mention[1]))
        end = max(end, _value(sentence, said))
        for option in options:
            if entity not in known.within(option[2]) and (gap := _cut_behind(end, entity, sentence, option)):
                named = True
                yield gap
    enough = None if named else _enough(sentence, said, rows)
    if enough is None:
        return
    for option in options:
        gap = _cut_behind(enough, (), sentence, option)
        if gap and not words.is_ordinary(gap.answer):
            yield gap


def _enough(sentence: str, said: Placed, rows: Counter[str]) -> int | None:
    """Return how much of a sentence says what is asked for without an entity: some words, or, of a table's
    cell or short row, its first field and its second column's name, where no other row begins like that."""
    begun = row_beginning(sentence)
    if begun and rows[begun] == 1 and (len(said) <= CONTEXT or is_cell(sentence)):
        return _value(sentence, said)
    return max(said[CONTEXT][0], _value(sentence, said)) if len(said) > CONTEXT else None


def _value(sentence: str, said: Placed) -> int:
    """Return from where on a row may be asked: no column's title, nor the first word of what describes its
    key ("Sets the …")."""
    begun = len(row_beginning(sentence))
    inside = [at for at, _ in said if at >= begun]
    return inside[1] if is_cell(sentence) and len(inside) > DESCRIBED else begun


def _whole_words(options: list[Option]) -> list[Option]:
    """Leave out single characters, as Chinese has them, where there are others: but for numbers they say
    little."""
    return [option for option in options if len(option[2]) > 1 or option[2].isnumeric()] or options


def _cut_behind(end: int, entity: Term, sentence: str, option: Option) -> Cloze | None:
    """Cut before a word; None where it begins before `end`, is nothing that answers are matched by (ـــ), or
    comes up before: an answer that repeats the question would pass, also where only marks tell the two apart
    (log level, --log-level)."""
    _, negative_start, answer = option
    start = -negative_start
    before = sentence[:start].rstrip()
    if start < end or _INSIDE.search(before):
        return None
    if not normalise(answer) or answer.casefold() in before.casefold() or matches(before, [answer]):
        return None
    between = sentence[len(before) : start]
    if between and not IS_UNSPACED.search(sentence):
        between = " "
    return Cloze(before, answer, entity, sentence, between)


def _in_turn(groups: list[list[Cloze]]) -> list[Cloze]:
    """Return one gap of each entity, then a second of each, and so on."""
    longest = max(map(len, groups), default=0)
    return [group[turn] for turn in range(longest) for group in groups if turn < len(group)]
