"""The entry point of the command line: `algosearch`, or `python -m algosearch`.

Light, so that a Ctrl-C while all the rest is imported and set up (a quarter of a second) finds a process that knows
what to do.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Be the command line. Only in the main thread.

    Raises:
        SystemExit: always, with the exit code (`docs/command-line.md`).
    """
    # Nothing is begun yet that would have to be put away: the signal ends the process, and no traceback is written. A
    # verb has it raise KeyboardInterrupt while it works (`algosearch.cli.stop.interruptible`), and behind it that is so
    # again.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from algosearch.cli import main as run

    run()


if __name__ == "__main__":
    main()
