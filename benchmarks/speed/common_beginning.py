"""Compare sampling where what all prompts begin with is read once with reading every prompt whole."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks.common import Report, Row, median, run
from benchmarks.speed import material
from benchmarks.speed.material import Material
from evals.probes import general_retention
from recovery.forward.common_beginning import common_beginning
from recovery.forward.decoder_choice import decoding, decoding_by, decoding_way
from recovery.models.chat_model import ChatModel
from recovery.models.device import Dtype
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams

DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
ROUNDS = 3


def fill(report: Report, asked: argparse.Namespace) -> None:
    rows = []
    with material.checkpoint(asked.model) as directory:
        of = Material(directory)
        for dtype in DTYPES:
            chat = of.load(dtype)
            for name, prompts, new_tokens in suites(of, chat, quick=asked.quick):
                found = compare(chat, prompts, new_tokens, asked.rounds or ROUNDS)
                rows.append({"prompts": name, "dtype": dtype, **found})
    report.tables["Processor seconds"] = rows
    report.notes.append(
        f"{of.describe(chat)}, temperature 0, {len(prompts)} prompts, the median of {asked.rounds or ROUNDS} "
        "rounds. Seconds of the processor, as others use it too. `in common` are the tokens that "
        "all prompts begin with, `of` those of a prompt on average. `same answers`: the share of prompts "
        "with the same tokens, as two passes round otherwise."
    )


def suites(of: Material, chat: ChatModel, *, quick: bool) -> list[tuple[str, list[list[int]], int]]:
    """Return names, prompts and lengths of the answers: short ones to questions, long ones to tasks."""
    count = 4 if quick else 64
    asked = [probe.prompt for probe in general_retention()[:count]]
    questions = [chat.prompt_ids([{"role": "user", "content": text}]) for text in asked]
    instructions = [chat.prompt_ids(prompt.messages) for prompt in of.prompts(count)]
    return [("general questions", questions, 24), ("instructions", instructions, 8 if quick else 128)]


def compare(chat: ChatModel, prompts: Sequence[Sequence[int]], new_tokens: int, rounds: int) -> Row:
    sampler = InProcessSampler(chat)
    write = partial(sampler.generate, prompts, SamplingParams(new_tokens, temperature=0))
    with decoding(chat.model) as model:
        once = decoding_way(model)
    ways = {"whole": replace(once, saves_at_least=math.inf), "once": replace(once, saves_at_least=1)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    written = {}
    for _ in range(1 + rounds):
        for name, way in ways.items():
            with decoding_by(model, way):
                begun = time.process_time()
                written[name] = write()
                seconds[name].append(time.process_time() - begun)
    found = {name: median(of[1:]) for name, of in seconds.items()}
    same = [mine == theirs for mine, theirs in zip(*written.values(), strict=True)]
    return {
        "in common": common_beginning([tuple(prompt) for prompt in prompts], 1),
        "of": round(sum(map(len, prompts)) / len(prompts)),
        "new tokens": sum(map(len, written["once"])),
        **found,
        "less time": f"{1 - found['once'] / found['whole']:.0%}",
        "same answers": f"{sum(same) / len(same):.0%}",
    }


if __name__ == "__main__":
    run(
        "common beginning",
        "What is it worth to read once what all prompts begin with?",
        fill,
        material.options,
    )
