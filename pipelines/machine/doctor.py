"""Check whether this machine can run the pipelines; name a remedy for each failed check."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from pipelines.config.home_settings import of_home
from pipelines.config.settings import CONFIG_NAME, read
from pipelines.machine.foreign_packages import shared_names
from pipelines.machine.needed_packages import distribution, unfit_versions, wanted
from recovery.counted import counted
from recovery.errors import InputError, first_line
from recovery.extras import pip_install
from recovery.named_paths import why_closed
from recovery.storage.atomic_dirs import nearest

FREE_GIB = 2
UNKNOWN = "not checked: torch is missing or broken"


def examine(home: Path, db_url: str | None, *, named: bool = True) -> list[dict[str, Any]]:
    """Return one row per check: name, ok, needed, detail, remedy."""
    torch = _torch()
    has_torch = "torch" in sys.modules  # also where no GPU can be used; an import that fails leaves none
    packages = [_package(name, has_torch) for name in ("transformers", "peft", "accelerate", "lm_eval")]
    environment = [torch, _kernels(has_torch), *packages, _versions(), _names(), _vllm()]
    return [*environment, *_of_home(home, db_url, has_torch, named)]


def _of_home(
    home: Path, db_url: str | None, has_torch: bool = True, named: bool = True
) -> list[dict[str, Any]]:
    if closed := why_closed(home / CONFIG_NAME):
        remedy = "change its rights or those of the folders above it, or choose another --home"
        return [_row(name, False, closed, remedy) for name in ("home", "settings", "database")]
    return [_disk(home, has_torch), _settings(home), _database(home, db_url, named)]


def _row(name: str, ok: bool, detail: str, remedy: str = "", needed: bool = True) -> dict[str, Any]:
    return {"name": name, "ok": ok, "needed": needed, "detail": detail, "remedy": remedy}


def _torch() -> dict[str, Any]:
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a broken build raises anything, as where a library is missing
        return _broken("torch", error)
    try:
        gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    except RuntimeError as error:  # busy, or of a driver that does not fit
        return _row("torch", False, f"{torch.__version__}: no GPU can be used: {first_line(error)[:200]}")
    device = gpu or f"CPU, {counted(torch.get_num_threads(), 'thread')}"
    return _row("torch", True, f"{torch.__version__} on {device}")


def _broken(package: str, error: Exception) -> dict[str, Any]:
    """Return the row of a package that is absent, or is there and cannot be imported."""
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    detail = "not installed" if missing == package else f"cannot be imported: {first_line(error)[:200]}"
    wants = ["--force-reinstall", wanted(distribution(package))]
    if missing and "." not in missing:  # itself, or what it needs
        wants = [wanted(distribution(missing))]
    return _row(package, False, detail, f"run `{pip_install(*wants)}`")


def _kernels(has_torch: bool) -> dict[str, Any]:
    if not has_torch:
        return _row("kernels", False, UNKNOWN, needed=False)
    from recovery.forward.fast_path import fast_path

    ready, detail = fast_path().status()
    return _row("kernels", ready, detail, needed=False)


def _package(name: str, has_torch: bool) -> dict[str, Any]:
    if not has_torch:  # it imports torch too, and would fail with the same words
        return _row(name, False, UNKNOWN, needed=False)
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - as for torch
        return _broken(name, error)
    return _row(name, True, str(getattr(module, "__version__", "there")))


def _versions() -> dict[str, Any]:
    """Return whether the packages that are needed are installed in versions that this project takes."""
    wrong = unfit_versions()
    remedy = f"run `{pip_install(*map(wanted, wrong))}`" if wrong else ""
    detail = "; ".join(f"{name} {said}" for name, said in wrong.items())
    return _row("versions", not wrong, detail or "as needed", remedy)


def _names() -> dict[str, Any]:
    """Return whether another distribution installs packages under the same names, over the same files."""
    shared = shared_names()
    claims = "; ".join(f"{name} by {', '.join(dists)}" for name, dists in shared.items())
    remedy = "install recover-llm in an environment of its own"
    return _row("packages", not shared, claims or "no other project uses these names", remedy)


def _vllm() -> dict[str, Any]:
    there = importlib.util.find_spec("vllm") is not None
    detail = "there" if there else "not installed: the in-process sampler is used"
    return _row("vllm", there, detail, needed=False)


def _disk(home: Path, has_torch: bool = True) -> dict[str, Any]:
    parent = nearest(home.absolute())
    free = shutil.disk_usage(parent).free / 2**30
    least, most = (size / 2**30 for size in (_cycle_bytes(home) if has_torch else (0, 0)))
    needed = max(FREE_GIB, least)
    writable = parent.is_dir() and os.access(parent, os.W_OK)
    problem = "a file" if home.is_file() else "not writable"
    taken = f", a cycle takes up to {most:,.1f} GiB" if most else ""
    detail = f"{home}: {free:.1f} GiB free{taken}" if writable else f"{home}: {problem}"
    remedy = f"choose a --home that is writable with {needed:,.1f} GiB free"
    return _row("home", writable and free >= needed, detail, remedy)


def _cycle_bytes(home: Path) -> tuple[int, int]:
    """Return the bytes that a cycle of the home's model needs, and takes at most; 0 where that is unknown."""
    try:
        from pipelines.machine import disk_space

        return disk_space.cycle_bytes(of_home(home, implicit=False))
    except (InputError, ImportError, OSError, ValueError):  # no settings, or a model's name that is none
        return 0, 0


def _settings(home: Path) -> dict[str, Any]:
    path = home / CONFIG_NAME
    if not path.exists():
        return _row("settings", True, f"not there yet: `recover init` writes {CONFIG_NAME}")
    try:
        read(path)
    except InputError as error:
        return _row("settings", False, str(error), "mend the file, or choose another --home")
    return _row("settings", True, f"{path} can be read")


def _database(home: Path, db_url: str | None, named: bool = True) -> dict[str, Any]:
    from db.errors import NotFound, TrackerError
    from db.session import Database
    from pipelines.runs.home_database import lost_database, new_place, refuse_elsewhere
    from pipelines.runs.home_project import DATABASE_NAME

    try:
        if not named:
            refuse_elsewhere(home)
        if lost := lost_database(home, db_url):
            return _row("database", False, f"{lost} is missing", f"bring it back, or {new_place(home)}")
        Database.open(db_url or home / DATABASE_NAME, create=False).close()
    except NotFound:
        return _row("database", True, "not there yet: `recover init` makes it (SQLite)")
    except TrackerError as error:
        return _row("database", False, str(error), f"repair it, {new_place(home)}, or choose another --home")
    except InputError as error:  # of a home that was not named, on another machine; or no URL
        return _row("database", False, str(error))
    return _row("database", True, "opens and is up to date")
