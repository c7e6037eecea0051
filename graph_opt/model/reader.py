"""What the planner sees of a graph: arrays by name. Each kind of graph has a reader of its own.

Dask's HighLevelGraphs are read by :mod:`graph_opt.dask_graph.reader`. Pieces, regions, programs and
plans are the same for all readers, so what decides on them knows no layers, no tasks and no names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from graph_opt.model.cost import Beside, Machine
from graph_opt.model.layout import ArrayNode, Declined
from graph_opt.model.piece import Blockwork, Piece, Region
from graph_opt.model.recipe import Recipe

Key = Any
"""Of a block: the name of its array, then its index. Other values may have any keys."""


class Matches(NamedTuple):
    """Pieces to rewrite, and what looks like a piece, but is none for a gang."""

    pieces: tuple[Piece, ...]
    declined: tuple[Declined, ...]


class PlainLayer(NamedTuple):
    """A layer as plain Dask runs it, or a piece.

    It ``reads`` some layers. ``needs`` are the blocks that each of its tasks reads; a piece reads
    all of its own together. ``seconds`` is the work of the busiest worker, which receives
    ``moved_bytes``. ``aliases`` are tasks that only rename a block. So many
    ``inner`` tasks come before those of its blocks, and wait for each other ``depth`` times.
    """

    name: str
    reads: Collection[str]
    needs: Mapping[Key, Collection[Key]]
    seconds: float = 0.0
    moved_bytes: float = 0.0
    aliases: Collection[Key] = ()
    inner: int = 0
    depth: int = 0
    piece: Piece | None = None


@dataclass(frozen=True)
class OperationLayers:
    """The layers of an operation, the last of which has its result, and its name.

    ``node`` is the result, ``None`` if Dask declares none, and ``inputs`` the last layers of other
    operations that it reads.
    """

    word: str
    layers: tuple[str, ...]
    node: ArrayNode | None
    inputs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The layer with the result."""
        return self.layers[-1]


class Layers(Protocol):
    """What a graph says of its layers, whether they have pieces or not."""

    @property
    def keys(self) -> AbstractSet[Key]:
        """The requested blocks."""

    @property
    def dependencies(self) -> Mapping[str, AbstractSet[str]]:
        """The layers that each layer reads, without cycles."""

    def is_map(self, name: str) -> bool:
        """Whether each block of a layer is computed from blocks with the same index only."""

    def is_stored(self, name: str) -> bool:
        """Whether the blocks of a layer are in memory; of unknown layers they are not."""


class Graph(Layers, Protocol):
    """A graph with pieces in place of layers, and only the needed layers and blocks."""

    @property
    def readers(self) -> Mapping[str, AbstractSet[str]]:
        """The layers that read each layer."""

    @property
    def local(self) -> AbstractSet[str]:
        """The layers that a gang can compute without a collective, and may."""

    def annotations(self, name: str) -> Mapping[str, Any]:
        """Return the annotations of a layer; a region has layers with equal ones."""

    def piece(self, name: str) -> Piece | None:
        """Return the piece that replaces a layer, ``None`` for other layers."""

    def node(self, name: str) -> ArrayNode:
        """Return the array of a layer, with estimates of what is not declared."""

    def container(self, name: str) -> str | None:
        """Return the type of the blocks of a layer, ``None`` if unknown."""

    def calls_users(self, name: str) -> bool:
        """Whether a layer calls a function of the user for each block."""

    def reads(self, name: str) -> AbstractSet[Key]:
        """Return the keys of other layers' blocks that a layer reads."""

    def work(self, name: str, output: ArrayNode | None) -> Blockwork:
        """Return the work of a layer without a piece; ``output`` is a better declaration."""

    def emit(self, launches: Iterable[tuple[Region, Any]]) -> Any:
        """Return the user's kind of graph, with tasks for regions and the payloads of these."""


class Reader(Layers, Protocol):
    """A graph as users made it, whose layers are read as arrays."""

    @property
    def matches(self) -> Matches:
        """The pieces in the layers."""

    @property
    def without_gangs(self) -> Any:
        """The user's kind of graph, with kernels for the work of several layers."""

    def array(self, name: str) -> ArrayNode | None:
        """Return the array of a layer, ``None`` if none is declared."""

    def with_pieces(self, pieces: Collection[Piece], left: Collection[str]) -> Graph:
        """Return the graph with pieces; none of the layers ``left`` is for a gang."""

    def in_passes(self, names: Iterable[str]) -> Self | None:
        """Return the graph with pieces in passes that need less memory, ``None`` if none has."""

    def task_seconds(self, name: str, given: Collection[str], machine: Machine) -> float:
        """Predict a task of a layer, on average, from the blocks of the layers ``given``."""

    def beside(self, name: str, given: Collection[str]) -> Beside:
        """Return the memory that a task of a layer needs beside its operands and its result."""

    def plain_layers(
        self,
        pieces: Iterable[Piece],
        regions: Collection[Region],
        wanted: Collection[Key],
        machine: Machine,
        workers: int,
        *,
        kernels: bool,
    ) -> Iterable[PlainLayer]:
        """Yield the layers for the blocks ``wanted`` as plain Dask runs them, in order.

        ``pieces`` take the place of their layers, and the results of ``regions`` exist. With
        ``kernels``, these do the work of several layers.
        """

    def recipes(
        self, works: Iterable[Blockwork], numbers: Mapping[str, int]
    ) -> Mapping[int, Recipe]:
        """Return how ranks compute blocks, by the numbers of results; what they read is by number.

        See :class:`dask_dgpu.runtime.program.Blockworks`.
        """

    def operation(self, name: str) -> tuple[str, int]:
        """Return the user's word for an array, and the number of the operation that makes it.

        It may be that of a step of a layer.
        """

    def fallback(self, region: Region, *, travels: bool) -> Any:
        """Return the user's own tasks for a region, which are pickled if they travel."""


OPTED_OUT = "dask.annotate(dgpu=False)"
"""Why a layer stays with Dask if the user says so."""


class DescribedReader(Reader, Protocol):
    """A reader that also says what ``explain`` shows; it may look at rewritten graphs."""

    @property
    def requested(self) -> Sequence[str]:
        """The names of the requested arrays."""

    @property
    def steps(self) -> Sequence[OperationLayers]:
        """The operations in the user's words, each after those that it reads.

        Blocks that exist, such as those of a persisted array, are no operation.
        """

    def calls_users(self, name: str) -> bool:
        """Whether a layer calls a function of the user for each block."""

    def fault(self, step: OperationLayers) -> str | None:
        """Return why no gang can compute an operation, whatever it costs, ``None`` if one can."""

    def layers_of(self, graph: Any) -> Mapping[str, Any]:
        """Return the layers of a rewritten graph by name."""

    def is_kernel(self, layer: Any) -> bool:
        """Whether the tasks of a layer run a kernel for the work of several layers."""

    def in_passes_of(self, graph: Any) -> Mapping[str, str]:
        """Return the operation of each layer that was made to run one of ``graph`` in passes."""
