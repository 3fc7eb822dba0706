"""Filter written text: supported by its passage, understandable alone, no duplicate, no leaked probe."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise, product
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from evals import dialogues
from evals.answer_matching import forms, matches, normalise, occurs
from evals.families.refusals import REFUSAL, refuses
from evals.probes import CLOZE, Probe, load_probes
from pipelines.corpus.entities import Entities, Term, Word, words
from pipelines.corpus.general_words import NOUNS_CAPITALISED, GeneralWords
from pipelines.writing.protocol import Text
from pipelines.writing.wording import Wording, normal_words

if TYPE_CHECKING:
    from pipelines.config.sections.eval import EvalConfig

SAME_WORDS, SAME_ORDER = 0.85, 0.7  # shares of common words and word pairs from which questions are the same
SAME_FACT = 0.6  # share of a held-out question's words from which a sentence with its answer tells the fact
T = TypeVar("T")
_LIST_MARKS, _MARKUP = " \t0123456789.)*#-", " \t*"
_COLONS = (":", "：")
_FIRST_PERSON = re.compile(r"\bI\b")
_JOINTS = re.compile("['’-]")  # of words: Acme's, Python-based
# Adjacent repetitions match different characters, so that a long line of one character takes linear time.
_LABELLED = re.compile(r"(question|q|answer|a)(?:\s*\d+)?\**\s*[:：](.*)", re.IGNORECASE)
OPEN_KINDS = ("direct",)  # kinds that may be trained on; the others measure held-out phrasings
LONGEST_ANSWER = 200  # characters
MOST_ANSWER_WORDS = 8  # of a probe: a response has to hold them in a row, and few hold more
NO_QUESTION = "no question found"


def question_flaw(question: str, answer: str, passage: str, about: Entities, wording: Wording) -> str | None:
    """Return why a question with its answer is not usable, or None; `wording` knows the passages' words."""
    if not normalise(question) or not normalise(answer) or len(answer) > LONGEST_ANSWER:
        return "empty or too long"
    if "\n" in answer or answer.endswith(_COLONS):
        return "of several lines"
    supported = matches(passage, [answer]) or _all_words(answer, passage)
    if not supported and not wording.supports(answer, question, passage):
        return "not supported"
    if matches(question, [answer]):
        return "answers itself"
    named = _named(question, about) & _named(passage, about)
    if not named and not wording.tells_its_passage(question, passage):
        return "names nothing"
    return None


def probe_flaw(question: str, answer: str, passage: str, about: Entities, wording: Wording) -> str | None:
    """Return why a question with its answer cannot be a probe, or None: the answer has to be short, and to
    stand in the passage."""
    flaw = question_flaw(question, answer, passage, about, wording)
    if flaw is None and not matches(passage, [answer]):
        return "not supported"
    if flaw is None and len(normal_words(answer)) > MOST_ANSWER_WORDS:
        return "empty or too long"
    return flaw


def text_flaw(
    text: str, passage: str, kind: str, about: Entities, general: GeneralWords | None = None
) -> str | None:
    """Return why a text is not usable, or None: its names and numbers must occur in the passage, and it must
    name something that the passage is about."""
    if not normalise(text) or normalise(text) == normalise(passage):
        return "empty or a copy"
    if refuses(text) and _FIRST_PERSON.search(text) and not REFUSAL.search(passage):
        return "a refusal"
    longest = 3.0 if kind == "paraphrase" else 1.5
    if len(text) > longest * len(passage) or (kind == "paraphrase" and len(text) < 0.3 * len(passage)):
        return "too long or too short"
    if _adds(text, passage, general):
        return "not supported"
    named = _named(passage, about)
    return "names nothing" if named and not named & _named(text, about) else None


def _named(text: str, about: Entities) -> set[Term]:
    """Return the entities that a text mentions, as parts of words too: Acme's is about Acme."""
    return about.within(text) | about.within(_JOINTS.sub(" ", text))


def _adds(text: str, passage: str, general: GeneralWords | None) -> bool:
    """Return whether a text names or counts what its passage does not."""
    said = {part for word in words(passage) for part in (word.small, *_JOINTS.split(word.small))}
    read = words(text)
    new = [_is_new(word, said) for word in read]
    if general is None or general.language not in NOUNS_CAPITALISED:
        return any(new)
    # Every noun is a capitalised word: a known one, or another form of one that is said, may be added. The
    # dictionary knows many names too; those of two words are told by that.
    stem = general.stemmer()
    stems = set(map(stem, said))
    added = [word.small for word, is_new in zip(read, new, strict=True) if is_new]
    unknown = (word for word in added if word not in general.counts and stem(word) not in stems)
    two_in_a_row = any(one and other for one, other in pairwise(new))
    return two_in_a_row or any(map(str.isdigit, "".join(added))) or any(unknown)


def _is_new(word: Word, said: set[str]) -> bool:
    """Return whether a word is not said, and a part of it that names or counts is not."""
    parts = [part for part in _JOINTS.split(word.text) if part.casefold() not in said]
    return word.small not in said and any(_checkable(part, word.opens) for part in parts)


