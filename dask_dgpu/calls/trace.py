"""One program from a function of Dask arrays: its graph, read and planned as that of ``persist``.

The function is called with stand-ins: arrays without data, and other numbers. First these note
whether Python computes with them. Then it is called twice. If the programs differ in nothing but
the numbers, each is an argument of the program.
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from dask.array.core import Array
from dask.base import tokenize
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dask_dgpu.errors import DgpuError
from dask_dgpu.optimizer import GraphOptimizer
from dask_dgpu.planner.present import present_on
from dask_dgpu.runtime.program import Launch
from graph_opt.dask_graph.internals import DataNode
from graph_opt.dask_graph.parse import is_stored
from graph_opt.dask_graph.sent import IncomparableError, SentGraph
from graph_opt.model.tokens import MARK, as_parameter
from graph_opt.passes import by_name, depth_first, region_of

if TYPE_CHECKING:
    from distributed import Client

Function = Callable[..., Any]


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
        found = own(self, *others)
        if found is not NotImplemented:
            self.used = True
        return found

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
class Traced:
    """A program, and where its inputs come from and its results go.

    ``inputs`` are positions of arguments, or arrays that the function refers to. ``results`` are
    the arrays that it returns, without data, by their names: ``numbers`` has their places among the
    outputs of the program. ``returned`` is what it returns. In the ``tokens`` of the program, those
    of the ``scalars`` stand for these arguments, by position.
    """

    launch: Launch
    inputs: tuple[int | Array, ...]
    results: tuple[Array, ...]
    returned: Any
    tokens: bytes
    scalars: Mapping[int, bytes]

    def called_with(self, arguments: Sequence[Any]) -> bytes:
        """Return the tokens for these arguments."""
        tokens = self.tokens
        for at, token in self.scalars.items():
            tokens = tokens.replace(token, token_of(arguments[at]))
        return tokens


def token_of(value: float) -> bytes:
    """Return the token of a number."""
    return as_parameter(value).token.encode()


def trace(
    function: Function, arguments: Sequence[Any], planner: GraphOptimizer, client: Client
) -> Traced:
    """Return the program of a function for arguments like these.

    Numbers of type float are arguments of the program, if the function only computes with them
    what Dask computes. Otherwise it is for these values.

    Raises
    ------
    NotOneProgramError
        If the ranks cannot compute all of it as one program.
    """
    floats = [at for at, value in enumerate(arguments) if type(value) is float]
    for free in (floats, []) if floats else ([],):
        first, second = (_trace(function, arguments, free, planner, client) for _ in range(2))
        if first is not None and second is not None and _alike(first, second):
            return first
    raise NotOneProgramError("the function is another at each call")


def _alike(first: Traced, second: Traced) -> bool:
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
    planner: GraphOptimizer,
    client: Client,
) -> Traced | None:
    """Trace once; return ``None`` if the function looks at the value of a ``free`` number."""
    given = {at: 1 + random.random() for at in free}
    stand_ins = {
        at: _stand_in(f"dgpu-jit-{tokenize('dask_dgpu', at)}", each)
        for at, each in enumerate(arguments)
        if isinstance(each, Array)
    }
    scalars = {at: Scalar(value) for at, value in given.items()}
    try:
        for numbers in (scalars, given) if given else (given,):
            known = dict(enumerate(arguments))
            returned = function(*(known | stand_ins | numbers).values())
    except Exception as error:
        if given:
            return None
        raise NotOneProgramError(f"without values it fails: {error}") from error
    if any(scalar.used for scalar in scalars.values()):
        return None
    listed = list(returned) if isinstance(returned, tuple | list) else [returned]
    if not listed or not all(isinstance(each, Array) for each in listed):
        raise NotOneProgramError("it returns other things than Dask arrays")
    results = {each.name: each for each in listed}
    graph = HighLevelGraph.merge(*(each.dask for each in results.values()))
    keys = [*flatten([each.__dask_keys__() for each in results.values()])]
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
    positions = {each.name: at for at, each in stand_ins.items()}
    inputs = [
        positions[name] if name in positions else _array(name, captured[name])
        for name in names[: len(launch.program.inputs)]
    ]
    outputs = [results[names[number]] for number, _ in launch.program.outputs]
    return Traced(launch, tuple(inputs), tuple(outputs), returned, template, tokens)


def _stand_in(name: str, array: Array) -> Array:
    """Return an array like another, without data."""
    if any(math.isnan(size) for sizes in array.chunks for size in sizes):
        raise NotOneProgramError("chunks of an argument have unknown sizes")
    found = Array({}, name, array.chunks, meta=array._meta)
    keys = flatten(found.__dask_keys__())
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
        if pieces.piece(name) is None and name not in pieces.local:
            word = reader.operation(name)[0]
            raise NotOneProgramError(f"{word} is left to Dask")
        if pieces.annotations(name):
            raise NotOneProgramError("layers are annotated")
    if not names:
        raise NotOneProgramError("it computes nothing")
    region = region_of(names, pieces, by_name(pieces.keys))
    if {name for name, _ in region.wanted} != set(by_name(pieces.keys)):
        raise NotOneProgramError("it returns an argument")
    present = present_on(planner.facts.scheduler, client)
    gang = planner.calibrated(client).planned(region, reader, present)
    if not gang.fits or gang.prediction.parts > 1:
        raise NotOneProgramError("it does not fit in the memory of the workers at once")
    ((_, launch),) = gang.launches
    return launch
