"""The errors that algosearch raises on purpose.

One base, few children. A constructor takes facts and builds the sentence, so that a caller can read the
facts without parsing the text, and the text says what was asked and, where the caller can do something, what to do
next. A noun whose text form people write has its own `InvalidValue` beside it (`algosearch.records.InvalidAlgorithm`).

A failed *trial* is not here: that is data (`algosearch.records.Failure`). An error here means that a request,
a setting or a contract is broken.

Invariant: one stored error may be raised to many waiters, so nobody raises a stored instance. `again()`
makes an equal fresh one; raising one instance twice would grow its traceback with every waiter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from algosearch.saying import shown

__all__ = (
    "AlgosearchError",
    "InvalidValue",
    "InvalidOp",
    "InvalidPolicy",
    "InvalidSetting",
    "NoAlgorithm",
    "NotCached",
    "NotCovered",
    "DeadlineExpired",
    "SearchFailed",
    "SearcherClosed",
    "AlreadyEntered",
    "RequestWithdrawn",
    "FoundAlone",
    "WouldBlockLoop",
    "UnknownDevice",
    "DeviceUnavailable",
    "StoreUnusable",
    "UndecodableRecord",
    "UnreadableExport",
    "ModelError",
    "UnreadableModel",
    "UnknownDimension",
    "InvalidGraph",
    "DoesNotFit",
    "InvalidCall",
    "NotBuilt",
    "NotRunnable",
    "OtherEnvironment",
    "RunFailed",
)


class AlgosearchError(Exception):
    """The base of all of them. Its `args` are the facts that the constructor took, in order."""

    def __init__(self, *facts: object) -> None:
        super().__init__(*facts)

    def again(self) -> Self:
        """An equal, fresh error with the same cause, to be raised to one more waiter."""
        fresh = type(self)(*self.args)
        if self.__cause__ is not None:  # setting it, even to None, hides the context in which the fresh one is raised
            fresh.__cause__ = self.__cause__
        return fresh


class InvalidValue(AlgosearchError, ValueError):
    """A noun was built from values that cannot belong together."""

    noun = "value"

    def __init__(self, field: str, value: object, rule: str) -> None:
        self.field, self.value, self.rule = field, value, rule
        super().__init__(field, value, rule)

    def __str__(self) -> str:
        # The whole of it may be what is wrong, or that it is no sequence of them.
        name = self.field if self.field in (self.noun, f"{self.noun}s") else f"{self.noun}.{self.field}"
        return f"{name} = {shown(self.value)}: {self.rule}"


class InvalidOp(InvalidValue):
    """A `ConvOp` or `BatchNormOp` that describes no computation."""

    noun = "op"


class InvalidPolicy(InvalidValue):
    """A `Policy` whose values make no sense, such as a negative workspace limit."""

    noun = "policy"


class InvalidSetting(AlgosearchError, ValueError):
    """An environment variable or option that cannot be understood."""

    def __init__(self, name: str, value: object, rule: str) -> None:
        self.name, self.value, self.rule = name, value, rule
        super().__init__(name, value, rule)

    def __str__(self) -> str:
        return f"{self.name} = {shown(self.value)}: {self.rule}"


class NoAlgorithm(AlgosearchError, LookupError):
    """The search covered what was asked, and no candidate may be used.

    `reasons` has one line a candidate. Loosen the policy (a larger workspace limit, fewer exclusions) or
    ask another backend.
    """

    def __init__(self, problem: str, reasons: tuple[str, ...]) -> None:
        self.problem, self.reasons = problem, reasons
        super().__init__(problem, reasons)

    def __str__(self) -> str:
        listed = "; ".join(self.reasons[:8]) or "the backend offers no candidate"
        more = f"; and {len(self.reasons) - 8} more" if len(self.reasons) > 8 else ""
        return f"no algorithm for {self.problem}: {listed}{more}; loosen the policy, or ask another backend"


class NotCached(AlgosearchError, LookupError):
    """Mode `cached`, and the stores cannot answer. `reason` says why it was a miss."""

    def __init__(self, problem: str, reason: str) -> None:
        self.problem, self.reason = problem, reason
        super().__init__(problem, reason)

    def __str__(self) -> str:
        return f"mode cached cannot answer {self.problem}: {self.reason}; run `algosearch warm`, or use mode race"


class NotCovered(AlgosearchError, LookupError):
    """A record exists, but none of its searches looked where this policy asks. A named miss."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        return f"the stored searches do not cover this policy: {self.reason}; a further search for it would"


