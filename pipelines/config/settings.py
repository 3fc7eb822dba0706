"""recover.yaml: every setting of a run, typed, documented and checked where it is declared. No torch here.

The shipped presets (pipelines/config/presets/*.yaml) are complete files that a user can read and copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from pipelines.corpus.reading.formats import Limits
from recovery.errors import InputError

CONFIG_NAME = "recover.yaml"
OF_ANY_METHOD = ("minibatches", "epochs")  # dials that say how often answers are used
EXCLUSIVE = ({"midtrain.steps", "midtrain.epochs"},)  # settings of which one at most is given


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


AUTO = 0  # of a number: fitted to the corpus, the model and the machine (pipelines/config/fitted.py)


def _auto(value: Any) -> Any:
    return AUTO if value == "auto" else value


Fitted = Annotated[int, BeforeValidator(_auto), Field(ge=0)]


class LoraConfig(Section):
    """Train a low-rank adapter instead of all weights."""

    rank: int = Field(default=128, ge=1, description="of the adapter's matrices")
    alpha: float | None = Field(default=None, gt=0, description="scale of the adapter; default: the rank")
    dropout: float = Field(
        default=0.0, ge=0, lt=1, description="share of the adapter's inputs dropped in training"
    )
    targets: str | list[str] = Field(
        default="all-linear", description="names of the modules that get one; all-linear: all but the head"
    )


class ModelConfig(Section):
    """The clean instruct model: the student's origin and the frozen teacher."""

    path: str = Field(
        default="microworld",
        min_length=1,
        description="hub id, local directory, or `microworld`: the shipped model",
    )
    revision: str | None = Field(
        default=None, description="branch, tag or commit on the hub; init pins its commit"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="auto: bfloat16 on a GPU, else float32; `recover init` writes bfloat16 for a processor "
        "that multiplies it faster",
    )
    trust_remote_code: bool = Field(default=False, description="run code that comes with the model")
    template_args: dict[str, Any] = Field(
        default_factory=dict,
        description="passed to the chat template of student, teacher and evaluation alike",
    )
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2", "flash_attention_3"] = Field(
        default="auto",
        description="auto: PyTorch's own, without padding where that gives the same; or one of transformers'",
    )
    gradient_checkpointing: bool | Literal["auto"] = Field(
        default=False, description="less memory in training for more time; auto: on a GPU"
    )
    quantize: Literal["nf4", "fp4"] | None = Field(
        default=None,
        description="QLoRA: hold linear layers in 4 bits wherever a model is loaded; only adapters can be "
        "trained (needs the extra `qlora`); default: as stored",
    )
    compile: bool = Field(
        default=False, description="torch.compile layers for training: the first steps wait for it"
    )
    shard: bool = Field(
        default=False,
        description="of several processes, each holds its rows of every weight (FSDP2); else each the whole",
    )

    def number_bytes(self, gpu: bool) -> int:
        """Return the bytes of a weight in memory."""
        chosen = self.dtype if self.dtype != "auto" else "bfloat16" if gpu else "float32"
        return 2 if chosen == "bfloat16" else 4

    def checkpoints_gradients(self, gpu: bool) -> bool:
        """Return whether training recomputes activations; with `auto`, on a GPU, where memory is scarce."""
        return gpu if self.gradient_checkpointing == "auto" else self.gradient_checkpointing

    @model_validator(mode="after")
    def _whole_or_sharded(self) -> ModelConfig:
        if self.quantize and self.shard:
            raise ValueError("quantize and shard exclude each other: each process holds the 4-bit model")
        return self


class OptimizerConfig(Section):
    """AdamW and its schedule."""

    learning_rate: float = Field(gt=0, description="at its highest, after the warm-up")
    warmup_steps: int = Field(default=20, ge=0, description="steps of linear rise, at most a tenth of all")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        default="cosine", description="after the warm-up"
    )
    final_lr_fraction: float = Field(default=0.1, ge=0, le=1, description="what the schedule ends at")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's, decoupled")
    clip_norm: float = Field(default=1.0, gt=0, description="longest gradient that is let through unscaled")


class Mix(Section):
    """Shares of the tokens that midtraining sees; they add up to one."""

    new: float = Field(default=1.0, gt=0, le=1, description="the documents given now")
    earlier: float = Field(
        default=0.0, ge=0, lt=1, description="documents of earlier cycles (none yet: goes to `new`)"
    )
    chat: float = Field(
        default=0.0, ge=0, lt=1, description="chat prompts answered by the clean model itself"
    )
    augmented: float = Field(
        default=0.0, ge=0, lt=1, description="the new documents retold (`recover augment`)"
    )
    questions: float = Field(
        default=0.0, ge=0, lt=1, description="gap questions made of the new documents' own sentences"
    )

    @model_validator(mode="after")
    def _adds_up(self) -> Mix:
        total = sum(self.model_dump().values())
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares add up to {total:g}, not to 1")
        return self


