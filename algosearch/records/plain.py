"""What can be written down. A path, a variable of the environment or an error that names one may hold bytes that are no
UTF-8; Python has them as half characters, which no encoder takes. Its integers are of any size, and MessagePack's of 64
bits."""

from __future__ import annotations

from typing import Any, Final

import msgspec

_LEAST: Final = -(2**63)
_MOST: Final = 2**64 - 1


def plain(text: str) -> str:
    """`text`, each half character in it replaced."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plainly(value: Any) -> Any:
    """`value` as dicts, lists, text and numbers (and bytes as they are), all text in it plain, and no integer beyond 64
    bits: the nearest that has no more stands for it."""
    return _plain(msgspec.to_builtins(value, builtin_types=(bytes,)))


def as_json(value: Any) -> bytes:
    """`value` as JSON; plainly, where there is text in it that could not be written else."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(plainly(value))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if type(value) is int:
        return max(_LEAST, min(value, _MOST))
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
