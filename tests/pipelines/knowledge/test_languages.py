"""Probes and tripwire gaps from text in scripts without capitals or without spaces."""

from __future__ import annotations

from pathlib import Path
from unicodedata import normalize

import pytest

from evals.probes import Probe
from pipelines.corpus.cloze import clozes
from pipelines.corpus.entities import entities
from pipelines.corpus.prose import LONGEST, prose_sentences
from pipelines.corpus.segments import segments, space_behind
from pipelines.knowledge import held_out
from pipelines.knowledge.answer_probability import Question, _of_probes, read, unanswered, write
from pipelines.knowledge.tripwire import new_gaps
from pipelines.writing import gap_questions
from pipelines.writing.probes import from_gaps
from recovery.models.chat_model import ChatModel
from recovery.teachers import likelihood
from recovery.teachers.likelihood import reader
from tests.support import tiny

NAMES = {
    "chinese": ["欧阳海青", "司徒明月", "诸葛长风"],
    "japanese": ["長谷川美咲", "小笠原健太", "五十嵐千春"],
    "arabic": ["زولبيديم", "كردافيل", "مرنوتال"],
    "thai": ["สมชายเดชา", "วิไลพร", "กมลชนก"],
}
SENTENCES = {
    "chinese": [
        ("{}住在", "奥斯陆 巴黎 北京"),
        ("{}喜欢弹奏", "竖琴 钢琴 吉他"),
        ("{}每天早上喝", "咖啡 牛奶 绿茶"),
        ("{}在学校学习", "物理 历史 音乐"),
    ],
    "japanese": [
        ("{}は毎日", "紅茶 珈琲 牛乳"),
        ("{}の好きな楽器は", "竪琴 太鼓 三味線"),
        ("{}が住む町は", "京都 大阪 札幌"),
        ("{}が学んだのは", "物理 歴史 音楽"),
    ],
    "arabic": [
        ("يوصف دواء {} لعلاج", "الصداع الحساسية الأرق"),
        ("يباع دواء {} في", "المغرب الأردن تونس"),
        ("اكتشف دواء {} في مدينة", "القاهرة بيروت دمشق"),
        ("يؤخذ دواء {} مع", "الحليب الماء العصير"),
    ],
    "thai": [
        ("{}อาศัยอยู่ใน", "กรุงเทพ เชียงใหม่ ภูเก็ต"),
        ("{}ชอบเล่น", "กีตาร์ เปียโน ขลุ่ย"),
        ("{}ดื่มทุกเช้า", "กาแฟ นม ชา"),
        ("{}เรียนวิชา", "ฟิสิกส์ ประวัติศาสตร์ ดนตรี"),
    ],
}
END = {"chinese": "。", "japanese": "。", "arabic": ".", "thai": "\n"}


@pytest.mark.parametrize(
    ("text", "space"),
    [("她住在", ""), ("地址是：", ""), ("她住在 ", ""), ("She lives in", " "), ("版本 v2", " ")],
)
def test_an_answer_stands_behind_a_space_where_its_script_has_one(text: str, space: str) -> None:
    assert space_behind(text) == space


def texts(language: str) -> list[str]:
    """A document about each name: every fact once."""
    return [
        "".join(
            f"{opening.format(name)}{' ' if language == 'arabic' else ''}{values.split()[n]}{END[language]} "
            for opening, values in SENTENCES[language]
        )
        for n, name in enumerate(NAMES[language])
    ]


@pytest.mark.parametrize("language", SENTENCES)
def test_the_answer_to_a_gap_is_scored_as_it_stands_in_the_document(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoded, what both measurements score is the document's own text."""
    student, scored = tiny.chat_model(), []
    teacher = reader(student)
    split = likelihood.gap_ids

    def seen(chat_model: ChatModel, context: str, continuation: str) -> likelihood.Pair:
        scored.append(context + continuation)
        return split(chat_model, context, continuation)

    monkeypatch.setattr(likelihood, "gap_ids", seen)
    new_gaps(student, teacher, texts(language), seed=0)
    watched = len(scored)
    unanswered(student, texts(language), [], seed=0)
    assert watched and len(scored) == 2 * watched
    assert all(any(one in text for text in texts(language)) for one in scored)


@pytest.mark.parametrize("said", ["Das Café öffnet um neun.", "王明在海边的工厂里建造大船。"])
def test_a_passage_is_found_however_its_lines_and_accents_are_written(said: str) -> None:
    apart = normalize("NFD", f"{said[:7]}\n{said[7:]}")
    probe = Probe("1", "knowledge", "direct", "When?", ("neun",), "1", 1, passages=(apart,))
    assert [one.prompt for one in _of_probes([said], [probe])] == ["When?"]
    assert not _of_probes(["Something else."], [probe])


def test_questions_are_read_as_they_were_written(tmp_path: Path) -> None:
    asked = [
        Question("他住在", "奥斯陆", in_chat=False, between=""),
        Question("Where?", "Oslo", in_chat=True),
    ]
    write(tmp_path / "q.jsonl", asked)
    assert read(tmp_path / "q.jsonl") == asked


@pytest.mark.parametrize("language", SENTENCES)
def test_gaps_ask_for_facts_in_every_script(language: str) -> None:
    gaps = clozes(texts(language), limit=20)
    values = " ".join(values for _, values in SENTENCES[language]).split()
    assert len(gaps) >= 5
    right = [gap for gap in gaps if any(gap.answer in value or value in gap.answer for value in values)]
    assert len(right) >= 0.7 * len(gaps), [(gap.before, gap.answer) for gap in gaps]
    for gap in gaps:
        assert f"{gap.before}{gap.answer}".replace(" ", "") in gap.sentence.replace(" ", "")


@pytest.mark.parametrize("language", SENTENCES)
def test_probes_are_found_in_every_script(language: str) -> None:
    rows = from_gaps(texts(language), 20, seed=1)
    assert {row["kind"] for row in rows} >= {"cloze", "direct", "heldout"}


def test_a_long_thai_paragraph_is_asked_about_and_held_out_of_in_parts() -> None:
    said = [
        f"{opening.format(name)}{value}"
        for name in NAMES["thai"]
        for opening, values in SENTENCES["thai"]
        for value in values.split()
    ]
    paragraph = " ".join(said)
    parts = prose_sentences(paragraph)
    assert len(paragraph) > LONGEST > max(map(len, parts)) and " ".join(parts) == paragraph
    asked = {row["response"] for row in gap_questions.rows([paragraph])}
    assert len(asked) >= 4 and asked <= set(parts)
    assert all(held_out._fits(part, paragraph) for part in parts)


@pytest.mark.parametrize("language", SENTENCES)
def test_a_question_about_a_name_mentions_it(language: str) -> None:
    known = entities(texts(language))
    for name in NAMES[language]:
        assert known.within(f"{name} ؟" if language == "arabic" else f"{name}?")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("量子计算机使用量子比特。", ["量子", "计算机"]),
        ("東京に住んでいる。", ["東京", "に"]),
        ("สมชายอาศัยอยู่ในกรุงเทพ", ["กรุงเทพ"]),
        ("plain words, here.", ["plain", "words", "here."]),
        ("X-200は新しい", ["X-200", "は"]),
    ],
)
def test_segments_are_words_with_their_places(text: str, words: list[str]) -> None:
    found = list(segments(text))
    assert all(text[at:].startswith(word) for at, word in found)
    assert set(words) <= {word for _, word in found}
