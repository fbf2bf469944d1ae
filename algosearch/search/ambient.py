"""Opening a searcher, and finding the one that is open: `open_searcher`, `select_algo`.

Searchers of one process that ask the same devices and the same store share one engine, and with it every flight.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from algosearch.errors import InvalidPolicy
from algosearch.ops import Op
from algosearch.records import DEFAULT_POLICY, Choice, Policy
from algosearch.search.desk import refuse_in_loop
from algosearch.search.engine import EXIT_S, Engine
from algosearch.search.searcher import Searcher
from algosearch.settings import Mode, Settings, mode_of
from algosearch.stores import open_store

if TYPE_CHECKING:
    from algosearch.backends import Backend
    from algosearch.stores.base import Store

_OPEN: ContextVar[Searcher | None] = ContextVar("algosearch_open_searcher", default=None)


class _Engines:
    """The engines of this process, shared by what they serve and counted by who uses them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[object, Engine] = {}
        self._users: dict[Engine, int] = {}

    def hire(
        self,
        store: Store | str | None,
        base: Store | str | None,
        backends: Sequence[Backend] | None,
        devices: Sequence[str] | None,
    ) -> Engine:
        """An engine that serves this, started if there is none."""
        serves = (
            store if isinstance(store, str) or store is None else id(store),
            base if isinstance(base, str) or base is None else id(base),
            None if backends is None else tuple(map(id, backends)),
            None if devices is None else tuple(devices),
        )
        private = store == "memory:"
        with self._lock:
            engine = None if private else self._engines.get(serves)
            if engine is None or engine.ended.happened:
                if backends is None:
                    from algosearch.backends.discover import default_backends

                    backends = default_backends()
                home = open_store(store) if isinstance(store, str) or store is None else store
                behind = open_store(base, read_only=True) if isinstance(base, str) else base
                engine = Engine(backends, home, devices=devices, base=behind)
                engine.start()
                self._users[engine] = 0
                if not private:
                    self._engines[serves] = engine
            self._users[engine] += 1
            return engine

    def dismiss(self, engine: Engine) -> bool:
        """One user less; the last one stops it. True if it was the last."""
        with self._lock:
            self._users[engine] -= 1
            if self._users[engine]:
                return False
            del self._users[engine]
            self._engines = {serves: other for serves, other in self._engines.items() if other is not engine}
        engine.stop()
        return True


_ENGINES: Final = _Engines()
"""Process-wide on purpose: so that all of a process searches each key once."""


class open_searcher:
    """Open a searcher for the length of an `async with` block (or of a `with` block in a thread without a loop).

    A class in lower case, for it is used as a verb: `async with open_searcher() as searcher`.

    Args:
        store: where answers are kept: a directory, `memory:`, or a `Store`. Left out: `ALGOSEARCH_STORE`, else the
            user's cache directory. A store that cannot be used costs a warning and the cached answers, not the job.
        base: a directory whose records answer where the store has none, and which is only ever read: one that was made
            elsewhere and came with the job, say. Left out: `ALGOSEARCH_BASE`, else none.
        backends: which libraries to ask; left out, the best that this machine has a device for.
        devices: only these, by name (`cpu:0`) or backend (`cpu`); left out, all that are found.
        mode: how a miss is answered. Left out: `ALGOSEARCH_MODE`, else `race`.
        policy: what is asked where a call does not say.

    Raises:
        InvalidSetting, InvalidPolicy: an argument or variable cannot be understood.

    Cancellation: while it opens, nothing is left behind; while it closes, it closes all the same, unattended.

    Inside the block `select_algo` uses this searcher, in this task and in those it starts.
    """

    def __init__(
        self,
        *,
        store: str | Path | Store | None = None,
        base: str | Path | Store | None = None,
        backends: Sequence[Backend] | None = None,
        devices: Sequence[str] | None = None,
        mode: Mode | None = None,
        policy: Policy = DEFAULT_POLICY,
    ) -> None:
        settings = Settings.read()
        self._store = _named(settings.store if store is None else store)
        self._base = _named(settings.base if base is None else base)
        if type(policy) is not Policy:
            raise InvalidPolicy("policy", policy, "must be a Policy")
        self._backends = backends
        self._devices = devices
        self._mode: Mode = settings.mode if mode is None else mode_of(mode)
        self._policy = policy
        self._searcher: Searcher | None = None
        self._engine: Engine | None = None
        self._token: Token[Searcher | None] | None = None

    async def __aenter__(self) -> Searcher:
        searcher = self._hire()
        try:
            assert self._engine is not None
            await self._engine.ready.wait()
        except BaseException:
            self._dismiss()
            raise
        self._token = _OPEN.set(searcher)
        return searcher

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        engine = self._leave()
        if engine is not None:
            await engine.ended.wait()  # cancelled here, the engine ends all the same, in its own thread

    def __enter__(self) -> Searcher:
        refuse_in_loop("with open_searcher()", "async with open_searcher()")
        searcher = self._hire()
        assert self._engine is not None
        self._engine.ready.wait_blocking()
        self._token = _OPEN.set(searcher)
        return searcher

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        engine = self._leave()
        if engine is not None:
            engine.ended.wait_blocking(EXIT_S)

    def _hire(self) -> Searcher:
        assert self._searcher is None, "one open_searcher() is one block; make another one"
        self._engine = _ENGINES.hire(self._store, self._base, self._backends, self._devices)
        self._searcher = Searcher(self._engine, mode=self._mode, policy=self._policy)
        return self._searcher

    def _leave(self) -> Engine | None:
        """Close the searcher; the engine, if nobody else uses it and it is therefore ending."""
        if self._token is not None:
            try:
                _OPEN.reset(self._token)
            except ValueError:  # left in another context than it was entered in, as fixtures do
                _OPEN.set(None)
            self._token = None
        return self._dismiss()

    def _dismiss(self) -> Engine | None:
        assert self._searcher is not None
        assert self._engine is not None
        self._searcher.close()
        return self._engine if _ENGINES.dismiss(self._engine) else None


def _named(store: str | Path | Store | None) -> Store | str | None:
    """A store as it was given; one directory is one store, however it is spelled, and wherever the process goes
    later."""
    name = str(store) if isinstance(store, Path) else store
    if isinstance(name, str) and name.strip() and ":" not in name:
        return os.path.abspath(os.path.expanduser(name))
    return name


class _Default:
    """The process's own searcher, for `select_algo` outside any block. Opened at first use, closed at exit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._searcher: Searcher | None = None

    def searcher(self) -> Searcher:
        """The one; made without waiting for its devices."""
        with self._lock:
            if self._searcher is None:
                settings = Settings.read()
                engine = _ENGINES.hire(_named(settings.store), _named(settings.base), None, None)
                self._searcher = Searcher(engine, mode=settings.mode)
            return self._searcher


_DEFAULT: Final = _Default()


def current_searcher() -> Searcher:
    """The searcher that is open in this context, else the process's default one."""
    searcher = _OPEN.get()
    return _DEFAULT.searcher() if searcher is None or searcher.closed else searcher


async def select_algo(
    op: Op, policy: Policy | None = None, *, device: str | None = None, deadline_s: float | None = None
) -> Choice:
    """The algorithm to use for `op`, and its workspace: `Searcher.select` of the searcher that is open in this context.

    Outside any `open_searcher()` block, the process's default searcher is used: opened at first use with the settings
    of the environment, and closed when the interpreter exits, within 2 seconds.

    Raises and Cancellation: as `Searcher.select`.
    """
    return await current_searcher().select(op, policy, device=device, deadline_s=deadline_s)
