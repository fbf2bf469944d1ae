"""`Flight`: the one live search of a key, from the first inquiry to the answers of all.

States; `_NEXT` says which may follow which, and an end may follow each:

    reading → queued → listing → racing → committing → landed | failed | dropped
                 ↑ ↓
              elsewhere

A flight may land from `reading` (the store knew), `elsewhere` (another process found it) or `listing` (nobody needed
more than the heuristic). It goes back from `listing` or `racing` to `queued` when it turns out that something dear is
to be built for it: it queues among such then. It may be dropped, because nobody has an open request any more, until
`racing`: then a trial has begun, and what it costs is worth keeping.

Lives on the engine's loop; nothing here is touched by another thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Final, Literal

import anyio

from algosearch.backends import Device
from algosearch.devices.pool import Pool, Turn
from algosearch.errors import FoundAlone, NoAlgorithm, NotCached, NotCovered, SearchFailed
from algosearch.ops import BatchNormOp, Op
from algosearch.records import (
    Candidate,
    Choice,
    Key,
    Listing,
    Policy,
    Record,
    SearchMode,
    deserves_another_search,
)
from algosearch.search.affinity import FIRST, Place, Precedence
from algosearch.search.inquiry import Inquiry, Question, Source
from algosearch.search.statistics import FlightStatus

logger = logging.getLogger("algosearch.flights")

State = Literal["reading", "queued", "elsewhere", "listing", "racing", "committing", "landed", "failed", "dropped"]
"""`elsewhere`: another process searches it, and is waited for."""
_ENDED: Final[frozenset[State]] = frozenset({"landed", "failed", "dropped"})
_NEXT: Final[dict[State, tuple[State, ...]]] = {
    "reading": ("queued",),
    "queued": ("elsewhere", "listing"),
    "elsewhere": ("queued",),
    "listing": ("racing", "queued"),
    "racing": ("committing", "queued"),
    "committing": (),
}
_FOLLOWING: Final[dict[State, frozenset[State]]] = {
    **{state: _ENDED.union(following) for state, following in _NEXT.items()},
    **dict.fromkeys(_ENDED, frozenset()),
}
_DROPPABLE: Final[frozenset[State]] = frozenset({"reading", "queued", "elsewhere", "listing"})


class Flight:
    """One key on its way."""

    __slots__ = (
        *("_inquiries", "_listing_ahead", "_listing_lock", "began", "expects", "key", "listing", "op", "pool"),
        *("is_dear", "place", "record", "scope", "searched", "state", "storable", "stuck", "trying", "turn"),
    )

    def __init__(self, key: Key, op: Op, pool: Pool, *, storable: bool, searched: bool = False) -> None:
        self.key = key
        self.op = op
        """Canonical."""
        self.pool = pool
        """The devices that can search it."""
        self.storable = storable
        """False if what is found here must not be stored: the environment is incomplete."""
        self.searched = searched
        """Whether this engine has searched it: then what it found is not to be found again."""
        self.state: State = "reading"
        self.listing: Listing | None = None
        self.record: Record | None = None
        """The newest record known of this key."""
        self.trying = ""
        """What the worker does now, or whom it waits for, for a progress line. Written by the worker's threads."""
        self.turn: Turn | None = None
        """Its place in the queue, or at a device, until its task takes it."""
        self.is_dear = False
        """Whether it has turned out that something dear is to be built for it."""
        self.expects = False
        """Whether it waits for another process without a task."""
        self.stuck = False
        """Whether nothing is to be expected of who holds the claim: it is searched beside them."""
        self.scope: anyio.CancelScope | None = None
        """Around everything that may be dropped, from the moment that it flies."""
        self._listing_lock: anyio.Lock | None = None
        self._listing_ahead: anyio.Event | None = None
        """While its search is about to list: set when that is done, or given up."""
        self._inquiries: list[Inquiry] = []
        self.place: Place | None = None
        """Among equally awaited ones; None: in the order in which they come."""
        self.began = perf_counter()
        self._tell(None)

    def __repr__(self) -> str:
        return f"<Flight {self.key.digest[:12]} {self.state}, {len(self._inquiries)} inquiries>"

    @property
    def awaited(self) -> int:
        """How many wait for it now. Decides who is searched first."""
        inquiries = self._inquiries
        return inquiries[0].awaited if len(inquiries) == 1 else sum(inquiry.awaited for inquiry in inquiries)

    @property
    def precedence(self) -> Precedence:
        """Who is searched first among equally awaited ones: the least."""
        return FIRST if self.place is None else self.place.precedence

    @property
    def stands_back(self) -> bool:
        """Whether it lets others go first that are awaited as much."""
        return self.is_dear and isinstance(self.op, BatchNormOp)

    @property
    def ended(self) -> bool:
        """True once it has landed, failed or was dropped."""
        return self.state in _ENDED

    def status(self, now: float) -> FlightStatus:
        """As it is at that moment of `perf_counter`; from any thread."""
        return FlightStatus(
            digest=self.key.digest,
            problem=self.op.describe(),
            state=self.state,
            trying=self.trying,
            awaited=self.awaited,
            seconds=now - self.began,
        )

    @property
    def listing_lock(self) -> anyio.Lock:
        """Held while the candidates are asked for, so that they are asked for once. Made when needed: most flights
        land from the store."""
        if self._listing_lock is None:
            self._listing_lock = anyio.Lock(fast_acquire=True)
        return self._listing_lock

    @contextmanager
    def listing_ahead(self) -> Iterator[None]:
        """Within this block the candidates come with the search, and need not be asked for."""
        if self.listing is None:
            self._listing_ahead = anyio.Event()
        try:
            yield
        finally:
            self._expect_no_listing()

    async def listed_ahead(self) -> None:
        """Return when the candidates have come with a search, or none is about to bring them."""
        if self._listing_ahead is not None:
            await self._listing_ahead.wait()

    def _expect_no_listing(self) -> None:
        ahead, self._listing_ahead = self._listing_ahead, None
        if ahead is not None:
            ahead.set()

    def move(self, state: State, device: Device | None = None) -> None:
        """Go on to the next state; in some of them it is at a device."""
        assert state in _FOLLOWING[self.state], f"{self!r} cannot become {state}"
        self.state = state
        self._tell(device)

    def join(self, inquiry: Inquiry) -> None:
        """One more inquiry waits for this key; what is known already, it is told."""
        assert not self.ended
        self._inquiries.append(inquiry)
        if self.listing is not None:
            inquiry.tell(self.listing.candidates)

    def leave(self, inquiry: Inquiry) -> bool:
        """An inquiry was withdrawn. True if the flight was dropped: it was the last one, and no trial had begun."""
        if inquiry in self._inquiries:
            self._inquiries.remove(inquiry)
        if self._inquiries or self.state not in _DROPPABLE:
            return False
        self.move("dropped")
        if self.scope is not None:
            self.scope.cancel()
        return True

    def hand_over(self) -> tuple[Inquiry, ...]:
        """Those who still wait, taken out, to board the next flight of this key."""
        inquiries, self._inquiries = tuple(self._inquiries), []
        return inquiries

    def listed(self, listing: Listing) -> None:
        """First milestone: the candidates are known, or more of them."""
        self.listing = listing
        self._expect_no_listing()
        self.offer()

    def offer(self) -> None:
        """The candidates that are known, to all aboard. Inquiries of mode heuristic are answered by them, and who is in
        a hurry has a guess; but not if a policy admits none of them, and the library has more."""
        if self.listing is None:
            return
        candidates = self.listing.candidates
        for inquiry in tuple(self._inquiries):
            inquiry.tell(candidates)
            if inquiry.question.mode == "heuristic":
                self._settle(inquiry, partial(self._first, inquiry, candidates), "heuristic")
            elif inquiry.lacks_guess:
                self._guess_for(inquiry, candidates)

    @property
    def lacks_candidates(self) -> bool:
        """Whether none is known, or somebody who is to be answered by them may use none of those that are known."""
        if self.listing is None or self.listing.complete:
            return self.listing is None
        return any(inquiry.question.mode == "heuristic" or inquiry.lacks_guess for inquiry in self._inquiries)

    def learned(self, record: Record, source: Source) -> None:
        """A record is known: whoever it covers is answered; who it does not cover goes on waiting."""
        if self.record is None or _newness(record) > _newness(self.record):
            self.record = record
        record = self.record
        for inquiry in tuple(self._inquiries):
            inquiry.tell(record)
            self._settle(inquiry, partial(_pick, inquiry.question, record), source)

    def guess(self, suspects: Iterable[str]) -> bool:
        """Nothing is to be run: whoever still waits is answered by the first candidate, provisionally. `suspects` only
        if there is nothing else. False if somebody may use none of those known, and the library has more."""
        assert self.listing is not None
        avoided = set(suspects)
        candidates = tuple(each for each in self.listing.candidates if each.algorithm not in avoided)
        for inquiry in tuple(self._inquiries):
            self._settle(inquiry, partial(self._first_innocent, inquiry, candidates), "heuristic")
        return self.is_idle

    def refuse_cached(self, reason: str) -> None:
        """It was a miss: inquiries of mode cached get their error."""
        for inquiry in tuple(self._inquiries):
            if inquiry.question.mode == "cached":
                self._inquiries.remove(inquiry)
                inquiry.fail(NotCached(self.op.describe(), reason))

    def refuse_uncovered(self, mode: SearchMode, policies: tuple[Policy, ...]) -> None:
        """A search was made for these policies. Who asked one of them and is still not covered would ask for ever."""
        for inquiry in tuple(self._inquiries):
            if inquiry.question.policy in policies and inquiry.question.mode in ("race", mode):
                self._inquiries.remove(inquiry)
                inquiry.fail(SearchFailed(self.op.describe(), "the search made for this policy does not cover it"))

    def note_trying(self, trying: str) -> None:
        """What the worker does now; from its threads."""
        self.trying = trying

    def fail(self, error: Exception) -> None:
        """Every waiter gets the error."""
        inquiries, self._inquiries = self._inquiries, []
        for inquiry in inquiries:
            inquiry.fail(error)

    def wanted(self) -> tuple[SearchMode, tuple[Policy, ...]] | None:
        """The mode and the policies that a search is still needed for; None if none is."""
        modes = {inquiry.question.mode for inquiry in self._inquiries}
        policies = tuple(
            dict.fromkeys(i.question.policy for i in self._inquiries if i.question.mode in ("race", "exhaustive"))
        )
        if not policies:
            return None
        return ("exhaustive" if "exhaustive" in modes else "race"), policies

    @property
    def is_idle(self) -> bool:
        """True if nobody waits for anything."""
        return not self._inquiries

    def _tell(self, device: Device | None) -> None:
        """The state is logged, for whoever draws it."""
        if logger.isEnabledFor(logging.DEBUG):
            digest, problem = self.key.digest, self.op.describe()
            extra = {"digest": digest, "state": self.state, "problem": problem, "device": device}
            logger.debug("%s %s: %s", digest[:12], self.state, problem, extra=extra)

    def _first(self, inquiry: Inquiry, candidates: tuple[Candidate, ...]) -> Choice:
        """Raises NoAlgorithm: none may be used; NotCovered: but the library has more."""
        try:
            return inquiry.question.policy.first(candidates, problem=self.op.describe(), digest=self.key.digest)
        except NoAlgorithm:
            if self.listing is not None and not self.listing.complete:
                raise NotCovered("no candidate listed so far is admitted, and the library has more") from None
            raise

    def _guess_for(self, inquiry: Inquiry, candidates: tuple[Candidate, ...]) -> None:
        assert inquiry.guessed is not None
        try:
            inquiry.guessed.set(self._first(inquiry, candidates))
        except NoAlgorithm as error:
            inquiry.guessed.fail(error)
        except NotCovered:
            return

    def _first_innocent(self, inquiry: Inquiry, innocent: tuple[Candidate, ...]) -> Choice:
        assert self.listing is not None
        try:
            return self._first(inquiry, innocent)
        except NoAlgorithm:
            return self._first(inquiry, self.listing.candidates)

    def _settle(self, inquiry: Inquiry, choose: Callable[[], Choice], source: Source) -> None:
        try:
            choice = choose()
        except NotCovered:
            return
        except NoAlgorithm as error:
            if source != "heuristic" and self._deserves_another_search(inquiry):
                return
            self._inquiries.remove(inquiry)
            inquiry.source = source
            inquiry.fail(error)
        else:
            self._inquiries.remove(inquiry)
            if choice.alone and inquiry.question.strict:
                inquiry.fail(FoundAlone(self.op.describe()))
            else:
                inquiry.answer(choice, source)

    def _deserves_another_search(self, inquiry: Inquiry) -> bool:
        """Whether everything failed, some of it for what may be different here, and this engine has not looked yet."""
        question = inquiry.question
        if self.searched or self.record is None or question.mode not in ("race", "exhaustive"):
            return False
        return deserves_another_search(self.record, question.policy)


def _newness(record: Record) -> tuple[int, int]:
    return record.generation, record.revision


def _pick(question: Question, record: Record) -> Choice:
    return question.policy.pick(record, mode="exhaustive" if question.mode == "exhaustive" else "race")
