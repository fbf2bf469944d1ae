"""Every error becomes one line and an exit code, and the command line starts without what it does not need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner, Result

from algosearch import __version__
from algosearch.cli.stop import Stop
from algosearch.cli.verb import as_command
from algosearch.errors import (
    AlgosearchError,
    DeviceUnavailable,
    InvalidOp,
    InvalidSetting,
    SearcherClosed,
    StoreUnusable,
    UnknownDevice,
    UnknownDimension,
    UnreadableModel,
)
from tests.cli.helpers import environ, invoke, run

VERBS = ["warm", "compile", "show", "stats", "doctor", "verify", "prune", "export", "import"]


def outcome_of(error: BaseException | None, *, code: int = 0) -> Result:
    """What comes of a verb that raises an error, or returns a code."""

    def verb() -> int:
        if error is not None:
            raise error
        return code

    app = typer.Typer()
    app.command()(as_command(verb))
    return CliRunner().invoke(app, [], catch_exceptions=False)


@pytest.mark.parametrize("code", [0, 1, 3, 143])
def test_what_a_verb_returns_is_the_exit_code(code: int) -> None:
    result = outcome_of(None, code=code)
    assert (result.exit_code, result.output) == (code, "")


@pytest.mark.parametrize(
    "error",
    [
        InvalidOp("groups", 3, "must\ndivide"),
        InvalidSetting("mode", "fast", "must be one of …"),
        UnreadableModel("m.onnx", "is not a model"),
        UnknownDimension("m.onnx", ("batch",), ("--batch N",)),
        UnknownDevice("gpu", ("cpu:0",)),
        DeviceUnavailable("cpu:0", "no", "buy one"),
        StoreUnusable("/x", "no", "buy one"),
    ],
)
def test_a_refusal_is_one_line(error: AlgosearchError) -> None:
    result = outcome_of(error)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == f"error: {error}\n".replace("must\ndivide", "must divide")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ZeroDivisionError("a bug"), "ZeroDivisionError: a bug"),
        (SearcherClosed("the searcher is closed"), "the searcher is closed"),
    ],
)
def test_an_internal_error_is_one_line_and_how_to_see_more(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unset in ("", "0"):
        monkeypatch.setenv("ALGOSEARCH_DEBUG", unset)
        result = outcome_of(error)
        assert result.exit_code == 70
        assert result.stderr == f"internal error: {text}; ALGOSEARCH_DEBUG=1 shows where\n"
    monkeypatch.setenv("ALGOSEARCH_DEBUG", "1")
    result = outcome_of(error)
    assert result.exit_code == 70
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == f"internal error: {text}"


def test_ctrl_c_anywhere() -> None:
    result = outcome_of(KeyboardInterrupt())
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_says_which_it_was(number: signal.Signals, code: int) -> None:
    with Stop():
        os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt) as caught:
            os.kill(os.getpid(), number)
    assert outcome_of(caught.value).exit_code == code


def test_version() -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"algosearch {__version__}\n")


def test_help_lists_the_verbs_in_their_order() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    commands = result.stdout.partition("Commands:")[2].split("\n")
    assert [line.split()[0] for line in commands if line.strip()] == VERBS


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_a_verb(verb: str, flag: str) -> None:
    result = invoke(verb, flag)
    assert result.exit_code == 0
    assert f" {verb} [OPTIONS]" in result.stdout.splitlines()[0]


@pytest.mark.parametrize("args", [["frobnicate"], ["warm"], ["warm", "resnet50", "--frobnicate"], ["show", "a", "b"]])
def test_wrong_usage(args: list[str]) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Error: " in result.stderr


def test_as_a_module_and_as_a_script() -> None:
    module = run("--version")
    assert (module.returncode, module.stdout, module.stderr) == (0, f"algosearch {__version__}\n", "")
    script = [sys.executable, "-c", "from algosearch.cli import main; main()", "show", "--help"]
    shown = subprocess.run(script, capture_output=True, text=True, env=environ(), timeout=50, check=True)
    assert shown.stdout.startswith("Usage: algosearch show ")


def test_help_costs_neither_onnx_nor_numpy() -> None:
    heavy = "numpy onnx rich asyncio anyio diskcache sqlite3 platformdirs"
    code = f"import sys, algosearch.cli; print(*[name for name in {heavy.split()} if name in sys.modules])"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ(), timeout=50, check=True
    )
    assert shown.stdout == "\n"


def test_where_a_sign_cannot_be_written_another_one_is() -> None:
    shown = run("show", "no such µ record", "--store", "/nonexistent/µ", env=environ(PYTHONIOENCODING="ascii"))
    assert shown.returncode == 0
    assert shown.stderr == "there is no store at /nonexistent/?\n"