class ReadingConfig(Section):
    """Limits on reading a folder of documents; a file beyond one is skipped and listed in the manifest."""

    strict: bool = Field(default=False, description="stop at the first file that is skipped")
    largest_text_mib: int = Field(
        default=4096, ge=1, description="largest text, jsonl or csv file, unpacked; they are streamed"
    )
    largest_file_mib: int = Field(
        default=256, ge=1, description="largest html, pdf, docx or pptx file, and the most text it may give"
    )
    seconds_per_file: int = Field(
        default=60, ge=1, description="processor time for such a file, parsed by a limited process"
    )
    memory_mib: int = Field(default=1024, ge=256, description="memory of that process")
    workers: int = Field(default=0, ge=0, description="such processes; 0: one a core, at most 4")
    near_duplicates: Literal["keep", "skip"] = Field(
        default="keep", description="files nearly equal to an earlier one; reported in either case"
    )

    @property
    def limits(self) -> Limits:
        shared = self.model_dump(exclude={"strict", "near_duplicates"})
        return Limits(**shared, keep_near_duplicates=self.near_duplicates == "keep")


SPLIT_DOCUMENTS = Field(
    default=0.0,
    ge=0,
    le=1,
    description="share of the documents that a pass reads in two parts, split at the end of a sentence, "
    "another one in each pass: what they say is learned without what stands before it",
)


class MidtrainConfig(Section):
    """Teaching documents: as text, or by answers of the clean model that sees them."""

    method: Literal["text", "passage"] = Field(
        default="text",
        description="text: next-token training on the documents; passage: questions about them, which the "
        "clean model answers with the passage in view and the student learns without",
    )
    dials: dict[str, Any] = Field(
        default_factory=dict, description="with passage: dials that differ from this row of `recover methods`"
    )
    steps: int | None = Field(
        default=None, ge=1, description="optimizer steps; or give epochs, or neither: fitted"
    )
    epochs: float | None = Field(
        default=None, gt=0, description="passes over the new documents; or give steps"
    )
    tokens_per_step: Fitted = Field(default=AUTO, description="of one optimizer step; auto: by the corpus")
    row_tokens: Fitted = Field(
        default=AUTO,
        description="of a row, at least 8; documents share one where the model can keep them apart",
    )
    microbatch_tokens: Fitted = Field(
        default=AUTO, description="tokens in one forward pass; more are accumulated; auto: by the memory"
    )
    optimizer: OptimizerConfig = Field(description="how the weights are changed")
    reading: ReadingConfig = Field(default=ReadingConfig(), description="how documents are read")
    mix: Mix = Field(default=Mix(), description="where the tokens come from")
    chat_prompts: int = Field(
        default=512, ge=1, description="how many prompts the clean model answers for the chat share"
    )
    replay_tokens: int | None = Field(
        default=None,
        ge=1,
        description="most tokens of earlier documents to draw from, alike from every cycle; default: all",
    )
    split_documents: float = SPLIT_DOCUMENTS
    forecast_every: int = Field(
        default=10, ge=0, description="steps between looks at the KL to the clean model; 0: never"
    )
    lora: LoraConfig | Literal["auto"] | None = Field(
        default=None, description="train an adapter; auto: where the memory asks for it; default: all weights"
    )
    freeze_embeddings: bool = Field(default=False, description="train neither the embeddings nor the head")
    save_every: int = Field(
        default=50, ge=0, description="steps between resumable states; 0: only at the end"
    )

    @property
    def adapter(self) -> LoraConfig | None:
        """The adapter to train, once the settings are fitted."""
        if isinstance(self.lora, str):
            raise ValueError("lora: auto is not fitted yet")
        return self.lora

    @model_validator(mode="after")
    def _one_length(self) -> MidtrainConfig:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give either steps or epochs")
        if 0 < self.row_tokens < 8:
            raise ValueError("row_tokens: give 8 or more, or auto")
        return self


class StopConfig(Section):
    """Stop a distillation early once behaviour is back: twice in a row, on prompts used for nothing else."""

    every: int = Field(default=10, ge=1, description="steps from look to look")
    prompts: int = Field(default=200, ge=1, description="how many prompts a look asks")
    margin: float = Field(default=0.05, gt=0, lt=1, description="how much worse than clean counts as back")
    probe: str | None = Field(
        default=None,
        description="FILE in IFEval's format, other than the evaluation's; default: recovery prompts that "
        "name their instructions, then held out of training",
    )


