"""`SimulatedBackend`: a library and devices that exist in a script only.

It ships with the package, for tests and for planning without a device, and is held to the same contract as the real
ones (`tests/backends/contract.py`).
"""

from __future__ import annotations

import os
import threading
from typing import Final, Literal, Self

import msgspec

from algosearch.backends.base import Device, Recipe
from algosearch.backends.simulated.device import Memory
from algosearch.backends.simulated.library import Library
from algosearch.backends.simulated.script import BACKEND, ProblemScript, Script
from algosearch.backends.simulated.session import SimulatedSession
from algosearch.backends.simulated.trace import TraceEvent, Tracer
from algosearch.errors import DeviceUnavailable, InvalidSetting
from algosearch.forks import renew_in_children
from algosearch.ops import Op, searched_as
from algosearch.settings import Isolation

Pace = Literal["virtual", "real"]
Trace = str | os.PathLike[str] | list[TraceEvent]

_decode: Final = msgspec.json.Decoder(Script, strict=True).decode


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a recipe says."""

    script: Script
    devices: int
    trace: str | None
    scale: float | None


_decode_settings: Final = msgspec.msgpack.Decoder(_Settings, strict=True).decode


class DeviceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one simulated device, to look for leaks."""

    device: str
    """`Device.name`."""
    free_bytes: int
    sessions: int
    """Opened and not closed."""
    plans: int
    """Built in those and not destroyed."""


class SimulatedBackend:
    """A scripted `Backend`.

    Args:
        script: what happens.
        devices: so many of each kind of device in the script.
        trace: a file to which, or a list to which, every call is written.
        pace: `virtual`: times are reported and no time passes; `real`: the calling thread sleeps for them.
        scale: with pace `real`, seconds slept for a second of the device's time.
        release: set it, and whatever hangs goes on; left out, one is made.
    """

    name = BACKEND
    isolation: Isolation = "thread"

    def __init__(
        self,
        script: Script | None = None,
        *,
        devices: int = 1,
        trace: Trace | None = None,
        pace: Pace = "virtual",
        scale: float = 1.0,
        release: threading.Event | None = None,
    ) -> None:
        if devices < 0:
            raise InvalidSetting("devices", devices, "must be at least 0")
        if pace not in ("virtual", "real"):
            raise InvalidSetting("pace", pace, "must be one of virtual, real")
        if not 0 <= scale < float("inf"):
            raise InvalidSetting("scale", scale, "must be finite and at least 0")
        self.script = Script() if script is None else script
        self.release = threading.Event() if release is None else release
        self.hanging = threading.Event()
        """Set as soon as something hangs, so that a test can wait for that moment."""
        self._devices = devices
        self._trace = trace
        self._scale = scale if pace == "real" else None
        self._library = Library(self.script)
        self._kinds = tuple(kind for kind in self.script.devices for _ in range(devices))
        self._memories = tuple(Memory(kind.memory_bytes) for kind in self._kinds)
        self.renew_after_fork()
        renew_in_children(self)

    def __repr__(self) -> str:
        return f"<SimulatedBackend {len(self._kinds)} devices, {self._library!r}>"

    def renew_after_fork(self) -> None:
        """The parent's sessions are none of the child's."""
        self._lock = threading.Lock()
        self._sessions: list[SimulatedSession] = []

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        devices: int = 1,
        trace: Trace | None = None,
        pace: Pace = "virtual",
        scale: float = 1.0,
        release: threading.Event | None = None,
    ) -> Self:
        """A backend whose script is the JSON in a file.

        Raises:
            InvalidSetting: the file cannot be read or is no script; the rule says where and why.
        """
        try:
            with open(path, "rb") as file:
                script = _decode(file.read())
        except OSError as error:
            raise InvalidSetting("script", os.fspath(path), f"cannot be read: {error.strerror}") from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise InvalidSetting("script", os.fspath(path), f"is no script: {error}") from None
        return cls(script, devices=devices, trace=trace, pace=pace, scale=scale, release=release)

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> Self:
        """The backend of a recipe. What hangs in it cannot be released.

        Raises:
            InvalidSetting: these are not the settings of one.
        """
        try:
            settings = _decode_settings(recipe.settings)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise InvalidSetting("recipe", recipe.settings, f"is none of the simulated backend: {error}") from None
        pace: Pace = "virtual" if settings.scale is None else "real"
        scale = 1.0 if settings.scale is None else settings.scale
        return cls(settings.script, devices=settings.devices, trace=settings.trace, pace=pace, scale=scale)

    def recipe(self) -> Recipe | None:
        """None if the trace is a list: another process cannot append to it; a file's name travels."""
        if isinstance(self._trace, list):
            return None
        trace = None if self._trace is None else os.path.abspath(os.fspath(self._trace))
        settings = _Settings(script=self.script, devices=self._devices, trace=trace, scale=self._scale)
        return Recipe(backend=BACKEND, settings=msgspec.msgpack.encode(settings))

    def devices(self) -> tuple[Device, ...]:
        """One for each time that the script's kinds are there."""
        return tuple(
            Device(
                backend=BACKEND,
                ordinal=ordinal,
                kind=kind.kind,
                identity=f"{self.script.machine}/{BACKEND}:{ordinal}",
            )
            for ordinal, kind in enumerate(self._kinds)
        )

    def open(self, device: Device) -> SimulatedSession:
        """Open a device, as often as asked: sessions of one device share its memory.

        Raises:
            DeviceUnavailable: there is none such, or the script says so.
        """
        if device not in self.devices():
            raise DeviceUnavailable(device.name, "the script has no such device", f"there are {len(self._kinds)}")
        kind = self._kinds[device.ordinal]
        tracer = Tracer(self._trace, device.name)
        if kind.unavailable is not None:
            tracer.write(tracer.event("open", outcome="unavailable"))
            tracer.close()
            raise DeviceUnavailable(device.name, kind.unavailable, "take another device, or another script")
        session = SimulatedSession(
            device,
            kind,
            self._library,
            self._memories[device.ordinal],
            tracer,
            scale=self._scale,
            hanging=self.hanging,
            release=self.release,
        )
        with self._lock:
            self._sessions = [*(each for each in self._sessions if not each.closed), session]
        return session

    def problem(self, op: Op) -> ProblemScript:
        """The truth about an op, in any description, at speed 1: what a search is measured against."""
        return self._library.problem(searched_as(op)).script

    def statistics(self) -> tuple[DeviceStatistics, ...]:
        """One for each device."""
        return tuple(
            DeviceStatistics(
                device=device.name,
                free_bytes=memory.free_bytes,
                sessions=len(sessions := [s for s in self._sessions if s.device == device and not s.closed]),
                plans=sum(session.plans for session in sessions),
            )
            for device, memory in zip(self.devices(), self._memories, strict=True)
        )
