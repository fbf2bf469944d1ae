"""What callers pass, checked before anything is done with it: a typed error that names the argument, its value and the
rule, or a value of exactly the type that the rest of this room relies on.

What a stranger's object says of itself (its `__class__`, its `__eq__`) is not asked: only its type counts.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import TypeVar, cast

from algosearch.errors import InvalidOp, InvalidPolicy, InvalidSetting
from algosearch.ops import BatchNormOp, ConvOp, Op
from algosearch.records import Policy

T = TypeVar("T")

_DEVICE = "must be a name such as cpu:0, or that of a backend such as cpu"


def checked_op(op: object) -> Op:
    """An op.

    Raises:
        InvalidOp: it is none.
    """
    if type(op) is ConvOp or type(op) is BatchNormOp:
        return op
    raise InvalidOp("op", op, "must be a ConvOp or a BatchNormOp")


def checked_ops(ops: object) -> list[Op]:
    """Ops, all of them before anything is asked, so that nothing is asked by halves.

    Raises:
        InvalidOp: one of them is none, or there is nothing to iterate over.
        whatever the iterable itself raises.
    """
    if not issubclass(type(ops), Iterable):
        raise InvalidOp("ops", ops, "must be an iterable of ConvOps and BatchNormOps")
    return [checked_op(op) for op in cast("Iterable[object]", ops)]


def checked_policy(policy: object) -> Policy:
    """A policy.

    Raises:
        InvalidPolicy: it is none.
    """
    if type(policy) is Policy:
        return policy
    raise InvalidPolicy("policy", policy, "must be a Policy")


def checked_device(device: object, name: str = "device") -> str:
    """The name of a device or a backend, as a plain string.

    Raises:
        InvalidSetting: it is none.
    """
    plain = str.__str__(cast("str", device)) if issubclass(type(device), str) else ""
    if not plain:
        raise InvalidSetting(name, device, _DEVICE)
    return plain


def checked_seconds(name: str, seconds: object) -> float:
    """A time to wait.

    Raises:
        InvalidSetting: it is no number, not finite, or negative.
    """
    rule = "must be a finite number of seconds, at least 0"
    if not issubclass(type(seconds), numbers.Real) or isinstance(seconds, bool):
        raise InvalidSetting(name, seconds, rule)
    try:
        plain = float(cast("float", seconds))
    except Exception:  # an integer beyond every float, or a stranger's number
        raise InvalidSetting(name, seconds, rule) from None
    if not (math.isfinite(plain) and plain >= 0):
        raise InvalidSetting(name, seconds, rule)
    return plain
