"""`recover`: the group of all commands, and the edge where an error becomes one line."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import signal
import sys
import traceback
from typing import TextIO

import click

from db.redact import redact_error
from pipelines.cli.options import Session, shared
from pipelines.cli.setting_options import EPILOG, SettingOption
from pipelines.runs import launch
from pipelines.runs.progress import take_any_character, write
from recovery.errors import InputError
from recovery.launch_env import launch_rank
from recovery.named_paths import refusal
from recovery.printable import printable

# The sections of `recover --help`: which module holds which command. A module is imported when its command is
# used or its help is shown.
SECTIONS = {
    "From documents to a verdict, in this order": {
        "init": "setup",
        "corpus": "corpus",
        "probes": "knowledge",
        "cycle": "cycles",
        "verdict": "cycles",
        "dashboard": "records",
    },
    "Try, check and choose": {
        "demo": "cycles",
        "doctor": "setup",
        "plan": "setup",
        "preflight": "setup",
        "pilot": "pilot",
        "settings": "setup",
        "methods": "records",
    },
    "Cycles and their records": {
        "resume": "cycles",
        "review": "cycles",
        "ls": "records",
        "show": "records",
        "report": "records",
        "export": "records",
        "query": "records",
        "prune": "prune",
    },
    "Single stages": {
        "midtrain": "train",
        "distill": "train",
        "merge": "train",
        "eval": "measure",
        "serve": "engine",
    },
    "Further texts and questions": {
        "augment": "knowledge",
        "prompts": "prompts",
        "microworld": "setup",
    },
    "What has changed, and why": {
        "compare": "measure",
        "flips": "measure",
        "drift": "measure",
        "lost": "knowledge",
        "locate": "diagnose",
        "retrieval": "diagnose",
    },
}
COMMANDS = {name: module for section in SECTIONS.values() for name, module in section.items()}


class Commands(click.Group):
    """Import a command's module by its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"pipelines.cli.{COMMANDS[name]}")
        command = getattr(module, f"{name}_command")
        assert isinstance(command, click.Command)
        if any(isinstance(option, SettingOption) for option in command.params):
            command.epilog = EPILOG
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, their names in one column."""
        column = max(map(len, COMMANDS))
        width = formatter.width - column - 6
        for title, names in SECTIONS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            rows = [
                (name.ljust(column), command.get_short_help_str(width))
                for name, command in commands.items()
                if command is not None
            ]
            with formatter.section(title):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse an unknown name with the nearest one that exists."""
        near = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if args[0] not in COMMANDS and near and not args[0].startswith("-"):
            raise click.UsageError(f"No such command {args[0]!r} (did you mean {near[0]!r}?)", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="recover-llm", prog_name="recover")
@shared
def cli() -> None:
    """Teach an instruct model your documents, bring its behaviour back, and test both.

    `recover demo` shows it on a tiny model, offline. With a model and documents of your own:

    \b
    recover init --model MODEL
    recover corpus ./corpus
    recover probes --docs ./corpus --out probes.jsonl
    recover cycle --docs ./corpus
    recover verdict 1
    recover dashboard
    """


