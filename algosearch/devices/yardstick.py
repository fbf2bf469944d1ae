"""`Yardstick`: how long a run may take at worst, before it counts as hanging."""

from __future__ import annotations

from algosearch.devices.job import Found
from algosearch.ops import Op


class Yardstick:
    """How long a run may take at worst, from what was seen on this device: the best of each problem, for its work.

    Args:
        slowest: what another one has seen, which was lost with its session.
    """

    def __init__(self, slowest: float = 0.0) -> None:
        self.slowest = slowest
        """Microseconds for each unit of work."""

    def note(self, op: Op, found: Found) -> None:
        """A problem was searched."""
        if found.best_us is not None:
            self.slowest = max(self.slowest, found.best_us / _work(op))

    def expected_s(self, op: Op) -> float | None:
        """Seconds that the best candidate of a problem takes if nothing is slower than what was seen; None if nothing
        was seen."""
        return self.slowest * _work(op) * 1e-6 if self.slowest else None


def _work(op: Op) -> int:
    return op.flops + op.bytes_moved
