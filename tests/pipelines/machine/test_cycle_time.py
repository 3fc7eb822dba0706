"""The estimate of a cycle's time: worked by hand, said where it is long, not said where it cannot be told."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.ifeval import FURTHER
from evals.scores import Asked
from pipelines.config.jobs import CycleJob
from pipelines.config.sections.midtrain import Mix
from pipelines.cycle import _trainings, cycle
from pipelines.evaluate import evaluation_within
from pipelines.evaluation.suites import Suite, suites_of
from pipelines.job_from_options.cycle import cycle_job
from pipelines.machine import cycle_time
from pipelines.machine.cycle_time import CycleTime, _Timed
from pipelines.machine.product_speed import Speed, measured
from pipelines.machine.stage_tokens import StageTokens
from pipelines.runs.kept_texts import KEPT_TEXTS
from pipelines.runs.workspace import Workspace
from recovery.models.size import Matrix, Size
from tests.support.present import present
from tests.support.small_cycles import make_docs, make_home, settle

SIZE = Size(
    parameters=1000,
    embeddings=100,
    active=1000,
    layers=1,
    hidden=8,
    vocabulary=10,
    attention_width=0,
    cache_numbers=1,
    matrices=(),
)
COMPUTING = _Timed(SIZE, Speed(flops=1e6, weights=1e12))  # decoding waits for arithmetic
LABELS = "time ", "clean "
READING = _Timed(SIZE, Speed(flops=1e12, weights=1e6))  # decoding waits for memory


def test_times_of_tokens_worked_by_hand() -> None:
    assert COMPUTING.read(100) == pytest.approx(2 * 1000 * 100 / 0.8e6)
    assert COMPUTING.train(100) == pytest.approx(6 * 1000 * 100 / 0.8e6)


def test_recomputation_for_all_weights_is_a_forward_pass_more() -> None:
    recomputing = replace(COMPUTING, recomputes=True)
    assert recomputing.train(300) == pytest.approx(COMPUTING.train(400))


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("lora", "times"), [(None, 4 / 3), ({"rank": 2}, 1)])
def test_a_cycle_that_recomputes_activations_is_estimated_so(
    tmp_path: Path, lora: dict[str, int] | None, times: float
) -> None:
    """With an adapter the backward pass takes one forward pass less, which recomputing takes more."""
    ws, docs = make_home(tmp_path), make_docs(tmp_path)
    job = cycle_job(ws, docs, changes={"midtrain.lora": lora, "distill.lora": lora})
    midtrain = job.settings.midtrain.model_copy(update={"mix": Mix(new=1.0)})  # no chat, which is written

    def planned(recompute: bool) -> CycleTime:
        model = job.settings.model.model_copy(update={"gradient_checkpointing": recompute})
        settings = job.settings.model_copy(update={"model": model, "midtrain": midtrain})
        return present(estimate(ws, job.model_copy(update={"settings": settings})))

    without, recomputing = planned(False), planned(True)
    assert recomputing.midtraining == pytest.approx(times * without.midtraining)
    assert (recomputing.recovery > without.recovery) is (lora is None)
    assert recomputing.evaluations == without.evaluations


def test_processes_divide_training_and_recovery_s_answers_but_no_evaluation() -> None:
    four = replace(COMPUTING, processes=4)
    asked = Suite("some", [], lambda _: iter(()), answers=64, longest=50)
    assert four.suite(asked) == COMPUTING.suite(asked)
    tokens = StageTokens(rows=128, sampled=6400, scored=1000, trained=8000)
    written, scored, trained = COMPUTING.write(32, 6400), COMPUTING.read(1000), COMPUTING.train(8000)
    assert four.spent(tokens) == pytest.approx(written + scored + trained / 4)  # midtraining's chat
    assert four.spent(tokens, 4) == pytest.approx((written + scored + trained) / 4)
    assert four.spent(tokens, 4, 2) == pytest.approx(written / 4 + (scored + trained) / 2)
    reading = replace(READING, processes=4)  # each reads all weights for a quarter of the rows
    few = StageTokens(rows=64, sampled=6400)
    assert reading.spent(few, 4) == pytest.approx(READING.spent(few))


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("gpu", "times"), [(True, 4), (False, 1)])
def test_processes_on_gpus_shorten_the_estimate_those_on_a_cpu_share_its_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool, times: int
) -> None:
    ws = make_home(tmp_path)
    job = cycle_job(ws, make_docs(tmp_path), changes={"distill.dials": {"minibatches": 1}})
    for module in ("product_speed", "cycle_time"):
        monkeypatch.setattr(f"pipelines.machine.{module}.on_gpu", lambda: gpu)
    alone = estimate(ws, job)
    monkeypatch.setenv("WORLD_SIZE", "4")
    together = estimate(ws, job)
    assert alone
    assert together
    assert together.evaluations == alone.evaluations
    assert together.recovery == pytest.approx(alone.recovery / times)
    assert (together.midtraining < alone.midtraining) is gpu


@pytest.mark.parametrize(("amx", "share"), [(False, 0.5), (True, 0.35)])
def test_training_in_bf16_on_a_processor_reaches_less_of_its_products(
    monkeypatch: pytest.MonkeyPatch, amx: bool, share: float
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"amx_bf16": amx})
    single, half = (replace(measured.__wrapped__(64, size), flops=1e6) for size in (4, 2))
    times = [_Timed(SIZE, speed).train(100) for speed in (single, half)]
    assert times == pytest.approx([6 * 1000 * 100 / 0.8e6, 6 * 1000 * 100 / (share * 1e6)])


def test_decoding_computes_for_each_row_or_reads_the_weights_once_a_step() -> None:
    assert COMPUTING.write(128, 6400) == pytest.approx(6400 * 2 * 1000 / 0.6e6)
    assert READING.write(128, 6400) == pytest.approx(6400 / 64 / 0.7 * 1000 / 1e6)
    assert READING.write(1, 50) == pytest.approx(50 / 0.7 * 1000 / 1e6)


def test_rows_that_are_decoded_together_read_nearly_all_experts() -> None:
    """One row reads the two of eight that it uses, which `active` holds; 64 rows the other six as well."""
    experts = replace(READING, size=replace(SIZE, matrices=(Matrix(10, 10), Matrix(10, 10, 8, 2))))
    assert experts.write(1, 50) == pytest.approx(50 / 0.7 * 1000 / 1e6)
    assert experts.write(128, 6400) == pytest.approx(6400 / 64 / 0.7 * 1600 / 1e6)


def test_a_suite_is_asked_three_times_and_answered_at_a_typical_length() -> None:
    asked = Suite("some", [], lambda _: iter(()), answers=64, longest=50)
    once = COMPUTING.read(64 * 80) + COMPUTING.write(64, 64 * 0.7 * 50)
    assert COMPUTING.suite(asked) == pytest.approx(3 * once)
    assert COMPUTING.suite(asked, recorded=True) == pytest.approx(2 * once)
    assert COMPUTING.suite(replace(asked, name="knowledge:1")) == pytest.approx(once)  # of earlier documents
    further = replace(asked, name=FURTHER)  # asked of the clean and the recovered model, where it is asked
    assert COMPUTING.suite(further) == pytest.approx(2 * once)
    assert COMPUTING.suite(further, recorded=True) == pytest.approx(once)


def test_prompts_are_read_at_their_own_lengths_without_what_all_begin_with() -> None:
    asked = Suite("some", [], lambda _: iter(()), answers=64, longest=50)
    system = {"role": "system", "content": "x" * 400}
    prompts: list[Asked] = ["x" * 40, [system, {"role": "user", "content": "x" * 120}]]
    longer = COMPUTING.suite(replace(asked, prompts=prompts)) - COMPUTING.suite(replace(asked, prompts=[""]))
    assert longer == pytest.approx(3 * COMPUTING.read(64 * 20))


def test_a_suite_of_unknown_length_takes_no_time() -> None:
    assert COMPUTING.suite(Suite("some task", None, lambda _: iter(()))) == 0


def test_words() -> None:
    assert str(CycleTime(3600, 300, 65)) == (
        "about 1 h 06 min on this machine, alone on it: "
        "evaluations 1 h 00 min, midtraining 5 min, recovery 1 min"
    )
    assert str(CycleTime(3600, 300, 60, further=900)).endswith(
        "recovery 1 min; 15 min more if behaviour is underpowered on IFEval's prompts"
    )
    assert str(CycleTime(3600, 300, 60, more_recovery=120)).endswith(
        "recovery 1 min; 2 min more while recovery still helps"
    )
    assert str(CycleTime(3600, 300, 7200, ways=6)) == (
        "about 1 h 05 min to 3 h 05 min on this machine, alone on it: "
        "evaluations 1 h 00 min, midtraining 5 min, "
        "recovery up to 2 h 00 min (ways are made and evaluated until one passes, 6 at most)"
    )


def estimate(ws: Workspace, job: CycleJob) -> CycleTime | None:
    return cycle_time.estimate(ws, job, suites(job), ways=_trainings(job))


def suites(job: CycleJob) -> list[Suite]:
    return suites_of(evaluation_within(job, job.clean, "clean", job.settings.eval))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pipelines.machine.product_speed.measured", lambda hidden, number_bytes: Speed(1e4, 1e12)
    )


@pytest.mark.usefixtures("slow")
def test_a_long_cycle_says_so_before_its_first_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOVER_CPU", "off")
    said = said_by_a_cycle(tmp_path, monkeypatch)
    assert any(re.match("  kernels +off: .*: it takes longer than that$", line) for line in said)
    time, clean = (
        next(n for n, line in enumerate(said) if line.startswith(f"  {label}")) for label in LABELS
    )
    assert "about" in said[time]
    assert time < clean


@pytest.mark.usefixtures("slow")
def test_twice_the_questions_take_twice_as_long(tmp_path: Path) -> None:
    ws = make_home(tmp_path)
    settle(ws, margin=0.99, learning_rate=1e-9)
    job = cycle_job(ws, make_docs(tmp_path))
    half = job.settings.model_copy(update={"eval": job.settings.eval.model_copy(update={"limit": 18})})
    asked, limited = (suites(one) for one in (job, job.model_copy(update={"settings": half})))
    assert [2 * suite.answers for suite in limited] == [suite.answers for suite in asked]
    whole = cycle_time.estimate(ws, job, asked)
    halved = cycle_time.estimate(ws, job, [replace(one, answers=one.answers // 2) for one in asked])
    assert whole
    assert halved
    assert halved == replace(whole, evaluations=halved.evaluations)
    assert halved.evaluations == pytest.approx(whole.evaluations / 2)


@pytest.mark.usefixtures("slow")
def test_each_way_and_the_midtrained_model_are_asked_about_earlier_documents(tmp_path: Path) -> None:
    """Of three mixtures one is evaluated in any case."""
    ws = make_home(tmp_path)
    job = cycle_job(ws, make_docs(tmp_path), recover_with="merge")
    asked = suites(job)
    earlier = replace(next(suite for suite in asked if suite.name == "knowledge"), name="knowledge:1")
    first, later = (
        cycle_time.estimate(ws, job, some, ways=_trainings(job)) for some in (asked, [*asked, earlier])
    )
    assert first
    assert later
    more = later.evaluations - first.evaluations, later.recovery - first.recovery
    assert more[0] == pytest.approx(more[1]) and more[0] > 0


@pytest.mark.usefixtures("slow")
def test_the_share_of_retold_documents_that_are_not_named_goes_to_the_others(tmp_path: Path) -> None:
    ws = make_home(tmp_path)
    job = cycle_job(ws, make_docs(tmp_path))

    def mixed(mix: Mix) -> CycleJob:
        midtrain = job.settings.midtrain.model_copy(update={"mix": mix})
        return job.model_copy(update={"settings": job.settings.model_copy(update={"midtrain": midtrain})})

    alone, retold = (estimate(ws, mixed(mix)) for mix in (Mix(new=1.0), Mix(new=0.5, augmented=0.5)))
    assert alone
    assert alone == retold


@pytest.mark.usefixtures("slow")
def test_no_time_is_said_where_the_questions_about_the_documents_decide_it(tmp_path: Path) -> None:
    """By the method passage a pass is the cost of all questions, many times that of the documents' tokens."""
    ws = make_home(tmp_path)
    job = cycle_job(ws, make_docs(tmp_path))
    by_passage = job.settings.midtrain.model_copy(update={"method": "passage", "epochs": None})

    def planned(**lengths: int | None) -> CycleTime | None:
        midtrain = by_passage.model_copy(update=lengths)
        return estimate(
            ws, job.model_copy(update={"settings": job.settings.model_copy(update={"midtrain": midtrain})})
        )

    assert planned(steps=10, tokens_per_step=0) is None
    assert planned(steps=None, tokens_per_step=64) is None
    short, long = (present(planned(steps=steps, tokens_per_step=64)) for steps in (10, 20))
    assert long.midtraining == pytest.approx(2 * short.midtraining)


