"""Engines that die, hang or silently keep old weights are caught; here without vLLM, on fakes that do so."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.engine import RULED, EngineConfig
from pipelines.config.sections.training import OptimizerConfig
from pipelines.engines.engine_checks import check, check_place
from recovery import distributed
from recovery.engines import canary, child_process, vllm_local, vllm_server
from recovery.engines.canary import trainer_logprobs
from recovery.engines.engine_sampler import EngineSampler
from recovery.engines.engine_teacher import EngineTeacher
from recovery.engines.protocol import EngineSettings, SampledAnswer
from recovery.engines.vllm_answers import LogprobEntry
from recovery.engines.vllm_http import ServerEngine
from recovery.engines.vllm_local import (
    VllmEngine,
    WeightUpdateExtension,
    _arguments,
    scores_of_answer,
)
from recovery.engines.vllm_lora import lora_rank, lora_targets
from recovery.engines.vllm_server import Server, _command, _environment
from recovery.engines.watchdog import EngineThread
from recovery.errors import EngineLost, InputError, RecoverError
from recovery.forward.precision import matmul_precision
from recovery.methods import table
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.chat_model import ChatModel
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from recovery.teachers.teachers import CheckpointTeacher
from tests.support import families, tiny
from tests.support.engine_fakes import TinyEngine, serving, step
from tests.support.present import present

PARAMS = SamplingParams(12, seed=3)
SETTINGS = EngineSettings(timeout_seconds=120)
PROMPTS = [[65 + n] * (3 + n) for n in range(6)]


@pytest.fixture
def student() -> ChatModel:
    return tiny.chat_model()


# the canary -------------------------------------------------------------------------------------------------


def test_samples_follow_the_weights(student: ChatModel) -> None:
    sampler = EngineSampler(TinyEngine(student), student)
    for size in (0.0, 1e-2, 1e-6, 0.0):
        step(student, size)
        rollouts = sampler.sample(PROMPTS, PARAMS)
        assert torch.allclose(trainer_logprobs(student, rollouts), rollouts.logprobs_N, atol=1e-5)
        assert (sampler.metrics()["canary_moved"] > 0) == (size > 0)
        assert sampler.metrics()["canary_gap"] < 1e-5
    assert rollouts.responses() == InProcessSampler(student).sample(PROMPTS, PARAMS).responses()


@pytest.mark.parametrize("fault", ["forgets", "falls back", "is late", "loses a layer"])
@pytest.mark.parametrize("size", [1e-1, 1e-3, 1e-5])
def test_silently_not_updated_is_caught_whatever_the_step(
    student: ChatModel, fault: str, size: float
) -> None:
    engine = TinyEngine(student, forever=True)
    sampler = EngineSampler(engine, student)
    step(student, 1e-2)
    sampler.sample(PROMPTS, PARAMS)
    engine.fault = fault
    step(student, size)
    with pytest.raises(RecoverError, match=r"lost twice.*(not updated|does not hold).*`recover resume`"):
        sampler.sample(PROMPTS, PARAMS)
    assert engine.restarts == 1


@pytest.mark.parametrize("fault", ["forgets", "falls back", "is late", "loses a layer", "dies"])
def test_what_one_restart_mends_goes_on_as_if_nothing_had_been(student: ChatModel, fault: str) -> None:
    engine = TinyEngine(student)
    sampler = EngineSampler(engine, student)
    step(student, 1e-2)
    sampler.sample(PROMPTS, PARAMS)
    engine.fault = fault
    step(student, 1e-2)
    rollouts = sampler.sample(PROMPTS, PARAMS)
    assert engine.restarts == 1
    assert torch.allclose(trainer_logprobs(student, rollouts), rollouts.logprobs_N, atol=1e-5)


def test_an_engine_that_holds_another_model_is_caught_at_once(student: ChatModel) -> None:
    engine = TinyEngine(tiny.chat_model(seed=9), "forgets", forever=True)
    said = "does not hold the trainer's weights, or holds them in another dtype than float32"
    with pytest.raises(RecoverError, match=said):
        EngineSampler(engine, student).sample(PROMPTS, PARAMS)


def test_an_engine_that_dies_between_sync_and_samples_gets_its_weights_again(student: ChatModel) -> None:
    """Without `follow` the weights are sent once; a restarted engine has only those it was started with."""
    engine = TinyEngine(tiny.chat_model(seed=9))
    sampler = EngineSampler(engine, student, follow=False)
    sampler.sample(PROMPTS, PARAMS)
    engine.fault = "dies"
    rollouts = sampler.sample(PROMPTS, PARAMS)
    assert torch.allclose(trainer_logprobs(student, rollouts), rollouts.logprobs_N, atol=1e-5)


def test_an_engine_that_others_reach_is_checked_before_every_batch(student: ChatModel) -> None:
    """A supervisor starts it again between two suites: the next was answered by the model served first."""
    with serving(TinyEngine(tiny.chat_model(seed=9))) as server:
        engine = ServerEngine([server.url], SETTINGS)
        sampler = EngineSampler(engine, student, follow=False, external=True)
        answers = sampler.generate(PROMPTS, PARAMS)
        server.engine.restart()
        assert sampler.generate(PROMPTS, PARAMS) == answers
        assert sampler.generate(PROMPTS, PARAMS) == answers
        assert len(server.updates) == 2  # only where they were lost
        server.engine.fault, server.engine.forever = "forgets", True
        server.engine.restart()
        with pytest.raises(RecoverError, match=r"lost twice.*does not hold.*`recover resume`"):
            sampler.generate(PROMPTS, PARAMS)


def test_the_same_weights_again_need_not_move(student: ChatModel) -> None:
    sampler = EngineSampler(TinyEngine(student), student)
    for _ in range(3):
        sampler.sample(PROMPTS, PARAMS)
    assert sampler.metrics()["canary_moved"] == 0


def test_the_canary_compares_at_the_precision_of_a_server(
    student: ChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU trains in TF32, whose gap to a server's fp32 is beyond the limit: every sync failed."""
    seen: list[str] = []

    def logprobs(*asked: Any) -> torch.Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return trainer_logprobs(*asked)

    monkeypatch.setattr(canary, "trainer_logprobs", logprobs)
    with matmul_precision("high"):
        EngineSampler(TinyEngine(student), student).sample(PROMPTS, PARAMS)
        assert (seen, torch.get_float32_matmul_precision()) == (["highest", "highest"], "high")


