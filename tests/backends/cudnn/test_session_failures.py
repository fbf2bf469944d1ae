"""What goes wrong in a session: whose fault it is, and what becomes of the device."""

from __future__ import annotations

import pytest

from algosearch.backends.cudnn.enums import DescriptorKind
from algosearch.backends.cudnn.gpu import CudaFault
from algosearch.backends.cudnn.status import CudnnError
from algosearch.records import Burst, Candidate, Failure
from tests.backends.cudnn.fake import FakeCudnn
from tests.backends.cudnn.host_backend import OP, gpu_of, loaded
from tests.backends.cudnn.host_gpu import HostGpu
from tests.backends.cudnn.host_home import words_on_streams
from tests.backends.driven import Driven


def test_a_status_of_a_run_is_the_candidates_failure(fake: FakeCudnn, driven: Driven) -> None:
    plans = loaded(driven)
    plan, other = plans["cudnn/graph:5"], plans["cudnn/graph:0"]
    fake.script("execute", 3007, what=5)
    failure = driven.launch(plan)
    assert isinstance(failure, Failure)
    assert failure.kind == "not_supported"
    first, second = driven.time([(plan, 2), (other, 2)])
    assert isinstance(first, Failure)
    assert isinstance(second, Burst)


@pytest.mark.parametrize("lost", [False, True])
def test_a_suspect_status_is_looked_into(fake: FakeCudnn, driven: Driven, lost: bool) -> None:
    plan = next(iter(loaded(driven).values()))
    gpu = gpu_of(driven)
    fake.script("execute", 5000)
    gpu.lost = lost
    failure = driven.launch(plan)
    assert isinstance(failure, Failure)
    assert failure.kind == "launch_failed"
    assert (driven.session.healthy() is not None) is lost
    gpu.lost = False


def test_a_fault_that_the_device_survives_is_the_candidates(driven: Driven) -> None:
    plan = next(iter(loaded(driven).values()))
    gpu_of(driven).fault = CudaFault("cudaStreamSynchronize", 719, "unspecified launch failure")
    failure = driven.launch(plan)
    assert isinstance(failure, Failure)
    assert failure.kind == "launch_failed"
    assert "719" in failure.message
    gpu_of(driven).fault = CudaFault("cudaStreamSynchronize", 719, "unspecified launch failure")
    assert all(isinstance(each, Failure) for each in driven.time([(plan, 2)]))
    gpu_of(driven).fault = CudaFault("cudaStreamSynchronize", 719, "unspecified launch failure")
    assert isinstance(driven.check(plan, None), Failure)


def test_a_fault_that_it_does_not_survive_is_told_of(driven: Driven) -> None:
    plan = next(iter(loaded(driven).values()))
    assert driven.session.healthy() is None
    gpu_of(driven).lost = True
    (failure,) = driven.time([(plan, 1)])
    assert isinstance(failure, Failure)
    assert "illegal memory access" in failure.message
    assert driven.session.healthy() == failure
    gpu_of(driven).lost = False


def test_a_round_that_it_does_not_survive_may_be_the_fault_of_each(driven: Driven) -> None:
    (first, one), (second, other), *_ = loaded(driven).items()
    gpu_of(driven).lost = True
    failure, same = driven.time([(one, 1), (other, 2)])
    assert failure == same == driven.session.healthy()
    assert isinstance(failure, Failure)
    assert f"{first} or {second} ran" in failure.message
    gpu_of(driven).lost = False


@pytest.mark.parametrize("is_other", [False, True])
def test_who_makes_a_check_impossible_is_the_one_that_ran(
    driven: Driven, monkeypatch: pytest.MonkeyPatch, is_other: bool
) -> None:
    (first, plan), (second, other), *_ = loaded(driven).items()
    gpu, ran = gpu_of(driven), list[int]()
    synchronize = HostGpu.synchronize

    def lose_in_the_second(gpu: HostGpu) -> None:
        ran.append(1)
        gpu.lost = gpu.lost or is_other or len(ran) == 2
        synchronize(gpu)

    monkeypatch.setattr(HostGpu, "synchronize", lose_in_the_second)
    failure = driven.check(plan, other)
    monkeypatch.undo()
    assert failure is not None
    assert failure == driven.session.healthy()
    assert f"since {second if is_other else first} ran" in failure.message
    gpu.lost = False


