"""Resolve the inputs that several jobs have: settings, documents, prompts, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from db.reads import queries
from evals.probes import load_probes
from pipelines.config.anchored_paths import is_file
from pipelines.config.jobs import IFEVAL_INPUT
from pipelines.config.overrides import changed, flattened
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.config.settings import Config
from pipelines.corpus import documents, superseded
from pipelines.corpus.reading.tree import beside, companions
from pipelines.distillation.input_checks import require_askable
from pipelines.distillation.inputs import PromptData
from pipelines.distillation.pool import require_unasked
from pipelines.job_from_options.document_checks import require_chat_apart
from pipelines.job_from_options.ifeval_prompts import with_written
from pipelines.prompts.leaks import asked_prompts
from pipelines.prompts.prompt_sources import Prompt, read_prompts
from pipelines.runs.kept_probes import earlier_probes
from pipelines.runs.pinned_inputs import folder_here, held_here, kept_questions
from pipelines.runs.workspace import Workspace
from pipelines.writing import self_prompts
from pipelines.writing.augment import load as rows_of
from recovery.errors import InputError

Changes = Mapping[str, Any]  # settings by their key in recover.yaml: {"distill.steps": 20}
NONE: Changes = {}
BESIDE = {"probes": "eval.probes", "ifeval": "eval.ifeval", "prompts": "distill.prompts"}
ASKS = {"probes": "about the documents", "ifeval": "IFEval", "prompts": "recovery prompts"}
LATEST = 1000  # midtrainings among which the newest that is no pilot's is looked for


def resolved(ws: Workspace, docs: Path | None, changes: Changes = NONE) -> Config:
    """Return recover.yaml, overridden by the files beside the documents, and both by `changes`.

    Say where documents are that were moved with the home.
    """
    here = folder_here(ws, docs) if docs else None
    if here != docs:
        ws.progress.say(f"  documents    {here}, as {docs} is gone")
    there = companions(here) if here else {}
    from_files = {BESIDE[name]: path for name, path in there.items()}
    return with_written(ws, changed(ws.config, {**from_files, **changes}))


def say_beside(ws: Workspace, docs: Path, changes: Changes, used: Mapping[str, str | None]) -> None:
    """Say which questions beside the documents take the place of those of recover.yaml, and what is used
    where a file is not there: `used` names it by the file that it may come from."""
    there, configured = companions(docs), flattened(ws.config.model_dump())
    for name, path in there.items():
        if name != "prompts" and BESIDE[name] not in changes and path != configured[BESIDE[name]]:
            ws.progress.say(f"  {name:<12} {path} beside the documents")
    missing = [
        f"{ASKS[name]}: {place or 'nothing'} (looked for {beside(docs, f'{name}.jsonl')}"
        f"{_inside(docs, name, place)})"
        for name, place in used.items()
        if name not in there and BESIDE[name] not in changes
    ]
    if missing:
        ws.progress.say(f"  asks         {'; '.join(missing)}")


def _inside(docs: Path, name: str, used: str | None) -> str:
    """Say that a file of questions lies in the folder of documents, where it is neither read nor asked."""
    file = docs / f"{name}.jsonl"
    if not file.is_file() or absolute(file) == used:
        return ""
    return f"; {file} lies in the folder, not used: move it beside, or --{name} {file}"


def resolved_for(ws: Workspace, checkpoint: str, docs: Path | None = None, changes: Changes = NONE) -> Config:
    """Return the settings by which a checkpoint is asked about `docs`, else about what it was last taught.

    What the cycle asked that taught these documents comes before the file beside them, which may hold the
    next month's questions by now.
    """
    folder = docs or taught_folder(ws, checkpoint)
    kept = _probes_asked(ws, checkpoint, folder) if folder else None
    of_cycle = {"eval.probes": kept} if kept else {}
    return resolved(ws, folder, {**of_cycle, **ifeval_asked(ws, checkpoint, folder), **changes})


def _probes_asked(ws: Workspace, checkpoint: str, docs: Path) -> str | None:
    """Return the file of what the newest cycle behind a checkpoint asked that read these documents."""
    numbers = list(_cycles_about(ws, checkpoint, docs))
    return earlier_probes(ws, checkpoint).get(numbers[-1]) if numbers else None


def ifeval_asked(ws: Workspace, checkpoint: str, docs: Path | None) -> Changes:
    """Return the setting of the IFEval file that this cycle asked, while the file is there: answers to other
    prompts could not be compared with those that it recorded. One of a home that was moved is found there."""
    jobs = list(_cycles_about(ws, checkpoint, docs).values()) if docs else []
    file = jobs[-1]["settings"]["eval"]["ifeval"] if jobs else ""
    if is_file(file):
        return {"eval.ifeval": file}
    digest = jobs[-1].get("inputs", {}).get(IFEVAL_INPUT) if jobs else None
    here = held_here(ws, file, digest) if digest else None
    return {"eval.ifeval": here} if here else NONE


def _cycles_about(ws: Workspace, checkpoint: str, docs: Path) -> dict[int, dict[str, Any]]:
    """Return the jobs of the cycles behind a checkpoint that read these documents, oldest first; `docs` is
    where they lay then or, where they were moved with the home, where they lie now."""
    jobs = queries.cycles_behind(ws.tracker.db, checkpoint)
    named = docs.absolute()
    return {
        number: job
        for number, job in jobs.items()
        if named in (Path(job["docs"]), folder_here(ws, Path(job["docs"])))
    }


def say_ifeval(ws: Workspace, settings: Config, changes: Changes) -> None:
    """Name the file of IFEval's prompts where it is neither typed nor that of recover.yaml."""
    file = settings.eval.ifeval
    if "eval.ifeval" not in changes and file != ws.config.eval.ifeval and is_file(file):
        ws.progress.say(f"  ifeval       {file} (--ifeval FILE for others)")


