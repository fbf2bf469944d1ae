"""The fake libcudnn (`fake_cudnn.c`), compiled and scripted.

`FakeCudnn` is one in this process, under a name that nobody takes for cuDNN; `installed` makes a directory that looks
like an installation, for processes that find and load one.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_int64
from pathlib import Path
from typing import Any, Final

import pytest

from algosearch.backends.cudnn.enums import BehaviorNote, HeuristicMode, NumericalNote
from algosearch.backends.cudnn.library import Library

HERE: Final = Path(__file__).parent
SOURCES: Final = ("fake_cudnn.c", "fake_hooks.c", "fake_values.c", "fake_convolution.c", "fake_norm.c", "fake_legacy.c")
FLAGS: Final = (
    "-std=gnu11",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-pthread",
)
ALRIGHT, WRONG, BEYOND, BEYOND_WORKSPACE = range(4)
"""How an engine behaves: it is right, its result is wrong in one place, it writes beyond its result or workspace."""
SHIM: Final = "libcudnn.so.9"
PARTS: Final = (
    "graph",
    "ops",
    "cnn",
    "engines_precompiled",
    "engines_runtime_compiled",
    "heuristic",
    "engines_tensor_ir",
)


@functools.cache
def compiler() -> str:
    """The C compiler of this machine. Without one these tests are skipped, but never on CI, which has one."""
    found = next(
        (path for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name and (path := shutil.which(name))), None
    )
    if found is None:
        message = "NO C COMPILER: the marshalling of cuDNN's calls is NOT tested (install gcc, or set CC)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


def compiled(target: Path, *arguments: str, sources: Sequence[str] = SOURCES) -> Path:
    """A shared library made of C files of this folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler(), *FLAGS, *arguments, "-o", str(target), *sources, "-ldl", "-lm"]
    ended = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return target


def installed(folder: Path, version: int, *, cuda: int = 12, names: Sequence[str] = PARTS) -> Path:
    """A directory like that of an installed cuDNN, with these parts, and the cuBLASLt that it needs."""
    for name in names:
        part(folder, name, version)
    compiled(folder / f"libcublasLt.so.{cuda}", "-DVERSION=0", sources=("fake_part.c",))
    looked_for = ",".join(f'"libcudnn_{name}.so.9"' for name in names)
    versions = (f"-DSHIM={version}", f"-DCUDART={cuda * 1000 + 90}", f"-DPARTS={looked_for}")
    compiled(folder / SHIM, *versions, f"-Wl,-soname,{SHIM}")
    return folder


def part(folder: Path, name: str, version: int, *arguments: str) -> Path:
    """One part of it."""
    file = f"libcudnn_{name}.so.9"
    return compiled(folder / file, f"-DVERSION={version}", f"-Wl,-soname,{file}", *arguments, sources=("fake_part.c",))


class FakeCudnn:
    """The fake in this process. `library` is what the code under test is given; the rest scripts and reads it."""

    def __init__(self, path: Path) -> None:
        self.library = Library(path, "given")
        self._hooks = ctypes.PyDLL(str(path))
        self._hooks.fake_journal.restype = c_char_p
        self._hooks.fake_script.argtypes = (c_char_p, c_int64, c_int, c_int)
        self._hooks.fake_config.argtypes = (c_int, c_int, c_int, ctypes.c_void_p, ctypes.c_void_p, c_int64)

    def reset(self) -> None:
        """As when it was loaded: two engines in INSTANT (one with two choices of knobs), one in FALLBACK."""
        self._hooks.fake_reset()

    def journal(self) -> list[str]:
        """Every call since the last time that this was asked: `set KIND ATTRIBUTE TYPE COUNT: VALUES`, and so on."""
        lines: list[str] = self._hooks.fake_journal().decode().splitlines()
        self._hooks.fake_forget_journal()
        return lines

    def live(self) -> int:
        """Handles and descriptors that somebody, or another descriptor, still holds."""
        return int(self._hooks.fake_live())

    def script(self, call: str, status: int, *, what: int = -1, times: int = -1) -> None:
        """Let a call answer `status`, the next `times` times (-1: from now on), if it is about `what` (-1: anything).

        Calls: `create` and `finalize` (a descriptor's kind), `set` and `get` (an attribute), `heuristics` (a mode),
        `build` and `execute` (an engine), `create_handle`, `stream`, `version`. `plan_workspace` (an engine): the
        status is how many bytes its plans need beyond what its configurations tell. `destroy` (a kind): it is given
        back, whatever the status.

        What is odd of a library: `count` (an attribute) tells so many elements more than there are, `full` always as
        many as there is room for; `words`: the name of a status is NULL (1), or no UTF-8.

        Of the legacy API: `legacy` (a tensor's data type), `mode`, `execute` and, for the size of a backward pass,
        `backward` (a mode). `fused` (a mode) with any status lets that mode do fused ops, which else only the
        persistent one does; `keep` lets the forward pass of a fused one not write its reserve, `beyond` lets it write
        one byte more. `derive` (a mode): the status is the axis that lies closest together in its parameters, in place
        of the last; `derive_type`: they are of its input's type.
        """
        self._hooks.fake_script(call.encode(), what, status, times)

    def forget_engines(self) -> None:
        """No engines and configurations; then `engine` and `config` add some."""
        self._hooks.fake_forget_engines()

    def engine(
        self,
        index: int,
        *,
        numerical: Sequence[int] = (NumericalNote.TENSOR_CORE,),
        behavior: Sequence[int | BehaviorNote] = (),
        behaviour: int = ALRIGHT,
    ) -> None:
        """An engine with its notes; `behaviour` says how badly it computes."""
        self._hooks.fake_engine(index, behaviour, len(numerical), _ints(numerical), len(behavior), _ints(behavior))

    def config(
        self,
        engine: int,
        knobs: Sequence[tuple[int, int]] = (),
        *,
        workspace_bytes: int = 0,
        mode: HeuristicMode = HeuristicMode.INSTANT,
    ) -> None:
        """A configuration that the heuristics list in a mode, after those added before."""
        kinds, values = [kind for kind, _ in knobs], [value for _, value in knobs]
        self._hooks.fake_config(
            mode, engine, len(knobs), _ints(kinds), (c_int64 * len(values))(*values), workspace_bytes
        )

    def watch_lock(self) -> None:
        """From now on a line of the journal begins with `+` if the caller held the interpreter's lock, else `-`."""
        self._hooks.fake_watch_gil(ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p))


def _ints(values: Sequence[int]) -> Any:
    return (c_int * len(values))(*values)
