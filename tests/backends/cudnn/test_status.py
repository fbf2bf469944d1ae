"""Statuses: whose fault, and what a search makes of it."""

from __future__ import annotations

import pytest

from algosearch.backends.cudnn.status import CudnnError, Fault, fault_of, suspects_context
from algosearch.records.trial import FACTS
from tests.backends.cudnn.fake import FakeCudnn

FAULTS: list[tuple[Fault, list[int]]] = [
    ("environment", [1001, 1002, 1008, 1999, 3005, 3006, 3008, 3009]),
    ("candidate", [1007, 2000, 2005, 2008, 3000, 3002, 3007, 3014, 3999, 4000, 4001, 4005, 4999]),
    ("memory", [4003, 4004]),
    ("usage", [2002, 2003, 2004, 2007, 2010, 2012]),
    ("context", [5000, 5001, 5003, 6000, 700]),
]


@pytest.mark.parametrize(("fault", "statuses"), FAULTS)
def test_faults(fault: Fault, statuses: list[int]) -> None:
    assert {fault_of(status) for status in statuses} == {fault}
    assert {suspects_context(status) for status in statuses} == {fault == "context"}


def test_success_suspects_nothing() -> None:
    assert not suspects_context(0)


@pytest.mark.parametrize(
    ("status", "building", "running"),
    [
        (3002, "not_supported", "not_supported"),
        (2000, "not_supported", "launch_failed"),
        (4000, "build_failed", "launch_failed"),
        (4004, "out_of_memory", "out_of_memory"),
        (5000, "launch_failed", "launch_failed"),
        (3008, "launch_failed", "launch_failed"),
        (1007, "build_failed", "launch_failed"),
    ],
)
def test_kinds_of_failure(status: int, building: str, running: str) -> None:
    error = CudnnError("x", status, "words")
    assert (error.failure("building").kind, error.failure("running").kind) == (building, running)
    assert error.failure("running").message == "x: words"
    assert error.failure("running").circumstances == (("fault", error.fault), ("status", str(status)))


def test_only_the_candidates_own_faults_are_facts() -> None:
    """What an installation lacks, or a moment, must not be remembered as true everywhere."""
    for fault, statuses in FAULTS:
        for status in statuses:
            if fault not in ("candidate", "usage"):
                assert CudnnError("x", status, "").failure("building").kind not in FACTS


@pytest.mark.parametrize("status", [2003, 2010])
def test_a_wrong_call_is_raised_and_not_recorded(status: int) -> None:
    error = CudnnError("setting X", status, "words")
    with pytest.raises(CudnnError) as caught:
        error.failure("running")
    assert caught.value is error


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (3000, "try another engine"),
        (4003, "free memory and try again"),
        (1008, "`algosearch doctor` says what is installed and what is missing"),
        (5000, "the device's context may be unusable: start a fresh process"),
        (2010, "this is a bug of algosearch"),
    ],
)
def test_an_error_says_what_to_do(status: int, advice: str) -> None:
    error = CudnnError("finalising ENGINE", status, "words")
    assert str(error) == f"cuDNN refused finalising ENGINE: words; {advice}"
    assert str(error.again()) == str(error)


def test_the_librarys_words_are_fetched(fake: FakeCudnn) -> None:
    fake.script("version", 3000)
    status = fake.library.long.cudnnGraphVersionCheck()
    with pytest.raises(CudnnError) as caught:
        fake.library.check(status, "looking")
    assert caught.value.args == ("looking", 3000, "FAKE_NOT_SUPPORTED (3000): scripted: version 0")
    fake.library.check(0, "looking")
    assert fake.library.error(4000, "again").message == "FAKE_FAILURE (4000)"
