"""What a program pays that only describes ops: what `import algosearch` loads.

Not timed: a list of modules cannot be flaky, and says what to do about it.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

ALLOWED: Final = {"algosearch", "msgspec", "typing_extensions"}
"""Roots outside the standard library; msgspec loads the last where it is installed."""
DEAR: Final = {
    "asyncio",
    "sqlite3",
    "ctypes",
    "subprocess",
    "multiprocessing",
    "concurrent",
    "ssl",
    "socket",
    "tempfile",
}
"""Of the standard library: what a frozen description of a convolution has no use for."""


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter loads for a statement, beyond those that it starts with."""
    code = (
        "import sys; before = set(sys.modules)\n"
        f"{statement}\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    return set(ended.stdout.split())


def test_import_algosearch() -> None:
    loaded = loaded_by("import algosearch")
    assert "msgspec" in loaded
    assert loaded - set(sys.stdlib_module_names) <= ALLOWED
    assert not loaded & DEAR


def test_describing_and_picking_loads_nothing_more() -> None:
    loaded = loaded_by(
        "from algosearch import ConvOp, Key, Policy\n"
        "from algosearch.ops import canonical\n"
        "from algosearch.records import Environment, wire\n"
        "op = ConvOp(input_shape=(1, 3, 8, 8), filter_shape=(4, 3, 3, 3))\n"
        "Key.of(canonical(op), Environment(backend='b', device='d')), Policy(exclude=('a*',))"
    )
    assert loaded - set(sys.stdlib_module_names) <= ALLOWED
    assert not loaded & DEAR


def test_the_front_door_loads_nothing_more() -> None:
    loaded = loaded_by(
        "from algosearch import open_searcher, select_algo\nopen_searcher(store='somewhere', devices='cpu')"
    )
    assert loaded - set(sys.stdlib_module_names) <= ALLOWED
    assert not loaded & DEAR


def test_a_searcher_loads_neither_models_nor_the_command_line() -> None:
    loaded = loaded_by(
        "from algosearch import Searcher, open_searcher\n"
        "from algosearch.backends.simulated import SimulatedBackend\n"
        "with open_searcher(store='memory:', backends=[SimulatedBackend()]) as searcher:\n"
        "    assert type(searcher) is Searcher"
    )
    assert "anyio" in loaded
    assert not loaded & {"onnx", "typer", "rich", "numpy"}
