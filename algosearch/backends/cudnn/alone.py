"""`AskAlone`: one question at a time, each with a cuDNN handle made for it and destroyed after it."""

from __future__ import annotations

from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.home import Home
from algosearch.backends.cudnn.library import Library
from algosearch.backends.cudnn.offer import offer_of
from algosearch.ops import Op
from algosearch.records import Listing


class AskAlone:
    """Called from one thread. Of a session there is nothing but the handle: no stream, no memory, no code."""

    def __init__(self, library: Library, home: Home) -> None:
        self._library = library
        self._home = home

    def __repr__(self) -> str:
        return f"<AskAlone {self._home!r}>"

    def __call__(self, op: Op) -> Listing:
        """The candidates of a canonical op, the first of them at least. Blocking: a handle takes milliseconds.

        Raises:
            CudnnError: it cannot be asked.
        """
        with self._home.current():
            handle = Handle(self._library)
            try:
                offer = offer_of(handle, op, self._home)
                if offer is None:
                    return Listing(candidates=(), complete=True)
                try:
                    return offer.listing(1)
                finally:
                    offer.destroy()
            finally:
                handle.destroy()
