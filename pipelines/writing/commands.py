"""Run `recover augment` and `recover probes`: read the documents, choose a writer, write the rows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from db.reads import queries
from evals import power
from evals.probes import (
    CHANGED,
    FACT_STATUSES,
    KNOWLEDGE,
    NEW,
    STABLE,
    UPDATES,
    Probe,
    load_probes,
    parse_probes,
)
from evals.statistics import items_to_ask
from pipelines.config.jobs import AUGMENTED
from pipelines.corpus import documents
from pipelines.corpus.entities import MOST_CHARACTERS
from pipelines.corpus.prose import silent_rows
from pipelines.corpus.reading.tree import ASKED, beside, companions
from pipelines.corpus.segments import IS_UNSPACED
from pipelines.corpus.text_sample import sample_of_folder
from pipelines.runs.kept_probes import earlier_probes
from pipelines.runs.progress import reading_progress
from pipelines.runs.workspace import Workspace
from pipelines.writing import augment as augmenting
from pipelines.writing import gap_questions, probes
from pipelines.writing.filters import ProbeLeaks, first_of
from pipelines.writing.protocol import CUT_OFF, Writer, is_endpoint
from pipelines.writing.text_cache import Cache
from pipelines.writing.writers import EndpointWriter, LocalWriter
from recovery.counted import plural
from recovery.errors import InputError
from recovery.storage.atomic_dirs import nearest

TEMPLATE, GAPS = "template", "gaps"  # writers without a model
NOT_ASKED = "rows of tables that cannot be asked about"
IN_TABLES = (
    f"more {NOT_ASKED} ({{rows:,}}) than facts that can ({{facts:,}}): give columns without titles some, "
    "save the tables as csv, or bring questions of your own with --qa FILE"
)
MADE_OF_GAPS = "gaps, no writer"
VERBATIM = (
    "gaps test whether the documents' own sentences are remembered word for word, not whether they are "
    "understood: for questions in other words give a --writer, or your own with --qa FILE"
)
TOGETHER = (
    "{gaps:,} gaps about {facts:,} {noun} (sentences, rows of tables) count as about {gaps:,} independent "
    "questions if each answer changes by itself, as about {facts:,} if those about one fact change together"
)
UNSPACED = (
    "no spaces stand between these documents' words: a segmenter tells them apart, and some gaps ask for a "
    "part of a word, so read some before they are asked"
)
NOTHING_NEW = (
    "no fact is new, all are as earlier cycles asked them: look whether these questions are about these "
    "documents"
)


@dataclass(frozen=True)
class AugmentOptions:
    """The options of `recover augment`, except folders."""

    kinds: str = ",".join(augmenting.KINDS)
    writer: str | None = None  # checkpoint, URL, TEMPLATE or GAPS; None: the clean checkpoint
    name: str | None = None  # the endpoint's name of the model
    questions: int = 8  # at most, per passage
    probes: Path | None = None  # file of probes that must not leak; None: the evaluation's
    max_new_tokens: int = 512
    temperature: float = 0.7


@dataclass(frozen=True)
class ProbeOptions:
    """The options of `recover probes`, except folders."""

    qa: Path | None = None  # the user's questions; None: qa.jsonl in or beside the documents
    writer: str | None = None  # checkpoint, URL or GAPS; None: GAPS
    name: str | None = None
    count: int | None = None  # None: as many facts as the verdict needs
    seed: int | None = None  # None: that of recover.yaml
    max_new_tokens: int = 128


def augment_documents(ws: Workspace, docs: Path, out: Path, options: AugmentOptions) -> dict[str, Any]:
    """Write augmented.jsonl for a folder of documents; return the counts of kept and refused rows."""
    kinds = augmenting.named_kinds(options.kinds)
    for name in (AUGMENTED, augmenting.WRITTEN):
        documents.refuse_among(docs, out / name, "--out")
    if options.writer not in (TEMPLATE, GAPS):
        _require_writer(ws, options, out / augmenting.WRITTEN)
    probes_file = options.probes or companions(docs).get("probes") or ws.config.eval.probes
    unseen = [*(load_probes(probes_file) if probes_file else ()), *_earlier(ws)]
    texts = _texts(ws, docs)
    there = _kinds_in(out)
    if options.writer in (TEMPLATE, GAPS):
        found = augmenting.write_rows(_without_a_model(options.writer, texts, unseen), out)
    else:
        found = augmenting.augment(
            texts,
            _writer(ws, options, options.temperature),
            out,
            kinds=kinds,
            questions=options.questions,
            probes=unseen,
            on_progress=lambda done, total: ws.progress.step("augment", done, total),
        )
    if not found.rows:
        raise _unusable(docs, "text", found.refused)
    summary = found.summary()
    dropped = {kind: count for kind, count in there.items() if kind not in summary["by_kind"]}
    return {"path": str(out / AUGMENTED), **summary, "dropped": dropped}


def _kinds_in(out: Path) -> Counter[str]:
    """Count the rows of each kind that an earlier command wrote."""
    try:
        return Counter(row.get("kind", "other") for row in augmenting.load(out))
    except InputError:  # there is no such file, or none that could be trained on
        return Counter()


def _unusable(docs: Path, what: str, refused: Counter[str]) -> InputError:
    reasons = ", ".join(f"{count} {reason}" for reason, count in refused.items()) or "nothing was written"
    cut = 2 * refused[CUT_OFF] > refused.total()
    remedy = "a larger --max-new-tokens" if cut else "another --writer"
    return InputError(f"{docs}: no written {what} is usable ({reasons}): try {remedy}")


def _without_a_model(writer: str, texts: Sequence[str], unseen: Sequence[Probe]) -> augmenting.Augmented:
    from pipelines.microworld import templates

    leaks = ProbeLeaks(unseen)
    refused: Counter[str] = Counter()
    rows = []
    for row in templates.questions(texts) if writer == TEMPLATE else gap_questions.rows(texts):
        if leaks.of_row(row):
            refused["a held-out probe"] += 1
        else:
            rows.append(row)
    return augmenting.Augmented(first_of(rows), refused)


def make_probes(ws: Workspace, docs: Path, out: Path, options: ProbeOptions) -> dict[str, Any]:
    """Write probes from the user's questions if there are any, else from the writer, else from gaps."""
    margins = ws.config.eval.margins()
    for file in [out] if options.writer in (None, GAPS) else [out, _answers_beside(out)]:
        documents.refuse_among(docs, file, "--out")
    _refuse_unread(docs, out)
    if options.qa:
        documents.refuse_among(docs, options.qa, "--qa")
    count = options.count or items_to_ask(margins[KNOWLEDGE])
    rows, source, refused = _rows_of(ws, docs, out, options, count)
    earlier = _earlier(ws)
    rows = probes.compared_with_earlier(rows, earlier)
    made = parse_probes(rows, str(out))  # before `out` is written: an earlier file outlives a refusal
    probes.save(out, rows)
    # The verdict clusters answers by fact: they count for less, the more of them flip together. Two phrasings
    # of a gap mostly do and are counted once here, two gaps of a sentence hardly (docs/evaluation.md).
    counted = {(probe.fact, probe.answers) for probe in made if probe.counts and probe.suite == KNOWLEDGE}
    facts = {KNOWLEDGE: len({fact for fact, _ in counted})}
    few = power.power_warning({KNOWLEDGE: len(counted)}, margins, facts=facts)
    return {
        "path": str(out),
        "made_from": source,
        **_counts(made),
        "refused": dict(refused),
        "power": few[0].with_remedy() if few else None,
        "tables": _in_tables(refused[NOT_ASKED], facts[KNOWLEDGE]) if few else None,
        "gaps": _about_gaps(made) if source == MADE_OF_GAPS else None,
        "repeated": NOTHING_NEW if earlier and _only_known(made) else None,
    }


