"""The wire format: what is written comes back, and whatever else is read is `UndecodableRecord`."""

from __future__ import annotations

import math
import struct
import tracemalloc
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from algosearch import UndecodableRecord
from algosearch.ops import ConvOp
from algosearch.records import Environment, Failure, Key, Provenance, Record, Search, Trial, Trials, packed
from algosearch.records.wire import LONGEST_BYTES, WIRE_VERSION, decode, encode
from tests.strategies import keys, records

KEY: Final = Key.of(ConvOp(input_shape=(1, 2, 9, 9), filter_shape=(3, 2, 3, 3)), Environment(backend="b", device="d"))
TRIALS: Final = (
    Trial(
        algorithm="b/s:fast",
        rank=0,
        workspace_bytes=2**33,
        notes=("tensor_core",),
        stage="final",
        time_us=12.5,
        error_us=0.25,
        samples=packed((12.25, 12.75)),
        build_us=900.0,
        timing="gated,warm",
    ),
    Trial(
        algorithm="b/s:dead", rank=1, workspace_bytes=0, failure=Failure("out_of_memory", "no", (("free_bytes", "1"),))
    ),
)
RECORD: Final = Record(
    key=KEY,
    searches=(
        Search(
            mode="race",
            complete=True,
            trials=Trials.of(TRIALS),
            provenance=Provenance(version="0.1", found_at_s=1_700_000_000, seconds=0.5),
        ),
    ),
)
RAW: Final = encode(RECORD)


def refused(raw: bytes, **how: Any) -> str:
    """The reason for which `raw` is not read; fails on any other error, and on none."""
    with pytest.raises(UndecodableRecord) as caught:
        decode(raw, **how)
    assert len(caught.value.reason) < 2000
    assert caught.value.reason.isprintable()
    return caught.value.reason


def changed(*path: int | str, to: Any) -> bytes:
    """RECORD with one item of its decoded form replaced; a last step of "+" appends."""
    items: Any = msgspec.msgpack.decode(RAW)
    place = items
    for step in path[:-1]:
        place = place[step]
    if path[-1] == "+":
        place.append(to)
    else:
        place[path[-1]] = to
    return msgspec.msgpack.encode(items)


@given(records())
def test_round_trip(record: Record) -> None:
    raw = encode(record)
    assert decode(raw) == record
    assert decode(raw, digest=record.key.digest) == record
    assert decode(raw, key=record.key) == record
    assert encode(decode(raw)) == raw


def test_cut_short_at_every_byte() -> None:
    for end in range(len(RAW)):
        refused(RAW[:end])
        refused(RAW[:end], key=KEY)


def test_something_behind_it() -> None:
    for tail in (b"\x00", b"\xc1", RAW):
        refused(RAW + tail)


@settings(max_examples=300)
@given(st.lists(st.integers(0, len(RAW) * 8 - 1), min_size=1, max_size=4, unique=True), st.booleans())
def test_flipped_bits(bits: list[int], known: bool) -> None:
    """What still decodes is a record of the same key; a flip inside a number cannot be told from another number."""
    flipped = bytearray(RAW)
    for bit in bits:
        flipped[bit // 8] ^= 1 << bit % 8
    try:
        record = decode(bytes(flipped), key=KEY) if known else decode(bytes(flipped), digest=KEY.digest)
    except UndecodableRecord:
        return
    assert record.key == KEY
    assert decode(encode(record)) == record


@given(st.binary(max_size=64))
def test_noise(raw: bytes) -> None:
    refused(raw)


_JSON_LIKE: Final = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=12,
)


@given(st.lists(_JSON_LIKE, max_size=4))
def test_other_messages(items: list[Any]) -> None:
    refused(msgspec.msgpack.encode(items))
    refused(msgspec.msgpack.encode([WIRE_VERSION, KEY.text, 0, items]))
    refused(msgspec.msgpack.encode([WIRE_VERSION, *items]))


class TestVersions:
    @pytest.mark.parametrize("version", [3, 127, 128, 300, 70_000, 2**40, 2**64 - 1])
    def test_newer(self, version: int) -> None:
        """Named as newer even if all the rest has another shape."""
        expected = f"written in format {version} by a newer algosearch; this one reads 2"
        assert refused(changed(0, to=version)) == expected
        for rest in ([], [{"a": [1]}], [b"\x00" * 70_000], list(range(20)), [0] * 70_000):
            assert refused(msgspec.msgpack.encode([version, *rest]), key=KEY) == expected

    @pytest.mark.parametrize("version", [1, 0, -1, -200])
    def test_older(self, version: int) -> None:
        if version >= -32:
            assert (
                refused(changed(0, to=version)) == f"written in the unknown format {version}; this algosearch reads 2"
            )
        refused(changed(0, to=version))

    @pytest.mark.parametrize("version", [None, True, 3.0, "3", b"3", [], [3], {"a": 3}])
    def test_no_number(self, version: Any) -> None:
        assert refused(changed(0, to=version)).startswith("not a record: ")


