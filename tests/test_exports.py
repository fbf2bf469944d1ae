"""Each package says exactly what it offers."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

import algosearch

PACKAGE: Final = Path(algosearch.__file__).parent
PACKAGES: Final = sorted(
    ".".join(("algosearch", *init.parent.relative_to(PACKAGE).parts)) for init in PACKAGE.rglob("__init__.py")
)
MODULES: Final = sorted(
    ".".join(("algosearch", *module.relative_to(PACKAGE).with_suffix("").parts))
    for module in PACKAGE.rglob("*.py")
    if module.name not in ("__init__.py", "__main__.py")
)
USES_WHAT_IT_IMPORTS: Final = {"algosearch.cli"}
"""Packages whose `__init__` is not a list of exports but code: what they import, they use."""


def imported_from_the_project(name: str) -> set[str]:
    """Public names that the package's `__init__` imports from the project, type-checking blocks included."""
    source = Path(str(importlib.import_module(name).__file__)).read_text(encoding="utf-8")
    names = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("algosearch.")
        for alias in node.names
    }
    return {each for each in names if not each.startswith("_") or each == "__version__"}


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_exact(name: str) -> None:
    package = importlib.import_module(name)
    exported = getattr(package, "__all__", ())
    assert isinstance(exported, tuple)
    assert len(set(exported)) == len(exported), "a name twice"
    for each in exported:
        assert not isinstance(getattr(package, each), ModuleType), f"{each} is a module"
    if name not in USES_WHAT_IT_IMPORTS:
        defined = {
            each
            for each, value in vars(package).items()
            if not each.startswith("_") and getattr(value, "__module__", None) == name
        }
        assert imported_from_the_project(name) | defined <= set(exported)
        assert set(exported) - imported_from_the_project(name) <= set(vars(package))


@pytest.mark.parametrize("name", [*PACKAGES, *MODULES])
def test_what_is_listed_exists(name: str) -> None:
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", ())
    assert isinstance(listed, tuple)
    for each in listed:
        assert hasattr(module, each), f"{name} has no {each}"


def test_the_front_door_imports_late_what_is_dear() -> None:
    assert set(dir(algosearch)) == set(algosearch.__all__)
    with pytest.raises(AttributeError, match="module 'algosearch' has no attribute 'nothing'"):
        _ = algosearch.nothing
