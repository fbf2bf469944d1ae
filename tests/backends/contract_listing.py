"""The part of a backend's contract that runs nothing: its devices, its environment, what it lists and refuses."""

from __future__ import annotations

import pytest

from algosearch.backends.base import Backend, Session
from algosearch.backends.discover import backend_of
from algosearch.ops import searched_as
from algosearch.records import Algorithm, Environment, Failure, Key
from tests.backends.driven import Driven, crossed
from tests.backends.subject import Subject


class ListingContract(Subject):
    """A part of `BackendContract`."""

    # -- the backend and its devices ---------------------------------------------------------------------------------

    def test_it_is_a_backend_and_its_sessions_are_sessions(self, driven: Driven) -> None:
        assert isinstance(self.backend(), Backend)
        assert isinstance(driven.session, Session)

    def test_devices_have_names_of_their_own(self) -> None:
        backend = self.backend()
        devices = backend.devices()
        assert devices
        assert len({device.name for device in devices}) == len(devices)
        for device in devices:
            assert device.backend == backend.name
            assert device.name == f"{backend.name}:{device.ordinal}"
            assert device.kind
            assert device.identity
            crossed(device)

    def test_devices_are_the_same_each_time(self) -> None:
        backend = self.backend()
        assert backend.devices() == backend.devices() == self.backend().devices()

    def test_what_can_be_written_down_makes_the_same_backend(self) -> None:
        backend = self.backend()
        recipe = backend.recipe()
        if recipe is None:
            pytest.skip("this backend cannot be written down")
        again = backend_of(crossed(recipe))
        assert (again.name, again.devices()) == (backend.name, backend.devices())
        third = again.recipe()
        assert third is not None
        assert backend_of(third).recipe() == third
        device = backend.devices()[0]
        with Driven(backend, device) as here, Driven(again, device) as there:
            assert there.session.environment == here.session.environment

    # -- the environment ---------------------------------------------------------------------------------------------

    def test_environment_is_complete_and_tells_what_it_is(self, driven: Driven) -> None:
        backend = self.backend()
        environment: Environment = crossed(driven.session.environment)
        assert environment.backend == backend.name
        assert environment.device == backend.devices()[0].kind
        assert environment.incomplete is None

    def test_environment_facts_are_sorted_and_named_once(self, driven: Driven) -> None:
        names = [name for name, _ in driven.session.environment.facts]
        assert names == sorted(set(names))
        assert all(isinstance(value, str) for _, value in driven.session.environment.facts)

    def test_environment_is_the_same_on_every_open(self, driven: Driven) -> None:
        backend = self.backend()
        with Driven(backend, backend.devices()[0]) as other:
            assert other.session.environment == driven.session.environment

    def test_environment_makes_a_key_that_gives_it_back(self, driven: Driven) -> None:
        for op in self._ops():
            key = Key.of(op, driven.session.environment)
            assert key.environment == driven.session.environment
            assert key.problem == op

    # -- the listing -------------------------------------------------------------------------------------------------

    def test_listing_counts_ranks_from_zero_without_a_gap(self, driven: Driven) -> None:
        for op in self._ops():
            candidates = driven.enumerate(op).candidates
            assert candidates
            assert [candidate.rank for candidate in candidates] == list(range(len(candidates)))

    def test_listing_names_parse_and_are_this_backends_and_unique(self, driven: Driven) -> None:
        backend_name = self.backend().name
        for op in self._ops():
            names = [candidate.algorithm for candidate in driven.enumerate(op).candidates]
            assert len(set(names)) == len(names)
            for name in names:
                algorithm = Algorithm.parse(name)
                assert str(algorithm) == name
                assert algorithm.backend == backend_name

    def test_listing_states_workspaces_and_sorted_notes(self, driven: Driven) -> None:
        for op in self._ops():
            for candidate in driven.enumerate(op).candidates:
                assert candidate.workspace_bytes >= 0
                assert list(candidate.notes) == sorted(set(candidate.notes))

    def test_listing_is_the_same_each_time(self, driven: Driven) -> None:
        for op in self._ops():
            assert driven.enumerate(op) == driven.enumerate(op)

    def test_wider_listing_extends_the_narrower(self, driven: Driven) -> None:
        for op in self._ops():
            everything = driven.enumerate(op, None)
            assert everything.complete
            total = len(everything.candidates)
            for width in (1, 2, 3, total, total + 1):
                listing = driven.enumerate(op, width)
                count = len(listing.candidates)
                assert min(width, total) <= count <= total
                assert listing.candidates == everything.candidates[:count]
                assert listing.complete == (count == total)

    def test_listing_begins_a_race_with_a_sensible_number(self, driven: Driven) -> None:
        for op in self._ops():
            for width in (1, None):
                listing = driven.enumerate(op, width)
                assert listing.look_at is None or listing.look_at >= 1
                assert listing.look_up_to is None or listing.look_up_to >= 0

    # -- what it cannot do -------------------------------------------------------------------------------------------

    def test_an_op_that_it_cannot_do_is_an_answer_not_an_exception(self, driven: Driven) -> None:
        for op in map(searched_as, self.impossible_ops()):
            for candidate in driven.enumerate(op).candidates:
                failure = driven.build(op, candidate)
                assert isinstance(failure, Failure), candidate.algorithm
                assert failure.kind == "not_supported"
