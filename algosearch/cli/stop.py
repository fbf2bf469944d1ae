"""`Stop`: the first Ctrl-C or SIGTERM asks a command to end in good order; the second one ends it. `interruptible`: the
work of a command, which a Ctrl-C ends as an exception, while before and behind it ends the process at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt for the length of a block, if it would end the process."""
    ends = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if ends:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ends:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


class Stop:
    """Catches both signals for the length of a block in the main thread. Whoever works in it looks at `signum`.

    A signal that is ignored stays so: a job in the background of a shell is not to hear the Ctrl-C of another.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        """The signal that asked, or None."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for each in _SIGNALS:
            if signal.getsignal(each) is not signal.SIG_IGN:
                self._before[each] = signal.signal(each, self._caught)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _caught(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            raise KeyboardInterrupt(signum)
        self.signum = signum
