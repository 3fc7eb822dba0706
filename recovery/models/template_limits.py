"""Limit what a chat template may take: it is a program that comes with a model.

A template renders small dialogues in a process of its own first, with little time and memory: a single
operation of it may loop or fill the memory, and nothing in this process could stop it. After that it is
rendered here, with limits on time and length, because a template may wait for a certain message.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from recovery.errors import RecoverError
from recovery.import_places import import_places
from recovery.models import template_trial

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SECONDS = 10.0  # of processor time of one rendering; a dialogue of a thousand turns takes less than one
LENGTH = 1_000_000  # characters that a rendering may have beyond GROWTH times those of the dialogue
GROWTH = 10
CHECKED = 256  # lines of a template between two looks at the clock
COMPILED = "<template>"  # the file name that jinja gives to the code that it makes of a template
START = (
    "import json, sys; settings = json.load(sys.stdin); sys.path += settings.pop('places'); "
    f"from {template_trial.__name__} import run; run(**settings)"
)
KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "SYSTEMROOT")


class TemplateTooLong(RecoverError):
    """A chat template takes more time, memory or characters than a dialogue can need."""

    def __init__(self, model: str, why: str) -> None:
        super().__init__(
            f"{model or 'this model'}: its chat template {why}: read it, or take another copy of the model"
        )


def require_bounded_templates(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise TemplateTooLong if a chat template loops, fills the memory or writes too much."""
    templates = tokenizer.chat_template or {}
    variables = tuple((name, str(token)) for name, token in tokenizer.special_tokens_map.items())
    for template in templates.values() if isinstance(templates, dict) else [templates]:
        if code := _tried(template, variables):
            _tried.cache_clear()  # the machine itself may have been short of memory
            why = template_trial.REASONS.get(code, template_trial.CRASHES)
            raise TemplateTooLong(tokenizer.name_or_path, why)


@lru_cache(maxsize=64)
def _tried(template: str, variables: tuple[tuple[str, str], ...]) -> int:
    """Return the exit code of a trial; one is enough for all models with the same template."""
    settings = {
        "template": template,
        "variables": dict(variables),
        "places": import_places(),
        "seconds": int(SECONDS),
        "longest": LENGTH,
    }
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", START],
        input=json.dumps(settings),
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ},
        cwd="/",
    ).returncode


@contextmanager
def bounded(model: str, dialogue: object) -> Iterator[None]:
    """Raise TemplateTooLong if rendering this dialogue inside takes too long or writes too much."""
    before = sys.gettrace()
    sys.settrace(_Meter(model, LENGTH + GROWTH * len(repr(dialogue))).enter)
    try:
        yield
    finally:
        sys.settrace(before)


class _Meter:
    """Count the lines that a template runs and the characters that it writes, as a trace function."""

    def __init__(self, model: str, longest: int) -> None:
        self.model = model
        self.longest = longest
        self.written = self.lines = 0
        self.deadline = time.thread_time() + SECONDS

    def enter(self, frame: FrameType, event: str, value: Any) -> Any:
        return self.follow if frame.f_code.co_filename == COMPILED else None

    def follow(self, frame: FrameType, event: str, value: Any) -> Any:
        if event == "return" and isinstance(value, str):  # a piece of the text that is yielded
            self.written += len(value)
            if self.written > self.longest:
                raise TemplateTooLong(self.model, template_trial.WRITES)
        self.lines += 1
        if self.lines % CHECKED == 0 and time.thread_time() > self.deadline:
            raise TemplateTooLong(self.model, template_trial.LOOPS)
        return self.follow