class TestKeys:
    @given(keys())
    def test_of_another_key(self, other: Key) -> None:
        if other != KEY:
            assert "of another key" in refused(RAW, key=other)
            assert "of another key" in refused(RAW, digest=other.digest)

    def test_a_key_of_another_schema(self) -> None:
        text = KEY.text.replace('"schema":1', '"schema":2')
        assert refused(changed(1, to=text)) == "its key is of schema 2; this algosearch reads 1"
        assert "of another key" in refused(changed(1, to=text), key=KEY)

    @pytest.mark.parametrize("text", ["", "{}", "[" * 5000, KEY.text + " "])
    def test_text_that_is_no_key(self, text: str) -> None:
        assert refused(changed(1, to=text)).startswith("its key ")


COLUMNS: Final = {name: (3, 0, 2, place) for place, name in enumerate(Trials.__struct_fields__)}
"""Where the columns of the first search are."""
FAILURE: Final = (*COLUMNS["failures"], 0)
PROVENANCE: Final = (3, 0, 3)


def floats(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


NO_DURATIONS: Final = (math.nan, -math.nan, math.inf, -math.inf, -1.0, -5e-324, 1e15, 1e300)


@pytest.mark.parametrize("number", NO_DURATIONS)
def test_what_is_no_duration(number: float) -> None:
    assert "not a record: Expected `float`" in refused(changed(*PROVENANCE, 2, to=number))
    assert refused(changed(*COLUMNS["errors"], to=floats(number, 0.0))) == "an error out of range"
    assert refused(changed(*COLUMNS["errors"], to=floats(0.25, number))) == "an error out of range"
    if number != -1.0:  # which stands for none
        assert refused(changed(*COLUMNS["times"], to=floats(number, -1.0))) == "a time out of range"
        assert refused(changed(*COLUMNS["builds"], to=floats(number, -1.0))) == "a build out of range"


@pytest.mark.parametrize("number", [0.0, 5e-324, 1e-300, 12.0, 2.0**49, math.nextafter(1e15, 0.0)])
def test_whatever_is_a_duration_is_read(number: float) -> None:
    raw = changed(*COLUMNS["errors"], to=floats(number, 0.0))
    assert decode(raw).searches[0].trials[0].error_us == number
    raw = changed(*COLUMNS["builds"], to=floats(number, number))
    assert [trial.build_us for trial in decode(raw).searches[0].trials] == [number, number]
    raw = changed(*COLUMNS["times"], to=floats(number, -1.0))
    if number:
        assert decode(raw).searches[0].trials[0].time_us == number
    else:
        assert refused(raw) == "a time out of range"  # nothing takes no time


@pytest.mark.parametrize("number", [math.nan, math.inf, -0.5, 1e15])
def test_numbers_that_no_reader_takes_are_kept_in_memory_only(number: float) -> None:
    for field in ("time_us", "error_us", "build_us"):
        trials = Trials.of((replace(TRIALS[0], **{field: number}),))
        assert "out of range" in refused(
            encode(replace(RECORD, searches=(replace(RECORD.searches[0], trials=trials),)))
        )


@pytest.mark.parametrize("field", ["workspace_bytes", "reserve_bytes"])
@pytest.mark.parametrize("size", [2**63 - 1, 2**63, 2**64, 2**300])
def test_the_most_memory(field: str, size: int) -> None:
    """What no device has is no more than the most that can be written."""
    trials = Trials.of((replace(TRIALS[0], **{field: size}),))
    read = decode(encode(replace(RECORD, searches=(replace(RECORD.searches[0], trials=trials),))))
    assert [getattr(trial, field) for trial in read.searches[0].trials] == [2**63 - 1]


def test_samples_cut_short() -> None:
    for samples in (b"", bytes(7), bytes(9), bytes(12)):
        assert refused(changed(*COLUMNS["samples"], to=samples)) == "samples too many, or cut short"


def test_more_samples_than_are_kept() -> None:
    for count in (97, 255):
        raw: Any = msgspec.msgpack.decode(changed(*COLUMNS["sample_counts"], to=bytes([count, 0])))
        raw[3][0][2][COLUMNS["samples"][-1]] = bytes(4 * count)
        assert refused(msgspec.msgpack.encode(raw)) == "samples too many, or cut short"


def test_samples_that_are_no_times_count_for_nothing() -> None:
    samples = struct.pack("<6f", math.nan, 1.5, math.inf, -1.0, 0.0, 2.5)
    raw: Any = msgspec.msgpack.decode(changed(*COLUMNS["sample_counts"], to=bytes([4, 2])))
    raw[3][0][2][COLUMNS["samples"][-1]] = samples
    first, second = decode(msgspec.msgpack.encode(raw)).searches[0].trials
    assert (first.samples_us, second.samples_us) == ((1.5,), (2.5,))


@given(st.lists(st.floats(0.5, 2.0**30, width=32), max_size=200))
def test_the_last_samples_are_kept_as_they_are(samples_us: list[float]) -> None:
    trial = Trial(algorithm="cpu/numpy:direct", rank=0, workspace_bytes=0, samples=packed(samples_us))
    assert trial.samples_us == tuple(samples_us[-96:])
    assert Trials.of((trial, replace(trial, algorithm="cpu/numpy:fft")))[0] == trial


@pytest.mark.parametrize("path", [(2,), (*COLUMNS["ranks"], 0), (*FAILURE, 0)])
@pytest.mark.parametrize("number", [-1, 2**63, 2**64 - 1, 1.0, True, "1", None])
def test_numbers_that_count_nothing(path: tuple[int, ...], number: Any) -> None:
    assert "not a record: Expected `int`" in refused(changed(*path, to=number))


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ((3,), [], "length >= 1"),
        ((3, 0, 0), "guess", "Invalid enum value"),
        ((3, 0, 1), 1, "Expected `bool`"),
        (COLUMNS["stages"], b"\x03\x04", "an unknown stage"),
        (COLUMNS["stages"], "ab", "Expected `bytes`"),
        (COLUMNS["times"], floats(-1.0, -1.0), "b/s:fast: final without a time"),
        (COLUMNS["times"], floats(12.5, 3.0), "b/s:dead: listed with a time"),
        (COLUMNS["workspaces"], struct.pack("<2q", 0, -1), "a workspace of less than nothing"),
        ((*COLUMNS["algorithms"], 0), "b/s:dead", "an algorithm with two trials in one search"),
        ((*COLUMNS["algorithms"], 0), "b/s:Fast", "algorithm.name = 'b/s:Fast'"),
        ((*COLUMNS["algorithms"], 0), "b/s:\x1b[31mfast", "algorithm.name = "),
        ((*COLUMNS["algorithms"], 0), "x" * 100_000, "algorithm.name = "),
        (COLUMNS["ranks"], [1, 0], "trials out of order"),
        (COLUMNS["ranks"], [0, 0], "trials out of order"),  # by name: dead before fast
        (COLUMNS["note_sets"], [["tf32", 1], []], "Expected `str`"),
        (COLUMNS["note_sets"], [["n" * 201], []], "length <= 200"),
        (COLUMNS["note_sets"], [["n"] * 101, []], "length <= 100"),
        (COLUMNS["note_sets"], [], "not among those listed"),
        (COLUMNS["notes"], b"\x00\x02", "not among those listed"),
        (COLUMNS["notes"], [0, 2], "not among those listed"),
        (COLUMNS["notes"], [0, -1], "Expected `int` >= 0"),
        (COLUMNS["notes"], "ab", "Expected `bytes | array`"),
        (COLUMNS["timings"], [], "not among those listed"),
        (COLUMNS["timing"], b"\x02\x00", "not among those listed"),
        (COLUMNS["timing"], [2**63, 0], "Expected `int` <= 9223372036854775807"),
        ((*FAILURE, 1, 0), "sulked", "Invalid enum value"),
        ((*FAILURE, 1, 2, 0), ["free_bytes"], "length 2"),
        ((*FAILURE, 0), 2, "failures of no trials"),
        (COLUMNS["failures"], [[1, ["crashed", ""]], [1, ["crashed", ""]]], "or out of order"),
        (COLUMNS["failures"], [[1, ["crashed", ""]], [0, ["crashed", ""]]], "or out of order"),
        (COLUMNS["reserves"], [[2, 8]], "reserves of no trials"),
        (COLUMNS["reserves"], [[1, 8], [0, 8]], "or out of order"),
        (COLUMNS["reserves"], [[0, -1]], ">= 0"),
        # What this version does not know is not skipped, wherever it stands.
        (("+",), 0, "at most length 4"),
        ((3, 0, "+"), 0, "at most length 4"),
        ((3, 0, 2, "+"), 0, "at most length 15"),
        ((*FAILURE, "+"), 0, "length 2"),
        ((*FAILURE, 1, "+"), 0, "at most length 3"),
        ((*PROVENANCE, "+"), 0, "at most length 4"),
    ],
)
def test_absurdities(path: tuple[int | str, ...], value: Any, reason: str) -> None:
    assert reason in refused(changed(*path, to=value))


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_unequal_length(name: str) -> None:
    """One item less or more, or none at all."""
    column: Any = msgspec.msgpack.decode(RAW)[3][0][2][COLUMNS[name][-1]]
    for other in (column[:0], column[:-1], column + column):
        if name in ("note_sets", "timings", "failures", "reserves"):
            continue  # of whatever length
        assert refused(changed(*COLUMNS[name], to=other))


