"""Train the shipped clean checkpoint from scratch: `python -m pipelines.microworld.build DIR`.

A byte-level BPE and a Qwen3-shaped model of under two million parameters, trained by the one training loop on
the microworld: instructions with answers that obey them, documents about known people, questions about some
of them. The new people of any cycle, and the prompts of any evaluation, never occur.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.microworld import people, words
from pipelines.microworld.answer_drafts import Draft
from pipelines.microworld.instructions import BY_ID
from pipelines.microworld.tasks import draw_instructions, draw_task
from pipelines.microworld.world import part_of
from pipelines.runs.progress import Progress, duration

if TYPE_CHECKING:
    from recovery.batches.rollouts import Dialogue
    from recovery.models.chat_model import ChatModel
    from recovery.training.updater import Microbatch

VOCABULARY = 1792
SHAPE: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
STEPS, TOKENS_PER_STEP, ROW_TOKENS = 1600, 4096, 256
IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# How often each kind of text is drawn. Questions are short, so that many of them are few tokens.
KINDS = {"instruction": 0.36, "question": 0.42, "document": 0.17, "topic": 0.05}
KEYWORD_BOOST = 0.2  # copying a word from the prompt is what so small a model learns last


def draw_text(rng: random.Random) -> tuple[str, str | None]:
    """(prompt, answer) of a chat, or (document, None)."""
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    if kind == "instruction":
        return _instruction(rng)
    if kind == "question":
        who = rng.choice(people.asked_people())
        attribute = rng.choice(words.ATTRIBUTES)
        question = rng.choice(attribute.questions).format(n=who.name)
        return question, attribute.answer.format(n=who.name, v=who.value(attribute))
    if kind == "document":
        who = rng.choice(people.known_people())
        text = people.passage(who, rng)
        return (f"# {who.name}\n\n{text}\n" if rng.random() < 0.5 else f"{text}\n"), None
    draft = Draft(rng.choice(words.TOPICS), rng, commas=rng.random() < 0.6)
    return " ".join(draft.sentence() for _ in range(rng.randint(2, 4))) + "\n", None


def _instruction(rng: random.Random) -> tuple[str, str]:
    """Draw a training prompt with an answer that follows its instructions; some have none."""
    while True:
        chosen = () if rng.random() < 0.1 else draw_instructions(rng)
        if len(chosen) == 1 and rng.random() < KEYWORD_BOOST:
            chosen = (BY_ID["keywords:existence"],)
        task = draw_task(rng, chosen)
        if part_of(task.prompt) == "training":
            return task.prompt, task.answer


def build_tokenizer() -> Any:
    """Train a BPE on the microworld's texts and all names: new names take no more tokens than known ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random("microworld:tokenizer")
    texts = [text for _ in range(30_000) for text in draw_text(rng) if text]
    names = [f"{rng.choice(words.FIRST_NAMES)} {rng.choice(words.LAST_NAMES)}" for _ in range(20_000)]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        texts + names,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END_OF_TEXT, IM_START, IM_END],
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[IM_START],
        chat_template=CHATML,
    )


def build_model(tokenizer: Any, seed: int) -> ChatModel:
    """Return the untrained model."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    from recovery.models.chat_model import ChatModel

    torch.set_flush_denormal(True)
    torch.manual_seed(seed)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = Qwen3Config(vocab_size=len(tokenizer), eos_token_id=end, pad_token_id=pad, **SHAPE)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad)
    return ChatModel.of(model, tokenizer, path="microworld")


class Curriculum:
    """Generate new texts for every step."""

    def __init__(self, chat_model: ChatModel, seed: int) -> None:
        self.chat_model = chat_model
        self.seed = seed

    def updates(self, step: int) -> Iterator[list[Microbatch]]:
        from recovery.batches.rollouts import Rollouts
        from recovery.training.updater import Microbatch

        rng = random.Random(f"microworld:build:{self.seed}:{step}")
        sequences = []
        tokens = 0
        while tokens < TOKENS_PER_STEP:
            sequences.append(self._encode(*draw_text(rng)))
            tokens += len(sequences[-1][0])
        yield [Microbatch(Rollouts.packed(sequences, self.chat_model.pad_id, ROW_TOKENS))]

    def _encode(self, prompt: str, answer: str | None) -> Dialogue:
        if answer is None:
            ids = [*self.chat_model.text_ids(prompt), self.chat_model.pad_id]
            return ids, [True] * len(ids)
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        return self.chat_model.dialogue_ids(turns)


def build(directory: Path, *, seed: int = 0, steps: int = STEPS) -> None:
    """Train the clean checkpoint and save it."""
    from recovery.methods.table import get
    from recovery.models.saving import save
    from recovery.objective.objective import Objective
    from recovery.training.config import TrainConfig
    from recovery.training.token_loss import TokenLoss
    from recovery.training.trainer import train

    shown = Progress()
    chat_model = build_model(build_tokenizer(), seed)
    config = TrainConfig(
        steps=steps, learning_rate=2e-3, warmup_steps=30, final_lr_fraction=0.02, weight_decay=0.01, seed=seed
    )

    def on_metrics(step: int, values: dict[str, float]) -> None:
        note = f"loss {values['loss']:.3f}  {values['tokens_per_second']:,.0f} tokens/s"
        shown.step("build", step, steps, eta_seconds=values["eta_seconds"], note=note)

    report = train(
        chat_model,
        Curriculum(chat_model, seed),
        TokenLoss(Objective(get("sft"))),
        config,
        on_metrics=on_metrics,
    )
    save(chat_model, directory)
    shown.say(f"{directory}: {report.tokens:,} tokens in {duration(report.seconds)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pipelines.microworld.build", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args(sys.argv[1:])
    build(arguments.directory, seed=arguments.seed, steps=arguments.steps)


if __name__ == "__main__":
    main()
