"""`OperationGraph`: one operation as cuDNN sees it, the engines it has for that, and plans of them.

An engine configuration is known by its identity: the engine's global index and its knobs, which any process with the
same library can build a plan from. What was listed is kept as the library handed it out, so that a plan of it is made
without describing it again, which takes three times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import c_double, c_float
from typing import Final, Literal

import msgspec

from algosearch.backends.cudnn import notes
from algosearch.backends.cudnn.descriptor import Descriptor, Descriptors, Room
from algosearch.backends.cudnn.enums import Attribute, DataType, DescriptorKind, HeuristicMode
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.plan import Plan
from algosearch.backends.cudnn.status import CudnnError
from algosearch.ops.types import Layout, Shape
from algosearch.records import Failure

DATA_TYPES: Final[dict[str, DataType]] = {
    "float16": DataType.HALF,
    "bfloat16": DataType.BFLOAT16,
    "float32": DataType.FLOAT,
    "float64": DataType.DOUBLE,
    "int8": DataType.INT8,
    "int32": DataType.INT32,
}
Knobs = tuple[tuple[int, int], ...]
"""(type, value), sorted by type."""
_KNOB_TYPES: Final = 64
"""Room for an engine's knobs, at first: there are 46 types in 9.28. The library does not say how many it will write."""
_MOST_KNOBS: Final = 4096
Mode = Literal["instant", "a", "b", "fallback"]
_MODES: Final[dict[Mode, HeuristicMode]] = {
    "instant": HeuristicMode.INSTANT,
    "a": HeuristicMode.A,
    "b": HeuristicMode.B,
    "fallback": HeuristicMode.FALLBACK,
}


