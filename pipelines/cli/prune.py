"""prune: list or remove what nothing needs any more, and give up an unfinished run."""

from __future__ import annotations

from typing import Any

import click

from pipelines.cli import options as common
from pipelines.cli.options import Session, shared
from pipelines.cli.table import table
from recovery.command_line import Command, unnamed
from recovery.counted import counted

HOLDING = ["run", "status", "started_at"]


@click.command("prune")
@common.count(
    "--cycles", 2, "keep the checkpoints of the newest N cycles that have a recovered model", least=0
)
@click.option("--run", metavar="RUN", help="give up this unfinished run, its states and what only it needs")
@click.option("--yes", is_flag=True, help="remove the files; without it they are only listed")
@shared
@click.pass_obj
def prune_command(session: Session, cycles: int, run: str | None, yes: bool) -> None:
    """List or remove the checkpoints that nothing needs.

    Kept are the checkpoints of the newest cycles, those that an alias such as base or current or a route in
    recover.yaml names, all in the result of the newest of each stage that was run by itself, and those of
    runs that may be resumed. What is recorded of the others stays: scores, samples, lineage. States that a
    kill left of runs that are done go too. Unfinished runs are named with what they alone need; --run gives
    one up, after which nothing resumes it.

    \b
    recover prune
    recover prune --yes
    """
    from pipelines.prune import prune

    with session.workspace() as ws:
        found = prune(ws, cycles=cycles, remove=yes, run=run)
        session.show(found, lambda: given_up_text(found) if run else prune_text(found, ws.command))


def prune_text(found: dict[str, Any], command: Command = unnamed) -> str:
    """Format what was or would be removed, with the disk that this frees, and what unfinished runs hold."""
    return "\n\n".join([_checkpoints_text(found), *_holding_text(found["unfinished"], command)])


def _checkpoints_text(found: dict[str, Any]) -> str:
    count, left = len(found["checkpoints"]), found["states"]
    if not count and not left:
        needed = f"the home needs its {counted(found['kept'], 'checkpoint')}"
        return f"nothing to remove: {needed if found['kept'] else 'no checkpoint was made yet'}"
    of_checkpoints = _mib(found["bytes"] - left)
    parts = [f"{of_checkpoints} MiB in {count} of {count + found['kept']} checkpoints"] if count else []
    parts += [f"{_mib(left)} MiB of states of runs that are done"] if left else []
    said = ", and ".join(parts)
    said = f"removed {said}" if found["removed"] else f"{said}; add --yes to remove these files"
    return "\n".join([*_sizes(found["checkpoints"]), said])


def _holding_text(unfinished: list[dict[str, Any]], command: Command) -> list[str]:
    """Name the unfinished runs with what each holds, and how to go on with one or to give it up."""
    if not unfinished:
        return []
    onward, away = command("resume", "RUN"), command("prune", "--run", "RUN", "--yes")
    ways = f"`{onward}` goes on with it, `{away}` gives it up"
    rows = [row | {"further MiB": _mib(row["further"])} for row in unfinished]
    shown = table([row | {"MiB": _mib(row["bytes"])} for row in rows], [*HOLDING, "MiB", "further MiB"])
    held = "held by unfinished runs, as training states and checkpoints of their own"
    further = "further: others that only unfinished runs need, spare once all of these are given up"
    return [f"{held} ({ways}; {further}):\n{shown}"]


def given_up_text(found: dict[str, Any]) -> str:
    """Format what was or would be removed of an unfinished run."""
    count = len(found["checkpoints"])
    its = f"{found['run']}: {_mib(found['states'])} MiB of training states"
    its += f", and {count} of its checkpoints, {_mib(found['bytes'])} MiB in all" if count else ""
    onward = "; add --yes to remove them, after which nothing resumes the run"
    said = its + (", removed: the run is given up" if found["removed"] else onward)
    return "\n".join([*_sizes(found["checkpoints"]), said])


def _sizes(checkpoints: list[dict[str, Any]]) -> list[str]:
    """Return the checkpoints with their sizes as a table, if there are any."""
    rows = [row | {"MiB": _mib(row["bytes"])} for row in checkpoints]
    return [table(rows, ["id", "what", "MiB"])] if rows else []


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"
