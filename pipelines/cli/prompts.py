"""prompts: write prompt files for evaluation and for recovery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from evals import jsonl
from evals.families import suite
from evals.families.family import Family
from evals.families.table import FAMILIES
from pipelines.cli.options import F, Place, Session, seed, shared
from recovery.counted import counted


@click.group("prompts")
@shared
def prompts_command() -> None:
    """Write prompt files: for IFEval, or to recover a family.

    None of the prompts occurs in the suite that evaluates them.
    """


def drawing(command: F) -> F:
    """Add --count, --seed, --out and --avoid."""
    for option in (
        click.option(
            "--avoid",
            multiple=True,
            type=Place(),
            metavar="FILE",
            help="prompts to leave out, in any format that --prompts reads; may be repeated",
        ),
        click.option(
            "--out",
            type=Place(dir_okay=False),
            metavar="FILE",
            help="file to write (default: standard output)",
        ),
        seed("draws the prompts"),
        click.option(
            "--count",
            type=click.IntRange(1, 100_000),
            default=1000,
            show_default=True,
            metavar="N",
            help="number of prompts",
        ),
    ):
        command = option(command)
    return command


@prompts_command.command("ifeval")
@drawing
@shared
@click.pass_obj
def ifeval_command(
    session: Session, count: int, seed: int, out: Path | None, avoid: tuple[Path, ...]
) -> None:
    """Write prompts over all 25 instruction types of IFEval.

    At most 40,000. Each is different, and can be answered as it asks.

    \b
    recover prompts ifeval --count 1500 --out ifeval.jsonl
    recover eval base --ifeval ifeval.jsonl
    """
    from pipelines.writing import instruction_prompts

    made = instruction_prompts.generate(count, seed, _texts(avoid))
    rows = instruction_prompts.rows(made, seed)
    types = {name for row in rows for name in row["instruction_id_list"]}
    found = {"prompts": len(rows), "types": len(types), "seed": seed}
    kinds = counted(len(types), "instruction type")
    _finish(session, rows, out, found, f"{counted(len(rows), 'prompt')} over {kinds}")


def _family_command(family: Family) -> click.Command:
    """Return the command that writes a family's recovery prompts."""

    @click.command(
        family.name,
        short_help=f"Write recovery prompts of the family {family.name}.",
        help=f"Write recovery prompts of the family {family.name}: {family.recovery}.",
    )
    @drawing
    @shared
    @click.pass_obj
    def command(session: Session, count: int, seed: int, out: Path | None, avoid: tuple[Path, ...]) -> None:
        rows = [suite.row(one) for one in suite.recovery(family, count, seed, _texts(avoid))]
        found = {"prompts": len(rows), "family": family.name, "seed": seed}
        _finish(session, rows, out, found, f"{counted(len(rows), 'recovery prompt')} for {family.name}")

    return command


for row in FAMILIES.values():
    prompts_command.add_command(_family_command(row))


def _texts(files: tuple[Path, ...]) -> list[str]:
    from pipelines.prompts.prompt_sources import read_prompts

    return [prompt.text for file in files for prompt in read_prompts(str(file))]


def _finish(
    session: Session, rows: list[dict[str, Any]], out: Path | None, found: dict[str, Any], said: str
) -> None:
    """Print the prompts, or write them to a file and say so."""
    from pipelines.cli.records import write_whole

    lines = jsonl.lines(rows)
    if out is None:
        session.show(rows, lines.rstrip("\n"))
        return
    write_whole(out, [lines.encode()])
    session.show({"file": str(out), **found}, f"{out}: {said} (seed {found['seed']})")
