"""Loading cuDNN: one version, all of its parts from one directory, called through two views.

`libcudnn.so.9` is a shim that opens its parts by bare name when they are first needed, and the system's loader looks
into `LD_LIBRARY_PATH` before it looks beside the shim. So a part that the directory lacks, or an older directory that
comes first, gives a mixture of versions, which works until it does not. Therefore every part is opened here, by its
path, before the shim can ask for it: a name that is already loaded is not looked for again.

What another package of this process has loaded (PyTorch, say) is taken as it is, for a second copy beside it would be
such a mixture.

Two views of one loaded library: `long` gives the interpreter's lock up during a call, for what takes its time (loading,
heuristics, building, first launches); `short` keeps it, for what takes microseconds: winning the lock back costs up to
5 ms while another thread computes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from ctypes import CDLL, POINTER, PyDLL, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Final

from algosearch.backends.cudnn import locate
from algosearch.backends.cudnn.status import SUCCESS, CudnnError
from algosearch.errors import DeviceUnavailable
from algosearch.records.plain import plain
from algosearch.settings import cudnn_location

OLDEST_VERSION: Final = 90200
"""The first that tells an engine configuration's workspace without building it."""
_FIRST_PARTS: Final = ("libcudnn_graph.so.9", "libcudnn_ops.so.9")
"""Needed by the other parts, so loaded before them."""
_NEEDED_PARTS: Final = (
    *_FIRST_PARTS,
    "libcudnn_engines_precompiled.so.9",
    "libcudnn_engines_runtime_compiled.so.9",
    "libcudnn_heuristic.so.9",
)
_PARTS_SINCE: Final = {"libcudnn_cnn.so.9": 90000, "libcudnn_engines_tensor_ir.so.9": 92300}
"""Others that a version comes with. Not there, a system's copy of another version would be taken."""
_MESSAGE_BYTES: Final = 4096
OVERRIDES: Final = (
    "NVIDIA_TF32_OVERRIDE",
    "CUDNN_CONV_WSCAP_DBG",
    "CUDNN_SKIPHEUR_DBG",
    "CUDNN_FORCE_JIT_DBG",
    "CUDNN_JIT_FLAGS_DBG",
    "CUDNN_PREFER_SM_COUNT_DBG",
)
"""Environment variables that change what the library offers or how it computes (strings of its 9.19 binaries)."""

_POINTER, _INT64 = c_void_p, c_int64
_PROTOTYPES: Final[dict[str, tuple[object, tuple[object, ...]]]] = {
    "cudnnGetVersion": (c_size_t, ()),
    "cudnnGetCudartVersion": (c_size_t, ()),
    "cudnnGraphVersionCheck": (c_int, ()),
    "cudnnGetErrorString": (c_char_p, (c_int,)),
    "cudnnGetLastErrorString": (None, (c_char_p, c_size_t)),
    "cudnnCreate": (c_int, (POINTER(c_void_p),)),
    "cudnnDestroy": (c_int, (_POINTER,)),
    "cudnnSetStream": (c_int, (_POINTER, _POINTER)),
    "cudnnBackendCreateDescriptor": (c_int, (c_int, POINTER(c_void_p))),
    "cudnnBackendDestroyDescriptor": (c_int, (_POINTER,)),
    "cudnnBackendSetAttribute": (c_int, (_POINTER, c_int, c_int, _INT64, _POINTER)),
    "cudnnBackendGetAttribute": (c_int, (_POINTER, c_int, c_int, _INT64, POINTER(_INT64), _POINTER)),
    "cudnnBackendFinalize": (c_int, (_POINTER,)),
    "cudnnBackendExecute": (c_int, (_POINTER, _POINTER, _POINTER)),
}
"""Result and arguments of everything that is always called, as declared in `cudnn_graph.h` of 9.28."""


