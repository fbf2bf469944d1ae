"""Which devices there are, why there are none, and what of a device enters a key; without a device."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from algosearch.backends.base import Device
from algosearch.backends.cudnn import CudnnBackend, backend, driver
from algosearch.backends.cudnn.driver import CudaDevice, Driver, DriverMissing
from algosearch.backends.cudnn.library import CudnnUnusable, Library
from algosearch.errors import DeviceUnavailable
from tests.backends.cudnn.fake import FakeCudnn, compiled

FOUND = CudaDevice(
    ordinal=3,
    name="NVIDIA H200",
    uuid="GPU-818a1ac0-79e6-d423-0efe-954efd11e16a",
    compute_capability="9.0",
    multiprocessors=132,
    l2_bytes=62_914_560,
    memory_bytes=150_109_880_320,
)


class FoundDriver:
    def devices(self) -> tuple[CudaDevice, ...]:
        return (replace(FOUND, ordinal=0, uuid="GPU-other"), FOUND)


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has everything."""
    monkeypatch.setattr(Driver, "load", FoundDriver)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(backend, "find", lambda path: ("libcudnn.so.9", "wheel"))


@pytest.mark.usefixtures("complete")
def test_devices_are_told_apart_by_what_they_are_not_by_their_ordinals() -> None:
    devices = CudnnBackend().devices()
    assert [device.name for device in devices] == ["cudnn:0", "cudnn:3"]
    assert len({device.identity for device in devices}) == 2
    assert {device.kind for device in devices} == {"NVIDIA H200"}
    assert CudnnBackend().absence() is None


@pytest.mark.usefixtures("complete")
@pytest.mark.parametrize("lacking", ["driver", "cupy", "cudnn"])
def test_what_is_missing_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    def no_driver() -> Driver:
        raise DriverMissing("there is no NVIDIA driver (libcuda.so.1)", "install it")

    def no_cudnn(path: str | None) -> None:
        raise CudnnUnusable("no cuDNN 9 was found", "pip install it")

    match lacking:
        case "driver":
            monkeypatch.setattr(Driver, "load", no_driver)
        case "cupy":
            monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        case "cudnn":
            monkeypatch.setattr(backend, "find", no_cudnn)
    absence = CudnnBackend().absence()
    assert absence is not None
    assert {"driver": "driver", "cupy": "CuPy", "cudnn": "cuDNN 9"}[lacking] in absence.reason
    assert absence.remedy
    assert CudnnBackend().devices() == ()
    with pytest.raises(DeviceUnavailable, match="cannot be used"):
        CudnnBackend().open(Device(backend="cudnn", ordinal=0, kind="NVIDIA H200", identity="GPU-other"))


@pytest.mark.usefixtures("complete")
def test_all_that_is_missing_beside_the_driver_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_cudnn(path: str | None) -> None:
        raise CudnnUnusable(f"there is no libcudnn.so.9 in {path}", "name its directory")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(backend, "find", no_cudnn)
    monkeypatch.delenv("ALGOSEARCH_CUDNN", raising=False)
    absence = CudnnBackend().absence()
    assert absence is not None
    assert absence.reason == "CuPy is not installed; there is no libcudnn.so.9 in None"
    assert "pip install" in absence.remedy
    assert absence.remedy.endswith("; name its directory")
    assert CudnnBackend().devices() == ()
    assert not caplog.records

    for named in (CudnnBackend(library="/there"), CudnnBackend()):
        caplog.clear()
        assert named.devices() == ()
        (said,) = caplog.messages
        assert said.startswith("going on without GPUs: cudnn cannot be used: CuPy is not installed; ")
        monkeypatch.setenv("ALGOSEARCH_CUDNN", "/there")


