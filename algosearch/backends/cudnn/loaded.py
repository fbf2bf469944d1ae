"""`Loaded`: the op that the lane has, and what is bound to its buffers; `BuiltPlan`: a candidate made runnable."""

from __future__ import annotations

from math import inf

import msgspec

from algosearch.backends.cudnn.buffers import Buffers
from algosearch.backends.cudnn.offer import Made
from algosearch.backends.cudnn.plan import VariantPack
from algosearch.backends.cudnn.problem import Problem
from algosearch.ops import Op
from algosearch.records import Candidate


class BuiltPlan(msgspec.Struct):
    """A candidate of an op, made runnable."""

    op: Op
    candidate: Candidate
    made: Made
    expected_us: float = 0.0
    """What a run took when it was last timed."""


class Loaded:
    """An op's buffers, and what is bound to them."""

    def __init__(self, op: Op, problem: Problem, buffers: Buffers) -> None:
        self.op = op
        self.problem = problem
        self.buffers = buffers
        self.packs: dict[int, list[VariantPack]] = {}
        """By plan, one for each set of tensors."""
        self.turn = 0
        """Whose turn it is among the sets."""
        self.best_us = inf
        """The fastest first run."""
        self.agreeing: set[int] = set()
        """Plans whose result is the other result that the buffers keep, within what rounding explains."""

    def forget(self, number: int) -> None:
        """A plan goes, and what is bound of it."""
        for pack in self.packs.pop(number, ()):
            pack.destroy()
        self.agreeing.discard(number)