class DeadlineExpired(AlgosearchError, TimeoutError):
    """The deadline passed before even the candidates were known, so no provisional answer exists.

    The search goes on; ask again later.
    """

    def __init__(self, problem: str, deadline_s: float) -> None:
        self.problem, self.deadline_s = problem, deadline_s
        super().__init__(problem, deadline_s)

    def __str__(self) -> str:
        return f"no answer for {self.problem} within {self.deadline_s} s; the search goes on"


class SearchFailed(AlgosearchError, RuntimeError):
    """A backend broke its contract while searching: a bug or a broken installation, never a slow kernel.

    `__cause__` is the original exception.
    """

    def __init__(self, problem: str, what: str) -> None:
        self.problem, self.what = problem, what
        super().__init__(problem, what)

    def __str__(self) -> str:
        return f"the search for {self.problem} broke: {self.what}; a bug or a broken installation: see its cause"


class SearcherClosed(AlgosearchError, RuntimeError):
    """The searcher was closed before, or while, this was asked."""

    def __init__(self, what: str = "the searcher is closed; open another one") -> None:
        super().__init__(what)


class AlreadyEntered(AlgosearchError, RuntimeError):
    """One `open_searcher()` was entered twice. Each opens one searcher, for one block."""

    def __str__(self) -> str:
        return "this open_searcher() was entered before; one open_searcher() is one block: make another one"


class RequestWithdrawn(AlgosearchError, RuntimeError):
    """Somebody awaited a request that had been withdrawn."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(problem)

    def __str__(self) -> str:
        return f"the request for {self.problem} was withdrawn; make another one"


class FoundAlone(AlgosearchError, RuntimeError):
    """Strict mode, and the answer was found while the shared store could not be reached, so that other ranks may go by
    another one. It is offered to them when the store is back; ask again then."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(problem)

    def __str__(self) -> str:
        return (
            f"the answer for {self.problem} was found alone, for the shared store cannot be reached, and strict mode "
            "gives none that other ranks may not share; ask again when the store is back, or open without strict"
        )


class WouldBlockLoop(AlgosearchError, RuntimeError):
    """A blocking call from a thread in which an event loop runs: it would stop that loop."""

    def __init__(self, call: str, instead: str) -> None:
        self.call, self.instead = call, instead
        super().__init__(call, instead)

    def __str__(self) -> str:
        return f"{self.call} would block the event loop that runs in this thread; use {self.instead}"


class UnknownDevice(AlgosearchError, LookupError):
    """`device=` names something that was not found or not opened. `missing` says what its backend lacks, and what to
    install; empty if that is not why."""

    def __init__(self, asked: str, available: Sequence[str], missing: str = "") -> None:
        self.asked, self.available, self.missing = asked, tuple(available), missing
        super().__init__(asked, self.available, missing)

    def __str__(self) -> str:
        found = f"unknown device {self.asked!r}; there is: {', '.join(self.available) or 'none'}"
        return f"{found}; {self.missing}" if self.missing else found


class DeviceUnavailable(AlgosearchError, RuntimeError):
    """A device exists but cannot be opened, or a library that it needs is missing."""

    def __init__(self, device: str, reason: str, remedy: str) -> None:
        self.device, self.reason, self.remedy = device, reason, remedy
        super().__init__(device, reason, remedy)

    def __str__(self) -> str:
        return f"{self.device} cannot be used: {self.reason}; {self.remedy}"


class StoreUnusable(AlgosearchError, RuntimeError):
    """A store cannot be opened, read or written. The searcher goes on without it."""

    def __init__(self, location: str, reason: str, remedy: str) -> None:
        self.location, self.reason, self.remedy = location, reason, remedy
        super().__init__(location, reason, remedy)

    def __str__(self) -> str:
        return f"the store {self.location} cannot be used: {self.reason}; {self.remedy}"