def main() -> None:
    """Run a command; print an error as one line (what, where, what to do), a traceback only with --debug."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    _prepare_streams()
    session = Session()
    logging.basicConfig(level=logging.WARNING, handlers=[_Warnings(session)])
    logging.captureWarnings(True)
    try:
        if launch_rank():
            from pipelines import worker_process

            worker_process.follow()
            return
        _end_on_request()
        _run(session)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _say(f"Error: {_with_hint(error)}")
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt) as error:
        _say(_interruption(error))
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - the edge: whatever it is becomes one line
        if session.debug:
            write(_shown(traceback.format_exc()), sys.stderr)
        sys.exit(_explain(error))
    finally:
        launch.dismiss()


def _prepare_streams() -> None:
    """Let both streams take any character, and standard error be there.

    Where that is closed it writes to nowhere: the next file that is opened would take its number."""
    for stream in (sys.stdout, sys.stderr):
        take_any_character(stream)
    if sys.stderr is None:  # after `2>&-`
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process


def _run(session: Session) -> None:
    """Run the command; an error that ends it begins a line of its own."""
    try:
        cli.main(obj=session, prog_name="recover", standalone_mode=False)
    finally:
        session.end_line()


def _end_on_request() -> None:
    """Take a scheduler's or a container's request to end, and the loss of the terminal, as Ctrl-C: what runs
    is recorded as interrupted.

    The first process of a container would ignore it otherwise; nohup's wish to go on is respected.
    """
    asked = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL
    ]

    def end(*_: object) -> None:
        for number in asked:
            signal.signal(number, signal.SIG_IGN)  # a second one must not cut the recording short
        raise KeyboardInterrupt(launch.BY_SIGTERM)

    for number in asked:
        signal.signal(number, end)


def _with_hint(error: click.ClickException) -> str:
    """Return click's message, what may have been meant, and the command that shows the right usage."""
    context = getattr(error, "ctx", None)
    message = " ".join(error.format_message().split())
    if isinstance(error, click.NoSuchOption) and context:
        meant = _meant_by(error.option_name, context.command)
        message = f"{error.message.rstrip('.')} (did you mean {meant}?)" if meant else message
    return f"{message.rstrip('.')}: see `{context.command_path} --help`" if context else message


def _meant_by(name: str, command: click.Command) -> str:
    """Return what sets the settings that an unknown option such as --steps or --distill-steps names.

    These are options of the command, and keys of recover.yaml in the sections that its options override.
    """
    from pipelines.config.listing import every_key

    options = {one.key: one.opts[0] for one in command.params if isinstance(one, SettingOption)}
    sections = {key.partition(".")[0] for key in options if "." in key}
    word = name.lstrip("-").replace("-", "_")
    found = [key for key in every_key() if key.partition(".")[0] in sections and _names(word, key)]
    flags = [options[key] for key in found if key in options]
    keys = " or ".join(key for key in found if key not in options)
    return " or ".join([*flags, *([f"{keys} in recover.yaml"] if keys else [])])


def _names(word: str, key: str) -> bool:
    """Return whether a word is a setting's own name, alone or behind that of its section."""
    section, own = key.partition(".")[0], key.rpartition(".")[2]
    return word in (own, f"{section}_{own}")


def _interruption(error: BaseException) -> str:
    """Return what Ctrl-C has ended, with the note of the run that it interrupted, if it was a run."""
    cause = error.__cause__ or error  # click replaces the interrupt by an error of its own
    return ": ".join(["interrupted", *getattr(cause, "__notes__", [])])


def _explain(error: Exception) -> int:
    """Print any error on one line and return its exit code."""
    from recovery.storage.atomic_dirs import disk_full

    code = getattr(error, "exit_code", None)
    if code is not None:
        _say(f"Error: {error}")
        return int(code)
    if refused := refusal(error):
        _say(f"Error: {refused}")
        return InputError.exit_code
    if disk_full(error):
        _say(f"Error: the disk is full ({error}): free some space and run it again")
        return 1
    text = " ".join(str(error).split()) or "no message"
    _say(f"Error: {type(error).__name__}: {text[:300]} (run again with --debug for the traceback)")
    return 1


def _say(text: str) -> None:
    """Print one line on standard error."""
    write(_shown(text.partition("\n")[0]) + "\n", sys.stderr)


def _shown(text: str) -> str:
    """Return text without secrets and without what a terminal would obey."""
    return printable(redact_error(text))


class _Plain(logging.Formatter):
    """The message of a warning, as `_shown`: it may quote a document, a model or a server."""

    def format(self, record: logging.LogRecord) -> str:
        return _shown(super().format(record))


class _Warnings(logging.StreamHandler[TextIO]):
    """Warnings on standard error, below the progress that a terminal shows."""

    def __init__(self, session: Session) -> None:
        super().__init__(sys.stderr)
        self.session = session
        self.setLevel(logging.WARNING)  # bm25s and others give their own loggers a level below the root's
        self.setFormatter(_Plain("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.session.end_line()
        super().emit(record)
