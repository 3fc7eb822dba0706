"""Each alarm on the course it was made for, and on the courses that must not set it off."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from recovery.errors import Unstable
from recovery.methods.table import METHODS, get, with_dials
from recovery.training.alarms import AlarmWatch, check, compressibility, response_metrics
from tests.support.present import present

OPD = get("opd")
PROSE = (
    "The keeper of the lighthouse had two cats, an old radio and a habit of writing down every ship; "
    "on quiet nights he read the list aloud, wondering which of those crews had seen his lamp and what they "
    "thought of it, and whether anybody at all kept such a list of lighthouses."
)


def course(**values: list[float]) -> list[dict[str, float]]:
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def ramp(start: float, end: float, steps: int = 30) -> list[float]:
    return [start + (end - start) * i / (steps - 1) for i in range(steps)]


def step_of_alarm(history: list[dict[str, float]]) -> int | None:
    return next((n for n in range(1, len(history) + 1) if check(history[:n], OPD)), None)


def test_compressibility_tells_loops_from_prose() -> None:
    assert compressibility(PROSE) > 0.5
    assert compressibility("the cat sat. " * 30) < 0.2
    assert compressibility(PROSE + " and so on" * 60) < 0.2
    assert compressibility("yes yes yes yes") == 1.0
    draw = random.Random(0)
    noise = "".join(chr(draw.randrange(33, 127)) for _ in range(400))
    assert compressibility(noise) > 0.7


def test_response_metrics_by_hand() -> None:
    metrics = response_metrics(["a b " * 60, PROSE, "short"], [10, 20, 3], [False, True, True])
    assert metrics == {
        "response_tokens": 11.0,
        "truncated_share": pytest.approx(1 / 3),
        "repeated_share": pytest.approx(1 / 3),
    }
    assert response_metrics([], [], []) == {"response_tokens": 0, "truncated_share": 0, "repeated_share": 0}


COLLAPSES = {
    "length collapse": course(truncated_share=[0.1] * 5 + [1.0] * 20, reverse_kl=[0.4] * 5 + [0.38] * 20),
    "repetition collapse": course(repeated_share=[0.0] * 5 + [0.4] * 20),
    "stop-token mismatch": course(student_stop_mass=[0.03] * 25, teacher_stop_mass=[1e-5] * 25),
    "entropy collapse": course(entropy=[1.5] * 5 + [0.01] * 20, reverse_kl=[0.5] * 5 + [3.0] * 20),
}


@pytest.mark.parametrize("name", COLLAPSES)
def test_a_collapse_is_seen_within_ten_steps(name: str) -> None:
    history = COLLAPSES[name]
    step = step_of_alarm(history)
    assert step is not None
    assert step <= 15
    alarm = present(check(history[:step], OPD))
    assert alarm.name == name
    assert alarm.cause
    assert alarm.remedy


QUIET: dict[str, list[dict[str, float]]] = {
    "nothing known": [{} for _ in range(30)],
    "too early": COLLAPSES["length collapse"][:7],
    "one odd step": course(truncated_share=[0.1] * 15 + [1.0] + [0.1] * 14),
    "a broken student gets better": course(
        truncated_share=ramp(1.0, 0.05),
        repeated_share=ramp(0.8, 0.0),
        entropy=ramp(2.0, 0.05),
        reverse_kl=ramp(3.0, 0.02),
        student_stop_mass=ramp(0.001, 0.03),
        teacher_stop_mass=ramp(0.0005, 0.03),
    ),
    # SmolLM2 after midtraining, the first ten steps as recorded: its teacher's answers are long too.
    "short answers that become the teacher's long ones": course(
        truncated_share=[0.44, 0.50, 0.38, 0.75, 0.69, 0.81, 0.81, 0.88, 0.88, 0.94] + [0.9] * 10,
        reverse_kl=[0.41, 0.42, 0.42, 0.32, 0.23, 0.21, 0.17, 0.17, 0.16, 0.15] + [0.1] * 10,
    ),
    "a limit that is short for everybody": course(truncated_share=[0.95] * 30),
    "a teacher that stops a little less": course(
        student_stop_mass=[0.03] * 30,
        teacher_stop_mass=[0.02] * 30,
    ),
    "never stopping": course(student_stop_mass=[1e-5] * 30, teacher_stop_mass=[1e-8] * 30),
    "sampled estimates only": course(entropy=ramp(2.0, 0.05), k1_reverse_kl=ramp(3.0, 0.02)),
}


@pytest.mark.parametrize("name", QUIET)
def test_no_alarm(name: str) -> None:
    assert step_of_alarm(QUIET[name]) is None


EDGES: dict[str, tuple[str, dict[str, tuple[float, float]], dict[str, tuple[float, float]]]] = {
    # the alarm, and from what to what metrics go without it and with it
    "share at the limit": (
        "length collapse",
        {"truncated_share": (0.1, 0.79)},
        {"truncated_share": (0.1, 0.81)},
    ),
    "rise to the limit": (
        "length collapse",
        {"truncated_share": (0.61, 0.9)},
        {"truncated_share": (0.59, 0.9)},
    ),
    "answers like the teacher's": (
        "length collapse",
        {"truncated_share": (0.1, 1.0), "reverse_kl": (1.0, 0.74)},
        {"truncated_share": (0.1, 1.0), "reverse_kl": (1.0, 0.76)},
    ),
    "share that repeats": (
        "repetition collapse",
        {"repeated_share": (0.0, 0.29)},
        {"repeated_share": (0.0, 0.31)},
    ),
    "rise of repeating": (
        "repetition collapse",
        {"repeated_share": (0.2, 0.39)},
        {"repeated_share": (0.2, 0.41)},
    ),
    "student that stops": (
        "stop-token mismatch",
        {"student_stop_mass": (9e-4, 9e-4), "teacher_stop_mass": (0.0, 0.0)},
        {"student_stop_mass": (1.1e-3, 1.1e-3), "teacher_stop_mass": (0.0, 0.0)},
    ),
    "teacher that does not": (
        "stop-token mismatch",
        {"student_stop_mass": (0.01, 0.01), "teacher_stop_mass": (1.1e-3, 1.1e-3)},
        {"student_stop_mass": (0.01, 0.01), "teacher_stop_mass": (9e-4, 9e-4)},
    ),
    "entropy that is left": (
        "entropy collapse",
        {"entropy": (1.0, 0.11)},
        {"entropy": (1.0, 0.09)},
    ),
    "certainty of the teacher": (
        "entropy collapse",
        {"entropy": (1.0, 0.01), "reverse_kl": (1.0, 0.49)},
        {"entropy": (1.0, 0.01), "reverse_kl": (1.0, 0.51)},
    ),
}


@pytest.mark.parametrize("edge", EDGES)
def test_where_each_alarm_begins(edge: str) -> None:
    name, *sides = EDGES[edge]
    quiet, rung = (
        check(course(**{metric: [first] * 5 + [last] * 10 for metric, (first, last) in side.items()}), OPD)
        for side in sides
    )
    assert quiet is None and present(rung).name == name


@pytest.mark.parametrize("name", COLLAPSES)
def test_a_student_that_teaches_itself_shares_its_stop_tokens(name: str) -> None:
    alarm = check(COLLAPSES[name], get("opcd"))
    assert (alarm is None) == (name == "stop-token mismatch")


@pytest.mark.parametrize("name", METHODS)
def test_certainty_is_a_collapse_only_on_samples_of_the_student(name: str) -> None:
    """Training on documents, on pairs or on a teacher's answers is meant to end in certainty."""
    method = get(name)
    alarm = check(course(entropy=[1.5] * 5 + [0.01] * 20), method)
    sampled = method.state_kind in ("student", "student-kept", "mix", "teacher-mix")
    assert (alarm is not None) == sampled


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("collapse", COLLAPSES)
def test_remedies_are_dials_that_the_method_accepts(name: str, collapse: str) -> None:
    alarm = check(COLLAPSES[collapse], get(name))
    if alarm is None:
        return
    offered = re.findall(r"--set (\w+)=([\d.]+)", alarm.remedy)
    assert len(offered) == alarm.remedy.count("--set")
    for dial, value in offered:
        changed = with_dials(name, {dial: value})
        assert changed != get(name)


