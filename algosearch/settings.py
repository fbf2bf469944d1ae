"""The environment variables, read here and nowhere else, each time a searcher opens (never at import)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from algosearch.errors import InvalidSetting

Mode = Literal["cached", "heuristic", "race", "exhaustive"]
"""How a miss is answered.

`cached`: it is an error. `heuristic`: by the library's first candidate, nothing run, nothing stored. `race`: by timing
the promising candidates against each other. `exhaustive`: by timing all of them.
"""
MODES: Final[tuple[Mode, ...]] = get_args(Mode)

MEMORY: Final = "memory:"
"""The store that keeps nothing beyond the searcher."""
SERVERS: Final = ("redis", "rediss", "unix")
"""How the URL of a server begins."""

Isolation = Literal["thread", "process"]
"""Where a device's session lives.

`thread`: in this process. `process`: in a child of it, which a hang or a crash costs in its place.
"""
ISOLATIONS: Final[tuple[Isolation, ...]] = get_args(Isolation)

MODE_VARIABLE: Final = "ALGOSEARCH_MODE"
STORE_VARIABLE: Final = "ALGOSEARCH_STORE"
BASE_VARIABLE: Final = "ALGOSEARCH_BASE"
ISOLATION_VARIABLE: Final = "ALGOSEARCH_ISOLATION"
STRICT_VARIABLE: Final = "ALGOSEARCH_STRICT"
DEBUG_VARIABLE: Final = "ALGOSEARCH_DEBUG"
CUDNN_VARIABLE: Final = "ALGOSEARCH_CUDNN"


_SWITCH: Final = {"": False, "0": False, "1": True}
"""How a variable says no and yes."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment says. An explicit argument always comes before it."""

    mode: Mode = "race"
    store: str | None = None
    """A path, the URL of a server, or `memory:`; None for the user's cache directory."""
    base: str | None = None
    """A path of a store that is only read, where the other one has no record; None for none."""
    isolation: Isolation | None = None
    """None for what each backend says."""
    strict: bool = False
    """Whether an answer that was found while the shared store could not be reached is none."""

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """The settings of this process's environment. An empty variable counts as unset.

        Raises:
            InvalidSetting: naming the variable, its value and what it may be.
        """
        environ = os.environ if environ is None else environ
        return cls(
            mode=mode_of(environ.get(MODE_VARIABLE) or "race", MODE_VARIABLE),
            store=environ.get(STORE_VARIABLE) or None,
            base=environ.get(BASE_VARIABLE) or None,
            isolation=isolation_of(environ.get(ISOLATION_VARIABLE) or None, ISOLATION_VARIABLE),
            strict=strict_of(_SWITCH.get(strict := environ.get(STRICT_VARIABLE, ""), strict), STRICT_VARIABLE),
        )


def means_server(location: str) -> bool:
    """Whether it begins as the URL of a server does, well-formed or not: no such path is meant."""
    return location.partition(":")[0].lower() in SERVERS and ":" in location


def debug_wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the command line should show where an internal error happened. Apart from `Settings`, so that it can be
    asked for even when the rest of the environment cannot be understood."""
    environ = os.environ if environ is None else environ
    return environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def cudnn_location(environ: Mapping[str, str] | None = None) -> str | None:
    """The directory of the cuDNN to use, or its `libcudnn.so.9`; None to look for one. Read when it is loaded."""
    environ = os.environ if environ is None else environ
    return environ.get(CUDNN_VARIABLE) or None


def mode_of(word: object, name: str = "mode") -> Mode:
    """`word` as a mode.

    Raises:
        InvalidSetting: it is none.
    """
    for mode in MODES:
        if type(word) is str and word == mode:
            return mode
    raise InvalidSetting(name, word, f"must be one of {', '.join(MODES)}")


def isolation_of(word: object, name: str = "isolation") -> Isolation | None:
    """`word` as an isolation; None is left as it is.

    Raises:
        InvalidSetting: it is none.
    """
    if word is None:
        return None
    for isolation in ISOLATIONS:
        if type(word) is str and word == isolation:
            return isolation
    raise InvalidSetting(name, word, f"must be one of {', '.join(ISOLATIONS)}")


def strict_of(word: object, name: str = "strict") -> bool:
    """`word` as a yes or no.

    Raises:
        InvalidSetting: it is neither.
    """
    if type(word) is not bool:
        raise InvalidSetting(name, word, "must be True or False (as a variable: 1 or 0)")
    return word
