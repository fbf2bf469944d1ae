"""A libcudnn that answers what none should: what is made of it, and that nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from algosearch.backends.cudnn.backend import environment_of
from algosearch.backends.cudnn.candidates import engine_of
from algosearch.backends.cudnn.convolution import ConvolutionGraph
from algosearch.backends.cudnn.enums import Attribute, DescriptorKind
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.plan import Plan
from algosearch.backends.cudnn.status import CudnnError
from algosearch.ops import ConvOp
from algosearch.records import Failure, InvalidAlgorithm, Key
from tests.backends.cudnn.fake import FakeCudnn
from tests.backends.cudnn.test_backend import FOUND

OP = ConvOp(input_shape=(2, 8, 6, 6), filter_shape=(8, 8, 3, 3))
MOST, LEAST = 2**31 - 1, -(2**31)


@pytest.fixture
def graph(handle: Handle) -> Iterator[ConvolutionGraph]:
    graph = ConvolutionGraph(handle, OP)
    yield graph
    graph.destroy()


# -- counts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [-4, LEAST, MOST])
@pytest.mark.parametrize(
    "attribute",
    [
        Attribute.ENGINECFG_ENGINE,
        Attribute.ENGINECFG_KNOB_CHOICES,
        Attribute.ENGINECFG_WORKSPACE_SIZE,
        Attribute.ENGINE_GLOBAL_INDEX,
        Attribute.ENGINE_NUMERICAL_NOTE,
        Attribute.ENGINE_BEHAVIOR_NOTE,
    ],
)
def test_a_configuration_of_which_a_count_cannot_be_is_left_out(
    fake: FakeCudnn, graph: ConvolutionGraph, attribute: Attribute, more: int
) -> None:
    other = ConvolutionGraph(graph.handle, OP)
    fake.script("count", more, what=attribute, times=1)
    try:
        assert other.heuristics("instant") == graph.heuristics("instant")[1:]
    finally:
        other.destroy()


@pytest.mark.parametrize(
    "attribute",
    [Attribute.ENGINECFG_ENGINE, Attribute.ENGINECFG_WORKSPACE_SIZE, Attribute.ENGINE_GLOBAL_INDEX],
)
def test_none_where_there_must_be_one(fake: FakeCudnn, graph: ConvolutionGraph, attribute: Attribute) -> None:
    fake.script("count", -1, what=attribute)
    assert graph.heuristics("instant") == []


@pytest.mark.parametrize("more", [-4, LEAST, MOST])
def test_a_list_whose_length_cannot_be_is_none(fake: FakeCudnn, graph: ConvolutionGraph, more: int) -> None:
    before = fake.live()
    fake.script("count", more, what=Attribute.ENGINEHEUR_RESULTS)
    assert graph.heuristics("instant") == []
    assert fake.live() == before


def test_knobs_that_fill_every_room_are_not_read_for_ever(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    fake.script("full", 1, what=Attribute.ENGINECFG_KNOB_CHOICES)
    assert graph.heuristics("instant") == []


def test_more_is_told_than_is_written(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    """What stands in the room behind it is nothing of the library's."""
    right = graph.heuristics("instant", 2)
    fake.script("count", 5, what=Attribute.ENGINEHEUR_RESULTS)
    assert graph.heuristics("instant", 2) == right


# -- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workspace_bytes", [-1, -(2**63)])
def test_less_than_no_workspace_is_no_candidate(fake: FakeCudnn, graph: ConvolutionGraph, workspace_bytes: int) -> None:
    fake.forget_engines()
    fake.engine(1)
    fake.config(1, workspace_bytes=workspace_bytes)
    fake.engine(2)
    fake.config(2, workspace_bytes=64)
    assert [config.engine for config in graph.heuristics("instant")] == [2]


def test_a_plan_of_less_than_no_workspace_is_a_failure(fake: FakeCudnn, graph: ConvolutionGraph) -> None:
    before = fake.live()
    fake.script("plan_workspace", -5000, what=1)
    failure = graph.build(1, ((2, 1), (13, 0)))
    assert isinstance(failure, Failure)
    assert "-904" in failure.message
    assert fake.live() == before


# -- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "said"), [(1, "status"), (2, "\ufffd\ufffd")])
def test_a_status_without_a_readable_name_is_told_by_its_number(
    fake: FakeCudnn, handle: Handle, words: int, said: str
) -> None:
    fake.script("words", words)
    fake.script("create", 9876, what=DescriptorKind.TENSOR)
    with pytest.raises(CudnnError, match=r"\(9876\): scripted") as caught:
        ConvolutionGraph(handle, OP)
    assert said in str(caught.value)
    assert caught.value.fault == "context"


def test_what_is_no_text_in_the_environment_is_a_fact_all_the_same(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "\udcff")
    monkeypatch.setattr(fake.library, "missing", ("libcudnn_cnn.so.9 is not in /a\udcff",))
    environment = environment_of(fake.library, FOUND)
    assert dict(environment.facts)["NVIDIA_TF32_OVERRIDE"] == "\ufffd"
    assert environment.incomplete == "libcudnn_cnn.so.9 is not in /a\ufffd"
    assert Key.of(OP, environment).digest


# -- giving back -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [2000, 5001, 9999])
def test_what_cannot_be_destroyed_is_given_back_all_the_same(fake: FakeCudnn, status: int) -> None:
    before = fake.live()
    fake.script("destroy", status)
    handle = Handle(fake.library)
    graph = ConvolutionGraph(handle, OP)
    plan = graph.build(graph.heuristics("instant")[0].engine, ((2, 1), (13, 0)))
    assert isinstance(plan, Plan)
    for each in (plan, graph, handle):
        each.destroy()
    assert fake.live() == before


@pytest.mark.parametrize("kind", [DescriptorKind.ENGINECFG, DescriptorKind.ENGINE, DescriptorKind.KNOB_CHOICE])
def test_a_room_that_cannot_be_made_leaves_nothing(
    fake: FakeCudnn, graph: ConvolutionGraph, kind: DescriptorKind
) -> None:
    """However often it is tried."""
    if kind is not DescriptorKind.ENGINE:
        fake.script("create", 0, what=kind, times=2)
    fake.script("create", 4003, what=kind)
    before = fake.live()
    for _ in range(3):
        with pytest.raises(CudnnError, match="creating"):
            graph.heuristics("instant")
    kept = 1 if kind is DescriptorKind.KNOB_CHOICE else 0  # the handle's, of an engine to read into
    assert fake.live() <= before + kept


# -- names -----------------------------------------------------------------------------------------------------------


def test_a_knob_beyond_64_bits_is_no_other_knob() -> None:
    """Of as many characters as the least one that there is."""
    assert engine_of(f"cudnn/graph:1?2={-(2**63)}&3={2**63 - 1}") == (1, ((2, -(2**63)), (3, 2**63 - 1)))
    for value in (-(2**63) - 1, 2**63):
        with pytest.raises(InvalidAlgorithm, match="must look like"):
            engine_of(f"cudnn/graph:1?2={value}")
