"""The contract between the engine and a library that can do convolutions: `Backend` and its `Session`.

Rules that every implementation keeps and `tests/backends/contract.py` checks:

- Every call blocks; nothing here awaits. A session's calls come from three threads: the *prepare* thread (`enumerate`,
  and `build` of most), the *compile* thread (`build` of what is dear, `Candidate.is_dear`; `warm_up`) and the *lane*
  (`load`, `launch`, `time`, `check`, `unload`, `destroy`), one call at a time on each. All may be at work at once: the
  lane on another op than the two that build, and those on whatever they like. What is made in one of them and belongs
  to its thread is never used in another, but for plans, which the lane has alone once they are built.
- Only msgspec nouns cross, and a built plan is known by a number: so that a process stands behind the contract
  (`algosearch.devices.remote`).
- A candidate that fails is a returned `Failure`. An exception says that the contract or the installation is broken.
- The op is one that is searched (`algosearch.ops.searched_as`): canonical, and of a fused batch norm of training both
  passes at once, one run of which is forward and then backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from algosearch.errors import DeviceUnavailable
from algosearch.ops import Op
from algosearch.records import Built, Burst, Candidate, Environment, Failure, Listing
from algosearch.settings import Isolation


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device that a backend can open."""

    backend: str
    ordinal: int
    """The backend's number for it. For choosing and naming only; it never enters a key."""
    kind: str
    """The maker's name of the model."""
    identity: str
    """What the lane's exclusive lock is named by: one name for one physical device, whatever its ordinal."""

    @property
    def name(self) -> str:
        """How `device=` names it: `cpu:0`."""
        return f"{self.backend}:{self.ordinal}"


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How another process makes the same backend (`discover.backend_of`): plain data, of which nothing is executed."""

    backend: str
    settings: bytes = b""
    """The backend's own, as it encodes and strictly decodes them."""


@runtime_checkable
class Session(Protocol):
    """One open device. Owned by one worker, which closes it."""

    environment: Environment

    def enumerate(self, op: Op, width: int | None) -> Listing:
        """The candidates: at least the first `width` (the backend's own measure if that is more), all if None."""
        ...

    def build(self, op: Op, candidate: Candidate) -> Built | Failure:
        """Make a candidate runnable, in the compile thread if it is dear. Never touches the buffers or the timing of
        what the lane does."""
        ...

    def load(self, op: Op, workspace_bytes: int) -> Failure | None:
        """Make and fill the op's buffers and one workspace of this size. `out_of_memory` if they do not fit."""
        ...

    def launch(self, plan: int, limit_us: float | None) -> Burst | Failure:
        """The first run of a plan, on the loaded buffers: it may load code, so its time only bounds later ones."""
        ...

    def time(self, bursts: Sequence[tuple[int, int]], limit_us: float | None) -> tuple[Burst | Failure, ...]:
        """Run (plan, repeats) one after the other, nothing between them; an outcome for each."""
        ...

    def check(self, plan: int, against: int | None) -> Failure | None:
        """Compare the plan's output with another plan's, or with a reference; `wrong_result` or `out_of_bounds` if
        it is this plan that is wrong. The other one may be run for it. Whichever of the two leaves the device unusable,
        a failure is returned."""
        ...

    def healthy(self) -> Failure | None:
        """Whether the device can still be used, or why not; cheap. Asked after a candidate has failed, by whichever
        thread it failed in, whatever the other one does. What is not healthy is closed and opened afresh."""
        ...

    def unload(self) -> None:
        """Give the buffers and the workspace back. Harmless if nothing is loaded."""
        ...

    def destroy(self, plans: Sequence[int]) -> None:
        """Forget plans. A number that is not known is ignored."""
        ...

    def close(self) -> None:
        """End the session; harmless if called twice. No other call comes after it."""
        ...


@runtime_checkable
class WarmsUp(Protocol):
    """A `Session` of a library that sets something up, at length, when it is first asked for it."""

    def warm_up(self) -> None:
        """Have it set that up now. Called once, in the compile thread, as soon as something has been listed. What
        cannot be had is not raised: whoever needs it will be told."""
        ...


@runtime_checkable
class Backend(Protocol):
    """A library on this machine. Making one is cheap and touches no device."""

    name: str
    isolation: Isolation
    """Where its sessions live unless somebody asks for something else: `process` if its library can take the process
    with it."""

    def recipe(self) -> Recipe | None:
        """How to make it again in another process; None if that cannot be written down."""
        ...

    def devices(self) -> tuple[Device, ...]:
        """What there is to open; empty if the library or its devices are missing."""
        ...

    def open(self, device: Device) -> Session:
        """Open one device; blocking, up to seconds.

        Raises:
            DeviceUnavailable: with the reason and the remedy.
        """
        ...


@runtime_checkable
class SaysWhatIsMissing(Protocol):
    """A `Backend` that knows why it has no device."""

    def absence(self) -> DeviceUnavailable | None:
        """Why it has none, and what to do about it; None if it has some, or does not know. Blocks: milliseconds."""
        ...


def absence_of(backend: Backend) -> DeviceUnavailable | None:
    """Why a backend has no device; None if it has some, or cannot say."""
    return backend.absence() if isinstance(backend, SaysWhatIsMissing) else None


@runtime_checkable
class AsksAlone(Protocol):
    """A `Backend` that can be asked with a handle made for one question, and without all the rest of a session."""

    def alone(self, device: Device) -> Callable[[Op], Listing]:
        """Called with a canonical op, from one thread: its candidates, the first of them at least. Blocking.

        Raises:
            DeviceUnavailable: with the reason and the remedy.
        """
        ...
