"""One program from a function of Dask arrays: its graph, read and planned as that of ``persist``.

The function is called with stand-ins: arrays without data, and other numbers. First these note
whether Python computes with them, and a profile of the call whether C does. Then it is called
twice, with numbers that differ in sign and size. If the programs differ in nothing but the numbers,
each is an argument of the program.
"""

from __future__ import annotations

import math
import pickle
import random
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakValueDictionary

import numpy as np
from dask.array.core import Array
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.tokenize import tokenize

from dask_dgpu.calls.jit import TRACED, listed
from dask_dgpu.errors import DgpuError
from dask_dgpu.optimizer import GraphOptimizer
from dask_dgpu.planner.decisions import foregone, hindrance_of
from dask_dgpu.planner.present import present_on
from dask_dgpu.runtime.plans import Owners
from dask_dgpu.runtime.program import Launch
from dask_dgpu.runtime.scheduler.run import Planned, member_hosts
from dask_dgpu.runtime.worker.calls import repeating
from graph_opt.dask_graph.internals import DataNode
from graph_opt.dask_graph.parse import is_stored
from graph_opt.dask_graph.sent import IncomparableError, SentGraph
from graph_opt.model.names import MARK, as_parameter
from graph_opt.model.piece import Region
from graph_opt.passes import by_name, depth_first, region_of

if TYPE_CHECKING:
    from distributed import Client

Function = Callable[..., Any]

Places = tuple[tuple[int, ...], ...]
"""The ranks of the blocks of some arrays."""

SMALL = 1 << 16
"""Bytes of a result whose blocks come with the answer."""

FACTORS = 1.0, -1000.0
"""Of the numbers of both traces."""

READERS = {"math", "cmath", "numpy"}
"""Packages with functions in C that may read a number."""

LIBRARIES = {"dask", "dask_dgpu", "graph_opt"}
"""Packages that call these for other things."""

ALONE = 1 << 20
"""Bytes of all values of a program for one rank."""


class NotOneProgramError(Exception):
    """Why the ranks cannot compute a function as one program."""


class Unknown:
    """Stands for a block whose value a function may not look at."""

    def __reduce__(self) -> NoReturn:
        raise DgpuError("the value of an argument is not known")

    __array__ = __reduce__


class Scalar(float):
    """A number that is ``used`` once Python computes with its value; to arrays it is no float."""

    used = False


def _noting(name: str) -> Function:
    own = getattr(float, name)

    def method(self: Scalar, *others: Any) -> Any:
        result = own(self, *others)
        if result is not NotImplemented:
            self.used = True
        return result

    return method


for _name in (
    *("__bool__", "__int__", "__round__", "__trunc__", "__floor__", "__ceil__", "__abs__"),
    *("__neg__", "__pos__", "__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"),
    *("__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__"),
    *("__radd__", "__rsub__", "__rmul__", "__rtruediv__", "__rfloordiv__", "__rmod__", "__rpow__"),
    *("__divmod__", "__rdivmod__", "hex", "is_integer", "as_integer_ratio"),
):
    setattr(Scalar, _name, _noting(_name))
Scalar.__hash__ = float.__hash__  # type: ignore[method-assign]


@dataclass(frozen=True)
class Loop:
    """Iterations of a program, a call is one: how it reads values, and the next ones it makes.

    Each iteration takes its inputs from the values at ``feeds``. Then the values and the results,
    one after the other, have the next first values at ``carry``. At the end these are ``like``
    these arrays. It ends after ``most`` iterations, or if it ``waits``, as soon as the value behind
    these, a number, is false.
    """

    feeds: tuple[int, ...]
    carry: tuple[int, ...]
    like: tuple[Array, ...]
    most: int = 1
    waits: bool = False

    @cached_property
    def small(self) -> tuple[int, ...]:
        """The places of arrays whose blocks come with the answer."""
        return tuple(i for i, array in enumerate(self.like) if array.nbytes <= SMALL)


@dataclass(frozen=True)
class Stages:
    """The plans of a loop's iterations, and the owners of its first values before each.

    After the last, they repeat from the one at ``back``.
    """

    plans: list[Planned]
    owners: list[Places]
    back: int = 0

    def after(self, iterations: int) -> Places:
        """Return the owners after so many iterations."""
        return self.owners[repeating(iterations, len(self.owners), self.back)]


