"""`Link`: one handle's connections to a server, from one `open` to its `aclose`, and whether it can be reached.

Guarantees:
- A call costs at most `timeout_s`, connecting and trying once more included, and raises `Hindrance` only. Time in which
  this process stood still is not counted.
- While the server is away no call costs anything: it is tried again by one task of the link's own, every second or so.
- A call that was begun is finished, whether or not somebody still waits for it: on a connection that was thrown away in
  the middle, the server would carry a claim out after its release. For the same reason calls about the same claim are
  made one after the other, and wait for each other: the server may read its connections in any order.
- Whenever the server is back, or another one (another `run_id`, or without what was in it), the owner is told.

`redis` is imported here, with the first server that is opened.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha1
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from algosearch.stores.address import ServerAddress
from algosearch.stores.connecting import Lookup, pool_of
from algosearch.stores.mishap import hindrance_of
from algosearch.stores.trouble import Hindrance, Troubles

if TYPE_CHECKING:
    from redis.asyncio import Redis

T = TypeVar("T")

logger = logging.getLogger("algosearch.stores")

CONNECTIONS: Final = 2
"""For calls, beside one that waits for news. Opened when needed: mostly it is one."""
RETRY_S: Final = 1.0
"""Between two attempts to reach a server that is away, on average."""
PULSE_S: Final = 5.0
"""Between two looks whether it is still the same one, on average."""
STOOD_STILL_S: Final = 0.5
"""What a call takes longer than it may is no fault of the server's: a suspended job, a loop that was held up."""
_ATTEMPTS: Final = 3
"""As often a call is made that was late each time: one that is held up again and again may be away after all."""

