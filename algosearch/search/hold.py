"""`Hold`: one key in this engine's hands, from the moment that it is to be claimed to the end of its search."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Final

from algosearch.records import Failure, Key, Record
from algosearch.records.hindsight import PROCESSES
from algosearch.stores.base import Claim, Miss

if TYPE_CHECKING:
    from algosearch.search.claims import Claims

WRITE_S: Final = 0.25
"""How long a launch waits until it is written down."""
SUSPICION: Final = 2
"""Lapses in a row after which what was about to be launched is not run again."""
DESPAIR: Final = 3
"""Lapses in a row after which the key is not searched at all."""


class Hold:
    """Made by `Claims.on`.

    A context manager: what was taken in the block is given back at its end, however it ends.
    """

    def __init__(self, claims: Claims, key: Key, *, alone: bool) -> None:
        self.key = key
        self.digest = key.digest
        self.holder: Claim | None = None
        """Who has it, if it was refused."""
        self.found: Record | Miss | None = None
        """What the store had of the key when it was granted; None if it was not looked at."""
        self.lapses = 0
        """How many owners died of this key, one after the other, before it came here."""
        self.suspect = ""
        """What the last of them was about to launch."""
        self.trying = ""
        """What this process is about to launch. Not the suspect at first: who dies before it launches anything accuses
        nobody."""
        self.in_force = False
        """True while it is held in the store, as far as is known."""
        self.beat_at = float("inf")
        """When to renew it, of `time.monotonic`."""
        self._claims = claims
        self._alone = alone
        self._lasting = False
        self._patient = True
        self._written: list[threading.Event] = []

    def __repr__(self) -> str:
        state = "in force" if self.in_force else "refused" if self.holder else "not held"
        return f"<Hold on {self.digest[:12]}, {state}, {self.lapses} lapses>"

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._claims.give_back(self)

    async def take(self) -> bool:
        """Whether to search it now. If not, `holder` does.

        Cancellation: it may have been taken; the end of the block gives it back.
        """
        return self._alone or await self._claims.take(self)

    def leave(self) -> None:
        """Do not give it back: it is to lapse, so that who comes next sees how many did before."""
        self._claims.forget(self)

    @property
    def is_hopeless(self) -> bool:
        """Whether so many died of it that it is not to be searched at all."""
        return max(self.lapses, self.holder.lapses if self.holder is not None else 0) >= DESPAIR

    def verdict(self) -> dict[str, Failure]:
        """What is not to be run because somebody died of it, by algorithm."""
        if self.lapses < SUSPICION or not self.suspect:
            return {}
        message = f"{self.lapses} processes died in a row, the last one when this was about to be launched"
        return {self.suspect: Failure("crashed", message, ((PROCESSES, str(self.lapses)),))}

    def about_to_launch(self, algorithm: str) -> None:
        """Write it down, if the store outlives this process; and wait until it is in the store, at most `WRITE_S`.
        After one time in vain no other launch of this search waits. For the worker's threads, where the launch may be
        the end of this process.
        """
        if self.in_force and self._lasting:
            written = threading.Event()
            self._claims.write_down(self, algorithm, written)
            if self._patient:
                self._patient = written.wait(WRITE_S)

    # -- for `Claims`, on its loop -----------------------------------------------------------------------------------

    def begin(self, claim: Claim, beat_at: float, *, lasting: bool) -> None:
        """It was granted."""
        self._lasting = lasting
        self.lapses, self.suspect, self.found = claim.lapses, claim.trying, claim.found
        self.in_force = True
        self.beat_at = beat_at

    def end(self) -> None:
        """It is not held any more. Nobody waits for it."""
        self.in_force = False
        for written in self.written():
            written.set()

    def note(self, trying: str, written: threading.Event) -> bool:
        """There is something to be written down. False if it is not held."""
        if not self.in_force:
            written.set()
            return False
        self.trying = trying
        self._written.append(written)
        return True

    @property
    def unwritten(self) -> bool:
        """Whether there is something to be written down."""
        return bool(self._written)

    def written(self) -> list[threading.Event]:
        """The events to be set when what is to be written down now is; taken out."""
        events, self._written = self._written, []
        return events
