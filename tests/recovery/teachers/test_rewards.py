"""Verifiable rewards: exact answers, callables by entry point, and what a group makes of its rewards."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recovery.errors import InputError, RecoverError
from recovery.teachers.rewards import exact_answer, final_answer, group_advantages, resolve, rewards_of


@pytest.mark.parametrize(
    ("response", "answer", "earned"),
    [
        ("3 + 4 = 7, and 7 * 6 = 42.\n#### 42", "He has 7 * 6 = 42 left.\n#### 42", 1),
        ("The answer is 42.", "42", 1),
        ("The answer is 42.", "43", 0),
        ("So she pays $1,200.50 in all", "1200.5", 1),
        (r"Hence \boxed{1,200}.", "1200", 1),
        ("The answer is 3 + 4 = 7.", "7", 1),
        ("Answer: 10 apples, not 12", "10", 1),
        ("I count 5 apples.\nThe answer is unknown", "5", 1),
        ("It fell to -4 degrees", "-4", 1),
        ("It fell to 4 degrees", "-4", 0),
        ("10-4", "4", 1),
        ("7.0", "7", 1),
        ("no number at all", "7", 0),
        ("", "7", 0),
        ("The answer is Paris.", "paris", 1),
        ("I think so.\nParis!", "Paris", 1),
        ("London", "Paris", 0),
        ("", "Paris", 0),
        ("#### ", "3", 0),
        ("The answer requires adding 5 and 3, so the answer is 8.", "8", 1),
        ("The answer requires adding 5 and 3, so the answer is 8.", "5", 0),
        ("The answer follows from 5 + 3. It is 8", "8", 1),
        ("The answer is the sum of 5 and 3, which is 8.", "8", 1),
        ("The answer is not 5 but 8.", "8", 1),
        ("The answer to the question is 8. I checked it 2 times.", "8", 1),
        ("The final answer would be **8**", "8", 1),
        ("The answer comes to about $8.50.", "8.5", 1),
        ("## Answer\n\n8", "8", 1),
        ("**Answer:** 8", "8", 1),
        ("Answer 8", "8", 1),
        ("The answer is 8.\nIt took 3 steps, and this answer is final.", "8", 1),
        ("#### 8\nI hope that this answer is helpful to all 20 of you.", "8", 1),
        ("First the answer is 5. No, wait: the answer is 8.", "8", 1),
        ("My answer: Paris", "Paris", 1),
        ("The answer is −7.", "-7", 1),
        ("The answer is 7.", "−7", 0),
        (r"Hence \boxed{\frac{3}{4}}.", r"\frac{3}{4}", 1),
        (r"Hence \boxed{1{,}000}.", "1000", 1),
        ("答えは8です。", "8", 1),
        ("Ответ8", "8", 1),
        ("It takes H2O and x3", "3", 0),
        ("Paris? I hope this answer is useful. The answer is Paris", "Paris", 1),
        ("**Answer:** -8", "-8", 1),
        ("**Answer:** -8", "8", 0),
        ("## Answer\n\n.5", "0.5", 1),
        ("Final answer is -8.", "-8", 1),
        ("The answer is:\n\nFirst add 3 and 4, which is 7.\n\nTwice that is 14.", "14", 1),
        ("Das sind zusammen 3,5.", "3,5", 1),
        ("Das sind zusammen 35.", "3,5", 0),
        ("#### 3.5", "3,5", 1),
        ("#### 3,5 €", "3,50 €", 1),
        (r"Donc \boxed{-0{,}25}.", "-0,25", 1),
        ("#### 1.234,5", "1234,5", 1),
        ("#### 1,234.5", "1.234,50", 1),
        ("#### 3, 5", "3,5", 0),
        ("#### 1,200", "1,200", 1),
        ("#### 1200", "1,200", 1),
        ("#### 100000", "1,00,000", 1),
    ],
)
def test_exact_answer(response: str, answer: str, earned: int) -> None:
    assert exact_answer(response, {"prompt": "?", "answer": answer}) == earned


@pytest.mark.parametrize(
    ("response", "answer", "earned"),
    [
        ("The answer is 1/2.", "-1/2", 0),
        ("The answer is -1/2.", "-1/2", 1),
        ("**Answer:** -1/2", "-1/2", 1),
        ("The answer is -0.5", "-1/2", 1),
        ("2/4", "1/2", 1),
        ("1/0", "1/2", 0),
        ("1 2/3", "12/3", 0),
        (r"\boxed{\dfrac{3}{4}}", "3/4", 1),
        (r"\boxed{2\frac{1}{2}}", "21/2", 0),
        ("x-1", "x+1", 0),
        ("x + 1", "x+1", 1),
        (r"So $\boxed{x^2-3}$.", "x^2+3", 0),
        (r"So $\boxed{x^2+3}$.", "x^2+3", 1),
        (r"So $\boxed{x^{2} + 3}$.", "x^2+3", 1),
        (r"\boxed{x^{2+1}}", "x^2+1", 0),
        (r"The answer is \(x + 1\).", "$x+1$", 1),
        (r"\boxed{\left[2, 3\right)}", "[2,3)", 1),
        ("(2,3)", "[2,3)", 0),
        ("12", "(1,2)", 0),
        ("3, 5", "3.5 cm", 0),
        ("The answer is >.", "<", 0),
        ("The answer is <.", "<", 1),
        ("Answer: <", "<", 1),
        ("", "<", 0),
        ("The answer is ", "...", 0),
        ("The answer is ", "", 0),
        ("C", "C++", 0),
        ("`C++`", "C++", 1),
        ("C", "C#", 0),
        ("a*b", "a b", 0),
        ("n", "n!", 0),
        ("n!", "n!", 1),
        ("**Paris**", "Paris", 1),
        ('**"Paris."**', "Paris", 1),
        ("- “Paris”!", "paris", 1),
        ("The answer is: _Paris_ 🎉", "Paris", 1),
        ("It is the Seine", "the Seine", 0),
        ("The answer is the Seine.", "the Seine", 1),
        ("The answer is: the **Seine**", "The Seine", 1),
        ("The answer is (B).", "B", 1),
        ("(C)", "B", 0),
        ("Red, green and blue!", "red green and blue", 1),
        ("twenty one", "Twenty-one", 1),
        ("O’Brien", "O'Brien", 1),
        ("答案：巴黎。", "答案 巴黎", 1),
        ("मैं", "मा", 0),
        ("**Answer: Paris**", "Paris", 1),
        ("Final Answer: **Paris**", "Paris", 1),
        ("### Final Answer: **B**", "B", 1),
        ("**The answer is Paris.**", "Paris", 1),
        ('Final Answer: "Paris"', "Paris", 1),
        ("(Answer: Paris)", "Paris", 1),
        ("**Answer: (B)**", "B", 1),
        ("**Final answer: 1/2**", "1/2", 1),
        ("The answer is B).", "B", 1),
        ("(A) Paris", "A. Paris", 1),
        ("the **Seine** river", "the Seine river", 1),
        ("> Paris", "Paris", 1),
        ("Answer: Paris -", "Paris", 1),
        ("COVID-19", "COVID 19", 1),
        ("T-shirt", "T shirt", 1),
        ("Beyonce\u0301", "Beyoncé", 1),
        ("10^{-3}", "10^-3", 1),
        ("10^{3}", "10^-3", 0),
        ("(x+1)", "x+1", 1),
        ("(2x+1)*3", "2x+1*3", 0),
        ("x > 3", "x < 3", 0),
        ("(-∞, 3]", "(∞, 3]", 0),
        ("Answer:\nParis", "Paris", 1),
        ("Answer:\n\n**Paris**", "Paris", 1),
        ("The answer is:\n\nParis", "Paris", 1),
        ("The answer is:\n\nParis\n\nIt lies on the Seine.", "Paris", 1),
        ("**The answer is:**\n**Paris**", "Paris", 1),
        ("The answer is\r\n\r\nParis", "Paris", 1),
        ("The answer is:\nLondon\nParis", "Paris", 0),
        ("The answer is:", "Paris", 0),
        ("The answer is B. Paris is the capital of France.", "B", 1),
        ("The answer is Paris. It lies on the Seine.", "Paris", 1),
        ("The answer is Dr. Smith. She wrote it.", "Dr. Smith", 0),  # its sentence is not told from a title
        ("The answer is Dr. Smith.", "Dr. Smith", 1),
        ("It is not London. The answer is Paris.", "London", 0),
        ("####\nParis", "Paris", 1),
        ("Final answer is Paris.", "Paris", 1),
        ("**Final answer is:** Paris", "Paris", 1),
        ("## Final answer would be\n\nParis", "Paris", 1),
        ("Final answer is -1/2", "-1/2", 1),
        ("Final answer is -1/2", "1/2", 0),
        ("Final answer island", "island", 1),
        ("192.168.1.1", "192.168.1.10", 0),
        ("192.168.1.10", "192.168.1.10", 1),
        ("192.168.10.1", "192.168.1.1", 0),
        ("Python 3.1", "Python 3.10", 0),
        ("Python 3.10.", "Python 3.10", 1),
        ("3.1 or newer", "3.10 or newer", 0),
        ("section 2.1", "section 2.10", 0),
        ("v1.1.0", "v1.1", 0),
        ("1.20.0", "1.2.0", 0),
        ("3.50 cm", "3.5 cm", 1),
        (".50 cm", "0.5 cm", 1),
        ("x > 5.0", "x > 5", 1),
        ("$3.50 each", "$3.5 each", 1),
        ("about 5.0 cm", "about 5 cm", 1),
    ],
)
def test_answers_in_words_and_formulas(response: str, answer: str, earned: int) -> None:
    assert exact_answer(response, {"prompt": "?", "answer": answer}) == earned


@pytest.mark.parametrize(
    ("response", "answer", "earned"),
    [
        ("2, 3", "3", 0),
        ("The answer is 2, 3.", "2", 0),
        (r"\boxed{2, 3}", "3", 0),
        (r"\boxed{23}", "2, 3", 0),
        (r"\boxed{2, 3}", "2, 3", 1),
        (r"\boxed{2.3}", "2, 3", 0),
        ("The roots are 2 and 3", "3", 0),
        ("The answer is 2 or 3.", "2", 0),
        ("The answer is the point (2, 3).", "3", 0),
        ("The answer is 5-7.", "5", 0),
        ("The answer is 3:2.", "3", 0),
        (r"\boxed{\frac{1}{2}}", "0.5", 1),
        (r"\boxed{\frac12}", "0.5", 1),
        ("The answer is 1/2.", ".5", 1),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1),
        ("I get 1/2", "0.5", 1),
        (r"\boxed{1/3}", "1", 0),
        (r"\boxed{1/3}", "3", 0),
        (r"\boxed{2\frac{1}{2}}", "2.5", 1),
        (r"\boxed{-\dfrac{1}{2}}", "-0.5", 1),
        (r"\boxed{\frac{-1}{2}}", "-0.5", 1),
        (r"\boxed{x = 5}", "5", 1),
        ("The answer is x = 5.", "5", 1),
        ("#### 5", "x = 5", 1),
        ("The answer is $x = 5$.", "$x=5$", 1),
        ("#### 6", "x = 5", 0),
        (r"\boxed{3x+5}", "3", 0),
        (r"\boxed{3\sqrt{2}}", "3", 0),
        (r"\boxed{\sqrt{2}}", "2", 0),
        (r"The answer is $\sqrt{2}$.", "2", 0),
        (r"\boxed{2^{10}}", "2", 0),
        (r"\boxed{\dfrac{\pi}{2}}", "2", 0),
        (r"\boxed{x > 5}", "5", 0),
        (r"\boxed{x \ge 5}", "5", 0),
        (r"\boxed{5 + \pi}", "5", 0),
        (r"\boxed{x+5}", "5", 0),
        (r"\boxed{3 \times 10^{4}}", "30,000", 1),
        (r"\boxed{3 \times 10^{4}}", "3", 0),
        ("#### 1.5e3", "1500", 1),
        (r"\boxed{10,\!000}", "10000", 1),
        (r"\boxed{10\,000}", "10000", 1),
        ("The answer is 10\u202f000.", "10000", 1),
        ("#### 10000", "10 000", 1),
        (r"\boxed{50\%}", "50%", 1),
        ("The answer is 50 percent.", "50%", 1),
        (r"\boxed{0.5}", "50%", 0),
        (r"\boxed{90^\circ}", "90", 1),
        (r"\boxed{5\text{ cm}}", "5", 1),
        (r"\boxed{5\text{ cm}}", "5 cm", 1),
        (r"\boxed{5.0cm}", "5 cm", 1),
        (r"\boxed{5\text{ m}}", "5 cm", 0),
        ("#### 1,000 m", "1000 m", 1),
        (r"\boxed{\$18}", "18", 1),
        ("The answer is <b>8</b>.", "8", 1),
        ("The answer is *8* apples, I think.", "8", 1),
        ("The answer is (8).", "8", 1),
        ("On 3/4/2024", "2024", 1),
        (r"\boxed{y = 2x + 1}", "2x+1", 1),
        ("The answer is 2x+1.", "y = 2x + 1", 1),
        (r"\boxed{z = 2x + 1}", "y = 2x + 1", 0),
    ],
)
def test_one_number_is_read_by_its_value_and_no_other(response: str, answer: str, earned: int) -> None:
    assert exact_answer(response, {"prompt": "?", "answer": answer}) == earned


@pytest.mark.parametrize(
    ("response", "answer", "earned"),
    [
        ("#### +5", "5", 1),
        (r"\boxed{+5}", "+5", 1),
        ("The answer is +5.", "5", 1),
        ("The answer is clearly +5.", "5", 1),
        (r"\boxed{2x + 5}", "5", 0),
        ("The answer is (a) + 5.", "5", 0),
        (r"\boxed{x_1 + 5}", "5", 0),
        (r"\boxed{\pi + 5}", "5", 0),
        (r"\boxed{ab+5}", "5", 0),
        (r"\boxed{8\textrm{ cm}}", "8", 1),
        (r"\boxed{8\textit{ cm}}", "8", 1),
        (r"\boxed{\underline{8}}", "8", 1),
        (r"\fbox{The answer is 8}", "8", 1),
        (r"The answer is $\displaystyle 8$.", "8", 1),
        (r"\boxed{\displaystyle\frac{1}{2}}", "0.5", 1),
        (r"\boxed{8 \pmod{11}}", "8", 1),
        (r"\boxed{x \equiv 8 \pmod{11}}", "8", 1),
        (r"\boxed{x \equiv 8 \pmod{11}}", "11", 0),
        ("The answer is {8}.", "8", 1),
        ("The answer is clearly {8}.", "8", 1),
        (r"\boxed{\sqrt {8}}", "8", 0),
        ("The answer is x^ {8}.", "8", 0),
        ("The answer is <8>.", "8", 1),
        ("The answer is < 8.", "8", 0),
        (r"\boxed{\left(8\right)}", "8", 1),
        (r"\boxed{\approx 8}", "8", 1),
        (r"The answer is $\quad 8 \quad$.", "8", 1),
        (r"The answer is \(8\).", "8", 1),
        (r"\boxed{x^{8}}", "8", 0),
        (r"\boxed{\sqrt[3]{8}}", "8", 0),
        (r"\boxed{\log_2 8}", "8", 0),
        (r"\boxed{\log_{2} 8}", "8", 0),
        (r"\boxed{\sin 8}", "8", 0),
        (r"\boxed{x \ge 8}", "8", 0),
        (r"\boxed{\pi 8}", "8", 0),
        (r"\boxed{8 \cdot x}", "8", 0),
    ],
)
def test_signs_and_layout_leave_a_number_and_operators_make_a_formula(
    response: str, answer: str, earned: int
) -> None:
    assert exact_answer(response, {"prompt": "?", "answer": answer}) == earned


@pytest.mark.parametrize(
    ("response", "answer", "earned"),
    [
        ("In 2010, 35 students", "35", 1),
        ("In 2010, 35% of the students", "35", 1),
        ("Out of 20, 5 are left.", "5", 1),
        ("On day 3, 12 apples were eaten.", "12", 1),
        ("Of 1,200, 35 students came.", "35", 1),
        ("On May 4, 2010, 35 students came.", "35", 1),
        ("The answer is July 4, 1776.", "1776", 1),
        ("It was on July 4, 1776.", "1776", 1),
        ("He earned 40*2, or 80", "80", 1),
        (r"He earned $40 \times 2$, or 80", "80", 1),
        ("The answer is 8, and 5 of them are red.", "8", 1),
        ("The answer is 8, 5 of which are red.", "8", 1),
        ("2, 3", "3", 0),
        ("The roots are 2, 3.", "3", 0),
        ("2 and 3", "3", 0),
        ("The roots are 2 and 3 respectively", "3", 0),
        ("The answer is 2 or 3 apples.", "2", 0),
        ("The answer is 2, 3 and 5.", "2", 0),
        ("The answer is 2, 3 cm.", "2", 0),
        ("It holds 2 or 3 apples", "3", 0),
        ("The sides are 2, 3, and 5 cm", "5", 0),
        ("The sides are 2, 3 and 5 cm", "5", 0),
        ("2, 3\nSo there", "3", 0),
        ("x is -2, or 3", "3", 0),
        ("x is 1/2, or 3", "3", 0),
        ("The point is (2, 3), as shown", "3", 0),
    ],
)
def test_a_number_after_another_is_one_of_several_only_in_a_list(
    response: str, answer: str, earned: int
) -> None:
    assert exact_answer(response, {"prompt": "?", "answer": answer}) == earned


def test_an_item_without_an_answer_is_named() -> None:
    with pytest.raises(InputError, match="'answer'"):
        exact_answer("42", {"prompt": "How many?"})


@given(st.integers(-(10**9), 10**9), st.sampled_from(["{:,}", "{}", "#### {:,}", "it is {:,} cents", "{}."]))
def test_whole_numbers_survive_any_writing(number: int, writing: str) -> None:
    assert exact_answer("Let me see. " + writing.format(number), {"answer": str(number)}) == 1


@given(st.text(max_size=80))
def test_any_text_has_a_verdict(text: str) -> None:
    assert exact_answer(text, {"answer": "12"}) in (0.0, 1.0)
    assert exact_answer(text, {"answer": text or "x"}) in (0.0, 1.0)
    found = final_answer(text)
    assert found is None or found in text


def shortest(response: str, item: Mapping[str, Any]) -> float:
    return -float(len(response))


def test_rewards_are_found_by_name(tmp_path: Path) -> None:
    assert resolve("exact") is exact_answer
    assert resolve("ifeval", {"ifeval": shortest}) is shortest
    assert resolve("recovery.teachers.rewards:exact_answer") is exact_answer
    path = tmp_path / "mine.py"
    path.write_text("def polite(response, item):\n    return 'please' in response\n", encoding="utf-8")
    assert rewards_of(resolve(f"{path}:polite"), ["please", "now"], [{}, {}]).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ifeval", "unknown"),
        ("no.such.module:f", "importing"),
        ("recovery.teachers.rewards:nothing", "no callable"),
        ("missing.py:f", "no file"),
        (":f", "unknown"),
        ("recovery.teachers.rewards:", "unknown"),
    ],
)
def test_unknown_rewards_are_named(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve(name)


def test_a_module_that_breaks_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        resolve(f"{path}:f")


def test_a_reward_that_fails_is_named() -> None:
    def fails(response: str, item: Mapping[str, Any]) -> float:
        return 1 / len(response)

    with pytest.raises(RecoverError, match="fails failed on response 1"):
        rewards_of(fails, ["a", ""], [{}, {}])
    with pytest.raises(RecoverError, match="finite"):
        rewards_of(lambda response, item: math.nan, ["a"], [{}])


def test_group_advantages_by_hand() -> None:
    rewards, group = torch.tensor([1.0, 0.0, 5.0, 1.0, 5.0, 0.0]), torch.tensor([7, 7, 2, 7, 2, 7])
    assert group_advantages(rewards, group, "group").tolist() == [0.5, -0.5, 0.0, 0.5, 0.0, -0.5]
    left_out = group_advantages(rewards, group, "leave-one-out")
    torch.testing.assert_close(left_out, torch.tensor([2 / 3, -2 / 3, 0.0, 2 / 3, 0.0, -2 / 3]))
    scaled = group_advantages(rewards, group, "group-std")
    torch.testing.assert_close(scaled, torch.tensor([1.0, -1.0, 0.0, 1.0, 0.0, -1.0]), atol=1e-3, rtol=0)
    assert group_advantages(rewards, group, "none").tolist() == rewards.tolist()
    with pytest.raises(InputError, match="reward_baseline"):
        group_advantages(rewards, group, "z-score")


ROWS = st.tuples(st.integers(0, 4), st.floats(-5, 5, allow_subnormal=False))


@given(st.lists(ROWS, min_size=1, max_size=30), st.sampled_from(["group", "leave-one-out", "group-std"]))
def test_a_groups_advantages_add_up_to_nothing(rows: list[tuple[int, float]], baseline: str) -> None:
    group, rewards = torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    advantages = group_advantages(rewards.double(), group, baseline)
    for member in group.unique():
        assert float(advantages[group == member].sum()) == pytest.approx(0, abs=1e-6)


def test_an_empty_batch_is_fine() -> None:
    assert group_advantages(torch.zeros(0), torch.zeros(0, dtype=torch.long), "group").shape == (0,)
    assert rewards_of(exact_answer, [], []).shape == (0,)


REPEATED = [
    "*",
    "\n",
    "answer ",
    "#",
    "answer is ",
    "about ",
    "1,",
    "-",
    "\\boxed{",
    "**a *",
    '"a ',
    "x{",
    "(a ",
    "1 ",
    "1/",
    "1",
    "1,111,",
    r"\text{",
    r"\frac{1",
    "<b",
    "1 and ",
]


@pytest.mark.parametrize("unit", REPEATED)
def test_long_repetitions_are_read_in_linear_time(unit: str) -> None:
    begun = time.process_time()
    for answer in ("12", "x+1"):
        exact_answer(unit * (60_000 // len(unit)), {"answer": answer})
    assert time.process_time() - begun < 2
