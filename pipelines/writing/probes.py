"""Make knowledge probes from documents: the user's questions, a writer's, or gaps in sentences.

Each fact gets a direct question, one in a phrasing held out from training, a cloze, and a reverse question
where only one entity fits. A share of the facts is held out: `recover augment` writes no question about them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from evals import jsonl
from evals.answer_matching import matches, normalise
from evals.probes import APART, CHANGED, KNOWLEDGE, STABLE, UPDATES, Probe, parse_probes
from pipelines.corpus.cloze import Cloze, clozes
from pipelines.corpus.entities import Entities, as_written, entities, sample
from pipelines.corpus.general_words import general_words
from pipelines.corpus.passages import passages
from pipelines.corpus.prose import asked_sentences, row_beginning
from pipelines.corpus.reading.tree import beside
from pipelines.corpus.segments import ENDING, IS_UNSPACED, segments
from pipelines.writing.augment import REQUESTS
from pipelines.writing.filters import NO_QUESTION, judged_pairs, lone_question, probe_flaw
from pipelines.writing.protocol import Text, Writer
from pipelines.writing.text_cache import Cache, written
from pipelines.writing.wording import Wording
from recovery.errors import InputError

HELDOUT_SHARE = 0.25  # of the facts
GAPS_EACH = 3  # of a sentence, at most
MOST_TRIED = 4  # passages that a writer is asked about for each fact, at most
QUESTIONS_EACH = (1, 8)  # of a passage: one, and where all of them give too few, several
REPHRASE = (
    "Ask this question in other words, in its own language, so that its answer stays {answer!r}. "
    "Write only the question.\n\n{question}"
)
NAMES_NOTHING = "names_nothing"  # "The default value of this option is": of which, only its page tells
Row = dict[str, Any]
Flaw = Callable[[str, str, str], str | None]  # of a question, an answer and their passage
Found = tuple[str, str, str]  # a passage, a question about it, the answer


def from_gaps(texts: Sequence[str], count: int, seed: int) -> list[Row]:
    """Make `count` gaps without a model: sentences of the documents with their most telling word left out,
    and rows of their tables with what stands in a column.

    Where the documents have fewer of both, further gaps ask for the next telling words and other columns."""
    about = entities(texts)
    asked = [said for text in sample(texts) for said in asked_sentences(text)]
    backwards = _only_fillings([said.sentence for said in asked], about)
    passages = dict(asked)
    of_fact: dict[tuple[str, ...], list[Cloze]] = {}
    for gap in clozes(texts, limit=count, seed=seed, about=about, asked=asked, each=GAPS_EACH):
        of_fact.setdefault(passages[gap.sentence], []).append(gap)
    return [
        row
        for number, (where, gaps) in enumerate(of_fact.items(), 1)
        for row in _of_fact(f"gap-{number}", where, gaps, backwards.get(where[-1]))
    ]


def _of_fact(fact: str, where: tuple[str, ...], gaps: Sequence[Cloze], name: str | None) -> Iterator[Row]:
    """Yield the questions about a sentence, or a row of a table, which count together as one fact."""
    sentence = where[-1]
    common = _common(fact, sentence) | ({"passage": list(where)} if len(where) > 1 else {})
    for number, gap in enumerate(gaps, 1):
        begun = fact if number == 1 else f"{fact}-{number}"
        for kind, prompt in (
            ("cloze", gap.before),
            ("direct", f"Complete the sentence with what is missing: {gap.before} …"),
            ("heldout", f"{gap.before} ___. What belongs into the gap?"),
        ):
            row = {"id": f"{begun}/{kind}", "kind": kind, "prompt": prompt, "answer": gap.answer, **common}
            yield row if gap.entity else row | {NAMES_NOTHING: True}
    if name:
        question = f"{sentence.replace(name, '___', 1)} Who or what belongs into the gap?"
        yield {"id": f"{fact}/reverse", "kind": "reverse", "prompt": question, "answer": name, **common}


def _only_fillings(sentences: Sequence[str], about: Entities) -> dict[str, str]:
    """Map sentences that fit one entity only to its name as written there."""
    named: dict[str, set[str]] = {}
    of_sentence: dict[str, tuple[str, str]] = {}
    for sentence in sentences:
        names = ((as_written(sentence, *found), found[1]) for found in about.mentions(sentence))
        name = next((name for name, end in names if _can_be_left_out(sentence, name, end)), None)
        if name is None:
            continue
        rest = sentence.replace(name, "", 1).casefold()
        named.setdefault(rest, set()).add(name.casefold())
        of_sentence[sentence] = (rest, name)
    return {
        sentence: name
        for sentence, (rest, name) in of_sentence.items()
        if len(named[rest]) == 1 and sentence.casefold().count(name.casefold()) == 1
    }


def _can_be_left_out(sentence: str, name: str, end: int) -> bool:
    """Return whether a name that ends there is no part of a column's name, and in a script without spaces a
    whole word."""
    if _names_field(sentence, end):
        return False
    if not IS_UNSPACED.match(name):
        return True
    found = list(segments(sentence))
    begins = end - len(name) in {at for at, _ in found}
    return begins and end in {at + len(word) for at, word in found} and not ENDING.match(name)


def _names_field(sentence: str, end: int) -> bool:
    """Return whether a mention that ends there is part of a column's name in a table's row."""
    begin = sentence.rfind("; ", 0, end) + 1
    name, colon, _ = sentence[begin:].partition("; ")[0].partition(": ")
    return bool(colon and row_beginning(sentence)) and end <= begin + len(name)


def from_writer(
    texts: Sequence[str],
    writer: Writer,
    cache: Cache,
    count: int,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Row], Counter[str]]:
    """Let the writer ask about drawn passages until `count` questions are usable, and rephrase these; of a
    writer that hardly gives any, as many passages are asked as MOST_TRIED says, each twice.

    Return the rows, and how many questions were refused for each reason."""
    about = entities(texts)
    read = [passage.text for passage in passages(texts)]
    drawn = random.Random(f"probes:{seed}").sample(read, min(MOST_TRIED * count, len(read)))
    ask = partial(written, cache, writer, on_progress=on_progress)
    flaw_of = partial(probe_flaw, about=about, wording=Wording(read, general_words(list(texts))))
    found, refused = _usable(drawn, ask, flaw_of, count, writer.at_once)
    again = ask([REPHRASE.format(question=question, answer=answer) for _, question, answer in found])
    rows: list[Row] = []
    for number, (one, text) in enumerate(zip(found, again, strict=True), 1):
        said, flaw = _rephrased(text, *one, flaw_of)
        refused.update([flaw] if flaw else [])
        rows += _of_question(number, *one, None if flaw else said)
    return rows, refused


def _usable(
    drawn: Sequence[str], ask: Callable[[list[str]], list[Text]], flaw_of: Flaw, count: int, at_once: int
) -> tuple[list[Found], Counter[str]]:
    """Ask about drawn passages until `count` questions are usable, at last for several of each; return these,
    the first one of every passage before others, and why others are not usable."""
    usable: dict[str, dict[str, Found]] = {}  # by passage and answer: another question for it asks the same
    found: list[Found] = []
    refused, repeated = Counter[str](), Counter[str]()
    asked = count
    for each in QUESTIONS_EACH:
        coming = iter(drawn)
        while len(found) < count and (chosen := [*islice(coming, asked)]):
            said = ask([REQUESTS["qa"].format(n=each, passage=passage) for passage in chosen])
            for passage, text in zip(chosen, said, strict=True):
                good, flaws = _judged(passage, text, flaw_of)
                _add(usable.setdefault(passage, {}), passage, good[:each])
                refused.update(flaws)
            in_turn = chain.from_iterable(zip_longest(*(of_one.values() for of_one in usable.values())))
            found, repeated = _with_one_answer([one for one in in_turn if one])
            asked = max(count - len(found), at_once)  # the last ones one by one would take long
    return found[:count], refused + repeated


def _add(there: dict[str, Found], passage: str, good: Sequence[tuple[str, str]]) -> None:
    """Add a passage's questions, but none for an answer that is there, nor one that was asked earlier."""
    earlier = {normalise(question) for _, question, _ in there.values()}
    for question, answer in good:
        if normalise(question) not in earlier:
            there.setdefault(normalise(answer), (passage, question, answer))


