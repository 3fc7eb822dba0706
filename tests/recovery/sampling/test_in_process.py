"""The in-process sampler against transformers' own generate, and against what the model itself says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recovery.batches.length_groups import PASS, length_groups
from recovery.batches.rollouts import Rollouts
from recovery.errors import InputError, RecoverError
from recovery.memory import GIB
from recovery.models.chat_model import ChatModel
from recovery.sampling import decode_batch
from recovery.sampling.budget import Budget
from recovery.sampling.draw import draw_tokens
from recovery.sampling.in_process import InProcessSampler, UniformNumbers
from recovery.sampling.protocol import SamplingParams
from tests.support import tiny
from tests.support.present import present
from tests.support.samples import STOPS, generated, prompts_of, teacher_forced

pytestmark = pytest.mark.usefixtures("with_and_without_cpu_engine")


def with_stops(*stops: int, **overrides: Any) -> ChatModel:
    """A tiny model that stops often: with 259 tokens, these are what makes its responses differ in length."""
    made = tiny.chat_model(**overrides)
    made.stop_ids = stops
    return made


@contextmanager
def within(budget: Budget) -> Iterator[None]:
    """Sample as if the machine had room for no more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budget, "of", lambda *_, **__: budget)
        yield


HOST_ERROR = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"


CONFIGS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one kv head a query head": {"num_key_value_heads": 2},
    "sliding windows": {
        "use_sliding_window": True,
        "sliding_window": 8,
        "layer_types": ["sliding_attention"] * 2,
    },
    "eager": {"attn_implementation": "eager"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_is_generates_greedy(name: str) -> None:
    chat_model = with_stops(*STOPS, **CONFIGS[name])
    prompts = prompts_of(12)
    params = SamplingParams(max_new_tokens=24, temperature=0)
    ours = InProcessSampler(chat_model).sample(prompts, params).responses()
    assert ours == generated(chat_model.model, prompts, STOPS, 24)
    assert len({len(response) for response in ours}) > 3


@pytest.mark.parametrize("name", CONFIGS)
def test_logprobs_are_those_of_the_model_read_again(name: str) -> None:
    chat_model = with_stops(*STOPS, **CONFIGS[name])
    rollouts = InProcessSampler(chat_model).sample(prompts_of(40), SamplingParams(max_new_tokens=80))
    torch.testing.assert_close(
        rollouts.logprobs_N, teacher_forced(chat_model.model, rollouts), atol=1e-4, rtol=0
    )
    assert (rollouts.logprobs_BT[~rollouts.mask_BT] == 0).all()


def test_logprobs_are_those_of_the_tempered_distribution() -> None:
    chat_model = tiny.chat_model()
    rollouts = InProcessSampler(chat_model).sample(
        [[1, 2, 3]] * 3, SamplingParams(max_new_tokens=6, temperature=2.0)
    )
    with torch.no_grad():
        logits = chat_model.model(rollouts.tokens_BT).logits[:, :-1] / 2.0
    expected = logits.log_softmax(-1).gather(-1, rollouts.tokens_BT[:, 1:, None])[..., 0]
    torch.testing.assert_close(rollouts.logprobs_N, expected[rollouts.mask_BT[:, 1:]], atol=1e-4, rtol=0)


def test_a_row_is_the_same_in_any_batch() -> None:
    chat_model, prompts = with_stops(*STOPS), prompts_of(30)
    params = SamplingParams(max_new_tokens=40, seed=3)
    whole = InProcessSampler(chat_model).sample(prompts, params)
    small = InProcessSampler(chat_model, batch_size=4).sample(prompts, params)
    assert whole.responses() == small.responses()
    torch.testing.assert_close(whole.logprobs_BT, small.logprobs_BT, atol=1e-4, rtol=0)


@given(st.integers(1, 40), st.integers(60, 400), st.integers(0, 2**16))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_responses_do_not_depend_on_the_budget(rows: int, tokens: int, seed: int) -> None:
    """Prompts of very different lengths, some of them equal, whatever is decoded together."""
    chat_model = with_stops(*STOPS)
    prompts = prompts_of(5, seed=seed) + prompts_of(1, 50, 51, seed) + [[1, 2, 3]] * 3
    params = SamplingParams(max_new_tokens=9, seed=seed)
    expected = InProcessSampler(chat_model).sample(prompts, params)
    with within(Budget(rows, tokens)):
        found = InProcessSampler(chat_model).sample(prompts, params)
    assert found.responses() == expected.responses()
    torch.testing.assert_close(found.logprobs_BT, expected.logprobs_BT, atol=1e-4, rtol=0)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError(HOST_ERROR)])
