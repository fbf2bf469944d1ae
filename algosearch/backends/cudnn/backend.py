"""`CudnnBackend`: the NVIDIA GPUs of this machine, through cuDNN and CuPy. Importing this loads neither."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from algosearch.backends.base import Device, Recipe
from algosearch.backends.cudnn.alone import AskAlone
from algosearch.backends.cudnn.candidates import BACKEND
from algosearch.backends.cudnn.driver import CudaDevice, Driver, DriverMissing
from algosearch.backends.cudnn.gpu import CudaFault, OutOfDeviceMemory
from algosearch.backends.cudnn.home import CupyHome
from algosearch.backends.cudnn.library import CudnnUnusable, Library, find
from algosearch.backends.cudnn.running import CudnnRunner
from algosearch.backends.cudnn.session import CudnnSession, Timing
from algosearch.backends.cudnn.status import CudnnError
from algosearch.errors import DeviceUnavailable, InvalidSetting
from algosearch.records import Environment
from algosearch.records.plain import plain
from algosearch.settings import Isolation, cudnn_location

logger = logging.getLogger("algosearch.devices")

_GIB: Final = 1 << 30
_MEMORY_STEP: Final = 4 * _GIB
"""Devices of one kind differ by what firmware and error correction take."""
_CUPY: Final = "pip install 'algosearch[cuda12]' or 'algosearch[cuda13]', whichever the driver supports"
_FRESH: Final = "see whether another process fills it or has broken it, and try again in a fresh process"


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a recipe carries."""

    timing: Timing
    library: str | None


class CudnnBackend:
    """A `Backend` of the GPUs that this process may see (`CUDA_VISIBLE_DEVICES`).

    Args:
        timing: `warm`: a run finds its tensors in the cache, as far as they fit into it; `rotating`: it finds none.
        library: a directory with cuDNN, or its `libcudnn.so.9`; left out, the one that `library.find` finds.
    """

    name = BACKEND
    isolation: Isolation = "process"  # a kernel may hang or spoil its context, and a caller that computes has the GIL

    def __init__(self, *, timing: Timing = "warm", library: str | None = None) -> None:
        self._timing: Timing = timing
        self._library = library

    def __repr__(self) -> str:
        return f"<CudnnBackend {self._timing}>"

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> CudnnBackend:
        """The backend of a recipe.

        Raises:
            InvalidSetting: its settings cannot be understood.
        """
        try:
            settings = msgspec.json.decode(recipe.settings, type=_Settings)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidSetting("recipe", recipe.settings, str(error)) from error
        return cls(timing=settings.timing, library=settings.library)

    def recipe(self) -> Recipe | None:
        """As the contract says."""
        settings = _Settings(timing=self._timing, library=self._library)
        return Recipe(backend=BACKEND, settings=msgspec.json.encode(settings))

    def devices(self) -> tuple[Device, ...]:
        """The GPUs; none if the driver, CuPy or cuDNN is missing: `absence` says what, and so does the log where
        somebody named a cuDNN."""
        missing = self.absence()
        if missing is not None:
            if self._library or cudnn_location():
                logger.warning("going on without GPUs: %s", missing)
            return ()
        return tuple(_device(each) for each in Driver.load().devices())

    def absence(self) -> DeviceUnavailable | None:
        """Why there are no devices, and what to do about it; None if there are some. Opens none of them."""
        try:
            Driver.load()
        except DriverMissing as error:
            return DeviceUnavailable(BACKEND, error.reason, error.remedy)
        missing = [("CuPy is not installed", _CUPY)] if importlib.util.find_spec("cupy") is None else []
        try:
            find(self._library)
        except CudnnUnusable as error:
            missing.append((error.reason, error.remedy))
        if not missing:
            return None
        reasons, remedies = zip(*missing, strict=True)
        return DeviceUnavailable(BACKEND, "; ".join(reasons), "; ".join(dict.fromkeys(remedies)))

    def open(self, device: Device) -> CudnnSession:
        """Open a GPU, as often as asked: its context, a stream, cuDNN; up to seconds.

        Raises:
            DeviceUnavailable: with the reason and the remedy.
        """
        driver, found = self._found(device)
        with _explained(device):
            library = self._load(device)
            from algosearch.backends.cudnn.cuda import CupyGpu

            gpu = CupyGpu(driver, found)
        return CudnnSession(library, gpu, device, environment_of(library, found), timing=self._timing)

    def runner(self, device: Device) -> CudnnRunner:
        """As `RunsPicks` says: its context, and cuDNN."""
        driver, found = self._found(device)
        with _explained(device):
            library = self._load(device)
            return CudnnRunner(library, CupyHome(driver, found), environment_of(library, found))

    def alone(self, device: Device) -> AskAlone:
        """As `AsksAlone` says: its context, and cuDNN; a handle for each question."""
        driver, found = self._found(device)
        with _explained(device):
            return AskAlone(self._load(device), CupyHome(driver, found))

    def _found(self, device: Device) -> tuple[Driver, CudaDevice]:
        missing = self.absence()
        if missing is not None:
            raise missing
        driver = Driver.load()
        found = next((each for each in driver.devices() if _device(each) == device), None)
        if found is None:
            raise DeviceUnavailable(device.name, "this process sees no such GPU", "look at CUDA_VISIBLE_DEVICES")
        return driver, found

    def _load(self, device: Device) -> Library:
        """cuDNN, and CuPy, whatever that raises: one that does not fit to its numpy raises anything."""
        library = Library.load(self._library)
        try:
            importlib.import_module("cupy")
        except Exception as error:
            reason = f"CuPy cannot be imported: {type(error).__name__}: {error}"
            raise DeviceUnavailable(device.name, reason, _CUPY) from error
        return library


@contextmanager
def _explained(device: Device) -> Iterator[None]:
    """What can go wrong when a device is opened, as `DeviceUnavailable`."""
    try:
        yield
    except (CudaFault, OutOfDeviceMemory, CudnnError) as error:
        raise DeviceUnavailable(device.name, str(error), _FRESH) from error


def environment_of(library: Library, device: CudaDevice) -> Environment:
    """What the time of a run depends on beside the problem. No ordinal, no host, no driver: a fleet that updates its
    drivers one by one shares what it found."""
    return Environment(
        backend=BACKEND,
        device=device.name,
        facts=tuple(
            {
                **library.facts(),
                "compute_capability": device.compute_capability,
                "memory": memory_class(device.memory_bytes),
                "multiprocessors": str(device.multiprocessors),
            }.items()
        ),
        incomplete=plain("; ".join(library.missing)) or None,
    )


def memory_class(memory_bytes: int) -> str:
    """The memory, to the nearest 4 GiB."""
    return f"{max(1, round(memory_bytes / _MEMORY_STEP)) * _MEMORY_STEP // _GIB} GiB"


def _device(found: CudaDevice) -> Device:
    return Device(backend=BACKEND, ordinal=found.ordinal, kind=found.name, identity=found.uuid)
