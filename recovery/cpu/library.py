"""Compile the C kernels beside this file when they are first needed, and load them.

There are none without a compiler, without /proc (macOS), or with another OpenMP library than PyTorch's GNU
one. The library is kept in the user's cache under a hash of source, compiler and processor, so that no
machine runs what another one compiled.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recovery.cpu import matrix_products

log = logging.getLogger(__name__)
SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
FLAGS = ["-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]
WIDE = ["-mprefer-vector-width=512"]  # on x86 compilers avoid the widest vectors by default
TIMEOUT = 120  # seconds
MAPS = Path("/proc/self/maps")  # what is loaded
DIGEST = 32  # bytes of the hash behind the library
EXPORTED = re.compile(r"^(?:void|long) (\w+)\(([^)]*)\)", re.MULTILINE)


def library() -> Any:
    """Return the compiled kernels, or None."""
    return _found()[0]


def why_none() -> str:
    """Return why there are no kernels here; nothing where there are."""
    return _found()[1]


@cache
def _found() -> tuple[Any, str]:
    """Return the compiled kernels, or None and the reason."""
    compiler = _compiler()
    if compiler is None:
        return None, "with GCC (as `cc`) Llama-like models are much faster on a CPU"
    openmp = _openmp()
    if openmp is None:
        return None, "PyTorch's OpenMP library is not GNU's, or cannot be told from others in this process"
    try:
        return _kernels(compiler, openmp), ""
    except subprocess.SubprocessError as error:
        log.info("cpu: kernels not compiled, PyTorch computes everything (%s)", error)
        return None, f"`cc` could not compile them: {_short(error)}"
    except OSError as error:
        log.info("cpu: no kernels, PyTorch computes everything (%s)", error)
        return None, " ".join(str(error).split())


def _short(error: Exception) -> str:
    """Return the error's own words in one short line."""
    said = "it took too long" if isinstance(error, subprocess.TimeoutExpired) else str(error)
    return " ".join(said.split())[-200:]  # a compiler's last words tell most


def _kernels(compiler: list[str], openmp: str) -> Any:
    """Load the library, with the types of its functions' parameters as their source declares them."""
    kernels = _loaded(*_compiled(compiler, openmp))
    for name, parameters in EXPORTED.findall("".join(map(_text, SOURCES))):
        kernel = getattr(kernels, name)
        kernel.argtypes = _argument_types(parameters)
        kernel.restype = ctypes.c_long
    kernels.multiply_with(*products())
    return kernels


def call(kernel: Any, *given: Any) -> int:
    """Call a kernel with numbers, structures, and the addresses of contiguous tensors."""
    if not all(x.is_contiguous() for x in given if isinstance(x, Tensor)):
        raise ValueError("cpu: kernels take contiguous tensors")
    return kernel(*(x.data_ptr() if isinstance(x, Tensor) else x for x in given))


def products() -> tuple[int | None, int | None]:
    """Return the addresses of PyTorch's matrix products of fp32 and bf16, if it exports them and is fast."""
    return _product("sgemm_"), _product("gemm_bf16bf16f32_")