def test_it_goes_on_with_smaller_batches_when_memory_runs_out(
    error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat_model, prompts, sizes = with_stops(*STOPS), prompts_of(20), []
    params = SamplingParams(max_new_tokens=20, seed=5)
    expected = InProcessSampler(chat_model).sample(prompts, params)
    run = decode_batch.DecodeBatch.run

    def limited(batch: decode_batch.DecodeBatch, *given: Any) -> Any:
        sizes.append(len(batch.prompts))
        if len(batch.prompts) > 6:
            raise error
        return run(batch, *given)

    monkeypatch.setattr(decode_batch.DecodeBatch, "run", limited)
    found = InProcessSampler(chat_model).sample(prompts, params)
    assert found.responses() == expected.responses()
    assert sizes[0] == 20 and sizes.count(20) == 1 and max(sizes[3:]) <= 6


def test_a_single_row_without_memory_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(decode_batch.DecodeBatch, "run", fail)
    with pytest.raises(RecoverError, match="single row of 12 tokens"):
        InProcessSampler(tiny.chat_model()).sample([[1, 2]], SamplingParams(10))


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> Any:
        raise RuntimeError("a size mismatch")

    monkeypatch.setattr(decode_batch.DecodeBatch, "run", fail)
    with pytest.raises(RuntimeError, match="size mismatch"):
        InProcessSampler(tiny.chat_model()).sample([[1, 2]], SamplingParams(10))


def test_prompts_without_room_are_named() -> None:
    chat_model = tiny.chat_model(max_position_embeddings=32)
    params = SamplingParams(max_new_tokens=8)
    with pytest.raises(InputError, match=r"prompt 2 has 32 tokens, the model reads 32"):
        InProcessSampler(chat_model).sample([[1], [1] * 32], params)
    full = r"prompt 12 has 20 tokens.*does not fit \(25 GiB at most\)"
    with within(Budget(rows=2, bytes=25 * GIB, token_bytes=GIB)), pytest.raises(InputError, match=full):
        InProcessSampler(chat_model).sample([[1], [1] * 20], replace(params, first=10))


def test_a_response_ends_where_the_model_s_context_does() -> None:
    chat_model = tiny.chat_model(max_position_embeddings=32)
    chat_model.stop_ids = ()
    prompts, params = [[1] * 28, [2] * 5, [3] * 31], SamplingParams(max_new_tokens=20)
    rollouts = InProcessSampler(chat_model).sample(prompts, params)
    assert [len(response) for response in rollouts.responses()] == [4, 20, 1]
    assert not rollouts.finished_B.any()


def test_same_seed_same_tokens_other_seed_others() -> None:
    sampler, prompts = InProcessSampler(tiny.chat_model()), prompts_of(4)
    first = sampler.sample(prompts, SamplingParams(max_new_tokens=20, seed=1))
    again = sampler.sample(prompts, SamplingParams(max_new_tokens=20, seed=1))
    other = sampler.sample(prompts, SamplingParams(max_new_tokens=20, seed=2))
    assert torch.equal(first.tokens_BT, again.tokens_BT)
    assert torch.equal(first.logprobs_BT, again.logprobs_BT)
    assert first.responses() != other.responses()


def test_parts_of_a_list_draw_each_number_once_and_the_very_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that came before were drawn again for each part of a long one."""
    params, rand, drawn = SamplingParams(max_new_tokens=7, seed=3), torch.rand, []
    generator = torch.Generator().manual_seed(3)
    whole_RT = rand((60, 7), dtype=torch.float64, generator=generator)

    def counted(shape: tuple[int, int], **how: Any) -> torch.Tensor:
        drawn.append(shape[0])
        return rand(shape, **how)

    monkeypatch.setattr(torch, "rand", counted)
    numbers = UniformNumbers()
    for first in (0, 16, 20, 44):  # the third begins before the second has ended, the last one further on
        assert torch.equal(numbers.of(16, replace(params, first=first)), whole_RT[first : first + 16])
    assert drawn == [16, 16, 36, 24]
    other = numbers.of(4, replace(params, seed=4))
    assert torch.equal(other, UniformNumbers().of(4, replace(params, seed=4)))
    assert torch.equal(numbers.of(5, params), whole_RT[:5])


def test_equal_prompts_are_read_once_and_answered_apart() -> None:
    sampler = InProcessSampler(tiny.chat_model())
    rollouts = sampler.sample([[5, 6], [7], [5, 6], [5, 6]], SamplingParams(max_new_tokens=12))
    assert rollouts.prompts() == [[5, 6], [7], [5, 6], [5, 6]]
    assert len({tuple(response) for response in rollouts.responses()}) == 4
    assert rollouts.index_B.tolist() == [0, 1, 2, 3]


def test_responses_end_at_their_stop_token_or_at_the_limit() -> None:
    rollouts = InProcessSampler(with_stops(*STOPS)).sample(prompts_of(50), SamplingParams(max_new_tokens=10))
    for response, finished in zip(rollouts.responses(), rollouts.finished_B.tolist(), strict=True):
        assert not set(response[:-1]) & set(STOPS)
        assert finished == (response[-1] in STOPS)
        assert finished or len(response) == 10
    assert 0 < rollouts.finished_B.sum() < 50


def test_generate_drops_stop_tokens_and_reports_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_batch, "REPORT_SECONDS", float("inf"))
    sampler, prompts, seen = InProcessSampler(with_stops(*STOPS), batch_size=8), prompts_of(20), []
    params = SamplingParams(max_new_tokens=10)
    responses = sampler.generate(prompts, params, lambda done, total: seen.append((done, total)))
    sampled = sampler.sample(prompts, params).responses()
    assert responses == [r[:-1] if r[-1] in STOPS else r for r in sampled]
    assert seen == [(8, 20), (16, 20), (20, 20)]


def test_progress_is_reported_while_a_batch_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_batch, "REPORT_SECONDS", 0)
    sampler = InProcessSampler(with_stops(7, 77))
    done: list[int] = []
    tokens: list[int] = []
    params = SamplingParams(max_new_tokens=60, on_tokens=tokens.append)
    responses = sampler.generate(prompts_of(20), params, lambda count, total: done.append(count))
    assert len(done) > 3 and done[0] < 20 and done == sorted(done) and done[-1] == 20
    assert len(set(tokens)) > 3 and tokens == sorted(tokens)
    stopped = sum(len(response) < 60 for response in responses)
    assert tokens[-1] == sum(map(len, responses)) + stopped


def test_the_model_is_left_as_it_was() -> None:
    chat_model = tiny.chat_model()
    chat_model.model.train()
    chat_model.model.lm_head.eval()
    weights = {name: p.clone() for name, p in chat_model.model.named_parameters()}
    state = torch.get_rng_state()
    rollouts = InProcessSampler(chat_model).sample([[1, 2]], SamplingParams(max_new_tokens=4))
    assert chat_model.model.training
    assert not chat_model.model.lm_head.training
    assert chat_model.model.config._attn_implementation == "sdpa"
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, weights[name]) for name, p in chat_model.model.named_parameters())
    assert not rollouts.logprobs_BT.is_inference()


def test_an_error_inside_leaves_the_model_as_it_was() -> None:
    chat_model = tiny.chat_model()
    chat_model.model.train()
    with pytest.raises(InputError, match="token 9999 is outside"):
        InProcessSampler(chat_model).sample([[9999]], SamplingParams(max_new_tokens=4))
    assert chat_model.model.training
    assert chat_model.model.config._attn_implementation == "sdpa"


def test_bad_requests() -> None:
    sampler = InProcessSampler(tiny.chat_model())
    for prompts, words in (
        ([], "no prompts"),
        ([[1], []], "prompt 2 is empty"),
        ([[1], [2, -1]], "token -1"),
    ):
        with pytest.raises(InputError, match=words):
            sampler.sample(prompts, SamplingParams())
    with pytest.raises(InputError, match="max_new_tokens"):
        SamplingParams(max_new_tokens=0)
    with pytest.raises(InputError, match="temperature"):
        SamplingParams(temperature=-1.0)


def test_choose_by_hand() -> None:
    """Probabilities .5 .25 .25: numbers in [0, .5) take the first token, [.5, .75) the second, the rest the
    third.
    """
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log().expand(5, 3)
    numbers = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76], dtype=torch.float64)
    tokens, logprobs = draw_tokens(logits, numbers, 1.0)
    assert tokens.tolist() == [0, 0, 1, 1, 2]
    torch.testing.assert_close(logprobs.exp(), torch.tensor([0.5, 0.5, 0.25, 0.25, 0.25]))
    assert draw_tokens(logits, numbers, 0.0)[0].tolist() == [0] * 5


@given(st.integers(0, 2**32 - 1), st.integers(1, 700), st.sampled_from([0.1, 3.0, 30.0]))
def test_choose_takes_what_the_running_sum_passes_first(seed: int, vocabulary: int, spread: float) -> None:
    """Over pieces of a vocabulary as over the whole, in float64 from end to end."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(16, vocabulary, generator=random) * spread
    logits[:, 1:].masked_fill_(torch.rand(16, vocabulary - 1, generator=random) < 0.3, float("-inf"))
    numbers = torch.rand(16, dtype=torch.float64, generator=random)
    numbers[:3] = torch.tensor([0.0, 0.5, 1 - 2**-53])
    tokens, logprobs = draw_tokens(logits, numbers, 1.0)
    chances = logits.double().softmax(-1)
    assert (chances.gather(1, tokens[:, None]) > 0).all()
    passed = chances.cumsum(-1)
    after = passed.gather(1, tokens[:, None])[:, 0]
    before = after - chances.gather(1, tokens[:, None])[:, 0]
    assert (before <= numbers + 1e-6).all()
    assert (numbers <= after + 1e-6).all()
    torch.testing.assert_close(logprobs.double(), (after - before).log(), atol=1e-4, rtol=1e-5)


def test_choose_never_takes_the_impossible() -> None:
    logits = torch.tensor([float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]).expand(1000, 5)
    tokens, _ = draw_tokens(logits, torch.linspace(0, 1 - 1e-12, 1000, dtype=torch.float64), 1.0)
    assert set(tokens.tolist()) == {1, 3}


def test_frequencies_are_the_models_probabilities() -> None:
    """20,000 draws of one token: a chi-square over the likely tokens far below its 1e-6 quantile."""
    chat_model = tiny.chat_model()
    rollouts = InProcessSampler(chat_model, batch_size=20000).sample([[65, 66]] * 20000, SamplingParams(1))
    with torch.no_grad():
        expected = chat_model.model(torch.tensor([[65, 66]])).logits[0, -1].softmax(-1) * 20000
    counts = torch.bincount(rollouts.tokens_N, minlength=len(expected)).float()
    likely = expected > 5
    chi_square = ((counts - expected)[likely] ** 2 / expected[likely]).sum() / likely.sum()
    assert chi_square < 1.5


ROWS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 7)), min_size=1, max_size=12)


