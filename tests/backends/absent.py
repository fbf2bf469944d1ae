"""`Absent`: a backend that finds nothing, and can say why."""

from __future__ import annotations

from algosearch.backends import Device, Recipe, Session
from algosearch.errors import DeviceUnavailable
from algosearch.settings import Isolation


class Absent:
    """A whole backend, of no device.

    Args:
        problem: what is missing.
        remedy: what to do about it.
    """

    isolation: Isolation = "process"

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        self.name = name
        self._problem, self._remedy = problem, remedy

    def devices(self) -> tuple[Device, ...]:
        return ()

    def recipe(self) -> Recipe | None:
        return None

    def absence(self) -> DeviceUnavailable | None:
        return DeviceUnavailable(self.name, self._problem, self._remedy)

    def open(self, device: Device) -> Session:
        raise AssertionError("there is none")
