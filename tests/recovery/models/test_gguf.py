"""A GGUF file as the clean checkpoint: equal to transformers' reading, with its tokenizer and stop tokens."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from pipelines.machine.init_home import initialise
from pipelines.runs.progress import Progress
from pipelines.runs.workspace import Workspace
from recovery.errors import DamagedCheckpoint, InputError
from recovery.models import gguf, loading
from tests.support import tiny, tiny_gguf

pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.Q4_1.gguf")


def test_every_tensor_is_as_transformers_reads_it(source: Path, tmp_path: Path) -> None:
    made = gguf.convert(source, tmp_path)
    written = load_file(made.directory / "model.safetensors")
    expected = dequantised(source)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in written)
    assert "quantization_config" not in json.loads((made.directory / "config.json").read_text())
    assert made.precision == "4-bit Q4_1" and made.remark == ""


def test_the_checkpoint_answers_with_its_own_template_and_stops(source: Path, tmp_path: Path) -> None:
    chat = loading.load(loading.ModelSpec(str(gguf.convert(source, tmp_path).directory)))
    start, end, text_end = 257, 258, 259
    assert chat.prompt_ids([{"role": "user", "content": "a"}])[:6] == [start, *b"user\n"]
    assert chat.stop_ids == (end,) and chat.document_end == text_end and chat.opening_ids == []
    assert chat.text_ids("a\n\n1") == [ord("a"), 256, ord("1")]  # digits are split off before line ends


@pytest.mark.parametrize(
    ("pre", "bos", "opening"),
    [("smollm", True, [257]), ("smollm", None, []), ("llama-bpe", None, [257]), ("llama-bpe", False, [])],
)
def test_texts_begin_with_bos_as_the_file_says(
    pre: str, bos: bool | None, opening: list[int], tmp_path: Path
) -> None:
    made = gguf.convert(tiny_gguf.write(tmp_path / "tiny.Q4_1.gguf", pre=pre, bos=bos), tmp_path / "out")
    chat = loading.load(loading.ModelSpec(str(made.directory)))
    assert chat.opening_ids == opening and chat.document_start("a") == [*opening, ord("a")]
    assert chat.prompt_ids([{"role": "user", "content": "a"}])[:6] == [257, *b"user\n"]  # the template's own


def test_sentencepiece_puts_bos_first_where_the_file_is_silent(source: Path) -> None:
    silent = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.bos_token_id": 1}
    assert gguf._bos_before_texts(silent) == 1
    assert gguf._bos_before_texts(silent | {"tokenizer.ggml.add_bos_token": False}) is None
    other = replace(gguf._Metadata.of(source), bos=5)
    with pytest.raises(InputError, match="does not read the BOS token of this file"):
        gguf._tokenizer(source, other)


@pytest.mark.parametrize(
    ("pre", "known"), [("gpt-2", True), ("default", True), ("llama-bpe", True), (None, False)]
)
def test_a_pre_tokenizer_that_is_read_gets_no_remark(pre: str | None, known: bool, tmp_path: Path) -> None:
    made = gguf.convert(tiny_gguf.write(tmp_path / "tiny.Q4_1.gguf", pre=pre), tmp_path / "out")
    assert (made.remark == "") is known


def test_init_says_where_a_pre_tokenizer_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tiny_gguf.write(tmp_path / "odd.Q4_1.gguf", pre="deepseek-llm")
    with Workspace.open(tmp_path / "home", progress=Progress()) as ws:
        initialise(ws, model=str(source), preset="microworld")
    said = capsys.readouterr().err
    assert "odd.Q4_1.gguf: its pre-tokenizer ('deepseek-llm') is unknown, GPT-2's takes its place" in said


def test_init_registers_a_gguf_file_or_its_folder_and_says_its_precision(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Workspace.open(tmp_path / "home", progress=Progress()) as ws:
        found = initialise(ws, model=str(source), preset="microworld")
        said = capsys.readouterr().err
        assert "tiny.Q4_1.gguf: 4-bit Q4_1 weights, dequantised into" in said
        for label in ("read", "compare"):
            assert re.search(rf"^  {label} +20/20  tensors$", said, re.M)
        assert "de-quantizing" not in said
        assert ws.clean().path.parent == ws.home / "models"
        assert initialise(ws, model=str(source.parent))["base"] == found["base"]
        assert ws.load(ws.clean()).stop_ids == (258,)


def test_another_file_than_the_home_s_is_refused_before_it_is_converted(source: Path, tmp_path: Path) -> None:
    other = tiny_gguf.write(tmp_path / "other.Q4_1.gguf")
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(source), preset="microworld")
        with pytest.raises(InputError, match="already names the model"):
            initialise(ws, model=str(other))
        assert [path.name for path in (ws.home / "models").glob("*Q4_1*")] == [ws.clean().path.name]


def test_a_file_that_memory_or_disk_cannot_hold_is_refused_before_it_is_read(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 4 bits it is an eighth of what it becomes: the system ended the process without a word."""

    def read(*_: object) -> None:
        raise AssertionError("weights were read")

    needed = 4 * sum(tensor.numel() for tensor in dequantised(source).values())
    monkeypatch.setattr(gguf, "_model", read)
    for memory, free, said in (
        (needed - 1, needed, "and the memory here is 0.0 GiB: take a smaller model"),
        (needed, needed - 1, f"0.0 GiB are free in {tmp_path}: free some, or take a --home on another disk"),
    ):
        monkeypatch.setattr(gguf, "main_memory", lambda memory=memory: memory)
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        with pytest.raises(InputError) as refused:
            gguf.convert(source, tmp_path / "home" / "models")
        assert said in str(refused.value) and "\n" not in str(refused.value)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=needed))
    with pytest.raises(AssertionError, match="weights were read"):
        gguf.convert(source, tmp_path / "home" / "models")


