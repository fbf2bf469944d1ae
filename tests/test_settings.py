"""What the environment says, and what is said about what it cannot say."""

from __future__ import annotations

import pytest

from algosearch import InvalidSetting
from algosearch.settings import MODES, Settings, debug_wanted, mode_of


def test_nothing_is_set() -> None:
    assert Settings.read({}) == Settings(mode="race", store=None)


def test_an_empty_variable_counts_as_unset() -> None:
    assert Settings.read({"ALGOSEARCH_MODE": "", "ALGOSEARCH_STORE": ""}) == Settings()


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str) -> None:
    assert Settings.read({"ALGOSEARCH_MODE": mode}).mode == mode
    assert mode_of(mode) == mode


def test_a_store() -> None:
    assert Settings.read({"ALGOSEARCH_STORE": "memory:"}).store == "memory:"


@pytest.mark.parametrize("word", ["RACE", "race ", "fast", "cached,race", "x" * 10_000])
def test_a_mode_that_is_none(word: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Settings.read({"ALGOSEARCH_MODE": word})
    assert caught.value.name == "ALGOSEARCH_MODE"
    assert caught.value.value == word
    text = str(caught.value)
    assert text.startswith("ALGOSEARCH_MODE = '")
    assert text.endswith("must be one of cached, heuristic, race, exhaustive")
    assert len(text) < 400
    with pytest.raises(InvalidSetting, match="mode = "):
        mode_of(word)


@pytest.mark.parametrize(("value", "wanted"), [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)])
def test_debug(value: str | None, wanted: bool) -> None:
    assert debug_wanted({} if value is None else {"ALGOSEARCH_DEBUG": value}) is wanted


def test_debug_can_be_asked_for_when_the_rest_is_nonsense() -> None:
    assert debug_wanted({"ALGOSEARCH_DEBUG": "1", "ALGOSEARCH_MODE": "nonsense"})


def test_the_process_environment_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALGOSEARCH_MODE", "cached")
    monkeypatch.setenv("ALGOSEARCH_STORE", "/somewhere")
    monkeypatch.setenv("ALGOSEARCH_DEBUG", "1")
    assert Settings.read() == Settings(mode="cached", store="/somewhere")
    assert debug_wanted()
    monkeypatch.delenv("ALGOSEARCH_MODE")
    assert Settings.read().mode == "race"


def test_a_base() -> None:
    assert Settings.read({"ALGOSEARCH_BASE": "/opt/store"}).base == "/opt/store"
    assert Settings.read({"ALGOSEARCH_BASE": ""}).base is None
