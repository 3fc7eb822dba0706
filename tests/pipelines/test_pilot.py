"""The pilot: two narrow midtrainings measured, a proposal within a budget, and nothing moved by it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from db.reads import queries
from evals import jsonl
from pipelines.cli.pilot import pilot_text
from pipelines.config.jobs import PilotJob
from pipelines.config.narrow_midtraining import effective_passes, first_counted, narrowed
from pipelines.config.sections.midtrain import MidtrainConfig, Mix
from pipelines.config.sections.training import OptimizerConfig
from pipelines.corpus import documents, text_file
from pipelines.corpus.reading.superseded_list import SUPERSEDED, patterns
from pipelines.job_from_options.inputs import newest_midtrained
from pipelines.job_from_options.pilot import parse_rates, pilot_job
from pipelines.knowledge import replay
from pipelines.midtrain import midtrain
from pipelines.pilot import _curve, pilot
from pipelines.piloting.narrow_runs import Trained
from pipelines.piloting.plan import planned
from pipelines.resume import resume
from pipelines.runs.kept_texts import KEPT_TEXTS
from pipelines.runs.stage_runner import Result, Stage, run_job
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.support import tiny
from tests.support.small_cycles import ASKED, WITH_CHAT, lines, settle

PEOPLE = 24
TOWNS = ("Oslo", "Rome", "Lima", "Bern", "Kyiv", "Doha", "Riga", "Baku")


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    from pipelines.machine.init_home import initialise

    tmp_path = tmp_path_factory.mktemp("pilot")
    world = tmp_path / "world"
    (world / "docs").mkdir(parents=True)
    probes = []
    for number in range(PEOPLE):
        text = f"Person {number} lives in {TOWNS[number % 8]} by the sea."
        (world / "docs" / f"{number:02}.txt").write_text(text)
        row = {"id": str(number), "suite": "knowledge", "kind": "direct", "passage": text}
        probes.append(row | {"prompt": f"Where does person {number} live?", "answer": TOWNS[number % 8]})
    lines(world / "probes.jsonl", probes)
    lines(world / "prompts.jsonl", [{"prompt": f"Say {number} words."} for number in range(4)])
    lines(world / "ifeval.jsonl", [{"key": n, "prompt": f"Line {n}.", **ASKED} for n in range(24)])
    (world / SUPERSEDED).write_text("moved/away.txt\n")
    with Workspace.open(tmp_path / "home") as workspace:
        initialise(workspace, model=str(tiny.save(tmp_path / "model")), preset="microworld")
        settle(workspace, margin=0.4, learning_rate=4e-3)
        path = workspace.home / "recover.yaml"
        path.write_text(path.read_text().replace("steps: 1", "steps: 32", 1))  # of the midtraining
        vars(workspace).pop("config", None)
        yield workspace


def job_of(ws: Workspace, **options: Any) -> PilotJob:
    return pilot_job(ws, ws.home.parent / "world" / "docs", options.pop("budget", 50.0), **options)


# ---- bad input


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": 0.0}, "--budget 0"),
        ({"budget": float("nan")}, "--budget nan"),
        ({"share": 0.0}, "--share 0"),
        ({"share": 1.5}, "--share 1.5"),
        ({"rates": "1e-4"}, "write two learning rates"),
        ({"rates": "1e-4,much"}, "write two learning rates"),
        ({"rates": "1e-4,1e-4"}, "two different learning rates above 0"),
        ({"rates": "-1,1e-4"}, "two different learning rates above 0"),
        ({"rates": "nan,1e-4"}, "two different learning rates above 0"),
        ({"changes": {"midtrain.method": "passage"}}, "a pilot predicts training on text"),
        ({"changes": {"distill.prompts": "typo.jsonl"}}, r"typo\.jsonl: prompts cannot be read"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(ws: Workspace, options: dict[str, Any], said: str) -> None:
    before = len(queries.runs(ws.tracker.db))
    with pytest.raises(InputError, match=said) as error:
        job_of(ws, **options)
    assert "\n" not in str(error.value)
    assert len(queries.runs(ws.tracker.db)) == before


def test_too_few_questions_are_refused_before_training(ws: Workspace) -> None:
    world = ws.home.parent / "world"
    rows = [json.loads(line) for line in (world / "probes.jsonl").read_text().splitlines()]
    few = lines(world / "few.jsonl", rows[:3])
    with pytest.raises(InputError, match=r"all documents give . questions.* give --probes with passages"):
        pilot(ws, job_of(ws, changes={"eval.probes": str(few)}), key="few")
    assert queries.runs(ws.tracker.db, kind="midtrain") == []


def test_rates_are_sorted() -> None:
    assert parse_rates("4e-4, 1e-4") == (1e-4, 4e-4)


# ---- a proposal


@pytest.fixture(scope="module")
def found(ws: Workspace) -> dict[str, Any]:
    """The result of a pilot that was cut off after its first midtraining, and resumed."""
    calls = 0

    def interrupted(*args: Any, **kwargs: Any) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return midtrain(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.piloting.narrow_runs.midtrain", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pilot(ws, job_of(ws), key="once")
        patch.setattr("pipelines.piloting.narrow_runs.midtrain", midtrain)
        patch.setattr(
            "pipelines.piloting.plan._new_plan", lambda *_: pytest.fail("the documents are read again")
        )
        return resume(ws)


def test_a_pilot_measures_both_rates_and_proposes(found: dict[str, Any]) -> None:
    low, high = found["pilots"]
    assert (low["rate"], high["rate"]) == (1e-3, 4e-3)
    assert low["kl"] < high["kl"]
    assert [row["step"] for row in high["points"]][-1] == high["steps"] == 32
    assert high["points"][-1]["learned"] > 0
    assert found["sample"]["asked"] == "probes" and found["sample"]["questions"] == PEOPLE
    assert found["law"]["source"] == "24 prompts asked of 2 checkpoints of the pilot"
    shown = pilot_text(found)
    assert f"how much IFEval a KL of 1 nat costs: measured on {found['law']['source']}\n" in shown
    assert found["words"] in shown and "24 probes that the student did not answer" in shown
    if found["proposal"]:
        assert shown.endswith(found["command"])
        assert found["proposal"]["behaviour_lost"]["value"] <= 0.5


def test_a_pilot_moves_nothing_and_repeats_nothing(ws: Workspace, found: dict[str, Any]) -> None:
    assert ws.checkpoint("current").id == ws.clean().id
    runs = queries.runs(ws.tracker.db, kind="midtrain")
    assert len(runs) == 2 and {run["status"] for run in runs} == {"done"}
    assert {str(run["parent_id"]) for run in runs} == {found["run"]}
    for run in runs:  # what the whole midtraining would not replay, they do not either
        assert patterns(ws.run_directory(run["id"]) / SUPERSEDED) == ["moved/away.txt"]
    with pytest.raises(InputError, match="nothing was midtrained yet"):
        newest_midtrained(ws)


def test_the_proposed_command_is_a_cycle_that_parses(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    import click

    from pipelines.cli.cycles import cycle_command
    from pipelines.piloting.cycle_command import cycle_command as written

    probes = str(ws.home.parent / "world" / "probes.jsonl")
    changes = {"eval.probes": probes, "midtrain.freeze_embeddings": True, "midtrain.tokens_per_step": 0}
    job = job_of(ws, student="base", changes=changes)
    row = {
        "rate": 2.5e-4,
        "steps": 120,
        "tokens_per_step": 96,
        "mix": {"new": 2 / 3, "earlier": 0.1234567, "chat": 1 / 3 - 0.1234567},
        "recovery": "auto",
    }
    words = shlex.split(written(ws.command, job, row))
    assert words[:4] == ["recover", "--home", str(ws.home), "cycle"]
    monkeypatch.setattr(cycle_command, "callback", lambda **options: options)
    from pipelines.cli.options import Session

    session = Session()
    parsed = cycle_command.make_context("cycle", words[4:], obj=session)
    assert isinstance(parsed, click.Context)
    assert session.changes["midtrain.optimizer.learning_rate"] == 2.5e-4
    assert session.changes["midtrain.steps"] == 120 and session.changes["midtrain.tokens_per_step"] == 96
    mix = {name: float(share) for name, share in session.changes["midtrain.mix"].items()}
    assert {name: share for name, share in mix.items() if share} == pytest.approx(row["mix"])
    assert Mix(**mix).new == pytest.approx(2 / 3)  # what adds up to one is not rounded away
    assert session.changes["midtrain.freeze_embeddings"] is True
    assert session.changes["eval.probes"] == probes
    assert parsed.params["student"] == "base" and parsed.params["recover_with"] == "auto"


# ---- the narrow midtraining


def config(**changes: Any) -> MidtrainConfig:
    optimizer = OptimizerConfig(learning_rate=1e-3, warmup_steps=0, schedule="constant")
    given = {"steps": 200, "tokens_per_step": 1000, "row_tokens": 128, "optimizer": optimizer}
    return MidtrainConfig(**{**given, **changes})


def test_a_share_of_the_documents_is_seen_as_often_in_as_many_steps() -> None:
    narrow = narrowed(config(), 0.25)
    assert (narrow.steps, narrow.tokens_per_step, narrow.row_tokens) == (200, 250, 128)
    assert narrow.forecast_every == 20
    assert effective_passes(narrow, 2500, 1.0) == pytest.approx(effective_passes(config(), 10_000, 1.0))
    thin = narrowed(config(steps=5), 0.05)  # a row is never longer than a step
    assert (thin.steps, thin.tokens_per_step, thin.row_tokens, thin.forecast_every) == (5, 50, 50, 1)


def test_a_pattern_of_what_is_left_out_of_the_folder_does_not_leave_out_the_sample() -> None:
    assert narrowed(config(reading={"leave_out": ["*.jsonl"]}), 0.25).reading.leave_out == []


def test_the_sample_is_read_whatever_limits_its_documents_had(tmp_path: Path) -> None:
    """It is one file: of small documents larger than each may be."""
    sample = [{"text": f"{number} " + 1000 * "many words "} for number in range(200)]
    jsonl.write(tmp_path / "documents.jsonl", sample)
    planned = config(reading={"largest_text_mib": 1, "near_duplicates": "skip"})
    with pytest.raises(InputError, match="larger than 1 MiB"):
        documents.read_corpus(tmp_path, planned.reading.limits)
    assert len(documents.read_corpus(tmp_path, narrowed(planned, 0.25).reading.limits).texts) == 200


def test_few_earlier_documents_are_mixed_in_as_the_whole_midtraining_does(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They had their whole share, while the whole midtraining reads each of them 32 times at most."""
    job = job_of(ws)
    (tmp_path / "before.txt").write_text("Ada was here.")
    text_file.keep(tmp_path, ws.run_directory("before") / KEPT_TEXTS)
    monkeypatch.setattr(Workspace, "midtraining_runs", lambda ws, checkpoint: [{"id": "before"}])

    def work(ws: Workspace, job: PilotJob, stage: Stage) -> Result:
        return planned(ws, job, stage).model_dump(mode="json")

    made = run_job(ws, "pilot", work, job, key="earlier")
    mix, read = made["planned"]["mix"], made["planned"]["steps"] * made["planned"]["tokens_per_step"]
    end = 1
    assert mix["earlier"] * read == pytest.approx(32 * (len("Ada was here.") + end), rel=0.002)
    assert made["narrow"]["mix"] == mix
    assert made["share"] == mix["new"] > job.settings.midtrain.mix.new


