"""`Inquiry`: its two milestones, of which the first is made when somebody asks for it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from algosearch import Policy
from algosearch.errors import AlgosearchError, NotCovered, RequestWithdrawn
from algosearch.records import Candidate, Choice
from algosearch.search.inquiry import Inquiries, Inquiry, Question
from tests.search.helpers import FAST, SLOW, some_op

LISTED = (Candidate(algorithm=FAST, rank=0, workspace_bytes=0),)
LATER = (Candidate(algorithm=SLOW, rank=0, workspace_bytes=0),)


def inquiry() -> Inquiry:
    question = Question(some_op(), Policy(), None, "race")
    return Inquiry(question, lambda inquiry, choice: None, threading.RLock())


def test_what_was_told_before_anybody_asked_is_known_once_somebody_does() -> None:
    asked = inquiry()
    asked.tell(LISTED)
    asked.tell(LATER)
    assert asked.listed.happened
    assert asked.listed.result() == LISTED


def test_who_asks_first_is_told() -> None:
    asked = inquiry()
    listed = asked.listed
    assert not listed.happened
    assert asked.listed is listed
    asked.tell(LISTED)
    assert listed.result() == LISTED


@pytest.mark.parametrize("asks_first", [False, True])
def test_it_fails_in_both(asks_first: bool) -> None:
    asked = inquiry()
    if asks_first:
        assert not asked.listed.happened
    asked.fail(RequestWithdrawn("it"))
    asked.tell(LATER)
    for milestone in (asked.listed, asked.answered):
        with pytest.raises(RequestWithdrawn):
            milestone.result()


@pytest.mark.parametrize("asks_first", [False, True])
def test_a_failure_takes_nothing_back(asks_first: bool) -> None:
    asked = inquiry()
    if asks_first:
        assert not asked.listed.happened
    asked.tell(LISTED)
    asked.fail(RequestWithdrawn("it"))
    assert asked.listed.result() == LISTED
    with pytest.raises(RequestWithdrawn):
        asked.answered.result()


@pytest.mark.parametrize("fails", [False, True])
def test_who_asks_is_told_what_was_not_passed_on(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """A fork copies a thread's work half-done: the child has what was told, and nobody who would pass it on."""
    asked = inquiry()
    listed = asked.listed
    with monkeypatch.context() as between:
        between.setattr(Inquiry, "_pass_on", lambda self, listed: None)
        if fails:
            asked.fail(RequestWithdrawn("it"))
        else:
            asked.tell(LISTED)
    assert not listed.happened
    assert asked.listed is listed
    if fails:
        with pytest.raises(RequestWithdrawn):
            listed.result()
    else:
        assert listed.result() == LISTED


def test_a_known_answer_tells_its_candidates() -> None:
    asked = inquiry()
    choice = Choice(algorithm=FAST, workspace_bytes=0, seen=LISTED, verdicts=b"\0")
    asked.answer_known(choice)
    assert asked.answered.result() is asked.listed.result() is choice


def test_several_fail_together_and_each_for_itself() -> None:
    several = Inquiries([inquiry(), inquiry()])
    several.fail(RequestWithdrawn("it"))
    errors = []
    for each in several:
        with pytest.raises(RequestWithdrawn) as raised:
            each.answered.result()
        errors.append(raised.value)
    assert errors[0] is not errors[1]


def some_choice(algorithm: str = FAST) -> Choice:
    return Choice(algorithm=algorithm, workspace_bytes=0, seen=LISTED, verdicts=b"\0")


@pytest.mark.parametrize("hurries_first", [False, True])
def test_who_is_in_a_hurry_is_content_with_the_answer(hurries_first: bool) -> None:
    asked = inquiry()
    if hurries_first:
        assert not asked.hurry().happened
        assert asked.lacks_guess
    asked.answer(choice := some_choice(), "search")
    assert asked.hurry().result() is choice
    assert not asked.lacks_guess


@pytest.mark.parametrize("hurries_first", [False, True])
@pytest.mark.parametrize("error", [RequestWithdrawn("it"), NotCovered("it")])
def test_who_is_in_a_hurry_hears_of_a_failure(hurries_first: bool, error: AlgosearchError) -> None:
    asked = inquiry()
    if hurries_first:
        assert not asked.hurry().happened
    asked.fail(error)
    with pytest.raises(type(error)):
        asked.hurry().result()


def test_a_guess_is_awaited_like_an_answer() -> None:
    asked = inquiry()
    guessed = asked.hurry()
    assert asked.hurry() is guessed
    loop = asyncio.new_event_loop()
    guessed.call_when_happened(loop, lambda: None)
    assert asked.awaited == 1
    guessed.set(some_choice(SLOW))
    assert asked.awaited == 0
    loop.close()
