"""The kernels in C beside this file, compiled when first wanted: fp32 on a CPU, where the machine has GCC.

Everything here has a form in PyTorch that is used where this is None: no compiler, another system, another
threading library than PyTorch's GCC one, or RECOVER_NATIVE=0. What is compiled lies in the user's cache under
a name made of the source, the compiler and the processor, so that no machine runs what another one made.

Shapes: B rows, D hidden, S slots, W head width, N tokens, V vocabulary; O outputs of I inputs.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recovery.cpu import matrix_products
from recovery.cpu.fused_layers import epsilon

if TYPE_CHECKING:
    from recovery.cpu.llama_layers import LayerWeights
    from recovery.forward.kv_cache import Slots

log = logging.getLogger(__name__)
SWITCH = "RECOVER_NATIVE"  # 0: compile nothing
SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
FLAGS = ["-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]
WIDE = ["-mprefer-vector-width=512"]  # on x86, where compilers hold back
PATIENCE = 120  # seconds
EXPORTED = re.compile(r"^(?:void|long) (\w+)\(([^)]*)\)", re.MULTILINE)
PARTS = (  # of a layer, in the order of llama.py and native.h
    "before",
    "qkv",
    "qkv_bias",
    "head_norm",
    "out",
    "out_bias",
    "between",
    "gate",
    "gate_bias",
    "up",
    "up_bias",
    "down",
    "down_bias",
)
PRODUCTS = ("qkv", "out", "gate", "up", "down")
LONGEST = 16  # numbers of a vector, on the processor of the longest
NUMBERS = ("before_epsilon", "head_epsilon", "between_epsilon", "scale")


def library() -> Any:
    """The compiled kernels, or None."""
    return None if os.environ.get(SWITCH) == "0" else _library()


def call(kernel: Any, *given: Any) -> int:
    """A kernel with addresses of contiguous tensors, and numbers."""
    assert all(x.is_contiguous() for x in given if isinstance(x, Tensor))
    return kernel(*(x.data_ptr() if isinstance(x, Tensor) else x for x in given))


@cache
def _library() -> Any:
    compiler, threads = shutil.which(os.environ.get("CC", "cc")), _threads()
    if compiler is None or threads is None:
        return None
    compiler = str(Path(compiler).absolute())
    try:
        kernels = _loaded(_compiled(compiler, threads)) or ctypes.CDLL(str(_compiled(compiler, threads)))
    except (OSError, subprocess.SubprocessError) as error:
        log.info("native: nothing was compiled, PyTorch does it all (%s)", error)
        return None
    for name, parameters in EXPORTED.findall("".join(map(_text, SOURCES))):
        kernel = getattr(kernels, name)
        kernel.argtypes, kernel.restype = _kinds(parameters), ctypes.c_long
    kernels.multiply_with(_product())
    return kernels


def _product() -> int | None:
    """Where the product of fp32 matrices is that PyTorch calls, if its library shows it and is fast here."""
    if matrix_products.is_slow():
        return None
    try:
        found: Any = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(found.sgemm_, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def _loaded(path: Path) -> Any:
    """The library, or None and it is gone: what cannot be loaded is damaged, and made anew."""
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        path.unlink(missing_ok=True)
        return None


def _kinds(parameters: str) -> list[Any]:
    """What a function in C is given, as it says itself."""
    kinds = {"long": ctypes.c_long, "float": ctypes.c_float}
    given = [] if parameters == "void" else parameters.split(",")
    return [ctypes.c_void_p if "*" in one else kinds[one.split()[-2]] for one in given]


def _threads() -> str | None:
    """The file of PyTorch's OpenMP library: two in one process would wait for each other."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = {line.split(maxsplit=5)[5] for line in lines if "/libgomp" in line}
    own = {name for name in found if name.startswith(str(Path(torch.__file__).parent))} or found
    return own.pop() if len(own) == 1 else None


def _compiled(compiler: str, threads: str) -> Path:
    """The library of this source, compiler and processor: made once, by whoever comes first."""
    asked = [compiler, "--version"]
    known = subprocess.run(asked, capture_output=True, check=True, timeout=PATIENCE).stdout
    key = hashlib.sha256(known + f"{_flags()}{threads}{_processor()}".encode())
    for source in SOURCES:
        key.update(_text(source).encode())
    ready = _folder() / f"native-{key.hexdigest()[:24]}.so"
    if not ready.exists():
        with tempfile.TemporaryDirectory(dir=ready.parent) as folder:
            made = Path(folder) / "native.so"
            _run([compiler, *_flags(), "-fPIC", "-c", *(str(c) for c in SOURCES if c.suffix == ".c")], folder)
            objects = map(str, sorted(Path(folder).glob("*.o")))
            _run([compiler, "-shared", *objects, threads, "-lm", "-o", str(made)], folder)
            made.replace(ready)
    return ready


