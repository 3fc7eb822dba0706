"""Questions without a writer: every sentence of the documents asked for its rarest words, in chat.

Training on raw text teaches to continue it, not to answer; these rows put the same sentences behind a
question, and answer with the whole sentence: an answer of one word teaches the form of an answer, and little
else. They name no fact that the documents do not, and need neither a model nor a language.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pipelines.corpus.entities import Word, words
from pipelines.corpus.prose import asked_sentences
from pipelines.corpus.segments import IS_UNSPACED, segments
from pipelines.corpus.text_sample import Sample

if TYPE_CHECKING:
    from pipelines.writing.filters import ProbeLeaks
    from recovery.batches.rollouts import Dialogue
    from recovery.models.chat_model import ChatModel

FEWEST_WORDS, MOST_WORDS = 4, 60  # of a sentence
WORDS_ASKED = 3  # of a sentence
MOST_TOKENS = 64_000_000  # held in memory, in 5 bytes each; a longer training reads them again
TEXT_PER_TOKEN = 4  # characters read for a token of questions: room to ask each sentence once
ROW_PER_TOKEN = 8  # characters of a token at most, so that no fewer rows are drawn than will be read
FILL = ("Fill the gap: {}", "Which word is missing here? {}", "What belongs in place of ___? {}")
GO_ON = "How does this sentence go on? {} …"
RECALL = "What do you know about {}?"
Row = dict[str, str]
Progress = Callable[[int, int], None]


def rows(texts: Sequence[str]) -> Iterator[Row]:
    """Yield prompts, answered by a sentence: it with a rare word left out, its beginning, its rarest word."""
    total: Counter[str] = Counter()
    spread: Counter[str] = Counter()  # in how many texts a word stands
    for text in texts:
        small = [word.small for word in _words(text)]
        total.update(small)
        spread.update(set(small))
    for number, text in enumerate(texts):
        for said in asked_sentences(text):
            for row in _of_sentence(said.sentence, total, spread):
                yield {"kind": "qa", "source": str(number), **row}


def dialogue(chat_model: ChatModel, row: Mapping[str, str]) -> Dialogue:
    """Encode a row as a chat; the answer's tokens are the targets."""
    turns = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["response"]}]
    return chat_model.dialogue_ids(turns)


def characters(most: int) -> int:
    """Return how much text to read for questions of so many tokens."""
    return TEXT_PER_TOKEN * min(most, MOST_TOKENS)


def chats(
    texts: Sequence[str],
    student: ChatModel,
    leaks: ProbeLeaks,
    *,
    most: int,
    seed: int,
    show: Progress = lambda done, total: None,
) -> Iterator[Dialogue]:
    """Yield encoded questions, about `most` tokens evenly of all texts; none that gives away a probe.

    `show` is called with how many texts were asked about, and with how many there are."""
    most = min(most, MOST_TOKENS)
    drawn = Sample(most * ROW_PER_TOKEN, _characters, random.Random(f"drawn questions:{seed}"))
    for row in rows(texts):
        drawn.add(row)
        show(int(row["source"]) + 1, len(texts))
    found = list(drawn.numbered().values())
    random.Random(f"questions:{seed}").shuffle(found)
    total = 0
    for row in found:
        if total >= most:
            return
        if not leaks.of_row(row):
            encoded = dialogue(student, row)
            total += len(encoded[0])
            yield encoded


def _characters(row: Row) -> int:
    return len(row["prompt"]) + len(row["response"])


def _of_sentence(said: str, total: Counter[str], spread: Counter[str]) -> Iterator[Row]:
    inside = _words(said)
    if not FEWEST_WORDS <= len(inside) <= MOST_WORDS:
        return
    once = Counter(word.small for word in inside)
    rare = sorted(
        (word for word in inside if once[word.small] == 1 and len(word.text) > 1),
        key=lambda word: (total[word.small], spread[word.small], -len(word.text)),
    )
    left_out = rare[:WORDS_ASKED]
    asked = [FILL[place].format(_without(said, word)) for place, word in enumerate(left_out)]
    if left_out:
        beginning = max((said[: _begins(said, word)].rstrip() for word in left_out), key=len)
        asked += [GO_ON.format(beginning)] if len(_words(beginning)) >= FEWEST_WORDS else []
        asked.append(RECALL.format(left_out[0].text))
    for prompt in asked:
        yield {"prompt": prompt, "response": said}


def _words(text: str) -> list[Word]:
    """Return a text's words; in scripts without spaces, where `words` tells characters only, its segments."""
    if not IS_UNSPACED.search(text):
        return words(text)
    found = [(at, said) for at, said in segments(text) if any(map(str.isalnum, said))]
    return [Word(said, said.casefold(), False, False, False, at) for at, said in found]


def _without(said: str, word: Word) -> str:
    """Replace a word by a gap."""
    return f"{said[: _begins(said, word)]}___{said[word.at + len(word.text) :]}"


def _begins(said: str, word: Word) -> int:
    """Return where a word begins, an option's name with its dashes."""
    before = said[: word.at].rstrip("-")
    return len(before) if not before[-1:].isalnum() else word.at
