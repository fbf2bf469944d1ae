"""stdout and stderr of a command, and what becomes of it when they cannot be written.

stdout carries results: to lose them is an error of the command, whatever it did before (`OutputLost`). stderr carries
talk: to lose it costs nobody the work, so that it is dropped and the command goes on. Both are wrapped in place of
being watched where they are written, since click, rich and Python's own warnings write to them as well.

A stream that the caller closed (`>&-`) is one that cannot be written. Its descriptor is taken first, so that no store
or lock that is opened later gets the number 1 or 2 and with it whatever a library prints.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Final, TextIO

__all__ = ("OutputLost", "settle_streams")

_STDOUT: Final = 1
_STDERR: Final = 2


class OutputLost(Exception):
    """The results could not be written to stdout. No OSError, for click would end the process in a way of its own."""

    def __init__(self, reason: OSError) -> None:
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        what = self.reason.strerror or str(self.reason)
        return f"the results cannot be written to stdout: {what}"

    @property
    def reader_left(self) -> bool:
        """True if stdout is a pipe from which nobody reads any more: no mistake of anybody."""
        return self.reason.errno == errno.EPIPE


class _Stream(io.TextIOWrapper):
    """A standard stream in place of Python's own. Where a sign cannot be written, a question mark is."""

    def __init__(self, number: int, before: TextIO | None) -> None:  # None: it was closed
        self.number = number
        encoding = getattr(before, "encoding", None)
        raw = open(number, "wb", closefd=False)  # noqa: SIM115 - as long as the process
        super().__init__(raw, encoding=encoding, errors="replace", line_buffering=True)

    def write(self, text: str, /) -> int:
        """Write, or do what is due if that cannot be."""
        try:
            return super().write(text)
        except OSError as error:
            self.lost(error)
        return len(text)

    def flush(self) -> None:
        """Flush, or do what is due if that cannot be."""
        try:
            super().flush()
        except OSError as error:
            self.lost(error)

    def lost(self, error: OSError) -> None:
        """From now on what is written goes nowhere. What is still in the buffer is tried again at exit, by Python."""
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, self.number)
        os.close(nowhere)


class _Results(_Stream):
    def lost(self, error: OSError) -> None:
        super().lost(error)
        raise OutputLost(error) from None


def settle_streams() -> None:
    """Replace `sys.stdout` and `sys.stderr`. Once for a process, before anything is opened or written."""
    for number in range(_STDERR + 1):
        _take_if_closed(number)
    sys.stdout = _Results(_STDOUT, sys.stdout)
    sys.stderr = _Stream(_STDERR, sys.stderr)


def _take_if_closed(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        # For reading: to write to it is the error that it was before.
        taken = os.open(os.devnull, os.O_RDONLY)
        if taken != number:
            os.dup2(taken, number)
            os.close(taken)