def _flags() -> list[str]:
    return FLAGS + (WIDE if platform.machine() == "x86_64" else [])


def _text(source: Path) -> str:
    return source.read_text(encoding="utf-8")


def _run(command: list[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip()[-300:]}")


def _folder() -> Path:
    """Where only this user writes: code is run from here."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "recover"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise OSError(f"{folder} can be written to by others")
    return folder


def _processor() -> str:
    """What this processor can do; its name where that is not told."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    told = [line for line in lines if line.startswith(("flags", "Features"))]
    return platform.machine() + (told[0] if told else platform.processor())


@dataclass(frozen=True)
class Comparison:
    """What `compare` tells of each token."""

    reverse_kl_N: Any
    entropy_N: Tensor
    student_N: Tensor  # log-probabilities of the token
    teacher_N: Any
    student_stop_N: Tensor  # probability of the stops
    teacher_stop_N: Any


def compare(
    student_NV: Tensor,
    teacher_NV: Tensor,
    tokens_N: Tensor,
    stops: Tensor,
    temperature: float,
    overwrite: bool,
) -> tuple[Comparison, Tensor | None] | None:
    """Two sets of logits, and the slope of the reverse KL along the student's if gradients are on; it takes
    the logits' own place where they may be overwritten. None where there are no kernels for them."""
    both, size = (student_NV, teacher_NV), student_NV.shape
    fit = _fits(*both) and size == teacher_NV.shape and _are_entries(tokens_N, size[-1])
    kernels = library() if fit else None
    if kernels is None:
        return None
    told_N6, slope_NV = student_NV.new_empty(len(student_NV), 6), None
    if torch.is_grad_enabled() and student_NV.requires_grad:
        slope_NV = student_NV.detach() if overwrite else torch.empty_like(student_NV)
    tokens_N = tokens_N.contiguous()
    call(kernels.reverse_kl, *both, 1 / temperature, tokens_N, stops, len(stops), *size, slope_NV, told_N6)
    return Comparison(*told_N6.t().contiguous()), slope_NV


def draw(logits_BV: Tensor, numbers_B: Tensor, temperature: float) -> tuple[Tensor, Tensor] | None:
    """The token where each row's running sum of probabilities passes its number, and its log-probability."""
    kernels = library() if _fits(logits_BV) and numbers_B.dtype == torch.float64 else None
    if kernels is None:
        return None
    token_B, logprob_B = torch.empty_like(numbers_B, dtype=torch.long), logits_BV.new_empty(len(logits_BV))
    call(
        kernels.draw, logits_BV, numbers_B.contiguous(), 1 / temperature, *logits_BV.shape, token_B, logprob_B
    )
    return token_B, logprob_B


def _fits(*tensors: Tensor) -> bool:
    return all(x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous() for x in tensors)


def _are_entries(tokens_N: Tensor, vocabulary: int) -> bool:
    """What is outside a vocabulary is for PyTorch to refuse."""
    lowest, highest = tokens_N.aminmax() if len(tokens_N) else (0, 0)
    return tokens_N.dtype == torch.long and int(lowest) >= 0 and int(highest) < vocabulary


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("layers", "hidden", "queries", "keys", "width", "feed")]


def shape_of(layers: Sequence[LayerWeights]) -> Shape:
    """That of all layers, whose parts must fit each other: kernels take their word for it."""
    one = layers[0]
    shape = Shape(len(layers), len(one.before), one.queries, one.keys, one.width, len(one.gate))
    for layer in layers:
        layer.check(shape.hidden, shape.feed)
    return shape


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*PARTS, "keys", "values")),
        *((name, ctypes.c_long) for name in ("row_stride", "head_stride")),
        *((name, ctypes.c_float) for name in NUMBERS),
    ]


def structures(kind: Any, tensors: Sequence[dict[str, Tensor | None]]) -> Any:
    """An array of structures of addresses, of tensors that the caller holds."""
    rows = ({name: None if x is None else x.data_ptr() for name, x in row.items()} for row in tensors)
    return (kind * len(tensors))(*(kind(**row) for row in rows))


def addresses_of(layers: Sequence[LayerWeights], laid_out: Sequence[dict[str, Tensor | None]]) -> Any:
    """Of layers whose tensors lie as kernels read them."""
    found = structures(_Layer, laid_out)
    for one, own in zip(found, layers, strict=True):
        for name in NUMBERS:
            setattr(one, name, getattr(own, name))
    return found


