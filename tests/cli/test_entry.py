"""The entry point, as a process: what happens before anything of the command line is there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os, signal, sys
from algosearch.__main__ import main

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "algosearch.cli":
            interrupt()

def set_up(app, **_):
    interrupt()

def work(*args, **options):
    try:
        interrupt()
    except KeyboardInterrupt:
        print("raised", flush=True)
        raise

if {ignored}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if {when!r} == "imported":
    sys.meta_path.insert(0, Watch())
elif {when!r} == "set up":
    import typer.main
    typer.main.get_command = set_up
elif {when!r} == "work":
    import algosearch.cli.pages, algosearch.cli.contents
    algosearch.cli.contents.read_contents = work
sys.argv = ["algosearch", "stats", "--store", sys.argv[1]]
try:
    main()
finally:
    if {when!r} == "over":
        interrupt()
    print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
"""


def run(when: str, store: Path, *, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    code = CODE.format(when=when, ignored=ignored)
    args = [sys.executable, "-c", code, str(store)]
    return subprocess.run(args, check=False, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("when", ["imported", "set up", "over"])
def test_ctrl_c_before_and_behind_the_work_ends_it_without_a_traceback(when: str, tmp_path: Path) -> None:
    done = run(when, tmp_path)
    assert done.returncode == -signal.SIGINT
    assert "Traceback" not in done.stderr
    assert "True" not in done.stdout


def test_ctrl_c_at_work_is_an_exception(tmp_path: Path) -> None:
    done = run("work", tmp_path)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert done.stdout == "raised\nFalse\n"


@pytest.mark.parametrize("when", ["imported", "over"])
def test_a_ctrl_c_that_is_ignored_stays_so(when: str, tmp_path: Path) -> None:
    done = run(when, tmp_path, ignored=True)
    assert "Traceback" not in done.stderr
    assert done.stdout.endswith("True\n")
