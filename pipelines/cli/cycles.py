"""demo, cycle, resume, verdict, review: run cycles and decide about them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from db.cycle_names import AXES, BROKEN_OFF, STAGES
from pipelines.cli import options as common
from pipelines.cli import setting_options
from pipelines.cli.options import Session, several, shared, state_words, table

if TYPE_CHECKING:
    from pipelines.config.jobs import RealDemo
    from pipelines.runs.workspace import Workspace


@click.command("demo")
@click.option(
    "--cycles",
    type=click.IntRange(1),
    metavar="N",
    help="number of cycles (default: 2; with --real 1, with --full 3)",
)
@common.seed("draws the people, the facts and the prompts")
@click.option("--minutes-budget", type=float, metavar="N", help="start no cycle that would end later")
@click.option(
    "--real", is_flag=True, help="use SmolLM2 and the repository's pages; the same command again resumes"
)
@click.option("--model", metavar="MODEL", help="with --real: another model: GGUF file, directory or hub id")
@click.option(
    "--ifeval",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="with --real: prompts in IFEval's format",
)
@click.option("--full", is_flag=True, help="with --real: train and evaluate at full size, for hours")
@several
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
        cycles = _usual_cycles(options)
    job = DemoJob(cycles=cycles, seed=seed, minutes_budget=minutes_budget, real=options)
    with session.workspace(create=True) as ws:
        found = demo(ws, job, key=resumable_key(job) if options else ws.new_key())
        session.show({"home": str(ws.home), **found}, lambda: demo_story(found["cycles"], str(ws.home)))
        require_accepted(ws, found["cycles"])


def _real_demo(real: bool, model: str | None, ifeval: str | None, full: bool) -> RealDemo | None:
    from pipelines.config.jobs import RealDemo

    if not real:
        if model or ifeval or full:
            raise click.UsageError("--model, --ifeval and --full belong to --real")
        return None
    return RealDemo(model=model, ifeval=str(Path(ifeval).absolute()) if ifeval else None, full=full)


def _usual_cycles(real: RealDemo | None) -> int:
    """Return how many cycles a demo runs unless told: a small one on a real model stops after the first."""
    if real is None:
        return 2
    return 3 if real.full else 1


def demo_story(cycles: list[dict[str, Any]], home: str) -> str:
    rows = "\n\n".join(cycle_text(row) for row in cycles)
    return f"{rows}\n\nTo look at all of it in a browser: recover --home {home} dashboard"


@click.command("cycle")
@common.docs
@common.student
@setting_options.method
@click.option(
    "--recover-with",
    metavar="auto|merge|METHOD",
    help="auto: try cheap ways of recovery first; half of the evaluation selects, the other half decides",
)
@setting_options.prompts
@setting_options.probes
@setting_options.ifeval
@click.option(
    "--suite",
    "suites",
    metavar="NAMES",
    help="suites to evaluate, as in ifeval,knowledge (default: all that have questions)",
)
@setting_options.behaviours
@setting_options.ask_anew
@setting_options.strict
@setting_options.midtrain_method("--midtrain-method")
@setting_options.midtrain_rate
@setting_options.midtrain_steps
@setting_options.midtrain_tokens
@setting_options.mix
@setting_options.freeze_embeddings
@common.augment
@setting_options.overlap
@setting_options.merge
@setting_options.rehearsal
@setting_options.seed
@several
@shared
@click.pass_obj
def cycle_command(session: Session, /, docs: Path, **options: Any) -> None:
    """Midtrain, evaluate, recover, evaluate, decide.

    probes.jsonl, prompts.jsonl and ifeval.jsonl beside the folder of documents are used unless options name
    others. `recover resume` goes on with an interrupted cycle. Exit code 3: the cycle is rejected.

    \b
    recover cycle --docs ./corpus
    recover cycle --docs ./corpus --recover-with auto
    recover cycle --docs ./corpus --method opd-sampled --behaviours json,tools
    """
    with session.workspace(docs=docs) as ws:
        from db.reads import queries
        from pipelines.cycle import cycle
        from pipelines.job_from_options.cycle import cycle_job

        job = cycle_job(ws, docs, **options, changes=session.changes)
        done = cycle(ws, job, key=ws.new_key())
        row = queries.cycle(ws.tracker.db, done["cycle"])
        session.show(row, lambda: cycle_text(row))
        require_accepted(ws, [row])


@click.command("resume")
@click.argument("run", required=False)
@several
@shared
@click.pass_obj
def resume_command(session: Session, run: str | None) -> None:
    """Resume an interrupted run: the newest, or RUN."""
    with session.workspace() as ws:
        from pipelines.resume import resume

        found = resume(ws, run)
        rows = _of_cycles(ws, found)
        lines = [*map(cycle_text, rows)] or [f"{found['run']} done"]
        session.show(found, lambda: "\n\n".join(lines))
        require_accepted(ws, rows)


def _of_cycles(ws: Workspace, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the recorded cycles of a resumed run's result, if it is a cycle's or a demo's."""
    from db.reads import queries

    of_cycle = [found["cycle"]] if {"cycle", "status"} <= found.keys() else []
    numbers = [row["cycle"] if isinstance(row, dict) else row for row in found.get("cycles", of_cycle)]
    return [queries.cycle(ws.tracker.db, number) for number in numbers]


