"""Batches in one row: what transformers computes by rows, wherever it is used; else nothing changes."""

from __future__ import annotations

import inspect
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig, AutoModelForCausalLM
from transformers import modeling_flash_attention_utils as packages

from recovery.errors import InputError
from recovery.forward import varlen
from recovery.forward.hidden_states import can_pack, hidden_states, states_at
from recovery.forward.packed import Packed
from recovery.models import loading
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.chat_model import ChatModel
from recovery.models.loading import ModelSpec
from recovery.models.saving import save
from tests.support import tiny
from tests.support.architectures import ARCHITECTURES, SMALL, architecture
from tests.support.gradients import agree, states_and_gradients
from tests.support.llama_family import sampled

IN_ROWS = {"bloom", "gpt2"}  # one takes no positions, the other drops some attention in training


@pytest.fixture(autouse=True)
def no_cpu_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOVER_CPU", "off")


def kernel(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, starts_k: Tensor, *longest: int, **how: Any
) -> Tensor:
    """What PyTorch's kernel and those of the packages say they compute: (N, H, W), sequence by sequence."""
    assert starts.dtype == torch.int32 and torch.equal(starts, starts_k)
    assert set(longest) == {int(starts.diff().max())} and len(longest) == 2
    inspect.signature(varlen_attn).bind(q, k, v, starts, starts_k, *longest, **how)
    assert how["window_size"] == (-1, 0)  # only this is causal
    parts = []
    for i, j in pairwise(starts.tolist()):
        heads = [x[None, i:j].transpose(1, 2) for x in (q, k, v)]
        out = scaled_dot_product_attention(
            heads[0], heads[1], heads[2], is_causal=True, scale=how["scale"], enable_gqa=True
        )
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, does: Any = kernel) -> None:
    monkeypatch.setattr(varlen, "by_groups", varlen.at_once)
    monkeypatch.setattr(varlen, "varlen_attn", does)


def in_one_row(model: Any) -> Any:
    varlen.use_varlen(model)
    assert model.config._attn_implementation == varlen.VARLEN
    return model


def ragged(seed: int, lengths: list[int], left: bool = False) -> tuple[Tensor, Tensor]:
    """Tokens and where they are no padding."""
    width = max(lengths) + seed % 3
    tokens = torch.randint(23, (len(lengths), width), generator=torch.Generator().manual_seed(seed))
    there = torch.arange(width) < torch.tensor(lengths)[:, None]
    return tokens, there.flip(1) if left else there


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_is_used_where_it_is_right(name: str, gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if gpu:
        on_a_gpu(monkeypatch)
    mine, own = architecture(name), architecture(name)
    varlen.use_varlen(mine)
    assert (mine.config._attn_implementation == varlen.VARLEN) == (name not in IN_ROWS)
    agree(mine, own, *ragged(0, [9, 1, 14]))


@given(st.integers(0, 2**16), st.lists(st.integers(1, 40), min_size=1, max_size=5), st.booleans())
def test_padding_on_either_side_changes_nothing(seed: int, lengths: list[int], left: bool) -> None:
    tokens, there = ragged(seed, lengths, left)
    mine = in_one_row(tiny.model())
    agree(mine, tiny.model(), tokens, there)
    with torch.no_grad():
        states = hidden_states(mine, tokens, there)
        assert not states[~there].any()
        wanted = there & (tokens > 9)
        torch.testing.assert_close(states_at(mine, wanted, tokens, there), states[wanted])


@given(st.integers(0, 2**16), st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 9))
def test_sequences_that_share_rows_do_not_see_each_other(seed: int, lengths: list[int], padding: int) -> None:
    ends = [torch.arange(n) for n in lengths] + [torch.zeros(padding, dtype=torch.long)]
    positions = torch.cat(ends).repeat(2, 1)
    tokens = torch.randint(23, positions.shape, generator=torch.Generator().manual_seed(seed))
    there = torch.arange(positions.shape[1]).repeat(2, 1) < sum(lengths)
    agree(in_one_row(tiny.model()), tiny.model(), tokens, there, positions)


@pytest.mark.parametrize("longest", [6, 7, 11])
def test_a_layer_that_sees_less_than_a_sequence_reads_rows(longest: int) -> None:
    """A window of six tokens."""
    config = AutoConfig.for_model("mistral", **SMALL, sliding_window=6)
    with torch.random.fork_rng():
        mine, own = (AutoModelForCausalLM.from_config(config).eval() for _ in range(2))
    own.load_state_dict(in_one_row(mine).state_dict())
    agree(mine, own, *ragged(6, [longest, 2, 5]))
    positions = torch.tensor([[*range(longest), *range(3), *[0] * 40]] * 2)
    with torch.no_grad():
        packed, one = (hidden_states(model, positions, None, positions) for model in (mine, own))
    torch.testing.assert_close(packed, one, rtol=1e-3, atol=1e-4)
    tokens = Packed.of([range(longest)])
    with torch.no_grad():
        gap = (varlen.in_one_row(mine, tokens) - varlen.in_rows(mine, tokens)).abs().max()
    assert (gap < 1e-5) == (longest <= 6)


