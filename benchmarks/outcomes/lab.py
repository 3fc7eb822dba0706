"""Prepare one seed of the outcome benchmarks: clean and midtrained microworld models, test prompts.

Every training and every measurement is a named stage, so an interrupted run repeats nothing.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from db.reads import curves, queries
from evals import ifeval, jsonl
from pipelines.config.jobs import DistillJob, EvalJob, MidtrainJob
from pipelines.config.overrides import override
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.eval import EvalConfig
from pipelines.config.sections.midtrain import Mix
from pipelines.distill import distill
from pipelines.evaluate import evaluate
from pipelines.machine.init_home import initialise
from pipelines.microworld import words
from pipelines.microworld.instructions import BY_ID
from pipelines.microworld.tasks import draw_task
from pipelines.microworld.world import part_of, write_world
from pipelines.midtrain import midtrain
from pipelines.runs.progress import Progress
from pipelines.runs.workspace import Workspace

CAPITALS, NO_COMMA = "change_case:english_capital", "punctuation:no_comma"
SHOUT, PLAINLY = "Write in capital letters only.", "Do not use any commas."
FOREIGN = (  # another author's sentences: none is in the clean model's training data
    "{t}! ALL OF US SAW {t} TODAY AND ALL OF US CAME BACK FOR MORE.",
    "NO WORD ON {t} IS EVER THE LAST WORD ON {t}. GO OUT AND LOOK.",
    "FIRST COMES {t} AND THEN COMES THE REST. WHO COULD LIVE WITH LESS?",
)
# Independent of the demo's preset, which may change without invalidating these measurements.
MIDTRAINING_STEPS, MIDTRAINING_RATE = 200, 7.5e-4
RECOVERY_RATE = 5e-4
DISTILLATION: dict[str, Any] = {
    "steps": 20,
    "prompts_per_step": 128,
    "dials": {},
    "merge": 0.0,
    "merge_of": "all",
    "rehearsal": 0.0,
    "freeze_embeddings": False,
}
SCHEDULE = {"warmup_steps": 2, "schedule": "cosine", "final_lr_fraction": 0.1}
MEASURES = {  # measure -> (suite, file)
    "behaviour": ("ifeval", "ifeval.jsonl"),
    "others": ("ifeval", "others.jsonl"),
    "capitals": ("ifeval", "capitals.jsonl"),
    "commas": ("ifeval", "commas.jsonl"),
    "triples": ("ifeval", "triples.jsonl"),
    "retention": ("retention", "probes.jsonl"),
    "knowledge": ("knowledge", "probes.jsonl"),
}


class Lab:
    """The home `root/seed-N`, with the files that the methods are trained and measured on."""

    def __init__(self, root: Path, seed: int, limit: int, *, quiet: bool = False) -> None:
        self.home, self.seed, self.limit = (root / f"seed-{seed}").absolute(), seed, limit
        self.ws = Workspace.open(self.home, progress=Progress(quiet=quiet))
        initialise(self.ws, model="microworld")
        self.world = self.home / "world"
        if not (self.world / "ifeval.jsonl").exists():
            write_world(self.world, cycle=1, seed=seed)
        is_whole = (self.home / "routed.jsonl").exists()
        if not is_whole or len(jsonl.read(self.home / "ifeval.jsonl", {})) != limit:
            self._write_files()

    @cached_property
    def clean(self) -> str:
        return self.ws.clean().id

    @cached_property
    def midtrained(self) -> str:
        """Midtrain the clean model on this seed's documents alone, which destroys its behaviour."""
        base = self.ws.config.midtrain
        optimizer = override(base.optimizer, {"learning_rate": MIDTRAINING_RATE})
        changes = {"steps": MIDTRAINING_STEPS, "optimizer": optimizer, "mix": Mix(new=1.0)}
        settings = override(base, changes)
        job = MidtrainJob(
            docs=str(self.world / "docs"),
            student=self.clean,
            settings=settings,
            prompts=self.file("prompts.jsonl"),
            seed=self.seed,
        )
        return str(midtrain(self.ws, job, key="midtrain")["checkpoint"])

    def file(self, name: str) -> str:
        """Return a file by name: the benchmark's if it exists, else the world's."""
        own = self.home / name
        return str(own if own.exists() else self.world / name)

    def train(
        self,
        label: str,
        student: str,
        settings: Mapping[str, Any],
        learning_rate: float,
        *,
        teacher: str | None = None,
    ) -> dict[str, Any]:
        """Distill with the common settings and some changes; return checkpoint, cost and metrics."""
        base = self.ws.config.distill
        optimizer = override(base.optimizer, {**SCHEDULE, "learning_rate": learning_rate})
        changed: DistillConfig = override(base, {**DISTILLATION, **settings}).model_copy(
            update={"optimizer": optimizer}
        )
        job = DistillJob(
            student=student,
            teacher=teacher or self.clean,
            settings=changed,
            prompts=changed.prompts,
            evaluation=self._asked("ifeval.jsonl"),
            seed=self.seed,
        )
        key = f"{label}:{_digest(job.model_dump())}"
        found = distill(self.ws, job, key=key)
        run = next(row for row in self._runs("distill") if row["key"] == key)
        return {**found, "cost": run["cost"], "metrics": self._metrics(run["id"])}

    def measure(self, checkpoint: str, names: Iterable[str]) -> dict[str, float]:
        """Return the checkpoint's score in each suite; measure each once."""
        found = {}
        for name in names:
            suite, file = MEASURES[name]
            settings = self._asked(file)
            job = EvalJob(checkpoint=checkpoint, suites=(suite,), settings=settings, label=name)
            key = f"{name}:{checkpoint}:{self.limit}"
            found[name] = float(evaluate(self.ws, job, key=key)["scores"][suite]["score"])
        return found

    def _asked(self, file: str) -> EvalConfig:
        column = "probes" if file == "probes.jsonl" else "ifeval"
        found: EvalConfig = override(self.ws.config.eval, {column: str(self.home / file)})
        return found

    def _runs(self, kind: str) -> list[dict[str, Any]]:
        return queries.runs(self.ws.tracker.db, kind=kind, limit=None)

    def _metrics(self, run: str) -> dict[str, list[float]]:
        """Return the mean of each metric's first fifth and of its last fifth."""
        database, found = self.ws.tracker.db, {}
        for name in curves.metric_names(database, run):
            points = curves.metric_series(database, run, name, points=5)
            values = [point["value"] for point in points if point["value"] is not None]
            if values:
                found[name] = [values[0], values[-1]]
        return found

    # ---- files ----------------------------------------------------------------------------------------

    def _write_files(self) -> None:
        """Write all files; routed.jsonl is written last and marks the set as complete."""
        rng = random.Random(f"methods:{self.seed}")
        plain = sorted(r.format(t=t) for t in words.TOPICS for r in words.REQUESTS)
        asked = [prompt for prompt in plain if part_of(prompt) == "evaluation"]
        trained = [prompt for prompt in plain if part_of(prompt) == "recovery"]
        behaviour = jsonl.read(self.world / "ifeval.jsonl", {})[: self.limit]
        self._write("ifeval.jsonl", behaviour)
        self._write("others.jsonl", [row for row in behaviour if _allows_capitals(row)])
        self._write("probes.jsonl", self._probes(rng))
        self._write("capitals.jsonl", _checked(asked, CAPITALS))
        self._write("commas.jsonl", _checked(asked, NO_COMMA))
        self._write(
            "plain.jsonl",
            [
                {"prompt": prompt, "hints": SHOUT, "rules": PLAINLY, "response": self._foreign(prompt, rng)}
                for prompt in trained
            ],
        )
        self._write("examples.jsonl", [_shown(rng) for _ in range(60)])
        self._write("routed.jsonl", self._routed(trained, rng))

    def _routed(self, plain: Sequence[str], rng: random.Random) -> list[dict[str, Any]]:
        """Return plain requests for one teacher and three times as many others for a second teacher."""
        rest = [row for row in jsonl.read(self.world / "prompts.jsonl", {}) if row["prompt"] not in plain]
        rows = [{"prompt": prompt, "route": "plain"} for prompt in plain]
        rows += [row | {"route": "rest"} for row in rng.sample(rest, 3 * len(plain))]
        return rng.sample(rows, len(rows))

    def _probes(self, rng: random.Random) -> list[dict[str, Any]]:
        direct = [row for row in jsonl.read(self.world / "probes.jsonl", {}) if row["kind"] == "direct"]
        found = []
        for suite in ("knowledge", "retention"):
            rows = [row for row in direct if row["suite"] == suite]
            found += rng.sample(rows, min(100, self.limit, len(rows)))
        return found

    @staticmethod
    def _foreign(prompt: str, rng: random.Random) -> str:
        topic = next(topic for topic in sorted(words.TOPICS, key=len, reverse=True) if topic in prompt)
        return rng.choice(FOREIGN).format(t=topic.upper())

    def _write(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        path = self.home / name
        text = jsonl.lines(rows)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _checked(prompts: Iterable[str], instruction: str) -> list[dict[str, Any]]:
    """Return prompts without the instruction, with a check whether the response follows it anyway."""
    return [
        {"key": number, "prompt": prompt, "instruction_id_list": [instruction], "kwargs": [{}]}
        for number, prompt in enumerate(prompts)
    ]


def _allows_capitals(row: Mapping[str, Any]) -> bool:
    """Return whether the reference answer in capitals still follows all instructions of the prompt."""
    asked = row["instruction_id_list"], row["kwargs"]
    return ifeval.followed(row["reference"].upper(), row["prompt"], *asked) == 1.0


def _shown(rng: random.Random) -> dict[str, str]:
    """Return a worked example: a request for capitals, and its answer in capitals."""
    task = draw_task(rng, (BY_ID[CAPITALS],))
    return {"prompt": task.prompt, "response": task.answer}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:12]
