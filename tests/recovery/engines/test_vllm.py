"""vLLM for real, in this process and as a server, on a tiny random model (`make test-vllm`)."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from recovery.engines.canary import trainer_logprobs
from recovery.engines.engine_sampler import EngineSampler
from recovery.engines.engine_teacher import EngineTeacher
from recovery.engines.json_client import JsonClient
from recovery.engines.protocol import EngineSettings
from recovery.engines.vllm_http import ServerEngine
from recovery.engines.vllm_local import VllmEngine
from recovery.engines.vllm_server import Server
from recovery.errors import InputError, RecoverError
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.chat_model import ChatModel
from recovery.models.loading import ModelSpec, load
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.teachers import CheckpointTeacher
from recovery.training import preflight
from tests.support import tiny
from tests.support.engine_fakes import step
from tests.support.present import present

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: see docs/engines.md"
)
# Its CPU attention knows heads of 32 and more.
SHAPE: dict[str, Any] = {"head_dim": 32, "max_position_embeddings": 512}
SETTINGS = EngineSettings(timeout_seconds=300, start_seconds=1500, cpu_cache_gib=0.25, eager=True)
EXACT = 1e-4  # fp32, two implementations of the same sums
MESSAGES = [[{"role": "user", "content": f"Say {'very ' * n}much about {n}."}] for n in range(12)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("model") / "tiny", **SHAPE)


@pytest.fixture(scope="module")
def local(directory: Path) -> Iterator[VllmEngine]:
    engine = VllmEngine(directory, SETTINGS, dtype="float32")
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def served(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerEngine]:
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    server = Server(directory, SETTINGS, name="tiny", log=log, dtype="float32")
    server.start()
    engine = ServerEngine([server.url], SETTINGS, servers=[server], keys={server.url: server.key})
    yield engine
    engine.close()


@pytest.fixture(params=["local", "served"])
def engine(request: pytest.FixtureRequest) -> VllmEngine | ServerEngine:
    found: VllmEngine | ServerEngine = request.getfixturevalue(request.param)
    return found


def student_of(directory: Path, seed: int | None = None) -> ChatModel:
    """The checkpoint, or other weights of the same shape."""
    if seed is not None:
        return tiny.chat_model(seed, **SHAPE)
    return load(ModelSpec(str(directory), device="cpu"))


def prompts_of(student: ChatModel) -> list[list[int]]:
    return [student.prompt_ids(messages) for messages in MESSAGES]


def test_log_probs_are_those_of_the_distribution_that_was_drawn_from(
    engine: VllmEngine | ServerEngine, directory: Path
) -> None:
    student = student_of(directory)
    params = SamplingParams(24, temperature=0.7, seed=3)
    rollouts = EngineSampler(engine, student).sample(prompts_of(student), params)
    gap = (trainer_logprobs(student, rollouts, 0.7) - rollouts.logprobs_N).abs()
    assert float(gap.max()) < EXACT
    untempered = (trainer_logprobs(student, rollouts, 1.0) - rollouts.logprobs_N).abs()
    assert float(untempered.mean()) > 0.05  # what raw_logprobs would have sent


def test_what_was_started_is_written_while_the_trainer_goes_on(
    engine: VllmEngine | ServerEngine, directory: Path
) -> None:
    student = student_of(directory)
    answers = EngineSampler(engine, student).start(prompts_of(student), SamplingParams(48, seed=5))
    weights = {name: tensor.clone() for name, tensor in student.model.state_dict().items()}
    with torch.no_grad():
        for parameter in student.model.parameters():
            parameter.mul_(1.1)
    written = answers()
    assert (trainer_logprobs(student, written) - written.logprobs_N).abs().max() > 100 * EXACT
    student.model.load_state_dict(weights)
    assert (trainer_logprobs(student, written) - written.logprobs_N).abs().max() < EXACT


def test_every_row_draws_for_itself_and_by_the_seed(
    engine: VllmEngine | ServerEngine, directory: Path
) -> None:
    student = student_of(directory)
    sampler, prompt = EngineSampler(engine, student, follow=False), prompts_of(student)[0]
    answers = sampler.sample([prompt] * 4, SamplingParams(16, seed=1)).responses()
    assert len(set(map(tuple, answers))) == 4
    assert sampler.sample([prompt] * 4, SamplingParams(16, seed=1)).responses() == answers
    assert sampler.sample([prompt] * 4, SamplingParams(16, seed=2)).responses() != answers


def test_an_engine_states_how_many_tokens_it_reads(engine: VllmEngine | ServerEngine) -> None:
    assert engine.lengths == [SHAPE["max_position_embeddings"]]


def test_more_prompt_tokens_than_are_read_at_once_are_no_trouble(
    engine: VllmEngine | ServerEngine, directory: Path
) -> None:
    student = student_of(directory)
    prompts = [[65 + n % 20] * 100 for n in range(60)]
    rollouts = EngineSampler(engine, student, follow=False).sample(prompts, SamplingParams(4))
    assert float((trainer_logprobs(student, rollouts) - rollouts.logprobs_N).abs().max()) < EXACT


def test_preflight_finds_the_whole_distribution_and_the_trainers_log_probs(
    engine: VllmEngine | ServerEngine, directory: Path
) -> None:
    student = student_of(directory, seed=5)
    found = preflight.checks(student, student_of(directory), MESSAGES, EngineSampler(engine, student))
    assert [check.name for check in found if not check.ok] == []
    assert found[-1].name == "whole distribution" and found[-2].name == "sampler log-probs"


def test_greedy_answers_are_the_in_process_samplers(
    engine: VllmEngine | ServerEngine, directory: Path
) -> None:
    student = student_of(directory, seed=2)
    params, prompts = SamplingParams(24, temperature=0.0), prompts_of(student)
    mine = InProcessSampler(student).generate(prompts, params)
    assert EngineSampler(engine, student, follow=False).generate(prompts, params) == mine


def test_stop_tokens_end_an_answer_and_belong_to_it(
    engine: VllmEngine | ServerEngine, directory: Path
) -> None:
    student = student_of(directory)
    params, prompts = SamplingParams(200, seed=7), prompts_of(student)
    student.stop_ids = tuple(range(40))  # common enough to be met
    rollouts = EngineSampler(engine, student).sample(prompts, params)
    assert bool(rollouts.finished_B.all())
    for answer in rollouts.responses():
        assert answer[-1] in student.stop_ids and not set(answer[:-1]) & set(student.stop_ids)


def test_a_teacher_scores_tokens_and_their_likeliest_rivals(
    engine: VllmEngine | ServerEngine, directory: Path
) -> None:
    teacher, student = student_of(directory, seed=4), student_of(directory)
    rollouts = InProcessSampler(student).sample(prompts_of(student), SamplingParams(20))
    engine.update_weights(teacher)
    exact = CheckpointTeacher(teacher, "topk", k=5).score(rollouts)
    found = EngineTeacher(engine, student, "topk", k=5).score(rollouts)
    assert torch.allclose(present(found.sampled_logprobs_N), present(exact.sampled_logprobs_N), atol=EXACT)
    assert torch.allclose(present(found.logprobs_NK), present(exact.logprobs_NK), atol=EXACT)
    assert float((present(found.ids_NK) == present(exact.ids_NK)).float().mean()) > 0.99
    sampled = EngineTeacher(engine, student, "sampled").score(rollouts)
    assert torch.allclose(present(sampled.sampled_logprobs_N), present(exact.sampled_logprobs_N), atol=EXACT)


def test_a_teacher_may_see_another_prompt(engine: VllmEngine | ServerEngine, directory: Path) -> None:
    teacher, student = student_of(directory, seed=4), student_of(directory)
    rollouts = InProcessSampler(student).sample(prompts_of(student), SamplingParams(20))
    contexts = [[65, 66, *prompt] for prompt in prompts_of(student)]
    engine.update_weights(teacher)
    exact = CheckpointTeacher(teacher, "sampled").score(rollouts, contexts)
    found = EngineTeacher(engine, student, "sampled").score(rollouts, contexts)
    assert torch.allclose(present(found.sampled_logprobs_N), present(exact.sampled_logprobs_N), atol=EXACT)


def test_weights_arrive_after_every_update(engine: VllmEngine | ServerEngine, directory: Path) -> None:
    student = student_of(directory)
    sampler, prompts = EngineSampler(engine, student), prompts_of(student)
    for number, size in enumerate((0.0, 1e-2, 1e-6)):
        step(student, size)
        rollouts = sampler.sample(prompts, SamplingParams(16, seed=number))
        assert float((trainer_logprobs(student, rollouts) - rollouts.logprobs_N).abs().max()) < EXACT
        assert sampler.metrics()["canary_gap_max"] < EXACT
        assert (sampler.metrics()["canary_moved"] > 0) == (number > 0)


@pytest.mark.parametrize("size", [1e-2, 1e-5])
def test_an_engine_that_is_silently_not_updated_is_found_out(
    engine: VllmEngine | ServerEngine, directory: Path, monkeypatch: pytest.MonkeyPatch, size: float
) -> None:
    student = student_of(directory)
    sampler, prompts = EngineSampler(engine, student), prompts_of(student)
    sampler.sample(prompts, SamplingParams(8))
    monkeypatch.setattr(engine, "update_weights", lambda student: None)
    monkeypatch.setattr(engine, "restart", lambda: None)
    step(student, size)
    with pytest.raises(RecoverError, match=r"lost twice.*recover resume"):
        sampler.sample(prompts, SamplingParams(8))


def test_an_engine_that_died_in_this_process_is_started_again_and_gets_the_weights(
    local: VllmEngine, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = student_of(directory, seed=3)
    sampler, prompts = EngineSampler(local, student, follow=False), prompts_of(student)
    sampler.sample(prompts, SamplingParams(8))

    def dies() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(local.llm.llm_engine, "step", dies)
    rollouts = sampler.sample(prompts, SamplingParams(8))
    assert float((trainer_logprobs(student, rollouts) - rollouts.logprobs_N).abs().max()) < EXACT


def test_a_server_that_was_killed_is_started_again_and_gets_the_weights(
    served: ServerEngine, directory: Path
) -> None:
    student = student_of(directory, seed=3)
    sampler, prompts = EngineSampler(served, student, follow=False), prompts_of(student)
    sampler.sample(prompts, SamplingParams(8))
    before = descendants(served.servers[0].process.pid)
    assert len(before) >= 2  # the server, and the engine that it started
    os.kill(before[0], signal.SIGKILL)
    rollouts = sampler.sample(prompts, SamplingParams(8))
    assert float((trainer_logprobs(student, rollouts) - rollouts.logprobs_N).abs().max()) < EXACT
    assert not alive(before)


def test_a_server_says_that_it_was_sent_weights_until_it_is_started_again(
    served: ServerEngine, directory: Path
) -> None:
    EngineSampler(served, student_of(directory)).sample(prompts_of(student_of(directory)), SamplingParams(8))
    with pytest.raises(InputError, match="was sent other weights"):
        served.require_own_weights()
    served.restart()
    served.require_own_weights()


def test_a_server_that_hangs_is_started_again(
    served: ServerEngine, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = student_of(directory, seed=3)
    sampler, prompts = EngineSampler(served, student), prompts_of(student)[:2]
    sampler.sample(prompts, SamplingParams(8))
    before = descendants(served.servers[0].process.pid)
    monkeypatch.setattr(served, "settings", replace(SETTINGS, timeout_seconds=20))
    for process in before:
        os.kill(process, signal.SIGSTOP)
    rollouts = sampler.sample(prompts, SamplingParams(8))
    assert float((trainer_logprobs(student, rollouts) - rollouts.logprobs_N).abs().max()) < EXACT
    assert not alive(before)


@pytest.mark.parametrize("where", ["local", "served"])
def test_only_the_adapter_travels(
    where: str, directory: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    student = add_lora(student_of(directory), LoraSpec(rank=4))
    rank: dict[str, Any] = {"dtype": "float32", "rank": 4}
    engine: VllmEngine | ServerEngine
    if where == "local":
        request.getfixturevalue("local").close()  # one engine in a process at a time
        engine = VllmEngine(directory, SETTINGS, **rank)
    else:
        server = Server(directory, SETTINGS, name="tiny", log=tmp_path / "vllm.log", **rank)
        server.start()
        engine = ServerEngine([server.url], SETTINGS, servers=[server], keys={server.url: server.key})
    try:
        sampler, prompts = EngineSampler(engine, student), prompts_of(student)
        for number, size in enumerate((0.0, 2e-2, 2e-2)):
            step(student, size)
            rollouts = sampler.sample(prompts, SamplingParams(16, seed=number))
            assert float((trainer_logprobs(student, rollouts) - rollouts.logprobs_N).abs().max()) < EXACT
            assert (sampler.metrics()["canary_moved"] > 0) == (number > 0)
    finally:
        engine.close()


def test_recover_serve_answers_chats_as_set_and_leaves_nothing_behind_when_killed(
    directory: Path, tmp_path: Path
) -> None:
    recover = "from pipelines.cli import main; main()"
    command = [sys.executable, "-c", recover, "-q", "--home", str(tmp_path)]
    subprocess.run([*command, "init", "--model", str(directory), "--preset", "microworld"], check=True)
    settings = tmp_path / "recover.yaml"
    chats = settings.read_text().replace("model:\n", "model:\n  template_args: {enable_thinking: false}\n", 1)
    settings.write_text(f"{chats}\nengine: {{eager: true, cpu_cache_gib: 0.25}}\n")
    serving = subprocess.Popen(
        [*command, "--json", "serve", "base", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert serving.stdout is not None
    said = ""
    while not said.endswith("}\n"):
        line = serving.stdout.readline()
        assert line, "it ended before it answered"
        said += line
    found = json.loads(said)
    assert ServerEngine([found["url"]], SETTINGS).models == [found["checkpoint"]]
    asked = {"model": found["checkpoint"], "messages": MESSAGES[0]}
    read = JsonClient(1).post(f"{found['url']}/tokenize", asked, 60)["tokens"]
    thinks_not = tiny.load(directory, template_args={"enable_thinking": False})
    assert read == thinks_not.prompt_ids(MESSAGES[0]) != tiny.load(directory).prompt_ids(MESSAGES[0])
    below = descendants(serving.pid)
    assert len(below) >= 3  # the guard, the server, and the engine that it started
    serving.kill()
    serving.wait()
    assert not alive(below)


def descendants(root: int) -> list[int]:
    """The processes below one, its own children first."""
    return [child.pid for child in psutil.Process(root).children(recursive=True)]


def alive(processes: list[int], seconds: float = 30.0) -> list[int]:
    """Those of them that are still there after a while."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in processes):
        time.sleep(0.2)
    return [pid for pid in processes if Path(f"/proc/{pid}").exists()]
