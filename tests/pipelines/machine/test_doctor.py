"""What `recover doctor` says where packages are broken, and where the home cannot be opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.config import settings
from pipelines.machine import doctor, needed_packages

RUN = "from pipelines.cli import main; main()"
BROKEN = {
    "missing": 'raise ModuleNotFoundError("No module named torch", name="torch")',
    "library": 'raise OSError("libcudart.so.12: cannot open shared object file")',
    "operator": 'raise RuntimeError("operator torchvision::nms does not exist")',
}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("missing", "torch: not installed: run `{python} -m pip install 'torch==2.13.*'`"),
        ("library", "torch: cannot be imported: libcudart.so.12: cannot open shared object file: run"),
        ("operator", "torch: cannot be imported: operator torchvision::nms does not exist: run"),
    ],
)
def test_a_missing_or_broken_torch_is_one_row_of_the_report(tmp_path: Path, how: str, said: str) -> None:
    (tmp_path / "torch.py").write_text(BROKEN[how])
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "recover.yaml").write_text(settings.preset_text("cpu"))
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {RUN}"
    words = [sys.executable, "-c", program, "--home", str(tmp_path / "home"), "doctor"]
    ran = subprocess.run(words, capture_output=True, text=True)
    assert ran.returncode == 3
    assert ran.stderr.startswith("Error: " + said.format(python=sys.executable))
    assert len(ran.stderr.splitlines()) == 1
    assert ran.stdout.splitlines()[-1].startswith("ok        database")


def test_a_wrong_version_is_named_by_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"lm-eval": "0.3.0", "torch": "2.13.1+cpu"}
    monkeypatch.setattr(needed_packages, "version", lambda name: there[name])
    for name in set(needed_packages.needed()) - set(there):
        monkeypatch.delitem(needed_packages.needed(), name)
    row = doctor._versions()
    assert (row["ok"], row["detail"]) == (False, "lm-eval 0.3.0 is installed, ==0.4.13 is needed")
    assert row["remedy"].endswith("-m pip install 'lm-eval[ifeval]==0.4.13'`")


def test_a_closed_home_is_said_in_each_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(Path, "stat", refused)
    rows = doctor._of_home(tmp_path, None)
    monkeypatch.undo()
    assert [row["name"] for row in rows] == ["home", "settings", "database"]
    assert all("cannot be opened (Permission denied)" in row["detail"] for row in rows)


def test_a_gpu_that_cannot_be_used_leaves_the_packages_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy() -> bool:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")

    monkeypatch.setattr("torch.cuda.is_available", busy)
    rows = {row["name"]: row for row in doctor.examine(tmp_path, None)}
    assert not rows["torch"]["ok"] and "no GPU can be used: CUDA error" in rows["torch"]["detail"]
    assert rows["peft"]["ok"] and rows["peft"]["needed"]
