"""`Searcher`: the handle that callers hold: a table of answers, and the questions on their way to the engine.

The way of a hit is one coroutine and one chain of dictionary look-ups: no lock, no checkpoint, no second coroutine.
Rejected, with their cost in µs a hit: a lock (0.1), a second coroutine (0.1), a checkpoint (1.6 to 3.3), an LRU (0.5);
the bound of the table is kept by dropping its oldest answer when one is added.

Threads: the table and the pending inquiries are changed under one lock and read without it. An answer is in the table
before its waiters wake; a question is never both in the table and pending.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from algosearch.errors import DeadlineExpired, InvalidOp, InvalidPolicy, SearcherClosed, WouldBlockLoop
from algosearch.ops import BatchNormOp, ConvOp, Op
from algosearch.records import DEFAULT_POLICY, Choice, Policy
from algosearch.search.engine import Engine
from algosearch.search.inquiry import Inquiry, Question
from algosearch.search.milestone import happens_within, wait_for_all
from algosearch.search.request import Request
from algosearch.search.statistics import ChoicesDigest, FlightStatus, Statistics
from algosearch.settings import MODES, Mode, mode_of

ANSWERS_KEPT: Final = 200_000
"""Answers kept for each policy, device and mode; the oldest goes first, and its record stays in the store."""
GRACE_S: Final = 1.0
"""How long after a deadline the candidates may take, when they were not even known yet."""

_Table = dict[Policy | None, dict[Op, Choice]]


class Searcher:
    """An open searcher. Made by `open_searcher`; usable from any thread and any loop until it is closed."""

    def __init__(self, engine: Engine, *, mode: Mode, policy: Policy = DEFAULT_POLICY) -> None:
        self.mode: Mode = mode
        """How a miss is answered, unless a call says otherwise."""
        self.policy = policy
        """What is asked, unless a call says otherwise."""
        self._engine = engine
        self._lock = threading.Lock()
        self._closed = False
        self._pending: dict[Question, Inquiry] = {}
        self._answers: dict[Mode | None, dict[str | None, _Table]] = {}
        """By mode, device, policy and op. None stands for what was left out."""
        self._hits = 0
        self._asked = 0
        self._joined = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Searcher {state}, {len(self._pending)} pending, {self._hits} hits, {self._engine!r}>"

    async def select(
        self,
        op: Op,
        policy: Policy | None = None,
        *,
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
            choice = self._answers[mode][device][policy][op]
        except (KeyError, TypeError):
            return await self.ask_and_wait(
                self._question(op, policy, device, mode), as_asked=(mode, device, policy), deadline_s=deadline_s
            )
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
        requests = [self.request(op, policy, device=device, mode=mode) for op in ops]
        try:
            await wait_for_all([request._inquiry.answered for request in requests])
        except asyncio.CancelledError:
            for request in requests:
                request.withdraw()
            raise
        return [request._inquiry.answered.result() for request in requests]

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
        return Request(self, self._join(self._question(op, policy, device, mode), (mode, device, policy)))

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
        inquiries = [self._join(self._question(op, policy, device, mode), (mode, device, policy)) for op in ops]
        return self.wait_for_blocking(inquiries, timeout_s, "Searcher.select_blocking")

    def peek(
        self, op: Op, policy: Policy | None = None, *, device: str | None = None, mode: Mode | None = None
    ) -> Choice | None:
        """The answer if it is in this searcher's table; None if not. Starts nothing and waits for nothing."""
        try:
            return self._answers[mode][device][policy][op]
        except (KeyError, TypeError):
            return self._settled(self._question(op, policy, device, mode))

    def flights(self) -> tuple[FlightStatus, ...]:
        """What the engine has under way, for a progress line."""
        return self._engine.flights()

    def statistics(self) -> Statistics:
        """A snapshot of the counters."""
        with self._lock:
            return Statistics(
                hits=self._hits,
                joined=self._joined,
                asked=self._asked,
                open=len(self._pending),
                answers=sum(1 for _ in self._given()),
                engine=self._engine.statistics(),
            )

    def choices_digest(self) -> ChoicesDigest:
        """A fingerprint of every choice given so far: equal on two ranks that chose alike, in whatever order."""
        with self._lock:
            lines = {
                b"\n".join(
                    (choice.digest.encode(), msgspec.json.encode(policy, order="sorted"), choice.algorithm.encode())
                )
                for policy, choice in self._given()
            }
        return ChoicesDigest(digest=hashlib.sha256(b"\n".join(sorted(lines))).hexdigest(), choices=len(lines))

    # -- for requests and the opening; not for callers ---------------------------------------------------------------

    async def ask_and_wait(
        self,
        question: Question,
        *,
        as_asked: tuple[Mode | None, str | None, Policy | None] | None = None,
        deadline_s: float | None = None,
    ) -> Choice:
        """Join the inquiry and wait for its answer; withdraw if cancelled meanwhile."""
        inquiry = self._join(question, as_asked)
        try:
            return await self.wait_for(inquiry, deadline_s)
        except asyncio.CancelledError:
            self.give_up(inquiry)
            raise

    async def wait_for(self, inquiry: Inquiry, deadline_s: float | None) -> Choice:
        """The answer, or after the deadline a provisional one."""
        if deadline_s is None or inquiry.answered.happened:
            return await inquiry.answered.wait()
        if await happens_within(inquiry.answered, deadline_s):
            return inquiry.answered.result()
        return await self._provisional(inquiry, deadline_s)

    async def _provisional(self, inquiry: Inquiry, deadline_s: float) -> Choice:
        """The library's first candidate, as soon as the candidates are known; the search goes on."""
        problem = inquiry.question.op.describe()
        self._engine.list_now(inquiry)
        if not await happens_within(inquiry.listed, GRACE_S):
            raise DeadlineExpired(problem, deadline_s)
        if inquiry.answered.happened:
            return inquiry.answered.result()
        return inquiry.question.policy.first(inquiry.listed.result(), problem=problem)

    def wait_for_blocking(self, inquiries: Sequence[Inquiry], timeout_s: float | None, call: str) -> list[Choice]:
        """The answers, this thread blocked until then."""
        refuse_in_loop(call, call.removesuffix("_blocking"))
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for inquiry in inquiries:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not inquiry.answered.wait_blocking(left):
                raise TimeoutError(f"no answer for {inquiry.question.op.describe()} within {timeout_s} s")
        return [inquiry.answered.result() for inquiry in inquiries]

    def give_up(self, inquiry: Inquiry) -> None:
        """One request less. The last one withdraws the inquiry."""
        with self._lock:
            inquiry.open_requests -= 1
            if inquiry.open_requests or inquiry.answered.happened:
                return
            inquiry.withdrawn = True
            if self._pending.get(inquiry.question) is inquiry:
                del self._pending[inquiry.question]
        self._engine.withdraw(inquiry)

    def close_answers(self) -> None:
        """Refuse what comes from now on, and fail what is pending. Harmless if called twice."""
        with self._lock:
            self._closed = True
            self._answers = {}  # a closed searcher answers nothing, not even from memory
            pending = tuple(self._pending.values())
            for inquiry in pending:
                inquiry.withdrawn = True
        for inquiry in pending:
            self._engine.withdraw(inquiry)
            inquiry.fail(SearcherClosed())

    @property
    def closed(self) -> bool:
        """True once it refuses what is asked."""
        return self._closed

    def _question(self, op: Op, policy: Policy | None, device: str | None, mode: Mode | None) -> Question:
        if type(op) is not ConvOp and type(op) is not BatchNormOp:
            raise InvalidOp("op", op, "must be a ConvOp or a BatchNormOp")
        if policy is None:
            policy = self.policy
        elif type(policy) is not Policy:
            raise InvalidPolicy("policy", policy, "must be a Policy")
        if mode is None:
            mode = self.mode
        elif mode not in MODES:
            mode_of(mode)
        return Question(op, policy, device, mode)

    def _join(self, question: Question, as_asked: tuple[Mode | None, str | None, Policy | None] | None) -> Inquiry:
        """The inquiry of this question, with one more open request: pending, or a new one, or one answered already."""
        with self._lock:
            if self._closed:
                raise SearcherClosed
            inquiry = self._pending.get(question)
            if inquiry is not None:
                self._joined += 1
                inquiry.open_requests += 1
                return inquiry
            inquiry = Inquiry(question, self._settle)
            inquiry.open_requests = 1
            known = self._settled(question)
            if known is None:
                self._asked += 1
                self._pending[question] = inquiry
            else:
                self._hits += 1
                if as_asked is not None:
                    self._keep(as_asked, question.op, known)
        if known is None:
            self._engine.submit(inquiry)
        else:
            inquiry.answer_known(known)
        return inquiry

    def _settled(self, question: Question) -> Choice | None:
        """The answer to a fully spelled-out question, if it is in the table."""
        try:
            return self._answers[question.mode][question.device][question.policy][question.op]
        except KeyError:
            return None

    def _settle(self, inquiry: Inquiry, choice: Choice | None) -> None:
        """An inquiry has its answer (or an error): out of pending, into the table. In the engine's thread."""
        question = inquiry.question
        with self._lock:
            if self._pending.get(question) is inquiry:
                del self._pending[question]
            if choice is not None and not choice.provisional and not self._closed:
                self._keep((question.mode, question.device, question.policy), question.op, choice)
                if question.mode == self.mode:
                    policy = None if question.policy == self.policy else question.policy
                    self._keep((None, question.device, policy), question.op, choice)

    def _keep(self, place: tuple[Mode | None, str | None, Policy | None], op: Op, choice: Choice) -> None:
        mode, device, policy = place
        table = self._answers.setdefault(mode, {}).setdefault(device, {}).setdefault(policy, {})
        if len(table) >= ANSWERS_KEPT:
            del table[next(iter(table))]
        table[op] = choice

    def _given(self) -> Iterable[tuple[Policy, Choice]]:
        """Every answer in the table once, under its spelled-out policy. Under the lock."""
        for mode, devices in self._answers.items():
            if mode is not None:
                for policies in devices.values():
                    for policy, table in policies.items():
                        if policy is not None:
                            for choice in table.values():
                                yield policy, choice


def refuse_in_loop(call: str, instead: str) -> None:
    """Raises WouldBlockLoop if an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WouldBlockLoop(call, instead)
