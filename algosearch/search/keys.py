"""`Keys`: the keys of ops that an engine was asked about, made once for each op and pool."""

from __future__ import annotations

from typing import Final

from algosearch.devices.pool import Pool
from algosearch.ops import Op
from algosearch.records import Environment, Key

KEYS_KEPT: Final = 100_000
"""Of each pool; beyond it the memo starts afresh, which costs time only."""


class Keys:
    """A memo. Used on the engine's loop."""

    def __init__(self) -> None:
        self._by_pool: dict[Pool, dict[Op, Key]] = {}

    def of(self, pool: Pool, environment: Environment, op: Op) -> Key:
        """As `Key.of`; the environment is the pool's."""
        keys = self._by_pool.setdefault(pool, {})
        key = keys.get(op)
        if key is None:
            if len(keys) >= KEYS_KEPT:
                keys.clear()
            key = keys[op] = Key.of(op, environment)
        return key
