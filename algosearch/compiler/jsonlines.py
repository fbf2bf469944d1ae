"""JSON lines: one op a line, for who has ops and no graph.

A line is an op exactly as msgspec writes it, its kind in `op` (`{"op":"conv","input_shape":[1,3,8,8],…}`); what is left
out takes the op's default, and a word that no op knows is an error, not a comment. Blank lines count as lines and say
nothing. Ops are taken as they are: a line leaves nothing open, so no option of reading changes it.

Rejected: a JSON array (one slip makes all of it unreadable, and it cannot be appended to), and names beside the ops
(a line number finds the op again).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO, Final

import msgspec

from algosearch.compiler.model import Node
from algosearch.errors import UnreadableModel
from algosearch.ops import Op

__all__ = ("LARGEST_BYTES", "parse_lines", "read_lines", "write_lines")

LARGEST_BYTES: Final = 64 << 20
"""Of a file. 100,000 ops take half of it; more is something else that happens to begin with a brace."""

_decode_op: Final = msgspec.json.Decoder(Op).decode
_encode: Final = msgspec.json.Encoder().encode


def read_lines(source: str, file: BinaryIO) -> tuple[Node, ...]:
    """The ops of an open file. At most `LARGEST_BYTES` are ever held, whatever size the file claims to have.

    Raises:
        UnreadableModel: too large, or as `parse_lines`.
        OSError: the file cannot be read.
    """
    text = file.read(LARGEST_BYTES + 1)
    if len(text) > LARGEST_BYTES:
        raise UnreadableModel(source, f"more than {LARGEST_BYTES >> 20} MiB of JSON lines")
    return parse_lines(source, text)


def parse_lines(source: str, text: bytes) -> tuple[Node, ...]:
    """The ops of `text` in its order, each named `line N`.

    Raises:
        UnreadableModel: naming the first line that is no valid op, and why; or there is no op at all.
    """
    # Not splitlines(), to which a lone carriage return is an end of line and to every editor none.
    numbered = ((number, line.strip()) for number, line in enumerate(text.split(b"\n"), 1))
    nodes = tuple(Node(name=f"line {number}", op=_op(source, number, line)) for number, line in numbered if line)
    if not nodes:
        raise UnreadableModel(source, "holds no op; expected one JSON object a line")
    return nodes


def write_lines(nodes: Iterable[Node]) -> bytes:
    """The ops of `nodes` as JSON lines, their names left out: what `parse_lines` reads back as equal ops."""
    return b"".join(_encode(node.op) + b"\n" for node in nodes)


def _op(source: str, number: int, line: bytes) -> Op:
    try:
        return _decode_op(line)
    except msgspec.ValidationError as error:  # an InvalidOp comes as its cause, its sentence kept
        raise UnreadableModel(source, f"line {number}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableModel(source, f"line {number} is not one JSON object: {error}") from error
    except RecursionError as error:
        raise UnreadableModel(source, f"line {number} is nested too deeply") from error
