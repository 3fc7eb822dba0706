"""Writing docs/benchmarks.md: a section is replaced, everything else stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.common import Report

MARKS = "<!-- real model: sampling -->\nold table\n<!-- end real model: sampling -->"
TEXT = f"# Benchmarks\n\nIntroduction.\n\n## sampler\n\nold numbers\n\n## a real model\n\n{MARKS}\n\nWords.\n"


def report(name: str) -> Report:
    return Report(name, "How fast?", {"Speeds": [{"": "recover", "tokens/s": 12.5}]})


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "benchmarks.md"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_a_section_is_replaced_and_a_new_one_appended(written: Path) -> None:
    page.write([report("sampler"), report("new")], written)
    found = written.read_text(encoding="utf-8")
    assert "old numbers" not in found and found.startswith(
        "# Benchmarks\n\nIntroduction.\n\n## sampler\n\nHow"
    )
    assert found.index("## sampler") < found.index("## a real model") < found.index("## new")
    assert f"## a real model\n\n{MARKS}\n\nWords.\n" in found
    page.write([report("new")], written)
    assert written.read_text(encoding="utf-8") == found


def test_a_part_is_replaced_between_its_marks(written: Path) -> None:
    page.put_part("real model: sampling", report("sampler"), written)
    found = written.read_text(encoding="utf-8")
    assert "old table" not in found and "old numbers" in found and found.endswith("Words.\n")
    assert "-->\n### sampler\n\nHow fast?\n\n**Speeds**\n\n|  | tokens/s |" in found
    sections = [line for line in found.splitlines() if line.startswith("## ")]
    assert sections == ["## sampler", "## a real model"]


def test_the_page_has_a_place_for_each_part_of_a_real_model(tmp_path: Path) -> None:
    from benchmarks.speed.real_model import PARTS

    path = tmp_path / "page.md"
    path.write_text(page.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    for part in PARTS:
        page.put_part(f"real model: {part}", report(f"measured {part}"), path)
    found = path.read_text(encoding="utf-8")
    assert [f"### measured {part}" in found for part in PARTS] == [True] * len(PARTS)
