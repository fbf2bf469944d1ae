"""Which device a command means, and what answers from it depend on."""

from __future__ import annotations

from algosearch.backends import Backend, Device, discover
from algosearch.records import Environment
from algosearch.search.lineup import Lineup


def find_device(asked: str | None) -> tuple[Backend, Device]:
    """The first device that `asked` names (`cpu:0`, or a backend, `cpu`); the one that the engine would take if None.

    Raises:
        UnknownDevice: there is none of that name; says which there are.
        DeviceUnavailable: there is none at all.
    """
    lineup = Lineup(discover.default_backends(), None if asked is None else (asked,))
    if not lineup.devices:
        raise lineup.refusal()
    return lineup.devices[0]


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
