"""The short way through a Llama-like model: the model's own numbers, or not taken at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from recovery.batches.rollouts import Rollouts
from recovery.cpu import fused_layers, llama_layers
from recovery.cpu.llama_decode import PROVEN, Decoder, decoder_of
from recovery.forward.kv_cache import Slots
from recovery.models.chat_model import ChatModel
from recovery.models.loading import LoraSpec, adapter_off, add_lora, unwrap
from recovery.sampling.in_process import InProcessSampler, remaining
from recovery.sampling.protocol import SamplingParams
from tests.recovery.models.test_loading import SMALL, architecture
from tests.recovery.sampling.test_in_process import STOPS, generated, prompts_of, teacher_forced
from tests.support import tiny

pytestmark = pytest.mark.usefixtures("with_and_without_kernels")
TAKEN = {  # None: not built as Llama's layers, or with windows; False: so built, but it computes otherwise
    "qwen3": True,
    "llama": True,
    "mistral": None,
    "no window": True,
    "phi3": None,
    "gemma3_text": None,
    "gemma2": None,
    "cohere": None,
    "granite": True,
    "granite with factors": False,
    "gpt2": None,
    "hyperclovax": None,
    "bloom": None,
    "qwen2": True,
    "biased": True,
    "grouped": True,
    "glm": None,
    "partly turned": None,
    "helium": False,
    "smollm3": False,
}
MORE = {
    "no window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "grouped": ("llama", {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 6}),
    "partly turned": ("stablelm", {"partial_rotary_factor": 0.5}),
    "granite with factors": ("granite", {"residual_multiplier": 0.5, "embedding_multiplier": 3.0}),
    "glm": ("glm", {}),
    "helium": ("helium", {}),  # turns neighbours
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),  # turns nothing in every second layer
}


def built(name: str) -> Any:
    if name not in MORE:
        return architecture(name)
    kind, settings = MORE[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SMALL, **settings}))
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def chat_of(model: Any) -> ChatModel:
    chat = ChatModel.of(model, tiny.tokenizer())
    chat.stop_ids = STOPS
    return chat


def sampled(chat: ChatModel, temperature: float = 1.0) -> Rollouts:
    params = SamplingParams(max_new_tokens=24, temperature=temperature)
    return InProcessSampler(chat).sample(prompts_of(14), params)


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_taken_where_it_is_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(name)
    found = sampled(chat_of(model), temperature=0.0)
    assert PROVEN.get(model) is TAKEN[name]
    assert found.responses() == generated(model, prompts_of(14), STOPS, 24)
    monkeypatch.setenv(fused_layers.SWITCH, "0")
    plain = sampled(chat_of(model))
    monkeypatch.delenv(fused_layers.SWITCH)
    found = sampled(chat_of(model))
    assert found.responses() == plain.responses()
    torch.testing.assert_close(found.logprobs_BT, plain.logprobs_BT, atol=2e-5, rtol=1e-4)


def test_it_reads_the_weights_of_the_moment() -> None:
    chat = chat_of(tiny.model())
    before = sampled(chat)
    with torch.no_grad():
        for parameter in chat.model.parameters():
            parameter.mul_(1.2)
    after = sampled(chat)
    assert PROVEN[chat.model]
    assert after.responses() != before.responses()
    torch.testing.assert_close(after.logprobs_N, teacher_forced(chat.model, after), atol=1e-4, rtol=0)


@pytest.mark.parametrize("on", [True, False])
def test_an_adapter_is_part_of_the_weights_while_it_is_on(on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = add_lora(chat_of(tiny.model()), LoraSpec(rank=4, alpha=8))
    plain = sampled(chat)
    for name, parameter in chat.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    steps = counted(monkeypatch)
    if on:
        found = sampled(chat)
        assert found.responses() != plain.responses()
        expected = teacher_forced(unwrap(chat.model), found)
        torch.testing.assert_close(found.logprobs_N, expected, atol=2e-4, rtol=0)
    else:
        with adapter_off(chat):
            found = sampled(chat)
        assert found.responses() == plain.responses()
    assert steps


@pytest.mark.parametrize("error", [RuntimeError, TypeError])
def test_shapes_it_did_not_expect_are_left_to_the_model(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def logits(*args: Any) -> torch.Tensor:
        raise error("sizes do not match, or other words are asked for")

    monkeypatch.setattr(Decoder, "logits", logits)
    chat = chat_of(tiny.model())
    found = sampled(chat, temperature=0.0)
    assert PROVEN[chat.model] is False
    assert found.responses() == generated(chat.model, prompts_of(14), STOPS, 24)


def test_parts_of_the_same_names_that_are_made_otherwise_are_left_to_the_model() -> None:
    chat = chat_of(tiny.model())
    attention = chat.model.model.layers[0].self_attn
    attention.q_proj.bias = torch.nn.Parameter(torch.ones(attention.q_proj.out_features))  # and no key's
    found = sampled(chat, temperature=0.0)
    assert chat.model not in PROVEN
    assert found.responses() == generated(chat.model, prompts_of(14), STOPS, 24)


@pytest.mark.parametrize("settings", [{"use_dora": True}, {"lora_bias": True}])
def test_an_adapter_of_another_sort_is_left_to_peft(settings: dict[str, Any]) -> None:
    from peft import LoraConfig, get_peft_model

    wrapped = get_peft_model(tiny.model(), LoraConfig(target_modules="all-linear", **settings))
    assert decoder_of(unwrap(wrapped)) is None


def test_who_listens_in_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    chat, heard = chat_of(tiny.model()), []
    sampled(chat)
    steps = counted(monkeypatch)
    hook = chat.model.model.layers[0].register_forward_hook(lambda *args: heard.append(1))
    sampled(chat)
    assert not steps
    assert len(heard) > 10
    hook.remove()
    sampled(chat)
    assert steps


def test_it_is_for_small_models_in_fp32_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model()
    assert decoder_of(model) is not None
    monkeypatch.setattr(llama_layers, "MOST_WEIGHTS", 1000)
    assert decoder_of(tiny.model()) is None
    monkeypatch.undo()
    assert decoder_of(model.to(torch.bfloat16)) is None
    assert decoder_of(tiny.model().to("meta")) is None


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows whenever the decoder is asked."""
    steps: list[int] = []

    def count(plain: Any) -> Any:
        def counting(self: Decoder, *args: Any) -> Any:
            steps.append(1)
            return plain(self, *args)

        return counting

    for name in ("logits", "write_on"):
        monkeypatch.setattr(Decoder, name, count(getattr(Decoder, name)))
    return steps


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_who_has_not_ended_goes_on_and_few_move(ended: list[bool]) -> None:
    rows = remaining(torch.tensor(ended)).tolist()
    assert sorted(rows) == [i for i, done in enumerate(ended) if not done]
    moved = [i for i, row in enumerate(rows) if row != i]
    assert all(ended[i] for i in moved)


