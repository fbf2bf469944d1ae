"""`Budget`: what the rounds of a race have cost on the device, and what they may.

The bound, which is a rule and a test (`tests/race/test_bound.py`): beyond one launch and one first look at each
candidate, all rounds together, those thrown away included, take at most max(`RaceRules.most_us`, `RaceRules.most_runs`
× the time of the fastest candidate). No round is asked for that is expected to go beyond it.

Times in µs, of the device; nothing else of a race takes long.
"""

from __future__ import annotations

from algosearch.race.rules import RaceRules


class Budget:
    """Counts, and says what is left. Pure: the same rounds always leave the same."""

    def __init__(self, rules: RaceRules) -> None:
        self.spent_us = 0.0
        """All rounds."""
        self.final_rounds = 0
        self.final_us = 0.0
        self.alone_rounds = 0
        self.alone_us = 0.0
        self._rules = rules
        self._bursts = 0
        self._discards = 0
        self._lost_us = 0.0
        self._drifted_rounds = 0

    def bound_us(self, best_us: float) -> float:
        """What all rounds may take."""
        return max(self._rules.most_us, self._rules.most_runs * best_us)

    def allows(self, round_us: float, best_us: float) -> bool:
        """Whether there is room for one more round that is expected to take so long."""
        return self.spent_us + round_us <= self.bound_us(best_us)

    def allows_final(self, round_us: float, best_us: float, factor: float, samples: int) -> bool:
        """The same for a final round among those that are not decided; beyond the budget of the finals only if windows
        that are good enough are in reach.

        Args:
            factor: with so many times as many rounds, all windows would be good enough.
            samples: rounds that the least timed of them has.
        """
        rules = self._rules
        if not self.allows(round_us, best_us):
            return False
        if self.final_rounds >= rules.most_rounds * (1 if factor <= 1 else rules.patience):
            return False
        budget_us = max(rules.final_budget_us, rules.final_runs * best_us)
        if self.final_us + round_us <= budget_us * (1 if self.final_rounds >= rules.least_rounds else 2):
            return True
        rounds = (factor - 1) * samples
        return rounds > 0 and self.final_us + max(1.0, rounds) * round_us <= rules.patience * rules.final_budget_us

    def allows_alone(self, round_us: float, best_us: float, *, precise: bool) -> bool:
        """The same for a round of leaders that nobody comes near, to know their time; which may be `precise` enough
        already, and yet be known better for little."""
        rules = self._rules
        budget_us = max(rules.little_us if precise else rules.alone_budget_us, rules.alone_runs * best_us)
        return (
            self.allows(round_us, best_us)
            and self.alone_rounds < rules.most_rounds * rules.patience
            and self.alone_us + round_us <= budget_us
        )

    def fitting(self, round_us: float, best_us: float) -> int:
        """How many such rounds, at least one, there is room for."""
        return max(1, int((self.bound_us(best_us) - self.spent_us) / round_us))

    def spend(self, burst_us: float) -> None:
        """A burst took so long."""
        self.spent_us += burst_us
        self._bursts += 1

    def lose(self, burst_us: float) -> None:
        """It is thrown away."""
        self._discards += 1
        self._lost_us += burst_us

    def lose_nonsense(self) -> None:
        """A burst reported what is no time."""
        self._bursts += 1
        self.lose(self._rules.quiet_us / self._rules.most_discards)

    @property
    def is_restless(self) -> bool:
        """Whether bursts are often disturbed."""
        return self._discards > max(self._rules.restless, self._rules.disturbed_share * self._bursts)

    def is_patient(self, best_us: float) -> bool:
        """Whether disturbed bursts are thrown away and run again. Else they are taken as they are: the device is not
        going to be quieter."""
        rules = self._rules
        few = max(rules.most_discards, rules.disturbed_share * self._bursts)
        if self._lost_us > max(rules.quiet_us, rules.disturbed_share * self.bound_us(best_us)):
            return False
        return self._discards < few or (self._lost_us < rules.quiet_us and self._discards < rules.most_lost)

    def counts_final(self, round_us: float, *, alone: bool, drifted: bool) -> bool:
        """A final round took so long. Whether it counts: one with drift in it is thrown away, too, but not for ever."""
        if alone:
            self.alone_us += round_us
            self.alone_rounds += 1
            return True
        self.final_us += round_us
        if drifted and self._drifted_rounds < self._rules.most_discards:
            self._drifted_rounds += 1
            return False
        self.final_rounds += 1
        return True
