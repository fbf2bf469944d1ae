"""`Target`: a file that a command writes when its work is done, tried before that has begun."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from algosearch.errors import InvalidSetting

__all__ = ("Target",)

_STREAMS: Final = ((1, "stdout"), (2, "stderr"))


class Target:
    """The file of an option. What is there stays as it is until it is written.

    Whatever is no regular file is held open from the beginning: who reads from a pipe takes the first that closes it
    for the end.

    Raises:
        InvalidSetting: it cannot be written, or this process writes to it as it is.
    """

    def __init__(self, option: str, path: Path) -> None:
        self._option = option
        self._path = path
        there = os.path.exists(path)
        try:
            # A FIFO without a reader is an error at once with O_NONBLOCK, and a wait for ever without.
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise self._refused(f"cannot be written: {error.strerror or error}") from None
        except ValueError as error:  # a zero byte in its name
            raise self._refused(f"is no path: {error}") from None
        status = os.fstat(handle)
        self._status = status if there else None
        """None if it was not there."""
        self._held: int | None = handle
        if stat.S_ISREG(status.st_mode):
            self.close()
            if not there:
                os.unlink(os.path.realpath(path))  # behind a link to nothing as well
        else:
            os.set_blocking(handle, True)
        self._check_is_no_stream()

    def __str__(self) -> str:
        return str(self._path)

    def check_is_not(self, other: Path, what: str) -> None:
        """Check that it is another file than `other`, by whatever name.

        Raises:
            InvalidSetting: it is the same.
        """
        if self._is(_status_of(other)) or self._is_called_as(other):
            self.close()
            raise self._refused(f"is {what} as well: give each its own")

    def write(self, data: bytes) -> None:
        """Write all of it, once.

        Raises:
            OSError: it cannot be.
        """
        held, self._held = self._held, None
        with open(self._path if held is None else held, "wb") as file:
            file.write(data)

    def close(self) -> None:
        """It is not written any more. Idempotent."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held)

    def _check_is_no_stream(self) -> None:
        """A report and a file in one: neither could be read. A terminal shows both, and /dev/null neither."""
        for number, name in _STREAMS:
            if self._is(_status_of(number)) and not stat.S_ISCHR(os.fstat(number).st_mode):
                self.close()
                raise self._refused(f"is {name} as well, which has the report: give it a file of its own")

    def _is(self, other: os.stat_result | None) -> bool:
        return self._status is not None and other is not None and os.path.samestat(self._status, other)

    def _is_called_as(self, other: Path) -> bool:
        """Whether the same would be made by both names."""
        try:
            return os.path.realpath(self._path) == os.path.realpath(other)
        except ValueError:
            return False

    def _refused(self, why: str) -> InvalidSetting:
        return InvalidSetting(self._option, str(self._path), why)


def _status_of(file: Path | int) -> os.stat_result | None:
    """None if there is no such file."""
    try:
        return os.stat(file)
    except (OSError, ValueError):
        return None
