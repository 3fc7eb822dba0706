"""Try every family through loading, sampling, training, saving and adapters; write docs/models.md.

python -m tests.support.family_table
"""

from __future__ import annotations

import re
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recovery.errors import RecoverError
from recovery.forward.decoder_choice import decoding_way
from recovery.forward.hidden_states import can_pack, hidden_states, logits_of, unwrap
from recovery.inspection.supported import load_supported
from recovery.models import loading
from recovery.models.adapters import LoraSpec, layer_kind
from recovery.models.chat_model import ChatModel
from recovery.models.loading import ModelSpec
from recovery.models.merging import merge_weights
from recovery.models.saving import save
from tests.support import families
from tests.support.families import FAMILIES, Family

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
TOKENS = torch.tensor([[72, 101, 108, 108, 111, 32, 9, 200, 7]])
HEAD = """# Model architectures

`recover init` tries any causal language model with a chat template. It loads the model, compares its head
with its hidden states, samples a few tokens and scores them again. A model that does not agree is refused.

- **A model that brings its own code** needs `recover init --home DIR --model MODEL --trust-remote-code`, once
  you have read that code.
- **Adapters and quantised weights** are refused as `--model`, but for [GGUF files](scaling.md#one-process)
  and GPT-OSS in MXFP4, which is unpacked to bfloat16.
- **Vision-language models**: the language part is trained. The vision part is kept as it is, with the files
  of its processor.
- **Mixtures of experts**: where all weights are trained, so are the routers, by the loss of the tokens alone.
  No loss keeps the experts' shares even, and `router_aux_loss_coef` has no effect. An adapter on routed
  experts copies their weights whenever it computes, so sampling with it in this process is slow.
- **LongRoPE** (Phi-3 and Phi-4-mini with long contexts) changes all rows of a pass where one is longer than a
  boundary. So longer and shorter sequences never share a pass. A response that grows beyond the boundary is
  read again from its prompt, as `generate` does.

Each row of the table is a tiny random model of the real architecture. It goes through loading, hidden states,
sampling (log-probs recomputed), a training step, saving and reading back. The same follows with an adapter,
which is saved, read back and merged into its base. `python -m tests.support.family_table` writes this page;
the tests compare it.

- *Sampled*: how prompts are decoded. A trial chooses the fastest way whose log-probs are those of the model
  reading each row alone, and in which no row's numbers have a gradient along padding or another row.
  Training keeps rows apart by the same trial. The last two of these ways are slow; `recover init` says so.
  - *in padded rows*: the usual way;
  - *in rows of one length*: by the model's own cache, as transformers' `generate` does;
  - *without a cache*: everything is read again for each token.
- *Packed*: documents share a row of tokens, which is faster; otherwise each has a row of its own.
- *Adapter on*: the layers that `lora` trains by default.

| architecture | model type | works | sampled | packed | adapter on |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """What one family does."""

    family: Family
    works: bool
    sampled: str = ""
    packed: bool = False
    adapter: str = ""
    reason: str = ""

    def line(self) -> str:
        name = f"| {self.family.name} | `{self.family.model_type}` |"
        if not self.works:
            return f"{name} refused: {self.reason} | | | |"
        return f"{name} yes | {self.sampled} | {'yes' if self.packed else 'no'} | {self.adapter} |"


def tried(family: Family, folder: Path) -> Row:
    """Take a family through everything; raise AssertionError where one of the steps gives other numbers."""
    source = families.save(family, folder / "model")
    try:
        chat = load_supported(spec(source))
    except RecoverError as error:
        return Row(family, works=False, reason=_reason(str(error)))
    sampled = decoding_way(unwrap(chat.model)).description
    packed = can_pack(chat.model)
    train(chat)
    again = saved(chat, folder / "trained")
    _equal(_logits(again), _logits(chat), 0.0)
    return Row(family, True, sampled, packed, _adapter(source, folder))


def _adapter(source: Path, folder: Path) -> str:
    """Train, save, read back and merge an adapter; return the layers that it is on."""
    chat = loading.load(spec(source, lora=LoraSpec(rank=2)))
    for _ in range(2):  # B is zero at first, and keeps A's gradients at zero
        train(chat, learning_rate=1.0)
    trained = _logits(chat)
    _equal(_logits(saved(chat, folder / "adapter")), trained, 0.0)
    (folder / "merged").mkdir()
    merge_weights(folder / "adapter", source, folder / "merged", 0.0)
    _equal(_logits(loading.load(spec(folder / "merged"))), trained, 1e-3)
    assert not torch.equal(_logits(loading.load(spec(source))), trained)
    names = (name for name, one in chat.model.named_parameters() if one.requires_grad)
    return ", ".join(f"`{kind}`" for kind in sorted({layer_kind(name) for name in names}))


def train(chat: ChatModel, learning_rate: float = 0.01) -> None:
    """One step of gradient descent through hidden states and head; every trained weight gets a gradient."""
    trained = {name: one for name, one in chat.model.named_parameters() if one.requires_grad}
    chat.model.train()
    tokens_BT = TOKENS.to(chat.device)
    logits_BTV = logits_of(chat.model, hidden_states(chat.model, tokens_BT))
    logits_BTV.log_softmax(-1)[0, :-1].gather(-1, tokens_BT[0, 1:, None]).mean().neg().backward()
    assert trained and not [name for name, one in trained.items() if one.grad is None]
    torch.optim.SGD(trained.values(), lr=learning_rate).step()
    chat.model.zero_grad()
    chat.model.eval()


def saved(chat: ChatModel, directory: Path) -> ChatModel:
    """Save, and read back."""
    save(chat, directory)
    return loading.load(spec(directory))


def spec(directory: Path, lora: LoraSpec | None = None) -> ModelSpec:
    """Name a model to load in fp32, on a GPU where there is one."""
    return ModelSpec(str(directory), dtype="float32", lora=lora)


def _logits(chat: ChatModel) -> torch.Tensor:
    model: Any = chat.model
    with torch.inference_mode():
        return model(TOKENS.to(chat.device), use_cache=False).logits.clone()


def _equal(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def _reason(message: str) -> str:
    """Without the folder's name, and without numbers that differ from machine to machine."""
    said = message.partition("not supported: ")[2] or message.partition(": ")[2]
    return re.split(r" \(|: log-probs|: mat1", said)[0].replace("|", "/")


def page() -> str:
    """The whole page."""
    lines = []
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lines.append(tried(family, Path(folder)).line())
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
