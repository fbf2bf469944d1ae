"""`ConvOp`s as XLA computes them, compiled in one program: the peer of `cold_search.py`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from algosearch.ops import ConvOp

_CHANNELS_FIRST, _CHANNELS_LAST = ("NCHW", "OIHW", "NCHW"), ("NHWC", "OHWI", "NHWC")


def compile_s(ops: Sequence[ConvOp], autotune_level: int) -> float:
    """Seconds that compiling one program of all these takes, tracing not counted. Only in a fresh process: JAX reads
    the level when it is imported. Two spatial dimensions, no groups."""
    os.environ["XLA_FLAGS"] = f"--xla_gpu_autotune_level={autotune_level}"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax

    arguments = [_arguments(op) for op in ops]
    calls = [_call(op) for op in ops]

    def program(inputs: list[tuple[Any, Any]]) -> list[Any]:
        return [call(*each) for call, each in zip(calls, inputs, strict=True)]

    jax.numpy.zeros(8).block_until_ready()
    lowered = jax.jit(program).lower(arguments)
    start = perf_counter()
    lowered.compile()
    return perf_counter() - start


def _arguments(op: ConvOp) -> tuple[Any, Any]:
    """What an op reads."""
    read = {
        "forward": (_tensor(op, "input"), _tensor(op, "filter")),
        "backward_data": (_tensor(op, "output"), _tensor(op, "filter")),
        "backward_filter": (_tensor(op, "input"), _tensor(op, "output")),
    }
    return read[op.direction]


def _tensor(op: ConvOp, name: str) -> Any:
    import jax

    shape = getattr(op, f"{name}_shape")
    if getattr(op, f"{name}_layout") == "channels_last":
        shape = (shape[0], *shape[2:], shape[1])
    return jax.ShapeDtypeStruct(shape, getattr(op, f"{name}_type"))


def _call(op: ConvOp) -> Callable[[Any, Any], Any]:
    import jax
    from jax import lax

    names = _CHANNELS_LAST if op.input_layout == "channels_last" else _CHANNELS_FIRST
    padding = list(zip(op.padding_low, op.padding_high, strict=True))

    def forward(read: Any, weights: Any) -> Any:
        return lax.conv_general_dilated(
            read, weights, op.stride, padding, rhs_dilation=op.dilation, dimension_numbers=names
        )

    def backward_data(gradient: Any, weights: Any) -> Any:
        return jax.linear_transpose(lambda read: forward(read, weights), _tensor(op, "input"))(gradient)[0]

    def backward_filter(read: Any, gradient: Any) -> Any:
        return jax.linear_transpose(lambda weights: forward(read, weights), _tensor(op, "filter"))(gradient)[0]

    return {"forward": forward, "backward_data": backward_data, "backward_filter": backward_filter}[op.direction]
