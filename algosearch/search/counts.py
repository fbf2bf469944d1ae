"""What became of flights, claims and records: counted on the engine's loop, read from any thread."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from algosearch.devices.job import Found
from algosearch.records import Record

logger = logging.getLogger("algosearch.engine")


class Counts:
    """What became of the flights. Read from any thread, written on the loop.

    Invariant: what an answer says of them is counted before whoever waits for the answer wakes.
    """

    def __init__(self) -> None:
        self.store_hits = 0
        self.store_misses: Counter[str] = Counter()
        self.memory_hits = 0
        self.listings = 0
        self.searched = 0
        self.trials = 0
        self.failed = 0
        self.dropped = 0
        self.found_alone = 0
        self.agreed = 0
        self.replaced = 0
        self.changed_choices = 0
        self.search_seconds = 0.0
        self.lane_wait_seconds = 0.0

    def facts(self) -> dict[str, Any]:
        """As fields of `EngineStatistics`."""
        return {**vars(self), "store_misses": dict(self.store_misses)}

    def note_search(self, found: Found) -> None:
        """A key has been searched here."""
        self.searched += 1
        self.trials += sum(trial.stage != "listed" for trial in found.trials)
        self.search_seconds += found.seconds
        self.lane_wait_seconds += found.lane_wait_s

    def note_agreement(self, pairs: Sequence[tuple[Record, Record]], changed: int) -> None:
        """All hosts have agreed on these records in place of those that were given, and so many answers are others."""
        replaced = sum(before.agreed() != record for before, record in pairs)
        self.agreed += len(pairs) - replaced
        self.replaced += replaced
        self.changed_choices += changed
        logger.log(
            logging.WARNING if changed else logging.INFO,
            "the store is back: %d records agreed on as they were, %d replaced by what others had found; "
            "%d choices changed",
            len(pairs) - replaced,
            replaced,
            changed,
        )


class ClaimCounts:
    """What became of the claims. Read from any thread, written on the loop."""

    def __init__(self) -> None:
        self.won = 0
        self.waited = 0
        self.taken_over = 0
        self.lost = 0
        self.longest_wait_s = 0.0

    def facts(self) -> dict[str, Any]:
        """As fields of `EngineStatistics`."""
        return {f"claims_{name}": value for name, value in vars(self).items()}
