"""`Terms`: on what terms somebody wants a searcher, as it was spelled, and checked.

Light, for the front door makes one in the caller's loop: what the words mean here and now (which directory, which
devices) is found out where the engine is hired.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from algosearch.errors import InvalidSetting
from algosearch.records import Policy
from algosearch.saying import without_secrets
from algosearch.search.arguments import checked_device, checked_policy
from algosearch.settings import MEMORY, Isolation, Mode, Settings, isolation_of, means_server, mode_of, strict_of

if TYPE_CHECKING:
    from algosearch.backends import Backend
    from algosearch.stores.base import Store

_STORE: Final = f"must be a directory, {MEMORY}, the URL of a server, or a Store"
_BACKENDS: Final = "must be a list of Backends"
_DEVICES: Final = "must be a list of at least one name such as cpu:0; leave it out for all devices"


class Terms:
    """What a searcher is to be. An argument that is left out is as the environment says.

    Raises:
        InvalidSetting, InvalidPolicy: an argument or variable cannot be understood.
    """

    __slots__ = ("backends", "base", "devices", "isolation", "mode", "policy", "store", "strict")

    def __init__(
        self,
        *,
        store: object = None,
        base: object = None,
        backends: object = None,
        devices: object = None,
        isolation: object = None,
        mode: object = None,
        strict: object = None,
        policy: object,
    ) -> None:
        settings = Settings.read()
        self.store: Store | str | None = _store_of("store", settings.store if store is None else store)
        """Absolute, unless it is another user's home, or no path; None for the user's cache directory."""
        self.base: Store | str | None = _store_of("base", settings.base if base is None else base)
        """Likewise, and None for none."""
        self.backends: tuple[Backend, ...] | None = None if backends is None else _backends_of(backends)
        self.devices: tuple[str, ...] | None = None if devices is None else _devices_of(devices)
        self.isolation: Isolation | None = settings.isolation if isolation is None else isolation_of(isolation)
        self.mode: Mode = settings.mode if mode is None else mode_of(mode)
        self.strict: bool = settings.strict if strict is None else strict_of(strict)
        self.policy: Policy = checked_policy(policy)

    def __repr__(self) -> str:
        said = {field: getattr(self, field) for field in self.__slots__}
        said |= {field: without_secrets(where) for field, where in said.items() if type(where) is str}
        return f"<Terms {', '.join(f'{field}={value!r}' for field, value in said.items())}>"


def _store_of(name: str, store: object) -> Store | str | None:
    if store is None:
        return None
    kind = type(store)
    if issubclass(kind, str | os.PathLike):
        return _path_of(name, store)
    from algosearch.stores.base import Store  # whoever passes one has it loaded

    if not _is_a(store, Store):
        raise InvalidSetting(name, store, _STORE)
    return store  # type: ignore[return-value]


def _path_of(name: str, store: object) -> str:
    """As it was written; made absolute now, for the process may go elsewhere."""
    try:
        plain = str.__str__(os.fspath(cast("str | os.PathLike[str]", store)))
        os.fsencode(plain)
    except Exception:
        raise InvalidSetting(name, store, _STORE) from None
    if "\0" in plain:
        raise InvalidSetting(name, store, "must be a path: it has a NUL character in it")
    if plain == MEMORY or "://" in plain or means_server(plain) or plain.startswith("~") or not plain.strip():
        return plain
    try:
        return os.path.abspath(plain)
    except OSError as error:
        raise InvalidSetting(name, store, f"is relative, and there is no current directory: {error}") from None


def _backends_of(backends: object) -> tuple[Backend, ...]:
    from algosearch.backends.base import Backend  # as above

    items = _items_of("backends", backends, _BACKENDS)
    for backend in items:
        if not _is_a(backend, Backend) or type(getattr(backend, "name", None)) is not str:
            raise InvalidSetting("backends", backends, _BACKENDS)
    return items  # type: ignore[return-value]


def _devices_of(devices: object) -> tuple[str, ...]:
    if issubclass(type(devices), str):  # one is meant: `devices="cpu"`
        return (checked_device(devices, "devices"),)
    items = _items_of("devices", devices, _DEVICES)
    if not items:
        raise InvalidSetting("devices", devices, _DEVICES)
    try:
        return tuple(dict.fromkeys(checked_device(each, "devices") for each in items))
    except InvalidSetting:
        raise InvalidSetting("devices", devices, _DEVICES) from None


def _items_of(name: str, value: object, rule: str) -> tuple[object, ...]:
    """Of a list or tuple. No other iterable: a set has no order, and a generator may have no end."""
    if not issubclass(type(value), list | tuple):
        raise InvalidSetting(name, value, rule)
    sequence: Sequence[object] = value  # type: ignore[assignment]
    try:
        return tuple(sequence)
    except Exception:
        raise InvalidSetting(name, value, rule) from None


def _is_a(value: object, contract: type) -> bool:
    """Whether it has what a contract asks for. Not a class: it has all of that too."""
    try:
        return isinstance(value, contract) and not isinstance(value, type)
    except Exception:  # a stranger's attribute may raise anything
        return False
