"""`CpuBackend`: this machine's processor, through numpy."""

from __future__ import annotations

from algosearch.backends.base import Device, Recipe
from algosearch.backends.cpu import machine
from algosearch.backends.cpu.catalogue import BACKEND, Catalogue, kernels
from algosearch.backends.cpu.running import CpuRunner
from algosearch.backends.cpu.session import CpuSession
from algosearch.errors import DeviceUnavailable, InvalidSetting
from algosearch.settings import Isolation


class CpuBackend:
    """A `Backend` that is always there. Its one device is the whole processor: BLAS takes all cores for a product.

    Args:
        catalogue: the kernels there are for an op; left out, this backend's own. For tests of what finds a bad one.
    """

    name = BACKEND
    isolation: Isolation = "thread"  # numpy neither hangs nor crashes, and most of its time it works without the GIL

    def __init__(self, *, catalogue: Catalogue = kernels) -> None:
        self._catalogue = catalogue

    def __repr__(self) -> str:
        return f"<CpuBackend {machine.processor()}, {machine.cores()} cores>"

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> CpuBackend:
        """The backend of a recipe.

        Raises:
            InvalidSetting: it has settings, and this backend has none.
        """
        if recipe.settings:
            raise InvalidSetting("recipe", recipe.settings, "must be empty: the CPU backend has no settings")
        return cls()

    def recipe(self) -> Recipe | None:
        """None if the kernels are somebody else's: code cannot be written down."""
        return Recipe(backend=BACKEND) if self._catalogue is kernels else None

    def devices(self) -> tuple[Device, ...]:
        """One."""
        return (Device(backend=BACKEND, ordinal=0, kind=machine.processor(), identity=BACKEND),)

    def open(self, device: Device) -> CpuSession:
        """Open it, as often as asked.

        Raises:
            DeviceUnavailable: it is not this machine's.
        """
        self._check(device)
        return CpuSession(device, machine.environment(BACKEND), self._catalogue)

    def runner(self, device: Device) -> CpuRunner:
        """As `RunsPicks` says."""
        self._check(device)
        return CpuRunner(machine.environment(BACKEND), self._catalogue)

    def _check(self, device: Device) -> None:
        if device not in self.devices():
            raise DeviceUnavailable(device.name, "this machine has no such processor", "there is one, cpu:0")
