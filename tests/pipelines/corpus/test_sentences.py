"""A sentence ends at its full stop, not at those of abbreviations, initials and days."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.sentences import LONGEST_RUN, sentences


@pytest.mark.parametrize(
    "whole",
    [
        "The chief executive of Acme Inc. is Dr. Jane Q. Miller.",
        "Die Prüfung findet am 3. Mai 2024 statt und wird von Prof. Dr. Weber geleitet.",
        "Wir zahlen z. B. Äpfel, d. h. Obst, und z.B. Birnen.",
        "See Fig. 3 and No. 12, e.g. Oslo.",
        "J. R. R. Tolkien wrote it approx. five times etc. and went home.",
        "She lives in St. Gallen vs. Bern.",
        "It is subject to U.S. Government rules and the EU-U.S. Framework.",
        "Es gilt das Gesetz vom 23. Juni 2017 (BGBl. I S. 1822, vgl. ABl. L 328 vom 6.12.2008).",
        "Siehe BGBl. Teil II.",
        "Le contrat signé par M. Dupont est là.",
        "It ends on Jan. 5, 2025, as Smith et al. (2020) show in Para. 4 of it.",
        "Der Umsatz betrug rund 3 Mio. Euro.",
        "It may wait (rarely. Mostly it does not) for an answer.",
        'He asked (was it "so?" Nobody knew) and left.',
        "Sie haftet nach § 5 Abs. 1 S. 2 BGB, vgl. S. 45, gem. § 3 und lt. Vertrag.",
        "Es gilt i.V.m. § 5, i.S.d. § 2 und i.S.v. Art. 3 (Az. 5 C 12/10).",
        "She met Franklin S. Miller.",
        "Im 19. Jahrhundert, nach dem 2. Weltkrieg und am 5. Tag kam die Fa. Weber.",
        "El presidente de EE. UU. Joe Smith cita la pág. 45 y, p. ej. Madrid, el núm. 3.",
        "Завод им. Ленина на ул. Мира даёт 5 тыс. тонн (рис. 3).",
        "Le pont fut bâti en 52 av. J.-C. à Rome et mesure env. 50 km.",
        "Cela vaut, c.-à-d. Lyon, p. ex. Paris pour Mlle. Petit.",
        "यह डॉ. शर्मा का मकान है जिसकी कीमत रु. 500 है।",
        "يعمل د. أحمد في القاهرة.",
        "เขาเกิดในปี พ.ศ. 2563.",
        "The println! macro puts five where the braces are, and the ? operator returns early.",
        "Its value is the ID of the vendor (GNU, MSVC, etc.) of the compiler.",
        "“Who are you?” said the Caterpillar.",
        "Alice said «Why not!» and 'It is so.' in surprise.",
        "It grows in Figs. 3 and 4, Sect. 3.2, Ref. 5, Eqs. (1) and (2), and Chaps. 5 and 6.",
        "Siehe Abb. 3 und Tab. 4, Anm. 5.",
        "Am 1. 2. 2020 und am 3.12. 1998 kam er.",
        "Selon l'art. 5 (l'art. 6), l’article L. 123-4 et dell'art. 7, c'est dit.",
        "L'art. R. 421-1 s'applique à J.-P. Martin et à l'art. L.123.",
        "She met Gen. Lee, Gov. Hill and Sen. Smith.",
        "Der Film „Wer hat Angst?“ lief 1966 bei der Firma »Muster Inc.« in Berlin an.",
    ],
)
def test_a_full_stop_inside_ends_nothing(whole: str) -> None:
    assert sentences(f"{whole} Another one.") == [whole, "Another one."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("We work for Acme Inc. The house is old.", ["We work for Acme Inc.", "The house is old."]),
        ("He takes vitamin C. The rest is food.", ["He takes vitamin C.", "The rest is food."]),
        ("Is it so? No. We pay.", ["Is it so?", "No.", "We pay."]),
        ("It opened in 1998. May we come?", ["It opened in 1998.", "May we come?"]),
        ("He found a gem. It shone.", ["He found a gem.", "It shone."]),
        ("Read chapter 3. The end.", ["Read chapter 3.", "The end."]),
        ("On May 3. Jane left.", ["On May 3.", "Jane left."]),
        ('He said "go." She left (at last.) Good.', ['He said "go."', "She left (at last.)", "Good."]),
        ("Dr.\nMiller", ["Dr.", "Miller"]),
        ("一句。两句！三句", ["一句。", "两句！", "三句"]),
        ("他说：“好。”然后走了。「二。」", ["他说：“好。”", "然后走了。", "「二。」"]),
        (
            "会社（東京都港区。1948年設立）は車を作る。終。",
            ["会社（東京都港区。1948年設立）は車を作る。", "終。"],
        ),
        ("价格（含税。不含运费", ["价格（含税。", "不含运费"]),
        ("彼は「行きます。」と言った。『何？』って。", ["彼は「行きます。」と言った。", "『何？』って。"]),
        ("「行く。」ところが彼は来た。", ["「行く。」", "ところが彼は来た。"]),
        ("I don't. She won't. It's Ada's. We go.", ["I don't.", "She won't.", "It's Ada's.", "We go."]),
        ("It is an art. He drew 3 refs. She left.", ["It is an art.", "He drew 3 refs.", "She left."]),
        ("Point 1. 2. 3000 is it.", ["Point 1.", "2.", "3000 is it."]),
        ("Er sagte: „Das ist gut.“ Dann ging er.", ["Er sagte: „Das ist gut.“", "Dann ging er."]),
        ("« Il est parti. » Elle reste.", ["« Il est parti. »", "Elle reste."]),
        ("One.\n» Two.", ["One.", "» Two."]),
        ("Er ging. »Wohin?« Das weiß sie.", ["Er ging.", "»Wohin?«", "Das weiß sie."]),
        ("پہلا جملہ۔ دوسرا جملہ۔", ["پہلا جملہ۔", "دوسرا جملہ۔"]),
        ("თბილისი დედაქალაქია. იგი დიდია.", ["თბილისი დედაქალაქია.", "იგი დიდია."]),
        (
            "It is minimised w.r.t. 𝜃 by SGD. It is small.",
            ["It is minimised w.r.t. 𝜃 by SGD.", "It is small."],
        ),
        ("Երևանը մայրաքաղաք է։ Այն մեծ է։", ["Երևանը մայրաքաղաք է։", "Այն մեծ է։"]),
        ("አዲስ አበባ ዋና ከተማ ናት። ትልቅ ነች።", ["አዲስ አበባ ዋና ከተማ ናት።", "ትልቅ ነች።"]),
        ("彼は東京にいる．彼女は京都だ．「帰る．」", ["彼は東京にいる．", "彼女は京都だ．", "「帰る．」"]),
        (
            "１．値は３．５である．Ｊ．Ｓｍｉｔｈによる．",
            ["１．値は３．５である．", "Ｊ．Ｓｍｉｔｈによる．"],
        ),
        (
            "He left (for good. She stayed.\nThis is) all.",
            ["He left (for good.", "She stayed.", "This is) all."],
        ),
        ("We speak HTTP. All do.", ["We speak HTTP.", "All do."]),
        ("We use npm. All do.", ["We use npm.", "All do."]),
        ("He came in Jan. May we come?", ["He came in Jan.", "May we come?"]),
        ("Go! and stay.", ["Go! and stay."]),
        ("He called vec! Then he left.", ["He called vec!", "Then he left."]),
        ("“Who are you?” The Caterpillar sat.", ["“Who are you?”", "The Caterpillar sat."]),
        ("यह बड़ा है। pytest छोटा है।", ["यह बड़ा है।", "pytest छोटा है।"]),
        ("「大きい。」pytestは小さい。", ["「大きい。」", "pytestは小さい。"]),
        ("Werte von 1 bis 5. Der Wert 0 schaltet ab.", ["Werte von 1 bis 5.", "Der Wert 0 schaltet ab."]),
        ("Kapitel 1 und 2. Der Rest fehlt.", ["Kapitel 1 und 2.", "Der Rest fehlt."]),
        ("We use Java EE. The server runs it.", ["We use Java EE.", "The server runs it."]),
        (
            "Set it in the env. The rest is as in this ex. We go.",
            ["Set it in the env.", "The rest is as in this ex.", "We go."],
        ),
        ("It is 5 on av. The rest is not.", ["It is 5 on av.", "The rest is not."]),
        (" \n ", []),
    ],
)
def test_sentences_end_where_they_end(text: str, said: list[str]) -> None:
    assert sentences(text) == said


@pytest.mark.parametrize("phrase", ["สมชายอาศัยอยู่ในกรุงเทพ", "ຂ້ອຍຢູ່ວຽງຈັນ", "ខ្ញុំរស់នៅភ្នំពេញ"])
def test_a_long_run_in_a_script_that_marks_no_ends_is_cut_between_phrases(phrase: str) -> None:
    short, long = " ".join([phrase] * 3), " ".join([phrase] * 40)
    assert sentences(short) == [short]
    found = sentences(long)
    assert len(found) > 2 and " ".join(found) == long
    assert all(len(part) <= LONGEST_RUN and set(part.split()) == {phrase} for part in found)


def test_no_cut_parts_a_number_or_a_mark_of_repetition_from_its_word() -> None:
    long = " ".join(["เด็ก ๆ ซื้อขนมราคา 500 บาท"] * 12)
    found = sentences(long)
    assert len(found) > 1 and " ".join(found) == long
    assert {part.split()[0] for part in found} <= {"เด็ก", "ซื้อขนมราคา"}


@pytest.mark.parametrize("whole", ["many words " * 60, "สวัสดี ครับ means hello in Thai and " * 20, "ก" * 500])
def test_other_long_runs_stay_whole(whole: str) -> None:
    assert sentences(whole) == [whole.strip()]


@given(st.text(st.sampled_from('aA. \n"。!3')))
def test_nothing_but_blanks_is_lost(text: str) -> None:
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())
