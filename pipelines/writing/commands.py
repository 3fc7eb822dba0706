"""`recover augment` and `recover probes`: documents read, a writer chosen, rows written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evals.knowledge import load_probes
from pipelines.corpus import documents
from pipelines.runs.workspace import Workspace, companions
from pipelines.writing import augment as augmenting
from pipelines.writing import probes
from pipelines.writing.filters import Leaks, first_of
from pipelines.writing.text_cache import Cache
from pipelines.writing.writers import EndpointWriter, LocalWriter, Writer
from recovery.errors import InputError

TEMPLATE = "template"


def augment_documents(
    ws: Workspace,
    docs: Path,
    out: Path,
    *,
    kinds: str,
    writer: str | None,
    name: str | None,
    questions: int,
    probes: str | None,
    max_new_tokens: int,
    temperature: float,
) -> dict[str, Any]:
    """What was written for a folder of documents, and why some of it is not used."""
    texts = documents.read_corpus(docs).texts
    chosen = [kind.strip() for kind in kinds.split(",") if kind.strip()]
    beside = probes or companions(docs).get("probes")
    unseen = load_probes(beside) if beside else ()
    if writer == TEMPLATE:
        found = _by_template(texts, unseen)
        augmenting.save(out / augmenting.AUGMENTED, found.rows)
    else:
        who = _writer(ws, writer or "base", name, max_new_tokens=max_new_tokens, temperature=temperature)
        found = augmenting.augment(
            texts,
            who,
            out,
            kinds=chosen,
            questions=questions,
            probes=unseen,
            on_progress=lambda done, total: ws.progress.step("augment", done, total),
        )
    if not found.rows:
        why = ", ".join(f"{count} {reason}" for reason, count in found.refused.items()) or "there was nothing"
        raise InputError(f"{docs}: nothing that was written can be used ({why}): try another --writer")
    return {"path": str(out / augmenting.AUGMENTED), **found.summary()}


def _by_template(texts: Any, unseen: Any) -> augmenting.Augmented:
    from pipelines.microworld.templates import questions

    leaks, all_rows = Leaks(unseen), list(questions(texts))
    rows = [row for row in all_rows if not leaks.of(row["prompt"], row["response"])]
    found = augmenting.Augmented(first_of(rows))
    if len(rows) < len(all_rows):
        found.refused["a held-out probe"] = len(all_rows) - len(rows)
    return found


def make_probes(
    ws: Workspace,
    docs: Path,
    out: Path,
    *,
    qa: Path | None,
    writer: str | None,
    name: str | None,
    count: int,
    seed: int,
) -> dict[str, Any]:
    """The user's own questions if there are any; else the writer's; else gaps."""
    own = qa or probes.own_questions(docs)
    if own is not None:
        rows, source = probes.from_file(own), f"your questions in {own}"
    elif writer is None:
        rows, source = probes.from_gaps(documents.read_corpus(docs).texts, count, seed), "gaps, no writer"
    else:
        who = _writer(ws, writer, name, max_new_tokens=128, temperature=0.0)
        cache = Cache(out.with_suffix(".written.jsonl"))
        texts = documents.read_corpus(docs).texts
        rows = probes.from_writer(
            texts,
            who,
            cache,
            count,
            seed,
            on_progress=lambda done, total: ws.progress.step("probes", done, total),
        )
        source = f"written by {writer}"
    by_kind = probes.save(out, rows)
    load_probes(out)
    heldout = len({row.get("fact", row["id"]) for row in rows if row.get("heldout_fact")})
    return {"path": str(out), "made_from": source, "by_kind": by_kind, "heldout_facts": heldout}


def _writer(ws: Workspace, who: str, model: str | None, *, max_new_tokens: int, temperature: float) -> Writer:
    if who.startswith(("http://", "https://")):
        if not model:
            raise InputError(f"--writer {who}: name its model with --model")
        return EndpointWriter(who, model, max_new_tokens, temperature)
    checkpoint = ws.checkpoint(who)
    return LocalWriter(
        ws.load(checkpoint), checkpoint.id, max_new_tokens=max_new_tokens, temperature=temperature
    )