def _product(name: str) -> int | None:
    if matrix_products.is_slow():
        return None
    try:
        torch_library: Any = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(getattr(torch_library, name), ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def _loaded(path: Path, handle: int) -> Any:
    """Load the open library; compiling it again would not help where that fails, as it is whole.

    It stays open: the loader takes two files that were opened under the same number for one.
    """
    opened = f"/proc/self/fd/{handle}"
    try:
        kernels = ctypes.CDLL(opened)
    except OSError as error:
        os.close(handle)
        said = str(error).replace(opened, str(path))
        raise OSError(f"{said}. Is it mounted noexec? Let XDG_CACHE_HOME name another folder") from error
    kernels._name = str(path)
    return kernels


def _compiler() -> list[str] | None:
    """Return the command that compiles: `$CC`, a program or several words (`ccache gcc`), else `cc`."""
    given = os.environ.get("CC", "").strip() or "cc"
    try:
        program, *options = [given] if shutil.which(given) else shlex.split(given)
    except ValueError:  # a quotation mark without its partner
        return None
    found = shutil.which(program)
    return [str(Path(found).absolute()), *options] if found else None


def _argument_types(parameters: str) -> list[Any]:
    """Return the ctypes of a C function's parameters, read from its source."""
    numbers = {"long": ctypes.c_long, "float": ctypes.c_float}
    listed = [] if parameters == "void" else parameters.split(",")
    return [ctypes.c_void_p if "*" in one else numbers[one.split()[-2]] for one in listed]


def _openmp() -> str | None:
    """Return the file of PyTorch's OpenMP library: with two in one process threads block each other."""
    try:
        lines = MAPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    loaded = {line.split(maxsplit=5)[5] for line in lines if "/libgomp" in line}
    package = Path(torch.__file__).resolve().parent
    shipped = {name for name in loaded if name.startswith((f"{package}/", f"{package}.libs/"))}
    candidates = shipped or loaded
    return candidates.pop() if len(candidates) == 1 else None


def _compiled(compiler: list[str], openmp: str) -> tuple[Path, int]:
    """Open the library of this source, compiler and processor; the first process compiles it."""
    version = subprocess.run(
        [*compiler, "--version"], capture_output=True, check=True, timeout=TIMEOUT
    ).stdout
    key = hashlib.sha256(version + f"{compiler[1:]}{_flags()}{openmp}{processor()}".encode())
    for source in SOURCES:
        key.update(_text(source).encode())
    ready = _folder() / f"native-{key.hexdigest()[:24]}.so"
    handle = _opened(ready)
    if handle is None:
        with tempfile.TemporaryDirectory(dir=ready.parent) as folder:
            made = Path(folder) / "native.so"
            compiled = [*compiler, *_flags(), "-fPIC", "-c"]
            sources = [source for source in SOURCES if source.suffix == ".c"]
            with ThreadPoolExecutor() as pool:  # a compiler for each file: the first use waits for it
                list(pool.map(lambda source: _run([*compiled, str(source)], folder), sources))
            objects = map(str, sorted(Path(folder).glob("*.o")))
            _run([*compiler, "-shared", *objects, openmp, "-lm", "-o", str(made)], folder)
            content = made.read_bytes()
            made.write_bytes(content + hashlib.sha256(content).digest())
            made.chmod(0o600)
            made.replace(ready)
        handle = _opened(ready)
    if handle is None:
        raise OSError(f"{ready} was changed while it was written")
    return ready, handle


def _opened(path: Path) -> int | None:
    """Open the library if this user wrote it, no other may write to it and it is whole.

    It ends in its own hash: to load one that is cut off would end the process.
    """
    with suppress(OSError):  # none, a link, or not to be read
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb", closefd=False) as file:
            content = file.read()
        status = os.fstat(handle)
        own = status.st_uid == os.getuid() and not status.st_mode & 0o022
        if own and content[-DIGEST:] == hashlib.sha256(content[:-DIGEST]).digest():
            return handle
        os.close(handle)
    return None


def _flags() -> list[str]:
    return FLAGS + (WIDE if platform.machine() == "x86_64" else [])


def _text(source: Path) -> str:
    return source.read_text(encoding="utf-8")


def _run(command: list[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=TIMEOUT)
    if done.returncode:
        raise subprocess.SubprocessError(
            f"{command[0]}: {done.stderr.decode(errors='replace').strip()[-300:]}"
        )


def _folder() -> Path:
    """Return a folder that only this user can write to or replace: code is run from it."""
    folder = Path(os.path.realpath(_cache())) / "recover"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    exposed = [place for place in (folder, *folder.parents) if _others_may_write(place.stat())]
    if folder.is_symlink():
        why = f"{folder} is a link"
    elif status.st_uid != os.getuid():
        why = f"{folder} belongs to another user"
    elif exposed:
        why = f"{exposed[0]} can be written to by others"
    else:
        return folder
    raise OSError(f"{why}: let XDG_CACHE_HOME name another folder")


def _others_may_write(status: os.stat_result) -> bool:
    """Return whether others can replace what a folder holds: in /tmp each only what is its own.

    Some systems give each user a group with the user's number, which may write to all that the user makes.
    """
    others = stat.S_IWOTH if status.st_gid == os.getuid() else stat.S_IWOTH | stat.S_IWGRP
    return bool(status.st_mode & others) and not status.st_mode & stat.S_ISVTX


def _cache() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:  # no HOME, and a user whom the system does not know, as in a container
        raise OSError("there is no home folder: let XDG_CACHE_HOME name one for what is compiled") from error


def processor() -> str:
    """Return the processor's features, or its name where /proc does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    features = [line for line in lines if line.startswith(("flags", "Features"))]
    return platform.machine() + (features[0] if features else platform.processor())