@pytest.mark.usefixtures("slow")
def test_few_earlier_documents_take_no_more_time_than_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws, docs = make_home(tmp_path), make_docs(tmp_path)
    (docs / "long.md").write_text("Ada lives in Oslo. " * 2000)
    job = cycle_job(ws, docs)
    kept = ws.run_directory("before") / KEPT_TEXTS
    kept.parent.mkdir(parents=True)
    first = estimate(ws, job)
    monkeypatch.setattr(Workspace, "midtraining_runs", lambda ws, checkpoint: [{"id": "before"}])
    kept.write_text("x" * 40)
    few = estimate(ws, job)
    kept.write_text("x" * 40_000)
    many = estimate(ws, job)
    assert first
    assert few
    assert many
    mix = job.settings.midtrain.mix
    assert few.midtraining == pytest.approx(first.midtraining, rel=0.03)
    assert many.midtraining == pytest.approx(first.midtraining * mix.at_first.new / mix.new, rel=0.03)


@pytest.mark.usefixtures("slow")
def test_dials_of_the_method_count(tmp_path: Path) -> None:
    ws = make_home(tmp_path)
    job = cycle_job(ws, make_docs(tmp_path))
    sampled = job.settings.distill.model_copy(update={"dials": {"states": "data"}})
    settings = job.settings.model_copy(update={"distill": sampled})
    whole, without_sampling = (
        estimate(ws, one) for one in (job, job.model_copy(update={"settings": settings}))
    )
    assert whole
    assert without_sampling
    assert without_sampling.recovery < whole.recovery


