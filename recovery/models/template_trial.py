"""Render small dialogues with a chat template, in a process with limits on time and memory.

Only the limits matter here: what a template refuses, and what it writes, is found out by the real rendering.
"""

from __future__ import annotations

import datetime
import json
import resource
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 2**30  # bytes of addresses
LOOPS = "does not end within the time that a dialogue can need"
FILLS = "takes more memory than a dialogue can need"
CRASHES = "ends the process that renders it"
WRITES = "writes more than a dialogue can need"
OUT_OF_MEMORY, TOO_LONG = 3, 4  # exit codes
REASONS = {-signal.SIGXCPU: LOOPS, -signal.SIGKILL: FILLS, OUT_OF_MEMORY: FILLS, TOO_LONG: WRITES}

USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
DIALOGUES: tuple[dict[str, Any], ...] = (
    {"messages": [USER], "add_generation_prompt": True},
    {"messages": [{"role": "system", "content": "s"}, USER], "add_generation_prompt": True},
    {"messages": [USER, ANSWER, USER], "add_generation_prompt": True},
    {"messages": [USER, ANSWER], "add_generation_prompt": False},
    {"messages": [USER], "add_generation_prompt": True, "tools": [TOOL]},
)


class GenerationBlock(Extension):
    """Render what stands between {% generation %} and {% endgeneration %}, as transformers does."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def run(template: str, variables: dict[str, Any], seconds: int, longest: int) -> NoReturn:
    """Render each dialogue under the limits; the exit code says which one was passed."""
    with suppress(ValueError, OSError):  # macOS has no limit on addresses
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for dialogue in DIALOGUES:
        try:
            length = len(render(template, variables | dialogue))
        except MemoryError:
            sys.exit(OUT_OF_MEMORY)
        except Exception:  # noqa: BLE001 - a template may refuse a dialogue, by any error
            continue
        if length > longest:
            sys.exit(TOO_LONG)
    sys.exit(0)


def render(template: str, variables: dict[str, Any]) -> str:
    """Render with the filters and functions that transformers offers."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = datetime.datetime.now().strftime
    return environment.from_string(template).render(**variables)


def refuse(message: str) -> NoReturn:
    raise ValueError(message)