def say_kept(ws: Workspace, probes: str | None) -> None:
    """Name the questions where they are those that a cycle asked, as the home keeps them."""
    if probes and Path(probes).parent == kept_questions(ws, "").parent:
        ws.progress.say(f"  probes       {probes}, which its cycle asked (--probes FILE for others)")


def require_probes(settings: Config) -> None:
    """Refuse a file of probes that cannot be read: what it asks is kept out of all training."""
    if settings.eval.probes:
        load_probes(settings.eval.probes)


# Documents -------------------------------------------------------------------------------------------------


def readable_folder(ws: Workspace, docs: Path, settings: Config) -> str:
    """Return the absolute path of a folder of documents; refuse one without a readable document, and one
    that holds the home, or questions or prompts of the run, which would be trained on."""
    documents.refuse_home_among(docs, ws.home)
    documents.require(docs, settings.midtrain.reading.limits)
    files = {
        "eval.probes": settings.eval.probes,
        "eval.ifeval": settings.eval.ifeval,
        "eval.further_prompts": settings.eval.further_file,
        "distill.prompts": settings.distill.prompts,
        "distill.pairs": settings.distill.pairs,
        "distill.stop.probe": settings.distill.stop.probe if settings.distill.stop else None,
    }
    for name, place in files.items():
        if place and is_file(place):
            documents.refuse_among(docs, Path(place), name)
    return absolute(docs)


def training_folder(ws: Workspace, docs: Path, settings: Config) -> str:
    """Return the absolute path of a folder that a midtraining can read, to the end where it is strict."""
    superseded.check(docs)
    reading = settings.midtrain.reading
    if reading.strict:
        documents.require(docs, reading.limits, strict=True)
    return readable_folder(ws, docs, settings)


def absolute(path: Path) -> str:
    return str(path.absolute())


def taught_folder(ws: Workspace, checkpoint: str) -> Path | None:
    """Return the folder of documents that a checkpoint was last trained on, where it was then; None for the
    clean model."""
    runs = ws.midtraining_runs(checkpoint)
    return Path(runs[-1]["config"]["docs"]) if runs else None


# Prompts ---------------------------------------------------------------------------------------------------


def recovery_prompts(ws: Workspace, settings: Config, changes: Changes, *, wanted: str | None = None) -> str:
    """Return the source of recovery prompts; for `self` the file that the clean model writes on first use.

    Say so where prompts.jsonl beside the documents takes the place of recover.yaml's source. Where the rows
    have to hold more, which is `wanted`, `self` is refused.
    """
    source = settings.distill.prompts
    configured = ws.config.distill.prompts
    typed = "distill.prompts" in changes
    if source != configured and not typed:
        ws.progress.say(f"  prompts      {source} beside the documents, not {configured} of recover.yaml")
    most = _most_prompts(settings)
    return self_prompts.resolved(ws, source, settings.seed, asked=most, typed=typed, wanted=wanted)


