"""Where a cuDNN may be: in this process already, in an installed wheel, in a toolkit, or where the system looks.

Nothing is loaded here: where the system's loader would look is worked out, from its variable and its cache.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SHIM: Final = "libcudnn.so.9"
_MAPS: Final = Path("/proc/self/maps")
_GONE: Final = " (deleted)"
_LOADER_CACHE: Final = Path("/etc/ld.so.cache")
_PART: Final = re.compile(r"(libcudnn(?:_\w+)?\.so\.9)(?:\.[0-9.]+)?")
_ROOT_VARIABLES: Final = ("CUDNN_HOME", "CUDNN_PATH", "CUDA_HOME", "CUDA_PATH")
_USUAL_ROOTS: Final = ("/usr/local/cuda", "/opt/cuda")
_LIBRARY_FOLDERS: Final = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")


def is_file(path: Path) -> bool:
    """Whether a file can be seen there. No other question is asked of a path: `Path.is_file` raises where it is not
    allowed to look, or a name is too long, and a FIFO would be waited for by whoever opens it."""
    return os.path.isfile(path)


def loaded_files() -> list[Path]:
    """The files of cuDNN 9 that are loaded in this process: the shim, parts, twice if there are two of one name."""
    return [path for path in map(Path, _mapped()) if _PART.fullmatch(path.name)]


def replaced_file() -> Path | None:
    """A file of cuDNN 9 that is loaded in this process and that its folder has not got any more, as after an upgrade:
    what is there now would be a second copy. None if there is none."""
    gone = (Path(path.removesuffix(_GONE)) for path in _mapped() if path.endswith(_GONE))
    return next((path for path in gone if _PART.fullmatch(path.name)), None)


def loaded_shim() -> Path | None:
    """The shim that is loaded in this process; None if there is none."""
    return next((path for path in loaded_files() if _is_shim(path)), None)


def shim_in(place: Path) -> Path | None:
    """The shim that a directory, or a path of the shim itself, stands for; None if there is none."""
    if is_file(place):
        return place.absolute() if _is_shim(place) else None
    shim = place / SHIM
    return shim.absolute() if is_file(shim) else None


def installed(environ: Mapping[str, str], tried: list[str]) -> tuple[Path, str] | None:
    """The best shim that is installed, and where: `wheel`, `toolkit` or `system`. In `tried`: where none is."""
    for source, places in (("wheel", _wheels()), ("toolkit", _toolkits(environ)), ("system", _system(environ))):
        for shim in map(shim_in, places):
            if shim is not None:
                return shim, source

        tried.append(f"no {source} has it" + (f" ({', '.join(map(str, places))})" if places else ""))

    return None


def beside(name: str, directory: Path) -> list[Path]:
    """The files of this name where cuDNN itself looks for what it opens by name (`libnvrtc.so.12`): beside it, and in
    the wheels of its family."""
    family = directory.parent.parent  # .../nvidia/cudnn/lib
    folders = (directory, *(family / each / "lib" for each in ("cublas", "cuda_nvrtc", "cu13")))
    return [folder / name for folder in folders if is_file(folder / name)]


def in_toolkits(name: str, environ: Mapping[str, str]) -> list[Path]:
    """The files of this name in CUDA toolkits."""
    return [folder / name for folder in _toolkits(environ) if is_file(folder / name)]


def _mapped() -> list[str]:
    """What of cuDNN's is mapped into this process, as the kernel spells it."""
    try:
        maps = os.fsdecode(_MAPS.read_bytes())
    except OSError:
        return []
    return list(dict.fromkeys("/" + line.partition("/")[2] for line in maps.splitlines() if "/libcudnn" in line))


def _is_shim(path: Path) -> bool:
    return _PART.fullmatch(path.name) is not None and "_" not in path.name


def _wheels() -> list[Path]:
    """Where nvidia-cudnn-cu12 and -cu13 put their libraries: both into the same folder, so the last one wins."""
    try:
        spec = find_spec("nvidia")
    except (ImportError, ValueError):  # ValueError: a module of that name without a spec
        return []
    locations = spec.submodule_search_locations if spec is not None else None
    return [Path(location) / "cudnn" / "lib" for location in locations or ()]


def _toolkits(environ: Mapping[str, str]) -> list[Path]:
    roots = [environ[name] for name in _ROOT_VARIABLES if environ.get(name)] + [*_USUAL_ROOTS, sys.prefix]
    return [
        folder
        for root in dict.fromkeys(roots)
        for each in _LIBRARY_FOLDERS
        if os.path.isdir(folder := Path(root, each))
    ]


def _system(environ: Mapping[str, str]) -> list[Path]:
    """Where the system's loader looks: its variable, then its cache, whose format is left alone but for the paths."""
    named = [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    try:
        cache = _LOADER_CACHE.read_bytes()
    except OSError:
        return named
    return named + [Path(os.fsdecode(path)) for path in re.findall(rb"\0(/[^\0]*/libcudnn\.so\.9)(?=\0)", cache)]
