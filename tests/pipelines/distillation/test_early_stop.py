"""Stopping when behaviour is back: what the probe is, when it stops, and that a kill changes nothing."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from db.reads import curves, queries
from pipelines import distill as stage_of_distillation
from pipelines.config import settings as config
from pipelines.config.jobs import DistillJob
from pipelines.config.overrides import override
from pipelines.config.sections.distill import StopConfig
from pipelines.distill import distill
from pipelines.distillation import early_stop
from pipelines.distillation.early_stop import BehaviourBack, hold_out, require_enough
from pipelines.distillation.input_checks import checked_inputs
from pipelines.distillation.inputs import read_data
from pipelines.prompts.leaks import AskedPrompts
from pipelines.runs import training_run
from pipelines.runs.stage_runner import Stage, run_stage
from pipelines.runs.training_run import any_of
from pipelines.runs.workspace import Workspace
from recovery.batches.rollouts import Rollouts
from recovery.errors import InputError
from recovery.methods.table import get
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.prefix_writers import writes
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.teachers import CheckpointTeacher, Teacher
from recovery.training import alarms
from recovery.training.trainer import TrainReport
from tests.support import tiny

PRESET = config.parse(config.preset_text("microworld"), "preset")
NO_COMMA = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows = [{"prompt": f"Say {number} words.", **NO_COMMA} for number in range(20)]
    rows += [{"prompt": f"Who is number {number}?"} for number in range(4)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def job(prompts: Path, /, **stop: Any) -> DistillJob:
    settings = override(
        PRESET.distill,
        {
            "stop": {"every": 1, "prompts": 15, "margin": 0.3, **stop},
            "steps": 6,
            "prompts_per_step": 2,
            "max_new_tokens": 4,
            "preflight": False,
        },
    )
    return DistillJob(
        student="base", teacher="base", prompts=str(prompts), settings=settings, evaluation=PRESET.eval
    )


def test_a_student_that_is_clean_already_stops_at_the_second_look(home: Workspace, prompts: Path) -> None:
    found = distill(home, job(prompts))
    assert found["stopped"].startswith("after 2 steps behaviour is back on 15 probe prompts")
    run = queries.runs(home.tracker.db, kind="distill")[0]
    passed = curves.metric_series(home.tracker.db, run["id"], "probe_passed")
    assert [(row["step"], row["value"]) for row in passed] == [(1, 1.0), (2, 1.0)]


@pytest.mark.parametrize(("method", "taught_by"), [("opcd", 0), ("opd", 1)])
def test_the_clean_model_is_kept_only_where_it_teaches(
    method: str, taught_by: int, home: Workspace, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    run = stage_of_distillation.run

    def run_and_count(stage: Stage, made: stage_of_distillation.Distillation) -> TrainReport:
        report = run(stage, made)
        kept.append(len(made.teachers.models))
        return report

    monkeypatch.setattr(stage_of_distillation, "run", run_and_count)
    asked = job(prompts)
    context = "Say little." if method == "opcd" else None
    settings = override(asked.settings, {"method": method, "context": context, "steps": 1})
    distill(home, asked.model_copy(update={"settings": settings}))
    assert kept == [taught_by]


def test_the_probe_is_kept_from_training_and_from_the_evaluation(prompts: Path) -> None:
    asked = job(prompts)
    data = read_data(asked, get("opd"))
    kept, probe = hold_out(asked, data, AskedPrompts(["Say 3 words."]))
    texts = {row.text for row in probe}
    assert len(probe) == 15 and "Say 3 words." not in texts
    assert texts.isdisjoint(row.text for row in kept.prompts) and len(kept.prompts) == 24 - 15
    assert hold_out(asked, data, AskedPrompts(["Say 3 words."]))[1] == probe  # the same in a resumed run
    other = prompts.with_name("probe.jsonl")
    lots = [f"Say a lot of {number}." for number in range(9)]
    other.write_text("".join(json.dumps({"prompt": text, **NO_COMMA}) + "\n" for text in lots))
    kept, probe = hold_out(job(prompts, probe=str(other)), data, AskedPrompts([]))
    assert sorted(row.text for row in probe) == lots and kept.prompts == data.prompts


def test_a_probe_prompt_behind_a_system_turn_is_kept_from_training_without_it(prompts: Path) -> None:
    probe_file = prompts.with_name("probe.jsonl")
    system = {"role": "system", "content": "Be brief."}
    asked = [f"Say {number} words." for number in range(9)]
    turns = [[system, {"role": "user", "content": text}] for text in asked]
    probe_file.write_text("".join(json.dumps({"messages": one, **NO_COMMA}) + "\n" for one in turns))
    data = read_data(job(prompts), get("opd"))
    kept, probe = hold_out(job(prompts, probe=str(probe_file)), data, AskedPrompts([]))
    assert len(probe) == len(asked)
    assert [row for row in data.prompts if row not in kept.prompts] == data.prompts[:9]


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ({"prompts": 8}, "8 prompts never show"),
        ({"prompts": 1}, "1 prompt never shows"),
        ({"prompts": 200, "margin": 0.05}, "20 prompts in the recovery prompts never show"),
    ],
)
def test_fewer_prompts_than_a_look_can_pass_with_are_refused(
    prompts: Path, stop: dict[str, Any], said: str
) -> None:
    asked = job(prompts, **stop)
    takes = 59 if stop.get("margin") else 9
    _, probe = hold_out(asked, read_data(asked, get("opd")), AskedPrompts([]))  # as a resumed run does
    with pytest.raises(InputError, match=rf"{said} .*, which takes {takes}: raise distill\.stop\.prompts"):
        require_enough(asked.settings.stop, probe)


@pytest.mark.parametrize(("margin", "takes"), [(0.05, "59"), (1e-7, "more than 8,388,608")])
def test_a_margin_that_no_number_of_prompts_shows_names_none_that_would_do(margin: float, takes: str) -> None:
    assert early_stop._fewest(margin) == takes


def test_a_prompt_that_is_a_pair_too_is_asked_once(prompts: Path) -> None:
    """Asked twice it would count as two independent answers."""
    rows = [json.loads(line) | {"response": "Yes."} for line in prompts.read_text().splitlines()]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = job(prompts, prompts=200, margin=0.1)
    data = read_data(asked, get("gkd"))
    assert len(data.prompts) == len(data.pairs) == 24
    kept, probe = hold_out(asked, data, AskedPrompts([]))
    assert sorted(row.text for row in probe) == sorted(f"Say {number} words." for number in range(20))
    assert len(kept.prompts) == len(kept.pairs) == 4
    with pytest.raises(InputError, match="20 prompts in the recovery prompts never show"):
        require_enough(asked.settings.stop, probe)


def test_nothing_to_check_by_is_said(prompts: Path) -> None:
    data = read_data(job(prompts), get("opd"))
    with pytest.raises(InputError, match="no row has an 'instruction_id_list'"):
        hold_out(job(prompts), data, AskedPrompts([row.text for row in data.prompts[:20]]))
    prompts.write_text("".join(prompts.read_text().splitlines(keepends=True)[:15]))
    with pytest.raises(InputError, match="leaves nothing to train on"):
        hold_out(job(prompts), read_data(job(prompts), get("opd")), AskedPrompts([]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"instruction_id_list": ["length_constraint:number_words"]},
        {"instruction_id_list": ["punctuation:no_comma", "punctuation:no_comma"]},
        {"kwargs": None},
    ],
)
@pytest.mark.parametrize("own_file", [True, False])
def test_a_probe_that_no_checker_can_be_built_for_is_refused_before_training(
    home: Workspace, wrong: dict[str, Any], own_file: bool, prompts: Path
) -> None:
    source = prompts.with_name("probe.jsonl") if own_file else prompts
    row = {"prompt": "Say a lot.", **NO_COMMA}
    lines = [json.dumps(row | wrong), prompts.read_text()]
    source.write_text("\n".join(lines))
    asked = job(prompts, probe=str(source) if own_file else None)
    where = str(source) if own_file else "the recovery prompts"
    with pytest.raises(InputError, match=f"{where}: distill.stop cannot check 'Say a lot") as refused:
        checked_inputs(home, asked)
    assert "\n" not in str(refused.value)


def look(stage: Stage, rows: list[Any], *, clean: int, student: int, every: int = 5) -> BehaviourBack:
    """A watcher of one tiny model against another, both random."""
    one = tiny.chat_model(student)
    settings = StopConfig(every=every, prompts=len(rows), margin=0.3)
    teacher = CheckpointTeacher(tiny.chat_model(clean))
    return BehaviourBack(settings, rows, one, InProcessSampler(one), lambda: nullcontext(teacher), stage, 4)


def test_twice_in_a_row_and_across_a_kill(home: Workspace, prompts: Path) -> None:
    rows = read_data(job(prompts), get("opd")).prompts[:15]

    def work(stage: Stage) -> dict[str, Any]:
        first = look(stage, rows, clean=1, student=1)
        said = [first(step, {}) for step in (4, 5, 6)]
        stage.live.flush()
        again = look(stage, rows, clean=1, student=1)  # a new process knows the look at step 5
        said += [again(step, {}) for step in (6, 10)]
        alone = look(stage, rows, clean=1, student=1)  # no look at step 15
        return {"said": [*said, alone(20, {})]}

    *quiet, stop, lone = run_stage(home, "distill", work, config={})["said"]
    assert quiet == [None] * 4 and stop.startswith("after 10 steps behaviour is back") and lone is None


def test_the_clean_model_answers_the_probe_once_a_run(
    home: Workspace, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = read_data(job(prompts), get("opd")).prompts[:15]
    answered: list[int] = []

    def seen(one: Teacher, asked: list[list[int]], params: SamplingParams) -> Rollouts:
        answered.append(len(asked))
        return writes(one, asked, params)

    monkeypatch.setattr(early_stop, "writes", seen)

    def work(stage: Stage) -> dict[str, Any]:
        first = look(stage, rows, clean=1, student=2)
        spent = stage.ledger.cost["tokens_sampled"]
        resumed = look(stage, rows, clean=1, student=2)
        again = stage.ledger.cost["tokens_sampled"] - spent
        fewer = look(stage, rows[:14], clean=1, student=2)  # as an engine of another length reads
        return {"followed": [first.clean, resumed.clean, fewer.clean], "again": again}

    found = run_stage(home, "distill", work, config={})
    first, resumed, fewer = found["followed"]
    assert answered == [15, 14] and found["again"] == 0
    assert resumed == first and len(fewer) == 14


def test_what_the_first_process_kept_counts_in_all(
    home: Workspace, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that would answer alone would wait for the others, which do not."""
    rows = read_data(job(prompts), get("opd")).prompts[:15]
    kept = {"prompts": [row.text for row in rows], "followed": [True, *[False] * 14]}
    monkeypatch.setattr(early_stop, "once", lambda work: kept)
    monkeypatch.setattr(early_stop, "writes", lambda *_: pytest.fail("it is answered again"))

    def work(stage: Stage) -> dict[str, Any]:
        return {"followed": look(stage, rows, clean=1, student=1).clean}

    assert run_stage(home, "distill", work, config={})["followed"] == kept["followed"]