def test_checkpoints_of_gradients_and_adapters_train_the_same() -> None:
    mine, own = in_one_row(tiny.model()), tiny.model()
    for model in (mine, own):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    agree(mine, own, *ragged(1, [3, 12, 7]))
    chats = [ChatModel.of(model, tiny.tokenizer()) for model in (in_one_row(tiny.model()), tiny.model())]
    for chat in chats:
        add_lora(chat, LoraSpec(rank=4, seed=3))
        for name, weight in chat.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.constant_(weight, 0.02)
    expected = states_and_gradients(hidden_states, chats[1].model, *ragged(2, [5, 11]))
    found = states_and_gradients(hidden_states, chats[0].model, *ragged(2, [5, 11]))
    assert len(found) == len(expected) > 4
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))


def test_what_was_only_read_can_be_trained_on() -> None:
    """How sequences are grouped is remembered, also from where no tensor may have a gradient."""
    model, given = in_one_row(tiny.model()), ragged(8, [9, 4, 17])
    with torch.inference_mode():
        states = hidden_states(model, *given)
    torch.testing.assert_close(states_and_gradients(hidden_states, model, *given)[0], states[given[1]])


def test_nothing_but_padding_is_nothing() -> None:
    states = hidden_states(in_one_row(tiny.model()), *ragged(1, [0, 0]))
    assert states.shape == (2, 1, 32) and not states.any()


def looks_across(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, *lengths: Any, **how: Any) -> Tensor:
    whole = torch.tensor([0, len(q)], dtype=torch.int32)
    return kernel(q, k, v, whole, whole, len(q), len(q), **how)


def no_way_back(*given: Any, **how: Any) -> Tensor:
    return kernel(*given, **how).detach()


def missing(*given: Any, **how: Any) -> Tensor:
    raise NotImplementedError("no kernel for this head width")


@pytest.mark.parametrize("broken", [looks_across, no_way_back, missing])
def test_a_kernel_that_is_wrong_is_not_used(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch, broken)
    model = tiny.model()
    varlen.use_varlen(model)
    assert model.config._attn_implementation == "sdpa"


def test_answers_are_written_as_before() -> None:
    mine = in_one_row(tiny.model())
    chats = [ChatModel.of(model, tiny.tokenizer()) for model in (mine, tiny.model())]
    one, other = (sampled(chat) for chat in chats)
    assert one.responses() == other.responses()
    assert mine.config._attn_implementation == varlen.VARLEN


def test_the_model_itself_takes_padding_and_what_it_remembers_as_before() -> None:
    mine, own = in_one_row(tiny.model()), tiny.model()
    tokens, there = ragged(4, [6, 13], left=True)
    with torch.no_grad():
        for given in ({}, {"attention_mask": there.long()}):
            torch.testing.assert_close(mine(tokens, **given).logits, own(tokens, **given).logits)
        half = tokens.shape[1] // 2
        for part in (tokens[:, half:], tokens[:, -1:]):
            ends = []
            for model in (mine, own):
                seen = model(tokens[:, :half], use_cache=True).past_key_values
                ends.append(model(part, past_key_values=seen).logits)
            torch.testing.assert_close(*ends)


def test_a_loaded_model_is_read_in_one_row_unless_told_otherwise(tmp_path: Path) -> None:
    saved = str(tiny.save(tmp_path / "model"))
    chat = loading.load(ModelSpec(saved))
    assert chat.model.config._attn_implementation == varlen.VARLEN
    save(chat, tmp_path / "again")
    assert varlen.VARLEN not in (tmp_path / "again" / "config.json").read_text()
    for name in ("sdpa", "eager"):
        assert loading.load(ModelSpec(saved, attention=name)).model.config._attn_implementation == name
    with pytest.raises(InputError, match=r"[Ff]lash") as caught:
        loading.load(ModelSpec(saved, attention="flash_attention_2"))
    assert "\n" not in str(caught.value)


def test_a_package_of_flash_attention_is_told_where_sequences_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    def varlen_func(  # noqa: PLR0913 - the signature of the package
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:
        assert causal
        longest = int(max_seqlen_q), int(max_seqlen_k)
        how = {"scale": softmax_scale, "window_size": (-1, 0)}
        return kernel(q, k, v, cu_seqlens_q, cu_seqlens_k, *longest, **how)

    def rows(
        q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False
    ) -> Tensor:
        heads = [x.transpose(1, 2) for x in (q, k, v)]
        out = scaled_dot_product_attention(
            heads[0], heads[1], heads[2], is_causal=causal, scale=softmax_scale, enable_gqa=True
        )
        return out.transpose(1, 2)

    given = rows, varlen_func, None, packages._pad_input, packages._unpad_input
    monkeypatch.setattr(packages, "_lazy_imports", lambda *_, **__: given)
    monkeypatch.setattr(packages, "_loaded_implementation", None)
    model = tiny.model()
    model.config._attn_implementation = "flash_attention_2"
    agree(model, tiny.model(), *ragged(5, [8, 3, 11]))
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 0], [0, 1, 2, 3, 4, 5, 0]])
    there = torch.tensor([[1, 1, 1, 1, 1, 1, 0]] * 2).bool()
    agree(model, tiny.model(), positions + 5, there, positions)
    assert can_pack(model)
