"""What the library sets up when it is first asked about a matrix product, set up meanwhile.

Heuristics that have such an engine to offer (a convolution with a filter of one tap) set up cuBLASLt within the first
question: 90 to 130 ms in the prepare thread, behind which the lane runs dry (cuDNN 9.19, H200). So once the first op
has been listed, and the lane has something to do, the compile thread asks that question about a small op.

Rejected: to ask about such ops later. In ResNet-50 they are half of all, and the lane waits for them all the same. And
a thread of its own: it would go on while somebody wants quiet.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Final

from algosearch.backends.cudnn.convolution import ConvolutionGraph
from algosearch.backends.cudnn.gpu import CudaFault, Gpu, OutOfDeviceMemory
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.library import Library
from algosearch.backends.cudnn.status import CudnnError
from algosearch.ops import ConvOp

logger = logging.getLogger("algosearch.devices")

ASKED: Final = ConvOp(
    input_shape=(8, 64, 8, 8),
    filter_shape=(64, 64, 1, 1),
    input_layout="channels_last",
    filter_layout="channels_last",
    output_layout="channels_last",
    input_type="float16",
    filter_type="float16",
    output_type="float16",
)


def ask_ahead(library: Library, gpu: Gpu) -> None:
    """In this thread. What the library or the device lacks for it is not raised: whoever needs it will be told."""
    try:
        gpu.enter()
        with ExitStack() as given_back:
            handle = Handle(library)
            given_back.callback(handle.destroy)
            graph = ConvolutionGraph(handle, ASKED)
            given_back.callback(graph.destroy)
            graph.heuristics("instant", 1)
    except (CudnnError, CudaFault, OutOfDeviceMemory) as error:
        logger.debug("%s was not set up ahead: %s", library, error)
