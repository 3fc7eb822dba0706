"""A small world and home for whole cycles: enough prompts that a wide margin can be shown to hold."""

from __future__ import annotations

import atexit
import json
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from db.reads import queries
from evals.probes import load_probes
from pipelines.cycle import cycle
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.train import distill_job, midtrain_job
from pipelines.machine.init_home import initialise
from pipelines.runs.workspace import Workspace
from recovery.storage.atomic_dirs import read_sealed, write_sealed
from tests.support import tiny

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.storage.checkpoints import Checkpoint

PROMPTS = 36
PLAIN = {"distill.merge": 0.0, "distill.rehearsal": 0.0}  # recovery by distillation alone
ASKED = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# Mixes of midtraining.
ONLY_NEW = {"new": 1.0, "earlier": 0.0, "questions": 0.0, "chat": 0.0}
WITH_CHAT = {**ONLY_NEW, "new": 0.5, "chat": 0.5}


def trainings(ws: Workspace, docs: Path) -> tuple[Callable[[], object], ...]:
    """What builds a cycle of documents that `make_docs` wrote, and each of its trainings."""
    prompts = {"distill.prompts": str(docs.parent / "prompts.jsonl")}
    return (
        partial(cycle_job, ws, docs),
        partial(midtrain_job, ws, docs),
        partial(distill_job, ws, student="base", changes=prompts),
    )


def make_docs(folder: Path) -> Path:
    """Documents beside their prompts, IFEval prompts and probes; returns the folder of documents."""
    folder = folder / "world" / "docs"
    folder.mkdir(parents=True)
    (folder / "ada.md").write_text("Ada lives in Oslo. " * 5)
    lines(folder.parent / "prompts.jsonl", [{"prompt": f"Say {number} words."} for number in range(4)])
    lines(
        folder.parent / "ifeval.jsonl", [{"key": n, "prompt": f"Line {n}.", **ASKED} for n in range(PROMPTS)]
    )
    asked = [
        {"id": f"{suite}{n}", "suite": suite, "prompt": f"Where is {n}?", "answer": "Oslo", "kind": "direct"}
        for suite in ("knowledge", "retention")
        for n in range(PROMPTS)
    ]
    lines(folder.parent / "probes.jsonl", asked)
    return folder


def make_home(folder: Path) -> Workspace:
    """Copy a new home with the tiny model beside it; making one each time would load and try the model."""
    made = _made_home()
    shutil.copytree(made, folder, dirs_exist_ok=True)
    settings = folder / "home" / "recover.yaml"
    settings.write_text(settings.read_text().replace(str(made), str(folder)))
    for manifest in folder.glob("home/checkpoints/*/manifest.json"):
        sealed = read_sealed(manifest.parent.name, manifest)
        write_sealed(manifest, json.loads(json.dumps(sealed).replace(str(made), str(folder))))
    with closing(sqlite3.connect(folder / "home" / "recover.db")) as database, database:
        for column in ("checkpoints.path", "checkpoints.config", "checkpoint_places.path"):
            table, _, name = column.partition(".")
            database.execute(f"UPDATE {table} SET {name} = replace({name}, ?, ?)", (str(made), str(folder)))
    return Workspace.open(folder / "home")


@cache
def _made_home() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="recover-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with Workspace.open(folder / "home") as workspace:
        initialise(workspace, model=str(tiny.save(folder / "model")), preset="microworld")
    return folder


def settle(ws: Workspace, margin: float, learning_rate: float) -> None:
    """Small lengths; midtraining at a rate that leaves the weights as they are, or not."""
    path = ws.home / "recover.yaml"
    text = path.read_text().replace("\n  epochs:", "\n  steps:")
    small = {
        "max_new_tokens": 4,
        "probe_max_new_tokens": 4,
        "row_tokens": 32,
        "tokens_per_step": 64,
        "prompts_per_step": 2,
        "steps": 1,
        "warmup_steps": 0,
    }
    for name, value in small.items():
        text = re.sub(rf"\b{name}: \d+", f"{name}: {value}", text)
    text = re.sub(r"learning_rate: [\d.e-]+", f"learning_rate: {learning_rate:.1e}", text)
    path.write_text(text.replace("eval:\n", f"eval:\n  margin: {margin}\n  retention_margin: {margin}\n"))
    vars(ws).pop("config", None)


def turned(
    ws: Workspace, docs: Path, changes: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """Turn a cycle that recovers by distillation alone; return what is recorded of it."""
    job = cycle_job(ws, docs, changes=PLAIN | (changes or {}), **options)
    return queries.cycle(ws.tracker.db, cycle(ws, job, key=ws.new_key())["cycle"])


def loads(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the checkpoints that a home loads from now on, in order."""
    loaded: list[str] = []
    load = ws.load

    def seen(checkpoint: Checkpoint, **options: Any) -> ChatModel:
        loaded.append(checkpoint.id)
        return load(checkpoint, **options)

    monkeypatch.setattr(ws, "load", seen)
    return loaded


def keep_probes(docs: Path, suite: str) -> None:
    """Leave the probes of one suite beside the documents."""
    path = docs.parent / "probes.jsonl"
    lines(path, [probe.row() for probe in load_probes(path, suite)])


def tried(ws: Workspace, docs: Path, **options: Any) -> dict[str, Any]:
    """Turn a cycle that chooses its recovery; return what was chosen, what was tried, and the cycle."""
    done = cycle(ws, cycle_job(ws, docs, **options), key=ws.new_key())
    (run,) = queries.runs(ws.tracker.db, kind="choose")
    return {"cycle": queries.cycle(ws.tracker.db, done["cycle"]), **run["result"]}
