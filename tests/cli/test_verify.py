"""`verify`: what became of stored records on this machine, as a table, as an object, as an exit code."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from algosearch.backends import Backend, discover
from algosearch.backends.simulated import CandidateScript, DeviceScript, Fault, ProblemScript, Script, SimulatedBackend
from tests.cli.helpers import digests_in, fill, invoke, record_of, started, the_object, tiny_op, write_ops

FAST, SLOW = "simulated/t:fast", "simulated/t:slow"
OPS = [tiny_op(n) for n in range(4)]
FACTS = {"script": "one"}


def scripted(
    times: dict[int, tuple[float, float]] | None = None,
    *,
    faults: dict[int, Fault] | None = None,
    facts: dict[str, str] | None = None,
    hang_s: float = 10.0,
) -> Script:
    """A device on which the fast and the slow candidate of each op take 100 and 200 µs, or what is said here."""
    problems = []
    for n, op in enumerate(OPS):
        fast_us, slow_us = (times or {}).get(n, (100.0, 200.0))
        fault = (faults[n],) if faults and n in faults else ()
        candidates = (
            CandidateScript(algorithm=FAST, time_us=fast_us, faults=fault),
            CandidateScript(algorithm=SLOW, time_us=slow_us),
        )
        problems.append(ProblemScript(op=op, candidates=candidates))
    return Script(
        problems=tuple(problems), facts=FACTS if facts is None else facts, devices=(DeviceScript(),), hang_s=hang_s
    )


def use(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    backend = SimulatedBackend(script)

    def only_this() -> tuple[Backend, ...]:
        return (backend,)

    monkeypatch.setattr(discover, "default_backends", only_this)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with the four ops in it, as the device was."""
    for name in ("ALGOSEARCH_MODE", "ALGOSEARCH_STORE", "ALGOSEARCH_BASE"):
        monkeypatch.delenv(name, raising=False)
    use(monkeypatch, scripted())
    ops = write_ops(tmp_path / "ops.jsonl", OPS)
    assert invoke("warm", ops, "--store", tmp_path / "store").exit_code == 0
    return tmp_path / "store"


AGED = scripted(
    {1: (150.0, 300.0), 2: (100.0, 50.0)}, faults={3: Fault(at="launch", does="launch_failed", message="gone")}
)
"""The first op as before, the second slower, the third lost to its rival, the fourth broken."""


def verified(store: Path, *args: str, code: int = 0) -> dict[str, Any]:
    result = invoke("verify", *args, "--store", store, "--json")
    assert result.exit_code == code, result.stderr
    return the_object(result.stdout)


def test_all_is_as_it_was(store: Path) -> None:
    report = verified(store)
    assert (report["store"], report["records"], report["findings"]) == (str(store), 4, {"steady": 4})
    assert (report["repaired"], report["unanswered"], report["interrupted"], report["failures"]) == (0, 0, False, [])
    assert {verdict["digest"] for verdict in report["verdicts"]} == digests_in(store)
    assert all(verdict["drift"] == pytest.approx(0) for verdict in report["verdicts"])
    result = invoke("verify", "--store", store)
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[:3] == ["records 4", "steady 4", "drift 0.0% in the median, 0.0% at most"]


def test_what_has_aged_is_told_and_nothing_is_changed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, AGED)
    before = (store / "cache.db").read_bytes()
    report = verified(store, code=1)
    assert report["findings"] == {"steady": 1, "drifted": 1, "beaten": 1, "failed": 1}
    by_problem = {verdict["problem"]: verdict for verdict in report["verdicts"]}
    drifted, beaten, failed = (by_problem[op.describe()] for op in OPS[1:])
    assert (drifted["stored_us"], drifted["now_us"], drifted["drift"]) == pytest.approx((100.0, 150.0, 0.5))
    assert (beaten["algorithm"], beaten["best"], beaten["best_us"]) == (FAST, SLOW, pytest.approx(50.0))
    assert (failed["now_us"], failed["drift"], failed["reason"]) == (None, None, "launch_failed: gone")
    assert verified(store, "--tolerance", "60", code=1)["findings"] == {"steady": 2, "beaten": 1, "failed": 1}
    result = invoke("verify", "--store", store)
    assert result.exit_code == 1
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "key problem finding algorithm stored now reason"
    assert any(f"{OPS[1].describe()} drifted {FAST} 100.0 µs 150.0 µs it takes 50.0% more" in line for line in lines)
    assert not any(OPS[0].describe() in line for line in lines)
    assert (store / "cache.db").read_bytes() == before


