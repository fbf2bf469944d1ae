"""A handle for each question: over the fake libcudnn, which counts what is not given back."""

from __future__ import annotations

import pytest

from algosearch.backends.base import AsksAlone
from algosearch.backends.cudnn.alone import AskAlone
from algosearch.backends.cudnn.backend import CudnnBackend
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.offer import offer_of
from algosearch.backends.cudnn.status import CudnnError
from algosearch.ops import BatchNormOp, ConvOp, Op, canonical, searched_as
from tests.backends.cudnn.fake import FakeCudnn
from tests.backends.cudnn.host_home import HostHome

CONV = canonical(ConvOp(input_shape=(2, 8, 6, 6), filter_shape=(8, 8, 3, 3)))
NORM = canonical(BatchNormOp(shape=(4, 8, 5, 5), layout="channels_last"))
FUSED = searched_as(
    BatchNormOp(shape=(2, 8, 4, 4), fusion="add_activation", data_type="float16", layout="channels_last")
)


@pytest.mark.parametrize("op", [CONV, NORM, FUSED], ids=["conv", "norm", "fused"])
def test_it_answers_what_a_session_answers_and_keeps_nothing(fake: FakeCudnn, op: Op) -> None:
    handle = Handle(fake.library)
    offer = offer_of(handle, op, HostHome())
    assert offer is not None
    listing = offer.listing(1)
    offer.destroy()
    handle.destroy()
    assert listing.candidates

    before, home = fake.live(), HostHome()
    ask = AskAlone(fake.library, home)
    assert ask(op) == ask(op) == listing
    assert fake.live() == before
    assert home.depth == 0


def test_what_the_library_cannot_do_has_no_candidates(fake: FakeCudnn) -> None:
    op = canonical(ConvOp(input_shape=(2, 8, 6, 6), filter_shape=(8, 8, 3, 3), alignment_bytes=1))
    listing = AskAlone(fake.library, HostHome())(op)
    assert (listing.candidates, listing.complete) == ((), True)


def test_a_handle_that_cannot_be_made_leaves_nothing(fake: FakeCudnn) -> None:
    home = HostHome()
    fake.script("create_handle", 1001)
    with pytest.raises(CudnnError):
        AskAlone(fake.library, home)(NORM)
    assert home.depth == 0


def test_the_backend_can_be_asked_so() -> None:
    assert isinstance(CudnnBackend(), AsksAlone)