def require_accepted(ws: Workspace, rows: Iterable[dict[str, Any]]) -> None:
    """Exit with code 3 for a rejected cycle, whichever command ran it."""
    from recovery.errors import GateError

    for row in rows:
        if row["status"] == "rejected":
            raise GateError(
                f"cycle {row['cycle']} is rejected: {_why(ws, row)}; "
                f"`recover review cycle:{row['cycle']} --approve` takes its model all the same"
            )


def _why(ws: Workspace, row: dict[str, Any]) -> str:
    """Return the axes for which a recorded cycle was rejected, together where their word is the same."""
    from db.reads import queries
    from evals.verdict import blocking

    required = queries.run(ws.tracker.db, row["run"])["config"].get("required")
    axes: dict[str, list[str]] = {}
    for axis, word in blocking(row["verdict"], required).items():
        axes.setdefault(word, []).append(axis)
    return "; ".join(f"{', '.join(names)} {word}" for word, names in axes.items())


@click.command("verdict")
@common.cycle_number
@shared
@click.pass_obj
def verdict_command(session: Session, cycle: int) -> None:
    """Show the verdict of a cycle.

    Exit code 3 unless the cycle is accepted.
    """
    from db.reads import queries
    from recovery.errors import GateError

    with session.workspace() as ws:
        row = queries.cycle(ws.tracker.db, cycle)
        if not row["verdict"]:
            onward = f"; `recover resume {row['run']}` goes on with it" if broke_off(row) else ""
            raise GateError(f"cycle {cycle} has no verdict yet: it is {state_words(row)}{onward}")
        session.show({"cycle": cycle, "status": row["status"], **row["verdict"]}, lambda: cycle_text(row))
        if row["status"] != "accepted":
            raise GateError(f"cycle {cycle} is {row['status']}")


@click.command("review")
@common.cycle_number
@click.option("--approve", is_flag=True, help="make the cycle's recovered checkpoint `current`")
@click.option("--reject", is_flag=True, help="refuse the cycle's model")
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

    current = queries.resolve(ws.tracker.db, "current")
    return f"review {found['review']} of cycle {found['cycle']}: {found['decision']}; `current` is {current}"


