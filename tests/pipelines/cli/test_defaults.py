"""A default that an option shows is the one that a call from Python takes.

Commands import what they run only when they run it, so the numbers stand in both places."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import click
import pytest

from pipelines import Home
from pipelines.cli.commands import cli
from pipelines.config.jobs import DriftJob, LocateJob, RetrievalJob
from pipelines.job_from_options.pilot import pilot_job
from pipelines.machine.capacity import plan_for
from pipelines.prune import prune
from pipelines.writing.commands import AugmentOptions, ProbeOptions


def shown(command: str, option: str) -> Any:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    return next(param.default for param in found.params if param.name == option)


def taken(callee: Callable[..., Any], parameter: str) -> Any:
    if fields := getattr(callee, "model_fields", None):
        return fields[parameter].default
    return inspect.signature(callee).parameters[parameter].default


@pytest.mark.parametrize(
    ("command", "option", "callee", "parameter"),
    [
        ("pilot", "share", pilot_job, "share"),
        ("prune", "cycles", prune, "cycles"),
        ("prune", "cycles", Home.prune, "cycles"),
        ("drift", "count", DriftJob, "count"),
        ("drift", "max_new_tokens", DriftJob, "max_new_tokens"),
        ("locate", "groups", LocateJob, "groups"),
        ("retrieval", "passages", RetrievalJob, "passages"),
        ("augment", "questions", AugmentOptions, "questions"),
        ("augment", "max_new_tokens", AugmentOptions, "max_new_tokens"),
        ("augment", "temperature", AugmentOptions, "temperature"),
        ("probes", "max_new_tokens", ProbeOptions, "max_new_tokens"),
        ("plan", "tokens", plan_for, "tokens"),
        ("plan", "answer_tokens", plan_for, "answer_tokens"),
    ],
)
def test_an_option_shows_the_default_that_python_takes(
    command: str, option: str, callee: Callable[..., Any], parameter: str
) -> None:
    assert shown(command, option) == taken(callee, parameter)
