"""How exact a candidate is, as `bench/batchnorm.py` tells it: seen on the host's fake of cuDNN."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from algosearch.backends.cudnn import checking
from algosearch.backends.cudnn.session import CudnnSession
from algosearch.ops import BatchNormOp, Op
from tests.backends.cudnn.fake import FakeCudnn
from tests.backends.cudnn.host_backend import DEVICE, HostBackend

BENCH = Path(__file__).resolve().parents[3] / "bench"
OPS: list[Op] = [
    BatchNormOp(shape=(4, 8, 6, 6)),
    BatchNormOp(shape=(4, 8, 6, 6), phase="backward"),
    BatchNormOp(shape=(4, 8, 6, 6), data_type="float16", layout="channels_last"),
    BatchNormOp(shape=(4, 8, 6, 6), phase="training", fusion="activation", data_type="float16", layout="channels_last"),
]


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module("accuracy")
    sys.modules.pop("accuracy", None)


@pytest.fixture
def session(fake: FakeCudnn) -> Iterator[CudnnSession]:
    session = HostBackend(fake).open(DEVICE)
    yield session
    session.close()


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.describe())
def test_it_is_as_exact_as_its_type(accuracy: ModuleType, session: CudnnSession, op: BatchNormOp) -> None:
    candidates = session.enumerate(op, None).candidates
    found = accuracy.errors(session, op, candidates)
    assert found
    rounding = np.finfo(op.data_type).eps
    assert all(0.0 < error < 16 * rounding for error in found.values()), found
    assert session.buffers is None, "given back"


def test_what_takes_too_much_to_know_is_not_known(
    accuracy: ModuleType, session: CudnnSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "MOST_READ_BYTES", 0)
    assert set(accuracy.errors(session, OPS[0], session.enumerate(OPS[0], None).candidates).values()) == {None}
