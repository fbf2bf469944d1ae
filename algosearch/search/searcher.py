"""`Searcher`: the handle that callers hold. It answers from its table, or asks the engine.

The way of a hit is one coroutine and one chain of dictionary look-ups: no lock, no checkpoint, no second coroutine.
Rejected, with their cost in µs a hit: a lock (0.1), a second coroutine (0.1), a checkpoint (1.6 to 3.3), an LRU (0.5),
keyword-only arguments for `select` (0.03 of 0.15: their defaults are looked up by name at each call); the bound of the
table is kept by dropping its oldest answer when one is added.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import NoneType
from typing import Final

import msgspec

from algosearch.errors import InvalidSetting, SearcherClosed
from algosearch.ops import Op
from algosearch.records import DEFAULT_POLICY, Choice, Policy, Record
from algosearch.search.answers import Answers, Place
from algosearch.search.arguments import checked_device, checked_op, checked_ops, checked_policy, checked_seconds
from algosearch.search.desk import Desk
from algosearch.search.engine import Engine
from algosearch.search.milestone import refuse_in_loop, wait_for_all
from algosearch.search.plans import Plan, Workshop
from algosearch.search.request import Request
from algosearch.search.statistics import ChoicesDigest, FlightStatus, Statistics
from algosearch.search.verification import TOLERANCE, Verdict, Verification
from algosearch.settings import Mode, mode_of

_POLICY: Final = (Policy, NoneType)
_WORD: Final = (str, NoneType)


class Searcher:
    """An open searcher. Made by `open_searcher`; usable from any thread and any loop until it is closed."""

    def __init__(self, engine: Engine, *, mode: Mode, policy: Policy = DEFAULT_POLICY, strict: bool = False) -> None:
        self.mode: Mode = mode
        """How a miss is answered, unless a call says otherwise."""
        self.policy = policy
        """What is asked, unless a call says otherwise."""
        self.strict = strict
        """Whether an answer that was found while the shared store could not be reached is none."""
        self._engine = engine
        self._answers = Answers(mode, policy, strict=strict)
        engine.keep_true(self._answers)
        self._desk = Desk(self._answers, engine)
        self._workshop = Workshop(engine)
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
            InvalidOp, InvalidPolicy, InvalidSetting: an argument is of the wrong kind.
            NoAlgorithm: the policy leaves nothing, or every candidate failed.
            NotCached: mode `cached`, and it was a miss.
            DeadlineExpired: the deadline passed and not even the candidates were known.
            FoundAlone: the searcher is strict, and the shared store could not be reached.
            DeviceUnavailable, UnknownDevice, SearchFailed, SearcherClosed.

        Cancellation: its own request is withdrawn. Others who wait for the same are not disturbed. An answer that is in
        memory is no checkpoint.
        """
        if deadline_s is not None:
            deadline_s = checked_seconds("deadline_s", deadline_s)
        try:
            if policy is None and device is None and mode is None:
                choice = self._own[op]
            elif type(policy) in _POLICY and type(device) in _WORD and type(mode) in _WORD:
                choice = self._answers.table[mode][device][policy][op]
            else:
                raise KeyError  # whatever it may be equal to
        except Exception:  # not there; or a stranger's object, of which the checks will say what is wrong with it
            place = self._place(mode, device, policy)
            return await self._desk.ask(checked_op(op), place, deadline_s=deadline_s)
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
        ops = checked_ops(ops)
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
        return Request(self._desk, self._desk.join([checked_op(op)], place)[0])

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
        if timeout_s is not None:
            timeout_s = checked_seconds("timeout_s", timeout_s)
        inquiries = self._desk.join(checked_ops(ops), self._place(mode, device, policy))
        return self._desk.wait_blocking(inquiries, timeout_s, "Searcher.select_blocking")

    async def build(self, op: Op, choice: Choice, *, device: str | None = None) -> Plan:
        """What was picked for `op`, made runnable in this process: a callable over the caller's arrays.

        Args:
            op: what it was picked for.
            choice: as `select` gave it; its algorithm is built, in the environment for which it was picked.
            device: on which; by default the first one of the algorithm's backend that this searcher has.

        Raises:
            InvalidOp, InvalidSetting, InvalidAlgorithm: an argument is of the wrong kind.
            OtherEnvironment: it was picked for another op, or with other libraries or for another kind of device.
            NotBuilt: the library does not build it.
            NotRunnable: what the backend finds cannot be run (the simulated one's).
            UnknownDevice, DeviceUnavailable, SearcherClosed.

        Cancellation: a plan that is being built is closed when it is there.
        """
        return await self._workshop.build(*self._picked(op, choice, device))

    def build_blocking(
        self, op: Op, choice: Choice, *, device: str | None = None, timeout_s: float | None = None
    ) -> Plan:
        """`build` for a thread without a loop.

        Raises:
            WouldBlockLoop: an event loop runs in this thread.
            TimeoutError: there was no plan within `timeout_s`.
            and what `build` raises.
        """
        refuse_in_loop("Searcher.build_blocking", "await Searcher.build")
        if timeout_s is not None:
            timeout_s = checked_seconds("timeout_s", timeout_s)
        return self._workshop.build_blocking(*self._picked(op, choice, device), timeout_s)

    def _picked(self, op: Op, choice: Choice, device: str | None) -> tuple[Op, Choice, str | None]:
        if self.closed:
            raise SearcherClosed
        if type(choice) is not Choice:
            raise InvalidSetting("choice", choice, "must be a Choice, as select gives one")
        return checked_op(op), choice, None if device is None else checked_device(device)

    async def verify(
        self,
        record: Record,
        policy: Policy | None = None,
        *,
        tolerance: float = TOLERANCE,
        repair: bool = False,
    ) -> Verdict:
        """Run the best of a stored record again, on a device of the environment in which it was made.

        Args:
            record: as a store has it.
            policy: whose pick is run, beside its nearest rivals; the searcher's own if left out.
            tolerance: relative; a time that differs by more from the stored one is a drift.
            repair: whether to search the key afresh, where the record has aged, and to replace it in the store by one
                of the next generation. Answers already given do not change, nor those of this searcher to come.

        Raises:
            SearchFailed, SearcherClosed. That no device is of that environment is a verdict, not an error.

        Cancellation: it is given up between two runs; a repair that was not yet written is not written.
        """
        if self.closed:
            raise SearcherClosed()
        verification = Verification(
            record, policy=self.policy if policy is None else checked_policy(policy), tolerance=tolerance, repair=repair
        )
        self._engine.wake()
        await self._engine.ready.wait()
        self._engine.verify(verification)
        try:
            return await verification.decided.wait()
        except asyncio.CancelledError:
            self._engine.give_up(verification)
            raise

    def peek(
        self, op: Op, policy: Policy | None = None, *, device: str | None = None, mode: Mode | None = None
    ) -> Choice | None:
        """The answer if it is in this searcher's table; None if not. Starts nothing and waits for nothing."""
        place = self._place(mode, device, policy)
        return self._answers.peek(checked_op(op), place)

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """`async with searcher.quiet():` nothing is built, loaded or run on any device of this searcher within it.

        For a process that captures streams or runs collectives, beside which that can deadlock. A step that is under
        way is waited for; searches go on afterwards where they were. What is asked meanwhile waits. Blocks may be
        nested, and be in several tasks at once: it is quiet until the last of them ends. Searchers that share their
        devices share the quiet.

        Raises:
            SearcherClosed.

        Cancellation: while it waits, and within the block, devices go on.
        """
        if self.closed:
            raise SearcherClosed
        hush = self._engine.hush()
        try:
            await hush.held.wait()
            yield
        finally:
            self._engine.resume(hush)

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
        """A fingerprint of every choice given so far: equal on two ranks that chose alike, in whatever order.

        What was found while the shared store could not be reached, and what is provisional, is left out and counted.
        """
        lines: dict[bool, set[bytes]] = {False: set(), True: set()}
        for policy, choice in self._answers.given():
            facts = choice.digest.encode(), msgspec.json.encode(policy, order="sorted"), choice.algorithm.encode()
            lines[choice.alone].add(b"\n".join(facts))
        return ChoicesDigest(
            digest=hashlib.sha256(b"\n".join(sorted(lines[False]))).hexdigest(),
            choices=len(lines[False]),
            alone=len(lines[True]),
            provisional=self._answers.provisional,
        )

    def close(self) -> None:
        """Refuse what comes from now on, and fail what is pending. Harmless if called twice."""
        self._desk.close()
        self._workshop.close()

    def close_at_exit(self) -> None:
        """As `close`, when the interpreter exits: no library is called any more, which may be ending itself."""
        self._desk.close()
        self._workshop.stop()

    @property
    def closed(self) -> bool:
        """True once it refuses what is asked."""
        return self._answers.closed

    def _place(self, mode: Mode | None, device: str | None, policy: Policy | None) -> Place:
        """Where it is asked, of the right types: None is left as it is."""
        return (
            None if mode is None else mode_of(mode),
            None if device is None else checked_device(device),
            None if policy is None else checked_policy(policy),
        )
