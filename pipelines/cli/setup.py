"""init, doctor, plan, settings, preflight, microworld: what comes before the first training."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import options as common
from pipelines.cli import setting_options
from pipelines.cli.options import Session, shared
from pipelines.cli.table import table
from recovery.errors import GateError, InputError

if TYPE_CHECKING:
    from pipelines.runs.workspace import Workspace

MOST_TOKENS = 10**15  # of a plan: beyond any corpus
UNKNOWN_GPU = "unknown for this GPU: name one that --gpus knows, as in H100"
BY_QUESTIONS = (
    "that of midtraining follows from the questions about the documents (midtrain.method: passage), unless "
    "midtrain.steps and midtrain.tokens_per_step are set"
)


@click.command("init")
@click.option(
    "--model", metavar="MODEL", help="hub id, directory or GGUF file (default: the shipped tiny model)"
)
@click.option("--revision", metavar="NAME", help="branch, tag or commit on the hub")
@click.option(
    "--preset",
    metavar="NAME",
    help="settings to start from: microworld, real or cpu (default: by model and machine)",
)
@click.option(
    "--trust-remote-code",
    is_flag=True,
    help="run code that comes with the model, which you have read (wants a --home)",
)
@shared
@click.pass_obj
def init_command(
    session: Session, model: str | None, revision: str | None, preset: str | None, trust_remote_code: bool
) -> None:
    """Write recover.yaml and register the clean model as `base`.

    \b
    recover init --model Qwen/Qwen3-8B
    recover init --model ./my-model --preset real
    """
    from pipelines.config.settings import preset_text
    from pipelines.machine.init_home import initialise
    from pipelines.runs.unmade_home import left_as_found

    if preset is not None:
        preset_text(preset)  # refuse an unknown name even where recover.yaml exists already
    with left_as_found(session.place, session.db), session.workspace(create=True) as ws:
        found = initialise(
            ws, model=model, revision=revision, preset=preset, trust_remote_code=trust_remote_code
        )
        ws.note_database(session.db)
        session.show(found, lambda: _initialised(ws, found))


def _initialised(ws: Workspace, found: dict[str, Any]) -> str:
    """Say what was set up, and what looks at the documents next."""
    from pipelines.microworld.shipped_model import MICROWORLD

    lines = [f"base is {found['base']} ({found['model']}); settings are in {found['config']}"]
    if found["model"] == MICROWORLD:
        lines.append(
            "this is the shipped tiny model, for trying out (`recover demo`): for one of your own, "
            "`recover --home NEW init --model MODEL`, as in --model Qwen/Qwen3-8B or --model ./my-model"
        )
    onward = ws.command("corpus", "DIR")
    return "\n".join([*lines, f"next: `{onward}` shows what training would read of your documents"])


@click.command("doctor")
@shared
@click.pass_obj
def doctor_command(session: Session) -> None:
    """Check whether this machine is ready.

    Exit code 3: something that is needed is missing.
    """
    from pipelines.machine.doctor import examine
    from pipelines.runs.home_database import remembered_database

    named = session.home is not None or session.db is not None
    rows = examine(session.place, session.db or remembered_database(session.place), named=named)
    session.show(rows, lambda: checks_text(rows))
    _require_passed(row for row in rows if row["needed"])


@click.command("settings")
@click.argument("word", required=False)
@shared
@click.pass_obj
def settings_command(session: Session, word: str | None) -> None:
    """List every setting with its value, default and meaning.

    With WORD those that have it in their key or meaning. The values are those of recover.yaml, or of the
    preset `real` where there is none.

    \b
    recover settings distill.
    recover settings learning_rate
    """
    from pipelines.config.home_settings import of_home_or_preset
    from pipelines.config.listing import every_setting, holding

    whose, config = of_home_or_preset(session.place)
    rows = holding(every_setting(config), word or "")
    if not rows:
        raise InputError(f"no setting has {word!r} in its key or meaning: `recover settings` lists all")
    session.show(rows, lambda: f"settings of {whose}\n{settings_text(rows)}")


def settings_text(rows: list[dict[str, Any]]) -> str:
    """Format settings as a table, their values as recover.yaml writes them."""
    written = [{**row, "value": _written(row["value"]), "default": _written(row["default"])} for row in rows]
    return table(written, ["setting", "value", "default", "meaning"])


def _written(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


@click.command("preflight")
@common.student
@common.teacher
@setting_options.prompts()
@setting_options.sampler
@shared
@click.pass_obj
def preflight_command(session: Session, student: str, teacher: str) -> None:
    """Check student, teacher and sampler before a run.

    Exit code 3: a check fails.
    """
    from pipelines.distillation.dry_run import preflight_report
    from pipelines.engines.engine_places import require_place
    from pipelines.job_from_options.inputs import recovery_prompts, resolved, taught_folder
    from pipelines.job_from_options.trained_weights import require_sampled
    from pipelines.prompts.prompt_sources import read_prompts

    with session.workspace() as ws:
        checked = ws.checkpoint(student)
        settings = resolved(ws, taught_folder(ws, checked.id), session.changes)
        require_sampled(ws, checked, settings, [], ["distill"])
        require_place("sampler", settings.distill.sampler, ws.config)
        source = recovery_prompts(ws, settings, session.changes)
        prompts = read_prompts(source, settings.seed, ws.home)
        checks = preflight_report(ws, student, teacher, prompts, settings.distill.sampler)
        rows = [asdict(check) for check in checks]
        session.show(rows, lambda: checks_text(rows))
        _require_passed(rows)


def _require_passed(rows: Iterable[dict[str, Any]]) -> None:
    """End with exit code 3 at the first check that failed."""
    for row in rows:
        if not row["ok"]:
            raise GateError(": ".join(filter(None, (row["name"], row["detail"], row["remedy"]))))


def checks_text(rows: list[dict[str, Any]]) -> str:
    """Format checks, one on each line."""
    return table(
        [{"check": row["name"], **row, "ok": _outcome(row)} for row in rows], ["ok", "check", "detail"]
    )


def _outcome(row: dict[str, Any]) -> str:
    """Return the word for a check; what is not needed may be missing."""
    if row["ok"]:
        return "ok"
    return "NO" if row.get("needed", True) else "optional"


@click.command("microworld")
@click.argument("directory", metavar="DIR", type=common.Place())
@click.option(
    "--cycle",
    default=1,
    show_default=True,
    metavar="N",
    help="number of the cycle whose documents are written",
)
@common.seed("draws the people, the facts and the prompts")
@click.option(
    "--changed",
    default=0.0,
    show_default=True,
    type=common.Number(0, 0.5),
    metavar="SHARE",
    help="share of the known people who change city and job in each cycle",
)
@shared
@click.pass_obj
def microworld_command(session: Session, directory: Path, cycle: int, seed: int, changed: float) -> None:
    """Write the documents and questions of a microworld cycle.

    DIR then holds docs/, probes.jsonl, prompts.jsonl (recovery prompts) and ifeval.jsonl.
    """
    from pipelines.microworld.world import write_world

    found = write_world(directory, cycle=cycle, seed=seed, changed=changed)
    counts = (
        f"{found['docs']} documents, {found['probes.jsonl']} probes, "
        f"{found['prompts.jsonl']} recovery prompts, {found['ifeval.jsonl']} IFEval prompts"
    )
    session.show(found, f"{directory}: {counts}")


@click.command("plan")
@click.option(
    "--model",
    metavar="MODEL",
    help="size (8B), directory, config.json or hub id (default: as in recover.yaml)",
)
@click.option(
    "--gpus",
    default="1xH100",
    show_default=True,
    metavar="GPUS",
    help="number and type or memory, as in 8xH100, H200, 24GB, 2x24GB",
)
@click.option(
    "--lora",
    type=click.IntRange(0),
    metavar="RANK",
    help="rank of the adapter; 0: train all weights (default: as in recover.yaml)",
)
@click.option(
    "--shard/--no-shard",
    default=None,
    help="shard the model over the GPUs with FSDP2 (default: as in recover.yaml)",
)
@click.option(
    "--tokens",
    default=2_000_000,
    show_default=True,
    type=click.IntRange(1, MOST_TOKENS),
    metavar="N",
    help="tokens of the documents",
)
@click.option(
    "--answer-tokens",
    default=400,
    show_default=True,
    type=click.IntRange(1, MOST_TOKENS),
    metavar="N",
    help="tokens of a typical answer",
)
@click.option(
    "--price", type=common.Number(0), metavar="PRICE", help="price of one GPU hour, in any currency"
)
@shared
@click.pass_obj
def plan_command(session: Session, /, **options: Any) -> None:
    """Estimate memory, time and cost on GPUs.

    Loads no model. The settings are those of recover.yaml, or of the preset `real` where there is none.
    Exit code 3: it does not fit; the output says which settings to change.

    \b
    recover plan --model 8B --gpus 8xH100 --price 3
    """
    from pipelines.machine.capacity import plan_for

    found = plan_for(session.place, **options)
    session.show(found, lambda: plan_text(found))
    if not found["fits"]:
        worst = max(found["stages"], key=lambda row: row["gib"])
        raise GateError(
            f"{worst['stage']} needs {worst['gib']:.0f} GiB on each GPU, which has "
            f"{found['usable_gib']:g} usable: use {', '.join(found['change'])}"
        )


def plan_text(found: dict[str, Any]) -> str:
    """Format the stages as a table, what their memory is for, and the totals."""
    from pipelines.machine.cycle_time import in_words

    priced = any(row["cost"] is not None for row in found["stages"])
    columns = ["stage", "GiB", "fits", "time", *(["cost"] if priced else [])]
    rows = [
        {**row, "GiB": f"{row['gib']:.1f}", "fits": "yes" if row["fits"] else "NO"}
        | {"time": row["hours"] and in_words(3600 * row["hours"])}
        for row in found["stages"]
    ]
    count = found["parameters"]
    weights = f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.1f} million"
    lines = [
        f"{found['model']}: {weights} weights on {found['gpus']} x {found['gpu']} "
        f"({found['usable_gib']:g} GiB of each usable), settings of {found['settings']}",
        *_assumptions(found),
        table(rows, columns),
    ]
    for row in found["stages"]:
        parts = [f"{name} {gib:g}" for name, gib in row["memory"].items() if gib]
        lines.append(f"{row['stage']}: {'; '.join(parts)} GiB")  # names hold commas
    if found["hours"] is None:
        is_timed = any(row["hours"] is not None for row in found["stages"])
        lines.append(f"time: {BY_QUESTIONS if is_timed else UNKNOWN_GPU}")
    else:
        together = f"together {in_words(3600 * found['hours'])}, {found['gpu_hours']:.1f} GPU-hours"
        cost = f", cost {found['cost']:,.2f}" if priced else ""
        lines.append(f"{together}{cost}; an estimate")
        lines.append(
            "recovery is counted by distill.method: --recover-with auto tries cheaper ways before it, each "
            "with an evaluation, until one passes, which takes less or more"
        )
    return "\n".join([*lines, *(f"change: {change}" for change in found["change"])])


def _assumptions(found: dict[str, Any]) -> list[str]:
    """Say what the times rest on, and which part of them more GPUs do not shorten."""
    assumed = found["assumed"]
    said = (
        f"assumed: {assumed['document_tokens']:,} tokens of documents (--tokens), answers of "
        f"{assumed['answer_tokens']:,} (--answer-tokens), {assumed['evaluations']} evaluations of "
        f"{assumed['evaluation_prompts']} prompts; probes and other questions are not counted"
    )
    alone = "evaluation and midtraining's chat are answered by one GPU: more do not shorten them"
    return [said, alone] if found["gpus"] > 1 else [said]
