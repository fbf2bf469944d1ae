"""A check-up of this installation: what there is, what of it works, and what to do about what does not.

Looks only: nothing is made, repaired or installed.
"""

from __future__ import annotations

import difflib
import os
import platform
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from time import perf_counter
from typing import Final

import msgspec

from algosearch import settings
from algosearch._version import VERSION
from algosearch.backends import Backend, Device, discover
from algosearch.backends.base import absence_of
from algosearch.backends.cudnn.library import CudnnUnusable
from algosearch.backends.cudnn.library import find as find_cudnn
from algosearch.cli.places import base_of, place_of
from algosearch.cli.storefound import StoreFound, look_at_store
from algosearch.errors import AlgosearchError, DeviceUnavailable, InvalidSetting
from algosearch.saying import without_secrets

_LIBRARIES: Final = ("anyio", "diskcache", "msgspec", "numpy", "onnx", "platformdirs", "rich", "typer")
"""What algosearch cannot do without."""
_EXTRAS: Final = ("cupy-cuda12x", "cupy-cuda13x", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "redis", "torch")
"""What a backend or a store may use, or be disturbed by."""
_PREFIX: Final = "ALGOSEARCH_"


class DeviceFound(msgspec.Struct, frozen=True, kw_only=True):
    """One device, opened for a look."""

    name: str
    kind: str
    facts: dict[str, str] = {}
    """What its answers depend on: library versions among them."""
    incomplete: str | None = None
    """Why nothing that is found on it is stored."""
    trouble: str | None = None
    """Why it cannot be opened; None if it can."""
    seconds: float = 0.0
    """What opening it took."""


class BackendFound(msgspec.Struct, frozen=True, kw_only=True):
    """One library, and the devices that it finds."""

    name: str
    devices: tuple[DeviceFound, ...] = ()
    missing: str | None = None
    """Why it has none, and what to do about it."""


class SettingFound(msgspec.Struct, frozen=True, kw_only=True):
    """One setting in force."""

    name: str
    value: str
    source: str
    """`environment` or `default`."""


class Checkup(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    version: str
    python: str
    system: str
    libraries: dict[str, str | None]
    """Versions; None for what is missing and needed."""
    settings: tuple[SettingFound, ...]
    backends: tuple[BackendFound, ...]
    store: StoreFound | None
    """None if its name cannot be understood."""
    base: StoreFound | None
    broken: tuple[str, ...]
    """What does not work and has to, a sentence each."""
    doubts: tuple[str, ...]
    """What works and may not be as it was meant."""


def check_up(*, store: str | None, base: str | None, watch: Callable[[str], None]) -> Checkup:
    """Look at everything. Blocking: every device is opened, up to seconds each.

    Args:
        store, base: as an option named them.
        watch: told what is looked at next.
    """
    broken: list[str] = []
    doubts = list(_unknown_variables(os.environ))
    libraries = _versions(_LIBRARIES)
    broken += [f"{name} is not installed; reinstall algosearch" for name, found in libraries.items() if found is None]
    libraries |= {name: found for name, found in _versions(_EXTRAS).items() if found is not None}
    backends = []
    for backend in discover.default_backends():
        watch(f"looking for devices of {backend.name}")
        backends.append(_look_at_backend(backend, watch))
    broken += _broken_devices(backends)
    doubts += [
        f"nothing that is found on {device.name} is stored: {device.incomplete}"
        for backend in backends
        for device in backend.devices
        if device.incomplete is not None
    ]
    watch("looking at the store")
    found_store = look_at_store(lambda: place_of(store), broken, doubts, what="the store")
    found_base = look_at_store(lambda: base_of(base), broken, doubts, what="the base store", is_base=True)
    return Checkup(
        version=VERSION,
        python=platform.python_version(),
        system=platform.platform(terse=True),
        libraries={**libraries, "sqlite": sqlite3.sqlite_version},
        settings=tuple(_settings(os.environ, broken)),
        backends=tuple(backends),
        store=found_store,
        base=found_base,
        broken=tuple(dict.fromkeys(broken)),
        doubts=tuple(dict.fromkeys(doubts)),
    )


# -- libraries and settings --------------------------------------------------------------------------------------------


def _versions(names: Iterable[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _known_variables() -> tuple[str, ...]:
    return tuple(value for name, value in vars(settings).items() if name.endswith("_VARIABLE"))


def _settings(environ: Mapping[str, str], broken: list[str]) -> Iterable[SettingFound]:
    """Every variable that is known, with what is in force where it is not set."""
    try:
        settings.Settings.read(environ)
    except InvalidSetting as error:
        broken.append(str(error))
    if settings.cudnn_location(environ):
        try:
            find_cudnn(environ=environ)
        except CudnnUnusable as error:
            broken.append(str(error))
    defaults = {settings.MODE_VARIABLE: "race", settings.STORE_VARIABLE: "the user's cache directory"}
    for name in _known_variables():
        value = without_secrets(environ.get(name, ""))
        source = "environment" if value else "default"
        yield SettingFound(name=name, value=value or defaults.get(name, "none"), source=source)


def _unknown_variables(environ: Mapping[str, str]) -> Iterable[str]:
    """A misspelt variable changes nothing, and nothing else would say so."""
    known = [name.removeprefix(_PREFIX) for name in _known_variables()]
    for name in sorted(environ):
        rest = name.removeprefix(_PREFIX)
        if name.startswith(_PREFIX) and rest not in known:
            close = difflib.get_close_matches(rest, known, n=1)
            yield f"{name} is set, and no setting" + (f"; {_PREFIX}{close[0]} is one" if close else "")


# -- devices -----------------------------------------------------------------------------------------------------------


def _look_at_backend(backend: Backend, watch: Callable[[str], None]) -> BackendFound:
    try:
        devices = backend.devices()
    except Exception as error:  # a broken library must not cost the rest of the report
        return BackendFound(
            name=backend.name, missing=f"looking for its devices broke: {type(error).__name__}: {error}"
        )
    if devices:
        found = []
        for device in devices:
            watch(f"opening {device.name}")
            found.append(_look_at_device(backend, device))
        return BackendFound(name=backend.name, devices=tuple(found))
    absence = absence_of(backend)
    missing = "it finds no device" if absence is None else f"{absence.reason}; {absence.remedy}"
    return BackendFound(name=backend.name, missing=missing)


def _look_at_device(backend: Backend, device: Device) -> DeviceFound:
    began = perf_counter()
    try:
        session = backend.open(device)
        environment = session.environment
        session.close()
    except DeviceUnavailable as error:
        return DeviceFound(name=device.name, kind=device.kind, trouble=f"{error.reason}; {error.remedy}")
    except AlgosearchError as error:
        return DeviceFound(name=device.name, kind=device.kind, trouble=str(error))
    except Exception as error:
        return DeviceFound(name=device.name, kind=device.kind, trouble=f"{type(error).__name__}: {error}")
    return DeviceFound(
        name=device.name,
        kind=device.kind,
        facts=dict(environment.facts),
        incomplete=environment.incomplete,
        seconds=round(perf_counter() - began, 3),
    )


def _broken_devices(backends: Sequence[BackendFound]) -> Iterable[str]:
    usable = 0
    for backend in backends:
        for device in backend.devices:
            usable += device.trouble is None
            if device.trouble is not None:
                named = device.name in device.trouble
                yield device.trouble if named else f"{device.name} cannot be used: {device.trouble}"
    if not usable:
        yield "there is no device that can be used"
