"""`python -m algosearch.devices.remote SOCKET PARENT`: what a parent starts to have a device in its own process."""

from __future__ import annotations

import sys

from algosearch.devices.remote.child import main

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
