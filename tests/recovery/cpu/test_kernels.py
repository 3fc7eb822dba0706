"""The compiled kernels: what PyTorch computes; and nothing at all where they cannot be had."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recovery.cpu import library, llama_decode, llama_forward
from recovery.cpu.library import call
from recovery.cpu.token_kernels import compare, draw
from recovery.forward.fast_path import TokenComparison
from recovery.forward.hidden_states import hidden_states
from tests.support.llama_family import built, chat_of, sampled
from tests.support.present import present

KERNELS: Any = library.library()
needs_compiler = pytest.mark.skipif(KERNELS is None, reason="no compiler here")
SEEDS, WARMTH = st.integers(0, 2**16), st.sampled_from([0.5, 1.0, 2.0])
LOAD = "from recovery.cpu import library; print(library.library() is not None)"


def loaded(cache: Path, code: str = LOAD, **environment: str) -> subprocess.Popen[str]:
    """A process of its own that says whether it has kernels."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def with_the_kernels(cache: Path) -> Path:
    """The cache with what was compiled for the tests, as compiling takes long; returns its folder."""
    folder = cache / "recover"
    folder.mkdir(mode=0o700)
    shutil.copy(KERNELS._name, folder)
    return folder


def said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.strip()


@pytest.mark.slow
@needs_compiler
def test_several_that_come_at_once_share_one_library(tmp_path: Path) -> None:
    assert [said(process) for process in [loaded(tmp_path) for _ in range(3)]] == ["True"] * 3
    (made,) = (tmp_path / "recover").iterdir()
    before = made.stat().st_mtime_ns
    assert said(loaded(tmp_path)) == "True"
    assert made.stat().st_mtime_ns == before


@pytest.mark.slow
@needs_compiler
def test_packages_reached_through_a_link_find_torchs_openmp(tmp_path: Path) -> None:
    """/proc names the file behind a link; scikit-learn brings an OpenMP library of its own."""
    linked = tmp_path / "linked"
    linked.symlink_to(Path(torch.__file__).parents[1])
    with_the_kernels(tmp_path)
    code = f"import sklearn.linear_model, torch; assert {str(linked)!r} in torch.__file__; {LOAD}"
    assert said(loaded(tmp_path, code=code, PYTHONPATH=str(linked))) == "True"


@pytest.fixture
def searched_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Make the next question for the kernels search for them as a new process would, with this compiler."""

    def forget(compiler: str) -> None:
        monkeypatch.setenv("CC", compiler)
        library._found.cache_clear()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield forget
    library._found.cache_clear()


def test_without_a_compiler_everything_goes_on(tmp_path: Path, searched_anew: Callable[[str], None]) -> None:
    failing = tmp_path / "cc"
    failing.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    failing.chmod(0o755)
    for compiler, why in (("no-such-compiler", "with GCC"), (str(failing), "`cc` could not compile")):
        searched_anew(compiler)
        assert library.library() is None
        assert library.why_none().startswith(why)


@pytest.mark.slow
@needs_compiler
def test_the_arithmetic_is_that_of_the_kernels_or_of_the_processor_without_them(tmp_path: Path) -> None:
    with_the_kernels(tmp_path)
    asked = "from recovery.cpu.engine import CpuEngine; print(CpuEngine().arithmetic())"
    assert said(loaded(tmp_path, asked)) == Path(KERNELS._name).name
    assert said(loaded(tmp_path, asked, CC="no-such-compiler")) == library.processor()


def test_the_reason_is_of_the_search_that_found_none(
    searched_anew: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that comes later, or another OpenMP library, changes neither the kernels nor the reason."""
    searched_anew("no-such-compiler")
    assert library.library() is None
    monkeypatch.setenv("CC", "cc")
    assert library.why_none().startswith("with GCC")


@needs_compiler
def test_nothing_is_run_from_where_others_may_write(
    tmp_path: Path, searched_anew: Callable[[str], None]
) -> None:
    folder = with_the_kernels(tmp_path)
    folder.chmod(0o777)
    searched_anew("cc")
    assert library.library() is None
    assert library.why_none().startswith(f"{folder} can be written to by others: ")
    folder.chmod(0o700)
    searched_anew("cc")
    assert library.library()._name == str(folder / Path(KERNELS._name).name)


@needs_compiler
@given(SEEDS, st.integers(1, 70), st.sampled_from([0.01, 1.0, 30.0, 200.0]))
def test_gates_and_their_slopes(seed: int, feed: int, spread: float) -> None:
    random = torch.Generator().manual_seed(seed)
    gate_up = torch.randn(5, 2 * feed, generator=random) * spread
    dy = torch.randn(5, feed, generator=random)
    out, found, given_back = torch.empty(5, feed), torch.empty_like(gate_up), dy.clone()
    call(KERNELS.gates, gate_up, 5, feed, out)
    call(KERNELS.gates_back, gate_up, given_back, 5, feed, found)
    torch.testing.assert_close(given_back, out, rtol=1e-5, atol=1e-6 * spread)
    exact = gate_up.double().requires_grad_()
    gate, up = exact.chunk(2, -1)
    expected = torch.nn.functional.silu(gate) * up
    (slope,) = torch.autograd.grad(expected, exact, dy.double())
    torch.testing.assert_close(out.double(), expected.detach(), rtol=1e-5, atol=1e-6 * spread)
    torch.testing.assert_close(found.double(), slope, rtol=1e-5, atol=2e-6 * spread)


