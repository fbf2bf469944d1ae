"""Frozen snapshots of what a searcher and its engine did."""

from __future__ import annotations

import msgspec


class EngineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine did for all of its searchers since it started."""

    store: str | None
    """Where the store is; None if there is none, or it cannot be used."""
    store_trouble: str | None
    """Why it cannot be used."""
    base: str | None
    """Where the base store is, which is only read; None if there is none, or it cannot be used."""
    not_kept: int
    """Records that the store could not keep (it is full, read-only, broken): they answer until their engine ends, and
    are searched again by the next process. `Committed.kept` of the store's contract."""
    incomplete: dict[str, str]
    """`backend on kind of device`, of those opened so far, for each whose environment is incomplete, with the reason: a
    part of the library is missing, say. They are answered for, and nothing that they find is stored."""
    store_hits: int
    """Keys whose record was read from the store or its base."""
    store_misses: dict[str, int]
    """Keys that the store did not answer, by kind of miss."""
    memory_hits: int
    """Keys whose record was in memory, for a question not asked before."""
    listings: int
    """Probes: how often a library was asked for its candidates and their workspace."""
    searched: int
    """Searches carried out."""
    trials: int
    """Candidates that were run in them, failed ones included."""
    failed: int
    """Flights that ended with an error."""
    dropped: int
    """Flights dropped because every request was withdrawn before a trial began."""
    search_seconds: float
    """The sum of the searches' own time, waiting not counted."""
    claims_won: int
    """Keys claimed in the store, so that no other process searches them meanwhile."""
    claims_waited: int
    """How often a key was waited for because another process had claimed it."""
    claims_taken_over: int
    """Those of the keys won of which an owner had died before."""
    claims_lost: int
    """Those of the keys won that another process took over, because this one was held up. The search goes on; whoever
    commits first is right."""
    claims_longest_wait_s: float = 0.0
    """The longest that one of those waits took, from a claim that was refused to a record, or to a claim that is free:
    what a search takes, or what a claim takes to lapse."""
    found_alone: int = 0
    """Keys searched while the shared store could not be reached."""
    agreed: int = 0
    """Records given that the shared store took when it was back: found alone, or lost by it. Nothing changed."""
    replaced: int = 0
    """Those for which it had another one, which is gone by since."""
    changed_choices: int = 0
    """Answers that are others since, because of that."""
    lane_wait_seconds: float
    """The sum of what searches waited until others, in this process or another, had left the device to them."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a searcher did since it was opened."""

    hits: int
    """Questions answered from the table of answers, without leaving the caller's thread. Exact with the GIL; a
    free-threaded interpreter may lose a few."""
    joined: int
    """Requests that joined an inquiry under way."""
    asked: int
    """Requests that began an inquiry."""
    open: int
    """Inquiries under way."""
    answers: int
    """Answers in the table."""
    engine: EngineStatistics


class FlightStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One flight at this moment, for a progress line."""

    digest: str
    problem: str
    state: str
    """`reading`, `queued`, `elsewhere` (another process searches it), `listing`, `racing` or `committing`."""
    trying: str
    """What is being built or run, or which process it is waited for; empty before the race."""
    awaited: int
    seconds: float


class ChoicesDigest(msgspec.Struct, frozen=True, kw_only=True):
    """A fingerprint of every choice a searcher has given: equal on two ranks that chose alike."""

    digest: str
    """SHA-256 in hex over the sorted (key digest, policy, algorithm)."""
    choices: int
    """How many it covers."""
    alone: int = 0
    """How many are left out because they were found while the shared store could not be reached."""
    provisional: int = 0
    """How many are left out because a better-founded answer may follow."""
