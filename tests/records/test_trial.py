"""What a failure's kind means, and what a trial says of itself."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from algosearch.records import FACTS, IS_TROUBLE, PRECISE, Failure, FailureKind, Stage, Trial

FACTS_OF_A_LIBRARY = {"not_supported", "build_failed", "wrong_result", "out_of_bounds"}
TROUBLE = {"out_of_memory", "timed_out", "crashed", "launch_failed"}


def test_each_kind_of_failure_is_a_fact_or_trouble() -> None:
    assert set(get_args(FailureKind)) == set(IS_TROUBLE) == FACTS_OF_A_LIBRARY | TROUBLE
    assert FACTS == FACTS_OF_A_LIBRARY


@pytest.mark.parametrize("kind", get_args(FailureKind))
def test_a_failure_knows_which(kind: FailureKind) -> None:
    failure = Failure(kind, "it went wrong")
    assert failure.is_trouble is (kind in TROUBLE)
    assert failure.is_fact is (kind in FACTS_OF_A_LIBRARY)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        IS_TROUBLE["crashed"] = False  # type: ignore[index]


@pytest.mark.parametrize(
    ("stage", "time_us", "error_us", "error", "is_final"),
    [
        ("final", 10.0, 10.0 * PRECISE, PRECISE, True),
        ("final", 10.0, 11.0 * PRECISE, 1.1 * PRECISE, False),
        ("coarse", 10.0, 0.01, 0.001, False),
        ("listed", None, None, 0.0, False),
    ],
)
def test_a_trial_is_final_if_its_error_is_small_too(
    stage: Stage, time_us: float | None, error_us: float | None, error: float, is_final: bool
) -> None:
    trial = Trial(algorithm="b/s:a", rank=0, workspace_bytes=0, stage=stage, time_us=time_us, error_us=error_us)
    assert trial.error == pytest.approx(error)
    assert trial.is_final is is_final


@pytest.mark.parametrize("words", ["cannot load /opt/\udcff.so", "größer", "plain"])
def test_the_words_of_a_failure_can_be_written_down(words: str) -> None:
    """A path may hold bytes that are no text."""
    failure = Failure("build_failed", words, (("path", words),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(failure), type=Failure) == failure
    assert failure.message == dict(failure.circumstances)["path"] == words.replace("\udcff", "\ufffd")
