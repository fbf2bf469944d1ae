"""Every error: what it says, and that one error can reach many waiters."""

from __future__ import annotations

import copy
import pickle
import traceback
from typing import Any, Final

import pytest

import algosearch
from algosearch import errors
from algosearch.errors import (
    AlgosearchError,
    AlreadyEntered,
    DeadlineExpired,
    DeviceUnavailable,
    DoesNotFit,
    FoundAlone,
    InvalidCall,
    InvalidGraph,
    InvalidOp,
    InvalidPolicy,
    InvalidSetting,
    InvalidValue,
    ModelError,
    NoAlgorithm,
    NotBuilt,
    NotCached,
    NotCovered,
    NotRunnable,
    OtherEnvironment,
    RequestWithdrawn,
    RunFailed,
    SearcherClosed,
    SearchFailed,
    StoreUnusable,
    UndecodableRecord,
    UnknownDevice,
    UnknownDimension,
    UnreadableExport,
    UnreadableModel,
    WouldBlockLoop,
)
from algosearch.records import InvalidAlgorithm, InvalidEnvironment

# Each error that can be raised, with its whole text: what was asked, what is wrong, and what can be done about it.
_FULL: Final = (
    "g does not fit into 1 bytes: whatever its workspaces are held to, it needs 3, most at conv1: x (2 bytes); "
    "give more memory or a smaller batch"
)
_ALONE: Final = (
    "the answer for forward 1x1 was found alone, for the shared store cannot be reached, and strict mode gives none "
    "that other ranks may not share; ask again when the store is back, or open without strict"
)
TEXTS: Final[list[tuple[AlgosearchError, str]]] = [
    (
        InvalidOp("stride", (0, 1), "must be from 1 to 2**63 - 1"),
        "op.stride = (0, 1): must be from 1 to 2**63 - 1",
    ),
    (
        InvalidPolicy("workspace_limit_bytes", "4GB", "must be an integer"),
        "policy.workspace_limit_bytes = '4GB': must be an integer",
    ),
    (InvalidOp("op", 3, "must be a ConvOp"), "op = 3: must be a ConvOp"),
    (InvalidOp("ops", 3, "must be an iterable of ConvOps"), "ops = 3: must be an iterable of ConvOps"),
    (
        InvalidSetting("ALGOSEARCH_MODE", "fast", "must be one of cached, race"),
        "ALGOSEARCH_MODE = 'fast': must be one of cached, race",
    ),
    (InvalidAlgorithm("name", "x", "must look like y"), "algorithm.name = 'x': must look like y"),
    (InvalidEnvironment("facts", (), "must name each"), "environment.facts = (): must name each"),
    (
        NoAlgorithm("forward 1x1", ("a: needs 9 bytes", "b: excluded")),
        "no algorithm for forward 1x1: a: needs 9 bytes; b: excluded; loosen the policy, or ask another backend",
    ),
    (
        NoAlgorithm("forward 1x1", ()),
        "no algorithm for forward 1x1: the backend offers no candidate; loosen the policy, or ask another backend",
    ),
    (
        NoAlgorithm("p", tuple("abcdefghij")),
        "no algorithm for p: a; b; c; d; e; f; g; h; and 2 more; loosen the policy, or ask another backend",
    ),
    (
        NotCached("forward 1x1", "nothing is stored"),
        "mode cached cannot answer forward 1x1: nothing is stored; run `algosearch warm`, or use mode race",
    ),
    (
        NotCovered("too few were looked at"),
        "the stored searches do not cover this policy: too few were looked at; a further search for it would",
    ),
    (
        DeadlineExpired("forward 1x1", 0.5),
        "no answer for forward 1x1 within 0.5 s; the search goes on",
    ),
    (
        SearchFailed("forward 1x1", "KeyError: 3"),
        "the search for forward 1x1 broke: KeyError: 3; a bug or a broken installation: see its cause",
    ),
    (SearcherClosed(), "the searcher is closed; open another one"),
    (SearcherClosed("the searcher closed before this was answered"), "the searcher closed before this was answered"),
    (
        AlreadyEntered(),
        "this open_searcher() was entered before; one open_searcher() is one block: make another one",
    ),
    (RequestWithdrawn("forward 1x1"), "the request for forward 1x1 was withdrawn; make another one"),
    (
        WouldBlockLoop("select_algo.blocking", "await select_algo"),
        "select_algo.blocking would block the event loop that runs in this thread; use await select_algo",
    ),
    (
        UnreadableExport("a.jsonl", "not a file"),
        "a.jsonl: not a file; name a file that `algosearch export` wrote",
    ),
    (UnknownDevice("cuda:9", ["cpu:0", "cuda:0"]), "unknown device 'cuda:9'; there is: cpu:0, cuda:0"),
    (UnknownDevice("cuda:9", ()), "unknown device 'cuda:9'; there is: none"),
    (UnknownDevice("cuda:9", ("cpu:0",), "no GPU"), "unknown device 'cuda:9'; there is: cpu:0; no GPU"),
    (
        DeviceUnavailable("cuda:0", "libcudnn.so.9 is missing", "install it"),
        "cuda:0 cannot be used: libcudnn.so.9 is missing; install it",
    ),
    (StoreUnusable("/x", "it is full", "make room"), "the store /x cannot be used: it is full; make room"),
    (UndecodableRecord("not a record: cut short"), "not a record: cut short"),
    (UnreadableModel("m.onnx", "cut short"), "m.onnx: cut short"),
    (
        UnknownDimension("m.onnx", ["batch", "n"], ["--batch N", "--dim n=N"]),
        "m.onnx: unknown dimension batch, n; set it with --batch N --dim n=N",
    ),
    (FoundAlone("forward 1x1"), _ALONE),
    (InvalidGraph("g", "conv1", "two nodes have this name"), "g, at conv1: two nodes have this name"),
    (
        DoesNotFit("g", 1, 3, [("conv1", 0), ("x", 2)]),
        _FULL,
    ),
    (InvalidCall("input", (1, 2), "must have the shape (2, 1)"), "plan.input = (1, 2): must have the shape (2, 1)"),
    (
        NotBuilt("forward 1x1", "cudnn/graph:5", "build_failed", "no such knob"),
        (
            "cudnn/graph:5 cannot be built for forward 1x1: build_failed: no such knob; ask again with a policy that "
            "excludes it"
        ),
    ),
    (
        NotRunnable("simulated"),
        "what was picked for the backend simulated cannot be run: ask a backend that computes (cpu, cudnn)",
    ),
    (
        OtherEnvironment("forward 1x1", (("facts.cudnn", "9.19.0", "9.28.0"),)),
        (
            "this choice is not one for forward 1x1 in this environment: facts.cudnn is 9.28.0, and was 9.19.0; "
            "select again here"
        ),
    ),
    (
        OtherEnvironment("forward 1x1", ()),
        (
            "this choice is not one for forward 1x1 in this environment: it was made for another op, or with other "
            "libraries; select again here"
        ),
    ),
    (
        RunFailed("forward 1x1", "cudnn/graph:5", "out of memory"),
        "running cudnn/graph:5 for forward 1x1 failed: out of memory",
    ),
]
ABSTRACT: Final = {AlgosearchError, InvalidValue, ModelError}
"""Bases, raised as nothing but their children."""

