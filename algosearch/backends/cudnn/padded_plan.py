"""`PaddedPlan`: a plan for more channels, with the copies that it needs around it, as one plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from algosearch.backends.cudnn.descriptor import Descriptors
from algosearch.backends.cudnn.gpu import MOST_COPIES, CopiesRows
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.padding import Padding
from algosearch.backends.cudnn.plan import Runnable, VariantPack


class PaddedPlan(Runnable):
    """A run of it is: what is read copied into the workspace, filled up with zeros; a run of the plan on these copies;
    and the result, if it has more channels there, copied out. All on the stream of the handle that executes.

    Args:
        plan: for `padding.op`. Destroyed with this one.
        copier: of the device that it will run on.

    Raises:
        CudaFault: the device cannot copy. The plan is then the caller's still.
    """

    def __init__(self, handle: Handle, plan: Runnable, padding: Padding, copier: CopiesRows) -> None:
        super().__init__(handle, Descriptors(handle.library))
        self._plan, self._padding, self._copier = plan, padding, copier
        self.workspace_bytes = padding.scratch_bytes + plan.workspace_bytes
        self.queued = plan.queued + bool(padding.read) + bool(padding.written)
        copier.prepare_rows()
        assert max(len(padding.read), len(padding.written)) <= MOST_COPIES

    def __repr__(self) -> str:
        return f"<PaddedPlan to {self._padding.multiple} of {self._plan!r}>"

    def destroy(self) -> None:
        """As `Runnable` says."""
        super().destroy()
        self._plan.destroy()

    def _bind(self, handle: Handle, pointers: Mapping[int, int], workspace: int) -> VariantPack:
        padding = self._padding
        before, behind = (
            self._copier.row_copier([each.copy(pointers[each.uid], workspace) for each in tensors], handle.stream)
            if tensors
            else _nothing
            for tensors in (padding.read, padding.written)
        )
        room = workspace + padding.scratch_bytes if self._plan.workspace_bytes else 0
        inner = self._plan.variant_pack(padding.pointers(pointers, workspace), room, handle=handle)
        return VariantPack(
            _around(before, inner.launch, behind),
            _around(before, inner.launch_long, behind),
            inner,
        )


def _around(before: Callable[[], None], run: Callable[[], int], behind: Callable[[], None]) -> Callable[[], int]:
    def launch() -> int:
        before()
        status = run()
        if not status:
            behind()
        return status

    return launch


def _nothing() -> None:
    pass
