"""What a wheel installs: commands that run where the current folder has modules of the same names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("recovery", "pipelines", "evals", "dashboard", "db")
TRAPS = ("db.py", "evals/__init__.py", "pipelines/__init__.py", "json.py", "torch.py", "recovery/__init__.py")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy, as setuptools leaves its work beside the sources."""
    source = tmp_path_factory.mktemp("source")
    for package in (*PACKAGES, "tests"):
        copytree(ROOT / package, source / package, ignore=ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    out = source / "dist"
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(source))
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts' folder of an environment with the wheel, which sees this one's other packages."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    pip("--python", str(place / "bin" / "python"), "install", "--no-deps", "--no-index", str(wheel))
    (packages,) = place.glob("lib/python*/site-packages")
    # By a .pth file with its path: the .pth files there, an editable install among them, are not read.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin"


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody's project: modules with names of ours and of Python's, each of which says that it ran."""
    place = tmp_path_factory.mktemp("project")
    for trap in TRAPS:
        (place / trap).parent.mkdir(exist_ok=True)
        (place / trap).write_text(f"raise SystemExit({trap + ' of the current folder ran'!r})\n")
    (place / "docs").mkdir()
    (place / "docs" / "ada.md").write_text("Ada lives in Oslo. " * 50)
    return place


def run(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


def test_a_wheel_holds_the_packages_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {name for name in tops if not name.endswith(".dist-info")} == set(PACKAGES)


def test_commands_run_beside_modules_of_the_same_names(installed: Path, folder: Path) -> None:
    recover = installed / "recover"
    version = run(folder, recover, "--version")
    assert version.stdout.startswith("recover, version"), version.stderr
    made = run(folder, recover, "--json", "--home", "home", "init", "--model", "microworld")
    assert made.returncode == 0, made.stderr
    assert Path(json.loads(made.stdout)["home"]).name == "home"
    training = ("--home", "home", "midtrain", "--docs", "docs", "--steps", "1")
    several = run(folder, recover, *training, "--processes", "2")
    assert several.returncode == 0, several.stderr


@pytest.mark.parametrize("trap", ["db.py", "evals/__init__.py", "recovery/__init__.py"])
def test_python_m_is_refused_by_name(installed: Path, tmp_path: Path, trap: str) -> None:
    """Python imports from the current folder then; nothing of it runs before the refusal."""
    (tmp_path / trap).parent.mkdir(exist_ok=True)
    (tmp_path / trap).write_text("print('ran')\n")
    (tmp_path / "json.py").write_text("print('ran')\n")
    name = trap.partition("/")[0].removesuffix(".py")
    refused = run(tmp_path, installed / "python", "-m", "pipelines.cli", "--version")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"Error: `{name}` would be imported from")
    safe = run(tmp_path, installed / "python", "-P", "-m", "pipelines.cli", "--version")
    assert safe.stdout.startswith("recover, version")