def rollouts_of(shapes: list[tuple[int, int]]) -> Rollouts:
    """Rows of (prompt length, response length) whose tokens name their row and place."""
    prompts = [[100 * i + j for j in range(a)] for i, (a, _) in enumerate(shapes)]
    responses = [[100 * i + 50 + j for j in range(b)] for i, (_, b) in enumerate(shapes)]
    scores = [[-float(t) for t in response] for response in responses]
    return Rollouts.from_samples(prompts, responses, scores, [True] * len(shapes), pad_id=9999)


@given(ROWS, st.integers(1, 60))
def test_splitting_keeps_every_row_once_and_within_the_budget(
    shapes: list[tuple[int, int]], budget: int
) -> None:
    rollouts = rollouts_of(shapes)
    parts = rollouts.split(budget)
    assert sorted(i for part in parts for i in part.index_B.tolist()) == list(range(len(shapes)))
    assert sum(part.n_tokens for part in parts) == rollouts.n_tokens
    for part in parts:
        assert part.tokens_BT.numel() <= budget or len(part) == 1
        assert part.tokens_BT.shape[1] == max(part.lengths_B)
        for i, response in zip(part.index_B.tolist(), part.responses(), strict=True):
            assert response == rollouts.responses()[i]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9), st.integers(1, 600))
