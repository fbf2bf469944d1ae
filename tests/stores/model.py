"""What a store is, in two dictionaries, and the comparison with one that does anything in any order."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from algosearch.records import Key, Record
from algosearch.stores import Claim, Committed, Miss
from tests.stores.homes import EXPIRY_S, Home, read, scanned
from tests.stores.nouns import some_key, some_record

_STEPS: Final = ("get", "commit", "claim", "renew", "release", "delete", "wait", "scan")


async def compare_with_model(home: Home, data: st.DataObject) -> None:
    """Two handles do anything in any order; two dictionaries say what must come of it."""
    records: dict[str, Record] = {}
    leases: dict[str, tuple[Claim, float]] = {}
    async with home.opened() as first, home.opened() as second:
        for _ in range(data.draw(st.integers(1, 25), label="steps")):
            store = data.draw(st.sampled_from([first, second]))
            key = some_key(data.draw(st.integers(0, 2), label="key"))
            digest = key.digest
            owner = data.draw(st.sampled_from("ab"), label="owner")
            held, until_s = leases.get(digest, (None, 0.0))
            in_force = held is not None and home.clock.now_s < until_s
            stored = records.get(digest)
            match data.draw(st.sampled_from(_STEPS), label="step"):
                case "get":
                    assert await read(store, key) == (stored or Miss("absent", "not in the store"))
                case "commit":
                    record = some_record(
                        data.draw(st.just(_number(key))),
                        searches=data.draw(st.integers(1, 3), label="searches"),
                        generation=data.draw(st.integers(0, 1), label="generation"),
                        seed=data.draw(st.integers(0, 3), label="seed"),
                    )
                    after = data.draw(st.integers(0, 2), label="after")
                    wins = (
                        stored is None
                        or record.generation > stored.generation
                        or (record.generation == stored.generation and after == stored.revision)
                    )
                    assert await store.commit(record, after=after) == Committed(record if wins else stored, wins)  # type: ignore[arg-type]
                    if wins:
                        records[digest] = record
                        if held is not None:
                            leases[digest] = (Claim(digest=digest, owner=held.owner, lapses=-1), until_s)
                case "claim":
                    claim = await store.claim(digest, owner, expiry_s=EXPIRY_S)
                    if held is not None and in_force and held.owner != owner:
                        assert claim.owner == held.owner
                    else:
                        lapsed = held is not None and held.lapses >= 0 and held.owner != owner
                        before = max(0, held.lapses) if held is not None else 0
                        assert claim == Claim(digest=digest, owner=owner, lapses=before + lapsed)
                        leases[digest] = (claim, home.clock.now_s + EXPIRY_S)
                case "renew":
                    mine = held is not None and in_force and held.owner == owner
                    assert await store.renew(Claim(digest=digest, owner=owner), expiry_s=EXPIRY_S) == mine
                    if mine and held is not None:
                        leases[digest] = (held, home.clock.now_s + EXPIRY_S)
                case "release":
                    await store.release(Claim(digest=digest, owner=owner))
                    if held is not None and held.owner == owner:
                        del leases[digest]
                case "delete":
                    assert await store.delete([digest]) == (stored is not None)
                    records.pop(digest, None)
                case "wait":
                    home.clock.now_s += data.draw(st.sampled_from([1.0, 4.0, EXPIRY_S + 1.0]), label="seconds")
                case "scan":
                    assert await scanned(store) == sorted(records.items())
        statistics = await first.statistics()
        assert (statistics.records, statistics.claims) == (len(records), len(leases))
        assert statistics.claims_in_force == sum(until > home.clock.now_s for _, until in leases.values())


def _number(key: Key) -> int:
    return next(n for n in range(3) if some_key(n) == key)
