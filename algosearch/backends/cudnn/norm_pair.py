"""`PairPlan`: the two passes of a fused batch norm as one run: forward, and backward from what that has left.

One burst times the sum. Rejected: a burst for each pass. The backward one would read a reserve that some other
candidate's forward pass wrote last, and the error of a sum is known better than the sum of two errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from algosearch.backends.cudnn.descriptor import Descriptors
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.plan import Runnable, VariantPack


class PairPlan(Runnable):
    """Both passes by one algorithm. Takes the two plans over; they use one workspace, one after the other.

    Args:
        handle: that of the thread that built them.
    """

    def __init__(self, handle: Handle, forward: Runnable, backward: Runnable) -> None:
        super().__init__(handle, Descriptors(handle.library))
        self._passes = forward, backward
        self.workspace_bytes = max(forward.workspace_bytes, backward.workspace_bytes)
        self.reserve_bytes = max(forward.reserve_bytes, backward.reserve_bytes)

    def __repr__(self) -> str:
        return f"<PairPlan {self._passes[0]!r}, {self._passes[1]!r}>"

    def destroy(self) -> None:
        super().destroy()
        for each in self._passes:
            each.destroy()

    def _bind(self, handle: Handle, pointers: Mapping[int, int], workspace: int) -> VariantPack:
        forward, backward = self._passes
        first = forward.variant_pack(pointers, workspace, handle=handle)
        try:
            return _PairPack(first, backward.variant_pack(pointers, workspace, handle=handle))
        except BaseException:
            first.destroy()
            raise


class _PairPack(VariantPack):
    """Two packs, launched one behind the other on one stream; the second only if the first was accepted."""

    def __init__(self, first: VariantPack, second: VariantPack) -> None:
        self._packs = first, second
        self.launch = partial(_both, first.launch, second.launch)
        self.launch_long = partial(_both, first.launch_long, second.launch_long)

    @property
    def is_destroyed(self) -> bool:
        return all(each.is_destroyed for each in self._packs)

    def destroy(self) -> None:
        for each in self._packs:
            each.destroy()
        self.launch, self.launch_long = (each.launch for each in self._packs)


def _both(first: Callable[[], int], second: Callable[[], int]) -> int:
    return first() or second()
