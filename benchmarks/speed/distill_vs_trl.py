"""Compare on-policy distillation with TRL's DistillationTrainer on the same work."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.common import (
    SPREAD,
    Machine,
    Ratio,
    Report,
    Row,
    alternate,
    installed,
    median,
    run,
    spread,
)
from benchmarks.speed import material
from benchmarks.speed.distill_cases import MICROBATCH, REAL, SHIPPED, WIDE, Case, Sizes, real, shipped, wide
from benchmarks.speed.distill_sides import OPD, PEER, SIDES, TUNED, Seen
from benchmarks.speed.material import Material
from benchmarks.speed.work import Work
from recovery.forward.fast_path import fast_path
from recovery.models.chat_model import ChatModel
from recovery.models.saving import save
from recovery.objective.objective import Objective
from recovery.objective.token_signals import TokenSignals
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.teachers import CheckpointTeacher
from recovery.training.token_loss import TokenLoss
from recovery.training.updater import Microbatch


def fill(report: Report, asked: argparse.Namespace) -> None:
    with material.checkpoint(asked.model) as directory:
        measure(report, asked, Material(directory))


def measure(report: Report, asked: argparse.Namespace, of: Material) -> None:
    rounds = asked.rounds or (1 if asked.quick else 3)
    peer = installed("trl")
    sides = list(SIDES) if of.is_shipped else ["recover", PEER]
    made = ((shipped, SHIPPED), (wide, WIDE)) if of.is_shipped else ((real, REAL),)
    cases = [make(of, changed(full, asked)) for make, full in made]
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            race(case, Path(folder), sides if peer else ["recover"], rounds, report)
    kernels = "one after the other by its compiled kernels"
    how = "without padding"
    if of.is_shipped:
        how = kernels if fast_path().status()[0] else "of like length together, as there is no compiler here"
    tuned = f"`{TUNED}` has this project's huge pages, matrix products, norms and rotations. "
    sizes = cases[0].sizes
    longest = " or ".join(str(case.sizes.new_tokens) for case in cases)
    report.notes.append(
        f"TRL {peer}: `trl.DistillationTrainer`, beta 1, no gradient checkpointing, fp32. Same start, "
        f"prompts in the same order, {sizes.batch} a step and update, {sizes.rate:g} constant, AdamW (0.9, "
        f"0.95), clip 1, temperature 1; denormals are flushed for both. Answers have at most "
        f"{longest} tokens. This project reads them {how}, {MICROBATCH:,} tokens at a time; TRL "
        f"pads a step's answers into one batch. {tuned if of.is_shipped else ''}A round is a whole "
        f"training of {sizes.steps} steps in a process of its own; its first step is left out. `times TRL` "
        f"is the median over the {rounds} rounds, in brackets {SPREAD}. `KL after` is the exact reverse KL "
        f"of the last round's student on its own answers to {sizes.held_out} other prompts. The limit is "
        "the step's matrix products at the speed of a large one by the faster library, the median of all "
        "rounds: small products are slower. It counts "
        "every token in every layer and the teacher's head as scoring; this project leaves out what the last "
        "layer makes of tokens that predict nothing, and reads the head in training."
    )


def changed(sizes: Sizes, asked: argparse.Namespace) -> Sizes:
    """Return the sizes with what the options set; small ones for --quick."""
    if asked.quick:
        sizes = replace(sizes, steps=2, batch=min(4, sizes.batch), held_out=4, new_tokens=8)
    given = {name: getattr(asked, name) for name in ("steps", "batch", "new_tokens")}
    return replace(sizes, **{name: value for name, value in given.items() if value})


def race(case: Case, folder: Path, names: list[str], rounds: int, report: Report) -> None:
    """Report a step's breakdown, steps/s relative to TRL, and step time relative to the machine's limit."""
    case.save(folder)
    seen = {name: Seen() for name in names}
    machines: list[Machine] = []  # measured every round: shared machines vary in speed
    turns: dict[str, Callable[[], None]] = {name: partial(turn, name, folder, seen[name]) for name in names}
    alternate({**turns, "machine": lambda: machines.append(Machine.measure())}, rounds, warm_up=0)
    machine = sorted(machines, key=lambda one: one.flops)[len(machines) // 2]
    ours = seen["recover"]
    limits = {part: flops / machine.flops for part, flops in arithmetic(case, ours).items()}
    total = sum(limits.values())
    report.tables[f"{case.name}: the machine meanwhile"] = [machine.row()]
    report.tables[case.name] = [
        *rows_of_sides(case, folder, seen),
        row_of_limit("arithmetic limit", total),
        row_of_limit("the same by PyTorch's own library", total * machine.flops / machine.plain),
    ]
    report.tables[f"{case.name}: where our step goes"] = [
        row_of_part(part, median(ours.parts[part]), limit) for part, limit in limits.items()
    ]
    ratio = times(seen, "recover").median if PEER in seen else None
    report.target(f"{case.name}: steps/s against TRL's", ratio, "at least", case.goal)
    against = median(ours.seconds) / total
    report.target(f"{case.name}: step time against its arithmetic", against, "at most", 2.0)


def rows_of_sides(case: Case, folder: Path, seen: dict[str, Seen]) -> list[Row]:
    """Return a row a side: its speed, and the divergence that its last student has left."""
    before = divergence(case, case.start)
    return [
        {
            "": name,
            "steps/s": 1 / median(side.seconds),
            "times TRL": str(times(seen, name)) if PEER in seen and name != PEER else "",
            "s a step": median(side.seconds),
            "middle half": spread(side.seconds),
            "tokens/step": round(side.tokens / len(side.seconds)),
            "KL before": before,
            "KL after": divergence(case, Material(folder / name).load()),
        }
        for name, side in seen.items()
    ]


def row_of_limit(name: str, seconds: float) -> Row:
    return {"": name, "steps/s": 1 / seconds, "s a step": seconds}


def row_of_part(part: str, seconds: float, limit: float) -> Row:
    return {"part": part, "s": seconds, "limit s": limit, "times": seconds / limit}


def times(seen: dict[str, Seen], side: str) -> Ratio:
    """Return how many times as fast as TRL a side is."""
    return Ratio.of(seen[side].rounds, seen[PEER].rounds)


def arithmetic(case: Case, seen: Seen) -> dict[str, float]:
    """Return the FLOPs of a typical step."""
    work = Work.of(case.start.model)
    steps = [work.distillation(prompts, answers) for prompts, answers in seen.lengths]
    return {part: median([step[part] for step in steps]) for part in steps[0]}


def turn(name: str, folder: Path, seen: Seen) -> None:
    """Run one training by one side, in a process with that side's environment."""
    SIDES[name].apart("distill_vs_trl", name, str(folder))
    seen.add(Seen(**json.loads((folder / "seen.json").read_text(encoding="utf-8"))))


