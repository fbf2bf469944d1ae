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
        return Place(self, op, digest, at_once=at_once)

    def ranked(self, op: Op, digest: str) -> tuple[set[str], bytes, int, bytes]:
        """What a place goes by: who was met in the op's kind, to be counted whenever it is looked at; the kind's own
        place; the size of the search; the key's own place."""
        kind = kind_of(op)
        met = self._met.setdefault(kind, set())
        return met, self._own_order(kind), -(op.flops.bit_length() // 2), self._own_order(digest)

    def met(self, op: Op, owner: str) -> None:
        """Another engine was seen to search this one."""
        self.has_met = True
        if owner < self._owner:
            self._met.setdefault(kind_of(op), set()).add(owner)

    def _own_order(self, word: str) -> bytes:
        """Another one in every engine, so that each begins with others."""
        return blake2b(f"{self._owner} {word}".encode(), digest_size=8).digest()


class Place:
    """Of one key, among equally awaited ones. It changes as others are met. Worked out when it is first needed: most
    keys of a directory never queue."""

    __slots__ = ("_affinity", "_at_once", "_digest", "_op", "_ranked")

    def __init__(self, affinity: Affinity, op: Op, digest: str, *, at_once: bool) -> None:
        self._affinity = affinity
        self._op = op
        self._digest = digest
        self._at_once = at_once
        self._ranked: tuple[set[str], bytes, int, bytes] | None = None

    @property
    def precedence(self) -> Precedence:
        """The kind where the fewest others were met, the engine's favourite among those; in it the longest search
        first, to within a factor of four; among those an order of the engine's own."""
        if not self._at_once and not self._affinity.has_met:
            return FIRST
        if self._ranked is None:
            self._ranked = self._affinity.ranked(self._op, self._digest)
        met, kind, size, key = self._ranked
        return len(met), kind, size, key


def kind_of(op: Op) -> str:
    """What ops have in common that run the same code."""
    return f"{op.direction} {op.input_type}" if isinstance(op, ConvOp) else f"{op.phase} {op.data_type}"