class UndecodableRecord(AlgosearchError, ValueError):
    """Stored bytes that are not a record of this key and schema. Always turned into a miss with this reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        return self.reason


class UnreadableExport(AlgosearchError, ValueError):
    """A file that is no export of records, or one of which no record can be read."""

    def __init__(self, source: str, reason: str) -> None:
        self.source, self.reason = source, reason
        super().__init__(source, reason)

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}; name a file that `algosearch export` wrote"


class ModelError(AlgosearchError, ValueError):
    """The base of what can be wrong with a model."""


class UnreadableModel(ModelError):
    """Not a model, cut short, or absurd."""

    def __init__(self, source: str, reason: str) -> None:
        self.source, self.reason = source, reason
        super().__init__(source, reason)

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


class UnknownDimension(ModelError):
    """The model leaves dimensions open; `flags` sets them, one each."""

    def __init__(self, source: str, names: Sequence[str], flags: Sequence[str]) -> None:
        self.source, self.names, self.flags = source, tuple(names), tuple(flags)
        super().__init__(source, self.names, self.flags)

    def __str__(self) -> str:
        return f"{self.source}: unknown dimension {', '.join(self.names)}; set it with {' '.join(self.flags)}"


class InvalidGraph(ModelError):
    """An op graph in which something does not fit; `where` is the node or the tensor."""

    def __init__(self, graph: str, where: str, reason: str) -> None:
        self.graph, self.where, self.reason = graph, where, reason
        super().__init__(graph, where, reason)

    def __str__(self) -> str:
        return f"{self.graph}, at {self.where or 'what has no name'}: {self.reason}"


class DoesNotFit(AlgosearchError, ValueError):
    """No choice of algorithms makes a step fit into the memory that it was given.

    `filling`: of the worst moment, the task that it is, then what lives there, with its bytes, the largest first.
    """

    def __init__(self, graph: str, memory_bytes: int, needed_bytes: int, filling: Sequence[tuple[str, int]]) -> None:
        self.graph, self.memory_bytes, self.needed_bytes, self.filling = graph, memory_bytes, needed_bytes, filling
        super().__init__(graph, memory_bytes, needed_bytes, filling)

    def __str__(self) -> str:
        (worst, _), *alive = self.filling
        held = ", ".join(f"{name} ({size} bytes)" for name, size in alive)
        return (
            f"{self.graph} does not fit into {self.memory_bytes} bytes: whatever its workspaces are held to, it needs "
            f"{self.needed_bytes}, most at {worst}: {held}; give more memory or a smaller batch"
        )


class InvalidCall(InvalidValue):
    """A plan was called with something that it cannot run on: a wrong shape, type, device, alignment or stride."""

    noun = "plan"


class NotBuilt(AlgosearchError, RuntimeError):
    """An algorithm that was picked cannot be made runnable here; `kind` and `message` are the library's refusal."""

    def __init__(self, problem: str, algorithm: str, kind: str, message: str) -> None:
        self.problem, self.algorithm, self.kind, self.message = problem, algorithm, kind, message
        super().__init__(problem, algorithm, kind, message)

    def __str__(self) -> str:
        return (
            f"{self.algorithm} cannot be built for {self.problem}: {self.kind}: {self.message}; "
            "ask again with a policy that excludes it"
        )


class NotRunnable(AlgosearchError, LookupError):
    """A backend finds algorithms and cannot run them for a caller: what it times is scripted, say."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        super().__init__(backend)

    def __str__(self) -> str:
        return f"what was picked for the backend {self.backend} cannot be run: ask a backend that computes (cpu, cudnn)"


class OtherEnvironment(AlgosearchError, ValueError):
    """A choice was made for another problem, or with other libraries or for another kind of device, than it is to be
    run with. `differences` has (what, there, here); it is empty if what it was made for is not known here."""

    def __init__(self, problem: str, differences: Sequence[tuple[str, str | None, str | None]]) -> None:
        self.problem, self.differences = problem, tuple(differences)
        super().__init__(problem, self.differences)

    def __str__(self) -> str:
        told = ", ".join(f"{what} is {here}, and was {there}" for what, there, here in self.differences)
        return (
            f"this choice is not one for {self.problem} in this environment: "
            f"{told or 'it was made for another op, or with other libraries'}; select again here"
        )


class RunFailed(AlgosearchError, RuntimeError):
    """A plan could not be run, with the library's or the driver's own words. Afterwards the device may be of no more
    use to this process."""

    def __init__(self, problem: str, algorithm: str, message: str) -> None:
        self.problem, self.algorithm, self.message = problem, algorithm, message
        super().__init__(problem, algorithm, message)

    def __str__(self) -> str:
        return f"running {self.algorithm} for {self.problem} failed: {self.message}"
