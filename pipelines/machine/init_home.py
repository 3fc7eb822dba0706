"""Set up a home: its settings, and the clean checkpoint that all measurements refer to."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from db.reads import queries
from pipelines.config import settings as config
from pipelines.machine.gpus import on_gpu
from pipelines.machine.moved_model import in_its_new_place, origin
from pipelines.machine.pinned_settings import pin_date, pin_dtype, settings_file, write_settings
from pipelines.microworld.shipped_model import MICROWORLD, place_of
from pipelines.runs.progress import counting
from pipelines.runs.unmade_home import MODELS
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.memory import gib, main_memory
from recovery.named_paths import expanded

if TYPE_CHECKING:
    from pipelines.config.sections.model import ModelConfig
    from recovery.models.chat_encoding import ChatEncoder
    from recovery.models.gguf import ConvertedModel
    from recovery.storage.checkpoints import Checkpoint

FEW_WEIGHTS = 5e8  # fewer than in any model that the preset `real` was made for


def initialise(
    ws: Workspace,
    *,
    model: str | None = None,
    revision: str | None = None,
    preset: str | None = None,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Write recover.yaml, unless it exists, and register the clean checkpoint as `base` and `current`."""
    path = settings_file(ws)
    if trust_remote_code:
        _require_trusting(ws)
    if not path.exists():
        _require_model(model, preset)
        if revision:
            _require_hub_id(model or MICROWORLD, revision)
    converted = _converted(ws, model)
    if converted:
        model = str(converted.directory)
    elif model is not None and model != MICROWORLD:
        model = as_seen_from_here(model)
    if path.exists():
        _keep_settings(ws, model, revision, preset)
        ws.settle_project()
        checkpoint = _clean(ws)
    else:
        checkpoint = _new_home(ws, model or MICROWORLD, revision, preset, trust_remote_code)
    if converted:
        ws.progress.say(
            f"{converted.source.name}: {converted.precision} weights, dequantised into {converted.directory}"
        )
        if converted.remark:
            ws.progress.say(converted.remark)
    return {
        "home": str(ws.home),
        "config": str(path),
        "base": checkpoint.id,
        "model": ws.config.model.path,
        "weights_sha256": checkpoint.sha256,
    }


def _require_trusting(ws: Workspace) -> None:
    """Refuse to trust a model's code where the home is not named, or has settings that do not."""
    if ws.implicit:
        raise InputError(
            f"--trust-remote-code: code of a model runs only for a home that is named: add --home {ws.home}"
        )
    path = settings_file(ws)
    if path.exists() and not ws.config.model.trust_remote_code:
        raise InputError(f"--trust-remote-code: {path} exists: set model.trust_remote_code: true in it")


def _new_home(
    ws: Workspace, model: str, revision: str | None, preset: str | None, trusting: bool
) -> Checkpoint:
    """Write the settings and register the clean checkpoint."""
    path = settings_file(ws)
    chosen = preset or _preset(model)
    ws.settle_project()
    known = _is_registered(ws)
    _write_settings(path, model, revision, chosen, trusting)
    try:
        checkpoint = _clean(ws)
        if known:  # the settings that it was registered by are gone, and what they had pinned
            pin_dtype(ws, checkpoint.path)
            pin_date(ws, ws.encoder(checkpoint))
    except BaseException:
        path.unlink()  # settings of an unusable model would block the next attempt
        raise
    _say_sizes(ws, checkpoint, preset, chosen)
    return checkpoint


def _say_sizes(ws: Workspace, checkpoint: Checkpoint, preset: str | None, chosen: str) -> None:
    """Say which other preset may fit better than the one that was chosen."""
    if preset is None and chosen == "cpu":
        larger = "" if _is_small(checkpoint.path) else "; on a GPU, use `--preset real`"
        ws.progress.say(f"no GPU here: sizes for a CPU (preset cpu){larger}")
    if preset is None and chosen == "real" and _is_small(checkpoint.path):
        ws.progress.say(
            "preset real is made for models of billions of weights (recovery: 100 steps of 256 answers); "
            "one of 135 million was measured with the smaller sizes of `--preset cpu` (docs/real.md)"
        )


def as_seen_from_here(model: str) -> str:
    """Return a hub id as it is, and a path absolute: recover.yaml reads relative ones from its own folder."""
    from recovery.models.hub import names_a_place

    if not model.strip():
        raise InputError("--model: give a model's directory, a GGUF file or a hub id")
    return str(expanded(model).absolute()) if names_a_place(model) else model


def _require_model(model: str | None, preset: str | None) -> None:
    """Refuse a preset for models of one's own where none is named: the tiny model would get its sizes."""
    example = _model_of(config.preset_text(preset)) if preset else MICROWORLD
    if model is None and example != MICROWORLD:
        raise InputError(f"--preset {preset}: name the model that it is for, as in --model {example}")


def _model_of(settings: str) -> str:
    return str(yaml.safe_load(settings)["model"]["path"])


def _require_hub_id(model: str, revision: str) -> None:
    """Refuse a revision of a model that is not on the hub: it would name nothing."""
    from recovery.models.hub import names_a_place

    if model == MICROWORLD or names_a_place(model):
        raise InputError(
            f"--revision {revision}: only models of the hub have revisions, {model} has none: leave it out"
        )


def _keep_settings(ws: Workspace, model: str | None, revision: str | None, preset: str | None) -> None:
    """Refuse another model for settings that exist; say that a preset changes none of them."""
    _require_same(ws, model, revision)
    path, named = settings_file(ws), ws.config.model
    if preset:
        words = ["recover", "--home", str(ws.home), "init", "--model", named.path, "--preset", preset]
        words += ["--revision", named.revision] if named.revision else []
        words += ["--trust-remote-code"] if named.trust_remote_code else []
        anew = f"{shlex.join(['mv', str(path), f'{path}.old'])} && {shlex.join(words)}"
        ws.progress.say(f"{path} exists and is kept, without preset {preset}; to write it anew: {anew}")


