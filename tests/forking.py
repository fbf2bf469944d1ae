"""Real forks: something is done in a child, and what came of it is told to the parent. A child that hangs is killed."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable

LIMIT_S = 45


def in_child(call: Callable[[], object]) -> str:
    """Fork, do `call` in the child, and give back the text of what it returned or raised.

    Raises:
        AssertionError: the child did not come to an end of its own.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of newer Pythons, at every fork beside threads
        pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT_S)
        try:
            text = str(call())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as told:
        text = told.read()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"the child hung, or died: {status}"
    return text
