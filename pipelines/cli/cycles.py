"""demo, cycle, resume, verdict, review: run cycles and decide about them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import options as common
from pipelines.cli import setting_options
from pipelines.cli.cycle_text import broke_off, cycle_text
from pipelines.cli.options import Session, processes, refuse_beside, shared, state_words
from pipelines.home import UNREAD_BY_MERGING
from recovery.command_line import Command
from recovery.errors import GateError

if TYPE_CHECKING:
    from pipelines.config.jobs import RealDemo
    from pipelines.runs.workspace import Workspace

WHAT_TO_DO = "docs/evaluation.md says what to do with a rejected cycle"
NOTHING_MEASURED = "no axis was judged, as the half of the questions that decides holds none: ask more"


@click.command("demo")
@click.option(
    "--cycles",
    type=click.IntRange(1),
    metavar="N",
    help="number of cycles (default: 2; with --real 1, with --full 3)",
)
@common.seed("draws the people, the facts and the prompts")
@click.option(
    "--minutes-budget",
    type=common.Number(0, min_open=True),
    metavar="N",
    help="after the first, start no cycle that would run past N minutes",
)
@click.option(
    "--real", is_flag=True, help="use SmolLM2 and the repository's pages; the same command again resumes"
)
@click.option("--model", metavar="MODEL", help="with --real: another model: GGUF file, directory or hub id")
@click.option(
    "--ifeval",
    type=common.Place(exists=True, dir_okay=False),
    metavar="FILE",
    help="with --real: questions that measure behaviour, in IFEval's format",
)
@click.option("--full", is_flag=True, help="with --real: train and evaluate at full size, for hours")
@processes
@shared
@click.pass_obj
def demo_command(
    session: Session, /, cycles: int | None, seed: int, minutes_budget: float | None, **real: Any
) -> None:
    """Run whole cycles on the shipped tiny model, offline.

    Each cycle learns documents about people who do not exist, forgets how to follow instructions, and
    recovers. With --real a real model does the same on this repository's documentation, from a checkout.
    """
    from pipelines.config.jobs import DemoJob
    from pipelines.demo import demo, resumable_key

    options = _real_demo(**real)
    if cycles is None:
        cycles = _default_cycles(options)
    job = DemoJob(cycles=cycles, seed=seed, minutes_budget=minutes_budget, real=options)
    with session.workspace(create=True) as ws:
        ws.settle_project()
        found = demo(ws, job, key=resumable_key(job) if options else ws.new_key())
        session.show({"home": str(ws.home), **found}, lambda: demo_story(found["cycles"], ws.command))
        require_accepted(ws, found["cycles"])


def _real_demo(real: bool, model: str | None, ifeval: Path | None, full: bool) -> RealDemo | None:
    from pipelines.config.jobs import RealDemo
    from pipelines.machine.init_home import as_seen_from_here

    if not real:
        if model or ifeval or full:
            raise click.UsageError("--model, --ifeval and --full belong to --real")
        return None
    if model:
        model = as_seen_from_here(model)
    return RealDemo(model=model, ifeval=str(ifeval.absolute()) if ifeval else None, full=full)


def _default_cycles(real: RealDemo | None) -> int:
    """Return how many cycles a demo runs unless told: a small one on a real model stops after the first."""
    if real is None:
        return 2
    return 3 if real.full else 1


def demo_story(cycles: list[dict[str, Any]], command: Command) -> str:
    rows = "\n\n".join(cycle_text(row, command) for row in cycles)
    return f"{rows}\n\nTo look at all of it in a browser: {command('dashboard')}"


@click.command("cycle")
@common.docs
@common.student
@setting_options.method
@click.option(
    "--recover-with",
    metavar="auto|merge|METHOD",
    help="auto: try cheap ways of recovery first; merge: mix clean weights in; with both, half of the "
    "evaluation selects and the other half decides; METHOD: as --method",
)
@setting_options.prompts()
@setting_options.probes
@setting_options.ifeval
@setting_options.further
@common.suites("suites to evaluate, as in ifeval,knowledge (default: all that have questions)")
@setting_options.behaviours
@setting_options.task
@setting_options.tasks
@setting_options.ask_anew
@setting_options.strict
@setting_options.midtrain_method("--midtrain-method")
@setting_options.learning_rate("midtrain", "--midtrain-rate")
@setting_options.epochs("--midtrain-epochs")
@setting_options.steps("midtrain", "--midtrain-steps")
@setting_options.midtrain_tokens
@setting_options.mix
@setting_options.freeze_embeddings
@common.augment
@setting_options.overlap
@setting_options.merge
@setting_options.rehearsal
@setting_options.seed
@click.option(
    "--name",
    metavar="NAME",
    help="of this cycle: the same command again goes on with it, as it began, or shows it once it has ended",
)
@processes
@shared
@click.pass_obj
def cycle_command(session: Session, /, docs: Path, name: str | None, **options: Any) -> None:
    """Midtrain, evaluate, recover, evaluate, decide.

    probes.jsonl, prompts.jsonl and ifeval.jsonl beside the folder of documents are used unless options name
    others. `recover resume` goes on with an interrupted cycle. Exit code 3: the cycle is rejected.

    \b
    recover cycle --docs ./corpus
    recover cycle --docs ./corpus --recover-with auto
    recover cycle --docs ./corpus --method opd-sampled --behaviours json,tools
    recover cycle --docs ./corpus --task my_task=2 --tasks ./tasks
    recover cycle --docs ./february --name february
    """
    if options["recover_with"] == "merge":
        refuse_beside("--recover-with merge", lambda name: name in UNREAD_BY_MERGING)
    with session.workspace(docs=docs) as ws:
        from db.reads import queries
        from pipelines.cycle import cycle
        from pipelines.job_from_options.cycle import cycle_job
        from pipelines.resume import resume

        key = f"named:{name}" if name else ws.new_key()
        if begun := queries.run_of_key(ws.tracker.db, key):
            done = resume(ws, begun["id"])
        else:
            done = cycle(ws, cycle_job(ws, docs, **options, changes=session.changes), key=key)
        row = queries.cycle(ws.tracker.db, done["cycle"])
        session.show(row, lambda: cycle_text(row))
        require_accepted(ws, [row])


@click.command("resume")
@click.argument("run", required=False)
@processes
@shared
@click.pass_obj
def resume_command(session: Session, run: str | None) -> None:
    """Resume an interrupted run: the newest, or RUN."""
    with session.workspace() as ws:
        from db.reads import queries
        from pipelines.cli.pilot import require_proposal
        from pipelines.resume import resume

        found = resume(ws, run)
        kind, rows = queries.run(ws.tracker.db, found["run"])["kind"], _cycle_rows(ws, found)
        document = rows[0] if kind == "cycle" else found  # what `recover cycle` prints
        session.show(document, lambda: _resumed_text(kind, found, rows, ws.command))
        require_accepted(ws, rows)
        if kind == "pilot":
            require_proposal(found)


def _resumed_text(kind: str, found: dict[str, Any], rows: list[dict[str, Any]], command: Command) -> str:
    """Return what the resumed command would print."""
    from pipelines.cli.result_text import result_text

    if kind == "demo":
        return demo_story(rows, command)
    return "\n\n".join(cycle_text(row, command) for row in rows) or result_text(kind, found)


def _cycle_rows(ws: Workspace, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the recorded cycles of a resumed run's result, if it is a cycle's or a demo's."""
    from db.reads import queries

    of_cycle = [found["cycle"]] if {"cycle", "status"} <= found.keys() else []
    numbers = [row["cycle"] if isinstance(row, dict) else row for row in found.get("cycles", of_cycle)]
    return [queries.cycle(ws.tracker.db, number) for number in numbers]