@given(
    st.integers(0, 2**16),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.lists(st.sampled_from(["write", "leave", "order", "rewind"]), max_size=40),
)
def test_slots_hold_what_a_cache_that_copies_holds(seed: int, groups: list[int], acts: list[str]) -> None:
    """Prompts of several lengths, then any order of writing, leaving, reordering and taking back."""
    random = torch.Generator().manual_seed(seed)
    draw = lambda rows, slots: torch.randn(2, rows, 2, slots, 3, generator=random)  # noqa: E731
    width = max(5 * (i + 1) for i in range(len(groups)))
    parts, expected = [], []
    for i, rows in enumerate(groups):
        part, read = Slots(1), draw(rows, 5 * (i + 1))
        part.layers[0].update(*read)
        parts.append(part)
        expected.append(torch.nn.functional.pad(read, (0, 0, width - read.shape[3], 0)))
    slots, held = Slots.joined(parts, width), torch.cat(expected, 1)
    for act in acts:
        rows = held.shape[1]
        if act == "write":
            new = draw(rows, 1)
            slots.make_room(held.shape[3] + 1)
            slots.layers[0].update(*new)
            held = torch.cat([held, new], 3)
        elif act == "rewind":
            held = held[:, :, :, : max(width, held.shape[3] - 1)]
            slots.fill_to(held.shape[3])
        else:
            order = torch.randint(rows, (rows,), generator=random)
            if act == "leave":
                order = remaining(torch.rand(rows, generator=random) < 0.3)
            if len(order):
                slots.reorder_cache(order)
                held = held[:, order]
        assert torch.equal(torch.stack(slots.layers[0].filled()), held)
        assert slots.get_seq_length() == held.shape[3]
