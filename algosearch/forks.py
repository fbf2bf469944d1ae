"""What a fork leaves behind: threads that are gone, locks that they may have held, connections that are another's.

`os.fork` copies the memory and one thread. Whatever else ran in the parent does not run in the child: an engine's loop,
a store's connection, whoever held a lock. So what holds a lock or owns a thread beyond one call says here how it is
made usable again; what must not be copied half-done is waited for, and what must not be copied at all is put away for
that moment. What was begun before a fork can be told from what was begun after it.

Rejected: taking every lock before a fork (a lane's lock is held for seconds), and comparing `os.getpid()` wherever a
lock is taken (a system call each time, and one place forgotten hangs a child).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol
from weakref import WeakSet

WAIT_S: Final = 2.0
"""The longest that a fork is put off, in all."""

Wait = Callable[[float], object]
"""Waits until something is so, for so many seconds at most."""


class Renewable(Protocol):
    """What must be renewed in a child."""

    def renew_after_fork(self) -> None:
        """Make new locks; forget threads and what waits for them. Called in the child before anything else runs there;
        must neither block nor start a thread, for many a child only forks to become another program."""
        ...


_RENEWABLE: Final[WeakSet[Renewable]] = WeakSet()
_SETTLE: Final[list[Wait]] = []
_HOLD: Final[list[Wait]] = []
_LET_GO: Final[list[Callable[[], None]]] = []
_forks = 0


def renew_in_children(owner: Renewable) -> None:
    """Have `owner` renewed in every child, for as long as it lives."""
    _RENEWABLE.add(owner)


def settle_before_forks(settle: Wait) -> None:
    """Have `settle` called before every fork: it waits until nothing is half-done."""
    _SETTLE.append(settle)


def hold_during_forks(hold: Wait, let_go: Callable[[], None]) -> None:
    """Have `hold` called before every fork, when all is settled: it puts something away; `let_go` follows in the parent
    when it is over. In the child, `renew_after_fork` has to do."""
    _HOLD.append(hold)
    _LET_GO.append(let_go)


def forks() -> int:
    """How many forks lie between the first process and this one: what was noted with another number is a parent's."""
    return _forks


def _before() -> None:
    deadline = monotonic() + WAIT_S
    for wait in (*_SETTLE, *_HOLD):
        wait(max(0.0, deadline - monotonic()))


def _after() -> None:
    for let_go in _LET_GO:
        let_go()


def _renew() -> None:
    global _forks
    _forks += 1
    for owner in tuple(_RENEWABLE):
        owner.renew_after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_renew)