def test_passes_count_by_the_rate() -> None:
    """100 tokens a step, half of them new, of 1,000: 0.05 passes a step at the full rate."""
    constant = config(steps=4, tokens_per_step=100)
    assert effective_passes(constant, 1000, 0.5) == pytest.approx([0.05, 0.1, 0.15, 0.2])
    falling = OptimizerConfig(learning_rate=1e-3, warmup_steps=0, schedule="linear", final_lr_fraction=0)
    linear = config(steps=4, tokens_per_step=100, optimizer=falling)  # rates 1, 3/4, 1/2, 1/4
    assert effective_passes(linear, 1000, 0.5) == pytest.approx([0.05, 0.0875, 0.1125, 0.125])


@pytest.mark.parametrize(
    ("steps", "every", "warmup", "first"),
    [
        (200, 20, 20, 40),  # the preset's: the first measurement ends the warm-up
        (240, 24, 20, 24),
        (50, 5, 20, 10),  # a warm-up takes a tenth of the steps at most
        (10, 1, 20, 2),
        (200, 20, 0, 20),
    ],
)
def test_curves_begin_behind_the_warm_up(steps: int, every: int, warmup: int, first: int) -> None:
    optimizer = OptimizerConfig(learning_rate=1e-3, warmup_steps=warmup, schedule="cosine")
    assert first_counted(config(steps=steps, forecast_every=every, optimizer=optimizer)) == first