def test_repair_replaces_what_has_aged(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, AGED)
    report = verified(store, "--repair")
    assert (report["repaired"], report["findings"]["steady"]) == (3, 1)
    assert sorted(verdict["generation"] for verdict in report["verdicts"]) == [0, 1, 1, 1]
    assert verified(store)["findings"] == {"steady": 4}
    listed = the_object(invoke("show", "--store", store, "--json").stdout)["records"]
    assert {record["problem"]: record["algorithm"] for record in listed} == {
        OPS[0].describe(): FAST,
        OPS[1].describe(): FAST,
        OPS[2].describe(): SLOW,
        OPS[3].describe(): SLOW,
    }
    assert "repaired   0" in [
        line.rstrip() for line in invoke("verify", "--repair", "--store", store).stdout.split("\n")
    ]


def test_a_filter(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, AGED)
    assert verified(store, OPS[0].describe())["findings"] == {"steady": 1}
    digest = next(v["digest"] for v in verified(store, code=1)["verdicts"] if v["finding"] == "beaten")
    assert verified(store, digest[:8], "--repair")["repaired"] == 1
    result = invoke("verify", "nothing like it", "--store", store)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("none of the 4 records")


def test_records_of_other_environments_are_named_and_left_alone(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, record_of(tiny_op(7)), record_of(tiny_op(8)))  # of some CPU
    report = verified(store, "--repair")
    assert report["findings"] == {"steady": 4, "foreign": 2}
    result = invoke("verify", "--store", store)
    assert "left alone 2, foreign: there is no Some CPU of cpu here" in result.stdout
    # Where there is nothing else, nothing was verified.
    assert verified(store, "Some CPU", code=1)["findings"] == {"foreign": 2}
    use(monkeypatch, scripted(facts={"script": "two"}))
    report = verified(store, "simulated", code=1)
    assert {verdict["reason"] for verdict in report["verdicts"]} == {"script was one and is two"}


def test_what_breaks_is_told_and_the_rest_is_verified(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, scripted(faults={1: Fault(at="launch", does="raises")}))
    result = invoke("verify", "--store", store, "--json")
    assert result.exit_code == 1
    report = the_object(result.stdout)
    assert report["findings"] == {"steady": 3}
    (failure,) = report["failures"]
    assert failure["problem"] == OPS[1].describe()
    assert f"error: {failure['reason']}" in result.stderr.splitlines()
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--tolerance", "0"], "--tolerance = 0.0: must be above 0"),
        (["--tolerance", "nan"], "must be above 0"),
        (["--tolerance", "1001"], "at most 1000 per cent"),
        (["--device", "gpu"], "unknown device 'gpu'"),
    ],
)
def test_bad_input(store: Path, args: list[str], said: str) -> None:
    result = invoke("verify", *args, "--store", store)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_store_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, scripted())
    result = invoke("verify", "--repair", "--store", tmp_path / "none")
    assert result.exit_code == 0
    assert result.stderr == f"there is no store at {tmp_path / 'none'}\n"
    assert not (tmp_path / "none").exists()


def wait_for_line(process: subprocess.Popen[str], pattern: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(pattern, line):
            return
    pytest.fail(f"it ended without saying {pattern!r}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_tells_what_it_has(store: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    stuck = scripted(faults={n: Fault(at="launch", does="hangs") for n in (1, 2, 3)}, hang_s=600.0)
    path = tmp_path / "stuck.json"
    path.write_bytes(msgspec.json.encode(stuck))
    with started(path, "verify", "--repair", "--store", store, "--json", module="tests.cli.simulated_main") as process:
        wait_for_line(process, r"^\d/4  [1-9]\d? s")
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=50)
    assert process.returncode == code
    report = the_object(stdout)
    assert report["interrupted"] is True
    assert report["unanswered"] == 4 - len(report["verdicts"]) >= 3
    assert report["repaired"] == 0
    assert f"interrupted: {report['unanswered']} of 4 records are not verified" in stderr.splitlines()
    assert "Traceback" not in stderr
