"""Small keys and records for the tests of this room, each the same at every call."""

from __future__ import annotations

from functools import lru_cache

from algosearch.ops import ConvOp
from algosearch.records import Environment, Key, Provenance, Record, Search, Trial, Trials, packed

_ENVIRONMENT = Environment(backend="cpu", device="a processor", facts=(("numpy", "2.0"),))


@lru_cache(maxsize=2000)
def some_key(n: int = 0) -> Key:
    """The n-th key."""
    return Key.of(ConvOp(input_shape=(1 + n, 8, 12, 12), filter_shape=(8, 8, 3, 3), padding_low=(1, 1)), _ENVIRONMENT)


def some_record(
    n: int = 0,
    *,
    searches: int = 1,
    generation: int = 0,
    trials: int = 3,
    seed: int = 0,
    time_us: float = 100.0,
) -> Record:
    """A record of the n-th key. `seed` tells equal revisions apart."""
    tried = tuple(
        Trial(
            algorithm=f"cpu/numpy:engine{i}?tile={i}",
            rank=i,
            workspace_bytes=i << 20,
            notes=("nondeterministic",) if i % 2 else (),
            stage="final",
            time_us=time_us + i,
            error_us=0.5,
            samples=packed((time_us + i, time_us + i + 0.25)),
            build_us=12.5,
            timing="wall,warm",
        )
        for i in range(trials)
    )
    return Record(
        key=some_key(n),
        searches=tuple(
            Search(
                mode="race",
                complete=True,
                trials=Trials.of(tried),
                provenance=Provenance(version="0.1.0", found_at_s=1_700_000_000 + i, seconds=float(seed)),
            )
            for i in range(searches)
        ),
        generation=generation,
    )