class GraphTensor(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tensor that a graph reads or writes."""

    uid: int
    """What its address is given under, in a variant pack."""
    name: str
    shape: Shape
    """Channels first, whatever the layout."""
    strides: Shape
    """In elements."""
    element_type: str
    bytes: int
    written: bool
    """True for a result."""
    by_value: bool = False
    """True for a number in host memory."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One way to compute a graph, as the heuristics list it."""

    engine: int
    """The engine's global index."""
    knobs: Knobs
    workspace_bytes: int
    notes: tuple[str, ...]
    """Words, sorted."""


class OperationGraph:
    """A finalised graph of one operation. Owned by one thread, that of its handle, which destroys it.

    It must outlive the *building* of its plans; the plans do not need it.

    Args:
        handle: of this thread.
        tensors: what it reads and writes, in the order in which `operation` is given their descriptors.
        operation: makes the operation's descriptor, finalised.
        float32: whether tensor cores would round what is multiplied to TF32.
        alignment_bytes: what the address of every tensor is a multiple of.
        constants: what is given by value, by uid.

    Raises:
        CudnnError: the library refuses it; with fault "candidate", it can do nothing of this kind.
    """

    def __init__(
        self,
        handle: Handle,
        tensors: tuple[GraphTensor, ...],
        operation: Callable[[Descriptors, list[Descriptor]], Descriptor],
        *,
        float32: bool,
        alignment_bytes: int,
        constants: Mapping[int, c_float | c_double] | None = None,
    ) -> None:
        self.handle = handle
        self.tensors = tensors
        self._float32 = float32
        self._constants = constants
        self._notes: dict[int, tuple[str, ...]] = {}
        self._descriptors = Descriptors(handle.library)
        self._listed: dict[tuple[int, Knobs], Descriptor] = {}
        try:
            described = [tensor_descriptor(self._descriptors, tensor, alignment_bytes) for tensor in tensors]
            self._graph = self._descriptors.new(DescriptorKind.OPERATIONGRAPH)
            self._graph.set(Attribute.OPERATIONGRAPH_OPS, operation(self._descriptors, described))
            self._graph.set(Attribute.OPERATIONGRAPH_HANDLE, handle.pointer.value).finalize(long=True)
        except BaseException:
            self._descriptors.destroy()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(tensor.name for tensor in self.tensors)}>"

    def heuristics(self, mode: Mode, count: int | None = None) -> list[EngineConfig]:
        """The first `count` configurations that a mode lists, best first; all if None. Empty if it lists none.

        Raises:
            CudnnError: for another reason than that there are none.
        """
        with Descriptors(self.handle.library) as mine:
            try:
                heuristics = mine.new(DescriptorKind.ENGINEHEUR)
                heuristics.set(Attribute.ENGINEHEUR_OPERATION_GRAPH, self._graph)
                heuristics.set(Attribute.ENGINEHEUR_MODE, _MODES[mode]).finalize(long=True)
                if count is None:
                    count = heuristics.count(Attribute.ENGINEHEUR_RESULTS)
                room = self._descriptors.room(DescriptorKind.ENGINECFG, count)
                read = self._read_results(heuristics, room)
            except CudnnError as error:
                if error.fault == "candidate":
                    return []
                raise
        for config, descriptor in read:
            if config is not None:
                self._listed.setdefault((config.engine, config.knobs), descriptor)
        return [config for config, _ in read if config is not None]

    def build(self, engine: int, knobs: Knobs) -> Plan | Failure:
        """A plan of one engine with these knobs. Milliseconds, up to a second where it is compiled at run time.

        Raises:
            CudnnError: the library was called wrongly.
        """
        mine = Descriptors(self.handle.library)
        try:
            self._make_plan(mine, engine, knobs)
            return Plan(self.handle, mine, self._constants)
        except CudnnError as error:
            mine.destroy()
            return error.failure("building")
        except BaseException:
            mine.destroy()
            raise

    def destroy(self) -> None:
        """Give it back. Harmless if done twice."""
        self._listed.clear()
        self._descriptors.destroy()

    def _make_plan(self, mine: Descriptors, engine: int, knobs: Knobs) -> None:
        config = self._listed.get((engine, knobs)) or self._describe_config(mine, engine, knobs)
        plan = mine.new(DescriptorKind.EXECUTION_PLAN)
        plan.set(Attribute.EXECUTION_PLAN_HANDLE, self.handle.pointer.value)
        plan.set(Attribute.EXECUTION_PLAN_ENGINE_CONFIG, config).finalize(long=True)

    def _describe_config(self, mine: Descriptors, engine: int, knobs: Knobs) -> Descriptor:
        chosen = mine.new(DescriptorKind.ENGINE)
        chosen.set(Attribute.ENGINE_OPERATION_GRAPH, self._graph)
        chosen.set(Attribute.ENGINE_GLOBAL_INDEX, engine).finalize()
        choices = [
            mine.new(DescriptorKind.KNOB_CHOICE)
            .set(Attribute.KNOB_CHOICE_KNOB_TYPE, kind)
            .set(Attribute.KNOB_CHOICE_KNOB_VALUE, value)
            .finalize()
            for kind, value in knobs
        ]
        config = mine.new(DescriptorKind.ENGINECFG).set(Attribute.ENGINECFG_ENGINE, chosen)
        if choices:
            config.set(Attribute.ENGINECFG_KNOB_CHOICES, *choices)
        return config.finalize()

    def _read_results(self, heuristics: Descriptor, room: Room) -> list[tuple[EngineConfig | None, Descriptor]]:
        """What a mode lists, with the descriptors that hold it; they are given back if it cannot be read."""
        try:
            found = heuristics.fill(Attribute.ENGINEHEUR_RESULTS, room, long=True) if room.descriptors else []
            return [(self._read(config), config) for config in found]
        except BaseException:
            self._descriptors.give_back(room.descriptors)
            raise

    def _read(self, config: Descriptor) -> EngineConfig | None:
        """The identity, workspace and notes of a listed configuration; None if it turns out not to be supported, or if
        what the library says of it cannot be."""
        try:
            workspace_bytes = config.number(Attribute.ENGINECFG_WORKSPACE_SIZE)
            engines = config.fill(Attribute.ENGINECFG_ENGINE, self.handle.room(DescriptorKind.ENGINE, 1))
            if workspace_bytes < 0 or not engines:
                return None
            (engine,) = engines
            index = engine.number(Attribute.ENGINE_GLOBAL_INDEX)
            return EngineConfig(
                engine=index,
                knobs=self._knobs_of(config),
                workspace_bytes=workspace_bytes,
                notes=self._notes_of(index, engine),
            )
        except CudnnError as error:
            if error.fault == "candidate":
                return None
            raise

    def _knobs_of(self, config: Descriptor) -> Knobs:
        count = _KNOB_TYPES
        while True:
            room = self.handle.room(DescriptorKind.KNOB_CHOICE, count)
            choices = config.fill(Attribute.ENGINECFG_KNOB_CHOICES, room)
            if len(choices) < len(room.descriptors):
                break
            count *= 2  # a full room may have cut them short
            if count > _MOST_KNOBS:
                raise CudnnError.nonsense("reading the knobs of an engine", f"more than {_MOST_KNOBS // 2}")

        kind, value = Attribute.KNOB_CHOICE_KNOB_TYPE, Attribute.KNOB_CHOICE_KNOB_VALUE
        return tuple(sorted((choice.number(kind), choice.number(value)) for choice in choices))

    def _notes_of(self, index: int, engine: Descriptor) -> tuple[str, ...]:
        """The notes are the engine's, whatever its knobs, so they are read once."""
        known = self._notes.get(index)
        if known is None:
            known = self._notes[index] = notes.words(
                engine.numbers(Attribute.ENGINE_NUMERICAL_NOTE),
                engine.numbers(Attribute.ENGINE_BEHAVIOR_NOTE),
                float32=self._float32,
            )
        return known


def tensor_descriptor(descriptors: Descriptors, tensor: GraphTensor, alignment_bytes: int) -> Descriptor:
    """A tensor as the library wants it told.

    Raises:
        CudnnError: the library refuses it.
    """
    described = descriptors.new(DescriptorKind.TENSOR)
    if tensor.by_value:
        described.set(Attribute.TENSOR_IS_BY_VALUE, True)
    return (
        described.set(Attribute.TENSOR_DATA_TYPE, DATA_TYPES[tensor.element_type])
        .set(Attribute.TENSOR_DIMENSIONS, *tensor.shape)
        .set(Attribute.TENSOR_STRIDES, *tensor.strides)
        .set(Attribute.TENSOR_UNIQUE_ID, tensor.uid)
        .set(Attribute.TENSOR_BYTE_ALIGNMENT, alignment_bytes)
        .finalize()
    )


def strides_of(shape: Shape, layout: Layout) -> Shape:
    """The strides in elements of a dense tensor [N, C, spatial…]."""
    axes = range(len(shape))
    outermost_first = axes if layout == "channels_first" else (0, *axes[2:], 1)
    strides, step = [0] * len(shape), 1
    for axis in reversed(outermost_first):
        strides[axis] = step
        step *= shape[axis]

    return tuple(strides)
