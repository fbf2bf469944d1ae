"""`Shelf`: the records and claims of one directory, blocking. It belongs to one thread; `DirectoryStore` is its door.

What a store does, as rows: a record under `record:` and its key's digest, a claim under `claim:`. How the file is held,
and what happens when it cannot be, is `Access`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from algosearch.errors import UndecodableRecord
from algosearch.records import Key, Record, wire
from algosearch.stores import rules
from algosearch.stores.access import Access
from algosearch.stores.base import Claim, Committed, Miss, StoreStatistics
from algosearch.stores.disk import TROUBLE, cause_of
from algosearch.stores.sqlite import SQLITE_ERRORS
from algosearch.stores.trouble import Troubles

Scanned = list[tuple[str, Record | Miss]]

RECORD: Final = "record:"
CLAIM: Final = "claim:"
CHUNK: Final = 100
"""Keys a statement. SQLite allows 999 parameters at least; beyond a hundred more of them save nothing."""
SCANNED: Final = 64
"""Records a step of a scan; between steps others get the thread, and no transaction is open."""

# What a row of ours looks like; of any other only the key is read. The length is asked of SQLite, so that an absurd
# value is not even loaded.
_VALUE: Final = (
    "CASE WHEN mode = 1 AND filename IS NULL AND typeof(value) = 'blob'"
    f" AND length(value) <= {wire.LONGEST_BYTES} THEN value END"
)
# Keys are text, and compared as bytes: what is of another type sorts outside, and ';' comes after ':'.
_RANGE: Final = "raw = 1 AND key >= '{0}:' AND key < '{0};'"
_RECORDS: Final = _RANGE.format("record")
_CLAIMS: Final = _RANGE.format("claim")


_ABSENT: Final = Miss("absent", "not in the store")


class Shelf:
    """Records and claims in one directory. Only `open` raises.

    Args:
        path: of the directory; it is made when the shelf is opened.
        clock: seconds, for the expiry of claims: the host's, so that its processes agree.
        retry_s: how long to leave alone what could not be written.
        troubles: where what goes wrong is noted.
        read_only: as `Access`.
    """

    def __init__(
        self, path: Path, *, clock: Callable[[], float], retry_s: float, troubles: Troubles, read_only: bool = False
    ) -> None:
        self._clock = clock
        self._troubles = troubles
        self._access = Access(path, retry_s=retry_s, troubles=troubles, genuine=_is_record, read_only=read_only)

    def open(self) -> None:
        """Open it for writing, or else for reading.

        Raises:
            Hindrance: not even that.
        """
        self._access.open()

    def close(self) -> None:
        """Let go. Harmless if it is not open."""
        self._access.close()

    def together(self, call: Callable[[], None]) -> bool:
        """Do what `call` does with this shelf in one transaction. False if nothing of it was done."""
        return self._access.together(call)

    # -- what a store does -------------------------------------------------------------------------------------------

    def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        """As `Store.get_many`."""
        found: dict[str, Record | Miss] = {}
        for start in range(0, len(keys), CHUNK):
            chunk = {RECORD + key.digest: key for key in keys[start : start + CHUNK]}
            try:
                found |= self._access.attempt(partial(self._records, chunk))
            except TROUBLE as error:
                found |= dict.fromkeys(chunk, Miss("unreadable", self._access.note(error)))
        return [found.get(RECORD + key.digest, _ABSENT) for key in keys]

    def commit(self, record: Record, after: int) -> Committed:
        """As `Store.commit`."""
        raw = self._troubles.storable(record)
        if raw is None:
            return Committed(record, won=True, kept=False)
        try:
            return self._access.write(lambda: self._commit(record, raw, after))
        except TROUBLE as error:
            self._access.note(error)
        (stored,) = self.get_many([record.key])
        settled = rules.settle(stored if isinstance(stored, Record) else None, record, after=after)
        return replace(settled, kept=not settled.won)

    def claim(self, digest: str, owner: str, expiry_s: float, trying: str, reading: Key | None = None) -> Claim:
        """As `Store.claim`."""

        def contest(held: rules.Lease | None) -> rules.Lease:
            return rules.contest(held, owner, expiry_s=expiry_s, trying=trying, now_s=self._clock())

        def take() -> Claim:
            names = [CLAIM + digest] if reading is None else [CLAIM + digest, RECORD + digest]
            with self._access.transaction() as cache:
                rows = self._rows(names)
                held = rules.decode_lease(rows.get(CLAIM + digest))
                lease = contest(held)
                if lease is not held:
                    cache.set(CLAIM + digest, rules.encode_lease(lease), retry=False)
            if reading is None or lease.owner != owner:
                return lease.claim(digest)
            name = RECORD + digest
            found = self._decoded(rows[name], digest, reading) if name in rows else _ABSENT
            return replace(lease.claim(digest), found=found)

        try:
            return self._access.write(take)
        except TROUBLE as error:
            self._access.note(error)
        return contest(self._lease_if_readable(digest)).claim(digest)

    def renew(self, claim: Claim, expiry_s: float) -> bool:
        """As `Store.renew`."""

        def extend() -> bool:
            with self._access.transaction() as cache:
                lease = rules.extend(self._lease(claim.digest), claim, expiry_s=expiry_s, now_s=self._clock())
                if lease is not None:
                    cache.set(CLAIM + claim.digest, rules.encode_lease(lease), retry=False)
            return lease is not None

        try:
            return self._access.write(extend)
        except TROUBLE as error:
            self._access.note(error)
        held = self._lease_if_readable(claim.digest)
        return held is None or held.owner == claim.owner or not held.in_force(self._clock())

    def release(self, claim: Claim) -> bool:
        """As `Store.release`."""

        def give_back() -> None:
            with self._access.transaction() as cache:
                lease = self._lease(claim.digest)
                if lease is not None and lease.owner == claim.owner:
                    cache.delete(CLAIM + claim.digest, retry=False)

        try:
            self._access.write(give_back)
        except TROUBLE as error:
            self._access.note(error)
            return False
        return True

    def holders(self, digests: Sequence[str]) -> list[Claim | None]:
        """As `Store.holders`."""
        names = [CLAIM + digest for digest in digests]
        rows: dict[str, bytes | None] = {}
        try:
            for start in range(0, len(names), CHUNK):
                rows |= self._access.attempt(partial(self._rows, names[start : start + CHUNK]))
        except TROUBLE as error:
            self._access.note(error)
        now_s = self._clock()
        leases = [rules.decode_lease(rows.get(name)) for name in names]
        return [
            lease.claim(digest) if lease is not None and lease.in_force(now_s) else None
            for digest, lease in zip(digests, leases, strict=True)
        ]

    def changes(self) -> bool:
        """As `Store.changes`: SQLite tells a connection whether another one has committed."""
        try:
            return self._access.changed()
        except TROUBLE as error:
            self._access.note(error)
            return False

    def scan_after(self, last: bytes) -> tuple[Scanned, bytes | None]:
        """The next records after a key (b"" for the first), and the key to go on after; None at the end."""
        statement = (
            f"SELECT CAST(key AS BLOB), {_VALUE} FROM Cache"
            f" WHERE {_RECORDS} AND key > CAST(? AS TEXT) ORDER BY key LIMIT {SCANNED}"
        )
        try:
            rows = self._access.attempt(lambda: self._access.reader().execute(statement, (last,)).fetchall())
        except TROUBLE as error:
            self._access.note(error)
            rows = sorted((name.encode(), raw) for name, raw in self._salvaged(error).items() if name.encode() > last)
            return self._scanned(rows), None
        return self._scanned(rows), rows[-1][0] if len(rows) == SCANNED else None

    def _scanned(self, rows: Sequence[tuple[bytes, bytes | None]]) -> Scanned:
        scanned: Scanned = []
        for name, raw in rows:
            digest = name[len(RECORD) :].decode("ascii", "replace")
            scanned.append((digest, self._decoded(raw, digest, None)))
        return scanned

    def _salvaged(self, error: BaseException) -> dict[str, bytes | None]:
        """The records that can still be read, if it was damage that kept a statement about all of them from its end."""
        if cause_of(error).kind != "corrupt":
            return {}
        return {name: raw for name, raw in self._access.salvage().items() if name.startswith(RECORD)}

    def delete(self, digests: Sequence[str]) -> int:
        """As `Store.delete`."""
        names = [RECORD + digest for digest in digests]
        try:
            return self._access.write(lambda: self._delete(names))
        except TROUBLE as error:
            self._access.note(error)
            return 0

    def statistics(self) -> StoreStatistics:
        """As `Store.statistics`."""
        statement = (
            f"SELECT (SELECT count(*) FROM Cache WHERE {_RECORDS}),"
            f" (SELECT coalesce(sum(length(value)), 0) FROM Cache WHERE {_RECORDS})"
        )
        records, size_bytes = 0, 0
        claims: list[rules.Lease | None] = []
        try:
            ((records, size_bytes),) = self._access.attempt(lambda: self._access.reader().execute(statement).fetchall())
            claims = self._access.attempt(self._claims)
        except TROUBLE as error:
            self._access.note(error)
            salvaged = self._salvaged(error)
            records, size_bytes = (
                max(records, len(salvaged)),
                max(size_bytes, sum(len(raw or b"") for raw in salvaged.values())),
            )
        now_s = self._clock()
        return StoreStatistics(
            location=self._troubles.location,
            records=records,
            bytes=size_bytes,
            writable=self._access.writable,
            claims=len(claims),
            claims_in_force=sum(lease is not None and lease.in_force(now_s) for lease in claims),
            trouble=self._troubles.lines(),
        )

    # -- reading and writing rows ------------------------------------------------------------------------------------

    def _records(self, keys: Mapping[str, Key]) -> dict[str, Record | Miss]:
        """What lies in the rows of these names; nothing for a row that is not there. Each is decoded before the next is
        read: its bytes are in the processor's cache then, and need no memory beside those of one row."""
        return {name: self._decoded(raw, keys[name].digest, keys[name]) for name, raw in self._select(tuple(keys))}

    def _rows(self, names: Sequence[str]) -> dict[str, bytes | None]:
        """The values of rows by name; None for a row that is not one of ours, or that cannot be read."""
        return dict(self._select(names))

    def _select(self, names: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """The same, row by row. Of a damaged file that cannot be begun afresh, those that can be found in it: what was
        lost with its name is as if it had never been there."""
        marks = ",".join("?" * len(names))
        statement = f"SELECT key, {_VALUE} FROM Cache WHERE raw = 1 AND key IN ({marks})"
        try:
            yield from self._access.reader().execute(statement, names)
        except SQLITE_ERRORS as error:
            if cause_of(error).kind != "corrupt" or self._access.writable:
                raise
            self._access.note(error)
            salvaged = self._access.salvage()  # it cannot be begun afresh: what can be read of it has to do
            yield from ((name, salvaged[name]) for name in names if name in salvaged)

    def _decoded(self, raw: bytes | None, digest: str, key: Key | None) -> Record | Miss:
        try:
            if raw is None:
                raise UndecodableRecord("its row is damaged, or of a shape that no store writes")
            return wire.decode(raw, key=key) if key is not None else wire.decode(raw, digest=digest)
        except UndecodableRecord as error:
            self._troubles.note("undecodable", f"{digest}: {error}")
            return Miss("undecodable", str(error))

    def _commit(self, record: Record, raw: bytes, after: int) -> Committed:
        digest = record.key.digest
        with self._access.transaction() as cache:
            stored = self._records({RECORD + digest: record.key}).get(RECORD + digest)
            settled = rules.settle(stored if isinstance(stored, Record) else None, record, after=after)
            if settled.won:
                cache.set(RECORD + digest, raw, retry=False)
                lease = self._lease(digest)
                if lease is not None and not lease.settled:
                    cache.set(CLAIM + digest, rules.encode_lease(replace(lease, settled=True)), retry=False)
        return settled

    def _delete(self, names: Sequence[str]) -> int:
        # Not diskcache's `delete`, which passes over what it takes for expired.
        deleted = 0
        with self._access.transaction() as cache:
            for start in range(0, len(names), CHUNK):
                chunk = names[start : start + CHUNK]
                marks = ",".join("?" * len(chunk))
                statement = f"DELETE FROM Cache WHERE raw = 1 AND key IN ({marks})"
                deleted += cache.connection.execute(statement, chunk).rowcount
        return deleted

    def _claims(self) -> list[rules.Lease | None]:
        rows = self._access.reader().execute(f"SELECT {_VALUE} FROM Cache WHERE {_CLAIMS}").fetchall()
        return [rules.decode_lease(raw) for (raw,) in rows]

    def _lease(self, digest: str) -> rules.Lease | None:
        return rules.decode_lease(self._rows([CLAIM + digest]).get(CLAIM + digest))

    def _lease_if_readable(self, digest: str) -> rules.Lease | None:
        try:
            return self._access.attempt(lambda: self._lease(digest))
        except TROUBLE:
            return None


def _is_record(name: str, raw: bytes) -> bool:
    """Whether a row of a damaged file is to be carried into the new one. Claims are not: they lapse anyway."""
    if not name.startswith(RECORD):
        return False
    try:
        wire.decode(raw, digest=name[len(RECORD) :])
    except UndecodableRecord:
        return False
    return True
