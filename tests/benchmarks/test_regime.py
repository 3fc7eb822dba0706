"""The regime's rows, and the picture of the preset's mix."""

from __future__ import annotations

from pathlib import Path

from benchmarks.ledger import Ledger, Line
from benchmarks.outcomes import real


def scores(knowledge: float, retention: float) -> Line:
    def score(value: float) -> Line:
        return {"score": value, "interval": [max(0.0, value - 0.1), min(1.0, value + 0.1)]}

    return {"knowledge": score(knowledge), "retention": score(retention)}


def test_a_row_of_the_mix_takes_the_presets_parts() -> None:
    assert "midtrain.mix" not in real.Row(real.MIX, 4, 1e-4).changes()
    assert real.Row(real.RAW, 4, 1e-4).changes()["midtrain.mix"] == {"new": 1.0}


def test_the_mix_is_drawn_once_a_row_of_it_is_there(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "regime.jsonl", ("row",))
    ledger.add({"row": "clean", **scores(0.0, 0.6)})
    ledger.add({"row": "raw-2-5e-5", **scores(0.0, 0.6)})
    picture = tmp_path / "regime.png"
    real._draw(ledger, picture)
    assert not picture.exists()
    for name in ("mix-2-1e-4", "mix-4-1e-4", "mix-4-2e-4"):
        ledger.add({"row": name, **scores(0.3, 0.5)})
    real._draw(ledger, picture)
    assert picture.stat().st_size > 1000


def test_the_pages_picture_is_drawn_by_the_folders_run_alone(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "regime.jsonl", ("row",))
    for name in ("clean", "mix-2-1e-4"):
        ledger.add({"row": name, **scores(0.3, 0.5)})
    page, picture = tmp_path / "page.md", tmp_path / "regime.png"
    names = ("regime", "regime of a folder")
    page.write_text("".join(f"<!-- {name} -->\n<!-- end {name} -->\n" for name in names))
    real._put(ledger, "of the handbook", page, of_folder=False)
    assert not picture.exists()
    real._put(ledger, "of a folder", page, of_folder=True)
    assert picture.exists()
    assert page.read_text().index("of the handbook") < page.read_text().rindex("of a folder\n")
