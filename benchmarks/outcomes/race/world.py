"""Run the methods on one world of the race: midtrained models, recoveries, scores and costs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.outcomes.lab import DISTILLATION, MIDTRAINING_RATE, MIDTRAINING_STEPS, RECOVERY_RATE, SCHEDULE
from benchmarks.outcomes.race.report import SUITES
from db.reads import queries
from evals import jsonl
from evals.scores import chat
from pipelines.config.jobs import DistillJob, EvalJob, Kind, MergeJob, MidtrainJob
from pipelines.config.overrides import override
from pipelines.config.sections.training import LoraConfig
from pipelines.demo import world_once
from pipelines.distill import distill
from pipelines.evaluate import evaluate
from pipelines.evaluation.model_answers import ModelAnswers
from pipelines.machine.init_home import initialise
from pipelines.merge import merge
from pipelines.microworld.instructions import INSTRUCTIONS
from pipelines.midtrain import midtrain
from pipelines.runs.cost import spent
from pipelines.runs.stage_runner import run_stage
from pipelines.runs.workspace import Workspace
from recovery.errors import Unstable

if TYPE_CHECKING:
    from pipelines.runs.progress import Progress
    from pipelines.runs.stage_runner import Result, Stage

Row = dict[str, Any]
COSTS = ("tokens_sampled", "tokens_scored", "tokens_trained", "flops", "seconds")
CHAT = 0.3  # share of chat in the mild case's midtraining
LORA_RANK = 32
GROUP = 8  # answers per prompt in `rl`

# Recovery by distillation: each row's settings besides the common ones.
TRAINED: dict[str, Row] = {
    "self-sft": {"method": "sft"},
    "seqkd": {"method": "seqkd"},
    "gkd": {"method": "gkd"},
    "opd-sampled": {"method": "opd-sampled"},
    "opd": {"method": "opd"},
    "sdft": {"method": "sdft-reverse"},
    "rl": {"method": "rl", "reward": "ifeval"},
}
ANSWERED = ("self-sft", "gkd", "sdft")  # methods that read the clean model's answers from a file
MERGED: dict[str, Kind] = {"embeddings": "embeddings", "merge": "linear"}  # methods without training
MIDTRAINED = ("none", "replay", "frozen", "lora")  # variants of midtraining without recovery


@dataclass(frozen=True)
class Scale:
    """The amount of work; `small` is for testing the benchmark itself."""

    midtrain_steps: int = MIDTRAINING_STEPS
    distill_steps: int = DISTILLATION["steps"]
    prompts_per_step: int = DISTILLATION["prompts_per_step"]
    ifeval: int | None = None  # None: all
    probes: int | None = None
    prompts: int | None = None

    @classmethod
    def small(cls) -> Scale:
        return cls(midtrain_steps=2, distill_steps=1, prompts_per_step=8, ifeval=8, probes=6, prompts=8)


class Race:
    """One world: its midtrained models, and every method on them."""

    def __init__(self, work: Path, seed: int, scale: Scale, progress: Progress) -> None:
        self.seed, self.scale, self.folder = seed, scale, work / f"seed-{seed}"
        self.ws = Workspace.open(self.folder / "home", progress=progress)
        initialise(self.ws, model="microworld")
        self.world = world_once(self.folder, 1, seed).parent
        self.clean = self.ws.clean().id

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *_: object) -> None:
        self.ws.close()

    def row(self, case: str, method: str, tuned: float) -> Row:
        """Return one result: scores before and after, and the method's cost."""
        base = self._midtrained(case)
        stopped = None
        try:
            made = self._recovered(case, method, base, tuned)
        except Unstable as alarm:  # the earlier checkpoint remains, and the cost counts
            made, stopped = base, str(alarm)
        scores = {
            stage: self._scores(case, checkpoint)
            for stage, checkpoint in (("clean", self.clean), ("midtrained", base), ("recovered", made))
        }
        named = {"seed": self.seed, "case": case, "method": method, "tuned": tuned}
        return named | scores | {"cost": self._paid(case, method, tuned), "stopped": stopped}

    # Checkpoints ----------------------------------------------------------------------------------------

    def _midtrained(self, case: str, way: str = "none", tuned: float = 1.0) -> str:
        """Midtrain without protection, with more chat, with frozen embeddings, or with an adapter alone."""
        documents = (1 - CHAT if case == "mild" else 1.0) * (1 - tuned if way == "replay" else 1.0)
        preset = self.ws.config.midtrain
        rate = MIDTRAINING_RATE * (tuned if way in ("frozen", "lora") else 1.0)
        settings = override(
            preset,
            {
                "steps": self.scale.midtrain_steps,
                "mix": {"new": documents, "earlier": 0.0, "chat": 1 - documents},
                "lora": LoraConfig(rank=LORA_RANK).model_dump() if way == "lora" else None,
                "freeze_embeddings": way == "frozen",
                "optimizer": override(preset.optimizer, {"learning_rate": rate}),
            },
        )
        job = MidtrainJob(
            docs=str((self.world / "docs").absolute()),
            student=self.clean,
            settings=settings,
            prompts=self._prompts(case),
            seed=self.seed,
        )
        return str(midtrain(self.ws, job, key=self._midtraining(case, way, tuned))["checkpoint"])

    def _midtraining(self, case: str, way: str = "none", tuned: float = 1.0) -> str:
        """Return the run's key: cases share a midtraining with equal settings."""
        start = case if case == "mild" or (case, way) == ("types", "replay") else "hard"
        return f"midtrain:{start}:{way}:{tuned:g}"

    def _recovered(self, case: str, method: str, base: str, tuned: float) -> str:
        """Return the method's checkpoint."""
        if method in MIDTRAINED:
            return self._midtrained(case, method, tuned)
        key = self._recovering(case, method, tuned)
        if method in MERGED:
            job = MergeJob(student=base, other=self.clean, weight=tuned, kind=MERGED[method])
            done = merge(self.ws, job, key=key)
        else:
            done = distill(self.ws, self._distillation(case, method, base, tuned), key=key)
        return str(done["checkpoint"])

    def _recovering(self, case: str, method: str, tuned: float) -> str:
        """Return the run's key: cases share a merge with equal inputs."""
        if method in MERGED:
            return f"{method}:{'mild' if case == 'mild' else 'hard'}:{tuned:g}"
        return f"distill:{case}:{method}:{tuned:g}"

    def _paid(self, case: str, method: str, tuned: float) -> Row:
        """Return a method's cost besides midtraining on the documents, including runs stopped by an alarm."""
        if method in MIDTRAINED:
            own, plain = (self._cost([self._midtraining(case, *way)]) for way in ((method, tuned), ()))
            return {name: max(0.0, own[name] - plain[name]) for name in COSTS}
        answers = [self._answering(case)] if method in ANSWERED else []
        return self._cost([self._recovering(case, method, tuned), *answers])

    def _distillation(self, case: str, method: str, base: str, factor: float) -> DistillJob:
        preset, count = self.ws.config.distill, self.scale.prompts_per_step
        settings = override(
            preset,
            {
                **DISTILLATION,
                **TRAINED[method],
                "steps": self.scale.distill_steps,
                "optimizer": override(preset.optimizer, SCHEDULE | {"learning_rate": RECOVERY_RATE * factor}),
                "prompts_per_step": count // GROUP if method == "rl" else count,
                "pairs": self._answered(case) if method in ANSWERED else None,
            },
        )
        return DistillJob(
            student=base,
            teacher=self.clean,
            prompts=self._prompts(case),
            settings=settings,
            evaluation=self._eval(case),
            seed=self.seed,
        )

    def _answered(self, case: str) -> str:
        """Return the recovery prompts with the clean model's greedy answers, sampled in a separate run."""
        asked = {"prompts": self._prompts(case), "checkpoint": self.clean}
        found = run_stage(
            self.ws,
            "answers",
            lambda stage: self._answer(stage, asked["prompts"]),
            config=asked,
            key=self._answering(case),
        )
        return str(found["pairs"])

    def _answering(self, case: str) -> str:
        return f"answers:{case == 'types'}"

    def _answer(self, stage: Stage, prompts: str) -> Result:
        from recovery.sampling.in_process import InProcessSampler

        model, rows = self.ws.load(self.ws.clean()), jsonl.read(prompts, {})
        job = EvalJob(checkpoint=self.clean, suites=(), settings=self.ws.config.eval)
        answers = ModelAnswers(model, InProcessSampler(model), job, stage, "answers")
        texts = answers.greedy(self.ws.config.distill.max_new_tokens)([chat(row["prompt"]) for row in rows])
        path = stage.directory / "answered.jsonl"
        jsonl.write(path, [row | {"response": text} for row, text in zip(rows, texts, strict=True) if text])
        return {"pairs": str(path.absolute())}

    # Evaluation files ----------------------------------------------------------------------------------

    def _scores(self, case: str, checkpoint: str) -> Row:
        asked = EvalJob(checkpoint=checkpoint, suites=SUITES, settings=self._eval(case), label=case)
        found = evaluate(self.ws, asked, key=f"eval:{case == 'types'}:{checkpoint}")["scores"]
        return {suite: found[suite]["score"] for suite in SUITES} | {"n": found["ifeval"]["n"]}

    def _eval(self, case: str) -> Any:
        files = {"ifeval": self._file("ifeval"), "probes": self._file("probes")}
        if case == "types":
            files["ifeval"] = self._half("ifeval", wanted=1)
        return override(self.ws.config.eval, files)

    def _prompts(self, case: str) -> str:
        return self._half("prompts", wanted=0) if case == "types" else self._file("prompts")

    def _half(self, name: str, wanted: int) -> str:
        """Return rows whose instruction types all lie in one half; rows without types belong to the first."""
        path = self.folder / f"{name}-half-{wanted}.jsonl"
        if not path.is_file():
            half = halves(self.seed)[wanted]
            read = jsonl.read(self._file(name), {})
            rows = [(row, set(row.get("instruction_id_list") or [])) for row in read]
            jsonl.write(path, [row for row, types in rows if types <= half and (types or wanted == 0)])
        return str(path.absolute())

    def _file(self, name: str) -> str:
        """Return a file of the world, truncated to the scale."""
        path = self.world / f"{name}.jsonl"
        limit: int | None = getattr(self.scale, name)
        if limit is None:
            return str(path.absolute())
        short = self.folder / f"{name}-short.jsonl"
        if not short.is_file():
            rows = jsonl.read(path, {})
            step = max(1, len(rows) // limit)
            jsonl.write(short, rows[::step] if name == "probes" else rows[: limit * 4])
        return str(short.absolute())

    def _cost(self, keys: Sequence[str]) -> Row:
        runs = [run for run in queries.runs(self.ws.tracker.db, limit=None) if run["key"] in keys]
        costs = [spent(self.ws.run_directory(run["id"])) for run in runs]
        return {name: sum(cost.get(name, 0.0) for cost in costs) for name in COSTS}


def halves(seed: int) -> tuple[set[str], set[str]]:
    """Split the instruction types into two halves, by the seed."""
    names = sorted(instruction.id for instruction in INSTRUCTIONS)
    random.Random(f"race:{seed}").shuffle(names)
    return set(names[: len(names) // 2]), set(names[len(names) // 2 :])