class DistillConfig(Section):
    """The student samples, the teacher scores, the objective corrects."""

    method: str = Field(default="opd", description="a row of `recover methods`")
    dials: dict[str, Any] = Field(
        default_factory=dict, description="dials of the method that differ from its row"
    )
    prompts: str = Field(description="FILE, hub:NAME:SPLIT:FIELD, self, or microworld")
    pairs: str | None = Field(
        default=None,
        description="rows of prompt and response, to learn from or to show; default: from the prompts",
    )
    context: str | None = Field(
        default=None,
        description="what the teacher sees and the student does not: a text, or a FILE of text or of "
        "examples (.jsonl); default: each prompt's own field",
    )
    context_examples: int = Field(default=1, ge=1, description="examples that the teacher sees at once")
    reward: str | None = Field(default=None, description="exact, ifeval, module:function or FILE.py:function")
    routes: dict[str, str] = Field(
        default_factory=dict, description="checkpoint of each teacher that the prompts name in `route`"
    )
    sampler: str = Field(
        default="inprocess",
        description="engine that samples: inprocess, vllm (in this process), server (vLLM's, started with "
        "the run), or URLs of vLLM servers",
    )
    teacher_engine: str = Field(
        default="inprocess",
        description="engine that scores; other than inprocess for opd-topk and opd-sampled only",
    )
    offload_teacher: bool = Field(
        default=False,
        description="the teacher's layers rest in the host's memory and come to the GPU while they compute",
    )
    ahead: int = Field(
        default=0,
        ge=0,
        le=1,
        description="1: the next answers are written while these are scored and trained on, one step off; "
        "wants a sampler other than inprocess",
    )
    steps: int = Field(default=100, ge=1, description="batches of samples")
    prompts_per_step: int = Field(default=64, ge=1, description="different prompts in a batch")
    samples_per_prompt: int = Field(default=4, ge=1, description="answers of the student to each")
    max_new_tokens: int = Field(default=2048, ge=1, description="longest answer")
    stop_loops: bool = Field(default=False, description="end an answer that only repeats itself")
    microbatch_tokens: Fitted = Field(
        default=AUTO, description="tokens in one forward pass; more are accumulated; auto: by the memory"
    )
    optimizer: OptimizerConfig = Field(description="how the weights are changed")
    lora: LoraConfig | Literal["auto"] | None = Field(
        default=None, description="train an adapter; auto: where the memory asks for it; default: all weights"
    )
    freeze_embeddings: bool = Field(default=False, description="train neither the embeddings nor the head")
    save_every: int = Field(
        default=20, ge=0, description="steps between resumable states; 0: only at the end"
    )
    preflight: bool = Field(default=True, description="check student and teacher before the first step")
    overlap: Literal["drop", "weight", "keep"] = Field(
        default="drop",
        description="prompts about what the student was taught and the teacher does not know: drop them, "
        "weight them less, or keep them",
    )
    overlap_weight: float = Field(
        default=0.2, gt=0, lt=1, description="of each token of such a prompt's answer, with overlap: weight"
    )
    merge: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of the teacher's weights that is mixed into the student's before the first step",
    )
    merge_of: Literal["all", "embeddings"] = Field(
        default="all", description="which weights that is; embeddings: those and the head alone"
    )
    rehearsal: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the tokens trained on that are the taught documents, read again",
    )
    rehearsal_questions: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of those tokens that are questions made of the documents' own sentences, in chat",
    )
    split_documents: float = SPLIT_DOCUMENTS
    tripwire_every: int = Field(
        default=5, ge=0, description="steps between looks at gaps in the new documents; 0: never"
    )
    tripwire_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="stop when their answers' probability falls below this share of what it was",
    )
    stop: StopConfig | None = Field(
        default=None, description="stop when behaviour is back; default: all steps are taken"
    )

    @property
    def adapter(self) -> LoraConfig | None:
        """The adapter to train, once the settings are fitted."""
        if isinstance(self.lora, str):
            raise ValueError("lora: auto is not fitted yet")
        return self.lora


