"""Which device a command means, and what answers from it depend on."""

from __future__ import annotations

from algosearch.backends import Backend, Device, discover
from algosearch.backends.base import absence_of
from algosearch.errors import DeviceUnavailable, UnknownDevice
from algosearch.records import Environment


def find_device(asked: str | None) -> tuple[Backend, Device]:
    """The first device that `asked` names (`cpu:0`, or a backend, `cpu`); the one that the engine would take if None.

    Raises:
        UnknownDevice: there is none of that name; says which there are.
        DeviceUnavailable: there is none at all.
    """
    backends = discover.default_backends()
    found = [(backend, device) for backend in backends for device in backend.devices()]
    for backend, device in found:
        if asked is None or asked in (device.name, device.backend):
            return backend, device
    if asked is None:
        names = ", ".join(backend.name for backend in backends)
        raise DeviceUnavailable(names or "no backend", "it found no device", "install what it needs")
    named = (backend for backend in backends if backend.name == asked.partition(":")[0])
    missing = next((absence for backend in named if (absence := absence_of(backend)) is not None), "")
    raise UnknownDevice(asked, tuple(device.name for _, device in found), str(missing))


def environment_of(asked: str | None) -> Environment:
    """The environment of a device, which is opened and closed for it; blocking, up to seconds.

    Raises:
        as `find_device`, and DeviceUnavailable: it cannot be opened.
    """
    backend, device = find_device(asked)
    session = backend.open(device)
    try:
        return session.environment
    finally:
        session.close()