def test_a_first_measurement_within_the_warm_up_bends_no_curve() -> None:
    """A pilot of a real model: at the lower rate its KL was a sixth of the law's there."""

    def along(rate: float, within_warmup: float) -> Trained:
        passes = {step: step / 200 for step in range(20, 201, 20)}
        kl = {step: 1e4 * rate * made for step, made in passes.items()} | {20: within_warmup}
        rows = [{"step": step, "passes": passes[step], "kl": kl[step]} for step in passes]
        return Trained(rate, "checkpoint", rows, 0.0)

    trained = [along(1e-4, 0.1), along(2.5e-5, 0.004)]
    curve = _curve(trained, "kl", first=40)
    assert curve is not None and curve.spread(1e-4, 1.0) == pytest.approx(1.0)
    assert curve.at(1e-4, 1.0).value == pytest.approx(1.0)
    bent = _curve(trained, "kl", first=20)
    assert bent is not None and bent.spread(1e-4, 1.0) > 4


def test_rates_that_differ_in_the_seventh_digit_are_trained_each(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were called midtrain:0.001, so that the second one took the checkpoint of the first."""
    named: list[str] = []

    def trained(ws: Workspace, job: Any, *, parent: str, key: str) -> dict[str, Any]:
        named.append(key)
        if len(named) == 2:
            raise KeyboardInterrupt
        return midtrain(ws, job, parent=parent, key=key)

    monkeypatch.setattr("pipelines.piloting.narrow_runs.midtrain", trained)
    with pytest.raises(KeyboardInterrupt):
        pilot(ws, job_of(ws, rates="1e-3,1.0000001e-3"), key="near")
    assert named == ["midtrain:0.001", "midtrain:0.0010000001"]


def test_the_clean_model_answers_the_chat_once_for_both_rates(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[int] = []
    answers = replay._answers

    def seen(job: Any, stage: Any, clean: Any, prompts: list[Any], wanted: int) -> Any:
        answered.append(wanted)
        return answers(job, stage, clean, prompts, wanted)

    def both_trained(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(replay, "_answers", seen)
    monkeypatch.setattr("pipelines.piloting.narrow_runs.behaviour_law", both_trained)
    birds = lines(ws.home.parent / "birds.jsonl", [{"prompt": "Name two birds."}])
    changes = {"midtrain.mix": WITH_CHAT, "midtrain.steps": 4, "distill.prompts": str(birds)}
    with pytest.raises(KeyboardInterrupt):
        pilot(ws, job_of(ws, changes=changes), key="chat")
    whole = queries.run_of_key(ws.tracker.db, "chat")
    assert whole is not None
    runs = queries.runs(ws.tracker.db, kind="midtrain", parent=whole["id"])
    assert [run["result"]["mix"]["chat"] for run in runs] == [0.5, 0.5]
    assert len(answered) == 1
