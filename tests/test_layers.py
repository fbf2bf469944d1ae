"""Imports point down only, blocking code awaits nothing, and no file or function outgrows what can be read at once.

All of it is computed from the syntax tree of every module, imports inside functions and type-checking blocks included.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = ROOT / "algosearch"

# Each room, and the rooms that it may import: the picture in docs/architecture.md, bottom first.
_NOUNS: Final = {
    *("late", "saying", "errors", "settings", "forks", "locked", "pinned", "unyielding"),
    *("ops", "records", "race", "_version"),
}
ARROWS: Final[dict[str, set[str]]] = {
    "_version": set(),
    "late": set(),
    "saying": set(),
    "errors": {"saying"},
    "forks": set(),
    "locked": {"forks"},
    "pinned": set(),
    "unyielding": set(),
    "settings": {"errors"},
    "ops": {"errors"},
    "records": {"ops", "errors"},
    "race": {"records", "ops", "errors"},
    "backends": _NOUNS,
    "devices": {"backends", *_NOUNS},
    "stores": _NOUNS,
    "search": {"stores", "devices", "backends", *_NOUNS},
    "compiler": {"search", "stores", "devices", "backends", *_NOUNS},
    "cli": {"compiler", "search", "stores", "devices", "backends", *_NOUNS},
    # The front doors: what `import algosearch` shows, and `python -m algosearch`.
    "__init__": {"search", *_NOUNS},
    "__main__": {"cli"},
}
NO_LOOP: Final = {
    "_version",
    "late",
    "saying",
    "errors",
    "forks",
    "locked",
    "settings",
    "ops",
    "records",
    "race",
    "backends",
}
"""Rooms below the seam: nothing in them awaits, or knows of a loop."""

LONGEST_FILE: Final = 400
LONGEST_FUNCTION: Final = 60


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _room(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imported(tree: ast.AST, module: Path) -> Iterator[str]:
    """The absolute name of everything that is imported anywhere in `tree`."""
    package = ["algosearch", *module.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def _parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"), filename=str(module))


def _shown(module: Path) -> str:
    return str(module.relative_to(ROOT))


def test_the_rooms_are_known() -> None:
    assert {_room(module) for module in _modules()} == set(ARROWS)


def test_no_arrow_leads_back_up() -> None:
    """The table itself has no circle: rooms can be put into an order in which each imports earlier ones only."""
    left, below = dict(ARROWS), set[str]()
    while left:
        ready = {room for room, allowed in left.items() if allowed <= below}
        assert ready, f"a circle among {sorted(left)}"
        below |= ready
        left = {room: allowed for room, allowed in left.items() if room not in ready}


@pytest.mark.parametrize("module", _modules(), ids=_shown)
def test_imports_point_down(module: Path) -> None:
    room = _room(module)
    for name in _imported(_parsed(module), module):
        first, *rest = name.split(".")
        if first == "algosearch":
            assert rest, f"{_shown(module)} imports the front door"
            assert rest[0] in ARROWS, f"{_shown(module)} imports {name}, which is in no room"
            assert rest[0] == room or rest[0] in ARROWS[room], f"{_shown(module)} imports {name}"


@pytest.mark.parametrize("module", [each for each in _modules() if _room(each) in NO_LOOP], ids=_shown)
def test_nothing_awaits_below_the_seam(module: Path) -> None:
    tree = _parsed(module)
    for name in _imported(tree, module):
        assert name.split(".")[0] not in ("asyncio", "anyio"), f"{_shown(module)} imports {name}"
    for node in ast.walk(tree):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith), (
            f"{_shown(module)}:{getattr(node, 'lineno', 0)} awaits"
        )


@pytest.mark.parametrize("module", _modules(), ids=_shown)
def test_files_and_functions_stay_readable(module: Path) -> None:
    lines = module.read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST_FILE, f"{_shown(module)} has {lines} lines"
    for node in ast.walk(_parsed(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{_shown(module)}: {node.name} has {length} lines"


@pytest.mark.parametrize("module", _modules(), ids=_shown)
def test_every_module_says_what_it_is_and_reads_alike(module: Path) -> None:
    tree = _parsed(module)
    if tree.body:
        assert ast.get_docstring(tree), f"{_shown(module)} has no docstring"
        assert "from __future__ import annotations" in module.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("source", "where", "names"),
    [
        ("import a.b, c", "ops/conv.py", ["a.b", "c"]),
        ("from algosearch.ops import ConvOp as C", "ops/conv.py", ["algosearch.ops.ConvOp"]),
        ("from . import conv", "ops/canonical.py", ["algosearch.ops.conv"]),
        ("from ..errors import X", "ops/canonical.py", ["algosearch.errors.X"]),
        ("from .. import errors", "ops/__init__.py", ["algosearch.errors"]),
        ("def f():\n    from algosearch import search", "errors.py", ["algosearch.search"]),
    ],
)
def test_no_import_hides(source: str, where: str, names: list[str]) -> None:
    assert list(_imported(ast.parse(source), PACKAGE / where)) == names
