"""Operations that Dask computes block after block, of which one task at a time does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer

from dask_dgpu.environment.facts import ClusterFacts, usable
from dask_dgpu.environment.settings import Settings
from dask_dgpu.observe.explain.words import Step, steps_of
from dask_dgpu.planner.decisions import Rewriting, made_by
from dask_dgpu.planner.predict import Lack, Prediction
from graph_opt.dask_graph.parse import ArrayGraph, is_block, tasks_of
from graph_opt.dask_graph.reader import LayerReader
from graph_opt.dask_graph.readings import read_blockwise
from graph_opt.dask_graph.work import array, named
from graph_opt.model.layout import NUMPY, ArrayNode


class Need(NamedTuple):
    """The bytes of the blocks that a task reads, and of the block that it makes.

    It ``joins`` if it reads several blocks of an array.
    """

    read: int = 0
    made: int = 0
    joins: bool = False

    @property
    def nbytes(self) -> int:
        """All bytes."""
        return self.read + self.made


def stream_lacks(
    rewriting: Rewriting[LayerReader], settings: Settings, facts: ClusterFacts
) -> dict[str, Lack]:
    """Return what reductions lack that Dask computes, by the name of their result.

    Only the blocks at work count: those of one task for each thread of a worker. Dask streams the
    others, and spills results. Temporaries of functions do not count, so what runs well fits.
    """
    room = usable(facts, settings)
    if room is None:
        return {}
    arrays, found = rewriting.reader.arrays, dict[str, Lack]()
    in_gangs = {name for region, _ in rewriting.regions for name in made_by(region)}
    pieces = {name for piece in rewriting.reader.matches.pieces for name in piece.layers}
    for step in steps_of(rewriting.reader):
        if {*step.layers} & (in_gangs | pieces) or not _is_in_room(step.node, facts):
            continue
        names = [name for name in step.layers if name in rewriting.graph.layers]
        needs = [need for name in names for need in _needs(rewriting, name, room / facts.threads)]
        most = max(needs, key=lambda need: need.nbytes, default=Need())
        reduces = any(need.joins for need in needs) or any(
            (reading := read_blockwise(arrays, name)) and reading.chunked for name in step.layers
        )
        if reduces and facts.threads * most.nbytes > room:
            prediction = _prediction(step, facts.threads, most)
            found[step.name] = Lack(prediction, room, others=0, part=True, streams=True)
    return found


def _is_in_room(node: ArrayNode | None, facts: ClusterFacts) -> bool:
    """Whether the sizes of blocks are known, and they are in the memory of which gangs have a part.

    Dask keeps NumPy blocks on the host, beside the memory of a GPU.
    """
    on_host = facts.device == "cuda" and node is not None and node.container == NUMPY
    return node is not None and node.known and not on_host


def _needs(rewriting: Rewriting[LayerReader], name: str, room: float) -> Iterator[Need]:
    """Yield what tasks of a layer need; of equal tasks one, and nothing for unknown blocks.

    If whole arrays fit in the ``room`` of a task, these are all that it yields: tasks are many.
    """
    arrays, layer = rewriting.reader.arrays, rewriting.graph.layers[name]
    node = _known(arrays, name)
    if node is None:
        return
    if not isinstance(layer, Blockwise):
        read = [_known(arrays, other) for other in arrays.dependencies[name]]
        sources = [other for other in read if other is not None]
        whole = Need(sum(other.nbytes for other in sources), node.nbytes)
        if whole.nbytes <= room and len(sources) == len(read):
            joins = any(other.blocks > node.blocks for other in sources)
            yield whole._replace(joins=joins)
            return
        for key, task in tasks_of(rewriting.graph, name):
            names = [other[0] for other in task.dependencies if isinstance(other, tuple)]
            nbytes = sum(_nbytes(arrays, other) for other in task.dependencies)
            yield Need(nbytes, _nbytes(arrays, key), joins=len({*names}) < len(names))
        return
    nbytes, joins = 0, False
    for operand, index in layer.indices:
        if index is None or operand not in arrays.layers:
            continue
        other = _known(arrays, str(operand))
        if other is not None and not _is_constant(arrays.layers[str(operand)]):
            inner = {*index} - {*layer.output_indices}
            blocks = prod(layer.dims[letter] for letter in inner)
            nbytes += min(other.nbytes, blocks * _largest(other))
            joins = joins or blocks > 1
    yield Need(nbytes, _largest(node), joins)


def _nbytes(arrays: ArrayGraph, key: Any) -> int:
    """Return the bytes of a block, 0 if they are not known."""
    name, *index = key if isinstance(key, tuple) else (key,)
    node = _known(arrays, name) if name in arrays.layers else None
    if node is None or not is_block(key, name, node):
        return 0
    return prod(node.block_shape(tuple(index))) * node.itemsize


def _is_constant(layer: Layer) -> bool:
    """Whether blocks are views of one element, as those of ``da.ones``."""
    task: Any = getattr(layer, "task", None)
    return named(getattr(task, "func", None), {}) == "_broadcast_trick_inner"


def _known(arrays: ArrayGraph, name: str) -> ArrayNode | None:
    node = array(arrays, name)
    return node if node is not None and node.known else None


def _largest(node: ArrayNode) -> int:
    return prod(max(sizes, default=0) for sizes in node.chunks) * node.itemsize


def _prediction(step: Step, at_once: int, need: Need) -> Prediction:
    """Return a prediction of the memory alone."""
    read, made = at_once * need.read, at_once * need.made
    shape: tuple[int, ...] = () if step.node is None else step.node.shape
    nothing: Mapping[str, Any] = {
        "text": "",
        "details": (),
        "moved_bytes": 0,
        "seconds": 0.0,
        "tasks": 0,
        "dask_tasks": 0,
        "dask_seconds": 0.0,
        "steps": (),
        "at_once": False,
        "host_bytes": 0,
    }
    return Prediction(
        **nothing,
        peak_bytes=read + made,
        peak=(read, made, 0),
        shape=shape,
        rows=max(shape[:1], default=1),
    )