EACH: Final = pytest.mark.parametrize("error", [error for error, _ in TEXTS], ids=lambda error: type(error).__name__)


def test_every_error_is_here_and_at_the_front_door() -> None:
    defined = {getattr(errors, name) for name in errors.__all__}
    assert {type(error) for error, _ in TEXTS} | ABSTRACT == defined | {InvalidAlgorithm, InvalidEnvironment}
    for name in errors.__all__:
        assert name in algosearch.__all__
        assert getattr(algosearch, name) is getattr(errors, name)


@pytest.mark.parametrize(("error", "text"), TEXTS)
def test_text(error: AlgosearchError, text: str) -> None:
    assert str(error) == text
    assert isinstance(error, AlgosearchError)


@EACH
def test_again_is_equal_fresh_and_of_the_same_cause(error: AlgosearchError) -> None:
    cause = KeyError("cause")
    stored = type(error)(*error.args)
    stored.__cause__ = cause
    fresh = stored.again()
    assert type(fresh) is type(stored)
    assert fresh is not stored
    assert (fresh.args, vars(fresh), str(fresh)) == (stored.args, vars(stored), str(stored))
    assert fresh.__cause__ is cause
    assert fresh.__traceback__ is None


@EACH
def test_many_waiters_do_not_grow_the_traceback(error: AlgosearchError) -> None:
    depths = []
    for _ in range(3):
        try:
            raise error.again()
        except AlgosearchError as caught:
            depths.append(len(traceback.extract_tb(caught.__traceback__)))
    assert depths == [1, 1, 1]
    assert error.__traceback__ is None


def test_again_without_a_cause_keeps_the_context_visible() -> None:
    try:
        try:
            raise KeyError("while handling this")
        except KeyError:
            raise RequestWithdrawn("p").again()  # noqa: B904
    except RequestWithdrawn as caught:
        shown = "".join(traceback.format_exception(caught))
    assert "while handling this" in shown


@EACH
def test_errors_cross_processes(error: AlgosearchError) -> None:
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(same) is type(error)
        assert (same.args, vars(same), str(same)) == (error.args, vars(error), str(error))


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (InvalidOp, ValueError),
        (InvalidPolicy, ValueError),
        (InvalidSetting, ValueError),
        (NoAlgorithm, LookupError),
        (NotCached, LookupError),
        (NotCovered, LookupError),
        (UnknownDevice, LookupError),
        (DeadlineExpired, TimeoutError),
        (SearchFailed, RuntimeError),
        (SearcherClosed, RuntimeError),
        (AlreadyEntered, RuntimeError),
        (StoreUnusable, RuntimeError),
        (UndecodableRecord, ValueError),
        (ModelError, ValueError),
        (UnknownDimension, ModelError),
        (UnreadableModel, ModelError),
    ],
)
def test_what_they_can_be_caught_as(error: type[AlgosearchError], builtin: type[Exception]) -> None:
    assert issubclass(error, builtin)


class _Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [10**5000, "x" * 10_000, list(range(10_000)), _Mute()], ids=type)
def test_no_value_breaks_or_floods_a_message(value: Any) -> None:
    for error in (InvalidOp("field", value, "the rule"), InvalidSetting("NAME", value, "the rule")):
        text = str(error)
        assert text.endswith(": the rule")
        assert len(text) < 300
