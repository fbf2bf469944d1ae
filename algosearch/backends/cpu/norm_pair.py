"""Both passes of a fused batch norm, `centred` or `folded`: forward, then backward from what that has left."""

from __future__ import annotations

from algosearch.backends.cpu.arena import Array, Run
from algosearch.backends.cpu.kernel import Cost, Tensors
from algosearch.backends.cpu.norm import NormForward
from algosearch.backends.cpu.norm_backward import NormBackward
from algosearch.ops import BatchNormOp


class NormPair:
    """The kernel. Its passes have the workspace one after the other."""

    def __init__(self, op: BatchNormOp, *, centred: bool) -> None:
        forward, backward = op.passes
        self._forward = NormForward(forward, centred=centred)
        self._backward = NormBackward(backward, centred=centred)
        self.workspace_bytes = max(self._forward.workspace_bytes, self._backward.workspace_bytes)
        self.notes = self._forward.notes
        first, second = self._forward.cost, self._backward.cost
        self.cost = Cost(moved_bytes=first.moved_bytes + second.moved_bytes, calls=first.calls + second.calls)

    def bind(self, tensors: Tensors, workspace: Array) -> Run:
        """As the contract says."""
        forward = self._forward.bind(tensors, workspace[: self._forward.workspace_bytes])
        backward = self._backward.bind(tensors, workspace[: self._backward.workspace_bytes])

        def run() -> None:
            forward()
            backward()

        return run
