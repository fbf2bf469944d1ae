"""`algosearch compile`: its options, its object, its files, its ends."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from itertools import combinations
from pathlib import Path

import msgspec
import pytest

from algosearch.backends import discover
from algosearch.backends.simulated import CandidateScript, Fault, Generated, ProblemScript, Script, SimulatedBackend
from algosearch.cli.target import Target
from algosearch.compiler.read import read_graph
from algosearch.compiler.strategies import STRATEGIES
from algosearch.ops import canonical
from tests.cli.helpers import invoke, run, started, the_object, tiny_op, write_ops
from tests.compiler import onnx_graphs
from tests.compiler.verifier import check_plan
from tests.search.gated import GatedBackend

KEPT = ("--single", "--channels-first")
"""No pass replaces an op of these networks: it depends on the moment whether its search has begun by then."""


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "default_backends", lambda: (SimulatedBackend(Script(generated=Generated())),))


def test_the_object_has_the_plan_and_where_the_time_went(tmp_path: Path) -> None:
    store, file = tmp_path / "store", tmp_path / "plan.json"
    args: list[str | Path] = [
        "compile",
        "vit_b16",
        "--nodes",
        "2",
        "--devices-per-node",
        "8",
        *KEPT,
        "--store",
        store,
        "--plan",
        file,
        "--json",
    ]
    result = invoke(*args)
    assert result.exit_code == 0, result.stderr
    report = the_object(result.stdout)
    assert (report["strategy"], report["devices"]) == ("async", 16)
    assert [stage["stage"] for stage in report["stages"]] == ["passes", "reserve", "task graph", "memory plan"]
    assert report["stages"][0]["waited_s"] == 0
    assert report["tasks"] == 16 * len(report["plan"]["tasks"])
    assert (report["searched"], report["distinct"]) == (2, 2)
    assert len(report["waits"]) <= 10
    assert msgspec.json.decode(file.read_bytes()) == report["plan"]
    check_plan(file.read_bytes())
    assert "longest waits" in result.stderr

    again = the_object(invoke(*args).stdout)
    assert (again["searched"], again["store_hits"]) == (0, 2)
    assert again["plan"] == report["plan"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_says_what_it_asked(strategy: str, tmp_path: Path) -> None:
    result = invoke(
        "compile", "vit_b16", "--strategy", strategy, "--store", tmp_path / "store", "--devices-per-node", "4"
    )
    assert result.exit_code == 0, result.stderr
    assert f"vit_b16, {strategy}, 4 devices" in result.stdout
    assert f"queries about {4 if strategy == 'naive' else 2} problems" in result.stdout  # naive asks in passes too


def test_the_passes_of_a_fused_batch_norm_are_one_key_and_two_problems(tmp_path: Path) -> None:
    args = ["compile", "r3d18", "--strategy", "cached", "--store", str(tmp_path / "store")]
    report = the_object(invoke(*args, "--json").stdout)
    problems = len(report["statistics"])
    assert report["distinct"] == report["searched"] == report["listings"] < problems
    assert sum(line["queries"] for line in report["statistics"]) == report["queries"]
    assert f"{report['queries']} queries about {problems} problems, {report['distinct']} keys, " in invoke(*args).stdout


def test_a_trace_has_passes_waits_flights_and_workers(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    result = invoke("compile", "vit_b16", *KEPT, "--store", tmp_path / "store", "--trace", file)
    assert result.exit_code == 0, result.stderr
    events = msgspec.json.decode(file.read_bytes())["traceEvents"]
    named = {event["args"]["name"] for event in events if event["ph"] == "M"}
    rows = {f"simulated:0 {side}" for side in ("prepare", "compile", "lane")}
    assert named == {"compiler", "waits", "flights", "workers"} | rows
    spans = [event for event in events if event["ph"] == "X"]
    assert {"read", "gradients", "placement"} <= {event["name"] for event in spans if event["cat"] == "pass"}
    assert {"choice", "workspace"} == {event["name"] for event in spans if event["cat"] == "wait"}
    assert {"racing", "committing"} <= {event["name"] for event in spans if event["cat"] == "flight"}
    assert all(event["dur"] >= 0 for event in spans)
    for left, right in combinations(spans, 2):  # in the order of time: what is on one row follows or is inside
        if (left["pid"], left["tid"]) == (right["pid"], right["tid"]):
            end, after = left["ts"] + left["dur"], right["ts"] + right["dur"]
            assert end <= right["ts"] or after <= end, (left, right)


def until_each_compiles(backend: GatedBackend, devices: int) -> None:
    """Let the first dear build of each device wait for those of the others, so that none of them does it all."""
    begun: set[int] = set()
    all_begun = threading.Event()

    def before(call: str, subject: object) -> None:
        if call == "compile":
            begun.add(threading.get_ident())
            if len(begun) == devices:
                all_begun.set()
            assert all_begun.wait(20.0)

    backend.before = before


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_trace_has_a_row_for_each_thread_of_each_device(
    isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device has some of the problems; what is on its rows flew there, and then. Where it turned out that
    something dear is to be built, the problem was sent away, and flew again, perhaps to another device."""
    script = Script(generated=Generated(time_us=2_000.0, build_us=2_000.0))
    backend = SimulatedBackend(script, devices=2, pace="real")
    gated = GatedBackend(backend)
    until_each_compiles(gated, 2)
    monkeypatch.setattr(discover, "default_backends", lambda: (gated if isolation == "thread" else backend,))
    monkeypatch.setenv("ALGOSEARCH_ISOLATION", isolation)
    file = tmp_path / "trace.json"
    result = invoke("compile", "r3d18", "--inference", *KEPT, "--store", tmp_path / "store", "--trace", file)
    assert result.exit_code == 0, result.stderr
    events = msgspec.json.decode(file.read_bytes())["traceEvents"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    racing = {(e["args"]["problem"], e["args"]["device"]): e for e in events if e["name"] == "racing"}
    devices = {device for _, device in racing}
    sides = {f"{device} {side}" for device in devices for side in ("prepare", "compile", "lane")}
    if isolation == "thread":
        assert devices == {"simulated:0", "simulated:1"}
        assert set(rows.values()) == sides
    else:  # a child may be so slow to start that the other one has done everything, or nearly
        assert {f"{device} prepare" for device in devices} < set(rows.values()) <= sides
        assert {"compile", "lane"} <= {name.split()[1] for name in rows.values()}

    turns = [event for event in events if event.get("cat") == "worker"]
    assert {(e["args"]["problem"], e["args"]["device"]) for e in turns} == set(racing)
    for turn in turns:
        assert rows[turn["pid"], turn["tid"]] == f"{turn['args']['device']} {turn['args']['side']}"
        assert turn["name"] == turn["args"]["problem"]
    raced = {e["args"]["problem"]: e for e in events if e["name"] == "racing"}  # in the order of time: the last of each
    for problem, flight in raced.items():
        device = flight["args"]["device"]
        lane = [e for e in turns if (e["name"], e["args"]["device"], e["args"]["side"]) == (problem, device, "lane")]
        end = flight["ts"] + flight["dur"]
        assert any(flight["ts"] <= turn["ts"] and turn["ts"] + turn["dur"] <= end for turn in lane)
    for device in devices:  # in all: where a simulated run was too long, the next ones are shorter
        lane_us = sum(e["dur"] for e in turns if e["args"]["device"] == device and e["args"]["side"] == "lane")
        assert lane_us >= 2_000 * sum(flight["args"]["device"] == device for flight in raced.values())


def test_a_warm_compile_draws_its_flights_too(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    args = [*KEPT, "--store", str(tmp_path / "store"), "--trace", str(file)]
    for _ in range(2):
        assert invoke("compile", "vit_b16", *args).exit_code == 0
    events = msgspec.json.decode(file.read_bytes())["traceEvents"]
    flights = [event for event in events if event.get("cat") == "flight"]
    assert {event["name"] for event in flights} == {"reading"}
    assert len({event["args"]["digest"] for event in flights}) >= 2
    assert not any(event.get("cat") == "worker" for event in events)


def test_what_does_not_fit_is_one_line_and_a_refusal(tmp_path: Path) -> None:
    result = invoke("compile", "vit_b16", "--store", tmp_path / "store", "--memory", "1000")
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "vit_b16 does not fit into 1000 bytes" in line
    assert "give more memory or a smaller batch" in line


def test_a_compile_without_an_end_leaves_its_trace_and_one_that_never_began_leaves_none(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    args: list[str | Path] = ["--store", tmp_path / "store", "--trace", file]
    assert invoke("compile", "nothing", *args).exit_code == 2
    assert not file.exists()
    assert invoke("compile", "vit_b16", *args, "--memory", "1000").exit_code == 2
    events = msgspec.json.decode(file.read_bytes())["traceEvents"]
    assert {"memory plan", "choice", "racing"} <= {event["name"] for event in events}


def test_a_budget_that_fits_says_what_it_costs(tmp_path: Path) -> None:
    args: list[str | Path] = ["compile", "resnet50", "--batch", "8", "--store", tmp_path / "store", "--json"]
    free = the_object(invoke(*args).stdout)["plan"]
    held = the_object(invoke(*args, "--memory", str(free["arena_bytes"] - 1)).stdout)["plan"]
    assert held["arena_bytes"] < free["arena_bytes"] == held["unlimited_arena_bytes"]
    assert held["workspace_limit_bytes"] is not None
    assert held["slower"] >= 0
    said = invoke(*args[:-1], "--memory", str(free["arena_bytes"] - 1)).stdout
    assert f"; that costs {held['slower']:.1%} of the tasks' time" in said


def test_what_a_budget_costs_is_not_known_where_nothing_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, _ = read_graph("vit_b16")
    (op,) = {canonical(op) for op in graph.ops}
    candidates = (
        CandidateScript(algorithm="simulated/t:large", time_us=1.0, workspace_bytes=1 << 30),
        CandidateScript(algorithm="simulated/t:small", time_us=2.0),
    )
    script = Script(problems=(ProblemScript(op=op, candidates=candidates),))
    monkeypatch.setattr(discover, "default_backends", lambda: (SimulatedBackend(script),))
    monkeypatch.setenv("ALGOSEARCH_MODE", "heuristic")
    args = ["--inference", "--single", "--channels-first", "--store", str(tmp_path / "store"), "--json"]
    held = invoke("compile", "vit_b16", *args, "--memory", str(1 << 29))
    assert the_object(held.stdout)["plan"]["slower"] is None
    assert "; what that costs is not known, for nothing was timed" in held.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["resnet50", "--strategy", "lazy"], "must be one of naive, fixed, cached, async"),
        (["resnet50", "--memory", "0"], "--memory = 0: must be at least 1"),
        (["resnet50", "--batch", "0"], "--batch = 0: must be at least 1"),
        (["resnet50", "--nodes", "0"], "nodes = 0: must be at least 1"),
        (["resnet50", "--nodes", "99999999", "--devices-per-node", "99999"], "must be at most 1048576"),
        (["resnet51"], "no such file, nor a built-in workload"),
        (["resnet50", "--device", "tpu"], "unknown device 'tpu'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(args: list[str], said: str) -> None:
    result = invoke("compile", *args)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_a_miss_of_mode_cached_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALGOSEARCH_MODE", "cached")
    result = invoke("compile", "vit_b16", "--store", tmp_path / "store")
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if "error" in line]
    assert line.startswith("error: mode cached cannot answer ")
    assert "run `algosearch warm`" in line


def test_a_problem_without_an_algorithm_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = read_graph("vit_b16")
    (op,) = {canonical(op) for op in graph.ops}
    script = Script(problems=(ProblemScript(op=op, candidates=()),), generated=Generated())
    monkeypatch.setattr(discover, "default_backends", lambda: (SimulatedBackend(script),))
    args = ["--inference", "--single", "--channels-first", "--store", str(tmp_path / "store")]
    result = invoke("compile", "vit_b16", *args)
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if "error" in line]
    assert line.startswith("error: no algorithm for ")


@pytest.mark.parametrize("option", ["--plan", "--trace"])
@pytest.mark.parametrize("file", [".", "nowhere/file"])
def test_a_file_that_cannot_be_written_is_said_before_anything_is_asked(option: str, file: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    result = invoke("compile", "vit_b16", "--store", store, option, tmp_path / file)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {option} = ")
    assert "cannot be written: " in line
    assert not store.exists()


def test_the_check_of_a_file_leaves_what_is_there(tmp_path: Path) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_text("kept")
    result = invoke("compile", "vit_b17", "--plan", there, "--trace", new, "--store", tmp_path / "store")
    assert result.exit_code == 2
    assert there.read_text() == "kept"
    assert not new.exists()


def test_one_file_for_two_things_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "plan")
    result = invoke("compile", "vit_b16", "--plan", tmp_path / "plan", "--trace", link, "--store", tmp_path / "store")
    assert result.exit_code == 2
    assert "is the file of --plan as well" in result.stderr


def test_the_model_is_not_written_over(tmp_path: Path) -> None:
    path = onnx_graphs.write(tmp_path, onnx_graphs.conv_model([1, 3, 8, 8], [4, 3, 1, 1]))
    before = path.read_bytes()
    for option in ("--plan", "--trace"):
        result = invoke("compile", path, "--store", tmp_path / "store", option, path)
        assert result.exit_code == 2
        assert f"{option} = '{path}': is the model as well: give each its own" in result.stderr
    assert path.read_bytes() == before


def test_a_model_whose_name_is_no_text_is_compiled(tmp_path: Path) -> None:
    path = onnx_graphs.write(tmp_path, onnx_graphs.conv_model([1, 3, 8, 8], [4, 3, 1, 1]), name="m\udcff.onnx")
    plan, trace = tmp_path / "plan\udcff", tmp_path / "trace\udcff"
    result = invoke("compile", path, "--store", tmp_path / "store", "--plan", plan, "--trace", trace, "--json")
    assert result.exit_code == 0, result.stderr
    assert the_object(result.stdout)["plan"] == msgspec.json.decode(plan.read_bytes())
    assert msgspec.json.decode(plan.read_bytes())["graph"] == "m\ufffd.onnx"
    assert msgspec.json.decode(trace.read_bytes())["traceEvents"]


def test_a_plan_goes_into_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, 1 << 20)  # so that nobody has to read at the same time
        result = invoke("compile", "vit_b16", "--store", tmp_path / "store", "--plan", pipe, "--json")
        assert msgspec.json.decode(file.read()) == the_object(result.stdout)["plan"]


