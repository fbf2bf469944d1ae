"""Opening a searcher, and finding the one that is open: `open_searcher`, `select_algo`.

Light, as everything that it imports: what takes long is imported by an `Opening`, in a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from algosearch.errors import AlreadyEntered
from algosearch.forks import renew_in_children
from algosearch.ops import Op
from algosearch.records import DEFAULT_POLICY, Choice, Policy
from algosearch.search.milestone import refuse_in_loop
from algosearch.search.opening import Opening
from algosearch.search.terms import Terms
from algosearch.settings import Isolation, Mode

if TYPE_CHECKING:
    from algosearch.backends import Backend
    from algosearch.search.engine import Engine
    from algosearch.search.searcher import Searcher
    from algosearch.stores.base import Store

CLOSE_S: Final = 2.0
"""The longest that leaving a `with` block waits for its engine."""

_OPEN: ContextVar[Searcher | None] = ContextVar("algosearch_open_searcher", default=None)


class open_searcher:
    """Open a searcher for the length of an `async with` block (or of a `with` block in a thread without a loop).

    A class in lower case, for it is used as a verb: `async with open_searcher() as searcher`.

    Args:
        store: where answers are kept: a directory, `memory:`, the URL of a server that many hosts share
            (`redis://…`), or a `Store`. Left out: `ALGOSEARCH_STORE`, else the user's cache directory. A store that
            cannot be used costs a warning and the cached answers, not the job.
        base: a directory whose records answer where the store has none, and which is only ever read: one that was made
            elsewhere and came with the job, say. Left out: `ALGOSEARCH_BASE`, else none.
        backends: which libraries to ask; left out, the best that this machine has a device for.
        devices: only these, by name (`cpu:0`) or backend (`cpu`), or a single such word; left out, all that are found.
        isolation: where devices are worked with. `process`: in a child of this process, which a candidate that hangs or
            crashes costs in its place; `thread`: here, where nothing can be done about that. Left out:
            `ALGOSEARCH_ISOLATION`, else what each backend says.
        mode: how a miss is answered. Left out: `ALGOSEARCH_MODE`, else `race`.
        strict: whether a call raises `FoundAlone` instead of giving an answer that was found while the shared store
            could not be reached. Left out: `ALGOSEARCH_STRICT`, else no.
        policy: what is asked where a call does not say.

    Raises:
        InvalidSetting, InvalidPolicy: an argument or variable cannot be understood.
        AlreadyEntered: on entering: it opens one searcher, for one block.
        StoreUnusable: on entering: the store is of a kind that this version does not know, or its package is missing.
        DeviceUnavailable: on entering: the installation is broken.

    Cancellation: while it opens, nothing is left behind; while it closes, it closes all the same, unattended.

    Searchers that mean the same store and devices, however they spell them, share every search. A `Store` object, and
    backends that are given, mean themselves only; each `memory:` is another one.

    Inside the block `select_algo` uses this searcher, in this task and in those it starts.

    Fork: in a child the searcher goes on, with what was answered so far and an engine of its own. What was still open
    at the fork is not answered there.
    """

    def __init__(
        self,
        *,
        store: str | Path | Store | None = None,
        base: str | Path | Store | None = None,
        backends: Sequence[Backend] | None = None,
        devices: Sequence[str] | None = None,
        isolation: Isolation | None = None,
        mode: Mode | None = None,
        strict: bool | None = None,
        policy: Policy = DEFAULT_POLICY,
    ) -> None:
        terms = Terms(
            store=store,
            base=base,
            backends=backends,
            devices=devices,
            isolation=isolation,
            mode=mode,
            strict=strict,
            policy=policy,
        )
        self._opening = Opening(terms)
        self._entered = threading.Lock()
        """Taken once, and never given back."""
        self._token: Token[Searcher | None] | None = None

    async def __aenter__(self) -> Searcher:
        self._begin()
        try:
            hired = await self._opening.hired.wait()
            await hired.engine.ready.wait()
        except BaseException:
            self._opening.abandon()
            raise
        self._token = _OPEN.set(hired.searcher)
        return hired.searcher

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        engine = self._leave()
        if engine is not None:
            await engine.ended.wait()  # cancelled here, the engine ends all the same, in its own thread

    def __enter__(self) -> Searcher:
        refuse_in_loop("with open_searcher()", "async with open_searcher()")
        self._begin()
        try:
            self._opening.hired.wait_blocking()
            hired = self._opening.hired.result()
            hired.engine.ready.wait_blocking()
            hired.engine.ready.result()
        except BaseException:
            self._opening.abandon()
            raise
        self._token = _OPEN.set(hired.searcher)
        return hired.searcher

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        engine = self._leave()
        if engine is not None:
            engine.ended.wait_blocking(CLOSE_S)

    def _begin(self) -> None:
        if not self._entered.acquire(blocking=False):
            raise AlreadyEntered
        self._opening.begin()

    def _leave(self) -> Engine | None:
        """Close the searcher; the engine, if nobody else uses it and it is therefore ending."""
        if self._token is not None:
            try:
                _OPEN.reset(self._token)
            except ValueError:  # left in another context than it was entered in, as fixtures do
                _OPEN.set(None)
            self._token = None
        return self._opening.dismiss()


class _Default:
    """The process's own searcher, for `select_algo` outside any block. Opened at first use, closed at exit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opening: Opening | None = None

    async def searcher(self) -> Searcher:
        """The one; without waiting for its devices to be opened."""
        return (await self._current().hired.wait()).searcher

    def _current(self) -> Opening:
        """The attempt that holds; another one if the last one failed or its engine broke."""
        with self._lock:
            opening = self._opening
            if opening is None or opening.failed:
                if opening is not None:
                    opening.dismiss()
                opening = Opening(Terms(policy=DEFAULT_POLICY))
                opening.begin()
                self._opening = opening
            return opening

    def renew_after_fork(self) -> None:
        """An attempt that was under way is the parent's; a searcher goes on."""
        self._lock = threading.Lock()
        if self._opening is not None and not self._opening.hired.happened:
            self._opening = None


_DEFAULT: Final = _Default()
renew_in_children(_DEFAULT)


async def current_searcher() -> Searcher:
    """The searcher that is open in this context, else the process's default one, opened if need be.

    Raises:
        InvalidSetting: a variable of the environment cannot be understood.
        StoreUnusable, DeviceUnavailable: as `open_searcher`.

    Cancellation: the default one is opened all the same, for who comes next.
    """
    searcher = _OPEN.get()
    return await _DEFAULT.searcher() if searcher is None or searcher.closed else searcher


async def select_algo(
    op: Op, policy: Policy | None = None, *, device: str | None = None, deadline_s: float | None = None
) -> Choice:
    """The algorithm to use for `op`, and its workspace: `Searcher.select` of the searcher that is open in this context.

    Outside any `open_searcher()` block, the process's default searcher is used: opened at first use with the settings
    of the environment, and closed when the interpreter exits, within 2 seconds.

    Raises and Cancellation: as `Searcher.select`, and as `current_searcher`.
    """
    searcher = _OPEN.get()
    if searcher is None or searcher.closed:
        searcher = await _DEFAULT.searcher()
    return await searcher.select(op, policy, device=device, deadline_s=deadline_s)
