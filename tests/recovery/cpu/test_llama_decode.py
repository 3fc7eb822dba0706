"""The short way through a Llama-like model: the model's own numbers, or not taken at all."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from recovery.batches.rollouts import Rollouts
from recovery.cpu import library, llama_decode, llama_forward
from recovery.cpu.llama_decode import CHECKED, LlamaDecoder
from recovery.cpu.llama_forward import Reader
from recovery.forward.decoder_choice import decoding
from recovery.forward.hidden_states import plain_states, unwrap
from recovery.models.adapters import LoraSpec, adapter_off, add_lora
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from tests.support import tiny
from tests.support.llama_family import TAKEN, built, chat_of, sampled
from tests.support.samples import STOPS, likeliest, prompts_of, teacher_forced

KERNELS = library.library()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="no compiler here")
multiplies_bf16 = pytest.mark.skipif(
    KERNELS is None or not KERNELS.multiplies_bf16(), reason="this processor does not multiply bf16"
)


def decoder_of(model: Any) -> LlamaDecoder | None:
    with decoding(model) as inner:
        return llama_decode.decoder_of(inner, 0, 8)


def assert_greedy(model: Any, found: Rollouts) -> None:
    """Each token is the model's likeliest, up to the first one that stops or the limit of `sampled`."""
    answers = found.responses()
    assert answers == likeliest(model, prompts_of(14), answers)
    assert all(len(answer) == 24 or answer[-1] in STOPS for answer in answers)
    assert not any({*answer[:-1]} & {*STOPS} for answer in answers)


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_taken_where_it_is_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(name)
    found = sampled(chat_of(model), temperature=0.0)
    assert CHECKED.get(model) is TAKEN[name]
    assert_greedy(model, found)
    monkeypatch.setenv("RECOVER_CPU", "off")
    plain = sampled(chat_of(model))
    monkeypatch.delenv("RECOVER_CPU")
    found = sampled(chat_of(model))
    assert found.responses() == plain.responses()
    torch.testing.assert_close(found.logprobs_BT, plain.logprobs_BT, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen3", "grouped", "biased"])
@pytest.mark.parametrize("shortest", [2, 40], ids=["short rests", "rests longer than a block of queries"])
def test_what_prompts_begin_with_is_read_once(
    name: str, shortest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, beginning = chat_of(built(name)), [7, 8, 9] * 20
    prompts = [beginning + prompt for prompt in prompts_of(12, shortest, shortest + 60)] * 2
    common: list[int] = []
    fill = Reader.fill

    def noting(self: Any, rests: Any, cache: Any, first: int, alike: int = 0) -> torch.Tensor:
        common.append(alike)
        return fill(self, rests, cache, first, alike)

    monkeypatch.setattr(Reader, "fill", noting)
    found = InProcessSampler(chat).sample(prompts, SamplingParams(9, seed=5))
    assert common[-1] == len(beginning)
    torch.testing.assert_close(found.logprobs_N, teacher_forced(chat.model, found), atol=1e-4, rtol=0)


def test_it_reads_the_weights_of_the_moment() -> None:
    chat = chat_of(tiny.model())
    before = sampled(chat)
    with torch.no_grad():
        for parameter in chat.model.parameters():
            parameter.mul_(1.2)
    after = sampled(chat)
    assert CHECKED[chat.model]
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


def test_an_adapter_in_fp32_on_weights_in_bf16_is_left_to_peft() -> None:
    """Sampled without it first, as a teacher is in the preflight, it ended the first step with it."""
    chat = chat_of(tiny.model())
    chat.model.to(torch.bfloat16)
    add_lora(chat, LoraSpec(rank=4))
    with adapter_off(chat):
        plain = sampled(chat)
    found = sampled(chat)
    assert decoder_of(unwrap(chat.model)) is None
    assert len(found.responses()) == len(plain.responses()) == 14


@pytest.mark.parametrize("rows", [1, 5])
def test_any_number_of_threads_decodes_bit_for_bit_the_same(rows: int) -> None:
    """Threads share the key heads of all rows: here two a row, fewer than threads and more."""
    model, threads, found = built("grouped"), torch.get_num_threads(), []
    with decoding(model) as inner:
        for count in (1, 2, 3):
            decoder = LlamaDecoder(inner, 0, 8)
            decoder.prefill(prompts_of(rows, 60, 90))
            torch.set_num_threads(count)
            found.append(torch.stack([decoder.step(torch.arange(rows)) for _ in range(3)]))
            torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_written_tokens_are_rotated_by_the_same_angles_as_those_that_were_read() -> None:
    chat = chat_of(tiny.model())
    chat.model.to(torch.bfloat16)
    decoder = LlamaDecoder(chat.model, chat.pad_id, 8)
    found = decoder._turns(torch.zeros(2, 1, dtype=torch.bfloat16), 300)
    exact = chat.model.model.rotary_emb(torch.zeros(1), torch.arange(300)[None])
    for one, other in zip(found, exact, strict=True):
        assert torch.equal(one[:300], other[0])


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_queries_that_are_scaled_by_their_position_are_left_to_the_model(beta: float) -> None:
    """As Ministral 3 scales them behind its first 16,384 tokens."""
    model = tiny.model()
    model.config.rope_parameters = {**model.config.rope_parameters, "llama_4_scaling_beta": beta}
    assert (decoder_of(model) is None) == bool(beta)


@pytest.mark.parametrize("error", [RuntimeError, TypeError])
def test_shapes_it_did_not_expect_are_left_to_the_model(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*args: Any) -> torch.Tensor:
        raise error("sizes do not match, or other words are asked for")

    monkeypatch.setattr(LlamaDecoder, "step", step)
    chat = chat_of(tiny.model())
    found = sampled(chat, temperature=0.0)
    assert CHECKED[chat.model] is False
    assert_greedy(chat.model, found)


def test_a_text_that_rounding_alone_carries_away_is_checked_against_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Control tokens do so of a model of 30 layers; what computes something else fails any text."""
    found = iter([False])
    monkeypatch.setattr(llama_decode, "close", lambda *_: next(found, True))
    chat = chat_of(tiny.model())
    sampled(chat)
    assert CHECKED[chat.model]
    monkeypatch.setattr(llama_decode, "close", lambda *_: False)
    other = chat_of(tiny.model())
    sampled(other)
    assert CHECKED[other.model] is False


def test_parts_of_the_same_names_that_are_made_otherwise_are_left_to_the_model() -> None:
    chat = chat_of(tiny.model())
    attention = chat.model.model.layers[0].self_attn
    attention.q_proj.bias = torch.nn.Parameter(torch.ones(attention.q_proj.out_features))  # and no key's
    found = sampled(chat, temperature=0.0)
    assert CHECKED[chat.model] is False
    assert_greedy(chat.model, found)


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


def test_it_is_for_models_on_a_cpu_whose_weights_fit_in_memory_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model()
    assert decoder_of(model) is not None
    assert 0 < llama_decode.decoder_bytes(model) < sum(weight.nbytes for weight in model.parameters())
    monkeypatch.setattr(llama_decode, "MEMORY_SHARE", 1e-9)
    assert decoder_of(tiny.model()) is None
    monkeypatch.undo()
    assert decoder_of(tiny.model().to(torch.float16)) is None
    assert decoder_of(tiny.model().to("meta")) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_compiled_for_a_model_on_another_device(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    for module in (llama_decode, llama_forward):
        monkeypatch.setattr(module, "library", lambda: asked.append(1))
    model = tiny.model().to("meta", dtype)
    assert llama_decode.decoder_bytes(model) == 0
    assert llama_forward.reader_of(model, plain_states) is None
    assert asked == []


@multiplies_bf16
@pytest.mark.parametrize("name", ["llama", "qwen3", "biased", "grouped"])
def test_bf16_is_rounded_as_the_model_rounds_it(name: str) -> None:
    """Answers differ where two tokens are about as likely: log-probs of the same tokens tell."""
    model = built(name).to(torch.bfloat16)
    found = sampled(chat_of(model), temperature=0.0)
    assert CHECKED[model]
    errors, own = errors_of(model, found)
    assert errors.mean() <= 1.2 * own.mean()
    assert errors.max() < 0.05


def errors_of(model: Any, found: Rollouts) -> tuple[Tensor, Tensor]:
    """How far sampled log-probs, and the model's own of the same tokens, are from those without rounding."""
    exact = teacher_forced(copy.deepcopy(model).float(), found)
    return (found.logprobs_N - exact).abs(), (teacher_forced(model, found) - exact).abs()


@multiplies_bf16
@pytest.mark.parametrize("name", [name for name, taken in TAKEN.items() if taken is False])
def test_in_bf16_too_what_computes_something_else_is_left_to_the_model(name: str) -> None:
    model = built(name).to(torch.bfloat16)
    sampled(chat_of(model))
    assert CHECKED[model] is False


def test_bf16_without_the_instruction_is_left_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a batch are rounded otherwise than each alone: again log-probs of the same tokens tell."""
    kernels = SimpleNamespace(multiplies_bf16=lambda: 0)
    monkeypatch.setattr(llama_decode, "library", lambda: kernels)
    model = tiny.model().to(torch.bfloat16)
    assert decoder_of(model) is None
    steps = counted(monkeypatch)
    found = sampled(chat_of(model), temperature=0.0)
    assert not steps
    errors, own = errors_of(model, found)
    assert errors.mean() <= 1.2 * own.mean()
    assert errors.max() < 0.2
    with torch.no_grad():
        logits = copy.deepcopy(model).float()(found.tokens_BT, attention_mask=found.attention_BT).logits
    likeliest_BT = logits[:, :-1].log_softmax(-1).amax(-1)
    assert (likeliest_BT[found.mask_BT[:, 1:]] - found.logprobs_N).abs().max() < 0.2
    for answer in found.responses():
        assert not {*answer[:-1]} & {*STOPS}
        assert answer[-1] in STOPS or len(answer) == 24


@multiplies_bf16
def test_layers_of_mixed_types_are_left_to_the_model() -> None:
    chat = chat_of(tiny.model().to(torch.bfloat16))
    chat.model.model.layers[0].input_layernorm.float()
    assert decoder_of(chat.model) is None


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows whenever the decoder is asked."""
    steps: list[int] = []

    def count(plain: Any) -> Any:
        def counting(self: LlamaDecoder, *args: Any) -> Any:
            steps.append(1)
            return plain(self, *args)

        return counting

    for name in ("step", "write_ahead"):
        monkeypatch.setattr(LlamaDecoder, name, count(getattr(LlamaDecoder, name)))
    return steps


def test_a_large_model_writes_fewer_tokens_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = chat_of(tiny.model())
    expected = sampled(chat)
    monkeypatch.setattr(llama_decode, "NUMBERS_A_CALL", 1)
    steps = counted(monkeypatch)
    found = sampled(chat)
    longest = max(map(len, found.responses()))
    assert len(steps) == longest - 1  # the first token follows the prompt
    assert found.responses() == expected.responses()
