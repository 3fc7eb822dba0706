"""Every extra that an error names is one of the project's, and installed as the pages say."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from recovery.extras import to_install

ROOT = Path(__file__).parents[2]


def test_an_extra_is_installed_as_the_pages_say() -> None:
    where, command = to_install("vllm").split(": ")
    assert where == "in the checkout"
    assert command.startswith(f"{sys.executable} -m ")
    shown = command.replace(f"{sys.executable} -m ", ".venv/bin/")
    assert shown in (ROOT / "docs" / "engines.md").read_text(encoding="utf-8").splitlines()


def test_the_extras_that_errors_name_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"vllm", "gguf", "qlora", "ifbench", "test"} <= set(project["optional-dependencies"])
