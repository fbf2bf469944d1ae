"""`Answers`: what a searcher knows and what it waits for, by the place from which it was asked.

Threads: everything is changed under one lock, and the table is read without it. An answer is in the table before its
waiters wake, and a question is never both in the table and pending.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Final

from algosearch.errors import NoAlgorithm, NotCovered, SearcherClosed
from algosearch.forks import renew_in_children
from algosearch.ops import Op
from algosearch.records import Choice, Policy, Record
from algosearch.search.inquiry import Inquiry, Question
from algosearch.settings import Mode

ANSWERS_KEPT: Final = 200_000
"""Answers kept for each place; the oldest goes first, and its record stays in the store."""

LOCKS: Final = 64
"""Shared by the milestones of all inquiries. One alone would be waited for (6 % of the processor time of a thousand
askers of a thousand keys); one each is something more to make, and for the garbage collector to visit. A thread may
take one twice (`Milestone`)."""

Place = tuple[Mode | None, str | None, Policy | None]
"""(mode, device, policy) of a call. None in the first or last stands for the searcher's own."""


class Answers:
    """The table of answers and the pending inquiries of one searcher.

    Invariant: what is in the table under the searcher's own mode or policy spelled out is also there under None, once
    asked so. Only final answers enter; a provisional one is to be asked again.
    """

    def __init__(self, own_mode: Mode, own_policy: Policy, *, strict: bool = False) -> None:
        self.own: dict[Op, Choice] = {}
        """What was asked without saying mode, device or policy: the way of nearly every hit."""
        self.table: dict[Mode | None, dict[str | None, dict[Policy | None, dict[Op, Choice]]]]
        self.table = {None: {None: {None: self.own}}}
        """By mode, device, policy and op."""
        self.hits = 0
        self.asked = 0
        self.joined = 0
        self.closed = False
        self._tables_of: dict[Place, tuple[dict[Op, Choice], ...]] = {}
        """By the place of a question: the parts of `table` that keep its answer."""
        self._own_mode = own_mode
        self._own_policy = own_policy
        self._strict = strict
        self._provisional: set[tuple[Place, Op]] = set()
        """What was answered, and has no final answer yet."""
        self._pending: dict[Place, dict[Op, Inquiry]]
        """Places spelled out."""
        self._shared = [threading.RLock() for _ in range(LOCKS)]
        self._locks = cycle(self._shared)
        self.renew_after_fork()
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """What is in the table is as true in the child; what is pending is the parent's."""
        self._lock = threading.Lock()
        # The same ones, freed: inquiries of the parent's have them. What those were told can be asked for, and who
        # waited for more gives up through them, in a child of the child as well.
        for lock in self._shared:
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as `threading` and `logging` do with theirs
        self._pending = {}

    @property
    def pending(self) -> tuple[Inquiry, ...]:
        """The inquiries under way."""
        with self._lock:
            return tuple(inquiry for inquiries in self._pending.values() for inquiry in inquiries.values())

    def at(self, place: Place) -> dict[Op, Choice]:
        """The answers known at a place; not to be changed."""
        mode, device, policy = place
        return self.table.get(mode, {}).get(device, {}).get(policy, {})

    def peek(self, op: Op, place: Place) -> Choice | None:
        """The answer to one op, however its place is spelled; None if it is not known."""
        return self.at(place).get(op) or self.at(self._spelled_out(place)).get(op)

    def join(self, ops: Sequence[Op], place: Place) -> tuple[list[Inquiry], list[Inquiry]]:
        """One more open request for each op: (its inquiry, for each; those of them that are new, to be submitted).

        What is known already gets an inquiry that is settled at once.

        Raises:
            SearcherClosed.
        """
        mode, device, policy = spelled_out = self._spelled_out(place)
        settle, locks, strict = self._settle, self._locks, self._strict
        inquiries: list[Inquiry] = []
        fresh: list[Inquiry] = []
        known: list[tuple[Inquiry, Choice]] = []
        with self._lock:
            if self.closed:
                raise SearcherClosed
            pending = self._pending.setdefault(spelled_out, {})
            answers = self.at(spelled_out)
            for op in ops:
                inquiry = pending.get(op)
                if inquiry is None:
                    inquiry = Inquiry(Question(op, policy, device, mode, strict), settle, next(locks))
                    choice = answers.get(op)
                    if choice is None:
                        pending[op] = inquiry
                        fresh.append(inquiry)
                    else:
                        self.hits += 1
                        _keep(self._tables(place), op, choice)
                        known.append((inquiry, choice))
                else:
                    self.joined += 1
                inquiry.open_requests += 1
                inquiries.append(inquiry)
            self.asked += len(fresh)
        for inquiry, choice in known:
            inquiry.answer_known(choice)
        return inquiries, fresh

    def give_up(self, inquiries: Iterable[Inquiry]) -> list[Inquiry]:
        """One open request less for each; those that are thereby withdrawn."""
        withdrawn = []
        with self._lock:
            for inquiry in inquiries:
                inquiry.open_requests -= 1
                if not inquiry.open_requests and not inquiry.answered.happened:
                    inquiry.withdrawn = True
                    question = inquiry.question
                    self._forget(inquiry, (question.mode, question.device, question.policy))
                    withdrawn.append(inquiry)
        return withdrawn

    def close(self) -> tuple[Inquiry, ...]:
        """Refuse what comes from now on; what was pending, now withdrawn. Empty if called twice."""
        pending = self.pending
        with self._lock:
            self.closed = True
            self._tables_of = {}
            self.table = {}  # a closed searcher answers nothing, not even from memory
            self.own.clear()
            self._pending = {}
            for inquiry in pending:
                inquiry.withdrawn = True
        return pending

    def given(self) -> list[tuple[Policy, Choice]]:
        """Every answer once, with the policy that it is for."""
        with self._lock:
            return list(self._given())

    @property
    def provisional(self) -> int:
        """How many questions have been answered, and will be better."""
        with self._lock:
            return len(self._provisional)

    def _given(self) -> Iterator[tuple[Policy, Choice]]:
        for mode, devices in self.table.items():
            for policies in devices.values():
                for policy, answers in policies.items():
                    if mode is not None and policy is not None:
                        for choice in answers.values():
                            yield policy, choice

    def revise(self, records: Mapping[str, Record]) -> int:
        """Answer from these records, by digest, what was answered from others before; how many answers are others
        since. What a record does not answer is forgotten, and searched when it is asked again. From any thread."""
        changed = 0
        with self._lock:
            for mode, devices in self.table.items():
                for policies in devices.values():
                    for policy, answers in policies.items():
                        for op, choice in tuple(answers.items()):
                            record = records.get(choice.digest)
                            if record is None:
                                continue
                            now = _picked(policy or self._own_policy, record, mode or self._own_mode)
                            spelled_out = mode is not None and policy is not None
                            changed += spelled_out and (now is None or now.algorithm != choice.algorithm)
                            if now is None:
                                del answers[op]
                            else:
                                answers[op] = now
        return changed

    def _spelled_out(self, place: Place) -> tuple[Mode, str | None, Policy]:
        mode, device, policy = place
        return mode or self._own_mode, device, policy or self._own_policy

    def _settle(self, inquiry: Inquiry, choice: Choice | None) -> None:
        """An inquiry has its answer (or an error): out of pending, into the table. In the engine's thread."""
        question = inquiry.question
        place = question.mode, question.device, question.policy
        with self._lock:
            self._forget(inquiry, place)
            if choice is not None and choice.provisional:
                if len(self._provisional) < ANSWERS_KEPT:
                    self._provisional.add((place, question.op))
            elif choice is not None and not self.closed:
                if self._provisional:
                    self._provisional.discard((place, question.op))
                _keep(self._tables(place), question.op, choice)

    def _forget(self, inquiry: Inquiry, place: Place) -> None:
        pending = self._pending.get(place)
        if pending is not None and pending.get(inquiry.question.op) is inquiry:
            del pending[inquiry.question.op]

    def _tables(self, place: Place) -> tuple[dict[Op, Choice], ...]:
        """Where an answer for a place is kept: there, and for one spelled out where it may be left out as well."""
        tables = self._tables_of.get(place)
        if tables is None:
            mode, device, policy = place
            places = [place]
            if mode == self._own_mode and policy is not None:
                places.append((None, device, policy))
                if policy == self._own_policy:
                    places.append((None, device, None))
            tables = self._tables_of[place] = tuple(map(self._table, places))
        return tables

    def _table(self, place: Place) -> dict[Op, Choice]:
        mode, device, policy = place
        return self.table.setdefault(mode, {}).setdefault(device, {}).setdefault(policy, {})


def _keep(tables: Iterable[dict[Op, Choice]], op: Op, choice: Choice) -> None:
    for answers in tables:
        if len(answers) >= ANSWERS_KEPT:
            del answers[next(iter(answers))]
        answers[op] = choice


def _picked(policy: Policy, record: Record, mode: Mode) -> Choice | None:
    try:
        return policy.pick(record, mode="exhaustive" if mode == "exhaustive" else "race")
    except (NotCovered, NoAlgorithm):
        return None
