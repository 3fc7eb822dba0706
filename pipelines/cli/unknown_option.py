"""Say what an unknown option of a command may have meant: options that set what it names, or settings."""

from __future__ import annotations

import click

from pipelines.cli.setting_options import SettingOption

# Sections of recover.yaml that a command reads; any other command reads the keys of its own options.
READ = {
    "cycle": ("midtrain", "distill", "eval"),
    "distill": ("distill",),
    "eval": ("eval",),
    "midtrain": ("midtrain",),
    "pilot": ("midtrain",),
}
# Keys of these sections that it does not read: a pilot chooses the length, and an evaluation judges nothing.
UNREAD = {
    "eval": (
        "eval.behaviours_margin",
        "eval.earlier_questions",
        "eval.margin",
        "eval.retention_margin",
        "eval.reuse",
        "eval.update_lead",
    ),
    "pilot": ("midtrain.epochs", "midtrain.steps"),
}


def meant_by(name: str, command: click.Command) -> str:
    """Return what sets the settings that an unknown option such as --steps or --distill-steps names.

    These are options of the command, and keys of recover.yaml that the command reads.
    """
    from pipelines.config.listing import every_key

    options = {one.key: one.opts[0] for one in command.params if isinstance(one, SettingOption)}
    word = name.lstrip("-").replace("-", "_")
    found = [key for key in every_key() if _names(word, key)]
    flags = [options[key] for key in found if key in options]
    keys = " or ".join(key for key in found if key not in options and _reads(command, key))
    return " or ".join([*flags, *([f"{keys} in recover.yaml"] if keys else [])])


def _reads(command: click.Command, key: str) -> bool:
    name = command.name or ""
    return key.partition(".")[0] in READ.get(name, ()) and key not in UNREAD.get(name, ())


def _names(word: str, key: str) -> bool:
    """Return whether a word is a setting's own name, alone or behind that of its section."""
    section, own = key.partition(".")[0], key.rpartition(".")[2]
    return word in (own, f"{section}_{own}")
