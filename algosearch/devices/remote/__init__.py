"""A device in a child process: the same contract behind a socketpair.

The race runs in the child, beside the device, so that a parent that computes delays nothing. `protocol` says what
crosses, `child` is what runs there, `process` starts and ends it, `host` is the worker's view of it; `backend` offers
single calls of a session, to try things out.
"""

from __future__ import annotations
