"""The forecast: forward KL to the clean model on fixed rows, and what earlier cycles say it costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from db.writes.tracker import Tracker
from pipelines.corpus.token_file import Tokens
from pipelines.knowledge.forecast import (
    EXPECTED,
    METRIC,
    Forecast,
    LossPerKL,
    clean_log_probs,
    fixed_rows,
    learned_law,
    log_probs,
)
from recovery.batches.rollouts import Rollouts
from recovery.models.adapters import LoraSpec, add_lora
from tests.support import tiny
from tests.support.databases import record_metrics, record_score
from tests.support.present import present


def test_the_law_goes_through_the_origin() -> None:
    law = LossPerKL(((1.0, 0.45), (2.0, 1.0), (1.0, 0.5)))
    # least squares by hand: (1 * 0.45 + 2 * 1.0 + 1 * 0.5) / (1 + 4 + 1) = 0.4917
    value, low, high = present(law.expected(1.0))
    assert value == pytest.approx(0.4917, abs=1e-4)
    # residuals -0.0417, 0.0167, 0.0083: variance 0.00104 of two degrees of freedom; t = 4.303
    assert [low, high] == pytest.approx([0.435, 0.548], abs=1e-3)
    assert "expected loss of IFEval 0.49 [0.43, 0.55], as in 3 earlier cycles" in law.words(1.0)
    assert present(law.expected(5.0)) == (1.0, 1.0, 1.0)


def test_no_loss_is_foretold_that_the_cycles_do_not_show() -> None:
    for points in ((), ((0.5, 0.25),)):
        assert LossPerKL(points).expected(0.3) is None
        assert "a few cycles will tell" in LossPerKL(points).words(1.0)
    doubtful = LossPerKL(((1.0, 0.02), (1.2, -0.01), (0.9, 0.0)))
    assert doubtful.expected(1.0) is None
    assert "3 earlier cycles do not show how much of IFEval it costs" in doubtful.words(1.0)


def test_it_looks_at_the_same_rows_and_draws_nothing() -> None:
    student, clean = tiny.chat_model(), tiny.chat_model()
    texts = [student.text_ids(f"Document {n} says so.") for n in range(20)]
    documents = Tokens.of([(ids, [True] * len(ids)) for ids in texts])
    rows = fixed_rows(documents, student.pad_id)
    told: list[tuple[int, Mapping[str, float]]] = []
    said: list[str] = []
    look = Forecast(
        student,
        rows,
        log_probs(clean, rows),
        LossPerKL(((1.0, 0.5), (2.0, 1.0))),
        every=2,
        steps=5,
        report=lambda step, metrics: told.append((step, metrics)),
        say=said.append,
    )
    before = torch.random.get_rng_state()
    look(1, {})
    look(2, {})
    with torch.no_grad():
        next(student.model.parameters()).add_(0.3)
    look(5, {})
    assert torch.equal(before, torch.random.get_rng_state())
    assert [step for step, _ in told] == [2, 5]
    assert told[0][1] == {METRIC: pytest.approx(0, abs=1e-6), EXPECTED: pytest.approx(0, abs=1e-6)}
    by_hand = log_probs(clean, rows)
    kl = (by_hand.exp() * (by_hand - log_probs(student, rows))).sum(-1).mean()
    assert told[1][1][METRIC] == pytest.approx(float(kl), rel=1e-4)
    assert "forward KL" in said[-1]


def test_cycles_at_one_kl_show_no_slope() -> None:
    """Neither a loss that they repeat exactly, which had an interval of no width, nor one that scatters."""
    for points in (((0.5, 0.3),) * 4, ((0.5, 0.3), (0.502, 0.31), (0.499, 0.29)), ((0.0, 0.0), (0.0, 0.1))):
        assert LossPerKL(points).slopes is None and LossPerKL(points).expected(2.0) is None
    assert LossPerKL(((0.5, 0.3), (0.502, 0.31), (0.6, 0.36))).expected(0.5) is not None


def record_cycle(tracker: Tracker, folder: Path, number: int, mid: str, kl: float, loss: float) -> None:
    """Record a cycle whose midtraining ended with the model `mid`."""
    clean = "c" * 12
    for name in (clean, mid):
        tracker.record_checkpoint(name, path=folder, kind="full", sha256=name)
    run = tracker.start_run("cycle", key=f"cycle {number}")
    taught = tracker.start_run("midtrain", parent=run.id, key="midtrain")
    for step, value in ((10, 0.1), (20, kl)):
        record_metrics(tracker, taught.id, step, {METRIC: value})
    tracker.finish_run(taught.id, {"checkpoint": mid})
    tracker.record_cycle(run.id, clean_id=clean, midtrained_id=mid)
    for name, value in ((clean, 0.9), (mid, 0.9 - loss)):
        evaluation = tracker.start_run("eval", parent=run.id, key=f"eval:{name}")
        score = {"suite": "ifeval", "metric": "prompt_strict", "value": value, "n": 10}
        record_score(tracker, evaluation.id, name, score)


def test_the_slope_is_this_homes_own(tmp_path: Path) -> None:
    with Tracker(tmp_path / "t.db") as tracker:
        assert learned_law(tracker.db) == LossPerKL()
        record_cycle(tracker, tmp_path, 1, "d" * 12, kl=0.5, loss=0.6)
        (point,) = learned_law(tracker.db).points
        assert point == pytest.approx((0.5, 0.6))


def test_a_midtraining_that_was_recovered_several_times_is_one_observation(tmp_path: Path) -> None:
    with Tracker(tmp_path / "t.db") as tracker:
        for number in (1, 2, 3):
            record_cycle(tracker, tmp_path, number, "d" * 12, kl=0.1 * number, loss=0.2 * number)
        (newest,) = learned_law(tracker.db).points
        assert newest == pytest.approx((0.3, 0.6)) and learned_law(tracker.db).slopes is None
        record_cycle(tracker, tmp_path, 4, "e" * 12, kl=0.8, loss=0.7)
        assert len(learned_law(tracker.db).points) == 2


def test_the_clean_model_below_an_adapter_is_read_without_it() -> None:
    """A resumed adapter has been trained already: with it on, nothing would ever be lost."""
    student = add_lora(tiny.chat_model(), LoraSpec(rank=4))
    with torch.no_grad():
        for name, parameter in student.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(len(name)))
    rows = Rollouts.from_dialogues([([1, 2, 3, 4], [False, True, True, True])], student.pad_id)
    frozen: Any = SimpleNamespace(
        ws=SimpleNamespace(clean=lambda: SimpleNamespace(id="clean")),
        student=student,
        parent=SimpleNamespace(id="adapter", base="clean"),
    )
    found = clean_log_probs(frozen, rows)
    torch.testing.assert_close(found, log_probs(tiny.chat_model(), rows))
    assert (log_probs(student, rows) - found).abs().max() > 0.1
