"""The fair race: every way of bringing behaviour back, on the same microworlds, with the same budgets.

    python -m benchmarks.race --seeds 5 --work .race

Each result is a line of WORK/rows.jsonl; a run that was cut off goes on where it was. Cases: `hard`
(documents only), `mild` (30 % of midtraining is chat answered by the clean model itself) and `types` (hard,
but recovery prompts hold one half of the instruction types and behaviour is scored on the other half).

Budgets: every method writes or reads the same number of sequences and makes the same number of updates a
batch where its row lets it; every one has three tries (learning rates, or merge weights) on one world that is
not among the seeds, and races with the best of them. No recovery, chat replay and LoRA are ways of
midtraining, with nothing after it. The instruction residual needs the base that the clean model was tuned
from; the microworld's model was never a base, so it cannot run here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from db import queries
from pipelines.config import Config, LoraConfig, override
from pipelines.distill import DistillJob, distill
from pipelines.evaluate import SUITES, EvalJob, evaluate
from pipelines.merge import MergeJob, merge
from pipelines.microworld.instructions import INSTRUCTIONS
from pipelines.microworld.world import write_world
from pipelines.midtrain import MidtrainJob, midtrain
from pipelines.progress import Progress
from pipelines.setup import initialise
from pipelines.workspace import Workspace

Row = dict[str, Any]
CASES = ("hard", "mild", "types")
TUNING_SEED = 9_000  # its world is not raced on
FACTORS = (0.5, 1.0, 2.0)  # of the preset's learning rate
WEIGHTS = (0.3, 0.5, 0.7)
CHAT = 0.3
LORA_RANK = 32
GROUP = 8  # answers to a prompt in `rl`

# Recovery by the one loop: settings of the row beside the common ones.
TRAINED: dict[str, Row] = {
    "self-sft": {"method": "sft"},
    "seqkd": {"method": "seqkd"},
    "gkd": {"method": "gkd"},
    "opd-sampled": {"method": "opd-sampled"},
    "opd": {"method": "opd"},
    "sdft": {"method": "sdft"},
    "rl": {"method": "rl", "reward": "ifeval"},
}
MIDTRAINED = ("none", "replay", "lora")  # what is done at midtraining, and nothing after it
METHODS = (*MIDTRAINED, "merge", *TRAINED)


@dataclass(frozen=True)
class Scale:
    """How much of everything; `small` is for trying the benchmark itself."""

    midtrain_steps: int | None = None  # None: the preset's
    distill_steps: int | None = None
    prompts_per_step: int | None = None
    ifeval: int | None = None
    probes: int | None = None

    @classmethod
    def small(cls) -> Scale:
        return cls(midtrain_steps=2, distill_steps=1, prompts_per_step=8, ifeval=8, probes=6)


class Race:
    """One world: its midtrained models, and every method on them."""

    def __init__(self, work: Path, seed: int, scale: Scale, progress: Progress) -> None:
        self.seed, self.scale, self.folder = seed, scale, work / f"seed-{seed}"
        self.ws = Workspace.open(self.folder / "home", progress=progress)
        initialise(self.ws, model="microworld")
        self.world = self.folder / "world"
        if not (self.world / "ifeval.jsonl").is_file():
            write_world(self.world, cycle=1, seed=seed)
        self.clean = self.ws.clean().id

    def close(self) -> None:
        self.ws.tracker.close()

    def row(self, case: str, method: str, tuned: float) -> Row:
        """One result: scores before and after, and what the method has cost."""
        base = self._midtrained("mild" if case == "mild" else "hard")
        made, runs = self._recovered(case, method, base, tuned)
        scores = {
            stage: self._scores(case, checkpoint)
            for stage, checkpoint in (("clean", self.clean), ("midtrained", base), ("recovered", made))
        }
        named = {"seed": self.seed, "case": case, "method": method, "tuned": tuned}
        return named | scores | {"cost": self._cost(runs)}

    # What is made --------------------------------------------------------------------------------------

    def _midtrained(self, case: str, *, way: str = "none") -> str:
        chat = (CHAT if case == "mild" else 0.0) + (CHAT if way == "replay" else 0.0)
        preset = self._config.midtrain
        if self.scale.midtrain_steps:
            preset = preset.model_copy(update={"steps": None, "epochs": None})
        settings = override(preset, {
            "steps": self.scale.midtrain_steps,
            "mix": {"new": 1 - chat, "earlier": 0.0, "chat": chat},
            "lora": LoraConfig(rank=LORA_RANK).model_dump() if way == "lora" else None,
        })  # fmt: skip
        job = MidtrainJob(
            docs=str((self.world / "docs").absolute()), student=self.clean, settings=settings,
            prompts=self._file("prompts"), seed=self.seed,
        )  # fmt: skip
        return str(midtrain(self.ws, job, key=f"midtrain:{case}:{way}")["checkpoint"])

    def _recovered(self, case: str, method: str, base: str, tuned: float) -> tuple[str, list[str]]:
        """The method's checkpoint, and the keys of the runs that it is paid with."""
        start = "mild" if case == "mild" else "hard"
        if method in MIDTRAINED:
            return self._midtrained(start, way=method), []
        if method == "merge":
            key = f"merge:{start}:{tuned:g}"
            job = MergeJob(student=base, other=self.clean, weight=tuned)
            return str(merge(self.ws, job, key=key)["checkpoint"]), [key]
        key = f"distill:{case}:{method}:{tuned:g}"
        wanted = self._distillation(case, method, base, tuned)
        return str(distill(self.ws, wanted, key=key)["checkpoint"]), [key]

    def _distillation(self, case: str, method: str, base: str, factor: float) -> DistillJob:
        preset = self._config.distill
        count = self.scale.prompts_per_step or preset.prompts_per_step
        optimizer = override(
            preset.optimizer, {"learning_rate": preset.optimizer.learning_rate * factor}
        ).model_dump()
        settings = override(preset, {
            **TRAINED[method], "steps": self.scale.distill_steps, "optimizer": optimizer,
            "prompts_per_step": count // GROUP if method == "rl" else count,
            "pairs": self._answered(case) if method in ("self-sft", "gkd", "sdft") else None,
        })  # fmt: skip
        return DistillJob(
            student=base, teacher=self.clean, prompts=self._prompts(case), settings=settings,
            evaluation=self._eval(case), seed=self.seed,
        )  # fmt: skip

    def _answered(self, case: str) -> str:
        """The recovery prompts with the clean model's own greedy answers."""
        path = self.folder / f"answered-{case == 'types'}.jsonl"
        if not path.is_file():
            rows = _read(Path(self._prompts(case)))
            answers = self._clean_answers([row["prompt"] for row in rows])
            _write(path, [row | {"response": text} for row, text in zip(rows, answers, strict=True) if text])
        return str(path.absolute())

    def _clean_answers(self, prompts: Sequence[str]) -> list[str]:
        from evals.scores import chat
        from recovery.sampling import InProcessSampler, SamplingParams

        model = self.ws.load(self.ws.clean())
        ids = [model.prompt_ids(chat(prompt)) for prompt in prompts]
        params = SamplingParams(self._config.distill.max_new_tokens, temperature=0.0)
        return [model.text(answer) for answer in InProcessSampler(model).generate(ids, params)]

    # What is asked -------------------------------------------------------------------------------------

    def _scores(self, case: str, checkpoint: str) -> Row:
        asked = EvalJob(checkpoint=checkpoint, suites=SUITES, settings=self._eval(case), label=case)
        found = evaluate(self.ws, asked, key=f"eval:{case == 'types'}:{checkpoint}")["scores"]
        return {suite: found[suite]["score"] for suite in SUITES} | {"n": found["ifeval"]["n"]}

    def _eval(self, case: str) -> Any:
        files = {"ifeval": self._file("ifeval"), "probes": self._file("probes")}
        if case == "types":
            files["ifeval"] = self._half("ifeval", wanted=1)
        return override(self._config.eval, files)

    def _prompts(self, case: str) -> str:
        return self._half("prompts", wanted=0) if case == "types" else self._file("prompts")

    def _half(self, name: str, wanted: int) -> str:
        """Rows whose instruction types all lie in one half; questions without any stay in the first."""
        path = self.folder / f"{name}-half-{wanted}.jsonl"
        if not path.is_file():
            half = halves(self.seed)[wanted]
            rows = [(row, set(row.get("instruction_id_list") or [])) for row in _read(Path(self._file(name)))]
            _write(path, [row for row, types in rows if types <= half and (types or wanted == 0)])
        return str(path.absolute())

    def _file(self, name: str) -> str:
        """A file of the world, cut short where the scale says so."""
        path = self.world / f"{name}.jsonl"
        limit = {"ifeval": self.scale.ifeval, "probes": self.scale.probes}.get(name)
        if limit is None:
            return str(path.absolute())
        short = self.folder / f"{name}-short.jsonl"
        if not short.is_file():
            rows = _read(path)
            step = max(1, len(rows) // limit)
            _write(short, rows[::step] if name == "probes" else rows[: limit * 4])
        return str(short.absolute())

    @property
    def _config(self) -> Config:
        return self.ws.config

    def _cost(self, keys: Sequence[str]) -> Row:
        runs = [run for run in queries.runs(self.ws.tracker.db, limit=10_000) if run["key"] in keys]
        names = ("tokens_sampled", "tokens_scored", "tokens_trained", "flops", "seconds")
        return {name: sum(run["cost"].get(name, 0.0) for run in runs) for name in names}


def halves(seed: int) -> tuple[set[str], set[str]]:
    """The instruction types in two halves, by the seed."""
    names = sorted(instruction.id for instruction in INSTRUCTIONS)
    random.Random(f"race:{seed}").shuffle(names)
    return set(names[: len(names) // 2]), set(names[len(names) // 2 :])


def tries(method: str) -> tuple[float, ...]:
    """What is tuned: nothing, the merge weight, or the factor of the learning rate."""
    if method in MIDTRAINED:
        return (1.0,)
    return WEIGHTS if method == "merge" else FACTORS


class Rows:
    """The results so far, a line each; a line that was half written is written again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = _read(path, tolerant=True) if path.is_file() else []
        if path.is_file():
            _write(path, self.rows)

    def get(self, **wanted: object) -> Row | None:
        found = (row for row in self.rows if all(row.get(name) == value for name, value in wanted.items()))
        return next(found, None)

    def or_make(self, race: Race, case: str, method: str, tuned: float) -> Row:
        """The row of that name, run now unless it is there."""
        row = self.get(seed=race.seed, case=case, method=method, tuned=tuned)
        if row is None:
            row = race.row(case, method, tuned)
            self.rows.append(row)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        return row


def worth(row: Row) -> float:
    """What tuning looks for: behaviour and new knowledge, equally."""
    return float(row["recovered"]["ifeval"] + row["recovered"]["knowledge"])


def run(
    work: Path, seeds: Sequence[int], cases: Sequence[str], methods: Sequence[str], scale: Scale
) -> list[Row]:
    """Tunes each method on one world, then races them on the others; returns the rows of the race."""
    work.mkdir(parents=True, exist_ok=True)
    rows, progress = Rows(work / "rows.jsonl"), Progress()
    best: dict[tuple[str, str], float] = {}
    for case, method, race in _each([TUNING_SEED], cases, methods, work, scale, progress):
        found = [rows.or_make(race, case, method, tuned) for tuned in tries(method)]
        best[case, method] = max(found, key=worth)["tuned"]
    raced = []
    for case, method, race in _each(seeds, cases, methods, work, scale, progress):
        raced.append(rows.or_make(race, case, method, best[case, method]))
        progress.say(f"{case:<6} seed {race.seed} {method:<12} {json.dumps(raced[-1]['recovered'])}")
    return raced


def _each(
    seeds: Sequence[int], cases: Sequence[str], methods: Sequence[str], work: Path, scale: Scale,
    progress: Progress,
) -> Iterator[tuple[str, str, Race]]:  # fmt: skip
    for seed in seeds:
        race = Race(work, seed, scale, progress)
        try:
            yield from ((case, method, race) for case in cases for method in methods)
        finally:
            race.close()


def _read(path: Path, *, tolerant: bool = False) -> list[Row]:
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            if not tolerant:
                raise
    return rows


def _write(path: Path, rows: Sequence[Row]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    partial.replace(path)


@click.command()
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1), help="so many worlds")
@click.option("--first-seed", default=0, show_default=True, help="the first of them")
@click.option("--work", default=".race", type=click.Path(path_type=Path), help="where it all lies")
@click.option("--cases", default=",".join(CASES), show_default=True)
@click.option("--methods", default=",".join(METHODS), show_default=True)
@click.option("--small", is_flag=True, help="a few steps on a few prompts: only tries the benchmark itself")
@click.option("--page", type=click.Path(path_type=Path), default=Path("docs/results.md"), show_default=True)
def main(
    seeds: int, first_seed: int, work: Path, cases: str, methods: str, small: bool, page: Path
) -> None:  # fmt: skip
    """Run the race as far as it has not been run, and write its table and picture into the page."""
    from benchmarks.race_report import write_page

    scale = Scale.small() if small else Scale()
    chosen = range(first_seed, first_seed + seeds)
    rows = run(work, chosen, cases.split(","), methods.split(","), scale)
    write_page(rows, page)


if __name__ == "__main__":
    main()
