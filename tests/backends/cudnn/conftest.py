"""The fake libcudnn of this process, as good as new for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from algosearch.backends.cudnn.handle import Handle
from tests.backends.cudnn.fake import FakeCudnn, compiled
from tests.backends.cudnn.host_backend import DEVICE, HostBackend
from tests.backends.driven import Driven


@pytest.fixture(scope="session")
def fake_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("fake") / "libfakednn.so")


@pytest.fixture(scope="session")
def fake_session(fake_path: Path) -> FakeCudnn:
    """As it is when it is loaded; for tests that script nothing."""
    return FakeCudnn(fake_path)


@pytest.fixture
def fake(fake_path: Path) -> Iterator[FakeCudnn]:
    """Checks that whatever a test makes of it, directly or not, is given back."""
    fake = FakeCudnn(fake_path)
    fake.reset()
    before = fake.live()
    yield fake
    fake.reset()
    assert fake.live() == before, "handles or descriptors were not given back"


@pytest.fixture
def handle(fake: FakeCudnn) -> Iterator[Handle]:
    """This thread's, of it."""
    handle = Handle(fake.library)
    yield handle
    handle.destroy()


@pytest.fixture
def driven(fake: FakeCudnn) -> Iterator[Driven]:
    """A session of it."""
    backend = HostBackend(fake)
    with Driven(backend, DEVICE) as driven:
        yield driven
