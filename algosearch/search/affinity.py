"""`Affinity`: in which order an engine goes through keys that others search as well.

What runs first in a process has its code loaded first, which is half of what a key takes on a GPU, and the kernels of
one kind of op are of little use to another kind. So engines part the kinds between them, as far as there are some, and
each goes on with the kind that it has begun.

Nobody is asked for that. An engine begins with a kind of its own choice, and leaves those to others in which it has met
them; of two that meet, the one with the smaller name stays. Where it may well be alone, with a store of this host's, it
takes keys in the order in which they come, until it meets somebody.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from algosearch.ops import ConvOp, Op

Precedence = tuple[int, bytes, int, bytes]
"""Who comes first: the least."""
FIRST: Final[Precedence] = (0, b"", 0, b"")


class Affinity:
    """Of one engine, on its loop.

    Args:
        owner: its name, unique among all engines.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._met: dict[str, set[str]] = {}
        """By kind, who was met there. Only those with a smaller name: the others leave."""
        self.has_met = False

    def __repr__(self) -> str:
        return f"<Affinity of {self._owner}: { ({kind: len(owners) for kind, owners in self._met.items()}) }>"

    def place(self, op: Op, digest: str, *, at_once: bool = True) -> Place:
        """The place of a canonical op's key.

        Args:
            at_once: from now on; if not, from when somebody is met.
        """
        kind = kind_of(op)
        return Place(
            None if at_once else self,
            self._met.setdefault(kind, set()),
            self._own_order(kind),
            -(op.flops.bit_length() // 2),
            self._own_order(digest),
        )

    def met(self, op: Op, owner: str) -> None:
        """Another engine was seen to search this one."""
        self.has_met = True
        if owner < self._owner:
            self._met.setdefault(kind_of(op), set()).add(owner)

    def _own_order(self, word: str) -> bytes:
        """Another one in every engine, so that each begins with others."""
        return blake2b(f"{self._owner} {word}".encode(), digest_size=8).digest()


class Place:
    """Of one key, among equally awaited ones. It changes as others are met."""

    __slots__ = ("_met", "_rest", "_until")

    def __init__(self, until: Affinity | None, met: set[str], kind: bytes, size: int, key: bytes) -> None:
        self._until = until
        self._met = met
        self._rest = kind, size, key

    @property
    def precedence(self) -> Precedence:
        """The kind where the fewest others were met, the engine's favourite among those; in it the longest search
        first, to within a factor of four; among those an order of the engine's own."""
        if self._until is not None and not self._until.has_met:
            return FIRST
        return (len(self._met), *self._rest)


def kind_of(op: Op) -> str:
    """What ops have in common that run the same code."""
    return f"{op.direction} {op.input_type}" if isinstance(op, ConvOp) else f"{op.phase} {op.data_type}"
