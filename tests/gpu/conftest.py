"""Everything in this folder needs a CUDA device, CuPy and cuDNN, and is skipped where one of them is missing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from algosearch import Searcher, open_searcher
from algosearch.backends.cudnn import CudnnBackend

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if _HERE in item.path.parents]
    if not here:
        return
    absence = CudnnBackend().absence()
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if absence is not None:
            item.add_marker(pytest.mark.skip(reason=str(absence)))


@pytest.fixture
def lanes() -> None:
    """A GPU is the machine's: whoever else times on it, in whatever run, is waited for."""


@pytest.fixture
async def searcher() -> AsyncIterator[Searcher]:
    """One of the first GPU, in this process, with a store of its own."""
    async with open_searcher(
        store="memory:", backends=[CudnnBackend()], devices=["cudnn:0"], isolation="thread"
    ) as searcher:
        yield searcher
