"""`Engines`: the engines of this process, who uses them, and how they end: by the last user, at exit, at a fork.

Searchers that ask the same devices and the same store share one engine, and with it every flight, however the devices
and the store were spelled. What a spelling means is found out here, before engines are compared.
"""

from __future__ import annotations

import atexit

# Its threads are joined at exit as well, by a function that it registers when it is imported. The last registered goes
# first, and ours must: a thread of a pool may be one that waits for us.
import concurrent.futures.thread  # noqa: F401
import os
import threading
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from algosearch.errors import SearcherClosed
from algosearch.forks import renew_in_children, settle_before_forks
from algosearch.pinned import PinnedThread, is_pinned
from algosearch.search.engine import Engine
from algosearch.search.lineup import Lineup
from algosearch.search.milestone import Milestone
from algosearch.search.opening import UNDER_WAY
from algosearch.search.searcher import Searcher
from algosearch.search.terms import Terms
from algosearch.settings import MEMORY
from algosearch.stores import open_store
from algosearch.stores.home import user_directories

if TYPE_CHECKING:
    from algosearch.stores.base import Store

EXIT_S: Final = 2.0
"""The longest that engines may hold up the interpreter's exit, all together."""
_PATH_S: Final = 2.0
"""The longest that a file system is asked what a path means; one that does not answer is the store's to report."""


class Hired:
    """One user's hold on an engine, and the searcher that answers from it."""

    def __init__(self, engine: Engine, terms: Terms, engines: Engines) -> None:
        self.engine = engine
        self.searcher = Searcher(engine, mode=terms.mode, policy=terms.policy, strict=terms.strict)
        self._engines = engines

    def dismiss(self) -> Engine | None:
        """Close the searcher; the engine, if nobody else uses it and it is therefore ending. Harmless if called twice:
        None then."""
        self.searcher.close()
        return self._engines.dismiss(self)


class Engines:
    """Counts who uses which engine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_meaning: dict[object, Engine] = {}
        self._hired: dict[Hired, Engine] = {}
        self._all: WeakSet[Engine] = WeakSet()
        """Those that are still closing as well."""
        self._exiting = False

    def hire(self, terms: Terms) -> Hired:
        """An engine that serves this, started if there is none, and a searcher of its own. Blocking.

        Raises:
            StoreUnusable: the store is of a kind that this version does not know.
            DeviceUnavailable: the installation is broken.
            SearcherClosed: the interpreter is exiting.
        """
        lineup = Lineup(terms.backends, terms.devices)
        backends = None if terms.backends is None else tuple(map(id, terms.backends))
        base = None if terms.base is None else _meaning_of(terms.base)
        meaning = (_meaning_of(terms.store), base, backends, lineup.meaning, terms.isolation)
        with self._lock:
            if self._exiting:
                raise SearcherClosed("the interpreter is exiting")
            # What is kept in no other place than the engine's memory is shared with nobody.
            engine = None if terms.store == MEMORY else self._by_meaning.get(meaning)
            if engine is None or engine.ended.happened:
                behind = None if terms.base is None else partial(_home, terms.base, read_only=True)
                engine = Engine(lineup, partial(_home, terms.store), base=behind, isolation=terms.isolation)
                engine.start()
                self._all.add(engine)
                if terms.store != MEMORY:
                    self._by_meaning[meaning] = engine
            else:
                engine.wake()
            hired = Hired(engine, terms, self)
            self._hired[hired] = engine
            return hired

    def dismiss(self, hired: Hired) -> Engine | None:
        """One user less; the last one stops its engine, which is then returned."""
        with self._lock:
            engine = self._hired.pop(hired, None)
            if engine is None or engine in self._hired.values():
                return None
            self._by_meaning = {meaning: other for meaning, other in self._by_meaning.items() if other is not engine}
        engine.stop()
        return engine

    def exit(self) -> None:
        """The interpreter exits. Whoever waits hears of it at once; what still serves gets its chance to close."""
        with self._lock:
            self._exiting = True
            hired = tuple(self._hired)
        UNDER_WAY.refuse(SearcherClosed("the interpreter is exiting"))
        for each in hired:
            each.searcher.close_at_exit()
        engines = tuple(self._all)
        for engine in engines:
            engine.stop()
        deadline = monotonic() + EXIT_S
        for engine in engines:
            engine.ended.wait_blocking(max(0.0, deadline - monotonic()))

    def settle(self, timeout_s: float) -> None:
        """Wait until no engine is just getting ready: that imports, and opens files."""
        deadline = monotonic() + timeout_s
        if not is_pinned():
            for engine in tuple(self._all):
                if not engine.asleep:
                    engine.ready.wait_blocking(max(0.0, deadline - monotonic()))

    def renew_after_fork(self) -> None:
        """As `Renewable`. The engines renew themselves, and whoever holds one goes on holding it."""
        self._lock = threading.Lock()
        self._exiting = False


def _home(store: Store | str | None, *, read_only: bool = False) -> Store:
    """The store that is meant: another one each time, unless the caller gave it."""
    return open_store(store, read_only=read_only) if store is None or isinstance(store, str) else store


def _meaning_of(store: Store | str | None) -> object:
    """Equal for what names one store: a directory by its real path, spelled or left out; an object is itself."""
    if store is not None and not isinstance(store, str):
        return id(store)
    if store is not None and (store == MEMORY or "://" in store):
        return store
    # Absolute already (`Terms`), but for what is no path or nobody's home, and refused by whoever opens it.
    path = str(user_directories()[0]) if store is None else os.path.expanduser(store)
    real: Milestone[str] = Milestone()

    def follow() -> None:
        try:
            real.set(os.path.realpath(path))
        except OSError:
            real.set(path)

    thread = PinnedThread("algosearch-path")
    thread.post(follow)
    thread.stop()
    return real.result() if real.wait_blocking(_PATH_S) else path


ENGINES: Final = Engines()
"""Process-wide on purpose: so that all of a process searches each key once."""
renew_in_children(ENGINES)
settle_before_forks(ENGINES.settle)


def _register_exit() -> None:
    """Have `ENGINES.exit` called when the interpreter exits: before it joins the threads that are no daemons, for one
    of them may wait for an answer. What atexit calls comes after that, and has to do where there is nothing better."""
    register = getattr(threading, "_register_atexit", atexit.register)
    try:
        register(ENGINES.exit)
    except RuntimeError:  # it has begun to exit
        ENGINES.exit()


_register_exit()
