"""Local data of tasks of lm-eval: rows in NAME.jsonl (NAME.SPLIT.jsonl), or data files that a YAML names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evals import jsonl
from recovery.errors import InputError

_PACKAGED = ("json", "csv", "parquet", "text")  # datasets' own readers of local files


def override(entry: Any, folder: Any) -> dict[str, Any]:
    """Replace a leaf's data by local files: NAME.jsonl, or the data files named in its YAML."""
    cfg = entry.cfg or {}
    if files := jsonl.by_split(folder, entry.name):
        rows = {split: jsonl.read(path, {}) for split, path in files.items()}
        return {"custom_dataset": lambda **_: Splits(rows, files), "dataset_kwargs": {}}
    kwargs = cfg.get("dataset_kwargs") or {}
    if cfg.get("dataset_path") in _PACKAGED and "data_files" in kwargs:
        beside = _beside(kwargs["data_files"], Path(entry.yaml_path).parent)
        return {"dataset_kwargs": kwargs | {"data_files": beside}}
    return {}


class Splits(dict[str, Any]):
    """Data by split; NAME.jsonl serves for every split that has no file of its own."""

    def __init__(self, rows: dict[str, list[dict[str, Any]]], files: dict[str, Path]) -> None:
        super().__init__({split: jsonl.dataset(found, files[split]) for split, found in rows.items()})

    def __missing__(self, split: str) -> Any:
        if "" not in self:
            raise InputError(f"no local rows for split {split}: add a file NAME.{split}.jsonl")
        return self[""]


def _beside(files: Any, folder: Path) -> Any:
    """Return the data files by their full path; refuse a missing one."""
    if isinstance(files, dict):
        return {split: _beside(entry, folder) for split, entry in files.items()}
    if isinstance(files, list):
        return [_beside(entry, folder) for entry in files]
    path = folder / files
    if "://" not in str(files) and not path.is_file():
        raise InputError(f"{path}: this data file is not there: put it beside the task's YAML")
    return files if "://" in str(files) else str(path)