def require_accepted(ws: Workspace, rows: Iterable[dict[str, Any]]) -> None:
    """Exit with code 3 for a rejected cycle, whichever command ran it."""
    for row in rows:
        if row["status"] == "rejected":
            raise GateError(f"cycle {row['cycle']} is rejected: {_why_rejected(ws, row)}")


def _why_rejected(ws: Workspace, row: dict[str, Any]) -> str:
    """Return why a recorded cycle was rejected, and what to do, or that a review has approved it."""
    from evals.verdict_sentences import TOO_FEW, more_questions, shows_loss_to_clean

    approved = (row["review"] or {}).get("decision") == "approve"
    if not row["verdict"]:
        return "nothing was measured: a review has approved it all the same" if approved else NOTHING_MEASURED
    more = more_questions(row)
    found = TOO_FEW if more else _blocking_axes(row)
    if approved:
        return f"{found}: a review has approved it all the same"
    cycle = f"cycle:{row['cycle']}"
    approve, longer = ws.command("review", cycle, "--approve"), ws.command("distill", "--student", cycle)
    then = f"`{longer}` recovers longer; {WHAT_TO_DO}" if shows_loss_to_clean(row) else WHAT_TO_DO
    return f"{found}: {more or then}; `{approve}` takes its model all the same"


