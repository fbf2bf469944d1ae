"""`read_model`, `read_graph`: whatever names a model, to its ops, or to its op graph.

Decides what a source is, reads it, and expands it for training; what is in a file is the readers' business. The kind
of a file is settled before it is opened: opening a FIFO waits for its writer, and a device may do anything.

Rejected: standard input as a model. An ONNX model has to be read whole before it means anything, and a file of it can
be named in a report.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from msgspec.structs import replace

from algosearch.compiler.graph import Graph
from algosearch.compiler.jsonlines import read_lines
from algosearch.compiler.model import AS_STATED, Model, ReadOptions
from algosearch.compiler.training import expand
from algosearch.compiler.workloads import WORKLOADS, build_graph, build_workload
from algosearch.errors import UnreadableModel

__all__ = ("read_graph", "read_model")

_LINES = (".jsonl", ".json")
_ONNX = (".onnx",)


def read_model(source: str | Path, options: ReadOptions = AS_STATED) -> Model:
    """The ops of an ONNX file, of a file of JSON lines, or of a built-in workload. Blocks: it reads files.

    A path that exists comes before a workload of the same name. A file is what its extension says; with an extension
    that says nothing, JSON lines if it begins with a brace, else ONNX.

    Raises:
        UnreadableModel: nothing there, not a file, not readable, or not a model; with the reason.
        UnknownDimension: an ONNX model leaves dimensions open; with the flags that set them.
        InvalidOp: an option makes a workload impossible, such as a batch of 0.
    """
    name = os.fspath(source)
    mode = _mode_of(name)
    model = build_workload(_workload(name), options) if mode is None else _read_file(name, mode, options)
    return replace(model, nodes=expand(model.nodes)) if options.training else model


def read_graph(source: str | Path, options: ReadOptions = AS_STATED) -> tuple[Graph, Model]:
    """The op graph of an ONNX file or a built-in workload, as inference has it, and the list of its ops with what was
    left out. Blocks: it reads files. Of `options`, `batch` and `dimensions` count; all else is for passes to change.

    Raises:
        UnreadableModel: as `read_model`; or a file of JSON lines, which has ops and no graph.
        UnknownDimension: an ONNX model leaves dimensions of its inputs open; with the flags that set them.
        InvalidGraph: the graph contradicts itself.
        InvalidOp: an option makes a workload impossible, such as a batch of 0.
    """
    name = os.fspath(source)
    mode = _mode_of(name)
    stated = ReadOptions(batch=options.batch, dimensions=options.dimensions)
    if mode is None:
        return build_graph(_workload(name), stated)[0], build_workload(name, stated)

    _check_is_file(name, mode)
    try:
        if _holds_lines(name):
            raise UnreadableModel(name, "holds ops and no graph; an ONNX file or a workload can be compiled")

        from algosearch.compiler.onnx_graph import read_onnx_graph  # as in `_read_file`

        return read_onnx_graph(Path(name), stated)
    except OSError as error:
        raise UnreadableModel(name, error.strerror or str(error)) from error


def _workload(name: str) -> str:
    if name not in WORKLOADS:
        raise UnreadableModel(name, f"no such file, nor a built-in workload; those are {', '.join(WORKLOADS)}")
    return name


def _mode_of(name: str) -> int | None:
    """What kind of file `name` is, as in `st_mode`; None if there is nothing."""
    try:
        return os.stat(name).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnreadableModel(name, error.strerror or str(error)) from error
    except ValueError as error:  # a zero byte, say, which no path can hold
        raise UnreadableModel(name, f"not a path: {error}") from error


def _read_file(name: str, mode: int, options: ReadOptions) -> Model:
    _check_is_file(name, mode)
    try:
        if _holds_lines(name):
            with open(name, "rb") as file:
                return Model(source=name, nodes=read_lines(name, file), ignored=options.flags)

        from algosearch.compiler.onnx_reader import read_onnx  # onnx takes longer to import than all the rest

        return read_onnx(Path(name), options)
    except OSError as error:
        raise UnreadableModel(name, error.strerror or str(error)) from error


def _check_is_file(name: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        hidden = ", which hides the built-in workload of that name" if name in WORKLOADS else ""
        raise UnreadableModel(name, f"is {_kind_of(mode)}, not a file{hidden}")


def _kind_of(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def _holds_lines(name: str) -> bool:
    extension = Path(name).suffix.lower()
    if extension in _LINES or extension in _ONNX:
        return extension in _LINES

    with open(name, "rb") as file:
        return file.read(64).lstrip().startswith(b"{")