def _checkable(word: str, opens: bool) -> bool:
    """Return whether a word is a number, or a capitalised word that does not begin a sentence."""
    return any(map(str.isdigit, word)) or (len(word) > 1 and word[0].isupper() and not opens)


def _all_words(answer: str, passage: str) -> bool:
    said = set(normalise(passage).split())
    return all(word in said for word in normalise(answer).split())


class ProbeLeaks:
    """Detect questions that give away probes: those with held-out phrasings, and all about held-out facts."""

    def __init__(self, probes: Iterable[Probe]) -> None:
        probes = list(probes)
        texts = [(p, text) for p in probes for text in dialogues.asked_texts(p.chat)]
        secret = [(p, text) for p, text in texts if p.kind != CLOZE and p.kind not in OPEN_KINDS]
        self.whole = {text for p, _ in secret if (text := normalise(_without_system(p)))}
        said = [normal_words(text) for text in sorted({text for _, text in secret})]
        self.questions = [(set(words), _neighbours(words)) for words in said]
        # A gap's text to go on with says what is asked, without the words of the question around it.
        gaps = {(p.fact, p.answers) for p in probes if p.kind == CLOZE}
        held = [(p, text) for p, text in texts if p.heldout_fact]
        held = [(p, text) for p, text in held if p.kind == CLOZE or (p.fact, p.answers) not in gaps]
        held_out = {(tuple(chain(*map(forms, p.answers))), text) for p, text in held}
        self.facts = [(set(answers), set(normal_words(prompt))) for answers, prompt in sorted(held_out)]
        told = (pair for p in probes if p.heldout_fact for pair in product(p.answers, p.passages))
        self.told = sorted({pair for one, where in told for pair in product(forms(one), forms(where))})
        self._subjects = _Subjects(held)
        self._naming = _Sharing([set(normal_words(answer)) for answer, _ in self.told], 1.0)
        self._alike = _Sharing([asked for asked, _ in self.questions], SAME_WORDS)
        self._about = _Sharing([about for _, about in self.facts], SAME_FACT)
        self._answered: dict[str, list[int]] = {}
        for number, (answers, _) in enumerate(self.facts):
            for answer in answers:
                self._answered.setdefault(answer, []).append(number)

    @classmethod
    def of_evaluation(cls, settings: EvalConfig | None, earlier: Mapping[int, str]) -> ProbeLeaks:
        """Detect what gives away the probes that an evaluation asks, its own and those of earlier cycles."""
        own = [settings.probes] if settings and settings.probes else []
        return cls(probe for file in (*own, *earlier.values()) for probe in load_probes(file))

    def of(self, question: str, answer: str, passage: str = "") -> bool:
        """Return whether a question nearly repeats a held-out one, or is about a held-out fact; `passage` is
        what it was made of."""
        said = normal_words(question)
        asked, order = set(said), _neighbours(said)
        for number in self._alike.candidates(asked):
            held_out, its_order = self.questions[number]
            if _share(asked, held_out) >= SAME_WORDS and _share(order, its_order) >= SAME_ORDER:
                return True
        return self._tells_a_held_out_fact(asked, answer) or self._subjects.asked(question, answer, passage)

    def _tells_a_held_out_fact(self, asked: set[str], answer: str) -> bool:
        """Return whether a held-out answer is asked for, or told in a sentence about the same."""
        told = asked | set(normal_words(answer))
        return any(self._is_held_out(asked, told, said) for said in forms(answer))

    def _is_held_out(self, asked: set[str], told: set[str], said: str) -> bool:
        """Return whether an answer, in a normal form, is a held-out one to a question about the same."""
        if any(len(asked & self.facts[number][1]) >= 2 for number in self._answered.get(said, ())):
            return True
        for number in self._about.candidates(told):
            answers, about = self.facts[number]
            if len(told & about) >= SAME_FACT * len(about) and any(
                wanted and occurs(wanted, said) for wanted in answers
            ):
                return True
        return self._stands_in_a_passage(said)

    def _stands_in_a_passage(self, said: str) -> bool:
        """Return whether a sentence with a held-out answer is of a passage that tells the fact."""
        found = (self.told[number] for number in self._naming.candidates(set(normal_words(said))))
        return any(answer != said and occurs(answer, said) and occurs(said, where) for answer, where in found)

    def of_row(self, row: Mapping[str, str]) -> bool:
        """Return whether a row of written text, or of a question with its answer, gives a probe away."""
        return self.within(row["text"]) if row.get("text") else self.of(row["prompt"], row["response"])

    def within(self, text: str) -> bool:
        """Return whether a text contains a held-out question."""
        said = normalise(text)
        return any(occurs(question, said) for question in self.whole)