def test_what_cannot_be_bound_is_the_candidates_failure(fake: FakeCudnn, driven: Driven) -> None:
    plans = driven.runnable(OP)
    driven.load_for(OP, plans)
    (_, one), (_, other), *_ = plans
    fake.script("finalize", 4003, what=DescriptorKind.VARIANT_PACK, times=1)
    failure = driven.launch(one)
    assert isinstance(failure, Failure)
    assert failure.kind == "out_of_memory"
    assert isinstance(driven.launch(one), Burst)
    fake.script("finalize", 2002, what=DescriptorKind.VARIANT_PACK, times=1)
    with pytest.raises(CudnnError, match="bug of algosearch"):
        driven.launch(other)


def test_what_cannot_be_bound_again_for_a_round_is_a_failure(fake: FakeCudnn, driven: Driven) -> None:
    """Between two turns in the lane an op is unloaded, and what was bound to its addresses with it."""
    plans = list(loaded(driven).values())
    driven.unload()
    assert driven.load(OP, 1 << 16) is None
    fake.script("finalize", 4003, what=DescriptorKind.VARIANT_PACK, times=1)
    outcomes = driven.time([(plan, 2) for plan in plans])
    assert {each.kind for each in outcomes if isinstance(each, Failure)} == {"out_of_memory"}
    assert len(outcomes) == len(plans)
    assert all(isinstance(each, Burst) for each in driven.time([(plan, 2) for plan in plans]))


def test_who_needs_more_workspace_than_it_said_is_not_run(fake: FakeCudnn, driven: Driven) -> None:
    fake.engine(77)
    fake.config(77, workspace_bytes=512)
    fake.script("plan_workspace", 1, what=77)
    candidate = next(each for each in driven.enumerate(OP).candidates if each.algorithm == "cudnn/graph:77")
    before = fake.live()
    failure = driven.build(OP, candidate)
    assert isinstance(failure, Failure)
    assert failure.kind == "not_supported"
    assert failure.message == "cudnn/graph:77 was listed with 512 bytes of workspace, and needs 513"
    assert fake.live() > before, "the lane destroys it, and nobody else"
    driven.destroy([])
    assert fake.live() == before


def test_nothing_runs_in_less_workspace_than_it_needs(fake: FakeCudnn, driven: Driven) -> None:
    fake.engine(77)
    fake.config(77, workspace_bytes=512)
    plans = {candidate.algorithm: plan for candidate, plan in driven.runnable(OP)}
    assert driven.load(OP, 511) is None
    with pytest.raises(AssertionError, match="more than 511 bytes"):
        driven.launch(plans["cudnn/graph:77"])


@pytest.mark.parametrize("call", ["create_handle", "stream"])
def test_a_lane_that_finds_no_memory_for_its_handle_tries_again(fake: FakeCudnn, driven: Driven, call: str) -> None:
    plans = driven.runnable(OP)
    before = fake.live()
    fake.script(call, 4004, times=1)
    failure = driven.load(OP, 0)
    assert failure is not None
    assert failure.kind == "out_of_memory"
    assert fake.live() == before, "a handle without its stream is not kept"
    driven.load_for(OP, plans)
    fake.journal()
    assert isinstance(driven.launch(plans[0][1]), Burst)
    assert {line for line in words_on_streams(fake.journal()) if line.startswith("execute")} == {"execute on 0x7"}


def test_a_lane_without_a_handle_for_another_reason_says_so(fake: FakeCudnn, driven: Driven) -> None:
    driven.runnable(OP)
    fake.script("create_handle", 1001, times=1)
    with pytest.raises(CudnnError, match="cudnnCreate"):
        driven.load(OP, 0)


def test_a_plan_for_which_the_library_cannot_be_asked_is_a_failure(fake: FakeCudnn, driven: Driven) -> None:
    fake.script("create_handle", 4004, times=1)
    failure = driven.build(OP, Candidate(algorithm="cudnn/graph:5", rank=0, workspace_bytes=0))
    assert isinstance(failure, Failure)
    assert failure.kind == "out_of_memory"
    assert driven.runnable(OP)