def _about_gaps(made: Sequence[Probe]) -> str:
    """Return what gaps test, and how the verdict counts several of a sentence."""
    gaps = [probe for probe in made if probe.kind == "direct"]
    facts = len({probe.fact for probe in gaps})
    unspaced = sum(bool(IS_UNSPACED.match(probe.answers[0])) for probe in gaps)
    several = None
    if facts < len(gaps):
        several = TOGETHER.format(gaps=len(gaps), facts=facts, noun=plural(facts, "fact"))
    return "\n".join(filter(None, (several, UNSPACED if 2 * unspaced > len(gaps) else None, VERBATIM)))


def _in_tables(rows: int, facts: int) -> str | None:
    """Return what to do where most of the facts stand in tables that cannot be asked about."""
    return IN_TABLES.format(rows=rows, facts=facts) if rows > facts else None


def _refuse_unread(docs: Path, out: Path) -> None:
    """Refuse a file in the folder of documents that is not trained on for its name, and not asked either."""
    place = out.resolve()
    if place.name in ASKED and place.parent == docs.resolve():
        raise InputError(
            f"--out: {out} lies in the folder of documents, where no cycle looks for questions: put it "
            f"beside the folder: --out {beside(docs, 'probes.jsonl')}"
        )


def _answers_beside(out: Path) -> Path:
    """Return where a writer's answers are kept."""
    return out.with_suffix(".written.jsonl")