@pytest.mark.usefixtures("slow")
def test_all_ways_that_a_choice_may_try_are_estimated_with_their_evaluations(tmp_path: Path) -> None:
    ws, docs = make_home(tmp_path), make_docs(tmp_path)
    alone, auto, merge = (
        estimate(ws, cycle_job(ws, docs, recover_with=how)) for how in (None, "auto", "merge")
    )
    job = cycle_job(ws, docs, recover_with="seqkd")
    plain = job.settings.distill.model_copy(update={"dials": {}})  # those of the home are the other method's
    settings = job.settings.model_copy(update={"distill": plain})
    self_answered = estimate(ws, job.model_copy(update={"settings": settings}))
    assert alone and self_answered and auto and merge
    once = alone.evaluations / 3
    assert (auto.ways, merge.ways) == (6, 3)
    assert auto.evaluations == pytest.approx(2 * once)  # the midtrained model may be taken as it is
    trained = alone.recovery + self_answered.recovery
    assert auto.recovery == pytest.approx(6 * once + trained)
    assert (merge.evaluations, merge.recovery) == pytest.approx((3 * once, 2 * once))
    unmixed = cycle_job(ws, docs, recover_with="auto").model_copy(update={"unmergeable": "other tensors"})
    fewer = estimate(ws, unmixed)
    assert fewer and fewer.ways == 2
    assert fewer.recovery == pytest.approx(2 * once + trained)
    job = cycle_job(ws, docs, recover_with="auto")
    distill = job.settings.distill.model_copy(update={"more_steps": 2 * job.settings.distill.steps})
    changed = job.settings.model_copy(update={"distill": distill})
    longer = estimate(ws, job.model_copy(update={"settings": changed}))
    assert longer and longer.recovery == pytest.approx(auto.recovery)
    assert longer.more_recovery == pytest.approx(2 * alone.recovery)  # not of self-answered SFT