def login_name() -> str:
    """Return the login name; in a container the user may have none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def cycle_text(row: dict[str, Any]) -> str:
    """Format a cycle: scores at each stage, then the verdict in words."""
    scores = [
        {"suite": name, **{stage: suite[stage] for stage in STAGES}, "n": suite["n"]}
        for name, suite in row["scores"].items()
    ]
    lines = [f"cycle {row['cycle']}: {state_words(row)}", *resume_lines(row)]
    lines.append(table(scores, ["suite", *STAGES, "n"]))
    verdict = row["verdict"]
    if verdict:
        lines += [axis_line(axis, verdict) for axis in AXES if _shown(axis, verdict)]
        lines += [family_line(name, verdict["axes"][name]) for name in _families(verdict)]
    lines += stale_lines(row["scores"].get("updates", {}))
    for earlier in row.get("knowledge_by_cycle", []):
        then = f", {earlier['then']:.3f} when it ended" if earlier.get("then") is not None else ""
        lines.append(f"cycle {earlier['cycle']}'s documents: {earlier['score']:.3f}{then}")
    return "\n".join([*lines, *cost_lines(row)])


def resume_lines(row: dict[str, Any]) -> list[str]:
    """Return why a cycle without a verdict broke off, and the command that goes on with it."""
    if not broke_off(row):
        return []
    why = [f"reason     {row['error']}"] if row.get("error") else []
    return [*why, f"to go on   recover resume {row['run']}"]


def broke_off(row: dict[str, Any]) -> bool:
    return not row["verdict"] and (row.get("stalled") or row["status"] in BROKEN_OFF)


def _shown(axis: str, verdict: dict[str, Any]) -> bool:
    """Return whether to print an axis: always, but updates only if the probes hold changed facts."""
    return axis in verdict and (axis != "updates" or verdict[axis] != "not measured")


def _families(verdict: dict[str, Any]) -> list[str]:
    """Return the families that a verdict judges, beside the axes that every verdict has."""
    return [axis for axis in verdict.get("axes", {}) if axis not in AXES]


def axis_line(name: str, verdict: dict[str, Any]) -> str:
    """Return an axis's word, the bound that it rests on, and how many prompts would decide."""
    axis = verdict["axes"].get(name, {})
    if axis.get("lower_bound") is None:
        return f"{name:<10} {verdict[name]}"
    margin = 100 * axis["margin"]
    limit = f"margin {margin:.0f}" if margin > 0 else f"a lead of {-margin:.0f} is needed"
    bound = f"lower bound {100 * axis['lower_bound']:+.1f} points, {limit}"
    return f"{name:<10} {verdict[name]} ({bound}{_needed(verdict[name], axis)})"


def family_line(name: str, axis: dict[str, Any]) -> str:
    """Return a family's word, and the bound that it rests on, or why it was not measured."""
    details = axis["details"]
    if axis["lower_bound"] is None or "reason" in details:
        return f"{name:<11} {axis['outcome']} ({details.get('reason', 'nothing to compare')})"
    of = f" of {details['kind']} items" if "kind" in details else ""
    bound = f"lower bound {100 * axis['lower_bound']:+.1f} points{of}, margin {100 * axis['margin']:.0f}"
    count = details["families"]
    at_once = f", for {count} families at once" if count > 1 else ""
    return f"{name:<11} {axis['outcome']} ({bound}{at_once}{_needed(axis['outcome'], axis)})"


def _needed(outcome: str, axis: dict[str, Any]) -> str:
    """Return how many prompts would decide a claim that too few leave open."""
    needed = axis.get("needed_n") if outcome == "underpowered" else None
    return f", about {needed:,} prompts would decide" if needed else ""


def stale_lines(updates: dict[str, Any]) -> list[str]:
    """Format the share of changed facts that are answered as before the change, by stage."""
    rates = {stage: rate for stage, rate in updates.get("stale_rate", {}).items() if rate is not None}
    parts = [f"{stage} {rate:.3f}" for stage, rate in rates.items()]
    return [f"old answers to changed facts: {', '.join(parts)}"] if parts else []


def cost_lines(row: dict[str, Any]) -> list[str]:
    """Format the seconds of each stage, and what a recovered point has cost."""
    parts = [f"{kind} {cost['seconds']:.0f} s" for kind, cost in row.get("cost_by_stage", {}).items()]
    each = row.get("cost_per_recovered_point")
    if each:
        parts.append(f"each recovered point {each['seconds']:.1f} s, {each.get('flops', 0):.2g} FLOPs")
    return [f"cost       {', '.join(parts)}"] if parts else []