@needs_compiler
@given(SEEDS, st.integers(1, 2500), st.sampled_from([0.05, 1.0, 20.0]), WARMTH)
def test_a_comparison_is_what_its_formulas_say(
    seed: int, vocabulary: int, spread: float, warmth: float
) -> None:
    """Logits far from each other and near, high above zero, at any temperature; overwritten or not."""
    random = torch.Generator().manual_seed(seed)
    student = torch.randn(6, vocabulary, generator=random) * spread + 40
    teacher = student + torch.randn(6, vocabulary, generator=random) * min(spread, 1.0) - 60
    tokens = torch.randint(vocabulary, (6,), generator=random)
    stops = torch.tensor(sorted({0, vocabulary - 1}))
    exact = student.double().requires_grad_()
    p, q = (exact / warmth).log_softmax(-1), (teacher.double() / warmth).log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    (slope,) = torch.autograd.grad(kl.sum(), exact)
    told, found = compared(student, teacher, tokens, stops, warmth)
    at = lambda x: x.gather(1, tokens[:, None])[:, 0]  # noqa: E731
    for mine, expected in (
        (told.reverse_kl_N, kl),
        (told.entropy_N, -(p.exp() * p).sum(-1)),
        (told.student_N, at(p)),
        (told.teacher_N, at(q)),
        (told.student_stop_N, p[:, stops].exp().sum(-1)),
        (told.teacher_stop_N, q[:, stops].exp().sum(-1)),
    ):
        torch.testing.assert_close(mine.double(), expected.detach(), rtol=2e-5, atol=2e-5)
    scale = float(slope.abs().max().clamp(min=1e-3))
    torch.testing.assert_close(found.double() / scale, slope / scale, rtol=1e-3, atol=1e-4)


def compared(
    student: Tensor, teacher: Tensor, tokens: Tensor, stops: Tensor, temperature: float
) -> tuple[TokenComparison, Tensor]:
    """Found the same whether the logits may be overwritten or not."""
    apart, own = student.clone().requires_grad_(), student.clone().requires_grad_()
    found = compare(apart, teacher, tokens, stops, temperature, overwrite=False)
    again = compare(own, teacher, tokens, stops, temperature, overwrite=True)
    assert found is not None and again is not None
    assert torch.equal(apart, student)
    told, slope = found[0], present(found[1])
    assert present(again[1]).data_ptr() == own.data_ptr()
    assert torch.equal(present(again[1]), slope)
    return told, slope


@needs_compiler
def test_a_comparison_of_other_numbers_is_left_to_pytorch() -> None:
    logits, tokens, stops = torch.zeros(2, 5), torch.zeros(2, dtype=torch.long), torch.tensor([1])
    assert compare(logits, logits.bfloat16(), tokens, stops, 1.0, False) is None
    assert compare(logits, torch.zeros(2, 6), tokens, stops, 1.0, False) is None
    assert compare(torch.zeros(5, 2).t(), logits, tokens, stops, 1.0, False) is None
    for outside in (tokens + 5, tokens - 1, tokens.int()):  # where PyTorch refuses, nothing is read astray
        assert compare(logits, logits, outside, stops, 1.0, False) is None
    assert draw(logits, torch.zeros(2), 1.0) is None
    told, slope = compare(logits, logits, tokens, stops, 1.0, True)  # type: ignore[misc]
    assert slope is None  # nobody asked for gradients
    assert told.reverse_kl_N.tolist() == [0, 0]


@needs_compiler
def test_numbers_that_are_none_are_seen_to_be_none() -> None:
    logits = torch.tensor([[0.0, float("nan"), 1.0], [0.0, float("inf"), 1.0]])
    _, logprobs = draw(logits, torch.tensor([0.5, 0.5], dtype=torch.float64), 1.0)  # type: ignore[misc]
    assert not logprobs.isfinite().any()


NARROWER = {"AVX2": ["-mno-avx512f"], "neither": ["-mno-avx512f", "-mno-avx2", "-mno-avx", "-mno-fma"]}


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86")
@pytest.mark.parametrize("name", NARROWER)
def test_processors_of_shorter_vectors_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and panels have other sizes there: states, gradients and samples of a model of odd sizes."""
    expected = everything()
    monkeypatch.setattr(library, "FLAGS", library.FLAGS + NARROWER[name])
    kernels, _ = library._found.__wrapped__()
    assert kernels.panel_width() < KERNELS.panel_width() or KERNELS.panel_width() < 48
    for module in (llama_decode, llama_forward):
        monkeypatch.setattr(module, "library", lambda: kernels)
    for mine, wider in zip(everything(), expected, strict=True):
        scale = float(wider.abs().max().clamp(min=1e-3))
        torch.testing.assert_close(mine / scale, wider / scale, rtol=1e-3, atol=1e-4)


def everything() -> list[Tensor]:
    model = built("grouped")
    tokens = torch.arange(3 * 37).view(3, 37) % 23
    states = hidden_states(model, tokens)
    states.sin().sum().backward()
    rollouts = sampled(chat_of(model), temperature=0.0)
    assert llama_forward.CHECKED[model][True] and llama_decode.CHECKED[model]
    gradients = [parameter.grad for parameter in model.get_decoder().parameters()]
    return [states.detach(), rollouts.logprobs_N, rollouts.tokens_BT.float(), *gradients]
