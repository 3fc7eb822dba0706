"""Measure how far checkpoint b has moved from a: forgetting, visited states, and KL divergence."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from db.reads import queries
from evals import drift as measures
from evals.ifeval import FURTHER
from evals.probes import EARLIER, KNOWLEDGE, UPDATES
from pipelines.config.jobs import DriftJob
from pipelines.prompts.lengths import answerable
from pipelines.prompts.prompt_sources import read_prompts
from pipelines.runs.kept_texts import KEPT_TEXTS, read_evenly
from pipelines.runs.pinned_inputs import pinned
from pipelines.runs.stage_runner import Result, Stage, run_job
from pipelines.runs.workspace import Workspace
from recovery.counted import counted

if TYPE_CHECKING:
    from recovery.batches.rollouts import Rollouts
    from recovery.models.chat_model import ChatModel


def drift(ws: Workspace, job: DriftJob, *, key: str | None = None) -> Result:
    """Return {"states": distances, "floor": those of a to itself, "kl": ..., "forgetting": ...}."""
    job = pinned(ws, job)
    return run_job(ws, "drift", _work, job, key=key)


def _work(ws: Workspace, job: DriftJob, stage: Stage) -> Result:
    prompts = read_prompts(job.prompts, job.seed, ws.home)
    chosen = random.Random(f"drift:{job.seed}").sample(prompts, min(job.count, len(prompts)))
    a, b = ws.load(ws.checkpoint(job.a)), ws.load(ws.checkpoint(job.b))
    ids = [a.prompt_ids(prompt.messages) for prompt in answerable(chosen, a, stage)]
    stage.step(1, 3, note="sampling")
    # States and floor are drawn alike: with the seed of `mine`, equal models would be 0 apart.
    mine, again = (_rollouts(stage, a, ids, job, seed) for seed in (job.seed, job.seed + 1))
    theirs = _rollouts(stage, b, ids, job, job.seed + 1)
    stage.step(2, 3, note="states")
    found = {"states": _distances(a, mine, theirs), "floor": _distances(a, mine, again)}
    stage.step(3, 3, note="divergence")
    return {
        "a": job.a,
        "b": job.b,
        "prompts": len(ids),
        **found,
        "kl": {"general": _divergence(b, a, mine), "new_task": _on_documents(ws, job, a, b)},
        "forgetting": forgetting(ws, job.a, job.b),
    }


def _rollouts(stage: Stage, model: ChatModel, ids: list[list[int]], job: DriftJob, seed: int) -> Rollouts:
    from recovery.sampling.in_process import InProcessSampler
    from recovery.sampling.protocol import SamplingParams

    found = InProcessSampler(model).sample(ids, SamplingParams(job.max_new_tokens, seed=seed))
    stage.spend(tokens_sampled=found.n_tokens)
    return found


def _distances(reader: ChatModel, one: Rollouts, other: Rollouts) -> dict[str, float]:
    """Return the distances between two sets of states: of their texts, and of one reader's hidden states."""
    from recovery.inspection.distribution_shift import visited

    hidden_a, prefixes_a = visited(reader, one)
    hidden_b, prefixes_b = visited(reader, other)
    texts_a = [reader.text(ids) for ids in prefixes_a]
    texts_b = [reader.text(ids) for ids in prefixes_b]
    answers_a = [reader.text(ids) for ids in one.responses()]
    answers_b = [reader.text(ids) for ids in other.responses()]
    lexical = measures.distances(measures.lexical_features(texts_a), measures.lexical_features(texts_b))
    hidden = measures.distances(hidden_a.double().numpy(), hidden_b.double().numpy())
    return {
        **{f"lexical_{name}": value for name, value in lexical.items()},
        **{f"hidden_{name}": value for name, value in hidden.items()},
        "jaccard": measures.jaccard_distance(answers_a, answers_b),
    }


def _divergence(student: ChatModel, clean: ChatModel, rows: Rollouts) -> dict[str, float]:
    from recovery.inspection.distribution_shift import divergence

    return divergence(student, clean, rows)


def _on_documents(ws: Workspace, job: DriftJob, a: ChatModel, b: ChatModel) -> dict[str, float] | None:
    """Return the divergence on the documents that b was last trained on; None without such documents."""
    from recovery.inspection.distribution_shift import texts_as_rollouts

    runs = ws.midtraining_runs(job.b)
    run = ws.run_directory(runs[-1]["id"]) if runs else None
    if run is None or not (run / KEPT_TEXTS).is_file():
        return None
    texts = read_evenly([run])
    chosen = random.Random(f"drift:{job.seed}").sample(texts, min(job.count, len(texts)))
    return _divergence(b, a, texts_as_rollouts(a, chosen))


def forgetting(ws: Workspace, a: str, b: str) -> dict[str, dict[str, Any]]:
    """Return forgetting F and the retention ratio of every shared suite, and their means over all suites but
    those about the new documents."""
    rows = queries.compared(ws.tracker.db, a, b)
    found = {
        row["suite"]: {
            "a": row["value_a"],
            "b": row["value_b"],
            "forgetting": measures.forgetting(row["value_a"], row["value_b"]),
            "retention_ratio": measures.retention_ratio(row["value_a"], row["value_b"]),
        }
        for row in reversed(rows)
        if row["n"] and row["value_a"] is not None and row["value_b"] is not None
    }
    # The further prompts are not always asked, and IFEval's count already.
    apart = (KNOWLEDGE, UPDATES, FURTHER)
    old = [row for suite, row in found.items() if suite not in apart and not suite.startswith(EARLIER)]
    ratios = [row["retention_ratio"] for row in old if row["retention_ratio"] is not None]
    if old:
        found["mean"] = {
            "forgetting": sum(row["forgetting"] for row in old) / len(old),
            "retention_ratio": sum(ratios) / len(ratios) if ratios else None,
        }
    return found


def drift_text(found: Result) -> str:
    states = f"states on {counted(found['prompts'], 'prompt')}"
    lines = [
        f"a  {found['a']}",
        f"b  {found['b']}",
        "",
        f"{states:<30} {'a to b':>10}  {'a to itself':>10}",
    ]
    lines += [
        f"  {name:<28} {value:>10.4f}  {found['floor'][name]:>10.4f}"
        for name, value in found["states"].items()
    ]
    for name, row in found["kl"].items():
        lines += ["", f"{name.replace('_', ' ')} inputs, nats a token"]
        lines += [f"  {key:<28} {value:>10.4f}" for key, value in row.items()] if row else ["  none known"]
    lines += ["", "forgetting F = a - b, and the ratio b / a"]
    for suite, row in found["forgetting"].items():
        ratio = row["retention_ratio"]
        lines.append(
            f"  {suite:<28} {row['forgetting']:>+10.3f}  {'-' if ratio is None else format(ratio, '10.3f')}"
        )
    if not found["forgetting"]:
        lines.append("  no suite that both have answered: run `recover eval` on both")
    return "\n".join(lines)
