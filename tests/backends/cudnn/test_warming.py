"""What is set up beside the first search."""

from __future__ import annotations

import logging

import pytest

from algosearch.backends.cudnn.enums import DescriptorKind
from algosearch.backends.cudnn.session import CudnnSession
from algosearch.backends.cudnn.warming import ASKED, ask_ahead
from algosearch.records import Environment
from tests.backends.cudnn.fake import FakeCudnn
from tests.backends.cudnn.host_backend import DEVICE, OP
from tests.backends.cudnn.host_gpu import HostGpu

ALLOC_FAILED = 4002


def session_of(fake: FakeCudnn) -> CudnnSession:
    environment = Environment(backend="cudnn", device="Host")
    return CudnnSession(fake.library, HostGpu(l2_bytes=1 << 16), DEVICE, environment)


def shapes_told(lines: list[str]) -> list[str]:
    """Of all tensors."""
    return [" ".join(line.partition(": ")[2].split()) for line in lines if line.startswith("set 17 902 ")]


def test_it_leaves_nothing_behind(fake: FakeCudnn) -> None:
    before = fake.live()
    fake.journal()
    session = session_of(fake)
    session.enumerate(OP, None)
    session.warm_up()
    session.close()
    assert shapes_told(fake.journal()).count("64 64 1 1") == 1
    assert fake.live() == before


@pytest.mark.parametrize("kind", [None, DescriptorKind.TENSOR])
def test_who_needs_it_is_told_what_is_wrong_and_nobody_else(
    fake: FakeCudnn, kind: DescriptorKind | None, caplog: pytest.LogCaptureFixture
) -> None:
    before = fake.live()
    if kind is None:
        fake.script("create_handle", ALLOC_FAILED)
    else:
        fake.script("finalize", ALLOC_FAILED, what=kind)
    with caplog.at_level(logging.DEBUG, "algosearch.devices"):
        ask_ahead(fake.library, HostGpu(l2_bytes=1 << 16))
    assert "was not set up ahead" in caplog.text
    assert fake.live() == before


def test_what_is_asked_about_is_a_matrix_product() -> None:
    assert ASKED.filter_shape[2:] == (1, 1)
    assert ASKED.stride == (1, 1)
