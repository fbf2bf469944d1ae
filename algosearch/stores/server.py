"""`ServerStore`: records and claims on a Redis or Valkey server, shared by the processes of many hosts.

Everything happens on the loop that opened it, in one trip a call; what has to be decided in one step is a script
(`algosearch.stores.scripts`), by the server's clock. Whatever the server does, a call costs at most the address's
`timeout_s`, and nothing while it is away (`algosearch.stores.link`).

Keys on the server, all under `PREFIX:vFORMAT:`, so that formats do not meet: `record:DIGEST` (a tag and the record's
bytes), `index` (the digests, in order), `claims` (a lease for each digest), `news` (what was written, for who waits),
`born` (a mark by which an emptied server is known). A record's digest tells libraries and kinds of device apart.

Rejected: publish and subscribe (10 µs of the server for each subscriber and commit, and what is missed is missed); a
counter that everybody polls (16,000 ranks that wait would ask it a million times a second). A stream is waited for
without asking, and tells afterwards what was missed.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from algosearch.errors import StoreUnusable, UndecodableRecord
from algosearch.forks import renew_in_children
from algosearch.records import Key, Record
from algosearch.stores import rules, scripts
from algosearch.stores.address import ServerAddress
from algosearch.stores.base import Claim, Committed, Miss, StoreStatistics
from algosearch.stores.layout import Names, as_bytes, record_in, tag_of
from algosearch.stores.news import NEWS_S, News
from algosearch.stores.scripts import TAG_BYTES
from algosearch.stores.trouble import Hindrance, Troubles

if TYPE_CHECKING:
    from algosearch.stores.link import Link

Client = Any
"""A `redis.asyncio.Redis`; the package's own types say that each answer is a text or bytes, and may be awaited."""

CHUNK: Final = 256
"""Records a trip, so that no reply holds the server up for long."""
PAGE: Final = 64
"""Records a step of a scan."""
GRACE_S: Final = 2.0
"""So long after it was last heard, a server that is away is taken for one that is restarted: who was seen to hold a
claim holds it still, instead of everybody searching everything at once."""
_MOST_SWAPS: Final = 16
"""Attempts to commit against others who do the same."""

_GONE: Final = "the store is not open"


