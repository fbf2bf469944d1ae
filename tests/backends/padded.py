"""The padded candidates of an op, whether or not a search would list them."""

from __future__ import annotations

from algosearch.backends.cudnn.candidates import padded_candidate
from algosearch.backends.cudnn.padding import padded_to
from algosearch.ops import ConvOp
from algosearch.records import Candidate
from tests.backends.driven import Driven


def padded_candidates(driven: Driven, op: ConvOp, multiple: int = 8, width: int = 1) -> list[Candidate]:
    """All that the library lists for the padded op when `width` are asked for."""
    padding = padded_to(op, multiple)
    assert padding is not None, f"{op.describe()} cannot be padded to {multiple}"
    return [padded_candidate(each, padding) for each in driven.enumerate(padding.op, width).candidates]
