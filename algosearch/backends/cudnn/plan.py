"""`Plan`: an engine configuration made runnable, and `VariantPack`: the addresses that it runs on.

Everything that a launch needs is put together beforehand, so that a launch is one call of C: `pack.launch`. A plan runs
in one thread at a time, whichever that is, through the handle that the pack was made with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn

from algosearch.backends.cudnn.descriptor import Descriptors
from algosearch.backends.cudnn.enums import Attribute, DescriptorKind
from algosearch.backends.cudnn.handle import Handle


class VariantPack:
    """Made by `Plan.variant_pack`. Its status codes are `algosearch.backends.cudnn.status`'s; 0 is success.

    Attributes:
        launch: executes the plan, keeping the interpreter's lock: the inside of a timed burst.
        launch_long: the same, giving the lock up: a first launch, which may load code for a second.
    """

    def __init__(self, plan: Plan, handle: Handle, pointers: Mapping[int, int], workspace: int) -> None:
        self._descriptors = Descriptors(handle.library)
        try:
            pack = self._descriptors.new(DescriptorKind.VARIANT_PACK)
            pack.set(Attribute.VARIANT_PACK_UNIQUE_IDS, *pointers)
            pack.set(Attribute.VARIANT_PACK_DATA_POINTERS, *pointers.values())
            pack.set(Attribute.VARIANT_PACK_WORKSPACE, workspace)
            pack.finalize()
        except BaseException:
            self._descriptors.destroy()
            raise
        arguments = handle.pointer, plan.descriptor.pointer, pack.pointer
        self.launch: Callable[[], int] = partial(handle.library.short.cudnnBackendExecute, *arguments)
        self.launch_long: Callable[[], int] = partial(handle.library.long.cudnnBackendExecute, *arguments)

    def destroy(self) -> None:
        """Give it back; it launches nothing any more. Harmless if done twice."""
        self.launch = self.launch_long = _launch_destroyed
        self._descriptors.destroy()


class Plan:
    """A finalised execution plan. Made by `OperationGraph.build`, which hands over the descriptors.

    Args:
        handle: that of the thread that built it.
        descriptors: what goes with the plan.
        constants: addresses that every pack has, because no caller chooses them.
    """

    def __init__(self, handle: Handle, descriptors: Descriptors, constants: Mapping[int, int] | None = None) -> None:
        self._handle = handle
        self._descriptors = descriptors
        self._constants = dict(constants or {})
        self._packs: list[VariantPack] = []
        self.descriptor = descriptors.newest(DescriptorKind.EXECUTION_PLAN)
        self.workspace_bytes = self.descriptor.number(Attribute.EXECUTION_PLAN_WORKSPACE_SIZE)
        """Temporary device memory that a run needs."""

    def __repr__(self) -> str:
        return f"<Plan {self.descriptor!r}, {self.workspace_bytes} bytes of workspace, {len(self._packs)} packs>"

    def variant_pack(self, pointers: Mapping[int, int], workspace: int, *, handle: Handle | None = None) -> VariantPack:
        """The plan bound to addresses.

        Args:
            pointers: the device address of every tensor of the graph, by its uid.
            workspace: the device address of `workspace_bytes` bytes; 0 if none are needed.
            handle: of the thread that will launch it, whose stream it will run on; left out, the one it was built with.

        Raises:
            CudnnError: the library refuses them.
        """
        pack = VariantPack(self, handle or self._handle, {**pointers, **self._constants}, workspace)
        self._packs.append(pack)
        return pack

    def execute(self, pack: VariantPack) -> int:
        """Launch it, keeping the interpreter's lock; the status."""
        return pack.launch()

    def execute_long(self, pack: VariantPack) -> int:
        """Launch it, giving the interpreter's lock up meanwhile; the status. For a first launch."""
        return pack.launch_long()

    def destroy(self) -> None:
        """Give it and its packs back: what it compiled is unloaded, which may wait for the device. Nothing that was
        recorded from it (a CUDA graph) may run afterwards. Harmless if done twice."""
        while self._packs:
            self._packs.pop().destroy()
        self._descriptors.destroy()


def _launch_destroyed() -> NoReturn:
    raise AssertionError("launching a plan that was destroyed")