class TwoServers(TinyEngine):
    """The second one's samples are .0015 nats off, of which a mean over both would show half."""

    lengths = (None, None)

    def sample(self, *asked: Any, **named: Any) -> list[SampledAnswer]:
        answers = super().sample(*asked, **named)
        return [
            SampledAnswer(answer.tokens, [logprob - 1.5e-3 * (row % 2) for logprob in answer.logprobs])
            for row, answer in enumerate(answers)
        ]


def test_each_of_several_servers_has_to_agree_with_the_trainer(student: ChatModel) -> None:
    engine = TwoServers(student, forever=True)
    with pytest.raises(RecoverError, match=r"of what it sampled differ by 0\.0015 on average"):
        EngineSampler(engine, student).sample(PROMPTS, PARAMS)


# servers ----------------------------------------------------------------------------------------------------


def test_a_server_is_asked_by_ids_for_the_untruncated_distribution_row_by_row(student: ChatModel) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url + "/v1"], SETTINGS)
        prompts = [PROMPTS[0]] * 6
        rollouts = EngineSampler(engine, student).sample(prompts, replace(PARAMS, temperature=0.7))
    assert torch.allclose(trainer_logprobs(student, rollouts, 0.7), rollouts.logprobs_N, atol=1e-5)
    assert len(set(map(tuple, rollouts.responses()))) > 3  # each row draws for itself
    asked = [body for body in server.served if body.get("logprobs") == 0][-6:]
    wanted = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
    assert all(body["prompt"] == PROMPTS[0] and wanted.items() <= body.items() for body in asked)
    assert len({body["seed"] for body in asked}) == 6


def test_an_answer_ends_where_its_server_reads_no_further(student: ChatModel) -> None:
    prompts = [[65] * 36, [66] * 39] + [[70 + n] * 20 for n in range(8)]  # the canary asks eight of them
    with serving(TinyEngine(student)) as server, serving(TinyEngine(student)) as other:
        server.length = 40
        sampler = EngineSampler(ServerEngine([server.url, other.url], SETTINGS), student)
        student.stop_ids = ()
        answers = sampler.sample(prompts, PARAMS).responses()
    assert [len(answer) for answer in answers] == [3, 1] + [12] * 8  # a token is left over for scoring


def test_a_prompt_that_leaves_no_room_is_refused_by_its_server(student: ChatModel) -> None:
    with serving(TinyEngine(student)) as server:
        server.length = 40
        with pytest.raises(RecoverError, match="maximum context length is 40"):
            ServerEngine([server.url], SETTINGS).sample([[65] * 40], PARAMS, [])


def test_a_server_may_come_back_with_another_length(student: ChatModel) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        server.length = 40
        engine.restart()
        assert [len(answer.tokens) for answer in engine.sample([[65] * 36], PARAMS, [])] == [3]


