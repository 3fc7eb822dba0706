"""Run vLLM inside this process; no other module imports it.

Log-probabilities are vLLM's `processed_logprobs`: those of the sampling distribution, after temperature. No
top-p, top-k or min-p truncates it, and the model's generation config is ignored.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recovery.engines.protocol import EngineSettings, OnProgress, SampledAnswer, TokenScore
from recovery.engines.vllm_lora import lora_rank, lora_targets
from recovery.engines.watchdog import EngineThread
from recovery.errors import EngineLost, InputError, RecoverError
from recovery.extras import to_install
from recovery.forward.hidden_states import is_adapter
from recovery.launch_env import launched
from recovery.models.saving import checkpoint_tensors, save
from recovery.sampling.loops import loop_end
from recovery.seeds import step_seed

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import SamplingParams

MAX_ENTRIES = 128  # largest top k of a request
OPTIONS = {  # vLLM's, by the setting that chooses it
    "tensor_parallel": "tensor_parallel_size",
    "max_length": "max_model_len",
    "eager": "enforce_eager",
}
NO_WEIGHTS = "No weights found"  # said where a folder with weights is not there
NO_ROOM = ("KV cache", "cache blocks", "gpu_memory_utilization")  # said where keys and values do not fit
# Threads bound to cores spin when another process uses those cores. Usage statistics are switched off.
QUIET = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def require_vllm() -> None:
    """Raise InputError if vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise InputError(f"vLLM is not installed; {to_install('vllm')} (on a CPU see docs/engines.md)")


def to_start(said: str) -> str:
    """Return what to do where vLLM did not start, by what it said: it names arguments of its own."""
    import torch

    if not any(words in said for words in NO_ROOM):
        return "see docs/engines.md"
    memory = "engine.gpu_memory" if torch.cuda.is_available() else "engine.cpu_cache_gib"
    return f"raise {memory}, or lower engine.max_length"


def run_options(directory: Path, settings: EngineSettings, dtype: str, rank: int) -> dict[str, Any]:
    """Return vLLM's options that override the user's: what the settings choose, exact log-probabilities."""
    import torch

    default = EngineSettings()
    chosen = [name for name in OPTIONS if getattr(settings, name) != getattr(default, name)]
    options: dict[str, Any] = {
        **{OPTIONS[name]: getattr(settings, name) for name in chosen},
        "model": str(directory),
        "dtype": dtype,
        "seed": 0,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "max_logprobs": MAX_ENTRIES,
        "worker_extension_cls": f"{__name__}.WeightUpdateExtension",
    }
    if rank:
        options |= {"enable_lora": True, "max_lora_rank": lora_rank(rank), "max_loras": 1}
    if torch.cuda.is_available():
        return options | {"gpu_memory_utilization": settings.gpu_memory}
    # Chunked prefill rewinds the random generator after a partial prompt, which a CPU generator cannot do.
    cache = {"kv_cache_memory_bytes": int(settings.cpu_cache_gib * 2**30), "enable_chunked_prefill": False}
    return options | cache


class WeightUpdateExtension:
    """A vLLM worker extension that loads weights in checkpoint format, from memory or from a folder."""

    overwritten = False  # whether it was sent weights since it was started

    def weights_state(self) -> dict[str, bool]:
        """Return whether the weights may be others than those that the worker was started with."""
        return {"overwritten": self.overwritten}

    def load_student_weights(
        self, tensors: Iterable[tuple[str, Any]] | None = None, directory: str | None = None
    ) -> None:
        worker: Any = self
        if directory is not None:
            tensors = _tensors_in(Path(directory))
        self.overwritten = True
        worker.reload_weights(weights_iterator=tensors)
        for module in worker.model_runner.get_model().modules():
            # In vLLM's CPU build, a tied head keeps its packed copy of the old weights: pack them again.
            if type(module).__name__ == "ParallelLMHead":
                module.quant_method.process_weights_after_loading(module)