def test_a_signal_while_files_are_written_cuts_none_of_them_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Target.write

    def interrupted(target: Target, data: bytes) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        write(target, data)

    monkeypatch.setattr(Target, "write", interrupted)
    plan = tmp_path / "plan"
    result = invoke("compile", "vit_b16", "--store", tmp_path / "store", "--plan", plan, "--json")
    assert result.exit_code == 0
    assert the_object(result.stdout)["plan"] == msgspec.json.decode(plan.read_bytes())


def test_a_write_that_fails_keeps_the_report(tmp_path: Path) -> None:
    """/dev/full can be opened, and every write to it fails."""
    result = invoke("compile", "vit_b16", "--store", tmp_path / "store", "--plan", "/dev/full", "--json")
    assert result.exit_code == 74
    assert "error: /dev/full cannot be written: " in result.stderr
    assert the_object(result.stdout)["plan"]["tasks"]


def test_a_dimension_that_changes_nothing_is_a_warning(tmp_path: Path) -> None:
    args: list[str | Path] = ["compile", "vit_b16", "--store", tmp_path / "store", "--dim", "heigth=9", "--json"]
    result = invoke(*args)
    assert result.exit_code == 0
    assert "warning: --dim heigth=9 changed nothing: vit_b16 has no dimension to set" in result.stderr
    assert the_object(result.stdout)["unused"] == ["--dim heigth=9"]
    path = onnx_graphs.write(tmp_path, onnx_graphs.conv_model(["N", 3, 8, 8], [4, 3, 1, 1]))
    result = invoke("compile", path, "--store", tmp_path / "store", "--dim", "N=2", "--dim", "M=2")
    assert result.exit_code == 0, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("warning: --dim")]
    assert line == f"warning: --dim M=2 changed nothing: {path} has N, x.1, x.2, x.3"


