"""Which devices there are for a searcher, and what is said of a backend that has none."""

from __future__ import annotations

import logging

import pytest

from algosearch import open_searcher
from algosearch.backends import discover
from algosearch.backends.simulated import SimulatedBackend
from algosearch.cli.devices import find_device
from algosearch.errors import UnknownDevice
from algosearch.records import Choice
from algosearch.search.lineup import Lineup
from tests.backends.absent import Absent
from tests.search.helpers import some_op

LACKS = "tpu cannot be used: no such library; install it"
MISSING = Absent("tpu", "no such library", "install it")
BACKENDS = (MISSING, SimulatedBackend())


@pytest.mark.parametrize("asked", ["tpu", "tpu:0"])
def test_who_asks_for_what_is_missing_hears_what_is_missing(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    said = f"unknown device '{asked}'; there is: simulated:0; {LACKS}"
    assert str(Lineup(BACKENDS, [asked]).refusal()) == said
    monkeypatch.setattr(discover, "default_backends", lambda: BACKENDS)
    with pytest.raises(UnknownDevice) as caught:
        find_device(asked)
    assert str(caught.value) == said
    assert str(caught.value.again()) == said


def test_who_asks_for_something_else_does_not() -> None:
    assert str(Lineup(BACKENDS, ["npu:0"]).refusal()) == "unknown device 'npu:0'; there is: simulated:0"


def test_where_nothing_is_there_all_is_said() -> None:
    assert LACKS in str(Lineup((MISSING,), None).refusal())


def test_going_on_without_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "algosearch"):
        Lineup(BACKENDS, ["simulated", "tpu:1"])
    assert caplog.messages == [f"going on without tpu:1: unknown device 'tpu:1'; there is: simulated:0; {LACKS}"]


async def test_a_question_and_a_choice_for_it() -> None:
    op = some_op(1)
    async with open_searcher(backends=BACKENDS, store="memory:") as searcher:
        with pytest.raises(UnknownDevice, match=LACKS):
            await searcher.select(op, device="tpu:0")
        choice = await searcher.select(op)
        other = Choice(**{name: getattr(choice, name) for name in choice.__struct_fields__} | {"algorithm": "tpu/x:1"})
        with pytest.raises(UnknownDevice, match=LACKS):
            await searcher.build(op, other)