def _tensors_in(directory: Path) -> Iterable[tuple[str, Any]]:
    """Return the tensors of a checkpoint's folder; without any, vLLM would keep the weights that it has."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise InputError(
            f"{NO_WEIGHTS} in {directory}: set engine.exchange to a folder that trainer and servers share"
        )
    return _tensors_of(files)


def _tensors_of(files: Iterable[Path]) -> Iterable[tuple[str, Any]]:
    from safetensors import safe_open

    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                yield name, tensors.get_tensor(name)


class VllmEngine:
    """A vLLM engine beside the trainer's model; each call has a deadline that restarts on every heartbeat."""

    name = "vllm"

    def __init__(
        self, directory: Path, settings: EngineSettings, *, dtype: str = "auto", rank: int = 0
    ) -> None:
        require_vllm()
        if launched() > 1:
            raise InputError(
                "vllm: inside one of several training processes: start servers with `recover serve` and name "
                "their URLs"
            )
        self.settings = settings
        self.arguments = _arguments(directory, settings, dtype, rank)
        self.adapter: Any = None
        self._start()

    def _start(self) -> None:
        self.thread = EngineThread()
        try:
            self.llm: Any = self.thread.call(lambda: _llm(self.arguments), self.settings.start_seconds)
        except EngineLost as error:
            said = f"vLLM did not start in this process: {error}: {to_start(str(error))}"
            raise EngineLost(said) from error

    @property
    def lengths(self) -> list[int | None]:
        """Return how many tokens it reads: fewer than the model's own where that has LongRoPE."""
        return [self.llm.llm_engine.model_config.max_model_len]

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        stop_ids: Sequence[int],
        on_progress: OnProgress | None = None,
    ) -> list[SampledAnswer]:
        from vllm import SamplingParams as VllmParams

        requests = [
            VllmParams(
                max_tokens=params.max_new_tokens,
                temperature=params.temperature,
                top_p=1.0,
                top_k=-1,
                min_p=0.0,
                logprobs=0,
                seed=step_seed(params.seed, row),
                stop_token_ids=list(stop_ids),
                ignore_eos=True,
                detokenize=False,
            )
            for row in range(params.first, params.first + len(prompts))
        ]
        outputs = self._run(prompts, requests, on_progress)
        answers = [_sampled_answer(output.outputs[0]) for output in outputs]
        return [without_loop(answer) for answer in answers] if params.stop_loops else answers

    def score(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], k: int
    ) -> list[list[TokenScore]]:
        from vllm import SamplingParams as VllmParams

        request = VllmParams(max_tokens=1, prompt_logprobs=k, detokenize=False)
        outputs = self._run(sequences, [request] * len(sequences), None)
        triples = zip(outputs, sequences, starts, strict=True)
        return [
            scores_of_answer(output.prompt_logprobs, tokens, start, k) for output, tokens, start in triples
        ]

    def update_weights(self, student: ChatModel) -> None:
        self.thread.call(lambda: self._update_weights(student), self.settings.timeout_seconds)

    def _update_weights(self, student: ChatModel) -> None:
        """Pass full weights in memory, or an adapter through a folder, as vLLM reads adapters from files."""
        if is_adapter(student.model):
            self._load_adapter(student)
        else:
            tensors = list(checkpoint_tensors(student.model).items())
            self.llm.collective_rpc("load_student_weights", kwargs={"tensors": tensors})
        if not self.llm.reset_prefix_cache():
            raise EngineLost("its prefix cache could not be reset")

    def _load_adapter(self, student: ChatModel) -> None:
        """Load each version under a new id: vLLM can silently drop weights when it reloads in place."""
        from vllm.lora.request import LoRARequest

        number = self.adapter.lora_int_id + 1 if self.adapter else 1
        with tempfile.TemporaryDirectory(dir=self.settings.exchange) as folder:
            save(student, folder)
            fresh = LoRARequest(f"student-{number}", number, folder)
            self.llm.llm_engine.add_lora(fresh)
        if self.adapter:
            self.llm.llm_engine.remove_lora(self.adapter.lora_int_id)
        self.adapter = fresh

    def restart(self) -> None:
        if self.thread.hung:
            raise RecoverError(
                f"{self.name}: no sign of life for {self.settings.timeout_seconds:g} s, and what hangs in "
                "this process cannot be started again in it: go on with `recover resume`"
            )
        self.close()
        self._start()

    def close(self) -> None:
        """Free the engine's memory; a hung engine is freed only when the process exits."""
        if self.thread.hung or self.llm is None:
            return
        self.llm = None
        self.adapter = None
        self.thread.call(_release, self.settings.timeout_seconds)
        self.thread.end()

    def _run(
        self, prompts: Sequence[Sequence[int]], requests: list[Any], on_progress: OnProgress | None
    ) -> list[Any]:
        """Run all requests to completion, in order; each engine step counts as a heartbeat."""

        def run() -> list[Any]:
            inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
            try:
                ids = self.llm.enqueue(inputs, requests, use_tqdm=False, lora_request=self.adapter)
            except ValueError as error:  # a prompt too long or k too large: a retry would fail again
                raise RecoverError(f"{self.name}: {' '.join(str(error).split())[:300]}") from error
            done: dict[str, Any] = {}
            while self.llm.llm_engine.has_unfinished_requests():
                for output in self.llm.llm_engine.step():
                    if output.finished:
                        done[output.request_id] = output
                self.thread.beat()
                if on_progress:
                    on_progress(len(done), len(ids))
            return [done[name] for name in sorted(done, key=int)]

        outputs = self.thread.call(run, self.settings.timeout_seconds)
        if [list(output.prompt_token_ids) for output in outputs] != [list(prompt) for prompt in prompts]:
            raise EngineLost("it answered other prompts than those sent")
        return outputs


