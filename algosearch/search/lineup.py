"""`Lineup`: the devices that are there for a searcher, found by asking the backends. Blocks: that loads libraries."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from algosearch.backends import Backend, Device, discover
from algosearch.backends.base import absence_of
from algosearch.errors import AlgosearchError, DeviceUnavailable, UnknownDevice

logger = logging.getLogger("algosearch.engine")

_REMEDY: Final = "name another backend, or install what this one needs"


class Lineup:
    """What was found of what was wanted, in the order in which the backends and their devices come.

    Args:
        backends: whom to ask; None for the best that this machine has a device for.
        wanted: names of devices or backends; None for all.

    Raises:
        DeviceUnavailable: not even the backends can be had: the installation is broken.
    """

    def __init__(self, backends: Sequence[Backend] | None, wanted: Sequence[str] | None) -> None:
        self.backends = tuple(_default_backends() if backends is None else backends)
        self._wanted = None if wanted is None else tuple(wanted)
        self._broken: list[str] = []
        """What went wrong, a line each."""
        self._missing: dict[str, str] = {}
        """What a backend without a device lacks, by its name."""
        found = [(backend, device) for backend in self.backends for device in self._devices_of(backend)]
        self._found = tuple(device.name for _, device in found)
        self.devices = tuple((b, d) for b, d in found if wanted is None or d.name in wanted or d.backend in wanted)
        self.names = tuple(device.name for _, device in self.devices)
        known = {word for _, device in found for word in (device.name, device.backend)}
        missing = [word for word in wanted or () if word not in known]
        if missing and self.devices:
            logger.warning("going on without %s: %s", ", ".join(missing), self.unknown(missing, self._found))

    def __repr__(self) -> str:
        return f"<Lineup {', '.join(self.names) or 'of nothing'}>"

    @property
    def meaning(self) -> object:
        """Equal for line-ups that serve the same questions alike, however they were spelled."""
        return self.names or ("nothing of", self._wanted)

    def refusal(self) -> AlgosearchError:
        """Why there is no device."""
        if self._wanted is not None and not self._broken:
            return self.unknown(self._wanted, self._found)
        asked = ", ".join(backend.name for backend in self.backends) or "no backend"
        reasons = "; ".join((*self._broken, *self._missing.values()))
        return DeviceUnavailable(asked, reasons or "it found no device", _REMEDY)

    def unknown(self, asked: Sequence[str], available: Sequence[str]) -> UnknownDevice:
        """There is no device of these names; with what their backends lack. Does not block."""
        backends = dict.fromkeys(word.partition(":")[0] for word in asked)
        missing = "; ".join(self._missing[name] for name in backends if name in self._missing)
        return UnknownDevice(", ".join(asked), tuple(available), missing)

    def _devices_of(self, backend: Backend) -> tuple[Device, ...]:
        try:
            devices = tuple(backend.devices())
            if not all(isinstance(device, Device) for device in devices):
                raise TypeError(f"these are no Devices: {devices!r}")
            absence = None if devices else absence_of(backend)
            if absence is not None:
                self._missing[backend.name] = str(absence)
        except BaseException as error:  # a broken library must not cost the others' devices, whatever it raises
            logger.exception("looking for devices of %s broke", backend.name)
            self._broken.append(f"looking for its devices broke: {type(error).__name__}: {error}")
            return ()
        return devices


def _default_backends() -> Sequence[Backend]:
    try:
        return discover.default_backends()
    except Exception as error:
        raise DeviceUnavailable(
            "the default backend", f"{type(error).__name__}: {error}", "repair the installation; see the cause"
        ) from error