def test_groups_cost_least(lengths: list[int], budget: int) -> None:
    """Against every way to cut, a pass counted as PASS tokens."""
    lengths.sort()

    def cost(groups: list[slice]) -> int:
        parts = [lengths[group] for group in groups]
        return sum(len(part) * part[-1] + PASS for part in parts)

    def fits(groups: list[slice]) -> bool:
        parts = [lengths[group] for group in groups]
        return all(len(part) * part[-1] <= budget or len(part) == 1 for part in parts)

    inner = range(1, len(lengths))
    ways = [
        [slice(*cut) for cut in pairwise([0, *cuts, len(lengths)])]
        for count in range(len(lengths))
        for cuts in combinations(inner, count)
    ]
    found = length_groups(lengths, budget)
    assert found in ways
    assert fits(found)
    assert cost(found) == min(cost(way) for way in ways if fits(way))


def test_groups_by_hand() -> None:
    """One pass for all, until the padding costs more than another pass."""
    assert length_groups([10, 20], 1000) == [slice(0, 2)]
    assert length_groups([10, 20], 39) == [slice(0, 1), slice(1, 2)]
    assert length_groups([10, 600, 600], 3000) == [slice(0, 1), slice(1, 3)]
    assert length_groups([], 10) == []


@given(ROWS, st.randoms())
def test_other_prompts_keep_the_counted_tokens_in_order(
    shapes: list[tuple[int, int]], draw: random.Random
) -> None:
    rollouts = rollouts_of(shapes)
    prompts = [[7] * draw.randrange(1, 9) for _ in shapes]
    changed = rollouts.with_prompts(prompts, 9999)
    assert torch.equal(changed.tokens_N, rollouts.tokens_N)
    assert torch.equal(changed.logprobs_N, rollouts.logprobs_N)
    assert changed.prompts() == prompts
    assert torch.equal(changed.index_B, rollouts.index_B)


