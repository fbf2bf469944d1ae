"""`Inquiry`: one question asked in this process, on its way to an answer: op, policy, device and mode.

It is the bridge between the callers' threads and the engine's. Every request for an equal question joins the one
inquiry; the engine attaches it to the flight of its key. Two equal descriptions of one problem are two inquiries on one
flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

import msgspec

from algosearch.errors import AlgosearchError, SearcherClosed, SearchFailed
from algosearch.forks import forks
from algosearch.ops import Op
from algosearch.records import Candidate, Choice, Policy, Record, Trial
from algosearch.search.milestone import Milestone
from algosearch.settings import Mode

Source = Literal["memory", "store", "search", "heuristic"]
"""Where an answer came from: a record in memory, the store, a search, or nothing but the library's own order."""


Listed = tuple[Candidate, ...] | Record | Choice
"""Whatever tells the candidates. From a record or a choice they are made when somebody asks, which is seldom."""


def candidates_of(listed: Listed) -> tuple[Candidate, ...]:
    """The candidates in the library's order."""
    if isinstance(listed, tuple):
        return listed
    if isinstance(listed, Choice):
        seen: list[Trial | Candidate] = list(listed.candidates)
    else:
        seen = [trial for search in listed.searches for trial in search.trials]
    known: dict[str, Candidate] = {}
    for each in seen:
        candidate = Candidate(
            algorithm=each.algorithm, rank=each.rank, workspace_bytes=each.workspace_bytes, notes=each.notes
        )
        known.setdefault(each.algorithm, candidate)
    return tuple(sorted(known.values(), key=lambda candidate: (candidate.rank, candidate.algorithm)))


class Question(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """What is asked. Equal questions share one inquiry."""

    op: Op
    policy: Policy
    device: str | None
    mode: Mode
    strict: bool = False
    """Whether an answer that was found alone is none."""


class Inquiry:
    """The state of one question.

    Args:
        on_answer: called with the choice, or None for an error, before whoever waits wakes.
        lock: of its milestones; many inquiries share one, as `Milestone` says.

    Invariant: `open_requests` is changed under the lock of its `Answers` only; when it falls to 0 before the answer,
    the inquiry is withdrawn and never joined again.
    """

    __slots__ = (
        *("_error", "_forks", "_listed", "_lock", "_on_answer", "_told", "answered", "guessed"),
        *("open_requests", "question", "source", "withdrawn"),
    )

    def __init__(
        self, question: Question, on_answer: Callable[[Inquiry, Choice | None], None], lock: threading.RLock
    ) -> None:
        self.question = question
        self.answered: Milestone[Choice] = Milestone(lock)
        """Second milestone: the choice."""
        self._listed: Milestone[Listed] | None = None
        self._told: Listed | None = None
        self._error: AlgosearchError | None = None
        self._lock = lock
        self.open_requests = 0
        self.withdrawn = False
        self.guessed: Milestone[Choice] | None = None
        """The library's first candidate that the policy admits, provisionally, or the answer if that is sooner. Made
        when a deadline has passed."""
        self.source: Source | None = None
        self._on_answer = on_answer
        self._forks = forks()

    def __repr__(self) -> str:
        return f"<Inquiry {self.question.op.describe()}, {self.open_requests} open, {self.answered!r}>"

    @property
    def listed(self) -> Milestone[Listed]:
        """First milestone: the candidates and the workspace of each, or what tells them. Made when somebody asks for
        it: few do."""
        listed = self._listed
        if listed is None:
            with self._lock:
                if self._listed is None:
                    self._listed = Milestone(self._lock)
                listed = self._listed
        if not listed.happened:  # in a child, who told it may have gone before passing it on
            self._pass_on(listed)
        return listed

    def tell(self, listed: Listed) -> None:
        """Let the first milestone happen. Harmless if it has."""
        if self._told is None and self._error is None:
            self._told = listed
            self._pass_on(self._listed)

    def hurry(self) -> Milestone[Choice]:
        """A deadline has passed: `guessed`, from now on."""
        with self._lock:
            if self.guessed is None:
                self.guessed = Milestone(self._lock)
            guessed = self.guessed
        if self.answered.happened:  # if that is still ahead, it finds `guessed`
            try:
                guessed.set(self.answered.result())
            except AlgosearchError as error:
                guessed.fail(error)
        return guessed

    @property
    def lacks_guess(self) -> bool:
        """Whether somebody waits for one."""
        return self.guessed is not None and not self.guessed.happened

    def _pass_on(self, listed: Milestone[Listed] | None) -> None:
        # Whoever makes the milestone looks afterwards what was told, and whoever tells, whether it was made: one of the
        # two finds the other, and the milestone happens once.
        if listed is not None:
            if self._told is not None:
                listed.set(self._told)
            elif self._error is not None:
                listed.fail(self._error)

    @property
    def awaited(self) -> int:
        """How many wait for it now, for any of its milestones. Decides who is searched first."""
        waiting = self.answered.waiting
        if self._listed is not None:
            waiting += self._listed.waiting
        if self.guessed is not None:
            waiting += self.guessed.waiting
        return waiting

    @property
    def inherited(self) -> bool:
        """True if it was asked before a fork, in the parent: whoever would have settled it is not in this process."""
        return self._forks != forks()

    def check_not_inherited(self) -> None:
        """Before it is waited for. Raises SearcherClosed if nobody could ever settle it."""
        if self.inherited and not self.answered.happened:
            raise SearcherClosed("this was asked before the process forked, and is answered in the parent: ask again")

    def answer(self, choice: Choice, source: Source) -> None:
        """Settle it with a choice. The searcher's table is filled before the waiters wake."""
        self.source = source
        self._on_answer(self, choice)
        self.answered.set(choice)
        if self.guessed is not None:
            self.guessed.set(choice)

    def answer_known(self, choice: Choice) -> None:
        """Settle it with a choice that the searcher's table had: no flight, no engine."""
        self.source = "memory"
        self.tell(choice)
        self.answered.set(choice)

    def fail(self, error: Exception) -> None:
        """Settle both milestones with an error; a milestone that has happened keeps its value."""
        if not isinstance(error, AlgosearchError):
            broken = SearchFailed(self.question.op.describe(), f"{type(error).__name__}: {error}")
            broken.__cause__ = error
            error = broken
        self._on_answer(self, None)
        self._error = error
        self._pass_on(self._listed)
        self.answered.fail(error)
        if self.guessed is not None:
            self.guessed.fail(error)


class Inquiries(tuple[Inquiry, ...]):
    """What was asked at once, of one device."""

    __slots__ = ()

    def fail(self, error: AlgosearchError) -> None:
        """Settle each with the error."""
        for inquiry in self:
            inquiry.fail(error.again())
