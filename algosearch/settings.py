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

MODE_VARIABLE: Final = "ALGOSEARCH_MODE"
STORE_VARIABLE: Final = "ALGOSEARCH_STORE"
BASE_VARIABLE: Final = "ALGOSEARCH_BASE"
DEBUG_VARIABLE: Final = "ALGOSEARCH_DEBUG"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment says. An explicit argument always comes before it."""

    mode: Mode = "race"
    store: str | None = None
    """A path, or `memory:`; None for the user's cache directory."""
    base: str | None = None
    """A path of a store that is only read, where the other one has no record; None for none."""

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
        )


def debug_wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the command line should show where an internal error happened. Apart from `Settings`, so that it can be
    asked for even when the rest of the environment cannot be understood."""
    environ = os.environ if environ is None else environ
    return environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def mode_of(word: str, name: str = "mode") -> Mode:
    """`word` as a mode.

    Raises:
        InvalidSetting: it is none.
    """
    if word not in MODES:
        raise InvalidSetting(name, word, f"must be one of {', '.join(MODES)}")
    return word