def test_a_server_teaches_what_the_checkpoint_would(student: ChatModel) -> None:
    teacher = tiny.chat_model(seed=4)
    rollouts = InProcessSampler(student).sample(PROMPTS, PARAMS)
    contexts = [[70, 71, *prompt] for prompt in PROMPTS]
    with serving(TinyEngine(teacher)) as one, serving(TinyEngine(teacher)) as other:
        engine = ServerEngine([one.url, other.url], SETTINGS)
        for seen in (None, contexts):
            exact = CheckpointTeacher(teacher, "topk", k=4).score(rollouts, seen)
            found = EngineTeacher(engine, student, "topk", k=4).score(rollouts, seen)
            assert torch.allclose(
                present(found.sampled_logprobs_N), present(exact.sampled_logprobs_N), atol=1e-5
            )
            assert torch.equal(present(found.ids_NK), present(exact.ids_NK))
            assert torch.allclose(present(found.logprobs_NK), present(exact.logprobs_NK), atol=1e-5)
    assert len(one.served) == len(other.served)  # the rows are shared out


def test_each_of_several_servers_gets_an_equal_part_of_the_rows_of_all_processes(
    student: ChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process counted its rows from 0: all of eight single rows went to the first of four servers."""
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(TinyEngine(student))) for _ in range(4)]
        for rank in range(8):
            monkeypatch.setattr(distributed, "rank", partial(int, rank))
            engine = ServerEngine([server.url for server in servers], SETTINGS, processes=8)
            engine.sample(PROMPTS[:1], replace(PARAMS, first=rank), [])
            engine.score(PROMPTS[:1], [1], 0)
    sampled = [sum("stream" in body for body in server.served) for server in servers]
    assert (sampled, [len(server.served) for server in servers]) == ([2] * 4, [4] * 4)


def test_an_answer_may_take_longer_than_the_timeout_while_its_server_sends(student: ChatModel) -> None:
    long = SamplingParams(48, seed=3)  # sixteen parts
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], EngineSettings(timeout_seconds=2.0))
        server.pause, started = 0.15, time.monotonic()
        written = engine.sample(PROMPTS[:2], long, [])
        assert time.monotonic() - started > 2.0
        assert [len(answer.tokens) for answer in written] == [48, 48]
        server.pause = 0.0
        assert engine.sample(PROMPTS[:2], long, []) == written
        server.pause, engine.settings = 5.0, EngineSettings(timeout_seconds=0.5)
        with pytest.raises(EngineLost, match=r"no answer within 0\.5 s"):
            engine.sample(PROMPTS[:2], long, [])


def test_a_request_waits_in_the_queue_of_a_server_that_answers_others(
    student: ChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory for keys and values is full: the last one takes more time than the longest silence."""
    with serving(TinyEngine(student)) as server:
        score = server.engine.score

        def one_by_one(*asked: Any) -> Any:
            time.sleep(0.35)
            return score(*asked)

        monkeypatch.setattr(server.engine, "score", one_by_one)
        engine = ServerEngine([server.url], EngineSettings(timeout_seconds=2.0))
        found = engine.score(PROMPTS, [1] * len(PROMPTS), 0)
    assert [len(row) for row in found] == [len(prompt) - 1 for prompt in PROMPTS]


def test_a_server_that_stops_in_the_middle_of_an_answer_is_lost(student: ChatModel) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        server.fault = "stops in the middle"
        with pytest.raises(EngineLost, match="in the middle of an answer"):
            engine.sample(PROMPTS, PARAMS, [])


def test_a_server_that_was_sent_weights_says_so(student: ChatModel) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        engine.require_own_weights()
        EngineSampler(engine, student).sample(PROMPTS, PARAMS)
        with pytest.raises(InputError, match="was sent other weights since it was started with tiny"):
            engine.require_own_weights()
        server.fault = "answers something else"
        with pytest.raises(InputError, match=r"does not say whether it was sent weights.*recover serve"):
            engine.require_own_weights()
        server.fault = "fails"  # a training waits for it
        with pytest.raises(EngineLost):
            engine.require_own_weights()
        for fault in ("takes no weights", "keeps its commands to itself"):
            server.fault = fault
            engine.require_own_weights()


def test_a_teacher_whose_server_is_sent_weights_meanwhile_teaches_no_more(student: ChatModel) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        teacher = EngineTeacher(engine, student, "sampled", check=engine.require_own_weights)
        rows = teacher.sample(PROMPTS, PARAMS)
        assert teacher.score(rows).sampled_logprobs_N is not None
        EngineSampler(ServerEngine([server.url], SETTINGS), student).sample(PROMPTS, PARAMS)
        for use in (lambda: teacher.score(rows), lambda: teacher.sample(PROMPTS, PARAMS)):
            with pytest.raises(InputError, match="was sent other weights"):
                use()


def test_a_worker_notes_that_it_was_sent_weights() -> None:
    class Worker(WeightUpdateExtension):
        model_runner = SimpleNamespace(get_model=lambda: torch.nn.Module())

        def reload_weights(self, weights_iterator: Any) -> None:
            assert list(weights_iterator) == []

    worker, other = Worker(), Worker()
    worker.load_student_weights([])
    assert [one.weights_state()["overwritten"] for one in (worker, other)] == [True, False]


def test_servers_load_weights_at_the_same_time_and_only_then_forget_prefixes(
    student: ChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, done = threading.Barrier(2, timeout=20), list[str]()

    def load(called: Any, body: Any) -> None:
        both.wait()  # no one gets past it alone
        called(body)
        done.append("load")

    def reset(answer: Any, path: str) -> Any:
        done.append("reset")
        return answer(path)

    with serving(TinyEngine(student)) as server, serving(TinyEngine(student)) as other:
        for one in (server, other):
            monkeypatch.setattr(one, "called", partial(load, one.called))
            monkeypatch.setattr(one, "reset", partial(reset, one.reset))
        ServerEngine([server.url, other.url], SETTINGS).update_weights(student)
    assert done == ["load", "load", "reset", "reset"]


def test_a_server_that_keeps_prefixes_of_the_weights_before_is_lost(student: ChatModel) -> None:
    """It says so with HTTP 200, and prompts seen before were read with the weights before."""
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        server.running = 1  # of another client's
        engine.update_weights(student)
        server.fault = "keeps its prefixes"
        with pytest.raises(EngineLost, match="its prefix cache could not be reset"):
            engine.update_weights(student)


def test_one_of_two_servers_that_takes_no_weights_is_caught_by_a_single_prompt(student: ChatModel) -> None:
    """The canary asked each prompt once, so that one prompt never reached the second server."""
    with serving(TinyEngine(student)) as server, serving(TinyEngine(student)) as other:
        sampler = EngineSampler(ServerEngine([server.url, other.url], SETTINGS), student)
        sampler.sample(PROMPTS[:1], PARAMS)
        other.engine.fault, other.engine.forever = "forgets", True
        step(student, 1e-5)
        with pytest.raises(RecoverError, match=r"lost twice.*not updated"):
            sampler.sample(PROMPTS[:1], PARAMS)


def test_a_server_that_no_longer_has_the_model_is_lost(student: ChatModel) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        server.fault = "lost its model"
        with pytest.raises(EngineLost, match="no longer has the model tiny"):
            engine.sample(PROMPTS, PARAMS, [])


def test_where_one_answer_is_lost_the_others_are_not_waited_for(student: ChatModel) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        server.pause, server.fault = 0.3, "loses a row"
        started = time.monotonic()
        with pytest.raises(EngineLost, match="HTTP 500"):
            engine.sample(PROMPTS, replace(PARAMS, max_new_tokens=120), [])
        assert time.monotonic() - started < 6  # a whole answer takes 12 s


def test_a_closed_engine_ends_its_requests_and_its_connections(student: ChatModel) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        server.pause = 0.3
        sampler = EngineSampler(engine, student, follow=False)
        answers = sampler.start(PROMPTS, replace(PARAMS, max_new_tokens=120))
        started = time.monotonic()
        sampler.close()
        assert time.monotonic() - started < 5  # a whole answer takes 12 s
        assert engine.client._client.is_closed
        with pytest.raises(RecoverError, match="closed"):
            answers()
        assert time.monotonic() - started < 10  # a server that may come back is waited for a minute


def test_an_engine_that_is_closed_while_it_waits_for_a_server_waits_no_longer(student: ChatModel) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        server.fault = "fails"
        started = time.monotonic()
        threading.Timer(1.0, engine.close).start()
        with pytest.raises(EngineLost, match="closed"):
            engine.restart()
        assert time.monotonic() - started < 30  # a server that may come back is waited for a minute


@pytest.mark.parametrize("fault", ["hangs", "fails"])
def test_a_server_that_is_lost_for_good_stops_the_run_in_time(student: ChatModel, fault: str) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        sampler = EngineSampler(engine, student)
        sampler.sample(PROMPTS, PARAMS)
        engine.settings = EngineSettings(timeout_seconds=0.4)
        server.fault, started = fault, time.monotonic()
        with pytest.raises(RecoverError, match=r"lost twice.*`recover resume`"):
            sampler.sample(PROMPTS, PARAMS)
        assert time.monotonic() - started < 60


def test_a_server_that_was_killed_and_came_back_gets_the_weights_again(student: ChatModel) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        sampler, port = EngineSampler(engine, student), server.server_address[1]
        sampler.sample(PROMPTS, PARAMS)
    step(student, 1e-2)
    with serving(TinyEngine(tiny.chat_model()), port):
        rollouts = sampler.sample(PROMPTS, PARAMS)
    assert torch.allclose(trainer_logprobs(student, rollouts), rollouts.logprobs_N, atol=1e-5)


@pytest.mark.parametrize("status", [401, 403, 404, 501])
def test_a_server_behind_a_proxy_that_serves_only_v1_teaches_and_comes_back(
    student: ChatModel, status: int
) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        server.fault = f"lets only /v1 through: {status}"
        engine.require_own_weights()
        engine.restart()
        assert engine.sample(PROMPTS, PARAMS, student.stop_ids)
        with pytest.raises(InputError, match=r"takes no weights.*its own address, not a proxy's"):
            engine.update_weights(student)


def test_a_server_that_asks_for_a_key_says_what_to_set(student: ChatModel) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        server.fault = "wants a key"
        with pytest.raises(RecoverError, match=r"HTTP 401.*set VLLM_API_KEY to the key of this") as caught:
            engine.sample(PROMPTS, PARAMS, student.stop_ids)
        assert not isinstance(caught.value, InputError)  # the run can be resumed with the key
        with pytest.raises(InputError, match=r"takes no weights.*set VLLM_API_KEY to the key of this server"):
            engine.update_weights(student)
        with pytest.raises(InputError, match=r"HTTP 401.*set VLLM_API_KEY to the key of this server"):
            ServerEngine([server.url], SETTINGS)


def test_what_asking_again_cannot_mend_is_said_at_once(student: ChatModel) -> None:
    with pytest.raises(InputError, match=r"no vLLM server answers there.*recover serve"):
        ServerEngine(["http://127.0.0.1:9"], SETTINGS)
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        server.fault = "takes no weights"
        with pytest.raises(InputError, match=r"takes no weights.*recover serve"):
            EngineSampler(engine, student).sample(PROMPTS, PARAMS)
        server.fault = "retokenises"
        with pytest.raises(RecoverError, match="token ids"):
            engine.sample(PROMPTS, PARAMS, student.stop_ids)


@pytest.mark.parametrize("adapter", [False, True])
def test_a_server_that_does_not_see_the_folder_of_weights_says_so(student: ChatModel, adapter: bool) -> None:
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], SETTINGS)
        server.fault = "sees another disk"
        with pytest.raises(InputError, match=r"does not see the folder.*set engine\.exchange"):
            engine.update_weights(add_lora(student, LoraSpec(rank=2)) if adapter else student)


