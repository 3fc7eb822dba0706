"""Run `recover augment` and `recover probes`: read the documents, choose a writer, write the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db.reads import queries
from evals import verdict
from evals.probes import FACT_STATUSES, KNOWLEDGE, NEW, Probe, load_probes
from evals.statistics import items_to_pass
from pipelines.corpus import documents
from pipelines.runs.kept_probes import earlier_probes
from pipelines.runs.workspace import Workspace, companions
from pipelines.writing import augment as augmenting
from pipelines.writing import gap_questions, probes
from pipelines.writing.filters import ProbeLeaks, first_of
from pipelines.writing.text_cache import Cache
from pipelines.writing.writers import EndpointWriter, LocalWriter, Writer
from recovery.errors import InputError

TEMPLATE, GAPS = "template", "gaps"  # writers without a model


@dataclass(frozen=True)
class AugmentOptions:
    """The options of `recover augment`, except folders."""

    kinds: str = ",".join(augmenting.KINDS)
    writer: str | None = None  # checkpoint, URL, TEMPLATE or GAPS; None: the clean checkpoint
    name: str | None = None  # the endpoint's name of the model
    questions: int = 4  # at most, per passage
    probes: str | None = None  # file of probes that must not leak; None: the one beside the documents
    max_new_tokens: int = 512
    temperature: float = 0.7


@dataclass(frozen=True)
class ProbeOptions:
    """The options of `recover probes`, except folders."""

    qa: Path | None = None  # the user's questions; None: qa.jsonl in or beside the documents
    writer: str | None = None  # checkpoint, URL or GAPS; None: GAPS
    name: str | None = None
    count: int | None = None  # None: as many facts as the verdict needs
    seed: int = 0


def augment_documents(ws: Workspace, docs: Path, out: Path, options: AugmentOptions) -> dict[str, Any]:
    """Write augmented.jsonl for a folder of documents; return the counts of kept and refused rows."""
    texts = documents.read_corpus(docs).texts
    probes_file = options.probes or companions(docs).get("probes")
    unseen = load_probes(probes_file) if probes_file else ()
    if options.writer in (TEMPLATE, GAPS):
        found = _without_a_model(options.writer, texts, unseen)
        augmenting.save(out / augmenting.AUGMENTED, found.rows)
    else:
        writer = _writer(
            ws,
            options.writer or "base",
            options.name,
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
        )
        found = augmenting.augment(
            texts,
            writer,
            out,
            kinds=[kind.strip() for kind in options.kinds.split(",") if kind.strip()],
            questions=options.questions,
            probes=unseen,
            on_progress=lambda done, total: ws.progress.step("augment", done, total),
        )
    if not found.rows:
        reasons = ", ".join(f"{count} {reason}" for reason, count in found.refused.items())
        raise InputError(
            f"{docs}: no written text is usable ({reasons or 'nothing was written'}): try another --writer"
        )
    return {"path": str(out / augmenting.AUGMENTED), **found.summary()}


def _without_a_model(writer: str, texts: Any, unseen: Any) -> augmenting.Augmented:
    from pipelines.microworld import templates

    leaks = ProbeLeaks(unseen)
    all_rows = list(templates.questions(texts) if writer == TEMPLATE else gap_questions.rows(texts))
    rows = [row for row in all_rows if not leaks.of(row["prompt"], row["response"])]
    found = augmenting.Augmented(first_of(rows))
    if len(rows) < len(all_rows):
        found.refused["a held-out probe"] = len(all_rows) - len(rows)
    return found


def make_probes(ws: Workspace, docs: Path, out: Path, options: ProbeOptions) -> dict[str, Any]:
    """Write probes from the user's questions if there are any, else from the writer, else from gaps."""
    margins = ws.config.eval.margins()
    count = options.count or items_to_pass(margins[KNOWLEDGE])
    questions_file = options.qa or probes.own_questions(docs)
    if questions_file is not None:
        rows = probes.from_file(questions_file)
        source = f"your questions in {questions_file}"
    elif options.writer == TEMPLATE:
        raise InputError(
            "--writer template writes for `recover augment` only: give gaps, a checkpoint or an endpoint"
        )
    elif options.writer in (None, GAPS):
        texts = documents.read_corpus(docs).texts
        rows = probes.from_gaps(texts, count, options.seed)
        source = "gaps, no writer"
    else:
        writer = _writer(ws, options.writer, options.name, max_new_tokens=128, temperature=0.0)
        rows = probes.from_writer(
            documents.read_corpus(docs).texts,
            writer,
            Cache(out.with_suffix(".written.jsonl")),
            count,
            options.seed,
            on_progress=lambda done, total: ws.progress.step("probes", done, total),
        )
        source = f"written by {options.writer}"
    rows = probes.compared_with_earlier(rows, _earlier(ws))
    by_kind = probes.save(out, rows)
    statuses = [probe.fact_status for probe in load_probes(out)]
    heldout = len({probes.fact_of(row) for row in rows if row.get("heldout_fact")})
    counts = {"by_kind": by_kind, "by_fact_status": {name: statuses.count(name) for name in FACT_STATUSES}}
    facts = _facts([probes.fact_of(row) for row in rows], statuses)
    counted = {probe.fact for probe in load_probes(out, KNOWLEDGE) if probe.counts}
    few = verdict.power_warning({KNOWLEDGE: len(counted)}, margins)
    return {
        "path": str(out),
        "made_from": source,
        **counts,
        "facts": facts,
        "heldout_facts": heldout,
        "power": few[0] if few else None,
    }


def _facts(names: Sequence[str], statuses: Sequence[str]) -> dict[str, int]:
    """Count each fact once, by the status of its questions; some kinds of a known fact's are always new."""
    known = {name: status for name, status in zip(names, statuses, strict=True) if status != NEW}
    of_each = [known.get(name, NEW) for name in dict.fromkeys(names)]
    return {status: of_each.count(status) for status in FACT_STATUSES}


def _earlier(ws: Workspace) -> list[Probe]:
    """Return the probes of the cycles that the current checkpoint has been through, in their order."""
    db = ws.tracker.db
    current = next((row["checkpoint_id"] for row in queries.aliases(db) if row["name"] == "current"), None)
    files = earlier_probes(ws, current) if current else {}
    return [probe for cycle in sorted(files) for probe in load_probes(files[cycle])]


def _writer(
    ws: Workspace, source: str, model: str | None, *, max_new_tokens: int, temperature: float
) -> Writer:
    if source.startswith(("http://", "https://")):
        if not model:
            raise InputError(f"--writer {source}: name its model with --model")
        return EndpointWriter(source, model, max_new_tokens, temperature)
    checkpoint = ws.checkpoint(source)
    return LocalWriter(
        ws.load(checkpoint), checkpoint.id, max_new_tokens=max_new_tokens, temperature=temperature
    )