class CudnnUnusable(DeviceUnavailable):
    """No cuDNN of this machine can be used. `reason` says what was found, `remedy` what to install."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__("cudnn", reason, remedy)
        self.args = (reason, remedy)


class Library:
    """A loaded cuDNN. Made by `load`; never unloaded, as nothing can prove that nobody uses it any more."""

    def __init__(self, shim: Path, source: str) -> None:
        self.directory = str(shim.parent)
        """Where all of its parts are."""
        self.source = source
        """Who named that directory: `loaded`, `given`, `ALGOSEARCH_CUDNN`, `wheel`, `toolkit` or `system`."""
        self.missing: tuple[str, ...] = ()
        """What it can work without, and does: why an answer from here is not everybody's. One sentence each."""
        self.compiler = False
        """Whether NVRTC is there, without which engines that are compiled at run time cannot be built."""
        self.long = CDLL(str(shim), mode=ctypes.RTLD_GLOBAL)
        """The view that gives the interpreter's lock up."""
        self.short = PyDLL(str(shim), mode=ctypes.RTLD_GLOBAL)
        """The view that keeps it."""
        for view in (self.long, self.short):
            for name, (result, arguments) in _PROTOTYPES.items():
                _declare(view, name, result, arguments)

        self.version = int(self.long.cudnnGetVersion())
        """Major * 10000 + minor * 100 + patch."""
        self.cudart_version = int(self.long.cudnnGetCudartVersion())
        """Of the CUDA runtime that it was built with: 12090 is 12.9."""

    def __repr__(self) -> str:
        return f"<cuDNN {self.version_text} from {self.directory} ({self.source})>"

    @classmethod
    def load(cls, path: str | None = None, *, environ: Mapping[str, str] | None = None) -> Library:
        """The cuDNN of this process. Blocking: 20 ms where the files are in memory, else as long as the disk takes.

        Args:
            path: a directory, or the `libcudnn.so.9` in one; left out, what is loaded already, what `ALGOSEARCH_CUDNN`
                names, the installed wheel, a CUDA toolkit, or what the system finds, in this order.
            environ: in place of this process's environment.

        Raises:
            CudnnUnusable: none is there, or it is too old, lacks a part, or its parts do not belong together.
        """
        environ = os.environ if environ is None else environ
        shim, source = find(path, environ)
        failed = _load_parts(shim.parent)
        try:
            library = cls(shim, source)
        except (OSError, AttributeError) as error:
            raise CudnnUnusable(f"{shim} cannot be loaded: {error}", _REINSTALL) from error
        library._check()
        library._complete(failed, environ)
        return library

    @property
    def version_text(self) -> str:
        """As people write it: `9.19.0`."""
        return version_text(self.version)

    def facts(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """What of this library enters a key: its version, CUDA's, and whatever changes what it offers."""
        environ = os.environ if environ is None else environ
        return {
            "cudnn": self.version_text,
            "cudart": version_text(self.cudart_version, cuda=True),
            "nvrtc": "yes" if self.compiler else "no",
            **{name: plain(environ[name]) for name in OVERRIDES if environ.get(name)},
        }

    def check(self, status: int, call: str) -> None:
        """Nothing, if `status` is success.

        Raises:
            CudnnError: with what the library said last in this thread, so ask before calling it again.
        """
        if status != SUCCESS:
            raise self.error(status, call)

    def error(self, status: int, call: str) -> CudnnError:
        """What a failed call says, with the library's own words."""
        name = (self.short.cudnnGetErrorString(status) or b"status").decode(errors="replace")
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        self.short.cudnnGetLastErrorString(text, _MESSAGE_BYTES)
        words = " ".join(text.value.decode(errors="replace").split())
        return CudnnError(call, status, f"{name} ({status})" + (f": {words}" if words else ""))

    def has(self, name: str, arguments: tuple[object, ...]) -> bool:
        """Whether this version has a function that not every version has. It is then declared in both views, as one
        that returns a status."""
        try:
            for view in (self.long, self.short):
                _declare(view, name, c_int, arguments)
        except AttributeError:
            return False
        return True

    def _check(self) -> None:
        if self.version < OLDEST_VERSION:
            raise CudnnUnusable(
                f"{self.directory} holds cuDNN {self.version_text}, and 9.2 is the oldest that will do", _INSTALL
            )
        directories = sorted({str(file.parent) for file in locate.loaded_files()})
        if len(directories) > 1:
            raise CudnnUnusable(f"parts of cuDNN were loaded from {' and '.join(directories)}", _SEPARATE)
        status = self.long.cudnnGraphVersionCheck()
        if status != SUCCESS:
            raise CudnnUnusable(
                f"the parts in {self.directory} do not belong together: "
                f"{self.error(status, 'cudnnGraphVersionCheck').message}",
                _REINSTALL,
            )

    def _complete(self, failed: Mapping[str, str], environ: Mapping[str, str]) -> None:
        """Look after what cuDNN opens later, and by name: a missing cuBLASLt aborts the process."""
        directory, major = Path(self.directory), self.cudart_version // 1000
        absent = [
            name
            for name, since in _PARTS_SINCE.items()
            if self.version >= since and name not in failed and not locate.is_file(directory / name)
        ]
        self.missing = (
            *(f"{name} is not in {directory}" for name in absent),
            *(f"{name} cannot be loaded: {reason}" for name, reason in failed.items()),
        )
        lacking = _open_companion(f"libcublasLt.so.{major}", directory, environ)
        if lacking is not None:
            raise CudnnUnusable(
                f"cuDNN {self.version_text} needs cuBLASLt of CUDA {major}: {lacking}",
                f"pip install nvidia-cublas{'-cu12' if major == 12 else ''}, or install that CUDA toolkit",
            )
        # Loading NVRTC takes as long as all parts together, and few engines need it: where cuDNN finds it, it waits.
        compiler = f"libnvrtc.so.{major}"
        self.compiler = bool(locate.beside(compiler, directory)) or (
            _open_companion(compiler, directory, environ) is None
        )


def _load_parts(directory: Path) -> dict[str, str]:
    """Open every part in a directory. Those that cannot be, with the reason, unless nothing works without them.

    Raises:
        CudnnUnusable: a part is missing or broken without which nothing works.
    """
    names = {part.name for part in directory.glob("libcudnn_*.so.9") if locate.is_file(part)}
    lacking = [name for name in _NEEDED_PARTS if name not in names]
    if lacking:
        raise CudnnUnusable(f"{directory} lacks {', '.join(lacking)}", _REINSTALL)
    failed: dict[str, str] = {}
    for name in (*_FIRST_PARTS, *sorted(names - set(_FIRST_PARTS))):
        try:
            CDLL(str(directory / name), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            failed[name] = str(error)

    if any("libcuda.so" in reason for reason in failed.values()):
        raise CudnnUnusable(f"there is no NVIDIA driver ({failed.popitem()[1]})", "install the driver of your GPU")
    broken = [f"{name} cannot be loaded: {failed[name]}" for name in _NEEDED_PARTS if name in failed]
    if broken:
        raise CudnnUnusable("; ".join(broken), _REINSTALL)
    return failed


def _open_companion(name: str, directory: Path, environ: Mapping[str, str]) -> str | None:
    """Open a library that cuDNN will look for by name; why it cannot be, or None."""
    if _can_open(name, os.RTLD_NOLOAD):
        return None
    reasons: list[str] = []
    for file in (*locate.beside(name, directory), name, *locate.in_toolkits(name, environ)):
        try:
            CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            reasons.append(str(error))
        else:
            return None

    return "; ".join(reasons)


def _can_open(name: str, flags: int = 0) -> bool:
    try:
        CDLL(name, mode=ctypes.RTLD_LOCAL | flags)
    except OSError:
        return False
    return True


_INSTALL: Final = "pip install 'algosearch[cuda12]' (or cuda13), or name a newer one in ALGOSEARCH_CUDNN"
_REINSTALL: Final = "reinstall nvidia-cudnn-cu12 (or -cu13), or name a whole one in ALGOSEARCH_CUDNN"
_SEPARATE: Final = "keep one cuDNN in LD_LIBRARY_PATH and the packages of this environment"


def version_text(version: int, *, cuda: bool = False) -> str:
    """`9.19.0` of 91900; of CUDA's own numbering, `12.9` of 12090. cuDNN 8 counted in thousands: 8907 is 8.9.7."""
    if cuda:
        return f"{version // 1000}.{version % 1000 // 10}"
    major, rest = divmod(version, 10000 if version >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _declare(view: CDLL, name: str, result: object, arguments: tuple[object, ...]) -> None:
    function = getattr(view, name)
    function.restype, function.argtypes = result, arguments


def find(path: str | None = None, environ: Mapping[str, str] | None = None) -> tuple[Path, str]:
    """The shim that `Library.load` would load, and who named it. Loads nothing: microseconds to a millisecond.

    Raises:
        CudnnUnusable: there is none, or it is not the one that is loaded already.
    """
    environ = os.environ if environ is None else environ
    wanted, source = (path, "given") if path else (cudnn_location(environ), "ALGOSEARCH_CUDNN")
    replaced = locate.replaced_file()
    if replaced is not None:
        raise CudnnUnusable(
            f"{replaced} is loaded in this process, and was removed or replaced since", "start a fresh process"
        )
    loaded = locate.loaded_shim()
    if wanted:
        shim = locate.shim_in(Path(wanted))
        if shim is None:
            raise CudnnUnusable(f"there is no {locate.SHIM} in {wanted} ({source})", "name its directory, or none")
        if loaded is not None and not loaded.samefile(shim):
            raise CudnnUnusable(
                f"{loaded} is loaded in this process, and {wanted} ({source}) is another",
                f"a process can use one cuDNN: leave {source} out, or do not import what loaded the first",
            )
        return shim, source
    if loaded is not None:
        return loaded, "loaded"
    tried: list[str] = []
    found = locate.installed(environ, tried)
    if found is None:
        raise CudnnUnusable(f"no cuDNN 9 was found: {'; '.join(tried)}", _INSTALL)
    return found
