"""Every family decodes the way that gives the numbers of its own forward pass."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch

from recovery import distributed
from recovery.errors import InputError
from recovery.forward.decoder_choice import decoder_of, decoding, decoding_by, decoding_way
from recovery.forward.hidden_states import hidden_states, logits_of, plain_states, row_sharing, states_at
from recovery.forward.isolation import PADDING, Sharing, rows_stay_apart
from recovery.models.chat_model import ChatModel
from recovery.models.loading import settle_architecture
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from tests.support import families, tiny

LENGTHS = (5, 21, 21, 30)  # some within Llama 4's chunk of 16, some beyond it
NEW_TOKENS = 12
LONG = "Phi-3, long context"
LONG_LLAMA = "Llama, long context"  # which the kernels of a CPU would read too
EACH_WAY = ("Llama", "Falcon, alibi", "Mamba 2", "RWKV")
EVERY_FAMILY = [
    *EACH_WAY,
    *(pytest.param(name, marks=pytest.mark.slow) for name in families.FALLBACKS if name not in EACH_WAY),
]
BOUNDARY = 56


def chat_model(name: str) -> ChatModel:
    family = families.named(LONG if name == LONG_LLAMA else name)
    model = families.model(replace(family, model_type="llama") if name == LONG_LLAMA else family)
    settle_architecture(model)
    chat = ChatModel.of(model, tiny.tokenizer(), path=name)
    chat.stop_ids = ()
    return chat


def prompts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 250, (length,), generator=generator).tolist() for length in lengths]


@torch.no_grad()
def teacher_forced(model: Any, prompt: list[int], response: list[int]) -> torch.Tensor:
    """Log-probs of a response, read alone in one unpadded pass."""
    tokens_BT = torch.tensor([prompt + response])
    logprobs_TV = model(tokens_BT, use_cache=False).logits[0].log_softmax(-1)
    before = len(prompt) - 1
    return logprobs_TV[before:-1].gather(-1, torch.tensor(response)[:, None])[:, 0]


def test_a_model_decodes_in_a_given_way_inside_the_block_alone() -> None:
    chat = chat_model("Llama")
    with decoding(chat.model) as model:
        own = decoding_way(model)
        other = replace(own, saves_at_least=1)
        with decoding_by(model, other):
            assert decoding_way(model) is other
            assert decoder_of(model, chat.pad_id, NEW_TOKENS).saves_at_least == 1
        assert decoding_way(model) is own != other


@pytest.mark.parametrize("enabled", [True, False])
def test_decoding_leaves_cudnn_s_attention_out_and_brings_it_back(enabled: bool) -> None:
    """It builds a plan for every new shape, and each token is one slot more."""
    chat, cuda = chat_model("Llama"), torch.backends.cuda
    before = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(enabled)
    try:
        with decoding(chat.model), decoding(chat.model):
            assert not cuda.cudnn_sdp_enabled()
        assert cuda.cudnn_sdp_enabled() is enabled
        with pytest.raises(KeyError), decoding(chat.model):
            raise KeyError
        assert cuda.cudnn_sdp_enabled() is enabled
    finally:
        cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_greedy_tokens_equal_those_of_generate(name: str) -> None:
    chat, asked = chat_model(name), prompts()
    written = InProcessSampler(chat).generate(asked, SamplingParams(NEW_TOKENS, temperature=0))
    for prompt, response in zip(asked, written, strict=True):
        alone: Any = chat.model.generate(
            torch.tensor([prompt]),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            use_cache=name != "xLSTM",  # its cache fails
        )
        assert response == alone[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_log_probs_equal_those_of_one_unpadded_pass(name: str) -> None:
    chat, asked = chat_model(name), prompts()
    rollouts = InProcessSampler(chat).sample(asked, SamplingParams(NEW_TOKENS, seed=1))
    expected = [
        teacher_forced(chat.model, prompt, response)
        for prompt, response in zip(asked, rollouts.responses(), strict=True)
    ]
    torch.testing.assert_close(rollouts.logprobs_N, torch.cat(expected), rtol=1e-3, atol=1e-4)


def test_rows_that_finish_leave_the_others_as_they_are() -> None:
    chat, asked = chat_model("Mamba 2"), prompts((9, 9, 9, 14))
    whole = InProcessSampler(chat).sample(asked, SamplingParams(NEW_TOKENS, seed=1)).responses()
    chat.stop_ids = (whole[1][2], whole[3][5])
    stopped = InProcessSampler(chat).sample(asked, SamplingParams(NEW_TOKENS, seed=1)).responses()
    assert len(stopped[1]) <= 3
    for before, after in zip(whole, stopped, strict=True):
        assert after == before[: len(after)]


@pytest.mark.parametrize("name", [*EVERY_FAMILY, LONG])
def test_gradients_of_a_padded_batch_equal_those_of_single_rows(name: str) -> None:
    model = chat_model(name).model.train()
    rows = prompts((5, 21, 70))
    together, alone = (_gradient(model, rows, batched=batched) for batched in (True, False))
    assert (together - alone).norm() < 1e-4 * alone.norm()


def _gradient(model: Any, rows: list[list[int]], *, batched: bool) -> torch.Tensor:
    """Gradient of the embeddings, of the log-probs of all tokens; rows right-padded or one by one."""
    embeddings = model.get_input_embeddings().weight
    loss = torch.zeros(())
    for part in [rows] if batched else [[row] for row in rows]:
        width = max(map(len, part))
        tokens_BT = torch.tensor([row + [0] * (width - len(row)) for row in part])
        real_BT = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in part])
        logprobs_BTV = logits_of(model, hidden_states(model, tokens_BT, real_BT)).log_softmax(-1)
        taken_BT = logprobs_BTV[:, :-1].gather(-1, tokens_BT[:, 1:, None])[..., 0]
        loss = loss + taken_BT[real_BT[:, 1:]].sum()
    (gradient,) = torch.autograd.grad(loss, [embeddings])
    return torch.as_tensor(gradient)


def test_padding_is_refused_where_it_reaches_a_row() -> None:
    rwkv, llama = chat_model("RWKV").model, chat_model("Llama").model
    assert row_sharing(rwkv).equal_lengths
    assert not row_sharing(llama).is_limited
    assert decoding_way(rwkv).sharing.equal_lengths
    assert not decoding_way(llama).sharing.equal_lengths


def test_a_model_that_reads_one_length_at_a_time_is_not_sharded() -> None:
    """Each process would read as many passes as it has lengths, and a pass of shards needs all processes."""
    refused = r"model\.shard: sequences of this model that differ in length .*: set it to false"
    with pytest.raises(InputError, match=refused):
        distributed.shard(chat_model("RWKV").model, device="cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [1e-4, 0.02])
def test_a_leak_between_rows_is_seen_however_small_it_is(dtype: torch.dtype, share: float) -> None:
    model = tiny.model().to(dtype)

    def states(rows: list[list[int]]) -> torch.Tensor:
        last = [plain_states(model, torch.tensor([row]))[0, -1] for row in rows]
        return torch.stack(last)

    def leaking(rows: list[list[int]]) -> list[torch.Tensor]:
        states_RD = states(rows)
        return [states_RD + share * states_RD.roll(1, 0)]

    def alone(row: list[int]) -> torch.Tensor:
        return states([row])[0]

    assert rows_stay_apart(model, lambda rows: [states(rows)], alone)
    assert not rows_stay_apart(model, leaking, alone)


@pytest.mark.parametrize(("dtype", "accepted"), [(torch.float32, False), (torch.bfloat16, True)])
def test_in_half_precision_one_text_that_rounding_carries_away_decides_nothing(
    dtype: torch.dtype, accepted: bool
) -> None:
    model = tiny.model().to(dtype)

    def alone(row: list[int]) -> torch.Tensor:
        return plain_states(model, torch.tensor([row]))[0, -1]

    def far_away_at_first(rows: list[list[int]]) -> list[torch.Tensor]:
        states_RD = torch.stack([alone(row) for row in rows])
        return [states_RD * 1.3 if rows[0][0] == PADDING + 1 else states_RD]

    assert rows_stay_apart(model, far_away_at_first, alone) is accepted


# LongRoPE: all rows of a pass are read with the frequencies that the longest needs


def test_the_boundary_of_long_sequences_is_found() -> None:
    for name in (LONG, LONG_LLAMA):
        assert row_sharing(chat_model(name).model) == Sharing(boundary=BOUNDARY)
    assert row_sharing(chat_model("Phi-3").model) == Sharing()


@pytest.mark.parametrize("name", [LONG, LONG_LLAMA])
@torch.no_grad()
def test_long_rows_leave_short_ones_as_they_are(name: str) -> None:
    model = chat_model(name).model
    rows = prompts((10, BOUNDARY, BOUNDARY + 1, 70))
    width = max(map(len, rows))
    tokens_BT = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    real_BT = torch.tensor([[place < len(row) for place in range(width)] for row in rows])
    states_BTD = hidden_states(model, tokens_BT, real_BT)
    assert not torch.allclose(plain_states(model, tokens_BT, real_BT)[0, :10], states_BTD[0, :10], atol=1e-2)
    for row, states_TD in zip(rows, states_BTD, strict=True):
        alone_TD = plain_states(model, torch.tensor([row]))[0]
        torch.testing.assert_close(states_TD[: len(row)], alone_TD, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_long_and_short_documents_may_share_a_packed_row() -> None:
    model = chat_model(LONG).model
    rows = prompts((10, 70, 6))
    positions_BT = torch.tensor([[place for row in rows for place in range(len(row))]])
    packed_TD = hidden_states(model, torch.tensor([[*chain(*rows)]]), positions_BT=positions_BT)[0]
    alone_TD = torch.cat([plain_states(model, torch.tensor([row]))[0] for row in rows])
    torch.testing.assert_close(packed_TD, alone_TD, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("lengths", "most"),
    [
        ((10, 6, 9), 1.0),  # all on one side of the boundary
        ((70, 57), 1.0),
        ((10, 70, 6), 2.0),
    ],
)
@torch.no_grad()
def test_packed_documents_are_read_without_much_padding(lengths: tuple[int, ...], most: float) -> None:
    """A row's own padding stands there as documents of one token."""
    model = chat_model(LONG).model
    rows = prompts(lengths)
    padding = 0 if min(lengths) > BOUNDARY else 40
    tokens_BT = torch.tensor([[*chain(*rows), *[0] * padding]])
    positions_BT = torch.tensor([[*chain(*(range(len(row)) for row in rows)), *[0] * padding]])
    wanted_BT = torch.arange(tokens_BT.shape[1])[None] < sum(lengths)
    alone_ND = torch.cat([plain_states(model, torch.tensor([row]))[0] for row in rows])
    row_sharing(model)  # its trial reads too
    read: list[int] = []
    embeddings = model.get_input_embeddings()
    hook = embeddings.register_forward_hook(lambda _, given, __: read.append(given[0].numel()))
    everywhere_ND = hidden_states(model, tokens_BT, positions_BT=positions_BT)[wanted_BT]
    some_ND = states_at(model, wanted_BT, tokens_BT, positions_BT=positions_BT)
    hook.remove()
    assert sum(read) <= 2 * most * tokens_BT.numel()
    for states_ND in (everywhere_ND, some_ND):
        torch.testing.assert_close(states_ND, alone_ND, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [LONG, LONG_LLAMA])
def test_a_row_that_grows_beyond_the_boundary_is_read_again(name: str) -> None:
    """Its tokens equal those of `generate`, and rows beside it do not change."""
    chat, asked = chat_model(name), prompts((8, 46, 52, 52, 70))
    written = InProcessSampler(chat).generate(asked, SamplingParams(NEW_TOKENS, temperature=0))
    for prompt, response in zip(asked, written, strict=True):
        tokens = list(prompt)
        assert len(response) == NEW_TOKENS
        for token in response:  # without a cache: each token from a pass over all before it
            with torch.no_grad():
                logits_V = chat.model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            assert token == int(logits_V.argmax())
            tokens.append(token)
