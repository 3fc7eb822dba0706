"""A teacher whose layers rest on the host says what it says, and comes only while it computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipelines.config.sections.distill import DistillConfig, StopConfig
from pipelines.config.sections.training import OptimizerConfig
from pipelines.engines.engine_checks import check, require_watched
from recovery.batches.rollouts import Rollouts
from recovery.errors import InputError
from recovery.forward.hidden_states import row_sharing
from recovery.methods.table import METHODS, with_dials
from recovery.models import offload
from recovery.models.chat_model import ChatModel
from recovery.teachers.teachers import CheckpointTeacher
from tests.support import families, tiny

ROWS = Rollouts.from_dialogues(
    [(list(range(65, 65 + n)), [False] + [True] * (n - 1)) for n in (5, 9, 3)], 258
)


def layers(chat_model: ChatModel) -> list[Any]:
    return list(chat_model.model.get_decoder().layers)


def pointers(layer: Any) -> list[int]:
    return [parameter.data_ptr() for parameter in layer.parameters()]


@pytest.mark.parametrize("kind", ["dense", "topk"])
def test_it_scores_as_before_with_one_layer_at_a_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "fetched", lambda resting, device: resting.clone())
    plain, resting = tiny.chat_model(seed=3), tiny.chat_model(seed=3)
    expected = CheckpointTeacher(plain, kind).score(ROWS)
    offload.rest_on_host(resting)
    at_rest = [pointers(layer) for layer in layers(resting)]
    away: list[list[bool]] = []

    def look(*_: Any) -> None:
        away.append([pointers(one) != home for one, home in zip(layers(resting), at_rest, strict=True)])

    CheckpointTeacher(resting, kind).score(ROWS)  # the first reading tries how rows may share a pass
    for layer in layers(resting):
        layer.mlp.register_forward_hook(look)
    for _ in range(2):
        found = CheckpointTeacher(resting, kind).score(ROWS)
        for name in ("hidden_ND", "sampled_logprobs_N", "logprobs_NK"):
            one, other = getattr(found, name), getattr(expected, name)
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert [pointers(layer) for layer in layers(resting)] == at_rest
    assert away == [[True, False], [False, True]] * 2
    assert not any(map(torch.isnan, (parameter.sum() for parameter in resting.model.parameters())))


def test_layers_rest_under_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "fetched", lambda resting, device: resting.clone())
    plain, resting = (
        ChatModel.of(families.model(families.named("GPT-2")), tiny.tokenizer(), path="gpt2") for _ in range(2)
    )
    offload.rest_on_host(resting)
    found, expected = CheckpointTeacher(resting).score(ROWS), CheckpointTeacher(plain).score(ROWS)
    assert found.hidden_ND is not None and expected.hidden_ND is not None
    torch.testing.assert_close(found.hidden_ND, expected.hidden_ND, rtol=1e-4, atol=1e-5)


def test_rows_share_a_pass_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """No gradient can be taken with a weight at rest: here it is empty, on a GPU it is on the host."""
    homes: dict[torch.Tensor, torch.Tensor] = {}

    def emptied(weight: torch.Tensor) -> torch.Tensor:
        empty = weight.new_empty(0)
        homes[empty] = weight
        return empty

    monkeypatch.setattr(offload, "_resting", emptied)
    monkeypatch.setattr(offload, "fetched", lambda resting, device: homes[resting].clone())
    plain, resting = tiny.chat_model(seed=3), tiny.chat_model(seed=3)
    offload.rest_on_host(resting)
    assert row_sharing(resting.model) == row_sharing(plain.model)
    assert not row_sharing(plain.model).is_limited


def test_a_bound_on_what_would_not_be_watched_is_refused() -> None:
    """Such a training ran to its end, however much was lost."""
    settings = DistillConfig(prompts="p", optimizer=OptimizerConfig(learning_rate=1e-4), tripwire_share=0.7)
    require_watched(settings, METHODS["opd"])
    for method in ("opsd", "sdft", "sft", "deliberate"):
        with pytest.raises(InputError, match="tripwire: nothing would be watched, as it compares"):
            require_watched(settings, METHODS[method])
    with pytest.raises(InputError, match=r"tripwire: .* a clean teacher in this process"):
        require_watched(settings.model_copy(update={"teacher_engine": "http://a"}), METHODS["opd-topk"])
    with pytest.raises(InputError, match=r"tripwire: .* distill\.tripwire_every is 0"):
        require_watched(settings.model_copy(update={"tripwire_every": 0}), METHODS["opd"])
    require_watched(settings.model_copy(update={"steps": 5}), METHODS["opd"])
    with pytest.raises(InputError, match=r"tripwire: .* 4 steps end before the first look .*every: 5\)"):
        require_watched(settings.model_copy(update={"steps": 4}), METHODS["opd"])


def test_a_stop_that_could_never_come_is_refused() -> None:
    """It takes two looks that pass."""
    learning = OptimizerConfig(learning_rate=1e-4)
    settings = DistillConfig(prompts="p", optimizer=learning, steps=20, stop=StopConfig(every=10))
    require_watched(settings, METHODS["opd"])
    with pytest.raises(InputError, match=r"distill\.stop: 19 steps end before its second look, after 20"):
        require_watched(settings.model_copy(update={"steps": 19}), METHODS["opd"])
    require_watched(settings.model_copy(update={"steps": 19, "more_steps": 1}), METHODS["opd"])


def test_where_it_is_of_no_use_it_is_refused() -> None:
    settings = DistillConfig(prompts="p", optimizer=OptimizerConfig(learning_rate=1e-4), offload_teacher=True)
    check(settings, METHODS["opd"])
    check(settings, with_dials("opsd", {"anchor_beta": 0.1}))  # the anchor is the clean model
    for method in ("opsd", "sdft", "sft", "deliberate"):
        with pytest.raises(InputError, match=f"offload_teacher: method '{method}' loads no teacher"):
            check(settings, METHODS[method])
    with pytest.raises(InputError, match=r"offload_teacher: .*'seqkd'"):
        check(settings, METHODS["seqkd"])
    with pytest.raises(InputError, match=r"offload_teacher: .*distill\.stop"):
        check(settings.model_copy(update={"stop": StopConfig()}), METHODS["opd"])
    with pytest.raises(InputError, match=r"offload_teacher: .* teacher_engine"):
        check(settings.model_copy(update={"teacher_engine": "http://a"}), METHODS["opd-topk"])
