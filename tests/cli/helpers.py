"""What the tests of the command line share: running it, in this process and in another, and stores to look at."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
from typer.testing import CliRunner, Result

from algosearch.cli import app
from algosearch.ops import ConvOp, Op
from algosearch.records import Environment, Failure, Key, Provenance, Record, Search, Trial, Trials, packed
from algosearch.stores import DirectoryStore

ROOT = Path(__file__).parents[2]
"""Where `tests` is importable."""
_PROGRESS = re.compile(r"\d+/\d+  \d+ (s|min \d\d s)(  |$)")
ENVIRONMENT = Environment(backend="cpu", device="Some CPU", facts=(("numpy", "2.0"), ("threads", "2")))


def invoke(*args: str | Path) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def environ(**changes: str) -> dict[str, str]:
    """This process's environment without algosearch's own settings, and with warnings as errors."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ALGOSEARCH_")}
    return {**kept, "PYTHONWARNINGS": "error", "COLUMNS": "100", **changes}


@contextlib.contextmanager
def started(
    *args: str | Path, module: str = "algosearch", env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """The command line in another process, its streams apart; killed at the end of the block if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ() if env is None else env,
        cwd=ROOT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run(
    *args: str | Path, module: str = "algosearch", env: dict[str, str] | None = None, timeout_s: float = 50
) -> subprocess.CompletedProcess[str]:
    """Run the command line in another process, to its end."""
    with started(*args, module=module, env=env) as process:
        stdout, stderr = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def without_progress(stderr: str) -> tuple[list[str], list[str]]:
    """Its lines of progress, of which a slow machine writes more, and all others."""
    lines = stderr.splitlines()
    progress = [line for line in lines if _PROGRESS.match(line)]
    return progress, [line for line in lines if not _PROGRESS.match(line)]


def the_object(stdout: str) -> dict[str, Any]:
    """The one JSON object that is all of stdout."""
    decoded = msgspec.json.decode(stdout)
    assert isinstance(decoded, dict)
    assert stdout.endswith("}\n")
    return decoded


def tiny_op(n: int = 0) -> ConvOp:
    """A convolution of a few microseconds; another one for each `n`."""
    return ConvOp(input_shape=(1, 2, 6, 6 + n), filter_shape=(2, 2, 3, 3))


def write_ops(path: Path, ops: Sequence[Op]) -> Path:
    """Ops as JSON lines."""
    path.write_bytes(b"".join(msgspec.json.encode(op) + b"\n" for op in ops))
    return path


def record_of(
    op: Op,
    *,
    environment: Environment = ENVIRONMENT,
    found_at_s: int = 1_700_000_000,
    version: str = "0.1.0",
    generation: int = 0,
) -> Record:
    """A record with a front of two, a slower one and a failed one."""
    trials = (
        Trial(
            algorithm="cpu/numpy:direct",
            rank=0,
            workspace_bytes=0,
            stage="final",
            time_us=300.0,
            error_us=1.0,
            samples=packed((300.0, 301.0)),
            timing="wall,warm",
        ),
        Trial(
            algorithm="cpu/numpy:im2col",
            rank=1,
            workspace_bytes=1 << 20,
            notes=("nondeterministic",),
            stage="final",
            time_us=100.0,
            error_us=0.5,
            samples=packed((100.0, 101.0, 99.0)),
            timing="wall,warm",
        ),
        Trial(
            algorithm="cpu/numpy:slow",
            rank=2,
            workspace_bytes=2 << 20,
            stage="coarse",
            time_us=500.0,
            error_us=2.0,
            timing="wall,warm",
        ),
        Trial(
            algorithm="cpu/numpy:fft",
            rank=3,
            workspace_bytes=64,
            failure=Failure("out_of_memory", "none [red]left[/red]"),
        ),
    )
    search = Search(
        mode="race",
        complete=True,
        trials=Trials.of(trials),
        provenance=Provenance(version=version, found_at_s=found_at_s, seconds=0.25),
    )
    return Record(key=Key.of(op, environment), searches=(search,), generation=generation)


def spoil(store: Path, digest: str, raw: bytes) -> None:
    """Put bytes where a record lies."""
    (file,) = store.glob("*.db")
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        changed = connection.execute("UPDATE Cache SET value = ? WHERE key LIKE ?", (raw, f"%{digest}")).rowcount
    assert changed == 1


def digests_in(store: Path) -> set[str]:
    """Which records the command line finds in a store."""
    return {record["digest"] for record in the_object(invoke("show", "--store", store, "--json").stdout)["records"]}


def fill(directory: Path, *records: Record) -> Path:
    """Commit records to a directory store."""

    async def commit() -> None:
        store = DirectoryStore(directory)
        await store.open()
        try:
            for record in records:
                assert (await store.commit(record, after=record.revision - 1)).kept
        finally:
            await store.aclose()

    anyio.run(commit)
    return directory
