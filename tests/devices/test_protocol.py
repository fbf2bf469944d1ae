"""What crosses to a child: put together from any pieces, and nothing believed."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algosearch.backends.simulated import SimulatedBackend
from algosearch.devices.blame import Blame
from algosearch.devices.job import Found, Job, Limits, Step, Worked
from algosearch.devices.remote.protocol import (
    LONGEST_BYTES,
    TO_CHILD,
    TO_PARENT,
    Began,
    Broke,
    Call,
    Close,
    Ended,
    Enumerate,
    Frames,
    Hold,
    Listed,
    MustWait,
    Open,
    Opened,
    ProtocolError,
    Release,
    Resting,
    Rests,
    Returned,
    Search,
    Spoilt,
    Stop,
    ToChild,
    ToParent,
    Unavailable,
    frame,
)
from algosearch.records import Candidate, Environment, Failure, Listing, Policy, Trial
from tests.devices.helpers import some_op

FAILURE = Failure("crashed", "it died", (("during", "launch"),))
CANDIDATE = Candidate(algorithm="simulated/t:a", rank=0, workspace_bytes=4, notes=("tf32",))
LISTING = Listing(candidates=(CANDIDATE,), complete=False, look_at=3, look_up_to=3)
TRIAL = Trial(algorithm="simulated/t:a", rank=0, workspace_bytes=4, failure=FAILURE, samples=b"\0\0\0\0")
JOB = Job(
    op=some_op(),
    listing=LISTING,
    policies=(Policy(workspace_limit_bytes=3),),
    mode="race",
    failed={"simulated/t:b": FAILURE},
    careful=True,
    compiles=False,
)
RECIPE = SimulatedBackend(devices=2, pace="real").recipe()
assert RECIPE is not None
DOWN: list[ToChild] = [
    Open(RECIPE, SimulatedBackend().devices()[0], Limits(run_s=2.0)),
    Enumerate(1, some_op(), None),
    Search(2, JOB),
    Stop(2),
    Hold(3),
    Release(),
    Close(),
    Call(4, "nothing", msgspec.Raw(msgspec.msgpack.encode(()))),
]
UP: list[ToParent] = [
    Opened(Environment(backend="b", device="d", facts=(("a", "b"),))),
    Unavailable("simulated:0", "why", "what to do"),
    Listed(1, LISTING),
    Began(Step(side="lane", deed="launch", job=2, limit_s=1.5, algorithms=("simulated/t:a",))),
    Rests("lane"),
    Rests("prepare", Worked(side="prepare", problem="conv", began_s=1.5, ended_s=2.5, waited_s=0.25)),
    Ended(2, Found(trials=(TRIAL,), complete=True, seconds=0.5, lane_wait_s=0.1)),
    MustWait(2),
    Spoilt(Blame(job=2, algorithms=("simulated/t:a",), failure=FAILURE)),
    Resting(3),
    Returned(4, msgspec.Raw(msgspec.msgpack.encode(None))),
    Broke(5, "RuntimeError", "as told", "Traceback …"),
]


def sent(messages: Iterable[Any]) -> bytes:
    return b"".join(map(frame, messages))


@given(st.lists(st.integers(min_value=1, max_value=400)))
def test_messages_come_in_any_pieces(cuts: list[int]) -> None:
    for messages, decoder in ((DOWN, TO_CHILD), (UP, TO_PARENT)):
        raw = sent(messages)
        frames: Frames[Any] = Frames(decoder)
        got, begin = [], 0
        for cut in (*cuts, len(raw)):
            got += frames.feed(raw[begin : begin + cut])
            begin += cut
        assert sent(got) == raw
        assert frames.feed(b"") == []


@given(st.binary(max_size=200))
def test_nonsense_is_refused_or_waited_for(raw: bytes) -> None:
    frames = Frames(TO_CHILD)
    try:
        messages = frames.feed(raw)
    except ProtocolError:
        return
    for message in messages:
        assert isinstance(message, ToChild)


@pytest.mark.parametrize("message", [*DOWN, *UP], ids=lambda message: type(message).__name__)
def test_a_message_of_the_other_side_is_none(message: Any) -> None:
    decoder: Any = TO_PARENT if message in DOWN else TO_CHILD
    with pytest.raises(ProtocolError):
        Frames(decoder).feed(frame(message))


@pytest.mark.parametrize("message", [*DOWN, *UP], ids=lambda message: type(message).__name__)
def test_a_message_with_a_part_too_many_or_of_another_type_is_none(message: Any) -> None:
    decoder: Any = TO_CHILD if message in DOWN else TO_PARENT
    parts = msgspec.msgpack.decode(frame(message)[4:])
    spoilt = [[*parts, 1], *([*parts[:n], {"no": "such"}, *parts[n + 1 :]] for n in range(len(parts)))]
    for each in spoilt:
        raw = msgspec.msgpack.encode(each)
        if isinstance(message, Call | Returned) and each[-1] == {"no": "such"}:
            continue  # what is not looked at before it is known whose it is
        with pytest.raises(ProtocolError):
            Frames(decoder).feed(struct.pack("!I", len(raw)) + raw)


def test_lengths_are_limited_on_both_sides() -> None:
    with pytest.raises(ProtocolError, match="longer than any"):
        Frames(TO_CHILD).feed(struct.pack("!I", LONGEST_BYTES + 1))
    with pytest.raises(ProtocolError, match="a Broke of"):
        frame(Broke(1, "", "x" * (LONGEST_BYTES + 1), ""))


def test_numbers_that_are_no_times_are_refused() -> None:
    for limit_s in (float("nan"), float("inf"), -1.0):
        step = Step(side="lane", deed="launch", job=2, limit_s=limit_s)
        with pytest.raises(ProtocolError):
            Frames(TO_PARENT).feed(frame(Began(step)))


@pytest.mark.parametrize(
    "message",
    [Broke(1, "OSError", "no /opt/\udcff", "…"), Unavailable("cudnn:0", "no /opt/\udcff", "see to it")],
)
def test_what_names_a_path_that_is_no_text_is_sent_all_the_same(message: Broke | Unavailable) -> None:
    """Else nothing would come, and the parent wait until it loses patience."""
    (received,) = Frames(TO_PARENT).feed(frame(message))
    assert isinstance(received, type(message))
    assert "no /opt/\ufffd" in msgspec.structs.astuple(received)
