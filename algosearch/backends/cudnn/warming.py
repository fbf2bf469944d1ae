"""`Warming`: what the library sets up when it is first asked about a matrix product, set up meanwhile.

Heuristics that have such an engine to offer (a convolution with a filter of one tap) set up cuBLASLt within the first
question: 90 to 130 ms in the prepare thread, behind which the lane runs dry (cuDNN 9.19, H200). So once the first op
has been listed, and the lane has something to do, a thread of its own asks that question about a small op.

Rejected: to ask about such ops later. In ResNet-50 they are half of all, and the lane waits for them all the same.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from algosearch.backends.cudnn.convolution import ConvolutionGraph
from algosearch.backends.cudnn.gpu import CudaFault, Gpu
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
WAIT_S: Final = 1.0
"""How long its end is waited for. A thread that hangs in the library is left behind, as any other."""


class Warming:
    """Begins at once, in a thread of its own. Whoever made it calls `close` before the device is closed."""

    def __init__(self, library: Library, gpu: Gpu) -> None:
        self._library = library
        self._gpu = gpu
        self._thread = threading.Thread(target=self._ask, name="algosearch-warming", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Warming {'under way' if self._thread.is_alive() else 'over'}>"

    def close(self) -> None:
        """Wait until it is over."""
        self._thread.join(WAIT_S)

    def _ask(self) -> None:
        try:
            self._gpu.enter()
            handle = Handle(self._library)
            try:
                graph = ConvolutionGraph(handle, ASKED)
                try:
                    graph.heuristics("instant", 1)
                finally:
                    graph.destroy()
            finally:
                handle.destroy()
        except (CudnnError, CudaFault) as error:  # whoever needs it will be told
            logger.debug("%s was not set up ahead: %s", self._library, error)
