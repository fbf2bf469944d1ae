"""Finding and loading: in fresh processes, for a process has one cuDNN for good."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from algosearch.backends.cudnn import library, locate
from algosearch.backends.cudnn.library import CudnnUnusable, version_text
from tests.backends.cudnn.fake import SHIM, FakeCudnn, compiled, installed, part

NEW, OLD, TOO_OLD = 92800, 91900, 90105
NOWHERE = 77
"""A CUDA that no machine has: of its libraries only the fake ones are found."""


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("new"), NEW, cuda=NOWHERE)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("old"), OLD, cuda=NOWHERE)


@pytest.fixture
def mine(new: Path, tmp_path: Path) -> Path:
    """A copy to be broken."""
    return shutil.copytree(new, tmp_path / "mine")


def loaded(path: Path | None = None, *, before: str = "", **environ: str) -> dict[str, Any]:
    """What `Library.load` makes of it in a fresh process: its attributes, or the error."""
    code = f"""
import ctypes, json, sys
{before}
from algosearch.backends.cudnn import locate
from algosearch.backends.cudnn.library import CudnnUnusable, Library
try:
    found = Library.load({None if path is None else str(path)!r})
except CudnnUnusable as error:
    print(json.dumps(dict(error=str(error), reason=error.reason, remedy=error.remedy)))
else:
    print(json.dumps(dict(
        version=found.version, source=found.source, directory=found.directory, missing=found.missing,
        facts=found.facts(), cupy="cupy" in sys.modules,
        files=[str(file) for file in locate.loaded_files()],
    )))
