"""`Standings`: the facts of a race, and what they say at this moment.

Facts only grow. Everything else (who is screened, who is on the front, what is decided) is worked out from them, and
again after each new fact that could change it. So a winner whose output turns out wrong takes nothing with it: what it
had screened is back. There may be thousands of candidates, launched and checked one by one, so what one more of those
changes must not be looked for among all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence, Set
from itertools import islice
from math import hypot
from typing import Final

from algosearch.ops.types import LARGEST
from algosearch.race.estimate import LONGEST_US, SHORTEST_US, TRIM, Estimate, estimates
from algosearch.race.rules import RaceRules
from algosearch.records import PRECISE, Burst, Candidate, Failure, Policy, SearchMode, Stage, Trial, packed, refusable
from algosearch.records.policy import AS_GOOD, LOOK_AT, TIE, WINDOW

_SPARED: Final = 0.9
"""Of what `Policy.pick` allows."""


class Standings:
    """Facts are added by the race: times and failures through methods, for something is worked out from them."""

    def __init__(
        self,
        candidates: tuple[Candidate, ...],
        policies: tuple[Policy, ...],
        mode: SearchMode,
        rules: RaceRules,
    ) -> None:
        self.candidates: tuple[Candidate, ...] = ()
        self.failures: dict[int, Failure] = {}
        self.build_us: dict[int, float] = {}
        self.launch_us: dict[int, float] = {}
        """The first run's time; who is in it can be run."""
        self.rounds: list[dict[int, float]] = []
        """The time of one run by rank, for each round that counts."""
        self.timing: dict[int, str] = {}
        self.least_us: dict[int, float] = {}
        """The fastest of all its bursts, those that were thrown away among them."""
        self.disturbed_launches: set[int] = set()
        self.disturbed: Counter[int] = Counter()
        """In how many of the rounds that count somebody's bursts were disturbed."""
        self._policies = policies
        self._mode = mode
        self._rules = rules
        self.changes = 0
        """How often something was added from which the front is worked out: while it stays, the front does."""
        self._estimates: dict[int, Estimate] | None = None
        self._best_us: float | None = None
        self._front: list[int] | None = None
        self._fastest: list[int] | None = None
        # These never change: whom each asked policy refuses, and who could screen whom.
        self._refused: dict[tuple[int, int], bool] = {}
        self._may_screen: dict[tuple[int, int], bool] = {}
        self.offer(candidates)

    def offer(self, candidates: tuple[Candidate, ...]) -> None:
        """The library's list, or a wider one. Sizes are exact at any size; whose workspace or reserve no device can
        address has failed."""
        self.candidates = candidates
        for rank, candidate in enumerate(candidates):
            for what, size in (("workspace", candidate.workspace_bytes), ("reserve", candidate.reserve_bytes)):
                if size > LARGEST:
                    why = f"needs {size} bytes of {what}, and no device has 2**63"
                    self.fail(rank, Failure("not_supported", why))

    def fail(self, rank: int, failure: Failure) -> None:
        """It cannot be run (again). Of two failures the first counts."""
        self.failures.setdefault(rank, failure)
        if rank in self.launch_us:
            self._best_us = None
            self._changed()

    def forgive(self, rank: int) -> None:
        """As if it had not failed."""
        self.failures.pop(rank, None)
        self._best_us = None
        self._changed()

    def launched(self, rank: int, burst: Burst) -> None:
        """It ran for the first time. Nobody else's estimate changes."""
        us = self.launch_us[rank] = burst.time_us
        self.saw(rank, us)
        self.timing[rank] = burst.timing
        if burst.disturbed is not None:
            self.disturbed_launches.add(rank)
        if self._estimates is not None:
            self._estimates |= estimates((), {rank: us}, self._rules, unsure=self.disturbed_launches)
        if self._best_us is not None:
            self._best_us = min(us, self._best_us or us)
        self._changed()

    def timed(self) -> None:
        """Rounds were added. Not told after each one: of those that run together, all are taken by the same lights."""
        self._estimates = self._best_us = None
        self._changed()

    def _changed(self) -> None:
        self.changes += 1
        self._front = self._fastest = None

    def validate(self) -> None:
        """Assert what must be true of the facts. For tests."""
        ranks = set(range(len(self.candidates)))
        assert set(self.failures) | set(self.build_us) <= ranks
        assert set(self.launch_us) <= set(self.build_us)
        assert set(self.timing) == set(self.launch_us)
        for each in self.rounds:
            assert each
            assert set(each) <= set(self.launch_us)
            assert all(SHORTEST_US <= us <= LONGEST_US for us in each.values())
        for estimate in self.estimates().values():
            assert SHORTEST_US <= estimate.time_us <= LONGEST_US
            assert 0.0 < estimate.error_us < LONGEST_US

    # -- who may be what ---------------------------------------------------------------------------------------------

    def admits(self, policy: int, rank: int) -> bool:
        """Whether the asked policy with this number admits a candidate."""
        refused = self._refused.get((policy, rank))
        if refused is None:
            refused = self._policies[policy].refuses(self.candidates[rank]) is not None
            self._refused[policy, rank] = refused
        return not refused

    def admitted(self) -> list[int]:
        """Whom at least one asked policy admits, in the library's order."""
        policies = range(len(self._policies))
        return [rank for rank in range(len(self.candidates)) if any(self.admits(p, rank) for p in policies)]

    def lacking(self, policy: int) -> list[int] | None:
        """What must be looked at before `Policy.pick` takes this policy for covered; None if the list has too few."""
        if self._is_as_good(policy):
            return []
        have = 0
        lacking: list[int] = []
        for rank in range(len(self.candidates)):
            if have + len(lacking) >= LOOK_AT:
                return lacking
            if not self.admits(policy, rank) or rank in self.failures:
                continue
            if rank in self.launch_us:
                have += 1
            else:
                lacking.append(rank)
        return lacking if lacking or have >= LOOK_AT else None

    def _is_as_good(self, policy: int) -> bool:
        """As `Policy.pick` has it, with something to spare, for a trial is rounded."""
        works = (rank for rank in range(len(self.candidates)) if rank not in self.failures)
        first, leader = list(islice(works, LOOK_AT)), self.leader(policy)
        if leader is None or len(first) < LOOK_AT or not all(rank in self.launch_us for rank in first):
            return False
        return self.time_us(leader) <= (1 + _SPARED * AS_GOOD) * self.best_us()

    # -- who stands where --------------------------------------------------------------------------------------------

    def estimates(self) -> dict[int, Estimate]:
        """The estimate of everybody who ran."""
        if self._estimates is None:
            found = estimates(self.rounds, self.launch_us, self._rules, unsure=self.disturbed_launches)
            if not all(self._is_quiet(rank, estimate) for rank, estimate in found.items()):
                found = {rank: self._doubted(rank, estimate) for rank, estimate in found.items()}
            self._estimates = found
        return self._estimates

    def _doubted(self, rank: int, estimate: Estimate) -> Estimate:
        """Where somebody was disturbed too often, levels are none: nobody is faster than its fastest burst. Of whoever
        was, only an upper bound is known; of one that is slow, no more than its bursts differ by."""
        time_us = max(estimate.time_us, self.least_us[rank])
        error_us = estimate.error_us
        if not self._is_quiet(rank, estimate):
            error_us = max(error_us, time_us - (self.least_us[rank] if time_us >= self._rules.slow_us else 0.0))
        return Estimate(time_us, error_us, estimate.samples)

    def saw(self, rank: int, us: float) -> None:
        """A burst of this time a run, whether it counts or not."""
        self.least_us[rank] = min(us, self.least_us.get(rank, us))

    def time_us(self, rank: int) -> float:
        """The best estimate of one run."""
        return self.estimates()[rank].time_us

    def noise(self, rank: int) -> float:
        """The relative scatter of one round."""
        estimate = self.estimates()[rank]
        return float(estimate.error_us * max(estimate.samples, 1) ** 0.5 / estimate.time_us)

    def alive(self) -> list[int]:
        """Who can be run."""
        return [rank for rank in self.launch_us if rank not in self.failures]

    def front(self) -> list[int]:
        """Who is alive and not screened: whom some policy could pick. In an exhaustive search nobody is screened."""
        if self._front is None:
            alive = self.alive()
            if self._mode == "race":
                fastest_first = sorted(alive, key=self.time_us)
                alive = [rank for rank in alive if not self._is_screened(rank, fastest_first)]
            self._front = alive
        return self._front

    def fastest(self) -> list[int]:
        """The front, the fastest first."""
        if self._fastest is None:
            self._fastest = sorted(self.front(), key=self.time_us)
        return self._fastest

    def _is_screened(self, rank: int, fastest_first: Sequence[int]) -> bool:
        """Whether somebody is clearly faster and as good in every other way."""
        found, clearly = self.estimates(), self._rules.clearly
        mine = found[rank]
        for other in fastest_first:
            lag_us = mine.time_us - found[other].time_us
            if lag_us <= clearly * mine.error_us:
                return False
            if lag_us > clearly * hypot(mine.error_us, found[other].error_us) and self._can_screen(other, rank):
                return True
        return False

    def _can_screen(self, other: int, rank: int) -> bool:
        """Needs no more workspace, no worse in any note, and admitted wherever `rank` is."""
        may = self._may_screen.get((other, rank))
        if may is None:
            first, second = self.candidates[other], self.candidates[rank]
            may = self._may_screen[other, rank] = (
                first.workspace_bytes <= second.workspace_bytes
                and refusable(first.notes) <= refusable(second.notes)
                and all(self.admits(p, other) for p in range(len(self._policies)) if self.admits(p, rank))
            )
        return may

    def best_us(self) -> float:
        """The fastest that can be run; 0 if nobody can."""
        if self._best_us is None:
            self._best_us = min(map(self.time_us, self.alive()), default=0.0)
        return self._best_us

    def anchor(self) -> int:
        """Somebody who ran as often as anybody and takes little time."""
        samples = {rank: min(self.estimates()[rank].samples, self._rules.coarse_rounds) for rank in self.alive()}
        return min(samples, key=lambda rank: (-samples[rank], self.time_us(rank), rank))

    def want_coarse(self) -> list[int]:
        """Who on the front was not run often enough for what it could still win. Who is slow, with nobody near, has
        shown enough by its first run."""
        rules, found, rivals = self._rules, self.estimates(), self.rivals()
        return [
            rank
            for rank in self.front()
            if (found[rank].samples < rules.coarse_rounds and rank in rivals)
            or (not found[rank].samples and (found[rank].time_us < rules.slow_us or rank in self.disturbed_launches))
        ]

    def rivals(self) -> set[int]:
        """Those on the front to whom somebody else there is near enough for a closer look to be worth it.

        Of those who are faster the nearest is asked, and of those who are slower the nearest as well, and the first of
        the slow, for whom another factor counts: where those are too far away, so are all.
        """
        order, rules = self.fastest(), self._rules
        times = [self.time_us(rank) for rank in order]
        slow = bisect_left(times, rules.slow_us)

        def is_near(one: int, other: int) -> bool:
            low, high = sorted((times[one], times[other]))
            return high <= (rules.worth_it if high < rules.slow_us else rules.slow_worth_it) * low

        return {
            rank
            for place, rank in enumerate(order)
            if any(is_near(place, other) for other in {place - 1, place + 1, slow} - {-1, place, len(order)})
        }

    def vague(self, error: float) -> list[int]:
        """The leaders of asked policies whose own time is not known within this error, relative to it."""
        leaders = {self.leader(policy) for policy in range(len(self._policies))}
        return sorted(rank for rank in leaders if rank is not None and not self._is_known(rank, error))

    def leader(self, policy: int) -> int | None:
        """The fastest on the front that an asked policy admits; None if there is none."""
        return min((rank for rank in self.front() if self.admits(policy, rank)), key=self.time_us, default=None)

    def _is_known(self, rank: int, error: float) -> bool:
        estimate = self.estimates()[rank]
        return estimate.error_us <= error * estimate.time_us

    def _is_quiet(self, rank: int, estimate: Estimate) -> bool:
        """Whether no more of its rounds were disturbed than its estimate leaves out at the slow end."""
        return self.disturbed[rank] * TRIM <= estimate.samples

    def undecided(self) -> tuple[list[int], float]:
        """Those between whom an asked policy is not decided, the fastest first, and by what factor more rounds than
        the least timed of them has would make all their windows good enough."""
        found: set[int] = set()
        factor = 0.0
        for policy in range(len(self._policies)):
            admitted = [rank for rank in self.front() if self.admits(policy, rank)]
            leader = self.leader(policy)
            for rank in admitted:
                if leader is not None and rank != leader and not self._is_decided(leader, rank):
                    found |= {leader, rank}
                    factor = max(factor, (WINDOW * self._error(leader, rank) / self._rules.good_enough) ** 2)
        return sorted(found, key=lambda rank: (self.time_us(rank), rank)), factor

    def _is_decided(self, leader: int, rank: int) -> bool:
        """Whether more rounds could change neither the pick nor its window."""
        best, other = self.estimates()[leader], self.estimates()[rank]
        lag = (other.time_us - best.time_us) / best.time_us
        window = WINDOW * self._error(leader, rank)
        if lag > max(self._rules.finalist, window):
            return True
        if min(best.samples, other.samples) < self._rules.coarse_rounds + self._rules.least_rounds:
            return False
        return window <= TIE or lag > max(TIE, window)

    def _error(self, leader: int, rank: int) -> float:
        """Of their difference, relative to the leader."""
        best, other = self.estimates()[leader], self.estimates()[rank]
        return hypot(other.error_us, best.error_us) / best.time_us

    def found_better(self, before: Set[int]) -> bool:
        """Whether an asked policy has a clearly better best now than it had with those of `before` alone."""
        for policy in range(len(self._policies)):
            admitted = [rank for rank in self.alive() if self.admits(policy, rank)]
            then = [self.time_us(rank) for rank in admitted if rank in before]
            if then and min(map(self.time_us, admitted)) < (1 - self._rules.improvement) * min(then):
                return True
        return False

    def limit_us(self) -> float:
        """A run longer than this is hopeless."""
        best_us = self.best_us()
        return max(self._rules.limit_us, self._rules.hopeless * best_us) if best_us else self._rules.first_limit_us

    # -- what is kept of it ------------------------------------------------------------------------------------------

    def trials(self) -> tuple[Trial, ...]:
        """A trial for each candidate of the listing."""
        finalists = {
            rank
            for policy in range(len(self._policies))
            for rank in self._finalists(policy)
            if self._is_known(rank, PRECISE) and self._is_quiet(rank, self.estimates()[rank])
        }
        front = set(self.front())
        return tuple(
            self._trial(rank, "final" if rank in finalists else "coarse" if rank in front else "screened")
            for rank in range(len(self.candidates))
        )

    def _finalists(self, policy: int) -> list[int]:
        admitted = [rank for rank in self.front() if self.admits(policy, rank)]
        if not admitted:
            return []
        most = (1 + self._rules.finalist) * min(map(self.time_us, admitted))
        return [rank for rank in admitted if self.time_us(rank) <= most]

    def _trial(self, rank: int, stage: Stage) -> Trial:
        candidate, estimate = self.candidates[rank], self.estimates().get(rank)
        noted = "" if estimate is None or self._is_quiet(rank, estimate) else ",disturbed"
        return Trial(
            algorithm=candidate.algorithm,
            rank=rank,
            workspace_bytes=min(candidate.workspace_bytes, LARGEST),  # as `Trial` has it; it has failed
            notes=candidate.notes,
            stage="listed" if estimate is None else stage,
            time_us=None if estimate is None else _rounded(estimate.time_us),
            error_us=None if estimate is None else _rounded(estimate.error_us),
            samples=packed(each[rank] for each in self.rounds if rank in each),
            build_us=self.build_us.get(rank),
            timing=self.timing.get(rank, "") + noted,
            failure=self.failures.get(rank),
            reserve_bytes=min(candidate.reserve_bytes, LARGEST),
        )


def _rounded(us: float) -> float:
    """As it is kept: by digits and not by places, so that `Policy.pick` finds of any time what was found here."""
    return float(f"{us:.7g}")
