"""`Desk`: where questions are handed in and answers waited for: the table of answers before it, the engine behind it.

A searcher and its requests stand at the same desk; nothing else talks to the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Final

from algosearch.errors import DeadlineExpired, NoAlgorithm, RequestWithdrawn, SearcherClosed
from algosearch.ops import Op
from algosearch.records import Choice
from algosearch.search.answers import Answers, Place
from algosearch.search.engine import Engine
from algosearch.search.inquiry import Inquiry, candidates_of
from algosearch.search.milestone import happens_within, refuse_in_loop

GRACE_S: Final = 1.0
"""How long after a deadline the candidates may take, when they were not even known yet."""


class Desk:
    """One searcher's. Usable from any thread and any loop."""

    def __init__(self, answers: Answers, engine: Engine) -> None:
        self._answers = answers
        self._engine = engine

    def join(self, ops: Sequence[Op], place: Place) -> list[Inquiry]:
        """The inquiry of each op, with one more open request; new ones are handed to the engine.

        Raises:
            SearcherClosed.
        """
        inquiries, fresh = self._answers.join(ops, place)
        if fresh:
            self._engine.submit(fresh)
        return inquiries

    async def ask(self, op: Op, place: Place, *, deadline_s: float | None = None) -> Choice:
        """Join the inquiry of an op and wait for its answer.

        Cancellation: the request made here is given up.
        """
        (inquiry,) = self.join([op], place)
        try:
            return await self.wait(inquiry, deadline_s)
        except asyncio.CancelledError:
            self.give_up([inquiry])
            raise

    async def wait(self, inquiry: Inquiry, deadline_s: float | None) -> Choice:
        """The answer, or after the deadline a provisional one.

        Cancellation: the request stays open.
        """
        inquiry.check_not_inherited()
        if deadline_s is None or inquiry.answered.happened:
            return await inquiry.answered.wait()
        if await happens_within(inquiry.answered, deadline_s):
            return inquiry.answered.result()
        return await self._provisional(inquiry, deadline_s)

    async def _provisional(self, inquiry: Inquiry, deadline_s: float) -> Choice:
        """The library's first candidate that the policy admits, as soon as one is known; the search goes on."""
        problem = inquiry.question.op.describe()
        if inquiry.listed.happened:
            # Of what is known already, there may be none; that there is none at all, the engine has to say.
            with contextlib.suppress(NoAlgorithm):
                return inquiry.question.policy.first(candidates_of(inquiry.listed.result()), problem=problem)
        guessed = inquiry.hurry()
        self._engine.list_now(inquiry)
        if not await happens_within(guessed, GRACE_S):
            raise DeadlineExpired(problem, deadline_s)
        return inquiry.answered.result() if inquiry.answered.happened else guessed.result()

    def wait_blocking(self, inquiries: Sequence[Inquiry], timeout_s: float | None, call: str) -> list[Choice]:
        """The answers, this thread blocked until then.

        Raises:
            WouldBlockLoop: an event loop runs in this thread.
            TimeoutError: there was no answer to one of them within `timeout_s`.
        """
        refuse_in_loop(call, call.removesuffix("_blocking"))
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for inquiry in inquiries:
            inquiry.check_not_inherited()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not inquiry.answered.wait_blocking(left):
                raise TimeoutError(f"no answer for {inquiry.question.op.describe()} within {timeout_s} s")
        return [inquiry.answered.result() for inquiry in inquiries]

    def give_up(self, inquiries: Iterable[Inquiry]) -> None:
        """One open request less for each. The last one withdraws the inquiry, and who still awaits it hears of that."""
        for inquiry in self._answers.give_up([each for each in inquiries if not each.inherited]):
            self._engine.withdraw(inquiry)
            inquiry.fail(RequestWithdrawn(inquiry.question.op.describe()))

    def close(self) -> None:
        """Refuse what comes from now on, and fail what is pending. Harmless if called twice."""
        for inquiry in self._answers.close():
            self._engine.withdraw(inquiry)
            inquiry.fail(SearcherClosed())
