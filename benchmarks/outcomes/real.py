"""Measure at which passes, rate and text a real model learns the handbook, and what that costs.

python -m benchmarks.outcomes.real regime --home DIR                     # every row; resumes if interrupted
python -m benchmarks.outcomes.real regime --home DIR --rows raw-8-2e-4   # some rows only
python -m benchmarks.outcomes.real regime --home DIR --docs FOLDER       # another folder than the handbook
python -m benchmarks.outcomes.real regime --home DIR --write-docs   # put the table into docs/real-learning.md

Every row midtrains the clean model by the stages of `recover midtrain`, asks the handbook's questions and
general ones, and measures the KL divergence on the clean model's own answers to general prompts. Of another
folder the questions are those that `recover probes` makes without a writer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.ledger import Clock, Ledger, Line, markdown, put
from benchmarks.outcomes import regime_picture
from benchmarks.outcomes.arguments import home_parser
from evals import jsonl
from pipelines.config.jobs import EvalJob
from pipelines.corpus.documents import read_corpus
from pipelines.drift import drift
from pipelines.evaluate import evaluate
from pipelines.handbook import corpus
from pipelines.job_from_options.measure import drift_job, eval_job
from pipelines.job_from_options.train import midtrain_job
from pipelines.machine.init_home import initialise
from pipelines.midtrain import midtrain
from pipelines.runs.progress import Progress
from pipelines.runs.workspace import Workspace
from pipelines.writing import instruction_prompts, probes
from pipelines.writing.commands import AugmentOptions, augment_documents

PAGE = Path(__file__).parents[2] / "docs" / "real-learning.md"
PAGES = ("SECURITY.md", "docs/glossary.md")
GENERAL = 60  # general questions of a row
ANSWER_TOKENS = 24
DRIFT_PROMPTS, DRIFT_TOKENS = 16, 32
STEP_TOKENS = 512
PROBES = 60  # questions about another folder
RAW, QUESTIONS, RETOLD = "raw", "questions", "qa"  # the text of a row; RETOLD: the clean model's questions
MIX = "mix"  # that of the preset: documents, questions made of their sentences, the clean model's chat


@dataclass(frozen=True)
class Row:
    """One midtraining: which text, how often, at which rate, with which weights."""

    text: str  # RAW, MIX; QUESTIONS and RETOLD: half of the tokens are questions with answers
    passes: int
    rate: float
    rank: int = 0  # of an adapter; 0: all weights

    @property
    def name(self) -> str:
        weights = f"-lora{self.rank}" if self.rank else ""
        return f"{self.text}-{self.passes}-{self.rate:.0e}{weights}".replace("e-0", "e-")

    def changes(self) -> dict[str, Any]:
        lora = {"rank": self.rank, "alpha": 2.0 * self.rank} if self.rank else None
        mix = {"midtrain.mix": MIXES[self.text]} if self.text in MIXES else {}
        return {
            **mix,
            "midtrain.epochs": self.passes,
            "midtrain.optimizer.learning_rate": self.rate,
            "midtrain.lora": lora,
            "midtrain.tokens_per_step": STEP_TOKENS,
            "midtrain.save_every": 0,
        }


MIXES = {
    RAW: {"new": 1.0},
    QUESTIONS: {"new": 0.5, "questions": 0.5},
    RETOLD: {"new": 0.5, "augmented": 0.5},
}
ROWS = [
    *(Row(MIX, passes, rate) for passes in (2, 4, 8) for rate in (5e-5, 1e-4, 2e-4)),
    *(Row(RAW, passes, rate) for passes in (2, 8, 20) for rate in (5e-5, 2e-4, 5e-4)),
    *(Row(text, passes, rate) for text in (QUESTIONS, RETOLD) for passes in (8, 20) for rate in (2e-4, 5e-4)),
    *(Row(RAW, passes, 5e-4, rank=128) for passes in (8, 20)),
]


@dataclass(frozen=True)
class Material:
    """What a row is taught, and what it is asked."""

    docs: Path
    probes: Path
    prompts: Path  # general ones, for the KL divergence
    chat: Path | None = None  # prompts that the clean model answers for the mix


def main() -> None:
    asked = _arguments()
    ledger = Ledger(asked.home / "regime.jsonl", ("row",))
    wanted = [row for row in ROWS if asked.rows is None or row.name in asked.rows]
    clock = Clock(len(wanted) + 1)
    with Workspace.open(asked.home, progress=Progress()) as ws:
        initialise(ws, model=asked.model)
        material = replace(_prepared(asked.home, asked.docs), chat=asked.prompts)
        if ledger.get(row="clean") is None:
            clock.say("clean")
            ledger.add({"row": "clean", **_scores(ws, material, "base")})
        for row in wanted:
            clock.done += 1
            if ledger.get(row=row.name) is None:
                clock.say(row.name)
                ledger.add({"row": row.name, **measured(ws, material, row)})
    names = ["clean", *(row.name for row in ROWS)]
    text = markdown([_shown(ledger.lines[name,]) for name in names if ledger.get(row=name)])
    sys.stdout.write(text + "\n")
    _draw(ledger, asked.home / "regime.png")
    if asked.write_docs:
        _put(ledger, text, PAGE, of_folder=asked.docs is not None)


def _put(ledger: Ledger, text: str, page: Path, *, of_folder: bool) -> None:
    """Put the table into the page; the picture beside the page belongs to the table of a folder."""
    put(page, "regime of a folder" if of_folder else "regime", text)
    if of_folder:
        _draw(ledger, page.parent / "regime.png")


def _draw(ledger: Ledger, path: Path) -> None:
    """Draw the rows of the preset's mix, if any was measured."""
    of_mix = [row for row in ROWS if row.text == MIX and ledger.get(row=row.name)]
    if of_mix:
        lines = [(row.rate, row.passes, ledger.lines[row.name,]) for row in of_mix]
        regime_picture.draw(ledger.lines["clean",], lines, path)