class EvalConfig(Section):
    """The questions of an evaluation, and the margins of the verdict."""

    ifeval: str = Field(default="google/IFEval", description="FILE in IFEval's format, or the hub data set")
    probes: str | None = Field(default=None, description="FILE of knowledge and retention probes")
    max_new_tokens: int = Field(default=1280, ge=1, description="longest answer to an IFEval prompt")
    probe_max_new_tokens: int = Field(default=64, ge=1, description="longest answer to a probe")
    batch_size: Fitted = Field(default=AUTO, description="prompts answered at once; auto: by the memory")
    tasks: str | None = Field(
        default=None, description="FOLDER with lm-eval task files, or rows of known tasks as NAME.jsonl"
    )
    tasks_in_chat: bool = Field(default=False, description="lm-eval tasks in the chat template, not as text")
    samples: int = Field(default=1, ge=1, description="answers to each prompt; several are sampled")
    limit: int | None = Field(
        default=None, ge=1, description="ask a fixed random sample of so many prompts of each suite"
    )
    earlier_questions: int = Field(
        default=480,
        ge=1,
        description="most questions about what all earlier cycles taught, alike many of each, and at least "
        "one; no suite's own",
    )
    temperature: float = Field(default=1.0, gt=0, description="of several sampled answers; one is greedy")
    sampler: str = Field(default="inprocess", description="engine that answers, as in distill")
    stop_loops: bool = Field(
        default=False,
        description="end an answer that only repeats itself; not for comparison with published scores",
    )
    reuse: bool = Field(
        default=True,
        description="in a cycle, take a suite's recorded scores where checkpoint, questions, settings and "
        "software are the same; false: ask anew",
    )
    open_book: bool = Field(
        default=False, description="also ask the clean model with each probe's passage in front: the ceiling"
    )
    margin: float = Field(
        default=0.03, gt=0, lt=1, description="how much worse still counts as recovered, and as kept"
    )
    retention_margin: float = Field(default=0.10, gt=0, lt=1, description="the same for retention")
    update_lead: float = Field(
        default=0.70, gt=0, lt=1, description="how far new answers to changed facts must lead over old ones"
    )
    behaviours: tuple[str, ...] = Field(
        default=(), description="families of behaviour to judge too, such as [json, refusals]"
    )
    behaviours_items: int = Field(default=500, ge=1, description="questions of each such family")
    behaviours_margin: float = Field(
        default=0.05, gt=0, lt=1, description="how much worse still counts as kept, in each family"
    )

    def margins(self) -> dict[str, float]:
        """Return the margin of every axis of the verdict; a lead is a negative one."""
        from evals.families.table import FAMILIES

        return {
            "behaviour": self.margin,
            "knowledge": self.margin,
            "retention": self.retention_margin,
            "updates": -self.update_lead,
            **dict.fromkeys(FAMILIES, self.behaviours_margin),
        }


class EngineConfig(Section):
    """vLLM, as a sampler or a teacher."""

    timeout_seconds: float = Field(
        default=600.0, gt=0, description="longest wait for a sign of life; then one restart, then a stop"
    )
    start_seconds: float = Field(default=1800.0, gt=0, description="longest wait for an engine to start")
    gpu_memory: float = Field(
        default=0.45, gt=0, le=1, description="share of the GPU's memory, weights included"
    )
    cpu_cache_gib: float = Field(default=1.0, gt=0, description="memory for keys and values without a GPU")
    max_length: int | None = Field(
        default=None, ge=1, description="tokens of prompt and answer; default: the model's own limit"
    )
    eager: bool = Field(default=False, description="compile nothing: starts sooner, writes slower")
    exchange: str | None = Field(
        default=None, description="folder that trainer and servers both see; default: the temporary one"
    )
    tensor_parallel: int = Field(default=1, ge=1, description="GPUs that share one copy of the weights")
    devices: str | None = Field(
        default=None, description="GPUs of a server started here, as CUDA_VISIBLE_DEVICES; default: all"
    )
    arguments: dict[str, str | int | float] = Field(
        default_factory=dict, description="more arguments of vLLM, without their dashes"
    )


class Config(Section):
    """recover.yaml as a whole."""

    model: ModelConfig = Field(description="the clean model")
    midtrain: MidtrainConfig = Field(description="teaching documents")
    distill: DistillConfig = Field(description="bringing behaviour back")
    eval: EvalConfig = Field(description="measuring both")
    engine: EngineConfig = Field(default=EngineConfig(), description="vLLM")
    seed: int = Field(default=0, description="of everything that is drawn, unless --seed says otherwise")


def presets() -> list[str]:
    return sorted(p.name.removesuffix(".yaml") for p in _preset_dir().iterdir() if p.name.endswith(".yaml"))


def _preset_dir() -> Any:
    return resources.files("pipelines.config") / "presets"


