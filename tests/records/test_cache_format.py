"""docs/cache-format.md says what the code does: its example is carried out, and its lists are compared."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from pathlib import Path
from typing import Final, get_args

import msgspec
import pytest

from algosearch.ops import Op
from algosearch.records import Environment, FailureKind, Key, Provenance, Search, SearchMode, Trials
from algosearch.records.key import KEY_SCHEMA
from algosearch.records.trial import MOST_SAMPLES, Failure
from algosearch.records.trials import STAGES
from algosearch.records.wire import LONGEST_BYTES, WIRE_VERSION, decode, encode

TEXT: Final = (Path(__file__).parents[2] / "docs" / "cache-format.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """The one fenced block of that name."""
    (found,) = re.findall(rf"^```\w+ {name}\n(.*?)\n```$", TEXT, re.DOTALL | re.MULTILINE)
    assert isinstance(found, str)
    return found


def written() -> bytes:
    """The bytes of the dumped record, comments taken off."""
    return bytes.fromhex("".join(line.partition(";")[0] for line in block("record").splitlines()))


def test_the_key() -> None:
    op = msgspec.json.decode(block("op"), type=Op)
    environment = msgspec.json.decode(block("environment"), type=Environment)
    key = Key.of(op, environment)
    assert key.text == block("key")
    assert key.digest == block("digest")


def test_the_key_by_other_means() -> None:
    """The rules of the text are those of any JSON library; the digest is that of any SHA-256."""
    text = json.dumps(json.loads(block("key")), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert text == block("key")
    assert hashlib.sha256(text.encode()).hexdigest() == block("digest")


def test_the_record() -> None:
    raw = written()
    record = decode(raw, digest=block("digest"))
    assert record.key.text == block("key")
    assert encode(record) == raw
    fast, failed = record.searches[0].trials
    assert (fast.algorithm, fast.time_us, fast.failure) == ("cpu/numpy:im2col", 42.5, None)
    assert failed.failure == Failure("out_of_memory", "16 MiB", (("free_bytes", "1000000"),))


def test_the_comments_of_the_record() -> None:
    """Each commented scalar is what its bytes say."""
    values = [line.partition("; ") for line in block("record").splitlines() if ": " in line and "an array" not in line]
    assert len(values) > 20
    for raw, _, comment in values:
        name, _, said = comment.partition(": ")
        if name != "key":
            code = {"int64": "<q", "uint8": "<B", "float64": "<d", "float32": "<f"}.get(name)
            one = bytes.fromhex(raw)
            value = msgspec.msgpack.decode(one) if code is None else struct.unpack(code, one)[0]
            assert json.loads(said.replace("nil", "null")) == value, comment


@pytest.mark.parametrize(
    ("noun", "fields"),
    [
        ("record", ("version", "key", "generation", "searches")),
        ("search", Search.__struct_fields__),
        ("trials", Trials.__struct_fields__),
        ("failure", Failure.__struct_fields__),
        ("provenance", Provenance.__struct_fields__),
    ],
)
def test_the_order_of_fields(noun: str, fields: tuple[str, ...]) -> None:
    (listed,) = re.findall(rf"^{noun} += \[(.*)\]$", TEXT, re.MULTILINE)
    assert listed == ", ".join(fields)


def test_words_and_numbers() -> None:
    assert f"{KEY_SCHEMA}: `KEY_SCHEMA`" in TEXT
    assert f"{WIRE_VERSION}: `WIRE_VERSION`" in TEXT
    assert f"at most {LONGEST_BYTES >> 20} MiB" in TEXT
    assert f"| `mode` | str | {', '.join(f'`{word}`' for word in get_args(SearchMode))} |" in TEXT
    assert f"| `stages` | bin of uint8 | in this order from 0: {', '.join(f'`{stage}`' for stage in STAGES)} |" in TEXT
    assert f"| `sample_counts` | bin of uint8 | at most {MOST_SAMPLES} |" in TEXT
    assert len(get_args(FailureKind)) == 8


def test_what_may_be_missing_is_at_the_end() -> None:
    """A writer leaves nothing out; a reader fills in what has one obvious value."""
    items = msgspec.msgpack.decode(written())
    search = items[3][0]
    assert search[2].pop() == []
    _, failure = search[2][-1][0]
    assert failure.pop() == [["free_bytes", "1000000"]]
    assert search[3].pop() is False
    read = decode(msgspec.msgpack.encode(items)).searches[0]
    assert read.trials[1].failure == Failure("out_of_memory", "16 MiB")
    assert read.trials[0].reserve_bytes == 0
    assert read.provenance.alone is False