@pytest.mark.parametrize("devices", [1, 9])
def test_what_each_device_asks_again_is_answered_from_memory(devices: int, tmp_path: Path) -> None:
    args = ["compile", "vit_b16", "--devices-per-node", str(devices), "--store", str(tmp_path / "store"), "--json"]
    first = invoke(*args, *KEPT)
    report = the_object(first.stdout)
    assert report["listings"] == report["searched"] == 2
    assert " 2 probes, " in first.stderr
    # The first one that asks about each of the two may be so late that it is answered from memory as well.
    assert 2 * (devices - 1) <= report["memory_hits"] <= 2 * devices


def test_ops_without_a_graph_cannot_be_compiled(tmp_path: Path) -> None:
    ops = write_ops(tmp_path / "ops.jsonl", [tiny_op()])
    result = invoke("compile", ops)
    assert result.exit_code == 2
    assert "holds ops and no graph" in result.stderr


def test_ctrl_c_keeps_what_was_found(tmp_path: Path) -> None:
    graph, _ = read_graph("vit_b16")
    (op,) = {canonical(op) for op in graph.ops}
    hanging = ProblemScript(op=op, faults=(Fault(at="enumerate", does="hangs"),))
    script = tmp_path / "script.json"
    script.write_bytes(msgspec.json.encode(Script(problems=(hanging,), generated=Generated(), hang_s=600.0)))
    args: list[str | Path] = [
        script,
        "compile",
        "vit_b16",
        "--inference",
        "--single",
        "--channels-first",
        "--store",
        tmp_path / "store",
        "--trace",
        tmp_path / "trace.json",
    ]
    with started(*args, module="tests.cli.simulated_main") as process:
        assert process.stderr is not None
        while "task graph" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=50)
    assert process.returncode == 130, stderr
    assert "interrupted: what was found is kept" in stderr
    assert "Traceback" not in stderr
    events = msgspec.json.decode((tmp_path / "trace.json").read_bytes())["traceEvents"]
    assert {"passes", "reserve", "task graph"} == {event["name"] for event in events if event.get("cat") == "stage"}


def test_who_interrupts_while_a_model_is_read_need_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waited would wait for ever."""
    let_go = threading.Event()

    def reading(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        let_go.wait()

    monkeypatch.setattr("algosearch.compiler.read.read_graph", reading)
    try:
        result = invoke("compile", "vit_b16", "--store", tmp_path / "store")
    finally:
        let_go.set()
    assert result.exit_code == 143
    assert "interrupted" in result.stderr


@pytest.mark.timeout(300)
def test_the_cpu_compiles_a_small_network_in_a_process_of_its_own(tmp_path: Path) -> None:
    args: list[str | Path] = [
        "--device",
        "cpu",
        "--single",
        "--channels-first",
        "--store",
        tmp_path / "store",
        "--json",
    ]
    done = run("compile", "vit_b16", *args, timeout_s=250)
    assert done.returncode == 0, done.stderr
    report = the_object(done.stdout)
    assert report["searched"] == 2
    assert all(task["algorithm"].startswith("cpu/") for task in report["plan"]["tasks"] if task["kind"] == "conv")
