"""Say what an unknown option of a command may have meant: options that set what it names, or settings."""

from __future__ import annotations

import click

from pipelines.cli.setting_options import SettingOption


def meant_by(name: str, command: click.Command) -> str:
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
