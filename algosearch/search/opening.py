"""`Opening`: a searcher on its way to whoever asked for one, made in a thread of its own.

To hire an engine imports numpy and anyio, loads libraries and asks for devices: 80 ms at best, and for ever if a driver
hangs. So it happens in a pinned thread, and a caller's loop holds nothing but a waiter. This module is light, and so is
what it imports: it is there before any of that.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from algosearch.errors import AlgosearchError, DeviceUnavailable, SearcherClosed
from algosearch.forks import renew_in_children, settle_before_forks
from algosearch.pinned import PinnedThread, is_pinned
from algosearch.search.milestone import Milestone
from algosearch.search.terms import Terms

if TYPE_CHECKING:
    from algosearch.search.engine import Engine
    from algosearch.search.engines import Hired


class Opening:
    """One attempt. Whoever begins it takes what it brings, or abandons it."""

    def __init__(self, terms: Terms) -> None:
        self.hired: Milestone[Hired] = Milestone()
        """There is a searcher; its engine may still be getting ready."""
        self.over: Milestone[None] = Milestone()
        """The thread has done what it can, whether or not somebody still wants it."""
        self._terms = terms

    def __repr__(self) -> str:
        return f"<Opening on {self._terms!r}, {'over' if self.over.happened else 'under way'}>"

    @property
    def failed(self) -> bool:
        """True if it brought nothing, or what it brought is of no use any more: closed, or its engine ended."""
        if not self.hired.happened:
            return False
        try:
            hired = self.hired.result()
        except AlgosearchError:
            return True
        return hired.searcher.closed or hired.engine.ended.happened

    def begin(self) -> None:
        """Start the thread.

        Raises:
            DeviceUnavailable: there can be no more threads. SearcherClosed: the interpreter exits, and from Python 3.12
            on makes none.
        """
        if UNDER_WAY.refused is not None:
            raise SearcherClosed(*UNDER_WAY.refused.args)
        try:
            thread = PinnedThread("algosearch-open")
        except RuntimeError as error:
            raise DeviceUnavailable(
                "this process", str(error), "raise its limits, or end some of its threads"
            ) from error
        UNDER_WAY.add(self)
        thread.post(self._hire)
        thread.stop()

    def abandon(self) -> None:
        """Nobody wants it any more: what it brought, or will bring, is dismissed."""
        if not self.hired.fail(SearcherClosed()):
            self.dismiss()

    def dismiss(self) -> Engine | None:
        """Give back what it brought, if anything: the engine, if it is therefore ending. Harmless if called twice."""
        if not self.hired.happened:  # it was never begun
            return None
        try:
            return self.hired.result().dismiss()
        except AlgosearchError:
            return None

    def _hire(self) -> None:
        try:
            from algosearch.search.engines import ENGINES

            hired = ENGINES.hire(self._terms)
            if not self.hired.set(hired):
                hired.dismiss()
        except AlgosearchError as error:
            self.hired.fail(error)
        except BaseException as error:  # a broken installation may raise anything, and somebody waits
            broken = DeviceUnavailable(
                "this installation", f"{type(error).__name__}: {error}", "repair it; see the cause of this error"
            )
            broken.__cause__ = error
            self.hired.fail(broken)
        finally:
            UNDER_WAY.discard(self)
            self.over.set(None)


class _UnderWay:
    """The openings of this process whose threads are at work."""

    def __init__(self) -> None:
        self._openings: set[Opening] = set()
        self.refused: SearcherClosed | None = None
        """Why there will be no more of them."""
        self.add = self._openings.add
        self.discard = self._openings.discard

    def refuse(self, error: SearcherClosed) -> None:
        """Let everybody who waits for one hear that there will be none, and whoever comes later."""
        self.refused = error
        for opening in tuple(self._openings):
            opening.hired.fail(error)

    def settle(self, timeout_s: float) -> None:
        """Wait for them: a child would inherit a half-imported module, and wait for ever for its import to end."""
        deadline = monotonic() + timeout_s
        if not is_pinned():  # else it may be one of them that forks
            for opening in tuple(self._openings):
                opening.over.wait_blocking(max(0.0, deadline - monotonic()))

    def renew_after_fork(self) -> None:
        """Their threads are the parent's, and so is its exit."""
        self._openings.clear()
        self.refused = None


UNDER_WAY: Final = _UnderWay()
"""Process-wide on purpose: so is an import, and the interpreter's exit."""
settle_before_forks(UNDER_WAY.settle)
renew_in_children(UNDER_WAY)
