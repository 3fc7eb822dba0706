"""Options that every command takes, before or after its name, and how results are printed."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from db.redact import redact, redact_text
from pipelines.runs.launch import launch
from pipelines.runs.progress import speaks_unicode
from recovery.command_line import DB_VARIABLE
from recovery.errors import InputError
from recovery.launch_env import launched
from recovery.named_paths import expanded, folder
from recovery.printable import printable, printable_json
from recovery.seeds import MOST_SEED

if TYPE_CHECKING:
    from pipelines.runs.progress import Progress
    from pipelines.runs.workspace import Workspace

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_HOME = "./.recover"
SEED = click.IntRange(0, MOST_SEED)


@dataclass
class Session:
    """The shared options, and the settings that options of the command override."""

    home: str | None = None
    db: str | None = None
    json: bool = False
    quiet: bool = False
    debug: bool = False
    changes: dict[str, Any] = field(default_factory=dict)  # recover.yaml keys that options override
    progress: Progress | None = None  # of the command, once it shows some

    @property
    def place(self) -> Path:
        """The home: as named, else in the current folder."""
        return folder(self.home or DEFAULT_HOME)  # --home=~/work reaches this unexpanded

    def workspace(self, *, create: bool = False, docs: Path | None = None) -> Workspace:
        """Open the home; make it only for a command that sets one up, so that a mistyped name leaves nothing.

        A home that was not named is refused where others may have put it: inside the documents, or of
        another owner. Commands import torch after it, so that a mistyped home or folder is refused at once.
        """
        from pipelines.corpus.reading.tree import require_folder
        from pipelines.runs.progress import Progress
        from pipelines.runs.workspace import Workspace

        self.refuse_foreign(docs)
        if docs is not None:
            require_folder(docs)
        self.progress = Progress(quiet=self.quiet)
        implicit = self.home is None
        return Workspace.open(self.place, self.db, self.progress, create=create, implicit=implicit)

    def command(self, *words: str) -> str:
        """Return a command as it is typed before a home is open; see `Workspace.command`."""
        from pipelines.runs import home_database

        implicit = self.home is None
        named = home_database.to_name(self.place, self.db, implicit=implicit)
        return home_database.typed(self.place, named, *words, implicit=implicit)

    def refuse_foreign(self, docs: Path | None) -> None:
        """Refuse an unnamed ./.recover inside the documents or owned by another user."""
        if self.home is not None or not self.place.exists():
            return
        place = self.place.resolve()
        named = f"to use it, give --home {DEFAULT_HOME}"
        if docs is not None and place.is_relative_to(docs.resolve()):
            raise InputError(f"{place} lies inside the documents and may have come with them: {named}")
        if place.stat().st_uid != os.getuid():
            raise InputError(f"{place} belongs to another user: {named}")

    def show(self, data: Any, human: Callable[[], str] | str) -> None:
        """Print one JSON document, or text for a person, without secrets."""
        self.end_line()
        if self.json:
            shown = finite(redact(data))
            document = json.dumps(shown, indent=2, ensure_ascii=not speaks_unicode(sys.stdout), default=str)
            click.echo(printable_json(document))
        else:
            click.echo(printable(redact_text(human() if callable(human) else human)))

    def end_line(self) -> None:
        """Let what is printed next begin a line of its own, below the progress that a terminal shows."""
        if self.progress:
            self.progress.end()


def finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    session = ctx.ensure_object(Session)
    name = str(param.name)
    from_environment = ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT
    if from_environment and is_blank(value):
        value = None
    refuse_blank(ctx, param, value)
    if value in (None, False) or (from_environment and getattr(session, name)):
        return  # what was typed before the command's name counts more than the environment
    setattr(session, name, value)


def is_blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def refuse_blank(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Refuse a text that is blank, as of a variable that is not set: as a rule it would count as left out."""
    texts = value if isinstance(value, tuple) else (value,)
    if param.name not in MAY_BE_BLANK and any(map(is_blank, texts)):
        instead = "give it a value" if param.required else "give it a value, or leave it out"
        raise click.BadParameter(f"it is blank: {instead}", ctx, param)


def _refusing_blanks(command: F) -> F:
    """Refuse blank values of the options and arguments that a command's function takes."""

    @wraps(command)
    def checked(*args: Any, **values: Any) -> Any:
        context = click.get_current_context()
        for param in context.command.params:
            refuse_blank(context, param, values.get(str(param.name)))
        return command(*args, **values)

    return cast(F, checked)


def refuse_beside(option: str, ignored: Callable[[str], bool]) -> None:
    """Refuse options that were typed beside one with which they have no effect, by their names."""
    context = click.get_current_context()
    for param in context.command.params:
        name = str(param.name)
        if (
            name not in SHARED
            and ignored(name)
            and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        ):
            typed = param.opts[-1] if isinstance(param, click.Option) else name.upper()
            raise InputError(f"{typed} has no effect with {option}: leave one of them out")


