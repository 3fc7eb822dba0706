"""Confined processes import from this project and its libraries, never from where a command is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.import_places import ROOT, import_places


def test_the_current_folder_is_no_place_to_import_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("", str(tmp_path), str(tmp_path / "below" / "..")):
        monkeypatch.syspath_prepend(place)
    places = import_places()
    assert places[0] == str(ROOT) and (ROOT / "recovery" / "import_places.py").is_file()
    assert len(places) == len(set(places)) > 1
    assert tmp_path not in {Path(place).resolve() for place in places}
