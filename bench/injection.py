"""`InjectedBackend`: cuDNN with candidates that do in their runs what no library should.

Nothing of it is in the product. Its sessions are the real ones (`CudnnSession`), over real plans; behind each run of an
injected candidate comes a misdeed. The process that has the device makes it by recipe, as it makes every backend: the
folder `injection_hook` on its path teaches `backend_of` the recipe's name.

What it stands on is a `Ground`: `injection_cuda` is a GPU; a test brings a fake library over the host's memory.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec
from around import Around
from msgspec.structs import replace

from algosearch.backends.base import Backend, Device, Recipe
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.plan import Runnable, VariantPack
from algosearch.backends.cudnn.session import CudnnSession
from algosearch.errors import InvalidSetting
from algosearch.ops import ConvOp, Op
from algosearch.records import Built, Burst, Candidate, Failure
from algosearch.settings import Isolation

NAME: Final = "injected"
"""In recipes; a device's name is that of the backend inside."""
HOOK: Final = Path(__file__).parent / "injection_hook"

Misdeed = Literal["hangs", "overruns", "runs_wild"]
"""It never ends; it writes behind its result; it writes to an address that is nobody's."""


class Misdeeds(Protocol):
    """How it is done on a device. Called in the lane, behind a launch, in a burst too: queues, and loads nothing."""

    def hang(self) -> None:
        """Begin something on the lane's stream that never ends."""
        ...

    def overrun(self) -> None:
        """Write the 256 bytes behind the loaded op's result."""
        ...

    def run_wild(self) -> None:
        """Write to an address that no memory has."""
        ...


class Ground(Protocol):
    """A device to do it on. Its module has a function `ground` that gives it."""

    slack_bytes: int
    """Of device memory, that a search needs beside its buffers: for code."""

    def backend(self) -> Backend:
        """The backend inside, whose sessions are `CudnnSession`s."""
        ...

    def ops(self, network: str, case: str, batch: int) -> list[ConvOp]:
        """What is searched, canonical."""
        ...

    def misdeeds(self, session: CudnnSession) -> Misdeeds:
        """On an open device."""
        ...

    def take_memory(self, leave_bytes: int) -> Callable[[], None]:
        """Take the device's free memory but for so much, in this process, which has no session; the call gives it
        back."""
        ...


class Injection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one candidate does."""

    op: ConvOp
    algorithm: str
    does: Misdeed
    only_timed: bool = False
    """Not in its first launch, nor when it is checked."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a recipe carries."""

    ground: str
    """The name of its module."""
    injections: tuple[Injection, ...] = ()
    journal: str
    """The file in which it is written down."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something in the journal: a misdeed, once a session, before it is done."""

    process: int
    algorithm: str
    does: Misdeed
    problem: str


class InjectedBackend:
    """A `Backend` for a child process that has `HOOK` on its path; `prepare_children` sees to that."""

    isolation: Isolation = "process"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ground = ground_of(settings.ground)
        self._inner = self._ground.backend()
        self.name = self._inner.name

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> InjectedBackend:
        """The backend of a recipe.

        Raises:
            InvalidSetting: its settings cannot be understood.
        """
        try:
            return cls(msgspec.json.decode(recipe.settings, type=Settings))
        except msgspec.DecodeError as error:
            raise InvalidSetting("recipe", recipe.settings, str(error)) from error

    def recipe(self) -> Recipe | None:
        return Recipe(backend=NAME, settings=msgspec.json.encode(self._settings))

    def devices(self) -> tuple[Device, ...]:
        return self._inner.devices()

    def open(self, device: Device) -> InjectedSession:
        session = self._inner.open(device)
        assert isinstance(session, CudnnSession)
        return InjectedSession(session, self._ground.misdeeds(session), self._settings)


class InjectedSession(Around):
    """A session in which the plans of some candidates misbehave."""

    def __init__(self, session: CudnnSession, misdeeds: Misdeeds, settings: Settings) -> None:
        super().__init__(session)
        self._inner = session
        self._does = {"hangs": misdeeds.hang, "overruns": misdeeds.overrun, "runs_wild": misdeeds.run_wild}
        self._journal = settings.journal
        self._injections = {(each.op, each.algorithm): each for each in settings.injections}
        self._struck: set[Injection] = set()
        self._is_timing = False

    def build(self, op: Op, candidate: Candidate) -> Built | Failure:
        built = super().build(op, candidate)
        injection = self._injections.get((op, candidate.algorithm)) if isinstance(op, ConvOp) else None
        if isinstance(built, Built) and injection is not None:
            follow_runs(self._inner, built.plan, lambda: self._misbehave(injection))
        return built

    def time(self, bursts: Sequence[tuple[int, int]], limit_us: float | None) -> tuple[Burst | Failure, ...]:
        self._is_timing = True
        try:
            return super().time(bursts, limit_us)
        finally:
            self._is_timing = False

    def _misbehave(self, injection: Injection) -> None:
        if injection.only_timed and not self._is_timing:
            return
        if injection not in self._struck:
            self._struck.add(injection)
            event = Event(
                process=os.getpid(),
                algorithm=injection.algorithm,
                does=injection.does,
                problem=injection.op.describe(),
            )
            with open(self._journal, "ab") as file:
                file.write(msgspec.json.encode(event) + b"\n")
        self._does[injection.does]()


class Followed(Runnable):
    """A plan behind each of whose runs comes a call, which queues something more."""

    def __init__(self, plan: Runnable, call: Callable[[], None]) -> None:
        self._plan = plan
        self._call = call
        self.workspace_bytes = plan.workspace_bytes
        self.reserve_bytes = plan.reserve_bytes
        self.queued = plan.queued + 1

    def variant_pack(self, pointers: Mapping[int, int], workspace: int, *, handle: Handle | None = None) -> VariantPack:
        pack = self._plan.variant_pack(pointers, workspace, handle=handle)
        pack.launch, pack.launch_long = self._followed(pack.launch), self._followed(pack.launch_long)
        return pack

    def destroy(self) -> None:
        self._plan.destroy()

    def _followed(self, launch: Callable[[], int]) -> Callable[[], int]:
        def run() -> int:
            status = launch()
            if not status:
                self._call()
            return status

        return run


def follow_runs(session: CudnnSession, plan: int, call: Callable[[], None]) -> None:
    """Let a call follow every run of a plan that was built."""
    built = session._plans[plan]
    built.made = replace(built.made, plan=Followed(built.made.plan, call))


def ground_of(module: str) -> Ground:
    """That of a module."""
    ground: Ground = importlib.import_module(module).ground()
    return ground


def prepare_children() -> None:
    """From now on the children of this process know the recipe."""
    if str(HOOK) not in sys.path:
        sys.path.insert(0, str(HOOK))


def journal(path: Path) -> list[Event]:
    """What was done."""
    return [msgspec.json.decode(line, type=Event) for line in path.read_bytes().splitlines()] if path.exists() else []
