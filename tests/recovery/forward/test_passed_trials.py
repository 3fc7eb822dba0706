"""A trial is made once for all models that are built alike, and anew for every other one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recovery.forward.decoder_choice import decoding_way
from recovery.forward.hidden_states import can_pack, row_sharing
from recovery.forward.passed_trials import tried
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.loading import ModelSpec, load
from tests.support import tiny


def trials(*models: Any, passes: bool = True) -> int:
    """Return how many trials are made where these models come one after the other."""
    made: list[bool] = []

    def trial() -> bool:
        made.append(passes)
        return passes

    for model in models:
        assert tried("any", model, bool, trial) is passes
    return len(made)


def in_half_precision(model: Any) -> None:
    model.to(torch.bfloat16)


def with_eager_attention(model: Any) -> None:
    model.set_attn_implementation("eager")


def with_a_hook(model: Any) -> None:
    model.model.layers[1].register_forward_hook(lambda *_: None)


def with_a_forward_of_its_own(model: Any) -> None:
    model.model.layers[0].mlp.forward = lambda states: states


def of_another_class(model: Any) -> None:
    model.model.norm = torch.nn.LayerNorm(32, bias=False)


def with_a_window(model: Any) -> None:
    model.config.sliding_window = 8


OTHERS = [
    in_half_precision,
    with_eager_attention,
    with_a_hook,
    with_a_forward_of_its_own,
    of_another_class,
    with_a_window,
]


def test_a_model_that_is_built_like_one_that_passed_needs_no_trial() -> None:
    assert trials(tiny.model(seed=0), tiny.model(seed=1), tiny.model(seed=2)) == 1
    assert trials(tiny.model(seed=0)) == 0


def test_a_checkpoint_elsewhere_with_other_weights_needs_none(tmp_path: Path) -> None:
    folders = [tiny.save(tmp_path / name, seed=seed) for seed, name in enumerate(("clean", "midtrained"))]
    assert trials(*(load(ModelSpec(str(folder))).model for folder in folders)) == 1


@pytest.mark.parametrize("change", OTHERS)
def test_a_model_that_computes_otherwise_is_tried(change: Callable[[Any], None]) -> None:
    changed = tiny.model()
    change(changed)
    assert trials(tiny.model(), changed, tiny.model()) == 2


def test_a_model_of_another_size_or_with_an_adapter_is_tried() -> None:
    adapted = tiny.chat_model()
    add_lora(adapted, LoraSpec(rank=2))
    core = adapted.model.get_base_model()
    assert trials(tiny.model(), tiny.model(num_hidden_layers=3), core) == 3


def test_a_change_for_a_whole_class_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model()
    assert trials(model) == 1
    monkeypatch.setattr(type(model.model.norm), "forward", lambda norm, states: states)
    assert trials(model) == 1


def test_the_core_without_its_engine_is_tried_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECOVER_CPU", raising=False)
    assert trials(tiny.model()) == 1
    monkeypatch.setenv("RECOVER_CPU", "off")
    assert trials(tiny.model()) == 1


def test_what_did_not_pass_is_tried_again() -> None:
    """Its weights may have been damaged."""
    assert trials(tiny.model(), tiny.model(), passes=False) == 2
    assert trials(tiny.model()) == 1


def test_several_processes_make_each_trial_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that left out a trial would leave the others waiting."""
    assert trials(tiny.model()) == 1
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert trials(tiny.model(), tiny.model()) == 2


def test_a_second_model_is_not_read_to_learn_how_it_is_read() -> None:
    first, second = tiny.model(seed=0), tiny.model(seed=1)
    expected = decoding_way(first), row_sharing(first), can_pack(first)
    passes: list[int] = []
    second.get_input_embeddings().register_forward_hook(lambda *_: passes.append(1))
    hooked = decoding_way(second), row_sharing(second), can_pack(second)
    assert hooked == expected and passes  # a hook is a reason to try
    third = tiny.model(seed=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recovery.forward.isolation.rows_stay_apart", None)
        patch.setattr("recovery.forward.decoder_choice.rows_stay_apart", None)
        patch.setattr("recovery.forward.hidden_states.sequences_stay_apart", None)
        assert (decoding_way(third), row_sharing(third), can_pack(third)) == expected