class ServerStore:
    """A store on a server. Made closed; it touches nothing before `open`.

    Args:
        url: as `ServerAddress` reads it.
        clock: seconds, for the expiry of claims; left out, the server's own, by which all hosts agree.
        news_s: as `NEWS_S`.
        retry_s: how often a server that is away is tried, on average.
        pulse_s: how often a server that is there is asked whether it is still the same, on average.

    Raises:
        StoreUnusable: the URL is none.
    """

    lasting = True
    shared = True

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] | None = None,
        news_s: float = NEWS_S,
        retry_s: float = 1.0,
        pulse_s: float = 5.0,
    ) -> None:
        self.address = ServerAddress.parse(url)
        self.location = self.address.shown
        self.on_return: Callable[[], None] = _nobody_asked
        """Called on the loop when the server is back, or is another one: what was agreed may have to be agreed anew."""
        self.on_pulse: Callable[[], None] = _nobody_asked
        """Called on the loop every few seconds while the server is there. Set before `open`."""
        self._clock = clock
        self._news_s = news_s
        self._pace = {"retry_s": retry_s, "pulse_s": pulse_s}
        self._writer = secrets.token_hex(6)
        self._names = Names(self.address.prefix)
        self._troubles = Troubles(self.location)
        self._reset()
        renew_in_children(self)

    def _reset(self) -> None:
        self._link: Link | None = None
        self._writable = True
        self._news = News(self._names.news, self._writer, news_s=self._news_s)
        self._holders: dict[str, Claim] = {}
        """As they were last seen, of those that were last asked for."""

    def renew_after_fork(self) -> None:
        """The child's copy is closed; the connections are the parent's, and are not touched."""
        if self._link is not None:
            _LEFT_BEHIND.append(self._link)
        self._writer = secrets.token_hex(6)
        self._reset()

    def __repr__(self) -> str:
        return f"<ServerStore {self.location} {'closed' if self._link is None else 'open'}>"

    @property
    def reachable(self) -> bool:
        """Whether the server answered when it was last asked."""
        return self._link is not None and self._link.up

    @property
    def writable(self) -> bool:
        """Whether the last commit was kept, or failed only because the server was away."""
        return self._writable

    @property
    def calls(self) -> int:
        """How many trips this handle has made since it was opened."""
        return 0 if self._link is None else self._link.calls

    def require_read(self) -> None:
        """For who reads all that is there, and must not take a part for the whole.

        Raises:
            StoreUnusable: something that was asked since `open` was not answered.
        """
        hindrance = None if self._link is None else self._link.hindrance
        if hindrance is not None:
            raise StoreUnusable(self.location, hindrance.reason, hindrance.remedy)

    async def open(self) -> None:
        """As `Store.open`. A server that is away is no hindrance: it costs one warning, and is tried again.

        Raises:
            StoreUnusable: the redis package is not installed.
        """
        if self._link is not None:
            return
        require_client(self.location)
        from algosearch.stores.link import Link

        link = self._link = Link(
            self.address,
            born=self._names.born,
            troubles=self._troubles,
            on_return=self._returned,
            on_pulse=self.on_pulse,
            retry_s=self._pace["retry_s"],
            pulse_s=self._pace["pulse_s"],
        )
        try:
            await link.open()
            await self._news.begin(link)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """As `Store.aclose`."""
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        """As `Store.get_many`; some hundreds of keys a trip."""
        answers: list[Record | Miss] = []
        for start in range(0, len(keys), CHUNK):
            chunk = keys[start : start + CHUNK]
            names = [self._names.record(key.digest) for key in chunk]
            try:
                values = await self._do(lambda client, names=names: client.mget(names))  # type: ignore[misc]
            except Hindrance as hindrance:
                answers += [Miss("unreadable", hindrance.reason)] * len(chunk)
            else:
                answers += [self._decoded(value, key.digest, key) for key, value in zip(chunk, values, strict=True)]
        return answers

    async def tags(self, digests: Sequence[str]) -> list[bytes] | None:
        """The tag of each record on the server, in order, empty where there is none; None if they cannot be read. A
        hundredth of what reading the records costs."""
        tags: list[bytes] = []
        try:
            for start in range(0, len(digests), CHUNK):
                names = [self._names.record(digest) for digest in digests[start : start + CHUNK]]
                tags += await self._script(scripts.TAGS, names)
        except Hindrance:
            return None
        return tags

    async def commit(self, record: Record, *, after: int) -> Committed:
        """As `Store.commit`: one trip, and one more for each record that was there."""
        raw = self._troubles.storable(record)
        if raw is None:
            return Committed(record, won=True, kept=False)
        digest, tag = record.key.digest, tag_of(raw)
        names = [self._names.record(digest), self._names.claims, self._names.news, self._names.index]
        expected = b""
        try:
            for _ in range(_MOST_SWAPS):
                value = await self._script(scripts.COMMIT, names, as_bytes(digest), tag + raw, expected, self._writer)
                self._writable = True
                if value == 1:
                    return Committed(record, won=True)
                stored = self._decoded(value, digest, record.key) if value else None
                settled = rules.settle(stored if isinstance(stored, Record) else None, record, after=after)
                if not settled.won:
                    return settled
                expected = value[:TAG_BYTES]
        except Hindrance as hindrance:
            self._writable = self._writable and hindrance.kind in ("unreachable", "refused")
        return Committed(record, won=True, kept=False)

    async def claim(
        self, digest: str, owner: str, *, expiry_s: float, trying: str = "", reading: Key | None = None
    ) -> Claim:
        """As `Store.claim`, by the server's clock."""
        facts = (as_bytes(digest), as_bytes(owner), repr(expiry_s), as_bytes(trying), self._now())
        names = [self._names.claims, *([] if reading is None else [self._names.record(digest)])]
        with suppress(Hindrance):
            reply = await self._script(scripts.CLAIM, names, *facts, about=digest)
            raw, value = reply if isinstance(reply, list) and len(reply) == 2 else (None, None)
            lease = rules.decode_lease(raw)
            if lease is not None:
                claim = lease.claim(digest)
                if reading is None or claim.owner != owner:
                    return claim
                return replace(claim, found=self._decoded(value, digest, reading))
        return Claim(digest=digest, owner=owner, trying=trying)

    async def renew(self, claim: Claim, *, expiry_s: float) -> bool:
        """As `Store.renew`."""
        facts = (as_bytes(claim.digest), as_bytes(claim.owner), repr(expiry_s), as_bytes(claim.trying), self._now())
        try:
            return bool(await self._script(scripts.RENEW, [self._names.claims], *facts, about=claim.digest))
        except Hindrance:
            return True

    async def release(self, claim: Claim) -> bool:
        """As `Store.release`."""
        names = [self._names.claims, self._names.news]
        facts = (as_bytes(claim.digest), as_bytes(claim.owner), self._writer)
        try:
            await self._script(scripts.RELEASE, names, *facts, about=claim.digest)
        except Hindrance:
            return False
        return True

    async def holders(self, digests: Sequence[str]) -> list[Claim | None]:
        """As `Store.holders`. A server that was heard a moment ago, and is away, is taken to say what it last said."""
        if not digests:
            return []

        async def look(client: Client) -> Any:
            pipe = client.pipeline(transaction=False)
            pipe.time()
            pipe.hmget(self._names.claims, [as_bytes(digest) for digest in digests])
            return await pipe.execute()

        try:
            (seconds, microseconds), values = await self._do(look)
        except Hindrance:
            link = self._link
            in_grace = link is not None and monotonic() - link.up_at < GRACE_S
            return [self._holders.get(digest) if in_grace else None for digest in digests]
        now_s = seconds + microseconds / 1e6 if self._clock is None else self._clock()
        leases = [rules.decode_lease(value) for value in values]
        held = [
            lease.claim(digest) if lease is not None and lease.in_force(now_s) else None
            for digest, lease in zip(digests, leases, strict=True)
        ]
        self._holders = {claim.digest: claim for claim in held if claim is not None}
        return held

    async def changes(self) -> bool | frozenset[str]:
        """As `Store.changes`, of the news."""
        return False if self._link is None else await self._news.heard(self._link)

    async def scan(self) -> AsyncIterator[tuple[str, Record | Miss]]:
        """As `Store.scan`, a page of the index a step."""
        after = b"-"
        while True:
            try:
                page, values = await self._page(after)
            except Hindrance:
                return
            for name, value in zip(page, values, strict=True):
                if value is not None:
                    digest = name.decode("ascii", "replace")
                    yield digest, self._decoded(value, digest, None)
            if len(page) < PAGE:
                return
            after = b"(" + page[-1]

    async def delete(self, digests: Sequence[str]) -> int:
        """As `Store.delete`."""
        deleted = 0
        with suppress(Hindrance):
            for start in range(0, len(digests), CHUNK):
                chunk = [as_bytes(digest) for digest in digests[start : start + CHUNK]]
                names = [self._names.index, self._names.news, *map(self._names.record_of, chunk)]
                deleted += await self._script(scripts.DELETE, names, self._writer, *chunk)
        return deleted

    async def statistics(self) -> StoreStatistics:
        """As `Store.statistics`. Reads the index and every claim: for a person who asks, not to be polled."""
        records, size_bytes, now_s = 0, 0, 0.0
        leases: list[rules.Lease | None] = []
        after, more = b"-", True
        with suppress(Hindrance):
            while more:
                page = await self._indexed(after, CHUNK)
                lengths = await self._script(scripts.LENGTHS, list(map(self._names.record_of, page))) if page else []
                records += sum(length > 0 for length in lengths)
                size_bytes += sum(max(0, length - TAG_BYTES) for length in lengths)
                more = len(page) == CHUNK
                after = b"(" + page[-1] if page else after
            seconds, microseconds = await self._do(lambda client: client.time())
            now_s = seconds + microseconds / 1e6 if self._clock is None else self._clock()
            leases = list(map(rules.decode_lease, await self._do(lambda client: client.hvals(self._names.claims))))
        trouble = self._troubles.lines()
        return StoreStatistics(
            location=self.location,
            records=records,
            bytes=size_bytes,
            writable=self.reachable and self._writable,
            claims=len(leases),
            claims_in_force=sum(lease is not None and lease.in_force(now_s) for lease in leases),
            trouble=trouble if self._link is not None else (*trouble, _GONE),
        )

    async def evicts(self) -> str | None:
        """By which policy the server throws records and claims away when its memory is full; None if by none."""
        with suppress(Hindrance):
            facts = await self._do(lambda client: client.info("memory"))
            policy = str(facts.get("maxmemory_policy", ""))
            return policy if facts.get("maxmemory") and policy.startswith("allkeys") else None
        return None

    # -- trips -------------------------------------------------------------------------------------------------------

    async def _do(self, call: Callable[[Client], Awaitable[Any]]) -> Any:
        if self._link is None:
            raise Hindrance("gone", _GONE)
        return await self._link.do(call)

    async def _script(self, text: str, keys: Sequence[object], *facts: str | bytes, about: str = "") -> Any:
        if self._link is None:
            raise Hindrance("gone", _GONE)
        return await self._link.script(text, keys, *facts, about=about)

    async def _page(self, after: bytes) -> tuple[list[bytes], list[bytes | None]]:
        page = await self._indexed(after, PAGE)
        names = list(map(self._names.record_of, page))
        return page, await self._do(lambda client: client.mget(names)) if page else []

    async def _indexed(self, low: bytes, count: int) -> list[bytes]:
        """So many digests from `low` on, as the server compares them."""
        page: list[bytes] = await self._do(lambda client: client.zrangebylex(self._names.index, low, "+", 0, count))
        return page

    def _returned(self) -> None:
        self._news.missed = True
        self.on_return()

    def _now(self) -> str:
        return "" if self._clock is None else repr(self._clock())

    def _decoded(self, value: bytes | None, digest: str, key: Key | None) -> Record | Miss:
        if value is None:
            return Miss("absent", "not in the store")
        try:
            return record_in(value, digest, key)
        except UndecodableRecord as error:
            self._troubles.note("undecodable", f"{digest}: {error}")
            return Miss("undecodable", str(error))


def require_client(location: str) -> None:
    """Raises StoreUnusable if there is nothing to speak to a server with."""
    if find_spec("redis") is None:
        raise StoreUnusable(location, "the redis package is not installed", "pip install 'algosearch[redis]'")


def _nobody_asked() -> None:
    pass


_LEFT_BEHIND: Final[list[Link]] = []
"""In a child: the links of its parent; kept, so that nothing of them is closed."""
