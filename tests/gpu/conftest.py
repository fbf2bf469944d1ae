"""Everything in this folder needs a CUDA device, CuPy and cuDNN, and is skipped where one of them is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

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
