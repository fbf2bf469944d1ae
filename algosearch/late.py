"""What a package exports and does not import before somebody asks for it.

Whoever checks types reads the imports under `TYPE_CHECKING` instead, and so a package calls this where those are not:
a `__getattr__` that a type checker sees makes it believe in any name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def late_exports(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: `modules` has, by their names within it, the names that each exports.

    A module is imported when one of its names is first asked for; from then on the package has the name itself.
    """
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def __getattr__(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])

        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return __getattr__, __dir__