def plain(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.detach().contiguous()


class Layers:
    """Llama-like layers for a token a row, the norm behind them and, if there is one, a head: in one call."""

    def __init__(self, kernels: Any, layers: Sequence[LayerWeights], norm: Any, head: Tensor | None) -> None:
        self.kernels, self.shape = kernels, shape_of(layers)
        width, hidden = kernels.panel_width(), self.shape.hidden
        if not _fits(norm.weight) or len(norm.weight) != hidden:
            raise RuntimeError("the last norm does not fit the layers")
        if head is not None and (head.dtype != torch.float32 or head.shape[1] != hidden):
            raise RuntimeError("the head does not fit the layers")
        self.held = [
            {name: plain(_panels(x, width) if name in PRODUCTS else x) for name, x in own.tensors().items()}
            for own in layers
        ]
        self.layers = addresses_of(layers, self.held)
        self.norm, self.epsilon = plain(norm.weight), epsilon(norm)
        self.head, self.outputs = plain(_panels(head, width)), hidden if head is None else len(head)

    def __call__(
        self, x_BD: Tensor, cos_PW: Tensor, sin_PW: Tensor, starts_B: Tensor, slots: Slots
    ) -> Tensor:
        """What the head says, or what it sees; `x_BD` itself is changed."""
        seen, rows = slots.get_seq_length(), len(x_BD)
        self._look_at(slots, seen + 1, cos_PW)
        out, scratch = x_BD.new_empty(rows, self.outputs), self._scratch(rows, seen + 1)
        given = rows, x_BD, cos_PW, sin_PW, starts_B, slots.places(rows), seen
        call(self.kernels.decode, byref(self.shape), self.layers, *given, *self._behind(), out, scratch)
        slots.fill_to(seen + 1)
        return out

    def write_on(
        self,
        rows: Rows,
        embeddings: Tensor,
        cos_PW: Tensor,
        sin_PW: Tensor,
        slots: Slots,
        writing: Writing,
        step: int,
        steps: int,
    ) -> tuple[int, int]:
        """Up to so many tokens for each row, each written where it belongs. How many steps were made, and how
        many rows go on: those come first in `rows`, and the slots are theirs."""
        seen, count = slots.get_seq_length(), len(rows.token_B)
        self._look_at(slots, seen + steps, cos_PW)
        x, logits = torch.empty(count, self.shape.hidden), torch.empty(count, self.outputs)
        drawn, told = torch.empty(count, dtype=torch.float64), torch.empty(count)
        work, left = (x, logits, drawn, told, self._scratch(count, seen + steps)), ctypes.c_long()
        made = call(
            self.kernels.write_on,
            byref(self.shape),
            self.layers,
            count,
            _rows_at(rows),
            embeddings,
            cos_PW,
            sin_PW,
            seen,
            *self._behind(),
            writing.numbers_RT,
            writing.scale,
            writing.stops,
            len(writing.stops),
            step,
            steps,
            writing.tokens_RT.shape[1],
            writing.tokens_RT,
            writing.logprobs_RT,
            *work,
            byref(left),
        )
        slots.fill_to(seen + made)
        return made, left.value

    def _behind(self) -> tuple[Any, ...]:
        return self.norm, self.epsilon, self.head, self.outputs

    def _look_at(self, slots: Slots, seen: int, turns_PW: Tensor) -> None:
        """Keys and values are where these slots have them, with room for what is seen then."""
        if turns_PW.shape[-1] != self.shape.width or len(turns_PW) < seen:
            raise RuntimeError("a part of each head is turned, not all of it")
        for layer, own in zip(self.layers, slots.layers, strict=True):
            keys, values = own.in_order(seen)
            layer.keys, layer.values = keys.data_ptr(), values.data_ptr()
            layer.row_stride, layer.head_stride = keys.stride()[:2]

    def _scratch(self, rows: int, seen: int) -> Tensor:
        shape = self.shape
        heads = 2 * (shape.queries + shape.keys) * shape.width
        return torch.empty(rows * (shape.hidden + heads + shape.feed + seen + LONGEST))


@dataclass(frozen=True)
class Rows:
    """Those that go on: the last token of each, its first slot, the place of its keys and values, and which
    of all rows it is."""

    token_B: Tensor
    start_B: Tensor
    place_B: Tensor
    which_B: Tensor

    def take(self, index: Any) -> Rows:
        return Rows(*(part[index] for part in vars(self).values()))


@dataclass(frozen=True)
class Writing:
    """What all R rows get, T tokens at most, and how: without numbers, the most likely."""

    tokens_RT: Tensor
    logprobs_RT: Tensor
    numbers_RT: Tensor | None
    scale: float
    stops: Tensor


def _rows_at(rows: Rows) -> Any:
    at = [part.data_ptr() for part in vars(rows).values()]
    return (ctypes.c_void_p * len(at))(*at)


def _panels(weight_OI: Tensor | None, width: int) -> Tensor | None:
    """A linear layer's weight in panels of so many outputs, input after input; zeros fill the last."""
    if weight_OI is None:
        return None
    padded = torch.nn.functional.pad(weight_OI, (0, 0, 0, -len(weight_OI) % width))
    return padded.view(-1, width, weight_OI.shape[1]).transpose(1, 2)