SHARED = ("home", "db", "json", "quiet", "debug")
MAY_BE_BLANK = ("note", "behaviours")  # a decision without a reason; no further behaviour


def shared(command: F) -> F:
    """Add --home, --db, --json, -q and --debug; given twice, the later one counts. Refuse blank values."""
    kept: dict[str, Any] = {"expose_value": False, "callback": _remember}
    flags: dict[str, Any] = {**kept, "is_flag": True, "default": False}
    for option in (
        click.option("--debug", help="print the traceback of an error", **flags),
        click.option("-q", "--quiet", help="hide progress", **flags),
        click.option("--json", help="print one JSON document instead of text", **flags),
        click.option(
            "--db",
            metavar="URL",
            envvar=DB_VARIABLE,
            is_eager=True,  # before --processes, whose errors name it
            **kept,
            help="database: a file, or the URL of a PostgreSQL one (default: recover.db in the home)",
        ),
        click.option(
            "--home",
            metavar="DIR",
            envvar="RECOVER_HOME",
            is_eager=True,  # before --processes, whose errors name it
            **kept,
            help=f"folder of settings, database, checkpoints and runs (default: {DEFAULT_HOME})",
        ),
    ):
        command = option(command)
    return _refusing_blanks(command)


class Place(click.Path[Path]):
    """A path that is named: a blank one, as of a variable that is not set, would be the current folder.

    `~` is the user's own folder also where the shell leaves it, as in --out=~/probes.jsonl.
    """

    def __init__(self, *, exists: bool = False, dir_okay: bool = True) -> None:
        super().__init__(path_type=Path, exists=exists, dir_okay=dir_okay)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        if not os.fspath(value).strip():
            self.fail("it is blank: name a folder or a file", param, ctx)
        return super().convert(expanded(value), param, ctx)


def documents(text: str, *, required: bool = False) -> Callable[[F], F]:
    """Return the option --docs, which takes one folder."""
    return click.option(
        "--docs", required=required, multiple=True, callback=_once, type=Place(), metavar="DIR", help=text
    )


def _once(ctx: click.Context, param: click.Parameter, given: tuple[Path, ...]) -> Path | None:
    """Refuse a second value, which would take the first one's place."""
    if len(given) > 1:
        raise click.BadParameter("it is given twice, and one folder is read: give one", ctx, param)
    return given[0] if given else None


docs = documents("folder of documents", required=True)
augment = click.option(
    "--augment",
    type=Place(),
    metavar="DIR|FILE",
    help="folder written by `recover augment`, or its augmented.jsonl, to train on as well",
)


def count(flag: str, default: int, text: str, *, least: int = 1) -> Callable[[F], F]:
    """Return an option that takes a whole number of at least `least`."""
    kind = click.IntRange(least)
    return click.option(flag, default=default, show_default=True, type=kind, metavar="N", help=text)


def suites(text: str) -> Callable[[F], F]:
    """Return the option --suite of a command that evaluates, which names suites with commas between."""
    return click.option("--suite", "suites", metavar="NAMES", help=text)


def seed(text: str) -> Callable[[F], F]:
    """Return the option --seed of a command that draws: the same seed draws the same."""
    return click.option("--seed", default=0, show_default=True, type=SEED, metavar="N", help=text)


student = click.option(
    "--student", default="current", show_default=True, metavar="CHECKPOINT", help="checkpoint to train"
)
teacher = click.option(
    "--teacher", default="base", show_default=True, metavar="CHECKPOINT", help="checkpoint that teaches"
)
host = click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="address to listen on"
)


class Number(click.FloatRange):
    """A number in a range, which NaN and infinity are not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is no finite number: give one", param, ctx)
        return number


class CycleNumber(click.ParamType[int]):
    """The number of a cycle, written N or cycle:N."""

    name = "cycle"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        digits = str(value).removeprefix("cycle:")
        if not (digits.isascii() and digits.isdigit()):
            self.fail(f"{value!r}: write cycle:N or N, as in cycle:1", param, ctx)
        return int(digits)


cycle_number = click.argument("cycle", metavar="cycle:N", type=CycleNumber())


def processes(command: F) -> F:
    """Add --processes to a command that trains."""
    return click.option(
        "--processes",
        type=click.IntRange(1),
        metavar="N",
        expose_value=False,
        callback=_launch,
        help="train in N processes: one a GPU, or all on the CPU",
    )(command)


def _launch(ctx: click.Context, param: click.Parameter, count: int | None) -> None:
    if count and count > 1 and launched() == 1:
        sys.exit(launch(count, ctx.ensure_object(Session).command))  # ctx.exit's code would not reach main()


def state_words(row: dict[str, Any]) -> str:
    """Return the status of a run or a cycle, since when it is silent though it is recorded as running, and
    whether too few questions alone have rejected it."""
    if row["status"] == "rejected":
        from evals.verdict_sentences import status_in_words

        return status_in_words(row)
    since = str(row["heartbeat_at"])[:16].replace("T", " ") if row.get("stalled") else ""
    return f"{row['status']}, stalled since {since} UTC" if since else str(row["status"])
