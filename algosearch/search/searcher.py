"""`Searcher`: the handle that callers hold. It answers from its table, or asks the engine.

The way of a hit is one coroutine and one chain of dictionary look-ups: no lock, no checkpoint, no second coroutine.
Rejected, with their cost in µs a hit: a lock (0.1), a second coroutine (0.1), a checkpoint (1.6 to 3.3), an LRU (0.5),
keyword-only arguments for `select` (0.03 of 0.15: their defaults are looked up by name at each call); the bound of the
table is kept by dropping its oldest answer when one is added.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable

import msgspec

from algosearch.errors import InvalidOp, InvalidPolicy
from algosearch.ops import BatchNormOp, ConvOp, Op
from algosearch.records import DEFAULT_POLICY, Choice, Policy
from algosearch.search.answers import Answers, Place
from algosearch.search.desk import Desk, refuse_in_loop
from algosearch.search.engine import Engine
from algosearch.search.milestone import wait_for_all
from algosearch.search.request import Request
from algosearch.search.statistics import ChoicesDigest, FlightStatus, Statistics
from algosearch.settings import MODES, Mode, mode_of


class Searcher:
    """An open searcher. Made by `open_searcher`; usable from any thread and any loop until it is closed."""

    def __init__(self, engine: Engine, *, mode: Mode, policy: Policy = DEFAULT_POLICY) -> None:
        self.mode: Mode = mode
        """How a miss is answered, unless a call says otherwise."""
        self.policy = policy
        """What is asked, unless a call says otherwise."""
        self._engine = engine
        self._answers = Answers(mode, policy)
        self._desk = Desk(self._answers, engine)
        self._own = self._answers.own
        self._hits = 0

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        hits = self._hits + self._answers.hits
        return f"<Searcher {state}, {len(self._answers.pending)} pending, {hits} hits, {self._engine!r}>"

    async def select(
        self,
        op: Op,
        policy: Policy | None = None,
        device: str | None = None,
        mode: Mode | None = None,
        deadline_s: float | None = None,
    ) -> Choice:
        """The algorithm to use for `op`, and its workspace; from memory at once, else after the one search.

        Args:
            op: a `ConvOp` or `BatchNormOp`.
            policy: what may be used; the searcher's own if left out.
            device: which kind of device, by the name of one of it (`cpu:0`) or of its backend (`cpu`); the first found
                if left out. Equal devices share their answers.
            mode: how a miss is answered; the searcher's own if left out.
            deadline_s: after so many seconds a late answer is replaced by a provisional one; the search goes on.

        Raises:
            NoAlgorithm: the policy leaves nothing, or every candidate failed.
            NotCached: mode `cached`, and it was a miss.
            DeadlineExpired: the deadline passed and not even the candidates were known.
            DeviceUnavailable, UnknownDevice, SearchFailed, SearcherClosed.

        Cancellation: its own request is withdrawn. Others who wait for the same are not disturbed. An answer that is in
        memory is no checkpoint.
        """
        try:
            if policy is None and device is None and mode is None:
                choice = self._own[op]
            else:
                choice = self._answers.table[mode][device][policy][op]
        except (KeyError, TypeError):
            (checked,) = self._checked([op])
            return await self._desk.ask(checked, self._place(mode, device, policy), deadline_s=deadline_s)
        self._hits += 1
        return choice

    async def select_many(
        self,
        ops: Iterable[Op],
        policy: Policy | None = None,
        *,
        device: str | None = None,
        mode: Mode | None = None,
    ) -> list[Choice]:
        """`select` for many ops at once, in order. All searches are under way before the first is awaited.

        Raises:
            what `select` raises: the error of the first op that has one, once all are settled.

        Cancellation: the requests made here are withdrawn.
        """
        place = self._place(mode, device, policy)
        ops = self._checked(ops)
        known = self._answers.at(place)
        found = {op: known[op] for op in ops if op in known}
        inquiries = self._desk.join([op for op in ops if op not in found], place)
        try:
            await wait_for_all([inquiry.answered for inquiry in inquiries])
        except asyncio.CancelledError:
            self._desk.give_up(inquiries)
            raise
        self._hits += len(ops) - len(inquiries)
        rest = iter(inquiries)
        return [found[op] if op in found else next(rest).answered.result() for op in ops]

    def request(
        self,
        op: Op,
        policy: Policy | None = None,
        *,
        device: str | None = None,
        mode: Mode | None = None,
    ) -> Request:
        """Start, or join, the one search for `op`, and return at once. Arguments as those of `select`.

        Raises:
            InvalidOp, InvalidPolicy, InvalidSetting: an argument is of the wrong kind.
            SearcherClosed.
        """
        place = self._place(mode, device, policy)
        return Request(self._desk, self._desk.join(self._checked([op]), place)[0])

    def select_blocking(
        self,
        op: Op,
        policy: Policy | None = None,
        *,
        device: str | None = None,
        mode: Mode | None = None,
        timeout_s: float | None = None,
    ) -> Choice:
        """`select` for a thread without a loop. The search goes on after a timeout.

        Raises:
            WouldBlockLoop: an event loop runs in this thread.
            TimeoutError: there was no answer within `timeout_s`.
            and what `select` raises.
        """
        return self.select_many_blocking([op], policy, device=device, mode=mode, timeout_s=timeout_s)[0]

    def select_many_blocking(
        self,
        ops: Iterable[Op],
        policy: Policy | None = None,
        *,
        device: str | None = None,
        mode: Mode | None = None,
        timeout_s: float | None = None,
    ) -> list[Choice]:
        """`select_many` for a thread without a loop. Raises as `select_blocking`."""
        refuse_in_loop("Searcher.select_blocking", "await Searcher.select")
        inquiries = self._desk.join(self._checked(ops), self._place(mode, device, policy))
        return self._desk.wait_blocking(inquiries, timeout_s, "Searcher.select_blocking")

    def peek(
        self, op: Op, policy: Policy | None = None, *, device: str | None = None, mode: Mode | None = None
    ) -> Choice | None:
        """The answer if it is in this searcher's table; None if not. Starts nothing and waits for nothing."""
        place = self._place(mode, device, policy)
        (checked,) = self._checked([op])
        return self._answers.peek(checked, place)

    def flights(self) -> tuple[FlightStatus, ...]:
        """What the engine has under way, for a progress line."""
        return self._engine.flights()

    def statistics(self) -> Statistics:
        """A snapshot of the counters."""
        answers = self._answers
        return Statistics(
            hits=self._hits + answers.hits,
            joined=answers.joined,
            asked=answers.asked,
            open=len(answers.pending),
            answers=len(answers.given()),
            engine=self._engine.statistics(),
        )

    def choices_digest(self) -> ChoicesDigest:
        """A fingerprint of every choice given so far: equal on two ranks that chose alike, in whatever order."""
        lines = {
            b"\n".join((choice.digest.encode(), msgspec.json.encode(policy, order="sorted"), choice.algorithm.encode()))
            for policy, choice in self._answers.given()
        }
        return ChoicesDigest(digest=hashlib.sha256(b"\n".join(sorted(lines))).hexdigest(), choices=len(lines))

    def close(self) -> None:
        """Refuse what comes from now on, and fail what is pending. Harmless if called twice."""
        self._desk.close()

    @property
    def closed(self) -> bool:
        """True once it refuses what is asked."""
        return self._answers.closed

    def _checked(self, ops: Iterable[Op]) -> list[Op]:
        """The ops, each of which is one. Checked before anything is asked, so that nothing is asked by halves."""
        checked = list(ops)
        for op in checked:
            if type(op) is not ConvOp and type(op) is not BatchNormOp:
                raise InvalidOp("op", op, "must be a ConvOp or a BatchNormOp")
        return checked

    def _place(self, mode: Mode | None, device: str | None, policy: Policy | None) -> Place:
        """Where it is asked, of the right types: None is left as it is."""
        if policy is not None and type(policy) is not Policy:
            raise InvalidPolicy("policy", policy, "must be a Policy")
        if mode is not None and mode not in MODES:
            mode_of(mode)
        return mode, device, policy