def test_a_failed_candidate_may_have_come_far() -> None:
    for stage in range(4):
        decode(changed(*COLUMNS["stages"], to=bytes([3, stage])))


def test_names_that_are_known_are_not_taken_for_others() -> None:
    """Canonical names are remembered; that must not let others through."""
    assert decode(RAW) == RECORD
    again = changed(*COLUMNS["algorithms"], 0, to="b/s:fast ")
    for _ in range(2):
        assert "algorithm.name" in refused(again)
    assert decode(RAW) == RECORD


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\xdc\x00\x01"])
@pytest.mark.parametrize("prefix", [b"", b"\x94\x02", b"\x94\x02\xa0\x00"])
def test_deep_nesting(opening: bytes, prefix: bytes) -> None:
    refused(prefix + opening * 100_000)
    refused(prefix + opening * 100_000 + b"\xc0")


@pytest.mark.parametrize(
    "prefix",
    [
        b"",
        b"\x94\x02\xa0\x00",
        b"\x94\x02\xa0\x00\x91\x94\xa4race\xc3",
        b"\x94\x02\xa0\x00\x91\x94\xa4race\xc3\x9e",
        b"\x94\x02\xa0\x00\x91\x94\xa4race\xc3\x9e\x90\x90",
    ],
)
@pytest.mark.parametrize("header", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"])
def test_lengths_that_are_lies(prefix: bytes, header: bytes) -> None:
    """A header that promises four thousand million items costs nothing."""
    tracemalloc.start()
    try:
        refused(prefix + header + b"\xff\xff\xff\xff")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_too_long_is_not_looked_at() -> None:
    padded = replace(TRIALS[1], failure=Failure("crashed", "x" * (LONGEST_BYTES - len(RAW) - 100)))
    search = replace(RECORD.searches[0], trials=Trials.of((TRIALS[0], padded)))
    longest = replace(RECORD, searches=(search,))
    raw = encode(longest)
    assert LONGEST_BYTES - 200 < len(raw) <= LONGEST_BYTES
    assert decode(raw) == longest
    for beyond in (raw + b"\x00" * (LONGEST_BYTES + 1 - len(raw)), b"\xc1" * (LONGEST_BYTES + 1)):
        assert refused(beyond) == f"a record of {LONGEST_BYTES + 1} bytes is longer than any can be"


def test_many_trials_take_no_more_than_their_share() -> None:
    """Of a record as long as may be: no pass over its trials is one for each of them."""
    dead = [
        Trial(algorithm=f"b/s:e{n}", rank=n, workspace_bytes=0, stage="screened", failure=Failure("crashed", ""))
        for n in range(40_000)
    ]
    record = replace(RECORD, searches=(replace(RECORD.searches[0], trials=Trials.of(dead)),))
    raw = encode(record)
    assert len(raw) > LONGEST_BYTES / 2
    assert decode(raw) == record


def test_numbers_are_read_where_floats_are_meant() -> None:
    """An encoder may write 12.0 as 12."""
    assert decode(changed(*PROVENANCE, 2, to=12)).searches[0].provenance.seconds == 12.0


def test_a_signalling_nan_is_no_time() -> None:
    wanted = struct.pack("<d", 12.5)
    assert RAW.count(wanted) == 1
    assert refused(RAW.replace(wanted, bytes.fromhex("7ff0000000000001")[::-1])) == "a time out of range"