def _require_same(ws: Workspace, model: str | None, revision: str | None) -> None:
    """Refuse another model than that of the settings."""
    path, named = settings_file(ws), ws.config.model
    otherwise = "" if _is_registered(ws) else ", or edit it"
    for what, asked, has in (("model", model, named.path), ("revision", revision, named.revision)):
        if asked and asked != has:
            raise InputError(
                f"{path} already names the {what} {has!r}, not {asked!r}: use another --home{otherwise}"
            )


def _converted(ws: Workspace, model: str | None) -> ConvertedModel | None:
    """Convert a GGUF file to a safetensors checkpoint in the home."""
    if model is None or model == MICROWORLD:
        return None
    from recovery.models import gguf

    source = gguf.find(model)
    if source is None:
        return None
    root = ws.home.absolute() / MODELS
    if settings_file(ws).exists():  # of another model: refused before a minute of reading
        _require_same(ws, str(gguf.converted_folder(source, root)), None)
    ws.progress.say(f"reading {source.name}, {source.stat().st_size / 1e6:,.0f} MB: a minute or more")
    return gguf.convert(source, root, lambda name: counting(partial(ws.progress.step, name), "tensors"))


def _clean(ws: Workspace) -> Checkpoint:
    """Return the registered clean checkpoint; register it first in a new home."""
    if not _is_registered(ws):
        return _register(ws)
    base = queries.resolve(ws.tracker.db, "base")
    checkpoint = in_its_new_place(ws, base) or ws.clean()
    model = ws.config.model.path
    if checkpoint.config.get("model") != model:
        raise InputError(
            f"{ws.home}: `base` is {checkpoint.config.get('model')!r}, not {model!r}: use another --home"
        )
    return checkpoint


def _is_registered(ws: Workspace) -> bool:
    return any(row["name"] == "base" for row in queries.aliases(ws.tracker.db))


def _write_settings(
    path: Path, model: str, revision: str | None, preset: str, trusting: bool = False
) -> None:
    """Write the preset, with its comments, for this model."""
    text = config.preset_text(preset)
    default = _model_of(text)
    lines = [f"  path: {_quoted(model)}", *([f"  revision: {_quoted(revision)}"] if revision else [])]
    lines += ["  trust_remote_code: true"] if trusting else []
    text = text.replace(f"  path: {default}", "\n".join(lines), 1)
    config.parse(text, str(path))
    write_settings(path, text)


def _quoted(text: str) -> str:
    """Return a text as YAML writes it within quotation marks, on one line."""
    written: str = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=sys.maxsize)
    return written.strip()


def _preset(model: str) -> str:
    """Choose by the model, and by whether this machine has a GPU."""
    if model == MICROWORLD:
        return MICROWORLD
    return "real" if on_gpu() else "cpu"


def _register(ws: Workspace) -> Checkpoint:
    """Load the model once, to refuse an unusable one, then register it by the hash of its weights."""
    from pipelines.machine.thinking_switch import thinking_left_on
    from recovery.inspection.supported import load_supported, restrictions
    from recovery.models.hub import locate

    settings = ws.config.model
    location = place_of(settings.path)
    _require_memory(location, settings)
    found, commit = locate(location, settings.revision)
    pin_dtype(ws, found)
    settings = ws.config.model
    chat_model = load_supported(ws.spec(found))
    if said := restrictions(chat_model):
        ws.progress.say(said)
    if said := thinking_left_on(chat_model.encoder):
        ws.progress.say(said)
    pin_date(ws, chat_model.encoder)
    checkpoint = ws.store.reference(found, config=origin(settings, commit), anew=True)
    ws.record(checkpoint, None)
    ws.tracker.set_alias("current", checkpoint.id)
    ws.tracker.set_alias("base", checkpoint.id)  # last: a home that has `base` is set up
    return checkpoint


def _require_memory(model: str, settings: ModelConfig) -> None:
    """Refuse weights that this machine's memory cannot hold: the system would end the process unexplained."""
    from pipelines.machine.model_sizes import read_size
    from pipelines.machine.product_speed import is_faster_in_bfloat16

    if on_gpu():
        return
    halved = settings.dtype == "auto" and is_faster_in_bfloat16()
    number_bytes = 2 if halved else settings.number_bytes(gpu=False)
    try:
        needed = read_size(model).weight_bytes(settings.quantize is not None, number_bytes)
    except InputError:  # an unknown architecture, or a hub that is away
        return
    if needed > main_memory():
        fewer_bits = "" if settings.quantize else ", begin with a recover.yaml that sets model.quantize: nf4"
        raise InputError(
            f"{settings.path}: its weights take {gib(needed)}, and the memory here is "
            f"{gib(main_memory())}: take a smaller model{fewer_bits}, or a machine with a GPU"
        )


def _is_small(model: Path) -> bool:
    from pipelines.machine.model_sizes import read_size

    try:
        return read_size(str(model)).parameters < FEW_WEIGHTS
    except InputError:  # an unknown architecture
        return False


def tokenizer_of(model: ModelConfig) -> ChatEncoder:
    """Load a model's tokenizer without its weights."""
    from recovery.models.loading import ModelSpec, load_encoder

    spec = ModelSpec(
        path=place_of(model.path),
        revision=model.revision,
        trust_remote_code=model.trust_remote_code,
        template_args=model.template_args,
    )
    return load_encoder(spec)