def _arguments(directory: Path, settings: EngineSettings, dtype: str, rank: int) -> dict[str, Any]:
    """Return vLLM's arguments: the user's, and those that override them."""
    users = {name.replace("-", "_"): value for name, value in settings.arguments.items()}
    arguments = {
        "trust_remote_code": settings.trust_remote_code,
        **users,
        **run_options(directory, settings, dtype, rank),
    }
    if rank:
        arguments["lora_target_modules"] = lora_targets(directory, settings.trust_remote_code)
    return arguments


def _llm(arguments: dict[str, Any]) -> Any:
    for name, value in {**QUIET, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}.items():
        os.environ.setdefault(name, value)
    from vllm import LLM

    return LLM(**arguments)


def _release() -> None:
    """Free the process groups and cached device memory that vLLM keeps after its last reference."""
    import gc

    from vllm.distributed import cleanup_dist_env_and_memory

    gc.collect()
    cleanup_dist_env_and_memory()


def without_loop(answer: SampledAnswer) -> SampledAnswer:
    """Cut an answer where it begins to do nothing but repeat itself."""
    end = loop_end(answer.tokens)
    return SampledAnswer(answer.tokens[:end], answer.logprobs[:end])


def _sampled_answer(completion: Any) -> SampledAnswer:
    tokens = list(completion.token_ids)
    logprobs = [entries[token].logprob for token, entries in zip(tokens, completion.logprobs, strict=True)]
    return SampledAnswer(tokens, logprobs)


def scores_of_answer(
    entries: Sequence[Mapping[Any, Any] | None], tokens: Sequence[int], start: int, k: int
) -> list[TokenScore]:
    """Convert vLLM's prompt log-probs (token -> log-prob and rank) of the tokens from `start` on.

    Each entry contains the token itself and the tokens with ranks 1 to K.
    """
    found = []
    for token, at in zip(tokens[start:], entries[start:], strict=True):
        assert at is not None  # only the first token of a sequence has no log-prob
        ranked = sorted(at.items(), key=lambda entry: entry[1].rank)
        top = ranked[:k]
        found.append(TokenScore(at[token].logprob, [name for name, _ in top], [e.logprob for _, e in top]))
    return found
