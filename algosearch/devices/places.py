"""How many keys a device holds at once, so that neither of its threads waits and nobody has a pile."""

from __future__ import annotations

from math import ceil, inf
from typing import Final

from algosearch.devices.job import Found
from algosearch.settings import Isolation

IN_HAND: Final = 3
"""Keys a device holds at once. With two, the lane would idle whenever a key takes longer to prepare than to time."""
DEAR_IN_HAND: Final = 2
"""Of keys with something that is dear to build, which have places of their own: while one is compiled, the next has
what is cheap built, and the one before is timed. They take half a second and more each, so that others are to have the
rest of them."""
IN_HAND_OF_A_CHILD: Final = 5
"""The same of one in a child process. From the end of a search to the next one's arrival the engine's loop turns some
five times, and beside a caller that computes each turn waits 5 ms for the interpreter lock: two keys more are that."""
MOST_IN_HAND: Final = 12
"""Where keys are short, so many more that what is in hand lasts for"""
COVERED_S: Final = 0.15
"""so long: what the engine's loop is late by, then, one turn makes good for several keys."""
_LATEST: Final = 0.25
"""Of the mean of what keys take, the weight of the latest one."""


class Pace:
    """How fast keys go through a device, and so how many it may hold."""

    def __init__(self) -> None:
        self._key_s = inf
        """What a key took lately."""

    def note(self, found: Found) -> None:
        """A key has been searched. What was compiled for it says nothing of the others."""
        if found.is_dear:
            return
        seconds = max(found.seconds, 1e-6)
        self._key_s = seconds if self._key_s == inf else self._key_s + _LATEST * (seconds - self._key_s)

    def in_hand(self, isolation: Isolation) -> int:
        """Keys that it may hold at once, beside those that are dear."""
        if isolation != "process":
            return IN_HAND
        return min(MOST_IN_HAND, max(IN_HAND_OF_A_CHILD, ceil(COVERED_S / self._key_s)))
