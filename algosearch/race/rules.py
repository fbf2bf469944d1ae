"""The numbers of the race, each with where it comes from."""

from __future__ import annotations

from typing import Final

import msgspec

from algosearch.records import Listing


class RaceRules(msgspec.Struct, frozen=True, kw_only=True):
    """How much to run before a difference is believed. The defaults are those of the measurements on an H200."""

    launch_error: float = 0.3
    """Relative error of a first launch taken as a time: code is loaded in it, for which it is an upper bound;"""
    launch_gap_us: float = 0.0
    """and so much more: what the host may have added."""
    usual_noise: float = 0.0
    """By how much a round scatters, relative, where the backend is known for it; else a race must find out."""
    coarse_rounds: int = 4
    """Rounds, of two bursts each, for all that could still win something."""
    worth_it: float = 3.0
    """A candidate is run again only while another is within this factor of it."""
    slow_us: float = 200_000.0
    """A run that takes longer is slow: no code takes so long to load, so that one run tells, and more are dear."""
    slow_worth_it: float = 1.5
    """`worth_it` where one of the two is slow. A slow one with no other so near is not even run a second time."""
    most_us: float = 4_000_000.0
    """All rounds together take at most this long, or"""
    most_runs: float = 10.0
    """so many runs of the fastest, if that is longer."""
    finalist: float = 0.06
    """Relative lag behind the fastest for a policy that was asked, up to which it comes to the finals."""
    least_rounds: int = 3
    """Final rounds before anything is decided; with fewer, an error estimate is a guess."""
    most_rounds: int = 32
    """Final rounds at most, once every window is good enough: the error falls with the square root, and nobody waits
    for ever. Up to `patience` times as many while one is not."""
    final_budget_us: float = 400_000.0
    """Running time of the finals at most, or"""
    final_runs: float = 6.0
    """so many runs of the fastest; twice that if `least_rounds` would not fit."""
    good_enough: float = 0.01
    """A tie window for which the budget may be exceeded, up to `patience` times, if it can be reached within that."""
    patience: int = 8
    alone_budget_us: float = 50_000.0
    """Running time at most that is spent on the time of a leader whom nobody comes near, until it is precise enough to
    be final;"""
    little_us: float = 5_000.0
    """of that so much until its error is no more than `good_enough`; or"""
    alone_runs: float = 4.0
    """so many runs of it."""
    burst_us: float = 200.0
    """Between two events: their resolution of 0.5 µs is then a quarter of a per cent."""
    coarse_us: float = 20.0
    """The same in a coarse round: enough to tell factors, and the noise of few runs is counted as such."""
    most_repeats: int = 64
    """Runs in a burst at most."""
    long_round_us: float = 400_000.0
    """A round that there and back would take longer goes one way only, and the next one the other way."""
    at_once: int = 8
    """For so many final rounds that are behind it, one more is run before it is looked again: looking costs too."""
    together: int = 1
    """Rounds at least that are run before it is looked again, of those that are wanted anyway."""
    drift: float = 0.01
    """The leader runs first and last in a final round; if its two times differ by more, the round does not count."""
    interrupted: float = 1.5
    """If the two bursts of a candidate in one round differ by more than this factor, only the shorter one counts."""
    most_discards: int = 12
    """So many bursts or rounds may be thrown away, or else this share of all bursts, before disturbed ones are taken
    as they are: the device is not going to be quieter. Lost time is no more than this share of all time either."""
    disturbed_share: float = 0.25
    restless: int = 4
    """With more bursts thrown away than this, and than `disturbed_share` of all, rounds go one way."""
    quiet_us: float = 200_000.0
    """For so long, and so many bursts, a quieter moment is waited for in any case."""
    most_lost: int = 400
    clearly: float = 4.0
    """Standard errors by which a candidate must be faster to drop another. More than the three that `Policy.pick` asks
    of what was dropped, so that rounding cannot come between the two."""
    improvement: float = 0.01
    """Looking at more candidates goes on while it improves the best by more than this."""
    hopeless: float = 200.0
    """A run of so many times the best, but at least `limit_us`, is stopped or given up."""
    limit_us: float = 1_000_000.0
    first_limit_us: float = 60_000_000.0
    """The limit while no candidate has shown how long a run takes: a large problem on a small machine takes seconds."""


STEADY: Final = RaceRules(
    launch_error=0.125,  # so that four tenths are not `clearly` more: a clock that comes up runs at 0.6 of itself,
    launch_gap_us=4.0,
    usual_noise=0.005,
    improvement=0.005,
    together=2,
    coarse_rounds=1,
    slow_us=30.0,
    slow_worth_it=1.7,  # which makes a first run so many times as long
    least_rounds=2,
    most_rounds=2,
    final_budget_us=8_000.0,
    good_enough=0.06,
    alone_budget_us=8_000.0,
    little_us=0.0,
    burst_us=60.0,
    clearly=3.2,
)
"""Where a listing calls its backend's times steady (`Listing.steady`)."""


def rules_for(listing: Listing) -> RaceRules:
    """As much as the noise of its backend asks for."""
    return STEADY if listing.steady else RaceRules()
