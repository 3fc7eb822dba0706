"""corpus: what training would see of a folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli.options import Place, Session, documents, shared
from pipelines.cli.table import table

if TYPE_CHECKING:
    from pipelines.config.sections.midtrain import MidtrainConfig
    from pipelines.config.settings import Config
    from pipelines.corpus.preview import Encode, Preview

FOLDERS = 10  # shown, at most
BY_QUESTIONS = (
    "training: by questions about these documents (midtrain.method: passage): how many there are decides its "
    "length, which midtraining says once it has made them"
)
Section = tuple[str, list[dict[str, Any]], list[str]]  # a title, rows and their columns


@click.command("corpus")
@click.argument("folder", metavar="DIR", required=False, type=Place())
@documents("the folder, as for midtrain")
@click.option("--tokens", is_flag=True, help="count tokens with the model's tokenizer instead of estimating")
@click.option("--strict", is_flag=True, help="stop at the first file that cannot be read")
@shared
@click.pass_obj
def corpus_command(
    session: Session, folder: Path | None, docs: Path | None, tokens: bool, strict: bool
) -> None:
    """Show what training would read of a folder.

    What is read and skipped, and why; which folders the text comes from; near-duplicates; the first
    documents; and, in a home, the length of the training. Nothing is trained or kept.

    \b
    recover corpus ./corpus
    """
    from pipelines.config.home_settings import of_home
    from pipelines.config.sections.midtrain import ReadingConfig
    from pipelines.config.settings import CONFIG_NAME
    from pipelines.corpus import preview
    from pipelines.corpus.reading.tree import require_folder
    from pipelines.machine.fitting import first_midtraining
    from pipelines.runs.progress import Progress, reading_progress

    folder = _one_of(folder, docs)
    session.refuse_foreign(folder)
    there = (session.place / CONFIG_NAME).exists()
    # Only the tokenizer may bring code.
    implicit = tokens and session.home is None
    config = of_home(session.place, implicit=implicit) if tokens or there else None
    settings = config.midtrain if config else None
    reading = settings.reading if settings else ReadingConfig()
    require_folder(folder)  # before a tokenizer is loaded
    shown = session.progress = Progress(quiet=session.quiet)
    step = partial(shown.step, "reading")
    made = preview.preview(
        folder,
        reading.limits,
        strict=strict or reading.strict,
        encode=_encoder(config) if config and tokens else None,
        progress=reading_progress(step, folder, reading.leave_out),
    )
    if config:
        settings = first_midtraining(config, made.tokens)
    onward = _onward(session, folder, there)
    session.show(preview.as_json(made, settings), lambda: f"{_text(made, settings)}\n\nnext: {onward}")


def _onward(session: Session, folder: Path, in_a_home: bool) -> str:
    """Say what comes after the look at a folder."""
    from pipelines.corpus.reading.tree import beside, companions

    if not in_a_home:
        return f"`{session.command('init', '--model', 'MODEL')}` sets up the model that is to learn it"
    if "probes" not in companions(folder):
        out = str(beside(folder, "probes.jsonl"))
        return f"`{session.command('probes', '--docs', str(folder), '--out', out)}` writes questions about it"
    return f"`{session.command('cycle', '--docs', str(folder))}` learns it, recovers and decides"


def _one_of(folder: Path | None, docs: Path | None) -> Path:
    """Return the folder, named alone or by the option of the commands that train."""
    found = folder or docs
    if found is None or (folder and docs):
        raise click.UsageError("give one folder: DIR or --docs DIR")
    return found


def _encoder(config: Config) -> Encode:
    from pipelines.machine.init_home import tokenizer_of

    return tokenizer_of(config.model).text_ids


def _text(made: Preview, settings: MidtrainConfig | None) -> str:
    from pipelines.corpus import preview

    tokens = "tokens" if made.counted else "tokens (guess)"
    rows = [{**row, tokens: row["tokens"]} for row in preview.by_kind(made)]
    numbers = ["files", "read", "skipped", "documents", "characters", tokens]
    shown = [{"kind": row["kind"], **{name: f"{row[name]:,}" for name in numbers}} for row in rows]
    parts = [table(shown, ["kind", *numbers])]
    if left_out := rows[-1]["markup"]:
        parts[0] += (
            f"\nleft out of text files: {left_out:,} characters of markup that readers of a site do not see"
        )
    first: list[dict[str, Any]]
    first = [{"path": row["path"], "begins": preview.begins(row["text"])} for row in made.first]
    sections: list[Section] = [
        ("skipped", preview.skipped_reasons(made), ["files", "reason", "such as"]),
        ("read with a remark", preview.remarks(made), ["files", "remark", "such as"]),
        *_folders(made),
        ("near-duplicates", preview.twins(made), ["path", "like", "similarity"]),
        ("the first documents", first, ["path", "begins"]),
    ]
    parts += [f"{title}\n{table(found, columns)}" for title, found, columns in sections if found]
    if settings:
        parts.append(_plan(made, settings))
    return "\n\n".join(parts)


def _folders(made: Preview) -> list[Section]:
    """Return the folders that most of the text comes from, where it comes from several."""
    from pipelines.corpus import preview

    rows = preview.by_folder(made)
    shown = [row | {"characters": f"{row['characters']:,}"} for row in rows[:FOLDERS]]
    title = "folders" if len(rows) <= FOLDERS else f"the {FOLDERS} largest of {len(rows):,} folders"
    return [(title, shown, ["folder", "read", "characters"])] if len(rows) > 1 else []


def _plan(made: Preview, settings: MidtrainConfig) -> str:
    """Describe the first midtraining as its own first lines do."""
    from pipelines.config.fitted import midtraining_in_words

    if settings.method != "text":
        return BY_QUESTIONS
    mix = settings.mix.at_first
    others = {"questions about it": mix.questions, "chat of the clean model": mix.chat}
    beside = "".join(f", {share:.0%} {what}" for what, share in others.items() if share)
    plan = midtraining_in_words(settings, made.tokens, mix.new)
    return f"training: {plan}; {mix.new:.0%} of the tokens are this folder's{beside}"