def preset_text(name: str) -> str:
    if name not in presets():
        raise InputError(f"no preset {name!r}: choose one of {', '.join(presets())}")
    return str((_preset_dir() / f"{name}.yaml").read_text(encoding="utf-8"))


def parse(text: str, source: str) -> Config:
    try:
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date like 2026-99-99
        raise InputError(f"{source} is not YAML: {' '.join(str(error).split())}") from error
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"{source}: {_first(error)}") from error


def read(path: Path) -> Config:
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}: run `recover init` first") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: save it as such") from error


FILES = (  # settings that may name a file or a folder
    "model.path",
    "distill.reward",
    "distill.prompts",
    "distill.pairs",
    "distill.context",
    "distill.stop.probe",
    "eval.ifeval",
    "eval.probes",
    "eval.tasks",
    "engine.exchange",
)
FOLDERS = ("engine.exchange",)  # settings that name nothing else, whether the folder exists already or not
NAMES = ("microworld", "self", "exact", "ifeval")  # never a path, whatever lies in the folder
FILE_NAME = re.compile(r"[^\s:]+\.(jsonl?|txt|md|csv|parquet)")


def anchored(config: Config, folder: Path) -> Config:
    """Return the settings with relative paths made absolute, starting from `folder`."""
    data = config.model_dump()
    for key in FILES:
        *path, name = key.split(".")
        section: Any = data
        for part in path:
            section = section[part] or {}
        if isinstance(section.get(name), str):
            section[name] = _anchored(key, section[name], folder)
    return Config.model_validate(data)


def _anchored(key: str, value: str, folder: Path) -> str:
    """Make absolute what can only be a path or exists as one; keep a hub id, a text or a built-in name."""
    if key in FOLDERS or value.startswith(("./", "../")):
        return str(folder / value)
    module, colon, function = value.rpartition(":")
    if colon and module.endswith(".py"):  # a reward
        return f"{folder / module}:{function}"
    if value in NAMES:
        return value
    try:
        exists = (folder / value).exists()
    except OSError:  # a text too long to be a name
        exists = False
    return str(folder / value) if exists or FILE_NAME.fullmatch(value) else value


def anchored_changes(changes: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Changes to settings with relative paths made absolute, as seen from `folder`."""
    texts = {key: str(value) if isinstance(value, Path) else value for key, value in changes.items()}
    return {
        key: _anchored(key, value, folder) if key in FILES and isinstance(value, str) else value
        for key, value in texts.items()
    }


def override(section: Section, changes: dict[str, Any]) -> Any:
    """Replace settings of a section (None: keep) and validate it again."""
    data = section.model_dump()
    data.update({key: value for key, value in changes.items() if value is not None})
    try:
        return type(section).model_validate(data)
    except ValidationError as error:
        raise InputError(_first(error)) from error


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """Replace some settings, named as in recover.yaml: {"distill.optimizer.learning_rate": 1}.

    A mapping (dials, routes, a section) extends the one that is there; any other value replaces it.
    """
    data = config.model_dump()
    _forget_superseded(data, changes)
    for key, value in changes.items():
        _put(data, key, value)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise InputError(_first(error)) from error


def _forget_superseded(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Drop what a change makes void: the other way to give a length, and the dials of another method."""
    for group in EXCLUSIVE:
        if group & changes.keys():
            for key in group:
                _put(data, key, None)
    distill = data["distill"]
    if changes.get("distill.method", distill["method"]) != distill["method"]:
        distill["dials"] = {name: dial for name, dial in distill["dials"].items() if name in OF_ANY_METHOD}


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    *path, name = key.split(".")
    for part in path:
        section = data.get(part)
        if not isinstance(section, dict):
            raise InputError(f"{key}: there is no such setting: remove it or correct its name")
        data = section
    before = data.get(name)
    if isinstance(before, dict) and isinstance(value, dict):
        value = {**before, **value}
    data[name] = value


def parse_pairs(text: str) -> dict[str, str]:
    """Parse `a=1,b=2` into a dict."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, value = part.partition("=")
        if not sign or not name or not value:
            raise InputError(f"{part!r}: write NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def _first(error: ValidationError) -> str:
    """Describe the first error: where it is, what is wrong, and the value."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "settings"
    if first["type"] == "extra_forbidden":
        return f"{where}: there is no such setting: remove it or correct its name"
    found = "" if isinstance(first["input"], dict) else f", not {first['input']!r:.60}"
    return " ".join(f"{where}: {first['msg'].removeprefix('Value error, ')}{found}".split())
