"""The entry point, as a process: what happens before anything of the command line is there."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

CODE = """
import os, signal, sys
from algosearch.__main__ import main

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "algosearch.cli":
            os.kill(os.getpid(), signal.SIGINT)

if {ignored}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if {early}:
    sys.meta_path.insert(0, Watch())
sys.argv = ["algosearch", "--version"]
try:
    main()
finally:
    print(signal.getsignal(signal.SIGINT) is {left})
"""


def run(*, early: bool, ignored: bool) -> subprocess.CompletedProcess[str]:
    left = "signal.SIG_IGN" if ignored else "signal.default_int_handler"
    code = CODE.format(early=early, ignored=ignored, left=left)
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("ignored", [False, True])
def test_it_leaves_the_signal_as_it_was(ignored: bool) -> None:
    done = run(early=False, ignored=ignored)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("algosearch ")
    assert done.stdout.endswith("True\n")


def test_ctrl_c_while_it_is_imported_ends_it_without_a_traceback() -> None:
    done = run(early=True, ignored=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_ctrl_c_that_is_ignored_stays_so() -> None:
    done = run(early=True, ignored=True)
    assert (done.returncode, done.stderr) == (0, "")
