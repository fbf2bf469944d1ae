"""`Offers`: one thread's handle, and what was made with it of the ops that it is at. A thread that builds has one."""

from __future__ import annotations

from typing import Final

from algosearch.backends.cudnn.gpu import Gpu
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.library import Library
from algosearch.backends.cudnn.offer import Offer, offer_of
from algosearch.ops import Op, searched_as

_KEPT: Final = 8
"""Of the keys in hand, and a few more. One is made again in tens of microseconds."""


class Offers:
    """Made anywhere, used in one thread: with the first call of `of` its handle is there."""

    def __init__(self, library: Library, gpu: Gpu) -> None:
        self._library = library
        self._gpu = gpu
        self._handle: Handle | None = None
        self._offers: dict[Op, Offer] = {}

    def __repr__(self) -> str:
        return f"<Offers for {len(self._offers)} ops with {self._handle!r}>"

    def of(self, op: Op) -> Offer | None:
        """What the library has for an op; None if it does no such thing.

        Raises:
            CudnnError: it cannot be asked.
        """
        if searched_as(op) != op:
            raise AssertionError(f"not what is searched for it: {op.describe()}")
        offer = self._offers.pop(op, None)
        if offer is None:
            if self._handle is None:
                self._gpu.enter()
                self._handle = Handle(self._library)
            offer = offer_of(self._handle, op, self._gpu)
            if offer is None:
                return None
        self._offers[op] = offer  # the latest one last
        while len(self._offers) > _KEPT:
            self._offers.pop(next(iter(self._offers))).destroy()
        return offer

    def destroy(self) -> None:
        """Give everything back, in any thread that has entered the device, once nobody else uses it. Harmless twice."""
        for offer in self._offers.values():
            offer.destroy()
        self._offers.clear()
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.destroy()
