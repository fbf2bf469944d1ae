"""The command line on simulated devices, for tests that need a process of their own.

`python -m tests.cli.simulated_main SCRIPT …`: as `algosearch …`, with the simulated backend of the script in that file,
at a real pace, in place of what the machine has. What hangs there goes on at a signal; closing, it waits for a lane
that is stuck as long as it always does, or as the environment says.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

from algosearch.backends import Backend, discover
from algosearch.backends.simulated import SimulatedBackend
from algosearch.cli import main
from algosearch.devices import host

GOES_ON: Final = signal.SIGUSR1
WAITS_FOR_LANES_S: Final = "ALGOSEARCH_TEST_WAITS_FOR_LANES_S"

if __name__ == "__main__":
    backend = SimulatedBackend.from_file(sys.argv.pop(1), pace="real")

    def only_simulated() -> tuple[Backend, ...]:
        return (backend,)

    discover.default_backends = only_simulated
    signal.signal(GOES_ON, lambda *_: backend.release.set())
    if WAITS_FOR_LANES_S in os.environ:
        host.END_S = float(os.environ[WAITS_FOR_LANES_S])  # type: ignore[misc]
    main()
