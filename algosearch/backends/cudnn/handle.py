"""`Handle`: one thread's connection to cuDNN, and the descriptors that the thread uses again and again."""

from __future__ import annotations

import threading
from ctypes import byref, c_void_p
from typing import Final

from algosearch.backends.cudnn.descriptor import Descriptors, Room
from algosearch.backends.cudnn.enums import DescriptorKind
from algosearch.backends.cudnn.library import Library

_CREATING: Final = threading.Lock()
"""Handles made side by side cost seconds (openxla/xla#28497); one after the other, 4 ms each."""


class Handle:
    """A `cudnnHandle_t`. Made, used and destroyed in one thread, whose current CUDA device it belongs to.

    Raises:
        CudnnError: there is no device, or the library does not support it.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self.pointer = c_void_p()
        self.stream = c_void_p(0)
        """What it executes on, for what is queued beside it: always this object, set anew."""
        with _CREATING:
            library.check(library.long.cudnnCreate(byref(self.pointer)), "cudnnCreate")
        self._descriptors = Descriptors(library)
        self._rooms: dict[DescriptorKind, Room] = {}

    def __repr__(self) -> str:
        return f"<cuDNN handle {self.pointer.value or 0:#x} of {self.library!r}>"

    def set_stream(self, stream: int) -> None:
        """What this handle executes goes to this stream (a `cudaStream_t`; 0 is the default one).

        Raises:
            CudnnError: it is no stream of this device.
        """
        self.library.check(self.library.long.cudnnSetStream(self.pointer, stream), "cudnnSetStream")
        self.stream.value = stream

    def room(self, kind: DescriptorKind, count: int) -> Room:
        """At least `count` descriptors to read into, of each kind the same ones every time: making them afresh for each
        engine configuration takes three times as long as reading it."""
        room = self._rooms.get(kind)
        if room is None or len(room.descriptors) < count:
            room = self._rooms[kind] = self._descriptors.room(kind, count)
        return room

    def destroy(self) -> None:
        """Give it back, after everything that was made with it. Waits for the device; harmless if done twice."""
        self._rooms.clear()
        self._descriptors.destroy()
        pointer, self.pointer = self.pointer, c_void_p()
        if pointer:
            self.library.long.cudnnDestroy(pointer)