"""
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("ALGOSEARCH_CUDNN", *library.OVERRIDES)
    }
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        env={**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


# -- found -----------------------------------------------------------------------------------------------------------


def test_a_given_directory(new: Path) -> None:
    answer = loaded(new)
    assert (answer["version"], answer["source"], answer["directory"]) == (NEW, "given", str(new))
    assert answer["missing"] == []
    assert answer["facts"] == {"cudnn": "9.28.0", "cudart": "77.9", "nvrtc": "no"}
    assert not answer["cupy"]
    assert set(answer["files"]) == {str(file) for file in new.glob("libcudnn*")}


def test_the_variable_names_a_directory_or_the_file(new: Path) -> None:
    for place in (new, new / SHIM):
        answer = loaded(ALGOSEARCH_CUDNN=str(place))
        assert (answer["source"], answer["directory"]) == ("ALGOSEARCH_CUDNN", str(new))


def test_a_wheel(new: Path, tmp_path: Path) -> None:
    """cuBLASLt is in a wheel of its own beside it."""
    wheel = shutil.copytree(new, tmp_path / "nvidia" / "cudnn" / "lib")
    (tmp_path / "nvidia" / "cublas" / "lib").mkdir(parents=True)
    cublas = f"libcublasLt.so.{NOWHERE}"
    (wheel / cublas).rename(tmp_path / "nvidia" / "cublas" / "lib" / cublas)
    answer = loaded(PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert (answer["source"], answer["directory"]) == ("wheel", str(wheel))


def test_a_toolkit(new: Path, tmp_path: Path) -> None:
    shutil.copytree(new, tmp_path / "lib64")
    place, source = _find_with(tmp_path, wheels=[], CUDA_HOME=str(tmp_path))
    assert (place, source) == (tmp_path / "lib64" / SHIM, "toolkit")


def test_the_system(new: Path, tmp_path: Path) -> None:
    place, source = _find_with(tmp_path, wheels=[], LD_LIBRARY_PATH=f":{tmp_path}:{new}")
    assert (place, source) == (new / SHIM, "system")


def test_what_is_loaded_already_comes_before_what_is_installed(new: Path, tmp_path: Path) -> None:
    shutil.copytree(new, tmp_path / "nvidia" / "cudnn" / "lib")
    answer = loaded(before=f"ctypes.CDLL({str(new / SHIM)!r})", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert (answer["source"], answer["directory"]) == ("loaded", str(new))


def test_a_named_one_that_is_loaded_already(new: Path) -> None:
    answer = loaded(before=f"ctypes.CDLL({str(new / SHIM)!r})", ALGOSEARCH_CUDNN=str(new))
    assert answer["source"] == "ALGOSEARCH_CUDNN"


def test_switches_that_change_what_is_offered_are_facts(new: Path) -> None:
    facts = loaded(new, NVIDIA_TF32_OVERRIDE="0", CUDNN_FORCE_JIT_DBG="")["facts"]
    assert facts["NVIDIA_TF32_OVERRIDE"] == "0"
    assert "CUDNN_FORCE_JIT_DBG" not in facts


# -- from one directory ----------------------------------------------------------------------------------------------


def test_an_older_copy_that_the_loader_would_prefer_is_not_mixed_in(new: Path, old: Path) -> None:
    """First that it would be: the shim opens its parts by name."""
    naive = f"print(ctypes.CDLL({str(new / SHIM)!r}).cudnnGraphVersionCheck())"
    code = f"import ctypes; {naive}"
    environ = {**os.environ, "LD_LIBRARY_PATH": str(old)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True)
    assert ended.stdout.strip() == "1002"

    answer = loaded(new, LD_LIBRARY_PATH=str(old))
    assert {str(Path(file).parent) for file in answer["files"]} == {str(new)}


def test_parts_of_another_that_are_loaded_already(new: Path, old: Path) -> None:
    answer = loaded(new, before=f"ctypes.CDLL({str(old / 'libcudnn_ops.so.9')!r})")
    assert answer["reason"].startswith("parts of cuDNN were loaded from ")
    assert str(new) in answer["reason"]
    assert str(old) in answer["reason"]


def test_another_one_that_is_loaded_already(new: Path, old: Path) -> None:
    answer = loaded(before=f"ctypes.CDLL({str(old / SHIM)!r})", ALGOSEARCH_CUDNN=str(new))
    assert str(old / SHIM) in answer["reason"]
    assert f"{new} (ALGOSEARCH_CUDNN) is another" in answer["reason"]


def test_a_directory_of_two_versions(mine: Path) -> None:
    part(mine, "heuristic", OLD)
    answer = loaded(mine)
    assert "do not belong together" in answer["reason"]
    assert "(1002): libcudnn_heuristic.so.9 is of version 91900" in answer["reason"]
    assert "reinstall" in answer["remedy"]


# -- not enough ------------------------------------------------------------------------------------------------------


def test_too_old(tmp_path: Path) -> None:
    answer = loaded(installed(tmp_path, TOO_OLD, cuda=NOWHERE))
    assert "holds cuDNN 9.1.5, and 9.2 is the oldest" in answer["reason"]
    assert "pip install" in answer["remedy"]


def test_a_missing_part_without_which_nothing_works(mine: Path) -> None:
    (mine / "libcudnn_heuristic.so.9").unlink()
    assert loaded(mine)["reason"] == f"{mine} lacks libcudnn_heuristic.so.9"


@pytest.mark.parametrize("name", ["cnn", "engines_tensor_ir"])
def test_a_missing_part_without_which_it_goes_on(mine: Path, tmp_path: Path, name: str) -> None:
    (mine / f"libcudnn_{name}.so.9").unlink()
    shim = compiled(mine / SHIM, f"-DSHIM={NEW}", f"-DCUDART={NOWHERE * 1000}", f"-Wl,-soname,{SHIM}")
    assert loaded(shim)["missing"] == [f"libcudnn_{name}.so.9 is not in {mine}"]


def test_a_part_that_a_version_never_had_is_not_missed(old: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(old, tmp_path / "mine")
    (mine / "libcudnn_engines_tensor_ir.so.9").unlink()
    compiled(mine / SHIM, f"-DSHIM={OLD}", f"-DCUDART={NOWHERE * 1000}", f"-Wl,-soname,{SHIM}")
    assert loaded(mine)["missing"] == []


def test_a_broken_part(mine: Path) -> None:
    (mine / "libcudnn_ops.so.9").write_bytes(b"\x7fELF cut short")
    assert "libcudnn_ops.so.9 cannot be loaded: " in loaded(mine)["reason"]


def test_no_driver(mine: Path, tmp_path: Path) -> None:
    driver = compiled(tmp_path / "libcuda.so.77", "-DVERSION=0", "-Wl,-soname,libcuda.so.77", sources=("fake_part.c",))
    part(mine, "engines_runtime_compiled", NEW, "-Wl,--no-as-needed", str(driver))
    driver.unlink()
    answer = loaded(mine)
    assert "there is no NVIDIA driver" in answer["reason"]
    assert "driver" in answer["remedy"]


def test_without_cublaslt_it_would_abort_the_process(mine: Path) -> None:
    (mine / f"libcublasLt.so.{NOWHERE}").unlink()
    answer = loaded(mine)
    assert f"needs cuBLASLt of CUDA {NOWHERE}: libcublasLt.so.{NOWHERE}" in answer["reason"]
    assert "pip install nvidia-cublas" in answer["remedy"]


def test_a_compiler_is_a_fact(mine: Path, tmp_path: Path) -> None:
    name = f"libnvrtc.so.{NOWHERE}"
    file = compiled(mine / name, "-DVERSION=0", sources=("fake_part.c",))
    assert loaded(mine)["facts"]["nvrtc"] == "yes"
    (tmp_path / "toolkit" / "lib64").mkdir(parents=True)
    file.rename(tmp_path / "toolkit" / "lib64" / name)
    assert loaded(mine)["facts"]["nvrtc"] == "no"
    assert loaded(mine, CUDA_HOME=str(tmp_path / "toolkit"))["facts"]["nvrtc"] == "yes"


def test_something_else_under_its_name(mine: Path) -> None:
    compiled(mine / SHIM, "-DVERSION=0", f"-Wl,-soname,{SHIM}", sources=("fake_part.c",))
    assert "cannot be loaded" in loaded(mine)["reason"]


def test_a_place_that_has_none(tmp_path: Path) -> None:
    with pytest.raises(CudnnUnusable, match=r"there is no libcudnn.so.9 in .* \(given\)"):
        library.find(str(tmp_path))
    with pytest.raises(CudnnUnusable, match="ALGOSEARCH_CUDNN"):
        library.find(environ={"ALGOSEARCH_CUDNN": str(tmp_path / "nothing")})


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000])
def test_a_place_that_cannot_be_looked_at(tmp_path: Path, name: str) -> None:
    place = str(tmp_path / name)
    with pytest.raises(CudnnUnusable, match=r"there is no libcudnn\.so\.9 in "):
        library.find(place)
    with pytest.raises(CudnnUnusable, match="no cuDNN 9 was found"):
        _find_with(tmp_path, wheels=[Path(place)], LD_LIBRARY_PATH=place, CUDA_HOME=place)


@pytest.mark.parametrize(
    ("name", "said"), [("ops", "lacks libcudnn_ops.so.9"), ("cnn", "libcudnn_cnn.so.9 is not in ")]
)
def test_a_part_that_is_no_file_is_not_waited_for(mine: Path, name: str, said: str) -> None:
    file = mine / f"libcudnn_{name}.so.9"
    file.unlink()
    os.mkfifo(file)
    shim = compiled(mine / SHIM, f"-DSHIM={NEW}", f"-DCUDART={NOWHERE * 1000}", f"-Wl,-soname,{SHIM}")
    answer = loaded(shim)
    assert said in (answer["reason"] if "reason" in answer else answer["missing"][0])


def test_one_that_was_replaced_since_it_was_loaded(mine: Path) -> None:
    """As by an upgrade under a running process: what is there now would be a second copy in it."""
    before = f"ctypes.CDLL({str(mine / SHIM)!r}); import os; os.rename({str(mine / 'new')!r}, {str(mine / SHIM)!r})"
    shutil.copy(mine / SHIM, mine / "new")
    answer = loaded(mine, before=before)
    assert answer["reason"] == f"{mine / SHIM} is loaded in this process, and was removed or replaced since"
    assert answer["remedy"] == "start a fresh process"


def test_none_anywhere(tmp_path: Path) -> None:
    with pytest.raises(CudnnUnusable) as caught:
        _find_with(tmp_path, wheels=[tmp_path / "site-packages"], LD_LIBRARY_PATH=str(tmp_path))
    assert "no cuDNN 9 was found: no wheel has it" in str(caught.value)
    assert "site-packages" in caught.value.reason
    assert "no toolkit has it" in caught.value.reason
    assert "no system has it" in caught.value.reason
    assert "pip install 'algosearch[cuda12]'" in caught.value.remedy
    again = caught.value.again()
    assert (str(again), again.device) == (str(caught.value), "cudnn")


# -- small things ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "text"), [(92800, "9.28.0"), (91002, "9.10.2"), (8907, "8.9.7")])
def test_versions_as_people_write_them(number: int, text: str) -> None:
    assert version_text(number) == text


def test_cuda_versions() -> None:
    assert [version_text(number, cuda=True) for number in (12090, 13000, 11080)] == ["12.9", "13.0", "11.8"]


def test_files_are_known_whatever_their_version_is_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r--p 00000000 08:01 1 /usr/lib/libcudnn.so.9.19.0\n"
        "7f01-7f02 r-xp 00001000 08:01 1 /usr/lib/libcudnn.so.9.19.0\n"
        "7f02-7f03 r--p 00000000 08:01 2 /opt/a b/libcudnn_ops.so.9\n"
        "7f03-7f04 r--p 00000000 08:01 3 /usr/lib/libcudnn.so.8\n"
        "7f04-7f05 rw-p 00000000 00:00 0\n"
    )
    monkeypatch.setattr(locate, "_MAPS", maps)
    assert locate.loaded_files() == [Path("/usr/lib/libcudnn.so.9.19.0"), Path("/opt/a b/libcudnn_ops.so.9")]
    assert locate.loaded_shim() == Path("/usr/lib/libcudnn.so.9.19.0")
    monkeypatch.setattr(locate, "_MAPS", tmp_path / "none")
    assert locate.loaded_files() == []
    assert locate.loaded_shim() is None


def test_functions_that_a_version_lacks(fake: FakeCudnn) -> None:
    assert not fake.library.has("cudnnNoSuchThing", ())
    assert fake.library.has("cudnnGetVersion", ())


def _find_with(tmp_path: Path, *, wheels: list[Path], **environ: str) -> tuple[Path, str]:
    """`find`, on a machine that has nothing but what is said."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locate, "_wheels", lambda: wheels)
        patch.setattr(locate, "_USUAL_ROOTS", ())
        patch.setattr(locate, "_LOADER_CACHE", tmp_path / "no cache")
        patch.setattr(locate, "loaded_files", list)
        patch.setattr(sys, "prefix", str(tmp_path / "no prefix"))
        return library.find(environ=environ)