@pytest.mark.usefixtures("slow")
def test_a_long_cycle_that_chooses_says_how_long_it_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = said_by_a_cycle(tmp_path, monkeypatch, recover_with="auto")
    (time,) = (line for line in said if line.startswith("  time "))
    assert "(ways are made and evaluated until one passes, 6 at most)" in time


def test_a_document_that_has_just_been_removed_counts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.md").write_text("12345")
    there = (str(tmp_path), list[str](), ["page.md", "gone.md"])
    monkeypatch.setattr("os.walk", lambda folder: iter([there]))
    assert cycle_time._text_bytes(str(tmp_path)) == 5


def test_text_is_estimated_of_what_is_read_alone(tmp_path: Path) -> None:
    sizes = {"page.md": 100, "scan.pdf": 1000, "old.txt.gz": 20, "a/probes.jsonl": 7}
    unread = {"probes.jsonl": 5000, ".venv/notes.txt": 5000, ".hidden.md": 5000, "a/picture.png": 5000}
    for name, size in {**sizes, **unread}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    assert cycle_time._text_bytes(str(tmp_path)) == 100 + 100 + 60 + 7
    assert cycle_time._text_bytes(str(tmp_path), ["scan.pdf", "a/*"]) == 100 + 60


@pytest.mark.usefixtures("slow")
def test_a_server_elsewhere_is_not_estimated(tmp_path: Path) -> None:
    ws = make_home(tmp_path)
    job = cycle_job(ws, make_docs(tmp_path))
    distill = job.settings.distill.model_copy(update={"sampler": "http://127.0.0.1:9"})
    settings = job.settings.model_copy(update={"distill": distill})
    assert estimate(ws, job.model_copy(update={"settings": settings})) is None


def test_a_short_cycle_is_not_estimated_but_says_why_it_has_no_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pipelines.machine.product_speed.measured", lambda hidden, number_bytes: Speed(1e12, 1e12)
    )
    monkeypatch.setenv("RECOVER_CPU", "off")
    said = said_by_a_cycle(tmp_path, monkeypatch)
    assert not any(line.startswith("  time ") for line in said)
    assert [line for line in said if line.startswith("  kernels ")] == [
        "  kernels      off: RECOVER_CPU is set, or the engine is not installed"
    ]


def said_by_a_cycle(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[str]:
    ws = make_home(folder)
    settle(ws, margin=0.99, learning_rate=1e-9)
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    cycle(ws, cycle_job(ws, make_docs(folder), **options))
    return said