_NONSENSE: Final = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""What the client raises over replies that no such server gives."""

_UNATTENDED: Final[set[asyncio.Task[None]]] = set()
"""Links that close although whoever closed them was cancelled; kept, so that they are not forgotten half-way."""


class Link:
    """Connections to one server. Lives on the loop that opened it.

    Args:
        born: the key of a mark by which a server that lost its data is told from one that did not.
        on_return: called when the server is back after it was away, and when it is another one than before.
        on_pulse: called every few seconds while it is there.
    """

    def __init__(
        self,
        address: ServerAddress,
        *,
        born: str,
        troubles: Troubles,
        on_return: Callable[[], None],
        on_pulse: Callable[[], None],
        retry_s: float = RETRY_S,
        pulse_s: float = PULSE_S,
    ) -> None:
        from redis.asyncio import Redis

        self.up = False
        """Whether it answered when it was last asked."""
        self.up_at = monotonic()
        """When it last answered, of `time.monotonic`."""
        self.calls = 0
        """How many were made, each one trip."""
        self.hindrance: Hindrance | None = None
        """The last one that a call met, but for those of writing."""
        self.lag_s = 0.0
        """What a call took lately."""
        self._address = address
        self._born = born
        self._troubles = troubles
        self._on_return = on_return
        self._on_pulse = on_pulse
        self._retry_s, self._pulse_s = retry_s, pulse_s
        self._identity: tuple[bytes, bytes] | None = None
        """Which server it was: its run, and its mark."""
        self._lookup = Lookup()
        self._client = Redis.from_pool(pool_of(address, self._lookup, retries=1, connections=CONNECTIONS))
        self._news = Redis.from_pool(pool_of(address, self._lookup, retries=0, connections=1))
        self._under_way: set[asyncio.Task[Any]] = set()
        self._latest: dict[str, asyncio.Task[Any]] = {}
        """Of the calls under way that have to keep an order, the latest about each thing."""
        self._pulse: asyncio.Task[None] | None = None
        self._probing = asyncio.Lock()
        self._away = asyncio.Event()
        """Set when it cannot be reached any more: the next look at it is not to wait for its time."""
        self._closed = False

    async def open(self) -> None:
        """Reach the server, if it is there, and begin to look after it.

        Cancellation: it is to be closed by whoever opened it.
        """
        await self._finished(self._probe())
        if not self._closed:
            self._pulse = asyncio.create_task(self._keep_looking(), name="algosearch-server-pulse")

    async def aclose(self) -> None:
        """End everything; what was begun is waited for, for as long as a call may take.

        Cancellation: it closes all the same, unattended.
        """
        self._closed = True
        closing = asyncio.create_task(self._close(), name="algosearch-server-close")
        _UNATTENDED.add(closing)
        closing.add_done_callback(_UNATTENDED.discard)
        await asyncio.shield(closing)

    async def _close(self) -> None:
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.gather(self._pulse, return_exceptions=True)
        while self._under_way:
            await asyncio.gather(*self._under_way, return_exceptions=True)
        for client in (self._client, self._news):
            try:
                async with asyncio.timeout(self._address.timeout_s):
                    await client.connection_pool.disconnect()
            except Exception as error:  # it is going anyway
                logger.debug("closing a connection to %s: %s", self._address.shown, error)
        self._lookup.close()

    async def do(self, call: Callable[[Redis], Awaitable[T]], *, about: str = "") -> T:
        """One trip.

        Args:
            about: calls about the same thing are carried out in the order in which they are made; left out, in any.

        Raises:
            Hindrance: it could not be made, or the server would not do it.
        """
        self._require_up()
        began = monotonic()
        if about:
            work = self._behind(self._latest.get(about), call)
        else:
            work = self._guarded(self._client, call, self._address.timeout_s)
        answer = await self._finished(work, about=about)
        # With the time in which the loop came to neither the call nor its answer: where that is long, less is asked.
        self.lag_s += (monotonic() - began - self.lag_s) / 8
        return answer

    async def script(self, text: str, keys: Sequence[object], *facts: str | bytes, about: str = "") -> Any:
        """Have a script carried out, in one trip, or in two if the server does not know it (it may forget all that it
        was told at any time). Args and Raises as `do`."""
        from redis.exceptions import NoScriptError

        sha = sha1(text.encode(), usedforsecurity=False).hexdigest()

        async def call(client: Any) -> Any:
            try:
                return await client.evalsha(sha, len(keys), *keys, *facts)
            except NoScriptError:
                return await client.eval(text, len(keys), *keys, *facts)

        return await self.do(call, about=about)

    async def wait_for_news(self, stream: str, after: str, wait_s: float) -> tuple[str, list[dict[bytes, bytes]]]:
        """What was announced after `after`, waited for if there is nothing yet; and after which to go on.

        Raises:
            Hindrance: as `do`. The connection may have been cut: what was announced meanwhile is not lost, but whether
                it is still the same server is found out before this returns.
        """
        self._require_up()
        block_ms = max(1, round(wait_s * 1000))

        async def listen(client: Redis) -> Any:
            return await client.xread({stream: after}, count=1000, block=block_ms)

        try:
            heard = await self._finished(self._guarded(self._news, listen, self._address.timeout_s + wait_s))
        except Hindrance:
            await self._finished(self._probe())
            raise
        fields: list[dict[bytes, bytes]] = []
        for _, entries in heard or ():
            for name, entry in entries:
                after = name.decode("ascii", "replace")
                fields.append(entry or {})
        return after, fields

    # -- whether it is there -----------------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            if self.up:
                self._away.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._away.wait(), self._pulse_s * random.uniform(0.5, 1.5))
            if not self.up:
                await asyncio.sleep(self._retry_s * random.uniform(0.5, 1.5))
            await self._finished(self._probe())
            if self.up:
                self._on_pulse()

    async def _probe(self) -> None:
        """Ask which server it is."""
        from redis.exceptions import ResponseError

        async def who(client: Redis) -> tuple[bytes, bytes]:
            pipe = client.pipeline(transaction=False)
            pipe.execute_command("INFO", "server")
            pipe.get(self._born)
            info, mark = await pipe.execute()
            run = info.get("run_id") if isinstance(info, dict) else None
            if not run:
                raise ValueError("what answers there is no Redis or Valkey server")
            if mark is None:
                # It may be full, or a replica: then it is read all the same, and has no mark. In two commands, for
                # servers before 7.0 have no NX with GET.
                with suppress(ResponseError):
                    await client.set(self._born, secrets.token_hex(8).encode(), nx=True)
                    mark = await client.get(self._born)
            return str(run).encode(), mark if isinstance(mark, bytes) else b""

        async with self._probing:
            try:
                identity = await self._guarded(self._client, who, self._address.timeout_s)
            except Hindrance:
                self._lost()
                return
            # Looked at only now: while this was on its way another call may have found that the server is away.
            was_up, before = self.up, self._identity
            self.up, self.up_at, self._identity = True, monotonic(), identity
        if before is not None and (not was_up or before != identity):
            if not was_up:
                logger.info("store %s can be reached again", self._address.shown)
            self._on_return()
        elif before is None and self._troubles.lines():
            logger.info("store %s can be reached now", self._address.shown)
            self._on_return()

    def _lost(self) -> None:
        self.up = False
        self._away.set()

    def _require_up(self) -> None:
        if not self.up or self._closed:
            raise Hindrance("unreachable", "the server cannot be reached").again()

    # -- one call ----------------------------------------------------------------------------------------------------

    async def _finished(self, work: Coroutine[Any, Any, T], *, about: str = "") -> T:
        """Have it done to the end, whoever stops waiting for it."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        if about:
            self._latest[about] = task
            task.add_done_callback(partial(self._forget, about))
        return await asyncio.shield(task)

    def _forget(self, about: str, task: asyncio.Task[Any]) -> None:
        if self._latest.get(about) is task:
            del self._latest[about]

    async def _behind(self, before: asyncio.Task[Any] | None, call: Callable[[Redis], Awaitable[T]]) -> T:
        """Make it when the one before is over; if that has found the server gone, it costs no more time."""
        if before is not None:
            await asyncio.wait([before])
            if not self.up:
                raise Hindrance("unreachable", "the server cannot be reached").again()
        return await self._guarded(self._client, call, self._address.timeout_s)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # so that one of which nobody hears any more is not complained of

    async def _guarded(self, client: Redis, call: Callable[[Redis], Awaitable[T]], timeout_s: float) -> T:
        for number in range(_ATTEMPTS):
            began = monotonic()
            try:
                return await self._attempt(client, call, timeout_s)
            except Hindrance as hindrance:
                late = monotonic() - began > timeout_s + STOOD_STILL_S
                if late and hindrance.kind == "unreachable" and number < _ATTEMPTS - 1:
                    continue  # this process stood still, and nobody was there to hear the answer
                if hindrance.kind in ("unreachable", "refused"):
                    self._lost()
                if hindrance.kind not in ("full", "read_only"):
                    self.hindrance = hindrance.again()
                self._troubles.note(hindrance.kind, f"{hindrance.reason}; {hindrance.remedy}")
                raise
        raise AssertionError("unreachable")

    async def _attempt(self, client: Redis, call: Callable[[Redis], Awaitable[T]], timeout_s: float) -> T:
        from redis.exceptions import RedisError

        self.calls += 1
        try:
            async with asyncio.timeout(timeout_s):
                answer = await call(client)
        except (RedisError, OSError, *_NONSENSE) as error:
            raise hindrance_of(error, timeout_s, self._address) from None
        self.up_at = monotonic()
        return answer
