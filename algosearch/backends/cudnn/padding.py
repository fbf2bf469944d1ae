"""`Padding`: a convolution as one of more channels, those that were added being zeros. Pure arithmetic.

Tensor cores take channels by eights (float32: by fours), and engines for other numbers are few and slow. So the same
convolution over copies whose channels are filled up may be faster, the copying included. Zeros change no result:

- What is added of input and filter along the input channels multiplies zeros by zeros.
- What is added of filter and output along the output channels is read as zeros, or computed and left out.

Only where channels lie next to each other, so that each pixel is a row of them: then one copy of rows fills a tensor
up, and one cuts a result down. The copies lie in the workspace, before that of the engine which works on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

import msgspec
from msgspec.structs import replace

from algosearch.backends.cudnn.convolution import convolution_tensors
from algosearch.backends.cudnn.gpu import CHUNK_BYTES, MOST_CHUNKS, RowCopy
from algosearch.backends.cudnn.graph import GraphTensor
from algosearch.ops import ELEMENT_BYTES, ConvOp

ALIGNMENT_BYTES: Final = 256
"""Of every copy, and of the workspace behind them."""
_MULTIPLES: Final = {"float16": 8, "bfloat16": 8, "float32": 4}
"""What tensor cores take, by the type of what is multiplied: 16 bytes."""
_MOST_MULTIPLE: Final = 64
_MOST_ELEMENTS: Final = 1 << 31
"""Of a tensor: beyond, few engines go."""

_LEAST_FLOPS: Final = 10**8
"""Without tensor cores that takes 5 µs, as two copies do at the least."""
_MOST_COPIED: Final = 2.5
"""Bytes that are read and written by copies, against those that the op moves itself: 2, if all of it is copied. At 2.4,
the patch embedding of a transformer, padding won by a quarter."""
_STEM_CHANNELS: Final = 3
_STEM_TAPS: Final = (7, 7)
_STEM_STRIDE: Final = (2, 2)


class PaddedTensor(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tensor that is copied, as rows of channels: into its padded copy, or out of it if it is a result."""

    uid: int
    written: bool
    element_bytes: int
    rows: int
    width: int
    padded_rows: int
    padded_width: int
    offset: int
    """Of the padded copy, from the beginning of the workspace."""

    @property
    def padded_bytes(self) -> int:
        """Of the copy."""
        return self.padded_rows * self.padded_width * self.element_bytes

    @property
    def copied_bytes(self) -> int:
        """Read and written by copying it."""
        return self.rows * self.width * self.element_bytes + self.padded_bytes

    def copy(self, address: int, workspace: int) -> RowCopy:
        """Between the tensor and its padded copy, as its direction goes."""
        narrow, wide = (address, self.rows, self.width), (workspace + self.offset, self.padded_rows, self.padded_width)
        source, target = (wide, narrow) if self.written else (narrow, wide)
        return RowCopy(
            source=source[0],
            target=target[0],
            element_bytes=self.element_bytes,
            source_rows=source[1],
            source_width=source[2],
            target_rows=target[1],
            target_width=target[2],
        )


class Padding(msgspec.Struct, frozen=True, kw_only=True):
    """How an op is padded. Made by `padded_to` and `worthwhile`."""

    multiple: int
    """Channels are filled up to multiples of this."""
    op: ConvOp
    """What is computed on the copies: the same, with more channels."""
    tensors: tuple[PaddedTensor, ...]
    """Those that are copied, of input, filter and output."""
    scratch_bytes: int
    """Of all copies: the engine's workspace begins there."""

    @property
    def read(self) -> tuple[PaddedTensor, ...]:
        """Copied before the run."""
        return tuple(each for each in self.tensors if not each.written)

    @property
    def written(self) -> tuple[PaddedTensor, ...]:
        """Copied behind the run."""
        return tuple(each for each in self.tensors if each.written)

    def pointers(self, pointers: Mapping[int, int], workspace: int) -> dict[int, int]:
        """What the engine is given in place of these addresses, by uid."""
        return dict(pointers) | {each.uid: workspace + each.offset for each in self.tensors}


def padded_to(op: ConvOp, multiple: int) -> Padding | None:
    """A canonical op with its numbers of channels filled up to multiples of this; None if it cannot be, or has such
    numbers already."""
    if op.input_type not in _MULTIPLES or op.groups != 1 or not 0 < multiple <= _MOST_MULTIPLE:
        return None
    filters, channels = (_filled(count, multiple) for count in op.filter_shape[:2])
    if (filters, channels) == op.filter_shape[:2] or multiple * ELEMENT_BYTES[op.input_type] % CHUNK_BYTES:
        return None
    tensors = convolution_tensors(op)
    if not all(map(_is_in_rows, tensors, (op.input_layout, op.filter_layout, op.output_layout))):
        return None
    padded = replace(
        op,
        input_shape=(op.input_shape[0], channels, *op.input_shape[2:]),
        filter_shape=(filters, channels, *op.filter_shape[2:]),
        input_layout="channels_last",
        filter_layout="channels_last",
        output_layout="channels_last",
    )
    copied, offset = list[PaddedTensor](), 0
    for tensor, other in zip(tensors, convolution_tensors(padded), strict=True):
        if tensor.shape != other.shape:
            copied.append(_padded_tensor(tensor, other, offset))
            offset += -(-other.bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            if prod(other.shape) >= _MOST_ELEMENTS or other.bytes >= MOST_CHUNKS * CHUNK_BYTES:
                return None
    return Padding(multiple=multiple, op=padded, tensors=tuple(copied), scratch_bytes=offset)


def worthwhile(op: ConvOp) -> Padding | None:
    """The padding of a canonical op, if it may win (`docs/decisions/0013-channel-padding.md` has the reasons)."""
    padding = padded_to(op, _MULTIPLES.get(op.input_type, 0))
    if padding is None or _has_engines_of_its_own(op) or op.flops < _LEAST_FLOPS:
        return None
    copied_bytes = sum(each.copied_bytes for each in padding.tensors)
    return padding if copied_bytes <= _MOST_COPIED * op.bytes_moved else None


def _has_engines_of_its_own(op: ConvOp) -> bool:
    """Whether it is shaped like the first convolution of ResNet, for which the library has engines of its own; but none
    for its data gradient, which took 1.5 to 1.7 times as long as the padded one, and none that beat padding in
    float32."""
    shaped = (op.filter_shape[1], op.filter_shape[2:], op.stride) == (_STEM_CHANNELS, _STEM_TAPS, _STEM_STRIDE)
    return shaped and op.direction != "backward_data" and op.input_type != "float32"


def _padded_tensor(tensor: GraphTensor, padded: GraphTensor, offset: int) -> PaddedTensor:
    return PaddedTensor(
        uid=tensor.uid,
        written=tensor.written,
        element_bytes=ELEMENT_BYTES[tensor.element_type],
        rows=prod(tensor.shape) // tensor.shape[1],
        width=tensor.shape[1],
        padded_rows=prod(padded.shape) // padded.shape[1],
        padded_width=padded.shape[1],
        offset=offset,
    )


def _is_in_rows(tensor: GraphTensor, layout: str) -> bool:
    """Whether the channels of a place lie next to each other. A layout that makes no difference may be written as any
    other."""
    return layout == "channels_last" or tensor.shape[1] == 1 or prod(tensor.shape[2:]) == 1


def _filled(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
