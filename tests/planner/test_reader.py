"""The planner decides on any graph with a reader: here one of a few arrays, without Dask."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import pytest

from dask_dgpu.environment.facts import ClusterFacts
from dask_dgpu.environment.settings import read
from dask_dgpu.planner.decisions import Planner, Rewriting
from dask_dgpu.planner.predict import NO_MEETING
from dask_dgpu.planner.present import NOTHING, Present
from graph_opt.model.cost import Beside, Machine
from graph_opt.model.layout import NUMPY, ArrayNode
from graph_opt.model.piece import Blockwork, Piece, Region
from graph_opt.model.reader import Matches, PlainLayer
from graph_opt.passes import depth_first
from graph_opt.pieces.matmul import MatmulPiece


@dataclass(frozen=True)
class Sketch:
    """Square arrays by name, and what each is made from: ``"@"`` and others, or blocks alike.

    Those made from nothing are in memory. This is the reader and, with ``inserted`` pieces, the
    graph that it returns.
    """

    made: Mapping[str, tuple[str, ...]]
    wanted: str
    n: int = 8000
    blocks_along: int = 4
    inserted: tuple[Piece, ...] = ()
    left: Collection[str] = ()

    @property
    def dependencies(self) -> dict[str, set[str]]:
        return {name: {*read} - {"@"} for name, read in self.made.items()}

    @property
    def readers(self) -> dict[str, set[str]]:
        needed = self.dependencies
        return {name: {each for each in needed if name in needed[each]} for name in needed}

    @property
    def keys(self) -> set[Any]:
        return self.blocks(self.wanted)

    @property
    def matches(self) -> Matches:
        made = [(name, read[1:]) for name, read in self.made.items() if "@" in read]
        pieces = [MatmulPiece(*map(self.node, (name, *read))) for name, read in made]
        return Matches((*pieces,), ())

    @property
    def local(self) -> set[str]:
        return {each for each, read in self.made.items() if read and "@" not in read} - {*self.left}

    def node(self, name: str) -> ArrayNode:
        return ArrayNode(
            name, ((self.n // self.blocks_along,) * self.blocks_along,) * 2, "float64", NUMPY
        )

    array = node

    def blocks(self, name: str) -> set[Any]:
        return {(name, *index) for index in self.node(name).indices}

    def annotations(self, name: str) -> dict[str, Any]:
        return {}

    def piece(self, name: str) -> Piece | None:
        return next((each for each in self.inserted if each.output.name == name), None)

    def container(self, name: str) -> str:
        return NUMPY

    def is_stored(self, name: str) -> bool:
        return not self.made[name]

    def is_map(self, name: str) -> bool:
        return name in self.local

    def operation(self, name: str) -> tuple[str, int]:
        layer, *_ = name.split("-")
        return " ".join(self.made[layer]), list(self.made).index(layer)

    def calls_users(self, name: str) -> bool:
        return False

    def reads(self, name: str) -> set[Any]:
        return set().union(*map(self.blocks, self.dependencies[name]))

    def work(self, name: str, output: ArrayNode | None) -> Blockwork:
        read = sorted(self.dependencies[name])
        needs = {index: tuple((each, index) for each in read) for index in self.node(name).indices}
        return Blockwork(self.node(name), (*map(self.node, read),), needs, "a layer")

    def with_pieces(self, pieces: Iterable[Piece], left: Collection[str]) -> Sketch:
        return replace(self, inserted=(*pieces,), left=left)

    @property
    def without_gangs(self) -> str:
        return "as it was"

    def in_passes(self, names: Iterable[str]) -> Sketch | None:
        return None

    def emit(self, launches: Iterable[tuple[Region, Any]]) -> list[Any]:
        return [launch for _, launch in launches]

    def task_seconds(self, name: str, given: Collection[str], machine: Machine) -> float:
        nbytes = self.node(name).nbytes / self.node(name).blocks
        return (1 + len(self.dependencies[name])) * nbytes / machine.memory_bandwidth

    def beside(self, name: str, given: Collection[str]) -> Beside:
        return Beside()

    def plain_layers(
        self,
        pieces: Iterable[Piece],
        regions: Collection[Region],
        wanted: Collection[Any],
        machine: Machine,
        workers: int,
        *,
        kernels: bool,
    ) -> Iterator[PlainLayer]:
        known = {each.output.name: each for each in pieces}
        exist = {name for region in regions for name, _ in region.wanted}
        needed = {} if self.wanted in exist else self.dependencies
        for name in depth_first(needed):
            if name in known:
                reads = {name: self.reads(name)}
                yield PlainLayer(name, needed[name], reads, piece=known[name])
            elif needed[name]:
                read = self.work(name, None).needs.items()
                needs = {(name, *to): [(each, *at) for each, at in blocks] for to, blocks in read}
                seconds = len(needs) * self.task_seconds(name, (), machine) / workers
                yield PlainLayer(name, needed[name], needs, seconds)

    def recipes(self, works: Iterable[Blockwork], numbers: Mapping[str, int]) -> dict[int, str]:
        return {numbers[work.output.name]: f"a block of {work.output.name}" for work in works}

    def fallback(self, region: Region, *, travels: bool) -> str:
        return f"plain tasks for {', '.join(region.nodes)}"


PRODUCT = {"x": (), "y": (), "z": ("@", "x", "y"), "w": ("z", "x")}


def decided(
    sketch: Sketch, present: Present = NOTHING, memory: int | None = None, **settings: Any
) -> tuple[Planner, Rewriting[Sketch]]:
    planner = Planner(read(settings), ClusterFacts(4, "cpu", memory))
    return planner, planner.decide(sketch, present)


def test_a_product_and_the_work_after_it_are_one_gang() -> None:
    planner, done = decided(Sketch(PRODUCT, "w"))
    ((region, prediction),) = done.regions
    assert [*region.nodes] == ["z", "w"]
    (launch,) = done.graph
    assert [node.operation for node in launch.program.nodes] == ["matmul", None]
    assert launch.names == ("x", "y", "z", "w")
    assert launch.plain == "plain tasks for z, w"
    ours, plain = planner.totals(done)
    assert ours.seconds == prediction.seconds + 2 * planner.facts.machine.round_trip_seconds
    assert ours.seconds < plain.seconds


def test_a_small_product_is_left_as_it_is() -> None:
    planner, done = decided(Sketch(PRODUCT, "w", n=40, blocks_along=2))
    assert (done.graph, done.regions) == ("as it was", ())
    (declined,) = done.declined
    assert declined.name == "z"
    assert "is predicted to be quicker" in declined.reason
    ours, plain = planner.totals(done)
    assert ours == plain


@pytest.mark.parametrize("share", [0.5, 0.35])
def test_a_product_that_does_not_fit_is_computed_in_parts(share: float) -> None:
    sketch = Sketch(PRODUCT, "z")
    memory = int(share * 3 * 8 * prod(sketch.node("z").shape) / 4)
    _, done = decided(sketch, memory=memory, when="always")
    ((_, prediction),) = done.regions
    assert prediction.parts > 1
    assert len(done.graph) == prediction.parts
    assert prediction.peak_bytes <= memory


@pytest.mark.parametrize("apart", [True, False])
def test_blocks_that_lie_apart_meet_in_a_gang(apart: bool) -> None:
    def places(keys: Collection[Any]) -> dict[Any, int]:
        return {key: (key[1] + apart * (key[0] == "y")) % 4 for key in keys}

    sums = Sketch({"x": (), "y": (), "z": ("x", "y")}, "z")
    _, done = decided(sums, Present(lambda keys: 0, places))
    assert [[*region.nodes] for region, _ in done.regions] == ([["z"]] if apart else [])
    assert dict(done.left) == ({} if apart else {"z": NO_MEETING})