def sent(exchange: Path) -> list[Path]:
    """The folders of weights that lie where trainer and servers exchange them."""
    return [path for path in exchange.iterdir() if path.is_dir()]


def test_weights_that_a_killed_trainer_sent_are_removed_by_the_next_one_and_those_of_a_live_one_stay(
    student: ChatModel, tmp_path: Path
) -> None:
    """They are as large as the model, and a trainer that was killed left them for ever."""
    dead, live = (tmp_path / f"recover-student-{name}" for name in ("dead", "live"))
    for folder in (dead, live):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"sent")
        folder.with_name(f".{folder.name}.lock").touch()
    with (tmp_path / f".{live.name}.lock").open() as held, serving(TinyEngine(student)) as server:
        fcntl.flock(held, fcntl.LOCK_EX)
        engine = ServerEngine([server.url], replace(SETTINGS, exchange=str(tmp_path)))
        engine.update_weights(student)
        assert Path(server.updates[0]).parent == tmp_path
        engine.close()
    assert {path.name for path in tmp_path.iterdir()} == {live.name, f".{live.name}.lock"}


def test_an_adapters_files_stay_until_the_next_one_is_loaded(
    student: ChatModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with room for one adapter reads them again after another client's; without them it died."""
    with serving(TinyEngine(student)) as server:
        engine = ServerEngine([server.url], replace(SETTINGS, exchange=str(tmp_path)))
        there: list[tuple[str, bool]] = []  # at each command: its path, whether the files of before are there

        def command(url: str, path: str, body: dict[str, str]) -> bytes:
            there.append((path, before is None or (before / "adapter_config.json").is_file()))
            return b""

        monkeypatch.setattr(engine, "_command", command)
        add_lora(student, LoraSpec(rank=2))
        before: Path | None = None
        for _ in range(2):
            engine.update_weights(student)
            (before,) = sent(tmp_path)
        load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
        assert there == [(load, True), (load, True), (unload, True)]
        assert before is not None and (before / "adapter_config.json").is_file()
        engine.close()
        assert not list(tmp_path.iterdir())


# the engine in this process ---------------------------------------------------------------------------------


def test_the_engine_thread_reports_failure_and_silence_but_not_slow_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread = EngineThread()
    assert thread.call(lambda: 7, 5) == 7
    with pytest.raises(EngineLost, match="ValueError: out of memory"):
        thread.call(lambda: (_ for _ in ()).throw(ValueError("out of\nmemory")), 5)

    now = [0.0]

    def slow() -> int:
        for _ in range(4):
            now[0] += 3.0
            thread.beat()
            time.sleep(0.1)  # in which the caller looks at its clock
        return 8

    with monkeypatch.context() as patched:
        patched.setattr("recovery.engines.watchdog.time", SimpleNamespace(monotonic=lambda: now[0]))
        assert thread.call(slow, 4.0) == 8
    started = time.monotonic()
    with pytest.raises(EngineLost, match=r"no sign of life for 0\.2 s"):
        thread.call(lambda: time.sleep(5), 0.2)
    assert time.monotonic() - started < 3
    with pytest.raises(EngineLost, match="still hangs"):
        thread.call(lambda: 9, 5)


def test_a_hung_call_does_not_keep_the_process_alive() -> None:
    code = (
        "import time\nfrom recovery.engines.watchdog import EngineThread\n"
        "from recovery.errors import EngineLost\n"
        "try: EngineThread().call(lambda: time.sleep(600), 0.2)\nexcept EngineLost: print('told')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "told" and done.returncode == 0


def test_entries_are_put_in_order_whatever_the_rank_of_the_token() -> None:
    rare, common = LogprobEntry(-9.0, 40), [LogprobEntry(-0.5, 1), LogprobEntry(-1.5, 2)]
    entries = [None, {5: rare, 8: common[1], 7: common[0]}, {7: common[0], 8: common[1]}]
    first, second = scores_of_answer(entries, [1, 5, 8], 1, 2)
    assert first == (-9.0, [7, 8], [-0.5, -1.5]) and second == (-1.5, [7, 8], [-0.5, -1.5])
    assert scores_of_answer(entries, [1, 5, 8], 2, 0) == [(-1.5, [], [])]


def test_an_adapter_is_looked_for_on_every_linear_layer_but_the_head(tmp_path: Path) -> None:
    directory = tiny.save(tmp_path / "tiny", tie_word_embeddings=False)
    assert lora_targets(directory) == [
        "down_proj",
        "gate_proj",
        "k_proj",
        "o_proj",
        "q_proj",
        "up_proj",
        "v_proj",
    ]


ATTENTION = "k_proj o_proj q_proj v_proj"
DENSE = f"down_proj gate_proj {ATTENTION} up_proj"


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("Qwen 3 MoE", f"experts {ATTENTION}"),
        ("GLM 4 MoE", f"experts {DENSE}"),  # beside routed experts a shared one
        ("Qwen 3 VL", DENSE),
        ("GPT-2", "c_attn c_fc c_proj"),
    ],
)
def test_an_adapter_is_looked_for_where_a_family_can_have_one(
    family: str, layers: str, tmp_path: Path
) -> None:
    """Without routed experts vLLM failed as it started; a model that sees images was refused."""
    assert lora_targets(families.save(families.named(family), tmp_path / "model")) == sorted(layers.split())


