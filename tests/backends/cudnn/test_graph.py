"""Graphs, heuristics and plans of convolutions, against a libcudnn that checks and writes down what it is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from algosearch.backends.cudnn.convolution import ConvolutionGraph
from algosearch.backends.cudnn.enums import BehaviorNote, DescriptorKind, HeuristicMode, NumericalNote
from algosearch.backends.cudnn.graph import EngineConfig
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.plan import Plan
from algosearch.backends.cudnn.status import CudnnError
from algosearch.ops import ConvOp
from algosearch.records import Failure
from tests.backends.cudnn.fake import FakeCudnn

CONVOLUTION = ConvOp(
    input_shape=(8, 32, 28, 30),
    filter_shape=(64, 16, 3, 5),
    groups=2,
    stride=(1, 2),
    dilation=(1, 2),
    padding_low=(1, 2),
    padding_high=(0, 3),
    input_layout="channels_last",
    filter_layout="channels_last",
    output_layout="channels_last",
    input_type="float16",
    filter_type="float16",
    output_type="float16",
)
"""Everything in it is told from everything else: 8x64x27x14 comes out."""


@pytest.fixture
def graph(handle: Handle) -> Iterator[ConvolutionGraph]:
    graph = ConvolutionGraph(handle, CONVOLUTION)
    yield graph
    graph.destroy()


# -- what is told ----------------------------------------------------------------------------------------------------

TENSORS_AND_CONVOLUTION = """\
set 17 901 1 1: 2
set 17 902 3 4: 8 32 28 30
set 17 903 3 4: 26880 1 960 32
set 17 906 3 1: 1
set 17 900 3 1: 16
finalize 17
set 17 901 1 1: 2
set 17 902 3 4: 64 16 3 5
set 17 903 3 4: 240 1 80 16
set 17 906 3 1: 2
set 17 900 3 1: 16
finalize 17
set 17 901 1 1: 2
set 17 902 3 4: 8 64 27 14
set 17 903 3 4: 24192 1 896 64
set 17 906 3 1: 3
set 17 900 3 1: 16
finalize 17
set 1 100 1 1: 0
set 1 101 7 1: 1
set 1 106 3 1: 2
set 1 103 3 2: 1 2
set 1 102 3 2: 1 2
set 1 105 3 2: 1 2
set 1 104 3 2: 0 3
finalize 1
"""
GRAPH = "set 15 801 15 1: #{kind}\nset 15 800 0 1: handle\nfinalize 15\n"


@pytest.mark.parametrize(
    ("direction", "kind", "operation"),
    [
        ("forward", 10, (702, 704, 703, 705, 700, 701)),
        ("backward_data", 12, (708, 710, 709, 711, 706, 707)),
        ("backward_filter", 11, (714, 716, 715, 717, 712, 713)),
    ],
)
def test_a_convolution_is_told_as_pytorch_tells_it(
    fake: FakeCudnn, handle: Handle, direction: str, kind: int, operation: tuple[int, ...]
) -> None:
    fake.journal()
    ConvolutionGraph(handle, _changed(direction=direction)).destroy()
    told = "\n".join(line for line in fake.journal() if not line.startswith("destroy")) + "\n"
    convolution, x, w, y, alpha, beta = operation
    assert told == (
        TENSORS_AND_CONVOLUTION
        + f"set {kind} {convolution} 15 1: #1\n"
        + "".join(f"set {kind} {tensor} 15 1: #17\n" for tensor in (x, w, y))
        + f"set {kind} {alpha} 4 1: 1\nset {kind} {beta} 4 1: 0\nfinalize {kind}\n"
        + GRAPH.format(kind=kind)
    )


@pytest.mark.parametrize(
    ("element_type", "accumulate_type", "tensor", "compute", "scale"),
    [
        ("float16", "float32", 2, 0, 4),
        ("float16", "float16", 2, 2, 4),
        ("bfloat16", "float32", 9, 0, 4),
        ("float32", "float32", 0, 0, 4),
        ("float64", "float64", 1, 1, 5),
    ],
)
def test_types(
    fake: FakeCudnn, handle: Handle, element_type: str, accumulate_type: str, tensor: int, compute: int, scale: int
) -> None:
    op = _changed(
        input_type=element_type, filter_type=element_type, output_type=element_type, accumulate_type=accumulate_type
    )
    fake.journal()
    ConvolutionGraph(handle, op).destroy()
    told = fake.journal()
    assert told.count(f"set 17 901 1 1: {tensor}") == 3
    assert f"set 1 100 1 1: {compute}" in told
    assert f"set 10 700 {scale} 1: 1" in told
    assert f"set 10 701 {scale} 1: 0" in told


def test_int8_accumulates_in_int32_and_scales_in_float(fake: FakeCudnn, handle: Handle) -> None:
    op = _changed(input_type="int8", filter_type="int8", output_type="float32", accumulate_type="int32")
    fake.journal()
    ConvolutionGraph(handle, op).destroy()
    told = fake.journal()
    assert [line.split()[-1] for line in told if line.startswith("set 17 901")] == ["3", "3", "0"]
    assert "set 1 100 1 1: 4" in told
    assert "set 10 700 4 1: 1" in told


def test_one_dimension_is_told_as_two_and_three_as_three(fake: FakeCudnn, handle: Handle) -> None:
    fake.journal()
    ConvolutionGraph(handle, ConvOp(input_shape=(2, 4, 9), filter_shape=(6, 4, 3))).destroy()
    told = fake.journal()
    assert "set 17 902 3 4: 2 4 1 9" in told
    assert "set 1 106 3 1: 2" in told
    ConvolutionGraph(handle, ConvOp(input_shape=(2, 4, 5, 6, 7), filter_shape=(6, 4, 3, 3, 3))).destroy()
    told = fake.journal()
    assert "set 17 903 3 5: 840 210 42 7 1" in told
    assert "set 1 106 3 1: 3" in told


def test_the_alignment_is_the_promise(fake: FakeCudnn, handle: Handle) -> None:
    fake.journal()
    ConvolutionGraph(handle, _changed(alignment_bytes=4)).destroy()
    assert fake.journal().count("set 17 900 3 1: 4") == 3


def test_tensors_say_what_a_buffer_must_know(graph: ConvolutionGraph) -> None:
    x, w, y = graph.tensors
    assert [tensor.name for tensor in (x, w, y)] == ["input", "filter", "output"]
    assert [tensor.uid for tensor in (x, w, y)] == [1, 2, 3]
    assert [tensor.written for tensor in (x, w, y)] == [False, False, True]
    assert (x.bytes, w.bytes, y.bytes) == (CONVOLUTION.input_bytes, CONVOLUTION.filter_bytes, CONVOLUTION.output_bytes)
    assert y.shape == CONVOLUTION.output_shape
    assert y.element_type == "float16"


# -- heuristics ------------------------------------------------------------------------------------------------------


def test_configurations_are_read_without_building(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    fake.journal()
    assert graph.heuristics("instant") == [
        EngineConfig(engine=1, knobs=((2, 1), (13, 0)), workspace_bytes=4096, notes=("tensor_core",)),
        EngineConfig(engine=1, knobs=((2, 2), (13, 1)), workspace_bytes=0, notes=("tensor_core",)),
        EngineConfig(
            engine=5,
            knobs=(),
            workspace_bytes=1024,
            notes=("nondeterministic", "reduced_precision", "runtime_compiled"),
        ),
    ]
    told = fake.journal()
    assert told[:3] == ["set 4 201 15 1: #15", "set 4 200 8 1: 0", "finalize 4"]
    assert "finalize 5" not in told


@pytest.mark.parametrize(("mode", "number"), [("instant", 0), ("b", 1), ("fallback", 2), ("a", 3)])
def test_modes(fake: FakeCudnn, graph: ConvolutionGraph, mode: str, number: int) -> None:
    fake.journal()
    graph.heuristics(mode)  # type: ignore[arg-type]
    assert f"set 4 200 8 1: {number}" in fake.journal()


def test_no_more_are_made_than_are_asked_for(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    assert [config.engine for config in graph.heuristics("instant", 1)] == [1]
    before = fake.live()
    assert len(graph.heuristics("instant", 2)) == 2
    assert 2 <= fake.live() - before <= 8  # each with its engine and its knobs
    assert len(graph.heuristics("instant", 100)) == 3


def test_an_engine_of_very_many_knobs_is_read_whole(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    fake.forget_engines()
    knobs = tuple((kind, -kind) for kind in range(70))
    for count in (63, 64, 65, 70):
        fake.engine(count)
        fake.config(count, tuple(reversed(knobs[:count])))
    assert [config.knobs for config in graph.heuristics("instant")] == [knobs[:n] for n in (63, 64, 65, 70)]


def test_descriptors_to_read_into_are_made_once(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    first = graph.heuristics("instant")
    before = fake.live()
    fake.script("create", 4003, what=DescriptorKind.KNOB_CHOICE)
    fake.script("create", 4003, what=DescriptorKind.ENGINE)
    assert graph.heuristics("instant") == first
    again = fake.live() - before  # those that carry a configuration are the graph's, for its plans
    assert graph.heuristics("instant") == first
    assert fake.live() == before + 2 * again


def test_notes_newer_than_this_package_are_kept_as_numbers(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    fake.forget_engines()
    fake.engine(3, numerical=[*range(20)], behavior=[*range(20)])
    fake.config(3)
    (config,) = graph.heuristics("instant")
    known = len(NumericalNote) + len(BehaviorNote)
    assert {"unknown_numerical_10", "unknown_numerical_19", "unknown_behavior_5"} < set(config.notes)
    assert len(config.notes) == 40
    assert sum(note.startswith("unknown_") for note in config.notes) == 40 - known


def test_an_engines_notes_are_asked_for_once(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    first = graph.heuristics("instant")
    fake.script("get", 4003, what=1303)
    fake.script("get", 4003, what=1305)
    assert graph.heuristics("instant") == first


def test_float32_in_tensor_cores_is_tf32(fake: FakeCudnn, handle: Handle) -> None:
    graph = ConvolutionGraph(handle, ConvOp(input_shape=(1, 8, 8, 8), filter_shape=(8, 8, 3, 3)))
    assert [config.notes for config in graph.heuristics("instant", 1)] == [("tensor_core", "tf32")]
    graph.destroy()


def test_a_mode_without_an_answer_lists_nothing(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    fake.script("finalize", 3000, what=DescriptorKind.ENGINEHEUR)
    assert graph.heuristics("instant") == []


def test_a_missing_part_is_not_an_empty_list(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    fake.script("heuristics", 1008, what=HeuristicMode.INSTANT)
    with pytest.raises(CudnnError, match="1008") as caught:
        graph.heuristics("instant")
    assert caught.value.fault == "environment"


def test_a_configuration_whose_workspace_is_refused_is_left_out(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    fake.script("get", 3000, what=303, times=1)
    assert [config.knobs for config in graph.heuristics("instant")] == [((2, 2), (13, 1)), ()]


# -- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_is_built_from_engine_and_knobs(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    fake.journal()
    plan = graph.build(1, ((2, 1), (13, 0)))
    assert isinstance(plan, Plan)
    assert plan.workspace_bytes == 4096
    assert fake.journal() == [
        "set 2 1300 15 1: #15",
        "set 2 1301 3 1: 1",
        "finalize 2",
        "set 7 600 9 1: 2",
        "set 7 601 3 1: 1",
        "finalize 7",
        "set 7 600 9 1: 13",
        "set 7 601 3 1: 0",
        "finalize 7",
        "set 3 300 15 1: #2",
        "set 3 302 15 2: #7 #7",
        "finalize 3",
        "set 5 400 0 1: handle",
        "set 5 401 15 1: #3",
        "finalize 5",
    ]
    plan.destroy()
    plan.destroy()


def test_every_listed_configuration_can_be_built_again(graph: ConvolutionGraph) -> None:
    for config in graph.heuristics("instant") + graph.heuristics("fallback"):
        plan = graph.build(config.engine, config.knobs)
        assert isinstance(plan, Plan)
        assert plan.workspace_bytes == config.workspace_bytes
        plan.destroy()


def test_an_identity_from_elsewhere_is_not_supported(graph: ConvolutionGraph) -> None:
    for engine, knobs in ((99, ()), (1, ((2, 7),))):
        failure = graph.build(engine, knobs)
        assert isinstance(failure, Failure)
        assert failure.kind == "not_supported"
        assert "(3000)" in failure.message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (3001, "not_supported"),
        (3010, "not_supported"),
        (2000, "not_supported"),
        (4000, "build_failed"),
        (4001, "build_failed"),
        (4003, "out_of_memory"),
        (4004, "out_of_memory"),
        (3008, "launch_failed"),
        (3009, "launch_failed"),
        (1008, "launch_failed"),
        (5001, "launch_failed"),
        (9001, "launch_failed"),
    ],
)
def test_a_failed_build_is_data(fake: FakeCudnn, graph: ConvolutionGraph, status: int, kind: str) -> None:
    fake.script("build", status, what=5)
    failure = graph.build(5, ())
    assert isinstance(failure, Failure)
    assert failure.kind == kind
    assert dict(failure.circumstances)["status"] == str(status)
    assert f"({status}): scripted: build 5" in failure.message
    other = graph.build(1, ((2, 2), (13, 1)))
    assert isinstance(other, Plan)
    other.destroy()


def test_a_call_that_was_wrong_is_no_failure_of_a_candidate(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    fake.script("build", 2010)
    with pytest.raises(CudnnError, match="this is a bug of algosearch"):
        graph.build(5, ())


def test_a_plan_outlives_its_graph(handle: Handle) -> None:
    graph = ConvolutionGraph(handle, CONVOLUTION)
    plan = graph.build(5, ())
    assert isinstance(plan, Plan)
    graph.destroy()
    graph.destroy()
    pack = plan.variant_pack({1: 4096, 2: 4096, 3: 4096}, 4096)
    pack.destroy()
    plan.destroy()


# -- trouble ---------------------------------------------------------------------------------------------------------


def test_an_op_that_the_library_refuses(handle: Handle) -> None:
    with pytest.raises(CudnnError, match=r"finalising TENSOR: FAKE_FAILURE \(2000\): alignment 1") as caught:
        ConvolutionGraph(handle, _changed(alignment_bytes=1))
    assert caught.value.failure("building").kind == "not_supported"


@pytest.mark.parametrize("call", ["create", "set", "finalize"])
@pytest.mark.parametrize("what", [1, 10, 15, 17, 102, 700, 704, 800, 801, 903])
def test_whatever_breaks_nothing_is_left_behind(fake: FakeCudnn, handle: Handle, call: str, what: int) -> None:
    before = fake.live()
    fake.script(call, 4003, what=what)
    if (what < 100) != (call in ("create", "finalize")):
        ConvolutionGraph(handle, CONVOLUTION).destroy()  # nothing is called like that
    else:
        with pytest.raises(CudnnError) as caught:
            ConvolutionGraph(handle, CONVOLUTION)
        assert caught.value.fault == "memory"
    assert fake.live() == before


def test_a_handle_that_cannot_be_made(fake: FakeCudnn) -> None:
    fake.script("create_handle", 1001)
    with pytest.raises(CudnnError, match="cudnnCreate") as caught:
        Handle(fake.library)
    assert caught.value.fault == "environment"


def _changed(**fields: object) -> ConvOp:
    described = {name: getattr(CONVOLUTION, name) for name in ConvOp.__struct_fields__}
    return ConvOp(**{**described, **fields})