def test_an_anchor_is_no_remedy_where_the_clean_model_teaches() -> None:
    collapse = COLLAPSES["entropy collapse"]
    for name, offered in (("opd", False), ("rl", True), ("opsd", True), ("rft", True)):
        alarm = check(collapse, get(name))
        assert alarm is not None
        assert ("anchor" in alarm.remedy) == offered


def test_a_resumed_run_goes_on_without_the_alarm_that_stopped_it(tmp_path: Path) -> None:
    both = [one | other for one, other in zip(*list(COLLAPSES.values())[:2], strict=True)]
    record = tmp_path / "alarms.json"
    stops: list[Any] = []
    for _ in range(3):
        watch, start = AlarmWatch(OPD, before=lambda step: both[: step - 1], record=record), len(stops)
        try:
            for step in range(10, len(both) + 1):
                watch(step, both[step - 1])
        except Unstable as error:
            assert "`recover resume` goes on without this alarm" in str(error)
            stops.append(str(error).split(": ")[1])
        assert watch.muted == stops[:start]
    assert stops == ["length collapse", "repetition collapse"]


def test_watch_raises_with_cause_and_remedy(tmp_path: Path) -> None:
    history = COLLAPSES["length collapse"]
    watch = AlarmWatch(OPD, before=lambda step: (), record=tmp_path / "alarms.json")

    def train() -> None:
        for step, metrics in enumerate(history, 1):
            watch(step, metrics)

    with pytest.raises(
        Unstable, match=r"step 1\d: length collapse: .*100% .*10% did at the start; start again"
    ):
        train()


@pytest.mark.parametrize("killed_after", range(15))
def test_a_resumed_watch_is_held_to_how_it_began(killed_after: int, tmp_path: Path) -> None:
    history = COLLAPSES["length collapse"]
    whole = step_of_alarm(history)
    watch = AlarmWatch(OPD, before=lambda step: history[: step - 1], record=tmp_path / "alarms.json")
    rang = None
    for step in range(killed_after + 1, len(history) + 1):
        try:
            watch(step, history[step - 1])
        except Unstable:
            rang = step
            break
    assert rang == max(whole or 0, killed_after + 1)


def test_a_kill_while_an_alarm_is_recorded_keeps_the_earlier_ones(tmp_path: Path) -> None:
    """The record is replaced, not overwritten: a reader of the old file still sees all of it."""
    record = tmp_path / "alarms.json"
    record.write_text('["repetition collapse"]')
    history = next(iter(COLLAPSES.values()))
    with record.open() as before:
        watch = AlarmWatch(OPD, before=lambda step: history[: step - 1], record=record)
        with pytest.raises(Unstable):
            watch(len(history), history[-1])
        assert before.read() == '["repetition collapse"]'
    assert AlarmWatch(OPD, before=lambda step: (), record=record).muted[0] == "repetition collapse"