def test_vllm_reads_the_tokenizer_that_models_of_images_ask_for(tmp_path: Path) -> None:
    assert "skip_tokenizer_init" not in _arguments(tmp_path, SETTINGS, "auto", 0)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_models_own_code_is_run_by_an_engine_as_by_the_trainer(tmp_path: Path, trusted: bool) -> None:
    chosen = EngineSettings(trust_remote_code=trusted)
    assert _arguments(tmp_path, chosen, "auto", 0)["trust_remote_code"] is trusted
    words = _command(tmp_path, chosen, "name", "auto", 0, "127.0.0.1", 1)
    assert ("--trust-remote-code" in words) is trusted


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("enable-prefix-caching", True, "--enable-prefix-caching"),
        ("enable-prefix-caching", False, "--no-enable-prefix-caching"),
        ("block-size", 1, "--block-size=1"),
        ("watermark", 0.5, "--watermark=0.5"),
        ("kv-cache-dtype", "fp8", "--kv-cache-dtype=fp8"),
        ("max-model-len", 256, "--max-model-len=256"),
        ("tensor-parallel-size", 2, "--tensor-parallel-size=2"),
        ("enforce-eager", True, "--enforce-eager"),
    ],
)
def test_further_arguments_reach_vllm_as_they_are_set(
    tmp_path: Path, name: str, value: bool | int | float | str, word: str
) -> None:
    chosen = EngineSettings(arguments=EngineConfig(arguments={name: value}).arguments)
    assert word in _command(tmp_path, chosen, "name", "auto", 0, "127.0.0.1", 1)
    given = _arguments(tmp_path, chosen, "auto", 0)[name.replace("-", "_")]
    assert (type(given), given) == (type(value), value)