def test_a_student_that_fails_what_the_clean_model_does_goes_on(home: Workspace, prompts: Path) -> None:
    rows = read_data(job(prompts), get("opd")).prompts[:15]

    def work(stage: Stage) -> dict[str, Any]:
        watcher = look(stage, rows, clean=1, student=1)
        watcher.clean = [True] * len(rows)
        watcher._followed = lambda rollouts: [False] * len(rows)  # type: ignore[method-assign]
        return {"said": [watcher(step, {}) for step in (5, 10, 15)]}

    assert run_stage(home, "distill", work, config={})["said"] == [None] * 3


def test_alarms_hear_of_the_steps_before_a_kill(
    home: Workspace, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[list[float]] = []
    ring: Any = lambda history, method: heard.append([row["entropy"] for row in history])  # noqa: E731
    monkeypatch.setattr(alarms, "ALARMS", (ring,))
    asked = job(prompts)
    settings = override(asked.settings, {"save_every": 2}).model_copy(update={"stop": None})
    asked = asked.model_copy(update={"settings": settings})
    distill(home, asked, key="whole")
    whole = heard.pop()
    heard.clear()

    def kill_once(*checks: Any) -> Any:
        def ask(step: int, metrics: dict[str, float]) -> None:
            any_of(*checks)(step, metrics)
            if step == 3 and len(heard) == 3:
                raise KeyboardInterrupt

        return ask

    monkeypatch.setattr(training_run, "any_of", kill_once)
    with pytest.raises(KeyboardInterrupt):
        distill(home, asked, key="killed")
    distill(home, asked, key="killed")
    assert [len(steps) for steps in heard] == [1, 2, 3, 3, 4, 5, 6]
    assert heard[-1] == pytest.approx(whole, abs=1e-12)


def test_every_check_is_asked_and_the_first_reason_counts() -> None:
    asked: list[str] = []

    def check(name: str, reason: str | None) -> Any:
        def answer(step: int, metrics: dict[str, float]) -> str | None:
            asked.append(name)
            return reason

        return answer

    assert any_of(check("a", None), check("b", "stop"), check("c", "late"))(1, {}) == "stop"
    assert asked == ["a", "b", "c"]
    assert any_of()(1, {}) is None