def dequantised(source: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, as transformers reads them."""
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    return {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}


def test_what_is_no_gguf_file_is_left_to_others(tmp_path: Path) -> None:
    assert gguf.find("owner/name") is None
    assert gguf.find(str(tiny.save(tmp_path / "model"))) is None
    (tmp_path / "model" / "beside.gguf").touch()
    assert gguf.find(str(tmp_path / "model")) is None


def test_files_that_cannot_be_converted_are_one_line(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF, not really")
    with pytest.raises(InputError, match=r"a\.gguf: this GGUF file can't be used"):
        gguf.convert(tmp_path / "a.gguf", tmp_path / "out")
    (tmp_path / "b.gguf").touch()
    with pytest.raises(InputError, match="holds 2 GGUF files"):
        gguf.find(str(tmp_path))
    (tmp_path / "big-00001-of-00003.gguf").touch()
    with pytest.raises(InputError, match="one of 3 parts"):
        gguf.find(str(tmp_path / "big-00001-of-00003.gguf"))
    with pytest.raises(InputError, match="no chat template"):
        gguf.convert(tiny_gguf.write(tmp_path / "base.gguf", template=None), tmp_path / "out")
    lacking = tiny_gguf.write(tmp_path / "lacking.gguf", skip="blk.1.ffn_up.weight")
    with pytest.raises(InputError, match=r"no weights for model\.layers\.1\.mlp\.up_proj\.weight"):
        gguf.convert(lacking, tmp_path / "out")
    bias = np.zeros(tiny_gguf.HIDDEN, np.float32)
    more = tiny_gguf.write(
        tmp_path / "more.gguf", more=lambda writer: writer.add_tensor("blk.0.attn_q.bias", bias)
    )
    with pytest.raises(InputError, match=r"does not read blk\.0\.attn_q\.bias of this file"):
        gguf.convert(more, tmp_path / "out")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(
        InputError, match=r"pip install --constraint requirements\.lock --editable '\.\[gguf\]'"
    ):
        gguf.convert(source, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*/config.json"))


def test_a_tensor_that_was_not_written_as_read_is_noticed(tmp_path: Path) -> None:
    model = tiny.model()
    model.save_pretrained(tmp_path)
    gguf._compare(Path("a.gguf"), model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    save_file(tensors | {name: tensors[name] + 1e-6}, tmp_path / "model.safetensors")
    with pytest.raises(DamagedCheckpoint, match="was not written as it was read"):
        gguf._compare(Path("a.gguf"), model, tmp_path)
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(DamagedCheckpoint, match=r"up_proj\.weight was not written: report it"):
        gguf._compare(Path("a.gguf"), model, tmp_path)
