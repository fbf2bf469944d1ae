"""`Worker`: one device, kept at work whatever its candidates do to it.

Its session lives in a host: in this process, or in a child of it. A candidate that spoils, hangs or crashes the device
costs the host, not the search: it is recorded as that candidate's failure, another host is opened, and every search
that was in hand begins again without it.

Guarantees:
- Nobody is blamed who may be innocent. If several candidates were at work when the device went down, each of their
  searches is made again alone and carefully: then it is known who it was.
- A device that breaks again and again, with no search that comes to an end between, is set aside. So it never spins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
from msgspec.structs import replace

from algosearch.backends import Backend, Device
from algosearch.devices.admission import Admission
from algosearch.devices.host import Host, HostLost, OnListed, ThreadHost
from algosearch.devices.job import Found, Job, Limits, SearchStopped, Step
from algosearch.devices.places import Pace
from algosearch.devices.quiet import Quiet
from algosearch.devices.yardstick import Yardstick
from algosearch.errors import DeviceUnavailable, SearchFailed
from algosearch.ops import Op
from algosearch.records import Environment, Failure, Listing, Policy, SearchMode
from algosearch.settings import Isolation

if TYPE_CHECKING:
    from algosearch.devices.remote.host import ChildHost

__all__ = ("Worker", "WorkerRules", "Found", "SearchStopped", "Told", "nobody_asked")

logger = logging.getLogger("algosearch.devices")

Told = Callable[[str], None]

_MOST_UNEXPLAINED: Final = 2
"""Times that a search may bring the device down with no candidate to blame."""


def nobody_asked(what: object) -> None:
    """Told of what nobody wants to know."""


class WorkerRules(msgspec.Struct, frozen=True, kw_only=True):
    """When a worker gives up, and what."""

    limits: Limits = Limits()
    idle_s: float = 10.0
    """A child process that had nothing to do for so long is ended: the job may need the memory."""
    most_breaks: int = 8
    """So many in a row, with no search that came to an end between, and the device is set aside."""
    wait_s: float = 0.1
    """Before the third start in a row; then twice as long each time. The first two are made at once."""
    longest_wait_s: float = 5.0


class Worker:
    """One device at work. Made closed; `open` it, and `aclose` it whatever happened. Used on one loop.

    Args:
        isolation: where its session lives; left out, what the backend says.
        quiet: while it is wanted, nothing is opened.
    """

    def __init__(
        self,
        backend: Backend,
        device: Device,
        *,
        isolation: Isolation | None = None,
        rules: WorkerRules | None = None,
        quiet: Quiet | None = None,
    ) -> None:
        self.device = device
        self.isolation: Isolation = backend.isolation if isolation is None else isolation
        self.set_aside: DeviceUnavailable | None = None
        """Why it is not used any more; None if it is."""
        self._backend = backend
        self._rules = WorkerRules() if rules is None else rules
        self._quiet = Quiet() if quiet is None else quiet
        self._host: Host | None = None
        self._environment: Environment | None = None
        self._admission = Admission()
        self._yardstick = Yardstick()
        """Outlives its hosts: each of them is told what those before have seen."""
        self._pace = Pace()
        self._opening = anyio.Lock()
        self._being_opened: anyio.Event | None = None
        self._breaks = 0
        """Since a search came to an end."""
        self._idle: asyncio.TimerHandle | None = None
        self._closing = False

    def __repr__(self) -> str:
        state = "closing" if self._closing else "set aside" if self.set_aside else f"{self._host!r}"
        return f"<Worker {self.device.name} {state}>"

    @property
    def survives_crashes(self) -> bool:
        """Whether this process outlives every candidate: they run elsewhere, or kill nobody. If not, who wants to know
        what killed it must have written it down before the launch."""
        return self.isolation == "process" or self._backend.isolation == "thread"

    @property
    def in_hand(self) -> int:
        """Keys that it may hold at once, beside those that are dear."""
        return self._pace.in_hand(self.isolation)

    async def open(self) -> Environment:
        """Open the device.

        Raises:
            DeviceUnavailable: with the reason and the remedy.

        Cancellation: what was begun is closed.
        """
        host = await self._opened()
        return host.environment

    async def enumerate(self, op: Op, width: int | None) -> Listing:
        """The candidates of a canonical op, as `Session.enumerate`.

        Raises:
            SearchFailed: it brings the device down. DeviceUnavailable: the device is set aside. And whatever the
            backend raises.

        Cancellation: what has begun ends by itself, its result dropped.
        """
        alone, unexplained = False, 0
        while True:
            try:
                async with self._admission.admitted(alone=alone):
                    return await (await self._at_work()).enumerate(op, width)
            except HostLost as lost:
                unexplained = self._unexplained(op, lost, unexplained)
                alone = alone or lost.suspected is not None
            finally:
                self._rest()

    async def search(
        self,
        op: Op,
        listing: Listing | None,
        *,
        width: int | None = None,
        policies: Sequence[Policy],
        mode: SearchMode,
        failed: Mapping[str, Failure] | None = None,
        compiles: bool = True,
        on_trying: Told = nobody_asked,
        on_launch: Told = nobody_asked,
        on_listed: OnListed = nobody_asked,
    ) -> Found:
        """Race the candidates of a canonical op.

        Args:
            listing: the candidates; if they are not known yet (None), they are listed first, `width` of them as
                `Session.enumerate` says, and `on_listed` is told of them on the loop.
            failed: candidates, by algorithm, that are known to fail: they are not tried.
            compiles: as `Job.compiles`.
            on_trying: told what comes next, for a progress line; as `Host.search` says where and when.
            on_launch: told the algorithm of the candidate that is about to be run for the first time. If a candidate
                can bring down this process (not `survives_crashes`), the launch waits until it returns.

        Raises:
            SearchFailed: it brings the device down, and no candidate explains it. DeviceUnavailable: the device is set
            aside. MustCompile: as `compiles` says. SearchStopped: the worker closes meanwhile. And whatever the backend
            raises, which is a broken contract.

        Cancellation: the search stops between two steps; its plans are destroyed.
        """

        def on_step(step: Step) -> None:
            on_trying(step.describe())
            if step.deed == "launch":
                on_launch(step.algorithms[0])

        def listed(found: Listing) -> None:
            nonlocal listing
            listing = found
            on_listed(found)

        unexplained = 0
        job = Job(op=op, listing=listing, width=width, policies=tuple(policies), mode=mode, failed=dict(failed or {}))
        job = replace(job, compiles=compiles)
        while True:
            try:
                async with self._admission.admitted(alone=job.careful):
                    found = await (await self._at_work()).search(job, on_step, listed)
            except HostLost as lost:
                unexplained = self._unexplained(op, lost, unexplained)
                job = self._without_the_guilty(replace(job, listing=listing), lost)
            else:
                self._note_end(op, found)
                return found
            finally:
                self._rest()

    def _without_the_guilty(self, job: Job, lost: HostLost) -> Job:
        """The same search, once more; carefully, if it is not certain who it was. It is not sent away any more for what
        is dear (`Job.compiles`): what was learned would be lost."""
        careful = job.careful or (lost.suspected is not None and lost.guilty is None)
        return replace(job, failed=job.failed | self._blamed(lost), careful=careful, compiles=True)

    def _blamed(self, lost: HostLost) -> dict[str, Failure]:
        """Whose fault it was, if that is certain."""
        if lost.guilty is None:
            return {}
        algorithm, failure = lost.guilty
        logger.warning("%s: %s of %s: %s", self.device.name, failure.kind, algorithm, failure.message)
        return {algorithm: failure}

    def _note_end(self, op: Op, found: Found) -> None:
        self._breaks = 0
        self._yardstick.note(op, found)
        self._pace.note(found)

    async def rest(self) -> None:
        """Return when nothing is under way; nothing begins until `resume`. Called while quiet is wanted.

        Cancellation: it goes on resting.
        """
        if self._being_opened is not None:
            await self._being_opened.wait()
        # Looked at together: what were held after `resume` would be held for ever.
        if self._quiet.is_wanted and self._host is not None and self._host.is_open:
            try:
                await self._host.hold()
            except HostLost as lost:  # what is gone rests
                logger.debug("%s is quiet: %s", self.device.name, lost)

    def resume(self) -> None:
        """Go on: quiet is not wanted any more."""
        if self._host is not None and self._host.is_open:
            self._host.release()

    async def aclose(self) -> None:
        """Stop and close the session. Searches under way end between two steps.

        Waits a second for calls under way; then threads are left to themselves, and a child process is killed.
        Harmless if called twice. Must be shielded by the caller: it is short.
        """
        self._closing = True
        self._stay_up()
        if self._host is not None:
            await self._host.aclose()

    # -- its host ----------------------------------------------------------------------------------------------------

    async def _at_work(self) -> Host:
        """The open host, which is now not idle."""
        self._stay_up()
        return await self._opened()

    async def _opened(self) -> Host:
        """The open host; another one if it was ended or has broken. Without a checkpoint if it is open: beside a caller
        that computes, each turn of the loop waits 5 ms for the interpreter lock."""
        if self._host is not None and self._host.is_open and not self._closing:
            return self._host
        async with self._opening:
            while True:
                if self._closing:
                    raise SearchStopped
                if self._host is not None and self._host.is_open:
                    return self._host
                await self._bury()
                if self.set_aside is not None:
                    raise self.set_aside.again()
                await anyio.sleep(self._wait_s())
                await self._quiet.over()
                if not self._closing:
                    await self._open_another()

    async def _bury(self) -> None:
        """The host that is not open any more."""
        host, self._host = self._host, None
        if host is None:
            return
        with anyio.CancelScope(shield=True):
            await host.aclose()
        if host.broke is not None:
            self._count_break(host.broke)

    async def _open_another(self) -> None:
        self._being_opened = anyio.Event()
        host: Host | None = None
        try:
            host = await self._open_host()
            if self._environment is None:
                self._environment = host.environment
            if host.environment != self._environment:
                self._put_aside("it is not what it was: its environment has changed while it was closed")
            elif not self._closing:
                if self._quiet.is_wanted:
                    await host.hold()
                self._host, host = host, None
        except (DeviceUnavailable, HostLost) as error:
            if self._environment is None:
                raise
            self._count_break(str(error))
        finally:
            self._being_opened.set()
            self._being_opened = None
            if host is not None:
                with anyio.CancelScope(shield=True):
                    await host.aclose()

    def _new_host(self) -> ChildHost | ThreadHost:
        if self.isolation == "thread":
            return ThreadHost(self._backend, self.device, self._rules.limits, slowest=self._yardstick.slowest)
        from algosearch.devices.remote.host import ChildHost  # who has no child need not pay for it

        recipe = self._backend.recipe()
        if recipe is None:
            raise DeviceUnavailable(
                self.device.name, "its backend cannot be made again in another process", "use isolation='thread'"
            )
        return ChildHost(recipe, self.device, self._rules.limits, slowest=self._yardstick.slowest)

    async def _open_host(self) -> Host:
        host = self._new_host()
        try:
            await host.open()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await host.aclose()
            raise
        return host

    def _wait_s(self) -> float:
        if self._breaks < 2:
            return 0.0
        return min(self._rules.longest_wait_s, self._rules.wait_s * 2.0 ** (self._breaks - 2))

    # -- when it breaks ----------------------------------------------------------------------------------------------

    def _unexplained(self, op: Op, lost: HostLost, before: int) -> int:
        """How often `op` has brought the device down with no candidate to blame.

        Raises:
            SearchFailed: too often.
        """
        if not lost.is_nobodys:
            return before
        if before + 1 >= _MOST_UNEXPLAINED:
            raise SearchFailed(op.describe(), f"it brings {self.device.name} down: {lost.reason}") from lost
        return before + 1

    def _count_break(self, reason: str) -> None:
        self._breaks += 1
        logger.warning("%s broke: %s", self.device.name, reason)
        if self._breaks >= self._rules.most_breaks:
            self._put_aside(f"it broke {self._breaks} times, and no search came to an end between; at last: {reason}")

    def _put_aside(self, reason: str) -> None:
        if self.set_aside is None:
            self.set_aside = DeviceUnavailable(self.device.name, reason, "look after it, then open another searcher")
            logger.error("%s is set aside: %s", self.device.name, reason)

    # -- when it is idle ---------------------------------------------------------------------------------------------

    def _stay_up(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _rest(self) -> None:
        """A call has ended; if it was the last one in hand, a child process is ended after a while."""
        if self.isolation == "process" and not self._admission.inside and not self._closing:
            self._stay_up()
            self._idle = asyncio.get_running_loop().call_later(self._rules.idle_s, self._end_idle)

    def _end_idle(self) -> None:
        if not self._admission.inside and self._host is not None and self._host.is_open:
            logger.debug("%s is idle; its process is ended", self.device.name)
            self._host.end()
