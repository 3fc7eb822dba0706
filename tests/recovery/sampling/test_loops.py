"""Responses that only repeat themselves are ended at the same token by every sampler."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.engines.protocol import EngineSettings
from recovery.engines.vllm_http import ServerEngine
from recovery.models.chat_model import ChatModel
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.loops import PIECE, REPEATS, SHORTEST, loop_end, loop_ends
from recovery.sampling.protocol import SamplingParams
from tests.support import tiny
from tests.support.engine_fakes import TinyEngine, serving

PARAMS = SamplingParams(200, temperature=0.0, seed=3)
PROMPTS = [[65 + n] * (3 + n) for n in range(5)]


def by_hand(tokens: list[int]) -> int | None:
    """Try every length and every piece."""
    for length in range(SHORTEST, len(tokens) + 1):
        for size in range(1, PIECE + 1):
            whole = max(REPEATS * size, SHORTEST)
            tail = tokens[length - whole : length] if whole <= length else []
            if tail and tail[size:] == tail[:-size]:
                return length
    return None


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 9), max_size=40),
    st.lists(st.integers(0, 9), min_size=1, max_size=PIECE + 2),
    st.integers(1, 70),
)
def test_a_loop_ends_at_its_first_token_that_makes_it_one(
    before: list[int], piece: list[int], times: int
) -> None:
    tokens = [*before, *(piece * times)[:330], 11, 12]
    assert loop_end(tokens) == by_hand(tokens)


def test_a_loop_is_found_whatever_the_parts_it_comes_in() -> None:
    tokens = [*range(100, 150), *[1, 2, 3] * 60]
    end = loop_end(tokens)
    assert end == by_hand(tokens)
    for size in (1, 7, 32):
        seen = range(0, len(tokens), size)
        found = (loop_end(tokens[: start + size], start) for start in seen)
        assert next(one for one in found if one is not None) == end


def test_lists_tables_and_refrains_are_no_loops() -> None:
    numbered = [token for n in range(60) for token in (7, 8, 100 + n, 9)]
    row_of_a_table = [5, 6] * 20
    refrain = [*range(40), *range(50, 90), *range(40), *range(100, 140), *range(40)]
    for tokens in (numbered, row_of_a_table, refrain):
        assert loop_end(tokens) is None
    assert (loop_ends(torch.tensor([[3] * 20])) > 20).all()


@pytest.fixture(scope="module")
def student() -> ChatModel:
    """Greedy answers of a random model soon repeat themselves."""
    student = tiny.chat_model()
    student.stop_ids = ()
    return student


def test_the_sampler_cuts_loops_and_leaves_all_else_as_it_is(student: ChatModel) -> None:
    sampler = InProcessSampler(student)
    whole = sampler.sample(PROMPTS, PARAMS)
    cut = sampler.sample(PROMPTS, replace(PARAMS, stop_loops=True))
    expected = [answer[: loop_end(answer)] for answer in whole.responses()]
    assert cut.responses() == expected != whole.responses()
    assert not cut.finished_B.any()
    random = replace(PARAMS, temperature=1.0)
    assert sampler.generate(PROMPTS, random) == sampler.generate(PROMPTS, replace(random, stop_loops=True))


def test_a_server_s_answer_is_left_once_it_is_a_loop(student: ChatModel) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], EngineSettings(timeout_seconds=60))
        whole = engine.sample(PROMPTS, PARAMS, [])
        cut = engine.sample(PROMPTS, replace(PARAMS, stop_loops=True), [])
        engine.close()
    assert [one.tokens for one in cut] == [one.tokens[: loop_end(one.tokens)] for one in whole]
    assert cut != whole and all(len(one.tokens) == len(one.logprobs) for one in cut)