@pytest.mark.parametrize("gpu", [True, False])
def test_what_recover_sets_of_vllm_is_named_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    """A shortened name of one that is not listed would take its place."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    directory = tiny.save(tmp_path / "tiny")
    chosen = EngineSettings(trust_remote_code=True, max_length=128, tensor_parallel=2, eager=True)
    words = _command(directory, chosen, "name", "auto", 4, "127.0.0.1", 1)
    options = [word[2:].partition("=")[0].removeprefix("no-") for word in words if word.startswith("--")]
    assert "lora-target-modules" in options
    assert set(options) - set(RULED) == {"stream-interval"}  # which the user's own precedes


def test_what_the_settings_choose_precedes_a_further_argument(tmp_path: Path) -> None:
    further = {"max-model-len": 256, "tensor-parallel-size": 4, "enforce-eager": False}
    chosen = EngineSettings(max_length=128, tensor_parallel=2, eager=True, arguments=further)
    words = _command(tmp_path, chosen, "name", "auto", 0, "127.0.0.1", 1)
    options = [word for word in words if re.search("model-len|parallel|eager", word)]
    assert options[-3:] == ["--tensor-parallel-size=2", "--max-model-len=128", "--enforce-eager"]
    arguments = _arguments(tmp_path, chosen, "auto", 0)
    assert arguments["max_model_len"] == 128
    assert arguments["tensor_parallel_size"] == 2 and arguments["enforce_eager"] is True


NO_ROOM_FOR_ONE = (
    "To serve at least one request with the models's max seq len (131072), (16.0 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (1.0 GiB). Based on the available memory, the "
    "estimated maximum model length is 8192. Try increasing `gpu_memory_utilization` or decreasing "
    "`max_model_len` when initializing the engine."
)
NO_ROOM_AT_ALL = "No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."


@pytest.mark.parametrize(
    ("said", "gpu", "remedy"),
    [
        (NO_ROOM_FOR_ONE, False, "raise engine.cpu_cache_gib, or lower engine.max_length"),
        (NO_ROOM_FOR_ONE, True, "raise engine.gpu_memory, or lower engine.max_length"),
        (NO_ROOM_AT_ALL, True, "raise engine.gpu_memory, or lower engine.max_length"),
        ("No module named flashinfer", True, "see docs/engines.md"),
    ],
)
def test_keys_and_values_that_do_not_fit_name_the_settings_to_change(
    said: str, gpu: bool, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM names arguments of its own, which recover.yaml calls otherwise."""

    def fail(_: Any) -> None:
        raise ValueError(said)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    for module in (vllm_local, vllm_server):
        monkeypatch.setattr(module, "require_vllm", lambda: None)
    monkeypatch.setattr(vllm_local, "_llm", fail)
    with pytest.raises(EngineLost, match=f": {re.escape(remedy)}$"):
        VllmEngine(tmp_path, SETTINGS)
    server = Server(tmp_path, SETTINGS, name="m", log=tmp_path / "vllm.log")
    server.command = [sys.executable, "-c", f"raise ValueError({said!r})"]
    with pytest.raises(RecoverError, match=f": {re.escape(remedy)}; its log is "):
        server.start()