def _rows_of(
    ws: Workspace, docs: Path, out: Path, options: ProbeOptions, count: int
) -> tuple[list[probes.Row], str, Counter[str]]:
    """Return the rows of probes, what they are made from, and what was refused, with its reason."""
    refused = Counter[str]()
    questions_file = options.qa or probes.own_questions(docs)
    if questions_file is not None:
        if not options.qa:
            _refuse_beside_found(questions_file, options)
        return probes.from_file(questions_file), f"your questions in {questions_file}", refused
    if options.writer == TEMPLATE:
        raise InputError(
            "--writer template writes for `recover augment` only: give gaps, a checkpoint or an endpoint"
        )
    seed = ws.config.seed if options.seed is None else options.seed
    if options.writer in (None, GAPS):
        texts = _some_texts(ws, docs)
        refused = +Counter({NOT_ASKED: sum(map(silent_rows, texts))})
        return probes.from_gaps(texts, count, seed), MADE_OF_GAPS, refused
    _require_writer(ws, options, _answers_beside(out))
    rows, refused = probes.from_writer(
        _texts(ws, docs),  # before the writer, which may take long to load
        _writer(ws, options, 0.0),
        Cache(_answers_beside(out)),
        count,
        seed,
        on_progress=lambda done, total: ws.progress.step("probes", done, total),
    )
    if not rows:
        raise _unusable(docs, "question", refused)
    return rows, f"written by {options.writer}", refused


def _refuse_beside_found(questions_file: Path, options: ProbeOptions) -> None:
    """Refuse options that have no effect on questions of the user's own, which were found and not named."""
    for name in ("writer", "count", "seed"):
        if getattr(options, name) is not None:
            raise InputError(f"{questions_file} takes the place of --{name}: move it away, or leave that out")


def _texts(ws: Workspace, docs: Path) -> Sequence[str]:
    documents.refuse_home_among(docs, ws.home)
    return documents.read_corpus(docs, ws.config.midtrain.reading.limits, progress=_reading(ws, docs)).texts


def _some_texts(ws: Workspace, docs: Path) -> Sequence[str]:
    """Return as much of the documents, drawn evenly, as gaps are made of."""
    documents.refuse_home_among(docs, ws.home)
    return sample_of_folder(docs, MOST_CHARACTERS, ws.config.midtrain.reading.limits, _reading(ws, docs))


def _reading(ws: Workspace, docs: Path) -> documents.Progress:
    return reading_progress(partial(ws.progress.step, "reading"), docs, ws.config.midtrain.reading.leave_out)


def _counts(made: Sequence[Probe]) -> dict[str, Any]:
    """Count questions by kind and by the status of their facts, and the facts themselves."""
    by_status = Counter(probe.fact_status for probe in made)
    return {
        "by_kind": dict(Counter(probe.kind for probe in made)),
        "by_fact_status": {status: by_status[status] for status in FACT_STATUSES},
        "facts": _facts(made),
        "heldout_facts": len({probe.fact for probe in made if probe.heldout_fact}),
    }


def _facts(made: Sequence[Probe]) -> dict[str, int]:
    """Count each fact once, by the status of its questions; some kinds of a known fact's are always new."""
    known = {probe.fact: probe.fact_status for probe in made if probe.fact_status != NEW}
    of_each = Counter(known.get(fact, NEW) for fact in {probe.fact for probe in made})
    return {status: of_each[status] for status in FACT_STATUSES}


def _only_known(made: Sequence[Probe]) -> bool:
    """Return whether the questions about the documents ask of no new and no changed fact."""
    facts = _facts([probe for probe in made if probe.suite in (KNOWLEDGE, UPDATES)])
    return bool(facts[STABLE]) and not facts[NEW] and not facts[CHANGED]


def _earlier(ws: Workspace) -> list[Probe]:
    """Return the probes of the cycles that the current checkpoint has been through, in their order."""
    current = queries.current_checkpoint(ws.tracker.db)
    files = earlier_probes(ws, current) if current else {}
    return [probe for cycle in sorted(files) for probe in load_probes(files[cycle])]


def _require_writer(ws: Workspace, options: AugmentOptions | ProbeOptions, answers: Path) -> None:
    """Refuse a checkpoint that is not there, an endpoint without the name of its model, or a place where the
    first answers, which may be paid, could not be kept."""
    source = options.writer or "base"
    if not is_endpoint(source):
        ws.checkpoint(source)
    elif not options.name:
        raise InputError(f"--writer {source}: name its model with --model")
    _require_writable(answers)


def _require_writable(file: Path) -> None:
    """Refuse a file that cannot be written, or whose folder cannot be made."""
    folder = nearest(file.absolute().parent)
    if not folder.is_dir():
        raise InputError(f"--out: {folder} is a file: choose another place")
    for place in (folder, file):
        if place.exists() and not os.access(place, os.W_OK):
            raise InputError(
                f"--out: {place} cannot be written to: choose another place, or change its rights"
            )


def _writer(ws: Workspace, options: AugmentOptions | ProbeOptions, temperature: float) -> Writer:
    source, most = options.writer or "base", options.max_new_tokens
    if is_endpoint(source):
        return EndpointWriter(source, str(options.name), most, temperature)
    checkpoint = ws.checkpoint(source)
    return LocalWriter(ws.load(checkpoint), checkpoint.id, max_new_tokens=most, temperature=temperature)
