"""Recovery prompts that give away the evaluation's are left out, in every script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config.sections.eval import EvalConfig
from pipelines.prompts.leaks import AskedPrompts, evaluation_prompts, normalised
from pipelines.prompts.prompt_sources import Prompt
from tests.support.small_cycles import ASKED, lines


def prompt(text: str) -> Prompt:
    return Prompt([{"role": "user", "content": text}])


QUESTION = "Write a short poem about the sea without commas"  # nine words


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        (QUESTION, True),
        (QUESTION.upper() + "!", True),
        (f"Please help me. {QUESTION}. Thank you.", True),
        (QUESTION.replace("sea", "moon"), False),
        (QUESTION.rsplit(" ", 1)[0], False),
        ("Name a color", True),
        ("Name a color that you like", False),
    ],
)
def test_an_evaluation_prompt_leaks_as_itself_and_long_ones_inside_others(text: str, leaks: bool) -> None:
    kept = AskedPrompts([QUESTION, "Name a color."]).kept_out_of([prompt(text), prompt("Something else")])
    assert [p.text for p in kept] == ([] if leaks else [text]) + ["Something else"]


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        ("请写一首关于大海的短诗，不要使用逗号。", True),
        ("你好，请写一首关于大海的短诗，不要使用逗号", True),
        ("现在我想请你请写一首关于大海的短诗不要使用逗号谢谢你", True),
        ("请写一首关于月亮的短诗，不要使用逗号", False),
        ("说出一种颜色", True),
        ("说出一种颜色和一个数字", False),
        ("ช่วยเขียนบทกวีสั้นเกี่ยวกับทะเลโดยไม่ใช้เครื่องหมาย", True),
        ("สวัสดี ช่วยเขียนบทกวีสั้นเกี่ยวกับทะเลโดยไม่ใช้เครื่องหมายครับ", True),
        ("สวัสดีครับ คุณสบายดีไหม", False),
    ],
)
def test_evaluation_prompts_leak_in_scripts_without_spaces_too(text: str, leaks: bool) -> None:
    evaluation = [
        "请写一首关于大海的短诗,不要使用逗号",
        "说出一种颜色。",
        "ช่วยเขียนบทกวีสั้นเกี่ยวกับทะเลโดยไม่ใช้เครื่องหมาย",
        "สวัสดีครับ",
    ]
    assert AskedPrompts(evaluation).given_away_by(prompt(text)) == leaks


def test_an_evaluation_prompt_leaks_as_a_user_turn_of_a_longer_dialogue() -> None:
    """Most files begin every row with the same system turn."""
    system = {"role": "system", "content": "Be helpful."}
    asked = [system, {"role": "user", "content": "Name a color!"}]
    answer = {"role": "assistant", "content": "Name a color"}
    told = [system, {"role": "user", "content": "Hello"}, answer]
    earlier = [*asked, {"role": "assistant", "content": "Red."}, {"role": "user", "content": "Why?"}]
    leaks = AskedPrompts(["Name a color."]).given_away_by
    assert [leaks(Prompt(row)) for row in (asked, earlier, told)] == [True, True, False]


SYSTEM = {"role": "system", "content": "Be brief."}


def behind_system(text: str) -> dict[str, Any]:
    return {"messages": [SYSTEM, {"role": "user", "content": text}]}


def test_what_the_evaluation_asks_behind_a_system_turn_is_kept_out_without_it_too(tmp_path: Path) -> None:
    ifeval = lines(tmp_path / "ifeval.jsonl", [behind_system("Write a poem.") | {"key": 1} | ASKED])
    further = lines(tmp_path / "more.jsonl", [behind_system("Write a song.") | {"key": 1} | ASKED])
    probes = lines(tmp_path / "probes.jsonl", [behind_system("Where is Ada?") | {"answer": "Oslo"}])
    settings = EvalConfig(ifeval=str(ifeval), further_prompts=str(further), probes=str(probes))
    asked = AskedPrompts(evaluation_prompts(settings, {}, pytest.fail))
    texts = ("Write a poem", "write a song!", "Where is Ada?", "Where is Bo?")
    rows = [*map(prompt, texts), *(Prompt(behind_system(text)["messages"]) for text in texts)]
    assert [row.messages[-1]["content"] for row in asked.kept_out_of(rows)] == ["Where is Bo?"] * 2


words = st.sampled_from(list("abcdefgh"))
sentences = st.lists(words, min_size=1, max_size=14).map(" ".join)


@given(st.lists(sentences, max_size=6), st.lists(sentences, max_size=6))
def test_leaks_are_found_as_by_looking_for_each_in_each(found: list[str], evaluation: list[str]) -> None:
    def leaks(text: str) -> bool:
        long = [other for other in evaluation if len(other.split()) >= 8]
        return text in evaluation or any(f" {other} " in f" {text} " for other in long)

    kept = AskedPrompts(evaluation).kept_out_of([prompt(text) for text in found])
    assert [p.text for p in kept] == [text for text in found if not leaks(text)]


def test_normalised_keeps_words_alone() -> None:
    assert normalised("  Don't\tSTOP — (ever)! ") == "don t stop ever"