def test_rollouts_by_hand() -> None:
    rollouts = rollouts_of([(2, 1), (1, 3)])
    assert rollouts.tokens_BT.tolist() == [[0, 1, 50, 9999], [100, 150, 151, 152]]
    assert rollouts.mask_BT.tolist() == [[False, False, True, False], [False, True, True, True]]
    assert rollouts.rows_N.tolist() == [0, 1, 1, 1]
    assert rollouts.per_token(torch.tensor([5.0, 6.0])).tolist() == [5.0, 6.0, 6.0, 6.0]
    hidden = torch.arange(8.0).view(2, 4, 1)
    assert hidden[:, :3][rollouts.predictors_BT].flatten().tolist() == [1.0, 4.0, 5.0, 6.0]
    assert rollouts.select([1]).tokens_BT.tolist() == [[100, 150, 151, 152]]
    assert rollouts.select([0]).tokens_BT.tolist() == [[0, 1, 50]]
    rewarded = replace(rollouts, rewards_B=torch.tensor([1.0, 2.0]))
    assert present(rewarded.select([1]).rewards_B).tolist() == [2.0]


def test_dialogues_count_what_their_mask_says_but_never_the_first_token() -> None:
    rollouts = Rollouts.from_dialogues([([1, 2, 3], [True, False, True]), ([4], [True])], pad_id=0)
    assert rollouts.mask_BT.tolist() == [[False, False, True], [False, False, False]]
    assert rollouts.prompt_lengths_B.tolist() == [2, 1]
    with pytest.raises(InputError, match="empty"):
        Rollouts.from_dialogues([], pad_id=0)


@given(st.lists(st.integers(1, 23), min_size=1, max_size=15), st.integers(1, 16))
def test_packing_keeps_every_token_once(lengths: list[int], room: int) -> None:
    sequences = [([100 * i + j for j in range(n)], [True] * n) for i, n in enumerate(lengths)]
    packed = Rollouts.packed(sequences, pad_id=-1, length=room)
    assert packed.tokens_BT.shape[1] <= room
    assert sorted(packed.tokens_BT[packed.attention_BT].tolist()) == sorted(
        t for ids, _ in sequences for t in ids
    )
    restarts = (packed.positions_BT == 0) & packed.attention_BT
    assert not (packed.mask_BT & restarts).any()
    assert packed.n_tokens == sum(lengths) - int(restarts.sum())


def test_packed_rows_are_read_as_if_each_sequence_were_alone() -> None:
    from recovery.forward.hidden_states import predicting_states

    model, sequences = tiny.model(), [(ids, [True] * len(ids)) for ids in prompts_of(9)]
    packed = Rollouts.packed(sequences, pad_id=258, length=32)
    alone = Rollouts.from_dialogues(sequences, pad_id=258)
    assert len(packed) < len(alone)
    seen = []
    for rollouts in (packed, alone):
        with torch.no_grad():
            states = predicting_states(model, rollouts)
        rows = zip(rollouts.tokens_N.tolist(), states.sum(-1).tolist(), strict=True)
        seen.append(sorted((token, round(value, 3)) for token, value in rows))
    assert [token for token, _ in seen[0]] == [token for token, _ in seen[1]]
    torch.testing.assert_close(*(torch.tensor([v for _, v in rows]) for rows in seen), atol=5e-3, rtol=0)
