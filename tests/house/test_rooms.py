"""The layout: small folders, imports that point down, one place for each heavy package, short signatures."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("recovery", "db", "evals", "pipelines", "dashboard")
MOST_FILES = 20
MOST_PARAMETERS = 7
FLOORS = {
    "recovery": {"recovery"},
    "db": {"db"},
    "evals": {"evals", "recovery"},
    "pipelines": {"pipelines", "evals", "recovery", "db", "dashboard"},
    "dashboard": {"dashboard", "evals", "recovery", "db"},
}
DOORS = {  # heavy or fickle packages, and the files that may import them
    "lm_eval": ("evals/",),
    "vllm": ("recovery/engines/",),
    "gradio": ("dashboard/",),
}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def sources(*packages: str) -> list[Path]:
    found = (path for package in packages or PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path for path in found if "versions" not in path.parts)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in sources()}


@cache
def imported(path: Path) -> list[str]:
    """Every module that a file imports, inside functions and for the type checker too."""
    found: list[str] = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            found += (name if name in MODULES else node.module for name in inner)
    return found


def ours(path: Path) -> set[str]:
    """The project's own modules that a file imports, itself left out."""
    found = {name for name in imported(path) if name in MODULES}
    return found - {module_of(path)}


def room_of(module: str) -> str:
    """The folder that a module lies in; at the top of a package each file is a room of its own."""
    return module if module.count(".") == 1 else module.rpartition(".")[0]


def circles(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("folder", sorted({path.parent for path in sources()}), ids=str)
def test_a_folder_is_read_at_a_glance(folder: Path) -> None:
    files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(files) <= MOST_FILES


def test_the_map_of_a_folder_names_all_its_files() -> None:
    """A package's docstring that names one of its modules names them all, and no other."""
    for package in (path for path in sources() if path.name == "__init__.py"):
        named = set(re.findall(r"(?<![\w/.])(\w+\.py)\b", ast.get_docstring(tree(package)) or ""))
        there = {path.name for path in package.parent.glob("*.py")} - {package.name}
        assert not named or named == there, package.parent.relative_to(ROOT)


def test_files_never_import_in_a_circle() -> None:
    """An import inside a function, or for types alone, closes a circle as well: it only hides it."""
    assert circles({module_of(path): ours(path) for path in sources()}) == []


@pytest.mark.parametrize("hidden", ["def f():\n    import {}", "if TYPE_CHECKING:\n    from {} import x"])
def test_a_hidden_import_counts(tmp_path: Path, hidden: str) -> None:
    name = "recovery.errors"
    path = tmp_path / "module.py"
    path.write_text(hidden.format(name), encoding="utf-8")
    assert imported(path) == [name]


@pytest.mark.parametrize("package", ["recovery", "pipelines"])
def test_rooms_never_need_each_other_in_a_circle(package: str) -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for path in sources(package):
        room = room_of(module_of(path))
        graph[room] |= {room_of(name) for name in ours(path)} - {room}
    assert circles(graph) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_down(package: str) -> None:
    for path in sources(package):
        used = {name.partition(".")[0] for name in imported(path)} & set(PACKAGES)
        assert used <= FLOORS[package], path.relative_to(ROOT)


def test_the_cpu_engine_can_be_deleted() -> None:
    """It changes speed alone: what uses it asks recovery/forward/fast_path.py, which finds it by name."""
    outside = [path for path in sources() if not module_of(path).startswith("recovery.cpu")]
    assert [path for path in outside if any(name.startswith("recovery.cpu") for name in imported(path))] == []


@pytest.mark.parametrize("heavy", DOORS)
def test_heavy_packages_have_one_door(heavy: str) -> None:
    users = [
        path.relative_to(ROOT).as_posix()
        for path in sources()
        if any(name.partition(".")[0] == heavy for name in imported(path))
    ]
    assert users
    assert [path for path in users if not path.startswith(DOORS[heavy])] == []


def test_signatures_are_short() -> None:
    """A longer one needs a reason, said in the comment that silences the linter: `# noqa: PLR0913 - why`."""
    for path in sources():
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
                method = bool(node.args.args) and node.args.args[0].arg in ("self", "cls")
                if count - method > MOST_PARAMETERS:
                    assert "noqa: PLR0913 - " in lines[node.lineno - 1], f"{path}:{node.lineno} {node.name}"
