"""Load checkpoints and adapters of which a file was changed, in processes that a crash would end."""

from __future__ import annotations

import json
import resource
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

from recovery.errors import RecoverError
from tests.attacks.attack import NotHeld, Size, require_some
from tests.attacks.fuzz_documents import kept
from tests.attacks.mutation import mutated, mutated_value
from tests.support import tiny
from tests.support.lives import Lives, acknowledge

PRELOAD = (
    "tests.attacks.fuzz_checkpoints",
    "recovery.models.loading",
    "recovery.sampling.in_process",
    "peft",
)
BATCH = 40  # inputs of one process
QUICK = 1  # batches
LONGEST = 300.0  # seconds of one input on a busy machine, before its process is killed
MEMORY = 8 * 2**30  # bytes of addresses
PROMPT = [{"role": "user", "content": "Say a word."}]


def fuzz_checkpoints(size: Size) -> str:
    """Return how many changed checkpoints were loaded and used, or refused."""
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        whole = make_whole(Path(folder))
        for number in size.rounds(QUICK):
            ends += load_batch(Path(folder), whole, size, number * BATCH)
    require_some(ends, "loaded")
    return (
        f"{ends.total():,} checkpoints and adapters ({ends['loaded']:,} loaded, {ends['refused']:,} refused)"
    )


def make_whole(folder: Path) -> list[Path]:
    """Make a model, one in shards, and an adapter on it."""
    from recovery.models.adapters import LoraSpec
    from recovery.models.loading import ModelSpec, load
    from recovery.models.saving import save

    model = tiny.save(folder / "model")
    sharded = folder / "sharded"
    tiny.model().save_pretrained(sharded, max_shard_size="20KB")
    tiny.tokenizer().save_pretrained(sharded)
    save(load(ModelSpec(str(model), lora=LoraSpec(rank=2))), folder / "adapter")
    return [model, sharded, folder / "adapter"]


def load_batch(folder: Path, whole: list[Path], size: Size, first: int) -> Counter[str]:
    lives = Lives(folder / f"log {first}", PRELOAD)
    lives.until_stuck(load_some, str(folder), list(map(str, whole)), size, first, silence=LONGEST)
    lines = lives.acknowledged()
    problem = next((line for line in lines if line.startswith("NOT")), None)
    if problem:
        raise NotHeld(problem)
    if len(lines) < BATCH:
        place = folder / "changed"
        shown = shutil.copytree(place, tempfile.mkdtemp(prefix="recover-attack-"), dirs_exist_ok=True)
        raise NotHeld(f"{shown} ended or stopped its process: {lives.errors.read_text()[-300:]}")
    return Counter(line.split()[0] for line in lines)


def load_some(folder: str, whole: list[str], size: Size, first: int) -> None:
    """Load a batch of changed checkpoints, and acknowledge the end of each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    place = Path(folder, "changed")
    for number in range(first, first + BATCH):
        chance = size.random("checkpoint", number)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(chance.choice(whole), place)
        changed = change(place, chance)
        acknowledge(ended(place, changed))


def change(place: Path, chance: Random) -> Path:
    """Change one file: JSON by its values, and anything by its bytes; of weights mostly the header."""
    path = chance.choice(sorted(path for path in place.iterdir() if path.is_file()))
    data = path.read_bytes()
    if path.suffix == ".json" and chance.random() < 0.7:
        path.write_text(json.dumps(mutated_value(chance, json.loads(data))))
    elif path.suffix == ".safetensors" and chance.random() < 0.8:
        length = 8 + int.from_bytes(data[:8], "little")
        path.write_bytes(header(chance, data[8:length]) + data[length:])
    else:
        path.write_bytes(mutated(chance, data))
    return path


def header(chance: Random, data: bytes) -> bytes:
    if chance.random() < 0.5:
        data = mutated(chance, data)
    else:
        data = json.dumps(mutated_value(chance, json.loads(data))).encode()
    return len(data).to_bytes(8, "little") + data


def ended(place: Path, changed: Path) -> str:
    """Load, count, sample and save as a stage does; the only error is one line of ours."""
    from recovery.models.loading import ModelSpec, load
    from recovery.models.saving import save
    from recovery.sampling.in_process import InProcessSampler
    from recovery.sampling.protocol import SamplingParams

    try:
        chat = load(ModelSpec(str(place), device="cpu"))
        InProcessSampler(chat).sample([chat.prompt_ids(PROMPT)], SamplingParams(4))
        with tempfile.TemporaryDirectory() as again:
            save(chat, again)
    except RecoverError as error:
        if "\n" in str(error):
            return f"NOT {kept(changed)}: more than a line: {str(error)[:300]!r}"
        return "refused"
    except MemoryError:
        return f"NOT {kept(changed)}: took all memory"
    except Exception as error:  # noqa: BLE001 - whatever else comes out is what is looked for
        said = " ".join(str(error).split())[:200]
        return f"NOT {kept(changed)}: {type(error).__name__}: {said}"
    return "loaded"