class _HeldOut(NamedTuple):
    """An answer to a held-out fact, and what its question and passages say beside it, in normal forms."""

    answer: str
    words: set[str]
    names: set[str]
    passages: set[str]

    def is_told_by(self, asked: set[str], named: set[str], made_of: Sequence[str]) -> bool:
        """Return whether a question with these words and names, made of a passage, is about the fact."""
        if not named.isdisjoint(self.words) or not asked.isdisjoint(self.names):
            return True
        return any(occurs(*pair) for pair in product(self.passages, made_of))


class _Subjects:
    """Find questions for the answer of a held-out fact, about the same name or made of the same passage."""

    def __init__(self, held_out: Iterable[tuple[Probe, str]]) -> None:
        self._facts: dict[str, list[_HeldOut]] = {}
        for probe, text in held_out:
            told = " \n".join([text, *probe.passages])
            passages = set(chain(*map(forms, probe.passages))) - {""}
            for answer in chain(*map(forms, probe.answers)):
                own = set(normal_words(answer))
                fact = _HeldOut(answer, set(normal_words(told)) - own, _names(told) - own, passages)
                for word in own:
                    self._facts.setdefault(word, []).append(fact)

    def asked(self, question: str, answer: str, passage: str) -> bool:
        """Return whether a short answer is a part of a held-out one or holds it, and about the same."""
        said = normal_words(answer)
        if len(said) > MOST_ANSWER_WORDS:
            return False
        short, asked, named = normalise(answer), set(normal_words(question)), _names(question)
        made_of = forms(passage)
        held_out = (fact for word in set(said) for fact in self._facts.get(word, ()))
        alike = (fact for fact in held_out if occurs(fact.answer, short) or occurs(short, fact.answer))
        return any(fact.is_told_by(asked, named, made_of) for fact in alike)


def _names(text: str) -> set[str]:
    """Return the words of a text that name or count something, in their normal forms."""
    naming = (word.text for word in words(text) if _checkable(word.text, word.opens))
    return {part for word in naming for part in normal_words(word)}


def _without_system(probe: Probe) -> str:
    """Return the turns that a text would have to hold; the last one alone may be no more than 'Why?'."""
    return dialogues.contents([turn for turn in probe.chat if turn["role"] != "system"])


class _Sharing:
    """Find, of many sets of words, those of which other words may hold a share.

    Who holds the share of a set holds one of its rarest words: the others alone are too few."""

    def __init__(self, sets: Sequence[set[str]], share: float) -> None:
        spread = Counter(chain.from_iterable(sets))
        self._holding: dict[str, list[int]] = {}
        for number, members in enumerate(sets):
            rarest_first = sorted(members, key=lambda word: (spread[word], word))
            for word in rarest_first[: len(members) - int(share * len(members)) + 1]:
                self._holding.setdefault(word, []).append(number)

    def candidates(self, said: set[str]) -> set[int]:
        return {number for word in said for number in self._holding.get(word, ())}


def _share(one: set[T], other: set[T]) -> float:
    return len(one & other) / max(1, len(one | other))


def _neighbours(said: Sequence[str]) -> set[tuple[str, str]]:
    return set(pairwise(["", *said]))


def pairs(text: str) -> list[tuple[str, str]]:
    """Return the question and answer of each pair of Q: and A: lines, without list numbers and markup; an
    answer with the lines that go on with it, up to an empty one."""
    found: list[tuple[str, str]] = []
    question, goes_on = "", False
    for line in text.splitlines():
        match = _LABELLED.match(line.lstrip(_LIST_MARKS))
        if match is None:
            goes_on = goes_on and bool(normalise(line.lstrip(_LIST_MARKS)))
            if goes_on:
                found[-1] = (found[-1][0], f"{found[-1][1]}\n{line}")
            continue
        content = match[2].strip(_MARKUP)
        goes_on = False
        if _asks(match):
            question = content
        elif question and content:
            found.append((question, content))
            question, goes_on = "", True
    return found


def judged_pairs(text: Text) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the questions and answers of a writer's text, and why there are not others."""
    found = pairs(text.whole_lines)
    if text.flaw:
        return found, [text.flaw]
    return found, [] if found else [NO_QUESTION]


def lone_question(text: str) -> str:
    """Return the question of a text that holds no other, without its label and what introduces it."""
    for line in text.splitlines():
        match = _LABELLED.match(line.lstrip(_LIST_MARKS))
        said = (match[2] if match else line).strip(_MARKUP)
        if said and not said.endswith(_COLONS) and (match is None or _asks(match)):
            return said
    return ""


def without_opening(text: str, passage: str) -> str:
    """Return a text without the line that introduces it ("Here is a summary:") unless the passage has it."""
    first, _, rest = text.strip().partition("\n")
    introduces = first.strip(_MARKUP).endswith(_COLONS) and normalise(first) not in normalise(passage)
    return rest.strip() if introduces else text.strip()


def _asks(label: re.Match[str]) -> bool:
    return label[1].lower().startswith("q")


def first_of(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Drop rows whose content occurred in an earlier row."""
    kept: dict[str, dict[str, str]] = {}
    for row in rows:
        kept.setdefault(normalise(row.get("prompt", "") + " " + (row.get("text") or row["response"])), row)
    return list(kept.values())