def _blocking_axes(row: dict[str, Any]) -> str:
    """Name the axes that were in the way of a recorded cycle's acceptance, those with one word together."""
    from evals.verdict import blocking

    axes: dict[str, list[str]] = {}
    for axis, word in blocking(row["verdict"], row.get("required")).items():
        axes.setdefault(word, []).append(axis)
    return "; ".join(f"{', '.join(names)} {word}" for word, names in axes.items())


@click.command("verdict")
@common.cycle_number
@shared
@click.pass_obj
def verdict_command(session: Session, cycle: int) -> None:
    """Show the verdict of a cycle.

    Every claim with its bound, and how many questions would decide one that has too few. Exit code 3 unless
    the cycle is accepted.

    \b
    recover verdict 1
    """
    from db.reads import queries

    with session.workspace() as ws:
        row = queries.cycle(ws.tracker.db, cycle)
        if not row["verdict"]:
            if session.json:
                session.show({"cycle": cycle, "status": row["status"], "verdict": None}, "")
            require_accepted(ws, [row])
            resume = ws.command("resume", row["run"])
            onward = f"; `{resume}` goes on with it" if broke_off(row) else ""
            raise GateError(f"cycle {cycle} has no verdict yet: it is {state_words(row)}{onward}")
        session.show({"cycle": cycle, "status": row["status"], **row["verdict"]}, lambda: cycle_text(row))
        require_accepted(ws, [row])
        if row["status"] != "accepted":
            raise GateError(f"cycle {cycle} is {row['status']}")


@click.command("review")
@common.cycle_number
@click.option(
    "--approve",
    is_flag=True,
    help="make the cycle's recovered checkpoint `current`, unless `current` descends from it",
)
@click.option(
    "--reject",
    is_flag=True,
    help="refuse the cycle's model; `current` moves back, if it is that model and of no other cycle in use",
)
@click.option("--needs-work", is_flag=True, help="neither: more work is needed")
@click.option("--note", default="", metavar="TEXT", help="reason for the decision")
@click.option("--reviewer", metavar="NAME", help="name of the reviewer (default: the login name)")
@shared
@click.pass_obj
def review_command(
    session: Session, /, cycle: int, note: str, reviewer: str | None, **decisions: bool
) -> None:
    """Record your decision about a cycle.

    Every decision is kept; the newest one counts.

    \b
    recover review cycle:1 --approve --note "answers read well"
    """
    decision = _decision(decisions)
    with session.workspace() as ws:
        number = ws.tracker.add_review(cycle, decision, note, reviewer or login_name())
        found = {"review": number, "cycle": cycle, "decision": decision, "note": note}
        session.show(found, lambda: review_text(ws, found))


def _decision(flags: dict[str, bool]) -> str:
    """Return the only decision that was given."""
    given = [name.replace("_", "-") for name, flag in flags.items() if flag]
    if len(given) != 1:
        raise click.UsageError("give one of --approve, --reject and --needs-work")
    return given[0]


def review_text(ws: Workspace, found: dict[str, Any]) -> str:
    """Say what was recorded, and what `current` is now."""
    from db.reads import queries
    from pipelines.runs.current import without

    db, cycle = ws.tracker.db, found["cycle"]
    current = queries.resolve(db, "current")
    recorded = f"review {found['review']} of cycle {cycle}: {found['decision']}; `current`"
    if found["decision"] != "approve":
        return f"{recorded} is {current}"
    if current != queries.resolve(db, f"cycle:{cycle}"):
        return f"{recorded} stays {current}, which descends from this cycle's model"
    return f"{recorded} is {current}{without(ws, current, but=cycle)}"


def login_name() -> str:
    """Return the login name; in a container the user may have none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
