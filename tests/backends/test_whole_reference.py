"""The fast reference of the GPU's tests is the slow and obvious one's equal."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from algosearch.ops import ConvOp, canonical
from tests.backends import reference
from tests.gpu.reference import conv
from tests.strategies import conv_ops


@given(conv_ops(input_types=("float64",), largest=6))
def test_it_is_the_definition(op: ConvOp) -> None:
    op = canonical(op)
    dice = np.random.default_rng(0)
    shapes = {"input": op.input_shape, "filter": op.filter_shape, "output": op.output_shape}
    tensors = {name: dice.uniform(-1, 1, int(np.prod(shape))) for name, shape in shapes.items()}
    np.testing.assert_allclose(conv(op, tensors), reference.conv(op, tensors), atol=1e-10)
