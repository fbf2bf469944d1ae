"""What a status of cuDNN means for a search: whose fault it is, and what is made of it.

A status is a category and a detail, `code // 1000 * 1000` and `code % 1000` (`CUDNN_STATUS_CATEGORY` in
`cudnn_graph.h`). Details come with every release, so the category decides; only those details are named here that say
something else than their category does.
"""

from __future__ import annotations

from typing import Final, Literal, Self

from algosearch.errors import AlgosearchError
from algosearch.records import Failure, FailureKind

SUCCESS: Final = 0
INTERNAL_ERROR: Final = 4000

Fault = Literal[
    "candidate",  # this engine, or all of them, cannot do this op
    "memory",  # it might, if there were memory
    "environment",  # the installation lacks something: nothing that can be learnt here is true elsewhere
    "context",  # what ran may have broken the device's context: look before the next trial
    "usage",  # this package called the library wrongly
]
Activity = Literal["building", "running"]

_BY_CATEGORY: Final[dict[int, Fault]] = {
    1000: "environment",
    2000: "candidate",  # the same BAD_PARAM is the answer to an op that no engine takes
    3000: "candidate",
    4000: "candidate",
}
_BY_STATUS: Final[dict[int, Fault]] = {
    1007: "candidate",  # RUNTIME_FP_OVERFLOW: the range of values that a persistent batch norm allows was exceeded
    2002: "usage",  # NULL_POINTER
    2003: "usage",  # MISALIGNED_POINTER
    2004: "usage",  # NOT_FINALIZED
    2007: "usage",  # STREAM_MISMATCH
    2010: "usage",  # ATTRIBUTE_TYPE
    2012: "usage",  # DESCRIPTOR_TYPE
    3005: "environment",  # INCOMPATIBLE_CUDA_DRIVER
    3006: "environment",  # INCOMPATIBLE_CUDART
    3008: "environment",  # RUNTIME_PREREQUISITE_MISSING
    3009: "environment",  # SUBLIBRARY_UNAVAILABLE
    4003: "memory",  # HOST_ALLOCATION_FAILED
    4004: "memory",  # DEVICE_ALLOCATION_FAILED
}


class CudnnError(AlgosearchError, RuntimeError):
    """A call of cuDNN failed. `fault` says whose fault that is."""

    def __init__(self, call: str, status: int, message: str) -> None:
        self.call, self.status, self.message = call, status, message
        super().__init__(call, status, message)

    def __str__(self) -> str:
        return f"cuDNN refused {self.call}: {self.message}; {_NEXT[self.fault]}"

    @classmethod
    def nonsense(cls, call: str, answer: str) -> Self:
        """A call succeeded, and its answer cannot be. What it was about is not to be had, and nothing else is known."""
        return cls(call, INTERNAL_ERROR, f"the answer is {answer}, which cannot be")

    @property
    def fault(self) -> Fault:
        """Whose fault it is."""
        return fault_of(self.status)

    def failure(self, activity: Activity) -> Failure:
        """The candidate's failure that this is.

        Raises:
            CudnnError: itself, if it is this package's fault and says nothing about a candidate.
        """
        if self.fault == "usage":
            raise self
        return Failure(
            _kind_of(self.status, activity),
            f"{self.call}: {self.message}",
            (("fault", self.fault), ("status", str(self.status))),
        )


_NEXT: Final[dict[Fault, str]] = {
    "candidate": "try another engine",
    "memory": "free memory and try again",
    "environment": "`algosearch doctor` says what is installed and what is missing",
    "context": "the device's context may be unusable: start a fresh process",
    "usage": "this is a bug of algosearch",
}


def fault_of(status: int) -> Fault:
    """Whose fault a status other than SUCCESS is. What no category tells (5000, and newer ones) is the context's."""
    return _BY_STATUS.get(status) or _BY_CATEGORY.get(status // 1000 * 1000, "context")


def suspects_context(status: int) -> bool:
    """True if the device's context must be tried with something harmless before anything else runs in it."""
    return status != SUCCESS and fault_of(status) == "context"


def _kind_of(status: int, activity: Activity) -> FailureKind:
    match fault_of(status):
        case "memory":
            return "out_of_memory"
        case "candidate" if status // 1000 == 3 or (activity == "building" and status // 1000 == 2):
            return "not_supported"
        case "candidate" if activity == "building":
            return "build_failed"
        case _:
            # Kinds that stay true would outlive the missing part; this one says that another place may do better.
            return "launch_failed"
