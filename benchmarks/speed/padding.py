"""Compare training on sequences of uneven length in one packed row with padding and masks."""

from __future__ import annotations

import argparse
import random
from functools import partial

import torch
from transformers import PreTrainedModel

from benchmarks.common import Machine, Report, Row, alternate, median, run
from benchmarks.speed.work import Work
from recovery.forward import varlen
from recovery.forward.fast_path import fast_path
from recovery.forward.hidden_states import hidden_states

BODIES = {"6 M": (256, 8), "20 M": (512, 7)}  # hidden size and layers; larger on a GPU
BODIES_GPU = {"0.4 B": (1024, 28), "1.4 B": (2048, 28)}
LORA_RANK = 16
TOKENS, TOKENS_GPU = 4096, 32768


def fill(report: Report, asked: argparse.Namespace) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    machine = Machine.measure(dtype)
    rows = []
    rounds = 1 if asked.quick else 3
    bodies, tokens = (BODIES_GPU, TOKENS_GPU) if device == "cuda" else (BODIES, TOKENS)
    for name, (hidden, layers) in list(bodies.items())[: 1 if asked.quick else None]:
        model, work = student(hidden, layers)
        model.to(device, dtype).train()
        for batch, lengths in batches(tokens).items():
            rows.append({"body": name, "batch": batch, **compare(model, lengths, work, machine, rounds)})
    report.tables["The machine in this run"] = [machine.row()]
    report.tables["Milliseconds forwards and backwards"] = rows
    report.notes.append(
        f"Random weights in the form of Qwen 3, an adapter of rank {LORA_RANK} on every linear layer, which "
        f"alone is trained; states of about {tokens:,} tokens, without the head. Documents share rows of the "
        "length that is named, answers have a row each, padded to the longest. The limit is the products of "
        "the frozen weights with tokens that are no padding, at the speed of a large one."
    )


def student(hidden: int, layers: int) -> tuple[torch.nn.Module, Work]:
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1024,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
    )
    model = Qwen3ForCausalLM(config)
    fast_path().configure(model)
    work = Work.of(model)
    return get_peft_model(model, LoraConfig(r=LORA_RANK, target_modules="all-linear")), work


def batches(tokens: int) -> dict[str, list[list[int]]]:
    """Return the lengths of the sequences in each row."""
    draw = random.Random(0)

    def rows_of(length: int) -> list[list[int]]:
        rows = []
        for _ in range(tokens // length):
            pieces: list[int] = []
            while sum(pieces) < length:
                pieces.append(min(draw.randint(20, 400), length - sum(pieces)))
            rows.append(pieces)
        return rows

    def answers(low: int, high: int) -> list[list[int]]:
        return [[draw.randint(low, high)] for _ in range(2 * tokens // (low + high))]

    return {
        "answers, 20 to 80 tokens": answers(20, 80),
        "answers, 50 to 500": answers(50, 500),
        "documents in rows of 512": rows_of(512),
        "documents in rows of 2,048": rows_of(2048),
    }


def compare(model: torch.nn.Module, rows: list[list[int]], work: Work, machine: Machine, rounds: int) -> Row:
    device = next(model.parameters()).device
    width = max(map(sum, rows))
    there_BT = torch.arange(width) < torch.tensor([sum(row) for row in rows])[:, None]
    tokens_BT = torch.randint(1024, there_BT.shape)
    positions_BT = torch.zeros_like(tokens_BT)
    for row, lengths in enumerate(rows):
        positions_BT[row, : sum(lengths)] = torch.cat([torch.arange(n) for n in lengths])
    alone = all(len(row) == 1 for row in rows)
    given = [x.to(device) for x in (tokens_BT, there_BT, positions_BT)][: 2 if alone else 3]
    sides = {"in rows": "sdpa", "in one row": varlen.VARLEN}
    seconds, _ = alternate({name: partial(turn, model, way, given) for name, way in sides.items()}, rounds)
    found = {name: median(of) for name, of in seconds.items()}
    whole = [n for row in rows for n in row]
    return {
        "padding": f"{1 - sum(whole) / there_BT.numel():.0%}",
        **{name: 1e3 * of for name, of in found.items()},
        "times": found["in rows"] / found["in one row"],
        "time by the limit's": found["in one row"] * machine.flops / (2 * work.forward(whole, 0)),
    }


def turn(model: PreTrainedModel, way: str, given: list[torch.Tensor]) -> None:
    model.config._attn_implementation = way
    states_BTD = hidden_states(model, *given)
    states_BTD.square().mean().backward()
    if states_BTD.is_cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    run("padding", "How much faster is training where no padding is computed?", fill)
