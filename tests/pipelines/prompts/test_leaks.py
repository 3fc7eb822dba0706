"""Recovery prompts that give away the evaluation's are left out, in every script."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import midtrain
from pipelines.config.jobs import MidtrainJob
from pipelines.config.sections.eval import EvalConfig
from pipelines.prompts.leaks import AskedPrompts, evaluation_prompts, normalised, say_contained
from pipelines.prompts.prompt_sources import Prompt
from pipelines.runs.workspace import Workspace
from tests.support.small_cycles import ASKED, lines
from tests.support.stages import PRESET


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


JAPAN = (  # one of IFEval's: 34 words, of which a near copy has 18 in runs of eight
    "I am planning a trip to Japan, and I would like thee to write an itinerary for my journey in a "
    "Shakespearean style. You are not allowed to use any commas in your response."
)
FIRST_17 = "I am planning a trip to Japan, and I would like thee to write an itinerary for"
SCATTERED = (
    "our journey in our Shakespearean style. You are never allowed to use many commas in one response."
)


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        (JAPAN.replace("Japan", "Norway"), True),
        (JAPAN.upper().replace("THEE", "YOU").replace("JOURNEY", "WEEK"), True),  # 11 and 15 in runs
        (f"Hello. {FIRST_17} my {SCATTERED} Thanks!", True),
        (f"Hello. {FIRST_17} {SCATTERED} Thanks!", False),
        ("Name a fish. You are not allowed to use any commas in your response.", False),
    ],
)
def test_near_copies_of_ifeval_s_prompts_leak_too(text: str, leaks: bool) -> None:
    assert AskedPrompts(["Name a color.", JAPAN]).given_away_by(prompt(text)) == leaks


def test_of_prompts_that_are_no_published_ones_near_copies_are_others() -> None:
    own = JAPAN.replace("Japan", "Peru")
    assert not AskedPrompts([own]).given_away_by(prompt(JAPAN.replace("Japan", "Norway")))


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


def test_documents_that_contain_prompts_of_the_evaluation_are_told(tmp_path: Path) -> None:
    """Probes ask for what the documents say, and short prompts stand in them by chance."""
    asked = [QUESTION, "Write a long letter to your aunt about the weather", "Name a color."]
    rows = [{"prompt": text, "key": number, **ASKED} for number, text in enumerate(asked)]
    said = "The harbour of Port Ellery was built by Ada Horn in"
    probes = lines(tmp_path / "probes.jsonl", [{"kind": "cloze", "prompt": said, "answer": "1911"}])
    settings = EvalConfig(ifeval=str(lines(tmp_path / "ifeval.jsonl", rows)), probes=str(probes))
    told: list[str] = []
    say_contained(settings, [f"{said} 1911.", f"1. Name a color.\n2. {QUESTION}!\n", QUESTION], told.append)
    say_contained(settings, [f"{said} 1911.", "Name a color."], told.append)
    say_contained(None, [QUESTION], told.append)
    assert told == [
        "  leaks        the documents contain 1 evaluation prompt, such as "
        "'write a short poem about the sea without commas', on which a score will say little: leave their "
        "files out (midtrain.reading.leave_out)"
    ]


def test_midtraining_tells_which_prompts_its_documents_contain(ws: Workspace, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "benchmark.md").write_text(f"Prompt 1: {QUESTION}.\n")
    ifeval = lines(tmp_path / "ifeval.jsonl", [{"prompt": QUESTION, "key": 1, **ASKED}])
    evaluation = EvalConfig(ifeval=str(ifeval))
    job = MidtrainJob(docs=str(docs), student="base", settings=PRESET.midtrain, evaluation=evaluation)
    said: list[str] = []
    stage: Any = SimpleNamespace(
        directory=tmp_path, step=lambda *_, **__: None, say=said.append, once=lambda *_: []
    )
    midtrain._documents(ws, job, stage)
    midtrain._documents(ws, job, stage)  # as a resumed run does
    assert [line.split(",")[0] for line in said] == [
        "  leaks        the documents contain 1 evaluation prompt"
    ]


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