def test_a_server_that_fails_reports_its_own_failure_not_an_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both append to one log, and lines with errors come before others."""
    monkeypatch.setattr(vllm_server, "require_vllm", lambda: None)
    log = tmp_path / "vllm.log"
    log.write_text("ValueError: too long\n")
    server = Server(tmp_path, SETTINGS, name="m", log=log)
    server.command = [sys.executable, "-c", "raise SystemExit('killed')"]
    with pytest.raises(RecoverError, match="vLLM did not start: killed: "):
        server.start()
    assert "too long" in log.read_text()


def test_an_adapters_rank_becomes_one_that_vllm_has() -> None:
    assert [lora_rank(rank) for rank in (1, 4, 16, 100, 512)] == [1, 8, 16, 128, 512]
    with pytest.raises(InputError, match="at most 512"):
        lora_rank(513)


def test_a_server_learns_nothing_of_the_process_group_that_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what torchrun sets, its own group waited for a store that no process hosts."""
    torchrun = (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
        *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    )
    for name in (*torchrun, "HF_HOME"):
        monkeypatch.setenv(name, "1")
    found = _environment("key", None)
    assert not found.keys() & set(torchrun)
    assert found["HF_HOME"] == "1"


# no orphans -------------------------------------------------------------------------------------------------

FAMILY = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; "
    "time.sleep(600)']); print(child.pid, flush=True); time.sleep(600)"
)
PARENT = (
    "import os, sys, time\nfrom recovery.engines import child_process as guard\n"
    "process = guard.spawn([sys.executable, '-c', sys.argv[1]], sys.stdout.buffer, dict(os.environ))\n"
    "print(process.pid, flush=True)\ntime.sleep(600)"
)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's death on Linux only")
def test_a_server_ends_when_the_process_that_started_it_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, FAMILY], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    assert all(map(running, pids))
    parent.kill()
    parent.wait()
    assert gone(pids)


STARTING = (  # is asked to end when the command runs, but its supervisor does not yet know it
    "import os, signal, subprocess, sys, time\nfrom recovery.engines import child_process as guard\n"
    "start = subprocess.Popen\n"
    "def interrupted(*words, **options):\n"
    "    process = start(*words, **options)\n"
    "    while not os.path.getsize(sys.argv[2]): time.sleep(0.05)\n"
    "    os.kill(os.getpid(), signal.SIGTERM)\n"
    "    return process\n"
    "subprocess.Popen = interrupted\n"
    "guard.main(os.getppid(), [sys.executable, '-c', sys.argv[1]])"
)