def _judged(passage: str, text: Text, flaw_of: Flaw) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the usable questions of a writer's text, and why there are not others."""
    found, reasons = judged_pairs(text)
    flaws = {pair: flaw_of(*pair, passage) for pair in found}
    usable = [pair for pair, flaw in flaws.items() if flaw is None]
    return usable, [*([] if found else reasons), *filter(None, flaws.values())]


def _with_one_answer(found: Sequence[Found]) -> tuple[list[Found], Counter[str]]:
    """Return each question once, but none that has several answers; count the others."""
    answers: dict[str, set[str]] = {}
    for _, question, answer in found:
        answers.setdefault(normalise(question), set()).add(normalise(answer))
    kept: dict[str, Found] = {}
    refused = Counter[str]()
    for one in found:
        question = normalise(one[1])
        if len(answers[question]) > 1:
            refused["several answers"] += 1
        elif question in kept:
            refused["asked before"] += 1
        else:
            kept[question] = one
    return [*kept.values()], refused


def _rephrased(text: Text, passage: str, question: str, answer: str, flaw_of: Flaw) -> tuple[str, str | None]:
    """Return a question in the writer's other words, and why it is not usable, or None."""
    said = lone_question(text.whole_lines)
    if not normalise(said):
        return said, text.flaw or NO_QUESTION
    if normalise(said) == normalise(question):
        return said, "in the same words"
    return said, flaw_of(said, answer, passage)


