"""Which backend a contract is about, and what it can and cannot do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import pytest

from algosearch.backends.base import Backend, Session
from algosearch.ops import Op, searched_as
from algosearch.records import FailureKind
from tests.backends.driven import Driven


class Subject(ABC):
    """One backend, whose module subclasses a contract."""

    # -- what a subclass says ----------------------------------------------------------------------------------------

    has_dear: ClassVar[bool] = False
    """Whether one of `ops`, not the first, has a candidate that is dear to build."""

    @abstractmethod
    def backend(self) -> Backend:
        """A fresh backend with at least one device, all of whose candidates are right."""

    @abstractmethod
    def ops(self) -> Sequence[Op]:
        """Two or more small problems that it can do, unlike each other, one with three candidates or more."""

    def impossible_ops(self) -> Sequence[Op]:
        """Problems that it cannot do."""
        return ()

    def wrong(self) -> tuple[Backend, Op, str, FailureKind] | None:
        """A backend, a problem, the algorithm that does it wrongly and what `check` must call that; or None."""
        return None

    def used_workspace_bytes(self, session: Session, plan: int) -> int | None:
        """The workspace that one run of a plan really takes; None if it cannot be told.

        Called in the lane; the plan's op is loaded, with exactly the workspace that was stated.
        """
        return None

    # -- fixtures ----------------------------------------------------------------------------------------------------

    @pytest.fixture
    def driven(self) -> Iterator[Driven]:
        backend = self.backend()
        with Driven(backend, backend.devices()[0]) as driven:
            yield driven

    def _ops(self) -> list[Op]:
        ops: list[Op] = [searched_as(op) for op in self.ops()]
        assert len(set(ops)) >= 2
        return ops
