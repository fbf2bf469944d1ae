"""`ConvOp`: one convolution problem, in one of its three directions.

The three tensors are named by their place in the *forward* convolution, whatever the direction: `input`
[N, C, spatial], `filter` [K, C / groups, spatial], `output` [N, K, spatial]. `backward_data` reads output and
filter and writes input; `backward_filter` reads input and output and writes filter. A transposed convolution is
a `backward_data`. Shapes are always written channels first; a layout says how the bytes lie in memory.

Validation costs ten times what building the op costs, so it is done once per *value*: a process-wide memo of
valid ops answers equal ones. Rejected: validating lazily (the error would appear far from its cause), and a
factory function (two ways to build one noun).
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Final, Literal

import msgspec
from msgspec.structs import force_setattr

from algosearch.errors import InvalidOp
from algosearch.ops.types import (
    ACCUMULATES,
    LARGEST,
    LAYOUTS,
    MEMO_LIMIT,
    AccumulateType,
    ElementType,
    Layout,
    Shape,
    element_bytes,
    one_of,
    whole,
    whole_tuple,
)

Direction = Literal["forward", "backward_data", "backward_filter"]
DIRECTIONS: Final = ("forward", "backward_data", "backward_filter")

_VALID: dict[ConvOp, bytes] = {}
"""Valid ops by value, with the bytes of their fields. 1 == True == 1.0 == numpy.int64(1), with one hash, and
numpy.str_("forward") == "forward", so that an equal op is not yet a valid one: only equal bytes say that every number
in it is plain. (A word may still be a member of an enumeration, which `canonical` sees to. Encoding the op is the
fastest such check there is: 0.29 µs for the struct itself, 0.53 for a tuple of its fields, which Python has to fetch
one by one, and 1 for looking at each type.)"""
_bytes_of = _VALID.get
_WORDS: Final[tuple[tuple[str, Collection[str]], ...]] = (
    ("direction", DIRECTIONS),
    *((field, LAYOUTS) for field in ("input_layout", "filter_layout", "output_layout")),
    *((field, ACCUMULATES) for field in ("input_type", "filter_type", "output_type")),
)
"""The fields that hold words, and which; `accumulate_type` depends on another one."""
_encode = msgspec.msgpack.Encoder().encode


class ConvOp(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    cache_hash=True,
    gc=False,
    forbid_unknown_fields=True,
    tag_field="op",
    tag="conv",
):
    """One convolution problem. Equal values are equal objects for every purpose.

    Lists, numpy integers and bools are taken and normalised to tuples and plain ints.

    Raises:
        InvalidOp: naming the field, its value and the rule, when the values describe no computation.
    """

    input_shape: Shape
    """[N, C, spatial…], 1 to 3 spatial dimensions, each at least 1."""
    filter_shape: Shape
    """[K, C / groups, spatial…]; K is a multiple of `groups`."""
    direction: Direction = "forward"
    stride: Shape = ()
    """Per spatial axis, at least 1; left out, 1 everywhere."""
    dilation: Shape = ()
    """Per spatial axis, at least 1; left out, 1 everywhere."""
    padding_low: Shape = ()
    """Zeros before each spatial axis; left out, none."""
    padding_high: Shape = ()
    """Zeros after each spatial axis; left out, as `padding_low`."""
    groups: int = 1
    input_layout: Layout = "channels_first"
    filter_layout: Layout = "channels_first"
    output_layout: Layout = "channels_first"
    input_type: ElementType = "float32"
    filter_type: ElementType = "float32"
    output_type: ElementType = "float32"
    accumulate_type: AccumulateType = "float32"
    alignment_bytes: int = 16
    """The caller's promise for the address of every tensor: a power of two, 1 to 4096."""

    def __post_init__(self) -> None:
        # The first hash is cached for good, so it comes after filling in what was left out, and after the encoding,
        # which refuses what hashes unlike the tuple that it will be (a range).
        try:
            if not (self.stride and self.dilation and self.padding_low and self.padding_high):
                _fill_in(self)
            if _encode(self) == _bytes_of(self):
                return
        except Exception:  # a stranger's class may raise anything; what is wrong is said below
            pass  # a list is unhashable, an array neither true nor false, a numpy integer or a huge one unencodable
        _validate(self)
        if len(_VALID) >= MEMO_LIMIT:
            _VALID.clear()
        _VALID[self] = _encode(self)

    @property
    def spatial_dimensions(self) -> int:
        """1, 2 or 3."""
        return len(self.input_shape) - 2

    @property
    def output_shape(self) -> Shape:
        """[N, K, spatial…] of the forward convolution's output, in every direction. Pure: needs no device."""
        batch, filters = self.input_shape[0], self.filter_shape[0]
        axes = zip(
            self.input_shape[2:],
            self.filter_shape[2:],
            self.stride,
            self.dilation,
            self.padding_low,
            self.padding_high,
            strict=True,
        )
        return (
            batch,
            filters,
            *((size + low + high - (taps - 1) * dil - 1) // step + 1 for size, taps, step, dil, low, high in axes),
        )

    @property
    def result_shape(self) -> Shape:
        """The shape of the tensor that this direction writes."""
        match self.direction:
            case "forward":
                return self.output_shape
            case "backward_data":
                return self.input_shape
            case "backward_filter":
                return self.filter_shape

    @property
    def input_bytes(self) -> int:
        """Bytes of the forward input (or its gradient)."""
        return element_bytes(self.input_shape, self.input_type)

    @property
    def filter_bytes(self) -> int:
        """Bytes of the filter (or its gradient)."""
        return element_bytes(self.filter_shape, self.filter_type)

    @property
    def output_bytes(self) -> int:
        """Bytes of the forward output (or its gradient)."""
        return element_bytes(self.output_shape, self.output_type)

    @property
    def bytes_moved(self) -> int:
        """The least traffic: every tensor read or written once. The same in all three directions."""
        return self.input_bytes + self.filter_bytes + self.output_bytes

    @property
    def flops(self) -> int:
        """Two per multiply-add, padding counted: 2 · |output| · (C / groups) · taps, in every direction."""
        return 2 * prod(self.output_shape) * self.filter_shape[1] * prod(self.filter_shape[2:])

    def describe(self) -> str:
        """One short line for messages and tables, such as `forward 64x3x224x224 * 64x3x7x7 /2 float32`."""
        parts = [self.direction, _shape(self.input_shape), "*", _shape(self.filter_shape)]
        if set(self.stride) != {1}:
            parts.append("/" + _by(self.stride))
        if set(self.dilation) != {1}:
            parts.append("dilation " + _by(self.dilation))
        if any(self.padding_low + self.padding_high):
            low, high = _by(self.padding_low), _by(self.padding_high)
            parts.append("pad " + (low if low == high else f"{low}..{high}"))
        if self.groups != 1:
            parts.append(f"groups {self.groups}")
        types = dict.fromkeys((self.input_type, self.filter_type, self.output_type))
        parts.append("/".join(types))
        layouts = dict.fromkeys((self.input_layout, self.filter_layout, self.output_layout))
        if tuple(layouts) != ("channels_first",):
            parts.append("/".join(layouts))
        return " ".join(parts)


def _shape(sizes: Shape) -> str:
    return "x".join(map(str, sizes))


def _by(per_axis: Shape) -> str:
    return str(per_axis[0]) if len(set(per_axis)) == 1 else _shape(per_axis)


def _fill_in(op: ConvOp) -> None:
    axes = len(op.input_shape) - 2
    for field, unit in (("stride", 1), ("dilation", 1), ("padding_low", 0)):
        if _is_empty(getattr(op, field)):
            force_setattr(op, field, (unit,) * axes)
    if _is_empty(op.padding_high):
        force_setattr(op, "padding_high", op.padding_low)


def _is_empty(value: object) -> bool:
    return isinstance(value, tuple | list) and not value


def _validate(op: ConvOp) -> None:
    """Normalise every field of `op`, then check what they say together. Raises InvalidOp."""
    for field, allowed in _WORDS:
        force_setattr(op, field, one_of(field, getattr(op, field), allowed))
    for field, least in (
        ("input_shape", 1),
        ("filter_shape", 1),
        ("stride", 1),
        ("dilation", 1),
        ("padding_low", 0),
        ("padding_high", 0),
    ):
        force_setattr(op, field, whole_tuple(field, getattr(op, field), least=least))
    _fill_in(op)  # an empty array, say, is only now seen to be empty
    force_setattr(op, "groups", whole("groups", op.groups, least=1))
    force_setattr(op, "alignment_bytes", whole("alignment_bytes", op.alignment_bytes, least=1))
    _check_types(op)
    _check_shapes(op)


def _check_types(op: ConvOp) -> None:
    accumulate_type = one_of("accumulate_type", op.accumulate_type, ACCUMULATES[op.input_type])
    force_setattr(op, "accumulate_type", accumulate_type)
    if op.filter_type != op.input_type:
        raise InvalidOp("filter_type", op.filter_type, f"must equal input_type, {op.input_type}")
    if op.input_type == "int8":
        if op.direction != "forward":
            raise InvalidOp("direction", op.direction, "int8 is forward only")
        one_of("output_type", op.output_type, ("int8", "float32"))
    elif op.output_type != op.input_type and not (
        op.direction == "forward" and op.input_type in ("float16", "bfloat16") and op.output_type == "float32"
    ):
        raise InvalidOp("output_type", op.output_type, f"must equal input_type, {op.input_type}")
    if op.alignment_bytes > 4096 or op.alignment_bytes & (op.alignment_bytes - 1):
        raise InvalidOp("alignment_bytes", op.alignment_bytes, "must be a power of two from 1 to 4096")


def _check_shapes(op: ConvOp) -> None:
    axes = len(op.input_shape) - 2
    if not 1 <= axes <= 3:
        raise InvalidOp("input_shape", op.input_shape, "must be [N, C, spatial…] with 1 to 3 spatial dimensions")
    if len(op.filter_shape) != axes + 2:
        raise InvalidOp("filter_shape", op.filter_shape, f"must have {axes + 2} dimensions, as input_shape has")
    for field in ("stride", "dilation", "padding_low", "padding_high"):
        if len(getattr(op, field)) != axes:
            raise InvalidOp(field, getattr(op, field), f"must have {axes} entries, one per spatial dimension")
    channels, (filters, per_group) = op.input_shape[1], op.filter_shape[:2]
    if channels != per_group * op.groups:
        raise InvalidOp(
            "filter_shape",
            op.filter_shape,
            f"its second dimension times groups ({per_group} * {op.groups}) must be the {channels} input channels",
        )
    if filters % op.groups:
        raise InvalidOp("groups", op.groups, f"must divide the {filters} filters")
    output_shape = op.output_shape
    if min(output_shape) < 1:
        raise InvalidOp(
            "filter_shape",
            op.filter_shape,
            f"with this dilation it does not fit into the padded input: output {output_shape}",
        )
    if max(output_shape) > LARGEST:
        raise InvalidOp("padding_high", op.padding_high, "the output would have a size beyond 2**63 - 1")
