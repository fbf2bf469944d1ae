"""The one contract test suite of all backends: `algosearch.backends.base`, rule by rule.

A backend's test module subclasses `BackendContract` (as a class whose name begins with `Test`) and says which backend,
which ops it can and cannot do, and, where it can, how to make it be wrong and how to measure a run's workspace.

Sessions are driven by `Driven`, from three threads, and every noun crosses a process boundary's encoding on the way: so
each test is a test of what crosses as well.
"""

from __future__ import annotations

import threading
from math import isfinite
from typing import Final

import pytest

from algosearch.ops import searched_as
from algosearch.records import Algorithm, Built, Burst, Candidate, Failure
from tests.backends.contract_listing import ListingContract
from tests.backends.driven import Driven

HOPELESS_US: Final = 1e-6
"""A limit that no run keeps."""
AMPLE_US: Final = 1e12
"""A limit that every run keeps."""
TOO_MUCH_BYTES: Final = 1 << 60
"""More than any machine's memory, or address space."""
BUILD_FAILURES: Final = frozenset({"not_supported", "build_failed", "out_of_memory", "timed_out"})


class BackendContract(ListingContract):
    """Subclass as `class Test…(BackendContract)`. Not collected by itself."""

    # -- building ----------------------------------------------------------------------------------------------------

    def test_build_gives_each_plan_a_number_of_its_own(self, driven: Driven) -> None:
        plans = []
        for op in self._ops():
            for candidate in driven.enumerate(op).candidates:
                built = driven.build(op, candidate)
                if isinstance(built, Failure):
                    assert built.kind in BUILD_FAILURES
                    continue
                assert isfinite(built.build_us)
                assert built.build_us >= 0.0
                plans.append(built.plan)
        assert len(set(plans)) == len(plans) > 0

    def test_building_one_candidate_twice_gives_two_plans(self, driven: Driven) -> None:
        op = self._ops()[0]
        (candidate, first), *_ = driven.runnable(op)
        second = driven.build(op, candidate)
        assert isinstance(second, Built)
        assert second.plan != first
        driven.load_for(op, [(candidate, first)])
        driven.destroy([first])
        assert isinstance(driven.launch(second.plan), Burst)

    def test_unknown_algorithm_is_a_failure_not_an_exception(self, driven: Driven) -> None:
        name = str(Algorithm(backend=self.backend().name, source="nowhere", engine="never-heard-of"))
        failure = driven.build(self._ops()[0], Candidate(algorithm=name, rank=0, workspace_bytes=0))
        assert isinstance(failure, Failure)
        assert failure.kind == "not_supported"
        assert failure.message

    # -- running -----------------------------------------------------------------------------------------------------

    def test_launch_is_one_run_with_a_positive_time(self, driven: Driven) -> None:
        for op in self._ops():
            plans = driven.runnable(op)
            driven.load_for(op, plans)
            for _, plan in plans:
                for limit_us in (None, AMPLE_US):
                    burst = driven.launch(plan, limit_us)
                    assert isinstance(burst, Burst)
                    assert burst.repeats == 1
                    _plausible(burst)
            driven.unload()

    def test_time_gives_an_outcome_for_each_burst_in_order(self, driven: Driven) -> None:
        for op in self._ops():
            plans = driven.runnable(op)
            driven.load_for(op, plans)
            for _, plan in plans:
                driven.launch(plan)
            asked = [(plan, repeats) for repeats in (1, 3, 2) for _, plan in plans]
            outcomes = driven.time(asked, AMPLE_US)
            assert len(outcomes) == len(asked)
            timings = set()
            for (_, repeats), burst in zip(asked, outcomes, strict=True):
                assert isinstance(burst, Burst)
                assert burst.repeats == repeats
                _plausible(burst)
                timings.add(burst.timing)
            assert len(timings) == 1, "times of one session must be comparable"
            assert driven.time([], None) == ()
            driven.unload()

    def test_what_runs_beyond_the_limit_is_timed_out(self, driven: Driven) -> None:
        op = self._ops()[0]
        plans = driven.runnable(op)
        driven.load_for(op, plans)
        plan = plans[0][1]
        for failure in (driven.launch(plan, HOPELESS_US), *driven.time([(plan, 2), (plan, 1)], HOPELESS_US)):
            assert isinstance(failure, Failure)
            assert failure.kind == "timed_out"
            assert "limit_us" in dict(failure.circumstances)
        assert isinstance(driven.launch(plan, AMPLE_US), Burst), "a merely slow plan must remain usable"

    def test_a_run_needs_no_more_workspace_than_was_stated(self, driven: Driven) -> None:
        for op in self._ops():
            for candidate, plan in driven.runnable(op):
                assert driven.load(op, candidate.workspace_bytes) is None
                assert isinstance(driven.launch(plan), Burst)
                used = driven.in_lane(self.used_workspace_bytes, driven.session, plan).result()
                assert used is None or used <= candidate.workspace_bytes, candidate.algorithm
                driven.unload()

    # -- checking ----------------------------------------------------------------------------------------------------

    def test_every_candidate_is_right(self, driven: Driven) -> None:
        for op in self._ops():
            plans = driven.runnable(op)
            driven.load_for(op, plans)
            for candidate, plan in plans:
                assert isinstance(driven.launch(plan), Burst)
                assert driven.check(plan) is None, candidate.algorithm
            for candidate, plan in plans[1:]:
                assert driven.check(plan, plans[0][1]) is None, candidate.algorithm
            driven.unload()

    def test_check_tells_which_candidate_is_wrong(self) -> None:
        scripted = self.wrong()
        if scripted is None:
            pytest.skip("this backend cannot be made to be wrong")
        backend, op, algorithm, kind = scripted
        op = searched_as(op)
        with Driven(backend, backend.devices()[0]) as driven:
            plans = driven.runnable(op)
            driven.load_for(op, plans)
            plan_of = {candidate.algorithm: plan for candidate, plan in plans}
            for plan in plan_of.values():
                driven.launch(plan)
            for name, plan in plan_of.items():
                failure = driven.check(plan)
                assert (None if failure is None else failure.kind) == (kind if name == algorithm else None), name
            right = next(plan for name, plan in plan_of.items() if name != algorithm)
            against_right = driven.check(plan_of[algorithm], right)
            assert against_right is not None
            assert against_right.kind == kind

    # -- memory ------------------------------------------------------------------------------------------------------

    def test_what_does_not_fit_is_out_of_memory_and_leaves_nothing_behind(self, driven: Driven) -> None:
        op = self._ops()[0]
        plans = driven.runnable(op)
        failure = driven.load(op, TOO_MUCH_BYTES)
        assert failure is not None
        assert failure.kind == "out_of_memory"
        assert failure.circumstances, "trouble says under which circumstances"
        driven.load_for(op, plans)
        assert isinstance(driven.launch(plans[0][1]), Burst)

    def test_buffers_can_be_loaded_again_and_for_another_op(self, driven: Driven) -> None:
        prepared = [(op, driven.runnable(op)) for op in self._ops()]
        for _ in range(2):
            for op, plans in prepared:
                driven.load_for(op, plans)
                assert isinstance(driven.launch(plans[0][1]), Burst)
                driven.unload()

    # -- health ------------------------------------------------------------------------------------------------------

    def test_it_is_healthy_whatever_it_had_to_refuse(self, driven: Driven) -> None:
        assert driven.session.healthy() is None
        op = self._ops()[0]
        plans = driven.runnable(op)
        assert isinstance(driven.load(op, TOO_MUCH_BYTES), Failure)
        driven.load_for(op, plans)
        assert isinstance(driven.launch(plans[0][1], HOPELESS_US), Failure)
        for ask in (driven.in_prepare, driven.in_compile, driven.in_lane):
            assert ask(driven.session.healthy).result() is None

    # -- giving back -------------------------------------------------------------------------------------------------

    def test_unload_is_harmless_at_any_time(self, driven: Driven) -> None:
        driven.unload()
        op = self._ops()[0]
        driven.load_for(op, driven.runnable(op))
        driven.unload()
        driven.unload()

    def test_destroy_ignores_what_it_does_not_know(self, driven: Driven) -> None:
        op = self._ops()[0]
        plans = driven.runnable(op)
        unknown = max(plan for _, plan in plans) + 1_000
        driven.destroy([])
        driven.destroy([unknown, plans[0][1], plans[0][1]])
        driven.destroy([plans[0][1]])
        driven.load_for(op, plans)
        for _, plan in plans[1:]:
            assert isinstance(driven.launch(plan), Burst)

    def test_close_is_harmless_twice_and_with_things_still_loaded(self) -> None:
        backend = self.backend()
        device = backend.devices()[0]
        op = self._ops()[0]
        for _ in range(2):  # the second time shows that the first has given the device back
            with Driven(backend, device) as driven:
                driven.load_for(op, driven.runnable(op))
                driven.close()
                driven.close()

    # -- all threads at once -----------------------------------------------------------------------------------------

    def test_all_threads_work_at_once_the_lane_on_another_op(self, driven: Driven) -> None:
        timed, *others = self._ops()
        plans = driven.runnable(timed)
        driven.load_for(timed, plans)
        listings = [(op, driven.enumerate(op)) for op in others]
        with_dear = [(op, each) for op, each in listings if any(one.is_dear for one in each.candidates)]
        prepared, listing = (with_dear or listings)[0]
        dear = [candidate for candidate in listing.candidates if candidate.is_dear]
        assert dear or not self.has_dear
        begin = threading.Barrier(3)

        def prepare() -> list[Built | Failure]:
            begin.wait()
            outcomes: list[Built | Failure] = []
            for _ in range(5):
                assert driven.session.enumerate(prepared, None) == listing
                cheap = [candidate for candidate in listing.candidates if not candidate.is_dear]
                outcomes += [driven.session.build(prepared, candidate) for candidate in cheap]
            return outcomes

        def compile_() -> list[Built | Failure]:
            begin.wait()
            return [driven.session.build(prepared, candidate) for _ in range(5) for candidate in dear]

        def lane() -> list[Burst | Failure]:
            begin.wait()
            outcomes: list[Burst | Failure] = []
            for _ in range(5):
                outcomes += [driven.session.launch(plan, None) for _, plan in plans]
                outcomes += driven.session.time([(plan, 2) for _, plan in plans], None)
                for _, plan in plans:
                    assert driven.session.check(plan, None) is None
            return outcomes

        building, compiling, running = driven.in_prepare(prepare), driven.in_compile(compile_), driven.in_lane(lane)
        compiled = [outcome.plan for outcome in compiling.result() if isinstance(outcome, Built)]
        assert bool(compiled) == bool(dear)
        built = [outcome.plan for outcome in building.result() if isinstance(outcome, Built)] + compiled
        bursts = running.result()
        assert all(isinstance(outcome, Burst) for outcome in bursts)
        assert len({*built, *(plan for _, plan in plans)}) == len(built) + len(plans), "a plan's number was used twice"
        driven.unload()
        driven.load_for(prepared, [(candidate, 0) for candidate in listing.candidates])
        assert isinstance(driven.launch(built[-1]), Burst)


def _plausible(burst: Burst) -> None:
    assert isfinite(burst.time_us)
    assert burst.time_us > 0.0
    assert burst.timing
    assert burst.timing == burst.timing.strip().lower()
