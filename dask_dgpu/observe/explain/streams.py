"""Operations that Dask computes block after block, of which one task at a time does not fit."""

from __future__ import annotations

from dask_dgpu.environment.facts import ClusterFacts, usable
from dask_dgpu.environment.settings import Settings
from dask_dgpu.planner.decisions import Rewriting, made_by
from dask_dgpu.planner.predict import Lack, Prediction
from graph_opt.model.layout import NUMPY, ArrayNode
from graph_opt.model.reader import DescribedReader, Need, Step


def stream_lacks(
    rewriting: Rewriting[DescribedReader], settings: Settings, facts: ClusterFacts
) -> dict[str, Lack]:
    """Return what reductions lack that Dask computes, by the name of their result.

    Only the blocks at work count: those of one task for each thread of a worker. Dask streams the
    others, and spills results. Temporaries of functions do not count, so what runs well fits.
    """
    room = usable(facts, settings)
    if room is None:
        return {}
    reader, found = rewriting.reader, dict[str, Lack]()
    layers = reader.layers_of(rewriting.graph)
    in_gangs = {name for region, _ in rewriting.regions for name in made_by(region)}
    pieces = {name for piece in reader.matches.pieces for name in piece.layers}
    for step in reader.steps:
        if {*step.layers} & (in_gangs | pieces) or not _is_in_room(step.node, facts):
            continue
        needs = [
            need
            for name in step.layers
            if name in layers
            for need in reader.needs(rewriting.graph, name, room / facts.threads)
        ]
        most = max(needs, key=lambda need: need.nbytes, default=Need())
        reduces = any(need.joins for need in needs) or any(map(reader.reduces, step.layers))
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


def _prediction(step: Step, at_once: int, need: Need) -> Prediction:
    """Return a prediction of the memory alone."""
    read, made = at_once * need.read, at_once * need.made
    shape = () if step.node is None else step.node.shape
    return Prediction(
        text="",
        details=(),
        seconds=0.0,
        moved_bytes=0,
        peak_bytes=read + made,
        peak=(read, made, 0),
        shape=shape,
        rows=max(shape[:1], default=1),
    )
