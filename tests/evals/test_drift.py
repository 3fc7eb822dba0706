"""Drift: distances by hand and against scipy, divergences of known models, and the command as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import cdist, pdist

from evals import drift as measures
from recovery.errors import InputError
from recovery.inspection.distribution_shift import divergence, texts_as_rollouts, visited
from tests.support import tiny


def test_forgetting_by_the_papers_table() -> None:
    """Stress SFT: TruthfulQA .300 -> .245, MMLU .436 -> .364; mean retention 0.8258."""
    table = [(0.300, 0.245), (0.436, 0.364)]
    assert np.mean([measures.forgetting(*row) for row in table]) == pytest.approx(0.0635)
    assert np.mean([measures.retention_ratio(*row) for row in table]) == pytest.approx(0.8258, abs=5e-4)
    assert measures.retention_ratio(0.0, 0.5) is None


@given(st.integers(2, 30), st.integers(1, 5), st.integers(0, 100))
def test_no_distance_between_a_set_and_itself(rows: int, width: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((rows, width))
    assert measures.distances(x, x[::-1]) == pytest.approx(
        dict.fromkeys(("mmd", "centroid", "sliced_wasserstein"), 0), abs=1e-9
    )


def test_distances_against_scipy() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((40, 3)), rng.standard_normal((30, 3)) + 1
    width = np.median(pdist(np.vstack([x, y])))
    pairs = ((x, x), (y, y), (x, y))
    kernel = [np.exp(-cdist(a, b, "sqeuclidean") / (2 * width**2)).mean() for a, b in pairs]
    assert measures.mmd_rbf(x, y) == pytest.approx(kernel[0] + kernel[1] - 2 * kernel[2])
    one = rng.standard_normal((500, 1))
    other = rng.standard_normal((500, 1)) * 2 + 1
    exact = stats.wasserstein_distance(one[:, 0], other[:, 0])
    assert measures.sliced_wasserstein(one, other) == pytest.approx(exact, rel=0.03)
    assert measures.centroid_distance(np.zeros((3, 2)), np.tile([3.0, 4.0], (5, 1))) == 5


def test_distances_of_words_count_words_not_their_order() -> None:
    assert measures.jaccard_distance(["a b"], ["b c"]) == pytest.approx(2 / 3)
    assert measures.jaccard_distance([""], [""]) == 0
    rows = measures.lexical_features(["the cat", "cat the", "dog"])
    assert rows[0] == pytest.approx(rows[1])
    assert rows[0] @ rows[2] == 0
    with pytest.raises(InputError, match="equal width"):
        measures.mmd_rbf(np.zeros((2, 3)), np.zeros((2, 4)))


def test_divergence_is_zero_for_the_same_model_and_both_ways_otherwise() -> None:
    one, same, other = tiny.chat_model(0), tiny.chat_model(0), tiny.chat_model(1)
    rows = texts_as_rollouts(one, ["some text to read", "and another one that is longer"])
    nothing = divergence(one, same, rows)
    assert (nothing["forward_kl"], nothing["reverse_kl"]) == pytest.approx((0, 0), abs=1e-5)
    assert nothing["entropy"] == nothing["entropy_clean"] > 0
    there, back = divergence(one, other, rows), divergence(other, one, rows)
    assert there["forward_kl"] == pytest.approx(back["reverse_kl"], rel=1e-4)
    assert there["forward_kl"] > 0.01
    tokens = rows.tokens_BT
    with torch.no_grad():
        p, q = (model.model(tokens[:1, :17]).logits.log_softmax(-1)[0, :-1] for model in (one, other))
    by_hand = (q.exp() * (q - p)).sum(-1).mean()
    first = texts_as_rollouts(one, ["some text to read"])
    assert divergence(one, other, first)["forward_kl"] == pytest.approx(float(by_hand), rel=1e-4)


def test_states_are_prefixes_that_end_within_the_answer() -> None:
    model = tiny.chat_model()
    rows = texts_as_rollouts(model, ["abcdefghij"])
    states, prefixes = visited(model, rows)
    assert [bytes(ids).decode() for ids in prefixes] == ["abc", "abcde", "abcdefg", "abcdefghij"]
    assert states.shape == (4, 32)


def test_the_command_measures_a_checkpoint_against_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from pipelines.cli.commands import cli

    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Say {n}."}) + "\n" for n in range(6)))
    base = ["-q", "--home", str(tmp_path / "home")]
    cli.main(
        [*base, "init", "--model", str(tiny.save(tmp_path / "model")), "--preset", "microworld"],
        standalone_mode=False,
    )
    capfd.readouterr()
    words = [
        "drift",
        "base",
        "base",
        "--prompts",
        str(prompts),
        "--count",
        "6",
        "--max-new-tokens",
        "8",
        "--json",
    ]
    cli.main([*base, *words], standalone_mode=False)
    found = json.loads(capfd.readouterr().out)
    assert found["states"] == pytest.approx(found["floor"], abs=1e-6)
    assert found["floor"]["hidden_centroid"] > 0  # another seed's samples: what distance means nothing
    assert found["kl"]["general"]["forward_kl"] == pytest.approx(0, abs=1e-5)
    assert found["kl"]["new_task"] is None
