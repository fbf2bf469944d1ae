"""`Request`: a caller's hold on one question. Made by `Searcher.request`, which returns at once."""

from __future__ import annotations

from algosearch.errors import RequestWithdrawn
from algosearch.ops import Op
from algosearch.records import Choice, Policy
from algosearch.search.arguments import checked_policy, checked_seconds
from algosearch.search.desk import Desk
from algosearch.search.inquiry import Inquiry, Source, candidates_of


class Request:
    """One open request. The search goes on, awaited or not, until it is answered, withdrawn, or the searcher closes.

    Usable from any thread and any loop.
    """

    __slots__ = ("_desk", "_inquiry", "_open")

    def __init__(self, desk: Desk, inquiry: Inquiry) -> None:
        self._desk = desk
        self._inquiry = inquiry
        self._open = True

    def __repr__(self) -> str:
        state = "answered" if self.answered else "open" if self._open else "withdrawn"
        return f"<Request {self.op.describe()} {state}>"

    @property
    def op(self) -> Op:
        """What was asked about."""
        return self._inquiry.question.op

    @property
    def policy(self) -> Policy:
        """Under which policy."""
        return self._inquiry.question.policy

    @property
    def answered(self) -> bool:
        """True once `choice` would return (or raise) without waiting."""
        return self._inquiry.answered.happened

    @property
    def source(self) -> Source | None:
        """Where the answer came from; None until there is one."""
        return self._inquiry.source

    async def workspace(self) -> dict[str, int]:
        """First milestone: the bytes of workspace that each candidate needs, by algorithm.

        Known before anything is run. What the policy refuses is in it as well.

        Raises:
            DeviceUnavailable, UnknownDevice: there is nothing to ask.
            SearchFailed: the backend broke while it listed its candidates.
            RequestWithdrawn, SearcherClosed.

        Cancellation: the request stays open and the search goes on.
        """
        self._check_open()
        if not self._inquiry.listed.happened:
            self._inquiry.check_not_inherited()
        candidates = candidates_of(await self._inquiry.listed.wait())
        return {candidate.algorithm: candidate.workspace_bytes for candidate in candidates}

    async def choice(self, policy: Policy | None = None, *, deadline_s: float | None = None) -> Choice:
        """Second milestone: the answer, under the request's policy or another one.

        Args:
            policy: another one than the request's is answered from the same record; if the searches so far did not look
                where it asks, one further search is made.
            deadline_s: after so many seconds the library's first candidate is given, marked `provisional`, while the
                search goes on.

        Raises:
            InvalidPolicy, InvalidSetting: an argument is of the wrong kind.
            NoAlgorithm: the policy leaves nothing, or every candidate failed.
            NotCached: mode `cached`, and it was a miss.
            DeadlineExpired: the deadline passed and not even the candidates were known.
            DeviceUnavailable, UnknownDevice, SearchFailed, RequestWithdrawn, SearcherClosed.

        Cancellation: the request stays open and the search goes on.
        """
        self._check_open()
        if deadline_s is not None:
            deadline_s = checked_seconds("deadline_s", deadline_s)
        if policy is not None and checked_policy(policy) != self.policy:
            question = self._inquiry.question
            place = (question.mode, question.device, policy)
            return await self._desk.ask(question.op, place, deadline_s=deadline_s)
        return await self._desk.wait(self._inquiry, deadline_s)

    def choice_blocking(self, *, timeout_s: float | None = None) -> Choice:
        """`choice` for a thread without a loop.

        Raises:
            InvalidSetting: `timeout_s` is no time.
            WouldBlockLoop: an event loop runs in this thread.
            TimeoutError: there was no answer within `timeout_s`; the search goes on.
            and what `choice` raises.
        """
        self._check_open()
        if timeout_s is not None:
            timeout_s = checked_seconds("timeout_s", timeout_s)
        return self._desk.wait_blocking([self._inquiry], timeout_s, "Request.choice_blocking")[0]

    def withdraw(self) -> None:
        """Give it up. If nobody else asked and no trial has begun, the search is dropped. Harmless if called twice."""
        if self._open:
            self._open = False
            self._desk.give_up([self._inquiry])

    def _check_open(self) -> None:
        if not self._open:
            raise RequestWithdrawn(self.op.describe())