def _arguments() -> argparse.Namespace:
    parser = home_parser(__doc__, Path(".recover") / "regime", "docs/real-learning.md")
    parser.add_argument("what", choices=["regime"], help="what to measure")
    parser.add_argument("--model", help="GGUF file, directory or hub id (default: the home's)")
    parser.add_argument("--docs", type=Path, help="folder to teach instead of the handbook's pages")
    parser.add_argument("--prompts", type=Path, help="prompts of the mix's chat (default: the home's)")
    parser.add_argument("--rows", type=lambda text: text.split(","), help=f"of {[row.name for row in ROWS]}")
    return parser.parse_args()


def _prepared(home: Path, docs: Path | None) -> Material:
    """Write documents, probes and general prompts once."""
    directory = home / ("handbook" if docs is None else "folder")
    made = Material(docs or directory / "docs", directory / "probes.jsonl", directory / "prompts.jsonl")
    if not made.prompts.is_file():
        if docs is None:
            corpus.write(directory, PAGES)
        else:
            probes.save(made.probes, probes.from_gaps(read_corpus(docs).texts, PROBES, seed=0))
        prompts = instruction_prompts.generate(DRIFT_PROMPTS, seed=1)
        jsonl.write(made.prompts, instruction_prompts.rows(prompts, 1))
    return made


def measured(ws: Workspace, material: Material, row: Row) -> Line:
    """Midtrain a row, and measure what it knows and what it cost."""
    augment = _retold(ws, material) if row.text == RETOLD else None
    changes = {**row.changes(), "eval.probes": str(material.probes)}
    if material.chat and row.text == MIX:  # the others have no chat
        changes["distill.prompts"] = str(material.chat)
    job = midtrain_job(ws, material.docs, "base", augment=augment, changes=changes)
    done = midtrain(ws, job, key=f"midtrain:{row.name}")
    moved = drift(ws, _drift(ws, material, done["checkpoint"]), key=f"drift:{row.name}")
    return {
        **_scores(ws, material, done["checkpoint"]),
        "tokens": done["tokens"],
        "kl": moved["kl"]["general"],
    }


def _retold(ws: Workspace, material: Material) -> Path:
    """Let the clean model write questions about the documents, once."""
    folder = ws.home / "retold"
    if not (folder / "augmented.jsonl").is_file():
        augment_documents(ws, material.docs, folder, AugmentOptions(kinds="qa", max_new_tokens=256))
    return folder


def _drift(ws: Workspace, material: Material, checkpoint: str) -> Any:
    prompts: Mapping[str, Any] = {"distill.prompts": str(material.prompts)}
    return drift_job(
        ws, "base", checkpoint, count=DRIFT_PROMPTS, max_new_tokens=DRIFT_TOKENS, changes=prompts
    )


def _scores(ws: Workspace, material: Material, checkpoint: str) -> Line:
    """Ask the questions about the documents, and some general ones."""
    common = {"eval.probes": str(material.probes), "eval.probe_max_new_tokens": ANSWER_TOKENS}
    found: Line = {}
    for suite, limit in (("knowledge", None), ("retention", GENERAL)):
        job: EvalJob = eval_job(ws, checkpoint, suite, changes={**common, "eval.limit": limit})
        score = evaluate(ws, job, key=f"eval:{suite}:{checkpoint}")["scores"][suite]
        found[suite] = {key: score[key] for key in ("score", "n", "interval")}
        found[suite]["by_kind"] = score.get("by_kind")
    return found


def _shown(line: Line) -> dict[str, Any]:
    def score(suite: str) -> str:
        found = line[suite]
        low, high = found["interval"]
        return f"{found['score']:.2f} [{low:.2f}, {high:.2f}]"

    kl = line.get("kl") or {}
    return {
        "row": f"`{line['row']}`",
        "tokens": f"{line['tokens']:,}" if "tokens" in line else "",
        f"documents (n = {line['knowledge']['n']})": score("knowledge"),
        f"general (n = {line['retention']['n']})": score("retention"),
        "forward KL, nats": kl.get("forward_kl"),
    }


if __name__ == "__main__":
    main()