def child(name: str, folder: Path) -> None:
    torch.set_flush_denormal(True)
    arm = SIDES[name].work(Case.load(folder, "auto" if name == "recover" else "sdpa"))
    save(arm.run(), folder / name)
    (folder / "seen.json").write_text(json.dumps(asdict(arm.seen)), encoding="utf-8")


def divergence(case: Case, student: ChatModel) -> float:
    """Return exact KL(student || teacher) per token, on the student's answers to held-out prompts."""
    prompts = [student.prompt_ids(prompt.messages) for prompt in case.held_out]
    rollouts = InProcessSampler(student).sample(prompts, SamplingParams(case.sizes.new_tokens, seed=1))
    teacher = CheckpointTeacher(case.teacher)
    loss = TokenLoss(Objective(OPD, student.stop_ids))
    total = tokens = 0.0
    with torch.no_grad():
        for part in rollouts.split(4096):
            found = loss(student.model, Microbatch(part, TokenSignals(teacher.score(part))))
            total, tokens = total + float(found.value), tokens + found.tokens
    return total / tokens


def options(parser: argparse.ArgumentParser) -> None:
    material.options(parser)
    parser.add_argument("--steps", type=int, help="of a training")
    parser.add_argument("--batch", type=int, help="prompts a step")
    parser.add_argument("--new-tokens", type=int, help="of the longest answer")


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[2], Path(sys.argv[3]))
        sys.exit()
    run(
        "distillation",
        "How many steps a second of on-policy distillation, against TRL's trainer?",
        fill,
        options,
    )