@dataclass(eq=False)
class Program:
    """A program, where its inputs come from and its results go, and its plans.

    ``inputs`` are positions of arguments, or arrays that the function refers to. ``results`` are
    the arrays of its outputs, without data. ``returned`` is what the function returns: results, and
    arguments, whose names in the trace are ``given`` with their positions. In the ``tokens`` of the
    program, those of the ``scalars`` stand for these arguments, by position. A program with a
    ``fault`` has computed blocks that differ from their declaration.
    """

    launch: Launch
    inputs: tuple[int | Array, ...]
    results: tuple[Array, ...]
    returned: Any
    given: Mapping[str, int]
    tokens: bytes
    scalars: Mapping[int, bytes]
    plans: dict[Any, Planned] = field(default_factory=dict)
    fault: str = ""

    @cached_property
    def once(self) -> Loop:
        """A call, as a loop of one iteration."""
        read, made = len(self.inputs), len(self.results)
        return Loop(tuple(range(read)), tuple(range(read, read + made)), self.results)

    @cached_property
    def is_tiny(self) -> bool:
        """Whether the first rank computes it alone, if it has all inputs: messages take longer."""
        program = self.launch.program
        nbytes = sum(value.nbytes(at) for value in program.values for at in value.indices())
        return nbytes <= ALONE and not any(node.once for node in program.nodes)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What ranks keep of it besides its text and plans; see :class:`Called`."""
        program = self.launch.program
        return {
            "names": self.launch.names,
            "results": tuple(number for number, _ in program.outputs),
            "places": tuple(value.blocks for value in program.inputs),
        }

    def planned(self, owners: Owners, members: tuple[str, ...]) -> Planned:
        """Return the plan for inputs whose blocks have these owners; all blocks, in order."""
        key = owners, members
        if key not in self.plans:
            read = [
                [ranks[int(np.ravel_multi_index(at, value.grid))] for at in value.indices()]
                if value.grid
                else ranks
                for ranks, value in zip(owners, self.launch.program.inputs, strict=True)
            ]
            size = len(members)
            self.plans[key] = Planned.of(self.launch, member_hosts(members), read, size)
        return self.plans[key]

    @property
    def identity(self) -> Any:
        """All that it is made of; names stand for arrays."""
        return (
            *(self.launch.program.text[0], self.tokens, self.launch.names),
            *(tuple(self.scalars), tuple(self.given), type(self.returned)),
            tuple(each if isinstance(each, int) else each.name for each in self.inputs),
            tuple(each.name for each in listed(self.returned)),
        )

    def stages(self, loop: Loop, owners: Places, members: tuple[str, ...]) -> Stages:
        """Return the plans of a loop's iterations, given the owners of what it reads."""
        carried = len(loop.carry)
        stages = Stages([], [owners[:carried]])
        while len(stages.plans) < loop.most:
            read = *stages.owners[-1], *owners[carried:]
            planned = self.planned(tuple([read[at] for at in loop.feeds]), members)
            ranks = iter(planned.ranks)
            made = [tuple(next(ranks) for _ in each) for _, each in self.launch.program.outputs]
            after = tuple([[*read, *made][at] for at in loop.carry])
            stages.plans.append(planned)
            if after in stages.owners:
                return replace(stages, back=stages.owners.index(after))
            stages.owners.append(after)
        return stages

    def called_with(self, arguments: Sequence[Any]) -> bytes:
        """Return the tokens for these arguments."""
        tokens = self.tokens
        for at, token in self.scalars.items():
            tokens = tokens.replace(token, token_of(arguments[at]))
        return tokens


KNOWN: WeakValueDictionary[Any, Program] = WeakValueDictionary()
"""Programs by their identity: calls of the same code keep one in memory, with its plans."""


def token_of(value: float) -> bytes:
    """Return the token of a number."""
    return as_parameter(value).token.encode()


def trace(
    function: Function, arguments: Sequence[Any], planner: GraphOptimizer, client: Client
) -> Program:
    """Return the program of a function for arguments like these.

    Numbers of type float are arguments of the program, if the function only computes with them
    what Dask computes. Otherwise it is for these values.

    Raises
    ------
    NotOneProgramError
        If the ranks cannot compute all of it as one program.
    """
    planner = planner.calibrated(client)  # once: a measurement may end between two traces
    floats = [i for i, value in enumerate(arguments) if type(value) is float]
    for free in (floats, []) if floats else ([],):
        first, second = (
            _trace(function, arguments, free, factor, planner, client) for factor in FACTORS
        )
        if first is not None and second is not None and _alike(first, second):
            return KNOWN.setdefault(first.identity, first)
    raise NotOneProgramError("the function is another at each call")


def _alike(first: Program, second: Program) -> bool:
    """Whether two traces are of one program, but for their numbers."""
    own = dict(zip(first.scalars.values(), second.scalars.values(), strict=True))
    tokens = [[x for x in t.tokens.split() if x.startswith(MARK.encode())] for t in (first, second)]
    same = [own.get(token, token) for token in tokens[0]] == tokens[1]
    programs = first.launch.program, second.launch.program
    return same and programs[0].text[0] == programs[1].text[0]


