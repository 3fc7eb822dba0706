"""prompts: write prompt files for evaluation and for recovery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from evals import jsonl
from pipelines.cli.options import Session, shared


@click.group("prompts")
@shared
def prompts_command() -> None:
    """Generate prompts: instruction prompts in IFEval's format."""


@prompts_command.command("ifeval")
@click.option("--count", type=click.IntRange(1, 100_000), default=1000, show_default=True, metavar="N")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="S")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="FILE to write (default: print)")
@click.option(
    "--avoid",
    multiple=True,
    metavar="FILE",
    help="prompts that must not occur, in any format that --prompts reads; several allowed "
    "(the 541 published IFEval prompts never occur)",
)
@shared
@click.pass_obj
def ifeval_command(session: Session, count: int, seed: int, out: Path | None, avoid: tuple[str, ...]) -> None:
    """Write N prompts over all 25 instruction types of IFEval, each answerable, each different.

    \b
    recover prompts ifeval --count 1500 --out ifeval.jsonl
    recover eval base --ifeval ifeval.jsonl
    """
    from pipelines.distillation.prompts import read_prompts
    from pipelines.writing import instruction_prompts

    excluded = [prompt.text for file in avoid for prompt in read_prompts(file)]
    made = instruction_prompts.generate(count, seed, excluded)
    rows = instruction_prompts.rows(made, seed)
    lines = jsonl.lines(rows)
    if out is None:
        session.show(rows, lines.rstrip("\n"))
        return
    _write(out, lines)
    types = {name for row in rows for name in row["instruction_id_list"]}
    found: dict[str, Any] = {"file": str(out), "prompts": len(rows), "types": len(types), "seed": seed}
    session.show(found, f"{out}: {len(rows)} prompts over {len(types)} instruction types (seed {seed})")


def _write(path: Path, text: str) -> None:
    from pipelines.cli.look import write_whole

    write_whole(path, [text.encode()])
