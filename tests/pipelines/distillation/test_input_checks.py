"""Inputs of a distillation that are refused before the first evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.distillation.input_checks import require_askable
from pipelines.machine.init_home import initialise
from pipelines.prompts.prompt_sources import read_prompts
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.support import tiny
from tests.support.small_cycles import lines

CALLS = "{% for m in messages %}{% for c in m.tool_calls or [] %}"
NINE_LETTERS = CALLS + "{{ raise_exception('ids have nine letters') if c.id | length != 9 }}"
TEMPLATE = NINE_LETTERS + "{% endfor %}{% endfor %}" + tiny.TEMPLATE


def test_a_row_that_the_template_rejects_is_named_by_its_line(tmp_path: Path) -> None:
    """As Mistral's templates reject an id of another length: a cycle ended hours later, at that row."""
    model = tiny.save(tmp_path / "model")
    tiny.tokenizer(chat_template=TEMPLATE).save_pretrained(model)

    def calling(call: str) -> dict[str, Any]:
        calls = [{"id": call, "type": "function", "function": {"name": "add", "arguments": "{}"}}]
        asked = {"role": "user", "content": f"One and two? {call}"}
        result = {"role": "tool", "content": "3", "tool_call_id": call}
        return {"messages": [asked, {"role": "assistant", "content": "", "tool_calls": calls}, result]}

    rows = [{"prompt": "Say one word."}, *map(calling, ("abcdefghi", "bcdefghij", "call_1", "call_2"))]
    path = lines(tmp_path / "prompts.jsonl", rows)
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(model), preset="microworld")
        prompts = read_prompts(str(path))
        require_askable(ws, "base", prompts[:3])
        said = r"prompts: 'One and two\? call_1.*' \(.*prompts\.jsonl:4\): .* nine letters: change or drop"
        with pytest.raises(InputError, match=said) as refused:
            require_askable(ws, "base", prompts)
        assert "\n" not in str(refused.value)