@pytest.mark.parametrize(
    ("source", "reason", "remedy"),
    [
        ("SEEN int cuInit(void) { return 100; }", "the driver finds no GPU", "CUDA_VISIBLE_DEVICES"),
        ("SEEN int cuInit(void) { return 999; }", "the driver cannot begin: cuInit answers 999", "nvidia-smi"),
        ("SEEN int cuInit(void) { return 0; }", "", ""),
        ("SEEN int init(void) { return 0; }", "is no driver: ", "install the driver"),
    ],
)
def test_a_driver_that_is_of_no_use_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str, remedy: str
) -> None:
    file = tmp_path / "driver.c"
    events = "".join(f"SEEN int {name}(void) {{ return 0; }}\n" for name in ("cuEventRecord", "cuEventQuery"))
    file.write_text(
        f'#define SEEN __attribute__((visibility("default")))\n{source}\n'
        f"{events}SEEN int cuEventElapsedTime(void) {{ return 0; }}\n"
    )
    monkeypatch.setattr(driver, "_LIBRARY", str(compiled(tmp_path / "libcuda.so.1", sources=(str(file),))))
    if not reason:
        Driver.load()
        return
    with pytest.raises(DriverMissing) as caught:
        Driver.load()
    assert reason in caught.value.reason
    assert remedy in caught.value.remedy


@pytest.mark.usefixtures("complete")
@pytest.mark.parametrize("opening", ["open", "runner", "alone"])
def test_a_cupy_that_cannot_be_imported_is_said_whatever_it_raises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake: FakeCudnn, opening: str
) -> None:
    (tmp_path / "cupy.py").write_text("raise RuntimeError('numpy 9 is too new')")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Library, "load", lambda path: fake.library)
    mine = CudnnBackend()
    with pytest.raises(DeviceUnavailable, match="CuPy cannot be imported: RuntimeError: numpy 9 is too new"):
        getattr(mine, opening)(mine.devices()[0])


@pytest.mark.usefixtures("complete")
def test_a_device_that_is_gone_cannot_be_opened() -> None:
    with pytest.raises(DeviceUnavailable, match="CUDA_VISIBLE_DEVICES"):
        CudnnBackend().open(Device(backend="cudnn", ordinal=9, kind="NVIDIA H200", identity="GPU-gone"))


def test_equal_devices_share_their_answers(fake: FakeCudnn) -> None:
    here = backend.environment_of(fake.library, FOUND)
    there = backend.environment_of(fake.library, replace(FOUND, ordinal=0, uuid="GPU-other", memory_bytes=150 * 10**9))
    assert here == there
    facts = dict(here.facts)
    assert facts["compute_capability"] == "9.0"
    assert facts["memory"] == "140 GiB"
    assert facts["multiprocessors"] == "132"
    assert facts["cudnn"] == fake.library.version_text
    assert "818a1ac0" not in str(here)


@pytest.mark.parametrize(
    "changed", [{"compute_capability": "8.0"}, {"multiprocessors": 114}, {"memory_bytes": 80 << 30}, {"name": "H100"}]
)
def test_unlike_devices_do_not(fake: FakeCudnn, changed: dict[str, object]) -> None:
    other = replace(FOUND, **changed)
    assert backend.environment_of(fake.library, FOUND) != backend.environment_of(fake.library, other)


def test_a_library_that_lacks_a_part_stores_nothing(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.environment_of(fake.library, FOUND).incomplete is None
    monkeypatch.setattr(fake.library, "missing", ("libcudnn_cnn.so.9 is not in /there",))
    assert backend.environment_of(fake.library, FOUND).incomplete == "libcudnn_cnn.so.9 is not in /there"


@pytest.mark.parametrize(
    ("memory_bytes", "said"),
    [(150_109_880_320, "140 GiB"), (85_094_825_984, "80 GiB"), (25_282_281_472, "24 GiB"), (1 << 30, "4 GiB")],
)
def test_memory_is_told_in_classes(memory_bytes: int, said: str) -> None:
    assert backend.memory_class(memory_bytes) == said
