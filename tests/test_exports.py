"""Each package says exactly what it offers."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

import algosearch
from algosearch.late import late_exports

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


@pytest.mark.parametrize("name", ["algosearch", "algosearch.search", "algosearch.compiler"])
def test_a_package_that_imports_late_lists_what_it_has_and_nothing_else(name: str) -> None:
    package = importlib.import_module(name)
    assert set(dir(package)) == set(package.__all__)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = package.nothing


def test_what_was_asked_for_once_is_there_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of one module, which is imported with the first of its names."""
    package, module = ModuleType("package"), ModuleType("package.module")
    package.__all__ = ("first", "second")  # type: ignore[attr-defined]
    module.first, module.second = object(), object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "package", package)
    package.__getattr__, listed = late_exports("package", {"module": ("first", "second")})  # type: ignore[method-assign]
    with pytest.raises(ModuleNotFoundError):
        _ = package.first
    monkeypatch.setitem(sys.modules, "package.module", module)
    first = package.first
    monkeypatch.delitem(sys.modules, "package.module")
    assert package.first is first is module.first
    with pytest.raises(ModuleNotFoundError):
        _ = package.second
    assert listed() == ["first", "second"]