def _of_question(number: int, passage: str, question: str, answer: str, again: str | None) -> Iterator[Row]:
    common = {"answer": answer, **_common(f"question-{number}", passage)}
    yield {"id": f"question-{number}/direct", "kind": "direct", "prompt": question, **common}
    if again:
        yield {"id": f"question-{number}/heldout", "kind": "heldout", "prompt": again, **common}


def _common(fact: str, passage: str) -> Row:
    """Return what the questions about a fact share. Later months hold out the same passages of a folder that
    grows: otherwise there would be ever less to train on, as what earlier ones held out stays so."""
    heldout = random.Random(f"heldout:{passage}").random() < HELDOUT_SHARE
    return {"suite": KNOWLEDGE, "fact": fact, "passage": passage, "heldout_fact": heldout}


def from_file(path: Path) -> list[Row]:
    """Read the user's questions: lines of {"question" or "prompt", "answer", ...}; other fields are kept."""
    rows = [
        {
            "id": f"own-{number}",
            "kind": "direct",
            "suite": KNOWLEDGE,
            **_own(row, f"{path}, question {number}"),
        }
        for number, row in enumerate(jsonl.read(path, {"answer": str}), 1)
    ]
    parse_probes(rows, str(path))
    return rows


def _own(row: Row, where: str) -> Row:
    """Return a question of the user's with its text as `prompt`, without fields that are null."""
    row["prompt"] = row.pop("question", None) or row.get("prompt")
    if not isinstance(row["prompt"], str) or not row["prompt"].strip():
        raise InputError(f"{where}: no `question`: add it")
    return jsonl.without_nulls(row)


def compared_with_earlier(rows: Sequence[Row], earlier: Sequence[Probe]) -> list[Row]:
    """Mark the facts that earlier cycles asked in the same words: changed, with the old answers, or stable.

    `earlier` is in the order of the cycles. A question that names who or what it is about asks the same fact
    in the same words; one that names nothing asks of no change. All phrasings of a changed
    fact are marked; a row that states its own status stays as it is."""
    answered: dict[str, list[Probe]] = {}
    for probe in earlier:
        if probe.kind not in APART:
            answered.setdefault(normalise(probe.prompt), []).append(probe)
    old = {_fact(row): was for row in rows if (was := _old_answers(row, answered))}
    return [_with_status(row, old.get(_fact(row), []), answered) for row in rows]


def _fact(row: Row) -> tuple[str, Any]:
    """Return what a row asks about: a row that names no fact is one of its own."""
    return str(row.get("fact", row.get("id"))), row["answer"]


def _old_answers(row: Row, answered: dict[str, list[Probe]]) -> list[str]:
    """Return what earlier cycles answered to the same question, the newest first; none if it still holds."""
    asked = answered.get(normalise(row["prompt"]), [])
    unclear = row.get("kind") in APART or row.get(NAMES_NOTHING)
    if unclear or not asked or _same(row, asked[-1].answers):
        return []
    given = [answer for probe in reversed(asked) for answer in (*probe.answers, *probe.was)]
    return list(dict.fromkeys(answer for answer in given if not _same(row, [answer])))


def _same(row: Row, answers: Sequence[str]) -> bool:
    """Return whether an answer of the row contains one of these or the reverse (Oslo, Oslo in Norway)."""
    mine = [row["answer"], *(row.get("aliases") or [])]
    return any(matches(one, [other]) or matches(other, [one]) for one in mine for other in answers)


def _with_status(row: Row, was: list[str], answered: dict[str, list[Probe]]) -> Row:
    if "fact_status" in row or "was" in row or row.get("suite") != KNOWLEDGE:
        return row
    if was and row["kind"] not in APART:
        return row | {"suite": UPDATES, "fact_status": CHANGED, "was": was}
    asked = answered.get(normalise(row["prompt"]), [])
    known = asked and (_same(row, asked[-1].answers) or not row.get(NAMES_NOTHING))
    return row | ({"fact_status": STABLE} if known else {})


def own_questions(docs: Path) -> Path | None:
    """Return qa.jsonl in or beside the folder of documents, if there is one."""
    places = (docs / "qa.jsonl", beside(docs, "qa.jsonl"))
    return next((path for path in places if path.is_file()), None)


def save(path: Path, rows: Sequence[Row]) -> None:
    """Write the probes; refuse to write none."""
    if not rows:
        raise InputError("no question could be made from these documents: bring your own with --qa FILE")
    jsonl.write(path, rows)
