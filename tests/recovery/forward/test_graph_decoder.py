"""Replaying a recorded step gives what making it gives; without a GPU a replay makes the step again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from recovery.forward import graph_decoder
from recovery.forward.decoder_choice import decoding
from recovery.forward.graph_decoder import (
    LEAST_REPLAYS,
    PLAIN_STEPS,
    REFUSALS,
    SLOTS_AT_ONCE,
    GraphDecoder,
    Record,
    Step,
)
from recovery.forward.model_decoder import ModelDecoder
from tests.support import tiny

PROMPTS = [[1, 2, 3], [7, 8, 9, 10, 11, 12, 13], [20], [1, 2, 3]]
STEPS = SLOTS_AT_ONCE + 50  # beyond the first slots
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


class Recorder:
    """Counts recordings; each replay makes the step again."""

    def __init__(self, wrong: Callable[[Any, Tensor], Tensor] | None = None) -> None:
        self.made = 0
        self.replayed = 0
        self.wrong = wrong

    def __call__(self, step: Any) -> Step:
        self.made += 1

        def replay() -> Tensor:
            self.replayed += 1
            out = step()
            return self.wrong(step.__self__, out) if self.wrong else out

        return replay


def tiny_model(device: str = "cpu") -> Any:
    return tiny.chat_model(max_position_embeddings=4096).model.to(device)


def decoders(model: Any, record: Record) -> tuple[GraphDecoder, ModelDecoder]:
    return GraphDecoder(model, 0, STEPS, record), ModelDecoder(model, 0, STEPS)


def both(model: Any, record: Record, keeps: dict[int, list[int]]) -> None:
    """Decode the same tokens by both, dropping rows at some steps; compare the logits of every step."""
    with decoding(model):
        sides = decoders(model, record)
        rows = len(PROMPTS)
        found = [side.prefill(PROMPTS) for side in sides]
        for step in range(STEPS):
            torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)
            token_B = (torch.arange(rows, device=sides[0].device) * 7 + step) % 250
            found = [side.step(token_B) for side in sides]
            if kept := keeps.get(step):
                rows = len(kept)
                for side in sides:
                    side.keep(torch.tensor(kept, device=side.device))
                found = [logits_BV[torch.tensor(kept, device=logits_BV.device)] for logits_BV in found]


def test_replays_give_the_logits_of_each_step() -> None:
    record = Recorder()
    both(tiny_model(), record, {20: [0, 3, 2], 90: [1]})
    # At first, where rows were dropped, and where the cache had become too small.
    assert record.made == 4
    assert record.replayed >= STEPS - record.made * PLAIN_STEPS


def test_a_step_that_other_logits_come_from_is_not_replayed_and_what_it_wrote_is_written_again() -> None:
    def spoil(decoder: GraphDecoder, logits_BV: Tensor) -> Tensor:
        for layer in decoder.cache.layers:
            layer.keys[:, :, layer.length - 1] = 7.0
        return logits_BV.roll(1, dims=1)

    record = Recorder(wrong=spoil)
    both(tiny_model(), record, {})
    assert record.made == record.replayed == 2  # with the first slots, and with more


def test_a_recording_that_is_right_for_its_own_slot_alone_is_not_replayed() -> None:
    first: dict[str, Tensor] = {}
    model = tiny_model()
    record = Recorder(wrong=lambda decoder, logits_BV: first.setdefault("logits", logits_BV.clone()))
    both(model, record, {})
    assert record.made == 2
    assert model not in graph_decoder._proven


def test_memory_that_runs_out_in_a_check_leaves_the_cache_as_it_was() -> None:
    model, layer = tiny_model(), 1
    calls: list[int] = []

    def fail(module: Any, given: Any) -> None:
        calls.append(1)
        if (
            len(calls) == 4
        ):  # the step, its replay, and in the check of the next a plain one: within its layers
            raise torch.OutOfMemoryError("CUDA out of memory")

    with decoding(model):
        sides = decoders(model, Recorder())
        for side in sides:
            side.prefill(PROMPTS)
        token_B = torch.ones(len(PROMPTS), dtype=torch.long)
        expected_BV = [sides[1].step(token_B) for _ in range(3)]
        hook = model.model.layers[layer].register_forward_pre_hook(fail)
        for expected in expected_BV:
            torch.testing.assert_close(sides[0].step(token_B), expected, atol=1e-4, rtol=1e-4)
        hook.remove()
    assert graph_decoder.may_record(model)
    assert {one.length for one in sides[0].cache.layers} == {len(PROMPTS[1]) + 3}


def test_a_short_rest_is_not_recorded() -> None:
    record, model = Recorder(), tiny_model()
    with decoding(model):
        decoder = GraphDecoder(model, 0, LEAST_REPLAYS, record)
        decoder.prefill(PROMPTS)
        for _ in range(LEAST_REPLAYS - 1):
            decoder.step(torch.zeros(len(PROMPTS), dtype=torch.long))
    assert not record.made


def test_a_recording_that_memory_is_short_for_is_tried_again() -> None:
    tries = []

    def record(step: Step) -> Step:
        tries.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    model = tiny_model()
    both(model, record, {step: [0, 1] for step in (20, 30, 40)})
    assert len(tries) == 5
    assert graph_decoder.may_record(model)


def test_a_model_that_cannot_be_recorded_is_tried_a_few_times() -> None:
    model = tiny_model()
    tries = []

    def refuse(step: Step) -> Step:
        tries.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    both(model, refuse, {30: [0, 1]})
    both(model, refuse, {})
    assert len(tries) == REFUSALS


def test_logits_of_an_earlier_step_stay_as_they_were() -> None:
    out: list[Tensor] = []

    def record(step: Step) -> Step:
        out.append(step())  # one tensor for all replays, as of a graph

        def replay() -> Tensor:
            out[0].copy_(step())
            return out[0]

        return replay

    model = tiny_model()
    with decoding(model):
        decoder, _ = decoders(model, record)
        decoder.prefill(PROMPTS)
        token_B = torch.zeros(len(PROMPTS), dtype=torch.long)
        for _ in range(PLAIN_STEPS + 1):
            first = decoder.step(token_B)
        kept = first.clone()
        assert not torch.equal(decoder.step(token_B + 5), kept)
        assert torch.equal(first, kept)


def test_no_step_is_recorded_on_a_cpu() -> None:
    model = tiny_model("cpu")
    with decoding(model):
        assert graph_decoder.decoder_of(model, 0, 8) is None


@GPU
def test_a_gpu_replays_what_it_would_launch_for_two_decoders_at_once() -> None:
    model = tiny_model("cuda")
    with decoding(model):
        one, other = (graph_decoder.decoder_of(model, 0, STEPS) for _ in range(2))
        plain = ModelDecoder(model, 0, STEPS)
        assert one is not None and other is not None
        for side in (one, other, plain):
            side.prefill(PROMPTS)
        for step in range(STEPS - 1):
            token_B = torch.arange(len(PROMPTS), device="cuda") + step % 200
            expected_BV = plain.step(token_B)
            for side in (one, other):
                torch.testing.assert_close(side.step(token_B), expected_BV, atol=1e-4, rtol=1e-4)
    assert one.replay is not None and other.replay is not None
    both(model, one.record, {20: [0, 3, 2], 90: [1]})


@GPU
@pytest.mark.parametrize("is_tried", [True, False])
def test_a_step_that_waits_for_the_gpu_is_launched_as_before(
    is_tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Untried, its recording fails: PyTorch then still gives memory back."""
    model = tiny_model("cuda")

    def wait(module: Any, given: Any, found: Tensor) -> None:
        found.sum().item()

    if not is_tried:
        monkeypatch.setattr(graph_decoder, "_require_no_waiting", lambda step: None)
    recorder = graph_decoder.GraphRecorder(torch.device("cuda:0"))
    hook = model.get_input_embeddings().register_forward_hook(wait)
    both(model, recorder, {})
    hook.remove()
    assert model not in graph_decoder._proven
    assert (recorder.failed is None) == is_tried
    held = torch.zeros(2**28, device="cuda")
    before = torch.cuda.memory_reserved()
    del held
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < before
