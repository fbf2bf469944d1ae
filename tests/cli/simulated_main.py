"""The command line on simulated devices, for tests that need a process of their own.

`python -m tests.cli.simulated_main SCRIPT …`: as `algosearch …`, with the simulated backend of the script in that file,
at a real pace, in place of what the machine has.
"""

from __future__ import annotations

import sys

from algosearch.backends import Backend, discover
from algosearch.backends.simulated import SimulatedBackend
from algosearch.cli import main

if __name__ == "__main__":
    backend = SimulatedBackend.from_file(sys.argv.pop(1), pace="real")

    def only_simulated() -> tuple[Backend, ...]:
        return (backend,)

    discover.default_backends = only_simulated
    main()
