"""`Plan`: an engine configuration made runnable, and `VariantPack`: the same bound to addresses.

Everything that a launch needs is put together beforehand, so that a launch is one call of C: `pack.launch`. A plan runs
in one thread at a time, whichever that is, through the handle that the pack was made with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import addressof, c_double, c_float
from functools import partial
from typing import NoReturn, Protocol

from algosearch.backends.cudnn.descriptor import Descriptors
from algosearch.backends.cudnn.enums import Attribute, DescriptorKind
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.library import Library
from algosearch.backends.cudnn.status import CudnnError


class _Owned(Protocol):
    def destroy(self) -> None: ...


class VariantPack:
    """A plan bound to addresses. Made by a plan's `variant_pack`. Its statuses are those of
    `algosearch.backends.cudnn.status`; 0 is success.

    Args:
        launch: executes it, keeping the interpreter's lock: the inside of a timed burst.
        launch_long: the same, giving the lock up: a first launch, which may load code for a second.
        owned: what goes with it.
    """

    def __init__(self, launch: Callable[[], int], launch_long: Callable[[], int], owned: _Owned) -> None:
        self._owned = owned
        self.launch = launch
        self.launch_long = launch_long

    @classmethod
    def of(cls, library: Library, function: str, arguments: tuple[object, ...], owned: Descriptors) -> VariantPack:
        """One call of a function of the library's that is declared in both views, with all that it takes."""
        short, long = getattr(library.short, function), getattr(library.long, function)
        return cls(partial(short, *arguments), partial(long, *arguments), owned)

    @property
    def is_destroyed(self) -> bool:
        """Whether it launches nothing any more."""
        return self.launch is _launch_destroyed

    def destroy(self) -> None:
        """Give it back; it launches nothing any more. Harmless if done twice."""
        self.launch = self.launch_long = _launch_destroyed
        self._owned.destroy()


class Runnable:
    """What can be bound to addresses and executed, whichever API it comes from.

    Args:
        handle: that of the thread that built it.
        owned: the descriptors that go with it.
    """

    workspace_bytes: int
    """Temporary device memory that a run needs."""
    queued: int = 1
    """What a run queues on the stream, as far as is known: the library does not say how many kernels it needs."""
    reserve_bytes: int = 0
    """Of the tensor `reserve` that a fused batch norm's forward pass writes for its backward pass."""

    def __init__(self, handle: Handle, owned: Descriptors) -> None:
        self._handle = handle
        self._owned = owned
        self._packs: list[VariantPack] = []

    def variant_pack(self, pointers: Mapping[int, int], workspace: int, *, handle: Handle | None = None) -> VariantPack:
        """The plan bound to addresses.

        Args:
            pointers: the device address of every tensor, by its uid.
            workspace: the device address of `workspace_bytes` bytes; 0 if none are needed.
            handle: of the thread that will launch it, whose stream it will run on; left out, the one it was built with.

        Raises:
            CudnnError: the library refuses them.
        """
        pack = self._bind(handle or self._handle, pointers, workspace)
        self._packs = [*(each for each in self._packs if not each.is_destroyed), pack]
        return pack

    def destroy(self) -> None:
        """Give it and its packs back: what it compiled is unloaded, which may wait for the device. Nothing that was
        recorded from it (a CUDA graph) may run afterwards. Harmless if done twice."""
        while self._packs:
            self._packs.pop().destroy()
        self._owned.destroy()

    def _bind(self, handle: Handle, pointers: Mapping[int, int], workspace: int) -> VariantPack:
        raise NotImplementedError


class Plan(Runnable):
    """A finalised execution plan. Made by `OperationGraph.build`, which hands over the descriptors.

    Args:
        constants: what of the graph is given by value, by uid: numbers in host memory, which live as long as the plan.
            A caller's own address for such a uid goes before.
    """

    def __init__(
        self, handle: Handle, owned: Descriptors, constants: Mapping[int, c_float | c_double] | None = None
    ) -> None:
        super().__init__(handle, owned)
        self._constants = dict(constants or {})
        self.descriptor = owned.newest(DescriptorKind.EXECUTION_PLAN)
        self.workspace_bytes = self.descriptor.number(Attribute.EXECUTION_PLAN_WORKSPACE_SIZE)
        if self.workspace_bytes < 0:
            raise CudnnError.nonsense("reading the workspace of a plan", f"{self.workspace_bytes} bytes")

    def __repr__(self) -> str:
        return f"<Plan {self.descriptor!r}, {self.workspace_bytes} bytes of workspace, {len(self._packs)} packs>"

    def _bind(self, handle: Handle, pointers: Mapping[int, int], workspace: int) -> VariantPack:
        bound = {**{uid: addressof(value) for uid, value in self._constants.items()}, **pointers}
        owned = Descriptors(handle.library)
        try:
            pack = owned.new(DescriptorKind.VARIANT_PACK)
            pack.set(Attribute.VARIANT_PACK_UNIQUE_IDS, *bound)
            pack.set(Attribute.VARIANT_PACK_DATA_POINTERS, *bound.values())
            pack.set(Attribute.VARIANT_PACK_WORKSPACE, workspace)
            pack.finalize()
        except BaseException:
            owned.destroy()
            raise
        arguments = handle.pointer, self.descriptor.pointer, pack.pointer
        return VariantPack.of(handle.library, "cudnnBackendExecute", arguments, owned)


def _launch_destroyed() -> NoReturn:
    raise AssertionError("launching a plan that was destroyed")