def test_a_supervisor_asked_to_end_while_it_starts_leaves_no_orphan(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", STARTING, FAMILY, str(path)], stdout=log)
    child = said_by(path)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert gone([child])


def test_a_guarded_command_and_what_it_started_end_together(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = child_process.spawn([sys.executable, "-c", FAMILY], log, dict(os.environ))
    child = said_by(tmp_path / "log")
    child_process.end(process)
    assert gone([child, process.pid])


STUBBORN = (  # takes a second to end; what it started ignores the request
    "import signal, subprocess, sys, time; "
    "child = subprocess.Popen([sys.executable, '-c', 'import signal, time; "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)'], "
    "stdout=subprocess.PIPE); child.stdout.readline(); "
    "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit())); "
    "print(child.pid, flush=True); time.sleep(600)"
)


def test_a_second_request_to_end_leaves_no_orphan(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = child_process.spawn([sys.executable, "-c", STUBBORN], log, dict(os.environ))
    child = said_by(tmp_path / "log")
    process.terminate()
    time.sleep(0.3)
    process.terminate()
    process.wait(60)
    assert gone([child])


def said_by(log: Path) -> int:
    """Return the number that a process writes into a file."""
    deadline = time.monotonic() + 60
    while not (said := log.read_text()).endswith("\n") and time.monotonic() < deadline:
        time.sleep(0.05)
    return int(said)


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 60
    while any(map(running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(running, pids))


# what may be asked for --------------------------------------------------------------------------------------


def settings(**changes: Any) -> DistillConfig:
    return DistillConfig(prompts="p.jsonl", optimizer=OptimizerConfig(learning_rate=1e-3), **changes)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("opd", "opd-topk or opd-sampled"),
        ("opd-multi", "whole distributions"),
        ("opsd", "has no separate teacher"),
    ],
)
def test_a_distant_teacher_is_refused_where_it_cannot_give_what_is_needed(method: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check(settings(teacher_engine="http://teacher:8000"), table.get(method))
    check(settings(teacher_engine="http://teacher:8000"), table.get("opd-topk"))


def test_a_distant_teacher_that_would_write_with_the_student_is_refused_before_the_first_stage() -> None:
    mixed = table.with_dials("opd-topk", {"states": "teacher-mix:0.2"})
    with pytest.raises(InputError, match="both models write each token: keep"):
        check(settings(teacher_engine="http://teacher:8000"), mixed)
    check(settings(), mixed)


def test_more_entries_or_a_larger_adapter_than_an_engine_takes_are_refused() -> None:
    distant = settings(teacher_engine="http://teacher:8000")
    check(distant, table.with_dials("opd-topk", {"k": 128}))
    with pytest.raises(InputError, match="k=129: an engine sends at most 128 entries a token"):
        check(distant, table.with_dials("opd-topk", {"k": 129}))
    check(settings(), table.with_dials("opd-topk", {"k": 129}))
    for rank, where in ((512, "http://a:1"), (513, "inprocess")):
        check(settings(sampler=where, lora={"rank": rank}), table.get("opd"))
    check(settings(sampler="http://a:1", lora="auto"), table.get("opd"))
    with pytest.raises(InputError, match="an adapter of rank 513: it takes at most 512"):
        check(settings(sampler="http://a:1", lora={"rank": 513}), table.get("opd"))


@pytest.mark.parametrize("where", ["vllm", "server", "http://a:1"])
@pytest.mark.parametrize("method", ["sft", "seqkd", "minillm"])
def test_a_sampler_that_would_not_be_asked_is_refused(where: str, method: str) -> None:
    with pytest.raises(InputError, match=f"'{method}' trains on no answers .* keep --sampler inprocess"):
        check(settings(sampler=where), table.get(method))
    for asked in ("opd", "rft", "gkd", "opd-continue"):
        check(settings(sampler="http://a:1"), table.get(asked))


def test_places_are_checked_by_name() -> None:
    for where in ("inprocess", "http://a:1,http://b:2"):
        check_place("sampler", where)
    with pytest.raises(InputError, match=re.escape("sampler 'vlm': give inprocess, vllm, server or")):
        check_place("sampler", "vlm")


def test_an_engine_inside_one_process_is_refused_to_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="several processes: sampler vllm runs inside one process: take se"):
        check_place("sampler", "vllm")
    with pytest.raises(InputError, match="several processes: teacher engine vllm runs inside one process"):
        check(settings(teacher_engine="vllm"), table.get("opd-topk"))


def test_several_processes_share_servers_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    check(settings(sampler="http://a:1,http://b:2"), table.get("opd"))
    with pytest.raises(InputError, match="several processes"):
        check(settings(sampler="vllm"), table.get("opd"))
    with pytest.raises(InputError, match="one training process"):
        check(settings(sampler="http://a:1", ahead=1), table.get("opd"))


@pytest.mark.parametrize("where", ["sampler", "teacher_engine"])
def test_a_server_of_the_run_s_own_serves_one_machine(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(InputError, match="several machines: server answers on its own machine alone"):
        check(settings(**{where: "server"}), table.get("opd-topk"))