def refuse_prompts(changes: Changes, why: str) -> None:
    """Refuse prompts that were typed where none are read."""
    if "distill.prompts" in changes:
        raise InputError(f"--prompts has no effect {why}: leave it out, or give midtrain.mix a share of chat")


def midtraining_prompts(
    ws: Workspace, docs: Path, student: str, settings: Config, changes: Changes, earlier: Mapping[int, str]
) -> str:
    """Return the source of the prompts for midtraining's chat share, which the clean model can be asked; as
    configured if it has none. `earlier` are the probes of cycles before."""
    if not settings.midtrain.mix.chat:
        return settings.distill.prompts
    prompts = recovery_prompts(ws, settings, changes)
    require_chat_apart(ws, require_chat(ws, prompts, settings, earlier), docs, student, settings)
    return prompts


def require_chat(ws: Workspace, prompts: str, settings: Config, earlier: Mapping[int, str]) -> list[Prompt]:
    """Return the prompts that the evaluation does not ask; refuse those of which the clean model can answer
    none for midtraining's chat share."""
    read = read_prompts(prompts, settings.seed, ws.home)
    require_askable(ws, ws.clean().id, read)
    asked = asked_prompts(settings.eval, earlier)
    require_unasked(PromptData(read, []), asked)
    return asked.kept_out_of(read)


def _most_prompts(settings: Config) -> int:
    """Return how many recovery prompts a run uses at most: in distillation, or for the mix's chat."""
    distill, midtrain = settings.distill, settings.midtrain
    distilled = distill.most_steps * distill.prompts_per_step
    return max(distilled, midtrain.chat_prompts if midtrain.mix.chat else 0)


# Checkpoints -----------------------------------------------------------------------------------------------


def newest_midtrained(ws: Workspace) -> str:
    """Return the checkpoint of the newest finished midtraining, those of pilots aside."""
    if found := _newest_midtrained(ws):
        return found
    raise InputError("nothing was midtrained yet: run `recover midtrain --docs DIR` first, or give --student")


def _newest_midtrained(ws: Workspace) -> str | None:
    for run in queries.runs(ws.tracker.db, kind="midtrain", status="done", limit=LATEST):
        if not str(run["parent_id"]).startswith("pilot-"):
            return str(run["result"]["checkpoint"])
    return None


def taught_checkpoint(ws: Workspace, checkpoint: str) -> str:
    """Return the checkpoint whose documents a measurement asks about: the clean model, which was taught none,
    is asked about those of the newest midtraining, to be compared with what came of it."""
    if checkpoint != queries.resolve(ws.tracker.db, "base"):
        return checkpoint
    return _newest_midtrained(ws) or checkpoint


def say_about(ws: Workspace, asked: str, of: str) -> None:
    """Say whose documents a checkpoint is asked about, where it was not taught them itself."""
    if of != asked:
        ws.progress.say(f"  about        {taught_folder(ws, of)}, which {of} was taught last")


def with_routes(ws: Workspace, distill: DistillConfig) -> DistillConfig:
    """Return the settings with the id of each checkpoint that the routes name; refuse one that is missing."""
    routes = {name: ws.checkpoint(place).id for name, place in distill.routes.items()}
    return distill.model_copy(update={"routes": routes})


def guard_typed(changes: Changes) -> str | None:
    """Return what was typed of prompts about the documents; None of keeping them, which every method does."""
    typed = changes.get("distill.overlap")
    return None if typed == "keep" else typed


def with_augmented(settings: MidtrainConfig, augment: Path | None, changes: Changes = NONE) -> MidtrainConfig:
    """Give retold documents a share of the mix: half of the new documents', unless the mix sets one.

    Where there are none, refuse a share that was typed; one of recover.yaml goes to the other sources.
    """
    if augment is None:
        if settings.mix.augmented and "midtrain.mix" in changes:
            raise InputError(
                "--mix: augmented has no effect without --augment (of `recover cycle` and `midtrain`): name "
                "the folder that `recover augment` wrote, or leave augmented out"
            )
        return settings
    rows_of(augment)
    mix = settings.mix
    if mix.augmented:
        return settings
    half = mix.model_copy(update={"new": mix.new / 2, "augmented": mix.new / 2})
    return settings.model_copy(update={"mix": half})