def _trace(
    function: Function,
    arguments: Sequence[Any],
    free: Sequence[int],
    factor: float,
    planner: GraphOptimizer,
    client: Client,
) -> Program | None:
    """Trace once; return ``None`` if the function looks at the value of a ``free`` number."""
    given = {at: factor * (1 + random.random()) for at in free}
    stand_ins = {
        i: _stand_in(f"dgpu-jit-{tokenize('dask_dgpu', i)}", argument)
        for i, argument in enumerate(arguments)
        if isinstance(argument, Array)
    }
    scalars = {at: Scalar(value) for at, value in given.items()}
    before = TRACED.set(True)
    try:
        known = dict(enumerate(arguments)) | stand_ins
        if given and _uses(function, (known | scalars).values(), scalars.values()):
            return None
        with np.errstate(all="ignore"):  # as roots of negative numbers
            returned = function(*(known | given).values())
    except Exception as error:
        if given:
            return None
        raise NotOneProgramError(f"without values it fails: {error}") from error
    finally:
        TRACED.reset(before)
    parts = listed(returned)
    if not parts or not all(isinstance(part, Array) for part in parts):
        raise NotOneProgramError("it returns other things than Dask arrays")
    positions = {each.name: at for at, each in stand_ins.items()}
    results = {part.name: part for part in parts if part.name not in positions}
    graph = HighLevelGraph.merge(*(result.dask for result in results.values()))
    keys = [*flatten([result.__dask_keys__() for result in results.values()])]
    captured = {
        name: layer
        for name, layer in graph.layers.items()
        if is_stored(layer) and not graph.dependencies[name]
    }
    blank = {name: _without_data(layer) for name, layer in captured.items()}
    graph = HighLevelGraph({**graph.layers, **blank}, graph.dependencies)
    tokens = {at: token_of(number) for at, number in given.items()}
    try:
        sent = SentGraph.of(graph, keys)
        launch = _launch(*sent.open(), planner, client)
        template = sent.restored(launch.program.text[1])
        names = pickle.loads(sent.restored(pickle.dumps(list(launch.names))))
    except IncomparableError:
        if free:
            return None
        launch = _launch(graph, keys, planner, client)
        template, names = launch.program.text[1], launch.names
    launch = replace(launch, names=tuple(names))
    inputs = [
        positions[name] if name in positions else _array(name, captured[name])
        for name in names[: len(launch.program.inputs)]
    ]
    outputs = [results[names[number]] for number, _ in launch.program.outputs]
    return Program(launch, tuple(inputs), tuple(outputs), returned, positions, template, tokens)


def _uses(function: Function, arguments: Iterable[Any], scalars: Collection[Scalar]) -> bool:
    """Whether a function computes with the value of a number, or may do so in C.

    Functions of :mod:`math` and those that make NumPy's arrays read floats without asking them.
    """
    is_read = False

    def look(frame: FrameType | None, event: str, called: Any) -> None:
        nonlocal is_read
        package = (getattr(called, "__module__", None) or "").partition(".")[0]
        if event != "c_call" or package not in READERS:
            return
        while frame is not None and _package(frame) == "numpy":
            frame = frame.f_back
        is_read |= frame is not None and _package(frame) not in LIBRARIES

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return is_read or any(scalar.used for scalar in scalars)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _stand_in(name: str, array: Array) -> Array:
    """Return an array like another, without data."""
    if any(math.isnan(size) for sizes in array.chunks for size in sizes):
        raise NotOneProgramError("chunks of an argument have unknown sizes")
    stand_in = Array({}, name, array.chunks, meta=array._meta)
    keys = flatten(stand_in.__dask_keys__())
    layer = MaterializedLayer({key: DataNode(key, Unknown()) for key in keys})
    return Array(HighLevelGraph({name: layer}, {name: set()}), name, array.chunks, meta=array._meta)


def _without_data(layer: Layer) -> Layer:
    """Return a layer of blocks without them."""
    tasks = {key: DataNode(key, None) for key in layer}
    return MaterializedLayer(tasks, layer.annotations, layer.collection_annotations)


def _array(name: str, layer: Layer) -> Array:
    """Return the array of a layer of blocks."""
    facts = layer.collection_annotations or {}
    graph = HighLevelGraph({name: layer}, {name: set()})
    return Array(graph, name, facts["chunks"], dtype=facts["dtype"])


def _launch(graph: HighLevelGraph, keys: Any, planner: GraphOptimizer, client: Client) -> Launch:
    """Return the program of a whole graph, and the names of its values."""
    reader = planner.reader(graph, keys)
    pieces = reader.with_pieces(reader.matches.pieces, left=())
    names = [
        name
        for name in depth_first(pieces.dependencies)
        if pieces.dependencies[name] or not pieces.is_stored(name)
    ]
    for name in names:
        piece = pieces.piece(name)
        reason = foregone([name], pieces, planner.facts, "always")
        if piece is not None:
            reason = hindrance_of(Region.of(piece), planner.facts)
        elif name not in pieces.local:
            reason = f"{reader.operation(name)[0]} is left to Dask"
        if reason is not None or pieces.annotations(name):
            raise NotOneProgramError(reason or "layers are annotated")
    if not names:
        raise NotOneProgramError("it computes nothing")
    region = region_of(names, pieces, by_name(pieces.keys))
    if {name for name, _ in region.wanted} != set(by_name(pieces.keys)):
        raise NotOneProgramError("it returns an argument")
    present = present_on(planner.facts.scheduler, client)
    gang = planner.planned(region, reader, present)
    if not gang.fits or gang.prediction.parts > 1:
        raise NotOneProgramError("it does not fit in the memory of the workers at once")
    ((_, launch),) = gang.launches
    return launch
