"""Ids and shapes that do not fit are refused before they reach C: in a process that a crash would end."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from recovery.cpu import library

pytestmark = pytest.mark.skipif(library.library() is None, reason="no compiler here")
HEAD = """
import torch
from recovery.batches.teacher_scores import TeacherScores
from recovery.cpu.layer_kernels import Layers, Rows
from recovery.cpu.llama_decode import LlamaDecoder
from recovery.cpu.llama_forward import Reader
from recovery.cpu.library import library
from recovery.cpu.token_kernels import compare, draw
from recovery.forward.decoder import Responses
from recovery.forward.decoder_choice import decoding
from recovery.forward.packed import Packed
from recovery.methods.table import get
from recovery.objective.objective import Objective
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from tests.support import tiny

FAR = -10**9
model, chat = tiny.model(), tiny.chat_model()
logits, tokens, stops = torch.zeros(2, 5), torch.zeros(2, dtype=torch.long), torch.tensor([1])

def refused(work):
    try:
        found = work()
    except Exception as error:
        assert "\\n" not in str(error), error
        return
    assert found is None, found
"""
CASES = {
    "stop ids": """
        hidden = torch.zeros(2, 32, requires_grad=True)
        scores = TeacherScores(hidden_ND=hidden.detach(), head=model.lm_head)
        for stop in (FAR, -1, 259, 10**9):
            refused(lambda: Objective(get("opd"), [3, stop])(hidden, model.lm_head, tokens, scores=scores))
            refused(lambda: compare(logits, logits, tokens, torch.tensor([stop]), 1.0, False))
    """,
    "tokens": """
        for ids in (tokens + FAR, tokens - 1, tokens + 5, tokens.int(), tokens[:1]):
            refused(lambda: compare(logits, logits, ids, stops, 1.0, False))
        for token in (FAR, -1, 259, 10**9):
            refused(lambda: InProcessSampler(chat).sample([[1], [token]], SamplingParams(8)))
            with torch.no_grad():
                refused(lambda: Reader(model, library()).states(Packed.of([[1, token]]), None))
    """,
    "numbers": """
        refused(lambda: draw(logits, torch.zeros(1, dtype=torch.float64), 1.0))
        refused(lambda: draw(torch.zeros(2, 0), torch.zeros(2, dtype=torch.float64), 1.0))
    """,
    "bounds and wanted tokens": """
        whole = Packed.of([[1, 2, 3], [4, 5]])
        with torch.no_grad():
            for bounds in ([0, 3, 10**9], [FAR, 3, 5], [0, 7, 5], [0, 5, 3], []):
                one = Packed(whole.tokens_N, whole.positions_N, torch.tensor(bounds, dtype=torch.long))
                refused(lambda: Reader(model, library()).states(one, None))
            for place in (FAR, -1, 5, 10**9):
                refused(lambda: Reader(model, library()).states(whole, torch.tensor([0, place])))
    """,
    "rows": """
        def ahead(*steps):
            return decoder.layers.write_ahead(rows, weight, *turns, decoder.cache, responses, *steps)

        with decoding(model) as inner:
            for name, value in (("start_B", FAR), ("start_B", 99), ("place_B", FAR), ("place_B", 2),
                                ("token_B", FAR), ("token_B", 259), ("which_B", -1), ("which_B", 2)):
                decoder = LlamaDecoder(inner, 0, 8)
                decoder.prefill([[1, 2, 3], [4, 5]])
                decoder.cache.make_room(4)
                rows = Rows(torch.tensor([1, 2]), decoder.starts_B, torch.arange(2), torch.arange(2))
                getattr(rows, name)[0] = value
                responses = Responses(torch.zeros(2, 8, dtype=torch.long), torch.zeros(2, 8),
                                      torch.zeros(2, 8, dtype=torch.float64), 1.0, stops)
                weight = inner.get_input_embeddings().weight.detach()
                turns = decoder._turns(weight, 8)
                refused(lambda: ahead(1, 1))
                decoder.starts_B = torch.tensor([FAR, 0])
                refused(lambda: decoder.step(torch.tensor([1, 2])))
            decoder = LlamaDecoder(inner, 0, 8)
            decoder.prefill([[1, 2, 3], [4, 5]])
            decoder.cache.make_room(4)
            rows = Rows(torch.tensor([1, 2]), decoder.starts_B, torch.arange(2), torch.arange(2))
            for step, steps in ((8, 1), (1, 10**6), (FAR, 1), (1, FAR)):
                refused(lambda: ahead(step, steps))
    """,
}


def script() -> str:
    """A program that tries every case, and prints the name of each that it lived through."""
    return HEAD + "".join(f"{textwrap.dedent(body)}\nprint({name!r})\n" for name, body in CASES.items())


def test_ids_and_shapes_that_do_not_fit_are_refused() -> None:
    done = subprocess.run([sys.executable, "-c", script()], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-1500:] or done.returncode
    assert done.stdout.splitlines() == list(CASES)
