"""What crosses between a parent and the child that has its device: msgspec nouns in frames, over one socketpair.

A frame is its length in four bytes, then one message in MessagePack. Nothing is believed on either side: lengths are
limited, and types decoded strictly; whoever sends anything else is not talked to any more.

Rejected: pickle (`multiprocessing`, `anyio.to_process`): it executes what it reads, and wants the parent's `__main__`.
"""

from __future__ import annotations

import struct
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from algosearch.backends import Device, Recipe
from algosearch.devices.blame import Blame
from algosearch.devices.job import Found, Job, Limits, Side, Step, Worked
from algosearch.ops import Op
from algosearch.ops.types import LARGEST
from algosearch.records import Built, Burst, Candidate, Environment, Failure, Listing
from algosearch.records.plain import plainly
from algosearch.records.trial import Duration

LONGEST_BYTES: Final = 32 << 20
"""Of a message. The trials of thousands of candidates are two megabytes."""

_LENGTH: Final = struct.Struct("!I")

T = TypeVar("T")


class ProtocolError(Exception):
    """The other side sent what is no message."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False, forbid_unknown_fields=True):
    pass


# -- from the parent -------------------------------------------------------------------------------------------------


class Open(_Message, frozen=True):
    """First of all: open this device of this backend. Answered by `Opened` or `Unavailable`."""

    recipe: Recipe
    device: Device
    limits: Limits
    slowest: Duration = 0.0
    """As of `Yardstick`."""


class Enumerate(_Message, frozen=True):
    """List. Answered by `Listed` or `Broke`."""

    number: int
    op: Op
    width: int | None


class Search(_Message, frozen=True):
    """Search. Answered by `Ended`, `MustWait` or `Broke`; steps are told on the way."""

    number: int
    job: Job


class Stop(_Message, frozen=True):
    """That search is not wanted any more. Not answered."""

    number: int


class Hold(_Message, frozen=True):
    """Let no step begin. Answered by `Resting`, when none is under way."""

    number: int


class Release(_Message, frozen=True):
    """Go on."""


class Close(_Message, frozen=True):
    """Close the session and exit."""


class Call(_Message, frozen=True):
    """Call the session itself, as `CALLS` says. Answered by `Returned` or `Broke`."""

    number: int
    name: CallName
    arguments: msgspec.Raw


# -- from the child --------------------------------------------------------------------------------------------------


class Opened(_Message, frozen=True):
    """The device is open."""

    environment: Environment


class Unavailable(_Message, frozen=True):
    """It cannot be opened: `DeviceUnavailable`."""

    device: str
    reason: str
    remedy: str


class Listed(_Message, frozen=True):
    """An answer to `Enumerate`; or told on the way of a `Search` that does not name its candidates."""

    number: int
    listing: Listing


class Began(_Message, frozen=True):
    """One of the threads is about to do this. Sent before it does."""

    step: Step


class Rests(_Message, frozen=True):
    """That thread has nothing to do now, and this is what it did, if that was a turn."""

    side: Side
    done: Worked | None = None


class Ended(_Message, frozen=True):
    """An answer to `Search`."""

    number: int
    found: Found


class MustWait(_Message, frozen=True):
    """An answer to a `Search` that was not to build what is dear, and came to that."""

    number: int


class Spoilt(_Message, frozen=True):
    """The device cannot be used any more in this process."""

    blame: Blame


class Resting(_Message, frozen=True):
    """An answer to `Hold`."""

    number: int


class Returned(_Message, frozen=True):
    """An answer to `Call`."""

    number: int
    result: msgspec.Raw


class Broke(_Message, frozen=True):
    """An exception came out of what was asked: a broken contract."""

    number: int
    kind: str
    text: str
    traceback: str


CallName = Literal[
    "enumerate", "build", "load", "launch", "time", "check", "healthy", "unload", "destroy", "close", "nothing"
]

ToChild = Open | Enumerate | Search | Stop | Hold | Release | Close | Call
ToParent = Opened | Unavailable | Listed | Began | Rests | Ended | MustWait | Spoilt | Resting | Returned | Broke

# -- single calls of a session ---------------------------------------------------------------------------------------


class Outcome(msgspec.Struct, Generic[T], frozen=True, array_like=True, forbid_unknown_fields=True):
    """Something good or a `Failure`."""

    good: T | None
    failure: Failure | None


class CallType(msgspec.Struct, frozen=True):
    """One kind of call: in which thread, with what, for what. What is dear is built in the compile thread."""

    side: Side
    arguments: Any
    result: Any


CALLS: Final[dict[CallName, CallType]] = {
    "enumerate": CallType("prepare", tuple[Op, int | None], Listing),
    "build": CallType("prepare", tuple[Op, Candidate], Outcome[Built]),
    "load": CallType("lane", tuple[Op, int], Failure | None),
    "launch": CallType("lane", tuple[int, float | None], Outcome[Burst]),
    "time": CallType("lane", tuple[tuple[tuple[int, int], ...], float | None], tuple[Outcome[Burst], ...]),
    "check": CallType("lane", tuple[int, int | None], Failure | None),
    "healthy": CallType("lane", tuple[()], Failure | None),
    "unload": CallType("lane", tuple[()], None),
    "destroy": CallType("lane", tuple[tuple[int, ...]], None),
    "close": CallType("lane", tuple[()], None),
    "nothing": CallType("lane", tuple[()], None),
}
"""`nothing` is no call of a session: it measures the way there and back."""

# -- frames ----------------------------------------------------------------------------------------------------------

_encode: Final = msgspec.msgpack.Encoder().encode
TO_CHILD: Final[msgspec.msgpack.Decoder[ToChild]] = msgspec.msgpack.Decoder(ToChild, strict=True)
TO_PARENT: Final[msgspec.msgpack.Decoder[ToParent]] = msgspec.msgpack.Decoder(ToParent, strict=True)


def encoded(value: object) -> bytes:
    """A message, or what is in a `Call` or its answer, in MessagePack; plainly, where it could not be written else."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError):  # an error names a path that is no text; a workspace has 2**64 bytes
        return _encode(plainly(value))


def as_read(listing: Listing) -> Listing:
    """A listing as it will be read, which it is as it is unless it has sizes that cannot be written."""
    if all(max(each.workspace_bytes, each.reserve_bytes) <= LARGEST for each in listing.candidates):
        return listing
    return msgspec.msgpack.decode(encoded(listing), type=Listing)


def frame(message: ToChild | ToParent) -> bytes:
    """A message as it is sent.

    Raises:
        ProtocolError: it is too long for that.
    """
    raw = encoded(message)
    if len(raw) > LONGEST_BYTES:
        raise ProtocolError(f"a {type(message).__name__} of {len(raw)} bytes is longer than any message")
    return _LENGTH.pack(len(raw)) + raw


class Frames(Generic[T]):
    """Puts messages together from what was received, in whatever pieces."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._decoder = decoder
        self._received = bytearray()

    def feed(self, received: bytes) -> list[T]:
        """The messages that are complete now.

        Raises:
            ProtocolError: this is none, or too long to be one.
        """
        self._received += received
        messages: list[T] = []
        begin = 0
        while len(self._received) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received, begin)
            if length > LONGEST_BYTES:
                raise ProtocolError(f"a message of {length} bytes is longer than any")
            end = begin + _LENGTH.size + length
            if len(self._received) < end:
                break
            try:
                messages.append(self._decoder.decode(self._received[begin + _LENGTH.size : end]))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
                raise ProtocolError(f"no message: {error}") from None
            begin = end
        del self._received[:begin]
        return messages
